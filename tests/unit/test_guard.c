/* SPDX-License-Identifier: Apache-2.0 */
/* The SIGBUS guard: faults inside come back as errors, faults outside still kill. */
#include "shardfile.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "daemon/shard/guard.h"

#define PAGES 4

/* A mapping of PAGES pages of a file that was then cut to one. */
static const volatile uint8_t *cut_mapping(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int fd = memfd_create("cut", MFD_CLOEXEC);
	void *map;

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)(PAGES * page)), 0);
	map = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(ftruncate(fd, (off_t)page), 0);
	close(fd);
	return map;
}

/* cmocka takes SIGBUS for itself around each test. */
static void install(void)
{
	assert_int_equal(stkd_guard_install(), 0);
}

struct job {
	const volatile uint8_t *map;
	size_t at;
	atomic_int sum;
};

static int touch(void *arg)
{
	struct job *job = arg;

	atomic_fetch_add(&job->sum, job->map[job->at] + 1);
	return 7;
}

static void a_call_that_does_not_fault_returns_its_own_result(void **state)
{
	struct job job = {.map = cut_mapping()};
	const void *address = &job;

	(void)state;
	install();
	assert_int_equal(stkd_guard_run(touch, &job, &address), 7);
	assert_int_equal(job.sum, 1);
	assert_ptr_equal(address, &job); /* not touched */
}

static void a_load_past_the_end_of_a_cut_file_is_efault_with_its_address(void **state)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct job job = {.map = cut_mapping(), .at = 2 * page + 5};
	const void *address = NULL;

	(void)state;
	install();
	/* Again and again: the signal must not stay blocked, nor the guard armed. */
	for (int i = 0; i < 100; i++) {
		assert_int_equal(stkd_guard_run(touch, &job, &address), -EFAULT);
		assert_ptr_equal(address, (const uint8_t *)job.map + job.at);
	}
	assert_int_equal(job.sum, 0);
}

static void *fault_often(void *arg)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct job job = {.map = arg};
	intptr_t wrong = 0;

	for (size_t i = 0; i < 1000; i++) {
		const void *address = NULL;

		job.at = i % 2 ? page + i : i;
		if (stkd_guard_run(touch, &job, &address) != (i % 2 ? -EFAULT : 7))
			wrong++;
		if (i % 2 && address != (const uint8_t *)job.map + job.at)
			wrong++;
	}
	return (void *)wrong;
}

static void four_threads_fault_at_once_and_all_recover(void **state)
{
	void *map = (void *)cut_mapping();
	pthread_t threads[4];

	(void)state;
	install();
	for (size_t i = 0; i < STK_ARRAY_SIZE(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, fault_often, map), 0);
	for (size_t i = 0; i < STK_ARRAY_SIZE(threads); i++) {
		void *wrong;

		assert_int_equal(pthread_join(threads[i], &wrong), 0);
		assert_null(wrong);
	}
}

/* Runs in a child without core files; returns the signal that ended it, or 0. */
static int signal_of_child(void (*body)(void))
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		body();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void fault_outside(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct job job = {.map = cut_mapping(), .at = page};

	touch(&job);
}

static void a_fault_outside_a_guarded_call_kills_the_process(void **state)
{
	(void)state;
	install();
	assert_int_equal(signal_of_child(fault_outside), SIGBUS);
}

static int send_sigbus(void *arg)
{
	(void)arg;
	raise(SIGBUS);
	return 0;
}

static void send_inside(void)
{
	stkd_guard_run(send_sigbus, NULL, NULL);
}

static void a_sigbus_that_was_sent_is_not_taken_for_a_fault(void **state)
{
	(void)state;
	install();
	assert_int_equal(signal_of_child(send_inside), SIGBUS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_call_that_does_not_fault_returns_its_own_result),
		cmocka_unit_test(a_load_past_the_end_of_a_cut_file_is_efault_with_its_address),
		cmocka_unit_test(four_threads_fault_at_once_and_all_recover),
		cmocka_unit_test(a_fault_outside_a_guarded_call_kills_the_process),
		cmocka_unit_test(a_sigbus_that_was_sent_is_not_taken_for_a_fault),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
