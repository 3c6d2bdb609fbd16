/* SPDX-License-Identifier: Apache-2.0 */
/* Where the workers' time goes: who is in a range, who sleeps there, and for how long. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/serve/worktime.h"

struct fixture {
	struct stkd_worktime time;
	struct stkd_worktime_figures figures;
	int go[2]; /* a pipe: a worker sleeps in read() until it is written to */
	_Atomic bool stop;
};

static int set_up(void **state)
{
	static struct fixture f;

	memset(&f, 0, sizeof(f));
	if (pipe(f.go))
		return -1;
	*state = &f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	close(f->go[0]);
	close(f->go[1]);
	return 0;
}

static void *sleep_in_a_range(void *data)
{
	struct fixture *f = data;
	struct stkd_worktime_range range;
	char byte;

	for (int i = 0; i < 2; i++) {
		stkd_worktime_begin(&f->time, &range);
		assert_int_equal(read(f->go[0], &byte, 1), 1);
		stkd_worktime_end(&f->time, &range);
	}
	return NULL;
}

static void *spin_in_a_range(void *data)
{
	struct fixture *f = data;
	struct stkd_worktime_range range;

	for (int i = 0; i < 2; i++) {
		stkd_worktime_begin(&f->time, &range);
		for (int k = 0; i == 0 ? k < 10000000 : !f->stop; k++)
			__asm__ volatile("");
		stkd_worktime_end(&f->time, &range);
	}
	return NULL;
}

static void wait_for(struct fixture *f, uint32_t busy, uint32_t blocked)
{
	for (int i = 0; i < 10000; i++) {
		stkd_worktime_figures(&f->time, &f->figures);
		if (f->figures.busy == busy && f->figures.blocked == blocked)
			return;
		usleep(1000);
	}
	fail_msg("%u busy, %u blocked", f->figures.busy, f->figures.blocked);
}

static void a_worker_that_sleeps_in_a_range_waits_for_storage(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;
	uint64_t before;

	assert_int_equal(pthread_create(&thread, NULL, sleep_in_a_range, f), 0);
	wait_for(f, 1, 1);
	before = f->figures.blocked_ns;
	usleep(20000);
	wait_for(f, 1, 1);
	assert_true(f->figures.blocked_ns >= before + 20000000);
	assert_int_equal(f->figures.storage_ns, 0); /* the first slow range is not watched yet */
	assert_int_equal(write(f->go[1], "x", 1), 1);
	do
		wait_for(f, 1, 1);
	while (!f->figures.range_ns);
	usleep(50000);
	assert_int_equal(write(f->go[1], "x", 1), 1);
	pthread_join(thread, NULL);
	wait_for(f, 0, 0);
	assert_true(f->figures.storage_ns >= 40000000);
	assert_true(f->figures.range_ns >= f->figures.storage_ns);
}

static void a_worker_that_computes_does_not(void **state)
{
	struct fixture *f = *state;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, spin_in_a_range, f), 0);
	wait_for(f, 1, 0);
	usleep(20000);
	wait_for(f, 1, 0);
	f->stop = true;
	pthread_join(thread, NULL);
	wait_for(f, 0, 0);
	assert_true(f->figures.storage_ns < f->figures.range_ns / 4);
}

static void more_workers_than_places_do_no_harm(void **state)
{
	struct fixture *f = *state;
	struct stkd_worktime_range range[STKD_WORKTIME_PLACES + 1];

	for (int i = 0; i <= STKD_WORKTIME_PLACES; i++)
		stkd_worktime_begin(&f->time, &range[i]);
	assert_null(range[STKD_WORKTIME_PLACES].place);
	stkd_worktime_figures(&f->time, &f->figures);
	assert_int_equal(f->figures.busy, STKD_WORKTIME_PLACES);
	for (int i = 0; i <= STKD_WORKTIME_PLACES; i++)
		stkd_worktime_end(&f->time, &range[i]);
	wait_for(f, 0, 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_worker_that_sleeps_in_a_range_waits_for_storage),
		TEST(a_worker_that_computes_does_not),
		TEST(more_workers_than_places_do_no_harm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
