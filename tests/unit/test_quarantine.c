/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "daemon/assemble/quarantine.h"

static struct stkd_bad list[STKD_QUARANTINE_MAX];
static uint64_t rows;
static bool more;

static void note(struct stkd_quarantine *q, uint64_t sample, uint64_t offset, uint32_t op)
{
	stkd_quarantine_note(q, &(struct stkd_bad){sample, offset, op});
}

static void samples_are_listed_once_and_in_order(void **state)
{
	struct stkd_quarantine *q = stkd_quarantine_new();

	(void)state;
	assert_int_equal(stkd_quarantine_list(q, list, STKD_QUARANTINE_MAX, &rows, &more), 0);
	assert_int_equal(rows, 0);
	for (uint32_t epoch = 0; epoch < 3; epoch++) {
		note(q, 70, 700, 1);
		note(q, 5, 50, 0);
		note(q, UINT64_MAX - 1, 1, 2);
		note(q, 30, 300, 1);
	}
	assert_int_equal(stkd_quarantine_list(q, list, STKD_QUARANTINE_MAX, &rows, &more), 4);
	assert_int_equal(rows, 12);
	assert_false(more);
	assert_int_equal(list[0].sample, 5);
	assert_int_equal(list[0].offset, 50);
	assert_int_equal(list[1].sample, 30);
	assert_int_equal(list[2].sample, 70);
	assert_int_equal(list[2].op, 1);
	assert_true(list[3].sample == UINT64_MAX - 1);
	assert_int_equal(stkd_quarantine_list(q, list, 2, &rows, &more), 2);
	assert_true(more);
	stkd_quarantine_free(q);
}

static void of_several_fields_the_first_is_named(void **state)
{
	struct stkd_quarantine *a = stkd_quarantine_new(), *b = stkd_quarantine_new();

	(void)state;
	note(a, 1, 10, 2);
	note(a, 1, 20, 0);
	note(b, 1, 20, 0);
	note(b, 1, 10, 2);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(stkd_quarantine_list(i ? b : a, list, 1, &rows, &more), 1);
		assert_int_equal(list[0].offset, 20);
		assert_int_equal(list[0].op, 0);
		assert_int_equal(rows, 2);
	}
	stkd_quarantine_free(a);
	stkd_quarantine_free(b);
}

/* Whatever order they come in, and however many there are. */
static void a_full_list_holds_the_lowest_samples(void **state)
{
	const uint64_t n = 1531, steps[] = {1, 1530, 7, 700}; /* a prime: each step reaches all */

	(void)state;
	for (size_t k = 0; k < STK_ARRAY_SIZE(steps); k++) {
		struct stkd_quarantine *q = stkd_quarantine_new();

		for (uint64_t i = 0; i < 2 * n; i++)
			note(q, 10 + 2 * (i * steps[k] % n), 0, 0);
		assert_int_equal(stkd_quarantine_list(q, list, STKD_QUARANTINE_MAX, &rows, &more),
				 STKD_QUARANTINE_MAX);
		assert_true(more);
		assert_int_equal(rows, 2 * n);
		for (uint64_t i = 0; i < STKD_QUARANTINE_MAX; i++)
			assert_int_equal(list[i].sample, 10 + 2 * i);
		stkd_quarantine_free(q);
	}
}

static void a_list_that_is_just_full_says_that_there_is_no_more(void **state)
{
	struct stkd_quarantine *q = stkd_quarantine_new();

	(void)state;
	for (uint64_t i = STKD_QUARANTINE_MAX; i-- > 0;)
		note(q, i, 0, 0);
	note(q, 3, 0, 0);
	assert_int_equal(stkd_quarantine_list(q, list, STKD_QUARANTINE_MAX, &rows, &more),
			 STKD_QUARANTINE_MAX);
	assert_false(more);
	stkd_quarantine_free(q);
}

struct noter {
	struct stkd_quarantine *q;
	uint64_t first;
};

static void *note_many(void *arg)
{
	const struct noter *noter = arg;

	for (uint64_t i = 0; i < 2000; i++)
		note(noter->q, noter->first + i * 4 % 1600, 0, 0);
	return NULL;
}

static void several_workers_may_note_at_a_time(void **state)
{
	struct stkd_quarantine *q = stkd_quarantine_new();
	struct noter noters[4];
	pthread_t threads[4];

	(void)state;
	rows = 0;
	for (uint64_t i = 0; i < 4; i++) {
		noters[i] = (struct noter){q, i};
		assert_int_equal(pthread_create(&threads[i], NULL, note_many, &noters[i]), 0);
	}
	while (rows < 100)
		stkd_quarantine_list(q, list, 10, &rows, &more);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(stkd_quarantine_list(q, list, STKD_QUARANTINE_MAX, &rows, &more),
			 STKD_QUARANTINE_MAX);
	assert_int_equal(rows, 8000);
	for (uint64_t i = 0; i < STKD_QUARANTINE_MAX; i++)
		assert_int_equal(list[i].sample, i);
	stkd_quarantine_free(q);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(samples_are_listed_once_and_in_order),
		cmocka_unit_test(of_several_fields_the_first_is_named),
		cmocka_unit_test(a_full_list_holds_the_lowest_samples),
		cmocka_unit_test(a_list_that_is_just_full_says_that_there_is_no_more),
		cmocka_unit_test(several_workers_may_note_at_a_time),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
