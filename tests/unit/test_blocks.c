/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block order: every sample once, neighbours stay near each other, and passes differ.
 */
#include "daemon/plan/blocks.h"
#include "tests/unit/plan_fixture.h"

#define SAMPLES 5000

struct order {
	struct stkd_blocks blocks;
	struct stkd_block_walk *walk;
	uint32_t len[SAMPLES];
	uint64_t at[SAMPLES];
};

static void open_order(struct order *o, uint64_t n, bool units, uint64_t block, uint32_t window)
{
	uint64_t seed = 5;

	for (uint64_t i = 0; i < n; i++)
		o->len[i] = below(&seed, 40);
	assert_int_equal(
		stkd_blocks_init(&o->blocks, units ? o->len : NULL, n, block, window, NULL), 0);
	assert_int_equal(stkd_block_walk_new(&o->blocks, &o->walk), 0);
}

static void read_pass(struct order *o, uint64_t pass)
{
	stkd_block_walk_begin(o->walk, 17, pass, 0);
	for (uint64_t i = 0; i < o->blocks.count; i++)
		o->at[i] = stkd_block_walk_at(o->walk, i);
}

static void close_order(struct order *o)
{
	stkd_block_walk_free(o->walk);
	stkd_blocks_deinit(&o->blocks);
}

static void a_pass_reads_every_sample_once(void **state)
{
	static const uint64_t sizes[] = {1, 2, 15, 16, 17, 100, 1000, 4999, SAMPLES};
	struct order *o = calloc(1, sizeof(*o));

	(void)state;
	assert_non_null(o);
	for (size_t s = 0; s < STK_ARRAY_SIZE(sizes); s++) {
		for (int kind = 0; kind < 6; kind++) {
			uint8_t seen[SAMPLES] = {0};

			open_order(o, sizes[s], kind % 2, kind % 2 ? 100 : 16, 1 + kind * 4);
			read_pass(o, 3);
			for (uint64_t i = 0; i < sizes[s]; i++) {
				assert_true(o->at[i] < sizes[s]);
				assert_int_equal(seen[o->at[i]]++, 0);
			}
			close_order(o);
		}
	}
	free(o);
}

static void positions_are_reached_in_any_order(void **state)
{
	struct order *o = calloc(1, sizeof(*o));
	uint64_t seed = 3;

	(void)state;
	assert_non_null(o);
	open_order(o, SAMPLES, true, 200, 7);
	read_pass(o, 1);
	for (int t = 0; t < 2000; t++) {
		uint64_t i = below(&seed, SAMPLES);

		assert_int_equal(stkd_block_walk_at(o->walk, i), o->at[i]);
	}
	close_order(o);
	free(o);
}

/* A window's samples come from as many blocks as it has, each a run of neighbours. */
static void a_window_reads_a_few_runs_of_neighbours(void **state)
{
	struct order *o = calloc(1, sizeof(*o));

	(void)state;
	assert_non_null(o);
	open_order(o, 4096, false, 64, 4);
	read_pass(o, 0);
	for (uint64_t w = 0; w < 4096; w += 256) {
		uint8_t blocks[64] = {0};
		unsigned n = 0;

		for (uint64_t i = w; i < w + 256; i++)
			blocks[o->at[i] / 64]++;
		for (int b = 0; b < 64; b++) {
			assert_true(!blocks[b] || blocks[b] == 64);
			n += blocks[b] > 0;
		}
		assert_int_equal(n, 4);
	}
	close_order(o);
	free(o);
}

static void blocks_in_length_units_have_about_as_many(void **state)
{
	struct order *o = calloc(1, sizeof(*o));

	(void)state;
	assert_non_null(o);
	open_order(o, SAMPLES, true, 500, 4);
	for (uint64_t b = 0; b < o->blocks.n; b++) {
		uint64_t filled = 0;

		for (uint64_t i = o->blocks.first[b]; i < o->blocks.first[b + 1]; i++)
			filled += o->len[i] ? o->len[i] : 1;
		assert_true(filled < 540);
		assert_true(filled >= 500 || b + 1 == o->blocks.n);
	}
	close_order(o);
	free(o);
}

static void passes_seeds_and_datasets_have_unrelated_orders(void **state)
{
	struct order *o = calloc(1, sizeof(*o));
	uint64_t before[SAMPLES];

	(void)state;
	assert_non_null(o);
	open_order(o, SAMPLES, false, 16, 16);
	read_pass(o, 0);
	for (int kind = 0; kind < 3; kind++) {
		unsigned same = 0, adjacent = 0, fixed = 0;

		memcpy(before, o->at, sizeof(before));
		stkd_block_walk_begin(o->walk, 17 + (kind == 1), kind == 0, kind == 2);
		for (uint64_t i = 0; i < SAMPLES; i++) {
			o->at[i] = stkd_block_walk_at(o->walk, i);
			same += o->at[i] == before[i];
			fixed += o->at[i] == i;
			adjacent += i && o->at[i] == o->at[i - 1] + 1;
		}
		/* About one of each is what chance gives; within blocks of 16 it is more likely. */
		assert_true(same < 15);
		assert_true(fixed < 15);
		assert_true(adjacent < 60);
	}
	close_order(o);
	free(o);
}

static void too_many_blocks_are_refused_with_the_number(void **state)
{
	struct stkd_blocks blocks;
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(stkd_blocks_init(&blocks, NULL, UINT64_C(1) << 40, 16, 16, &err), -EINVAL);
	assert_non_null(strstr(err.text, "block: 16 makes more than 67108864 blocks, at least "
					 "68719476736 of them"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pass_reads_every_sample_once),
		cmocka_unit_test(positions_are_reached_in_any_order),
		cmocka_unit_test(a_window_reads_a_few_runs_of_neighbours),
		cmocka_unit_test(blocks_in_length_units_have_about_as_many),
		cmocka_unit_test(passes_seeds_and_datasets_have_unrelated_orders),
		cmocka_unit_test(too_many_blocks_are_refused_with_the_number),
	};

	return cmocka_run_group_tests_name("blocks", tests, NULL, NULL);
}
