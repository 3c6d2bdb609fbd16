/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan reads and keeps: no more for a late step than for an early one, nor for a large world
 * or after many epochs; and what each rank gets to see over the epochs.
 */
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/plan_fixture.h"

#define COUNT 400000u

static struct stk_spec bucket_spec(void)
{
	struct stk_spec spec = plain_spec();

	spec.group = STK_GROUP_BUCKET;
	spec.buckets = 8;
	spec.rows = 1;
	return spec;
}

static uint32_t *make_lengths(void)
{
	size_t size = COUNT * sizeof(uint32_t);
	uint32_t *len =
		mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t seed = 5;

	assert_true(len != MAP_FAILED);
	for (uint32_t i = 0; i < COUNT; i++)
		len[i] = 1 + below(&seed, 500);
	return len;
}

/* Stored order, so that a position is an id. Returns the first sample that was not delivered. */
static uint64_t walk_to(struct stkd_iter *iter, uint64_t samples)
{
	uint8_t *seen = calloc(COUNT, 1);
	uint64_t n = 0, oldest = 0;
	struct stkd_step step;

	assert_non_null(seen);
	for (; n < samples; n += step.nids) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		for (uint32_t i = 0; i < step.nids; i++)
			seen[step.ids[i]] = 1;
	}
	while (oldest < COUNT && seen[oldest])
		oldest++;
	free(seen);
	return oldest;
}

static void assert_same_step(struct stkd_iter *a, struct stkd_iter *b)
{
	struct stkd_step x, y;

	assert_int_equal(stkd_iter_next(a, &x), 0);
	assert_int_equal(stkd_iter_next(b, &y), 0);
	assert_int_equal(x.step, y.step);
	assert_int_equal(x.nids, y.nids);
	assert_memory_equal(x.ids, y.ids, x.nids * sizeof(*x.ids));
}

/* The lengths before cannot be read meanwhile. */
static void a_resume_reads_nothing_before_the_oldest_waiting_sample(void **state)
{
	static const uint32_t worlds[] = {8, 1024}, percents[] = {1, 50, 99};
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = COUNT * sizeof(uint32_t);
	struct stk_spec spec = bucket_spec();
	uint32_t *len = make_lengths();

	(void)state;
	for (size_t k = 0; k < STK_ARRAY_SIZE(worlds) * STK_ARRAY_SIZE(percents); k++) {
		uint64_t at = (uint64_t)COUNT / 100 * percents[k % STK_ARRAY_SIZE(percents)],
			 oldest;
		struct stkd_plan *plan =
			make_plan(&spec, len, COUNT, worlds[k / STK_ARRAY_SIZE(percents)]);
		struct stkd_iter *iter = make_iter(plan, NULL, 0), *again;
		uint8_t cursor[STK_SHM_CURSOR_MAX];
		size_t before;

		oldest = walk_to(iter, at);
		if (at > COUNT / 10)
			assert_true(oldest > at - COUNT / 10);
		before = oldest * sizeof(*len) / page * page;
		if (before)
			assert_int_equal(mprotect(len, before, PROT_NONE), 0);
		again = make_iter(plan, cursor, stkd_iter_cursor(iter, cursor));
		assert_same_step(again, iter);
		assert_int_equal(mprotect(len, size, PROT_READ | PROT_WRITE), 0);
		stkd_iter_free(again);
		stkd_iter_free(iter);
		stkd_plan_free(plan);
	}
	munmap(len, size);
}

static size_t allocated(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void an_iterator_keeps_no_more_after_many_epochs_or_in_a_large_world(void **state)
{
	static const uint32_t worlds[] = {8, 1024};
	struct stk_spec spec = bucket_spec();
	uint32_t *len = make_lengths();
	size_t probe = allocated();
	void *block = malloc(4096);

	(void)state;
	assert_non_null(block);
	probe = allocated() - probe;
	free(block);
	if (!probe) {
		print_message("this allocator does not count\n");
		munmap(len, COUNT * sizeof(*len));
		skip();
	}
	spec.order = STK_ORDER_FULL;
	for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++) {
		size_t start = allocated(), first = 0;
		struct stkd_plan *plan = make_plan(&spec, len, COUNT, worlds[w]);
		struct stkd_iter *iter = make_iter(plan, NULL, 0);
		struct stkd_step step;

		for (int epoch = 0; epoch < 4; epoch++) {
			do
				assert_int_equal(stkd_iter_next(iter, &step), 0);
			while (!step.last_of_epoch);
			if (!epoch)
				first = allocated() - start;
		}
		/* What waits in buckets: eight bytes each, with room to grow. */
		assert_true(first < 512 * 1024 + 64 * 8 * worlds[w]);
		assert_true(first < 16 * (size_t)COUNT);
		assert_true(allocated() - start <= first + first / 2);
		stkd_iter_free(iter);
		stkd_plan_free(plan);
	}
	munmap(len, COUNT * sizeof(*len));
}

/* Over eight epochs each rank against each sixteenth of the data: 45 degrees of freedom. */
static void each_rank_sees_samples_from_everywhere(void **state)
{
	enum { N = 4096, WORLD = 4, PARTS = 16, EPOCHS = 8 };
	uint64_t cell[WORLD][PARTS] = {{0}};
	double expected = (double)N * EPOCHS / WORLD / PARTS, chi = 0;
	struct stk_spec spec = plain_spec();
	struct stkd_step step = {0};
	static uint32_t len[N];
	struct stkd_plan *plan;
	struct stkd_iter *iter;

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		len[i] = 7;
	spec.order = STK_ORDER_FULL;
	plan = make_plan(&spec, len, N, WORLD);
	iter = make_iter(plan, NULL, 0);
	while (step.epoch < EPOCHS - 1 || !step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		for (uint32_t rank = 0; rank < WORLD; rank++) {
			struct stkd_part part;

			stkd_step_part(plan, &step, rank, 0, &part);
			for (uint32_t i = 0; i < part.rows_real; i++)
				cell[rank][part.ids[i] * PARTS / N]++;
		}
	}
	for (unsigned i = 0; i < WORLD * PARTS; i++) {
		double d = (double)cell[i / PARTS][i % PARTS] - expected;

		chi += d * d / expected;
	}
	/* Deviation 9.5. */
	assert_true(chi > 8 && chi < 95);
	stkd_iter_free(iter);
	stkd_plan_free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_resume_reads_nothing_before_the_oldest_waiting_sample),
		cmocka_unit_test(an_iterator_keeps_no_more_after_many_epochs_or_in_a_large_world),
		cmocka_unit_test(each_rank_sees_samples_from_everywhere),
	};

	return cmocka_run_group_tests_name("plan_work", tests, NULL, NULL);
}
