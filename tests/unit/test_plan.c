/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of small data sets, step by step; what is refused, and with which words. */
#include "tests/unit/plan_fixture.h"

/* All steps of one epoch as sizes and ids. */
struct epoch {
	uint32_t nsteps, nids[64], class[64], width[64], rows_part[64];
	uint64_t ids[64][64];
};

static void walk(const struct stkd_plan *plan, uint64_t epoch, struct epoch *ret)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	struct stkd_step step = {0};

	memset(ret, 0, sizeof(*ret));
	assert_int_equal(stkd_iter_seek(iter, epoch, 0, NULL), 0);
	while (!step.last_of_epoch) {
		uint32_t s = ret->nsteps++;

		assert_true(s < 64);
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_true(step.nids <= 64);
		ret->nids[s] = step.nids;
		ret->class[s] = step.shape_class;
		ret->width[s] = step.width;
		ret->rows_part[s] = step.rows_part;
		memcpy(ret->ids[s], step.ids, step.nids * sizeof(step.ids[0]));
	}
	stkd_iter_free(iter);
}

static void ones(uint32_t *len, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		len[i] = 1;
}

/* Rows of each rank in step s, real ones and all. */
static void assert_rows(const struct stkd_plan *plan, uint64_t s, uint32_t world,
			const uint32_t *real, const uint32_t *rows)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	struct stkd_step step;

	assert_int_equal(stkd_iter_seek(iter, 0, s, NULL), 0);
	assert_int_equal(stkd_iter_next(iter, &step), 0);
	for (uint32_t rank = 0; rank < world; rank++) {
		struct stkd_part part;

		stkd_step_part(plan, &step, rank, 0, &part);
		assert_int_equal(part.rows_real, real[rank]);
		assert_int_equal(part.rows, rows[rank]);
	}
	stkd_iter_free(iter);
}

static void a_budget_counts_padded_tokens(void **state)
{
	static const uint32_t three[] = {3, 4, 5}, nines[] = {9, 9, 9};
	struct stk_spec spec = plain_spec();
	uint32_t len[35], n;
	struct stkd_plan *plan;
	struct epoch e;

	(void)state;
	spec.rows = 0;
	spec.tokens = 7;
	plan = make_plan(&spec, three, 3, 1);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 3);
	for (uint32_t s = 0; s < 3; s++)
		assert_int_equal(e.nids[s], 1);
	stkd_plan_free(plan);

	spec.tokens = 3000;
	for (uint32_t i = 0; i < 35; i++)
		len[i] = 73 + i * 41 / 34;
	plan = make_plan(&spec, len, 35, 1);
	assert_int_equal(stkd_plan_classes(plan, &n)->rows, 3000 / 114);
	walk(plan, 0, &e);
	for (uint32_t s = 0; s < e.nsteps; s++)
		assert_true(e.nids[s] * e.width[s] <= 3000);
	stkd_plan_free(plan);

	spec.group = STK_GROUP_BUCKET;
	spec.edges[0] = 8;
	spec.edges[1] = 16;
	spec.nedges = 2;
	spec.tokens = 32;
	plan = make_plan(&spec, nines, 3, 1);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 2);
	assert_int_equal(e.nids[0], 2);
	assert_int_equal(e.nids[1], 1);
	assert_int_equal(e.width[0], 16);
	assert_int_equal(stkd_plan_counts(plan)->real_tokens, 27);
	assert_int_equal(stkd_plan_counts(plan)->padded_tokens, 48);
	stkd_plan_free(plan);
}

static void no_batch_of_a_hundred_thousand_samples_is_over_budget(void **state)
{
	const uint32_t n = 100000, world = 3;
	uint32_t *len = calloc(n, sizeof(*len)), nclasses;
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	struct stkd_step step = {0};
	uint64_t seed = 5, delivered = 0;

	(void)state;
	assert_non_null(len);
	for (uint32_t i = 0; i < n; i++)
		len[i] = 1 + below(&seed, 1 + below(&seed, 2000));
	spec.order = STK_ORDER_FULL;
	spec.group = STK_GROUP_BUCKET;
	spec.buckets = 8;
	spec.multiple_of = 8;
	spec.rows = 0;
	spec.tokens = 8192;
	spec.pad_to = STK_PAD_LONGEST;
	plan = make_plan(&spec, len, n, world);
	assert_int_equal((stkd_plan_classes(plan, &nclasses), nclasses), 8);
	iter = make_iter(plan, NULL, 0);
	while (!step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		delivered += step.nids;
		for (uint32_t rank = 0; rank < world; rank++) {
			struct stkd_part part;

			stkd_step_part(plan, &step, rank, 0, &part);
			assert_in_range(part.rows_real, 1, 65536);
			assert_true((uint64_t)part.rows * step.width <= spec.tokens);
		}
	}
	assert_int_equal(delivered, n);
	stkd_iter_free(iter);
	stkd_plan_free(plan);
	free(len);
}

static void a_world_that_does_not_divide_loses_and_repeats_nothing(void **state)
{
	static const uint32_t seven[] = {2, 2, 2, 1}, one_each[] = {1, 1, 1, 1};
	static const uint32_t three[] = {1, 1, 1, 0}, two[] = {2, 2, 2, 2};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	uint32_t len[19];
	struct epoch e;

	(void)state;
	ones(len, 19);
	/* 8, 8, 3: three rows are fewer than four ranks, so the second step lends one. */
	plan = make_plan(&spec, len, 19, 4);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 3);
	assert_int_equal(stkd_plan_counts(plan)->steps, 3);
	assert_rows(plan, 0, 4, two, two);
	assert_rows(plan, 1, 4, seven, seven);
	assert_rows(plan, 2, 4, one_each, one_each);
	assert_int_equal(e.ids[2][0], 15);
	assert_int_equal(stkd_plan_counts(plan)->masked, 0);
	stkd_plan_free(plan);

	spec.tail = STK_TAIL_PAD;
	plan = make_plan(&spec, len, 19, 4);
	assert_rows(plan, 2, 4, three, two);
	assert_int_equal(stkd_plan_counts(plan)->masked, 5);
	assert_int_equal(stkd_plan_counts(plan)->delivered, 19);
	stkd_plan_free(plan);

	spec.tail = STK_TAIL_DROP;
	plan = make_plan(&spec, len, 19, 4);
	assert_int_equal(stkd_plan_counts(plan)->steps, 2);
	assert_int_equal(stkd_plan_counts(plan)->delivered, 16);
	assert_int_equal(stkd_plan_counts(plan)->tail_dropped, 3);
	stkd_plan_free(plan);

	spec.tail = STK_TAIL_SHORT;
	spec.rows = 3;
	plan = make_plan(&spec, len, 10, 4);
	assert_int_equal(stkd_plan_counts(plan)->steps, 1);
	assert_rows(plan, 0, 4, (uint32_t[]){3, 3, 2, 2}, (uint32_t[]){3, 3, 2, 2});
	stkd_plan_free(plan);
	spec.rows = 2;
	plan = make_plan(&spec, len, 7, 2);
	assert_rows(plan, 1, 2, (uint32_t[]){2, 1}, (uint32_t[]){2, 1});
	stkd_plan_free(plan);
}

static void fewer_samples_than_ranks_are_refused_unless_padded(void **state)
{
	struct stk_spec spec = plain_spec();
	uint32_t len[19];

	(void)state;
	ones(len, 19);
	for (uint32_t rows = 1; rows <= 4; rows += 3) {
		struct stkd_plan *plan;

		spec.rows = rows;
		spec.tail = STK_TAIL_SHORT;
		assert_refused(&spec, len, 3, 8, "no step: 3 samples for world 8");
		spec.tail = STK_TAIL_DROP;
		assert_refused(&spec, len, 3, 8, "no step: 3 samples, a step");
		assert_refused(&spec, len, 1, 4, "no step: 1 samples, a step");
		spec.tail = STK_TAIL_PAD;
		plan = make_plan(&spec, len, 3, 8);
		assert_int_equal(stkd_plan_counts(plan)->steps, 1);
		assert_int_equal(stkd_plan_counts(plan)->masked, 8 * rows - 3);
		stkd_plan_free(plan);
	}
	assert_refused(&spec, len, 0, 8, "no samples");
}

static void with_one_row_for_each_rank_the_last_step_is_masked(void **state)
{
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	uint32_t len[7];

	(void)state;
	ones(len, 7);
	spec.rows = 1;
	plan = make_plan(&spec, len, 7, 4);
	assert_int_equal(stkd_plan_counts(plan)->steps, 2);
	assert_int_equal(stkd_plan_counts(plan)->masked, 1);
	assert_rows(plan, 1, 4, (uint32_t[]){1, 1, 1, 0}, (uint32_t[]){1, 1, 1, 1});
	stkd_plan_free(plan);
}

static void a_smaller_bucket_lends_when_the_largest_has_single_rows(void **state)
{
	/* Budget 8: four rows of 2, one row of 8. Five short and two long on two ranks: the step of
	 * short ones lends one, so that the two long and the last two short ones fill whole steps. */
	static const uint32_t len[] = {1, 8, 1, 1, 8, 1, 1, 1, 1, 1, 1};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	struct epoch e;

	(void)state;
	spec.group = STK_GROUP_BUCKET;
	spec.edges[0] = 2;
	spec.edges[1] = 8;
	spec.nedges = 2;
	spec.rows = 0;
	spec.tokens = 8;
	plan = make_plan(&spec, len, 11, 2);
	walk(plan, 0, &e);
	assert_int_equal(stkd_plan_counts(plan)->masked, 0);
	assert_int_equal(stkd_plan_counts(plan)->delivered, 11);
	assert_int_equal(e.nsteps, 3);
	assert_int_equal(e.nids[0], 2);
	assert_int_equal(e.class[0], 1);
	assert_int_equal(e.nids[1], 7);
	assert_int_equal(e.rows_part[1], 0);
	assert_int_equal(e.nids[2], 2);
	assert_int_equal(e.class[2], 0);
	stkd_plan_free(plan);
}

static void the_last_batch_has_only_the_rows_that_are_left(void **state)
{
	static const uint32_t sizes[] = {4, 4, 2};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	uint32_t len[10];
	struct epoch e;

	(void)state;
	ones(len, 10);
	spec.rows = 4;
	plan = make_plan(&spec, len, 10, 1);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 3);
	for (uint32_t s = 0; s < 3; s++)
		assert_rows(plan, s, 1, &sizes[s], &sizes[s]);
	stkd_plan_free(plan);
}

static void an_epoch_is_the_same_each_time_it_is_asked_for(void **state)
{
	static struct epoch first, again, next;
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	uint32_t len[40];

	(void)state;
	for (uint32_t i = 0; i < 40; i++)
		len[i] = i;
	spec.order = STK_ORDER_FULL;
	plan = make_plan(&spec, len, 40, 2);
	walk(plan, 3, &first);
	walk(plan, 4, &next);
	for (int pass = 0; pass < 3; pass++) {
		walk(plan, 3, &again);
		assert_memory_equal(&first, &again, sizeof(first));
	}
	assert_memory_not_equal(&first, &next, sizeof(first));
	stkd_plan_free(plan);
}

static void what_waits_moves_up_to_the_largest_bucket_that_has_rows(void **state)
{
	/* Bucket 4 is never used: the rest must not be padded to 100. */
	static const uint32_t len[] = {1, 1, 1, 9, 9, 19, 1, 9, 9, 9};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	struct epoch e;

	(void)state;
	spec.group = STK_GROUP_BUCKET;
	spec.edges[0] = 2;
	spec.edges[1] = 10;
	spec.edges[2] = 20;
	spec.edges[3] = 100;
	spec.nedges = 4;
	spec.rows = 3;
	plan = make_plan(&spec, len, 10, 1);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 4);
	/* 0 1 2, then 3 4 7; at the end 6 moves behind 8 9, which fills a step; 5 is the rest. */
	assert_int_equal(e.ids[0][2], 2);
	assert_int_equal(e.ids[1][2], 7);
	assert_int_equal(e.class[2], 1);
	assert_int_equal(e.ids[2][0], 8);
	assert_int_equal(e.ids[2][1], 9);
	assert_int_equal(e.ids[2][2], 6);
	assert_int_equal(e.class[3], 2);
	assert_int_equal(e.nids[3], 1);
	assert_int_equal(e.ids[3][0], 5);
	assert_int_equal(stkd_plan_counts(plan)->promoted, 1);
	stkd_plan_free(plan);
}

static void overlong_samples_are_cut_dropped_or_named(void **state)
{
	static const uint32_t len[] = {5, 20, 8, 30, 8};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;

	(void)state;
	spec.rows = 1;
	spec.max_length = 8;
	plan = make_plan(&spec, len, 5, 1);
	assert_int_equal(stkd_plan_counts(plan)->truncated, 2);
	assert_int_equal(stkd_plan_counts(plan)->first_overlong, 1);
	assert_int_equal(stkd_plan_counts(plan)->real_tokens, 37);
	assert_int_equal(stkd_plan_counts(plan)->longest, 30);
	assert_int_equal(stkd_plan_counts(plan)->max_length, 8);
	assert_int_equal(stkd_plan_length(plan, 3), 8);
	stkd_plan_free(plan);

	spec.overlong = STK_OVERLONG_DROP;
	plan = make_plan(&spec, len, 5, 1);
	assert_int_equal(stkd_plan_counts(plan)->overlong_dropped, 2);
	assert_int_equal(stkd_plan_counts(plan)->delivered, 3);
	stkd_plan_free(plan);
	spec.max_length = 4;
	assert_refused(&spec, len, 5, 1, "no samples left: all 5 are longer than max_length 4");

	spec.overlong = STK_OVERLONG_ERROR;
	spec.max_length = 8;
	assert_refused(&spec, len, 5, 1, "sample 1 has length 20, more than max_length 8");
	spec.max_length = 0;
	spec.group = STK_GROUP_BUCKET;
	spec.edges[0] = 24;
	spec.nedges = 1;
	assert_refused(&spec, len, 5, 1, "sample 3 has length 30, more than the last edge 24");
	spec.nedges = 0;
	spec.buckets = 2;
	plan = make_plan(&spec, len, 5, 1);
	assert_int_equal(stkd_plan_counts(plan)->first_overlong, UINT64_MAX);
	stkd_plan_free(plan);
}

static void samples_of_length_zero_are_rows_of_padding(void **state)
{
	static const uint32_t len[] = {0, 0, 0};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	struct epoch e;

	(void)state;
	spec.multiple_of = 8;
	spec.pad_to = STK_PAD_LONGEST;
	plan = make_plan(&spec, len, 3, 1);
	walk(plan, 0, &e);
	assert_int_equal(e.nsteps, 2);
	assert_int_equal(e.width[0], 8);
	assert_int_equal(stkd_plan_counts(plan)->real_tokens, 0);
	stkd_plan_free(plan);
}

static void the_width_is_the_longest_row_rounded_but_never_over_the_edge(void **state)
{
	static const uint32_t len[] = {3, 9, 98, 4};
	struct stk_spec spec = plain_spec();
	const struct stkd_class *class;
	struct stkd_plan *plan;
	struct epoch e;
	uint32_t n;

	(void)state;
	spec.multiple_of = 8;
	spec.max_length = 100;
	spec.pad_to = STK_PAD_LONGEST;
	plan = make_plan(&spec, len, 4, 1);
	class = stkd_plan_classes(plan, &n);
	assert_int_equal(n, 1);
	assert_int_equal(class->edge, 100);
	assert_int_equal(class->width_min, 8);
	assert_int_equal(class->width_max, 100);
	assert_int_equal(class->width_multiple, 8);
	walk(plan, 0, &e);
	assert_int_equal(e.width[0], 16);
	assert_int_equal(e.width[1], 100);
	stkd_plan_free(plan);
	spec.pad_to = STK_PAD_EDGE;
	plan = make_plan(&spec, len, 4, 1);
	class = stkd_plan_classes(plan, &n);
	assert_int_equal(class->width_min, 100);
	walk(plan, 0, &e);
	assert_int_equal(e.width[0], 100);
	stkd_plan_free(plan);
}

static void numbers_that_cannot_work_are_refused_with_their_key(void **state)
{
	static const uint32_t len[] = {5, 20, 8};
	struct stk_spec spec = plain_spec();

	(void)state;
	assert_refused(&spec, len, 3, 0, "world: 0 is out of range, 1..65536");
	assert_refused(&spec, len, 3, 65537, "world: 65537");
	spec.tokens = 100;
	assert_refused(&spec, len, 3, 1, "give one of them (rows 2, tokens 100)");
	spec.rows = 0;
	spec.tokens = 19;
	assert_refused(&spec, len, 3, 1,
		       "tokens: budget 19 is smaller than one row of bucket edge 20");
	spec.tokens = 0;
	spec.rows = 65536;
	assert_refused(&spec, len, 3, 65536, "rows: 65536 rows x world 65536");
	spec.rows = UINT32_MAX;
	spec.accumulate = UINT32_MAX;
	assert_refused(&spec, len, 3, 65536, "rows: 4294967295 rows");
	spec = plain_spec();
	spec.accumulate = 0;
	assert_refused(&spec, len, 3, 1, "accumulate: 0");
	spec.accumulate = 1;
	spec.multiple_of = 0;
	assert_refused(&spec, len, 3, 1, "multiple_of: 0");
	spec.multiple_of = 1;
	spec.group = STK_GROUP_BUCKET;
	assert_refused(&spec, len, 3, 1, "buckets: 0 is out of range, 1..256");
	spec.edges[0] = 8;
	spec.edges[1] = 8;
	spec.nedges = 2;
	assert_refused(&spec, len, 3, 1, "edges: 8 follows 8");
	spec.edges[0] = 0;
	assert_refused(&spec, len, 3, 1, "edges: 0 follows 0");
}

static void more_tokens_than_64_bits_are_refused(void **state)
{
	/* Three rows would do, but the last step may have 2^32 - 1 of them. */
	static const uint32_t len[] = {UINT32_MAX, 1, 1};
	struct stk_spec spec = plain_spec();

	(void)state;
	spec.multiple_of = 8;
	assert_refused(&spec, len, 3, 1, "multiple_of 8");
	spec.multiple_of = 1;
	assert_refused(&spec, len, 3, 1, "more than 2^64 tokens");
}

static void a_huge_budget_asks_for_a_bounded_number_of_rows(void **state)
{
	static const uint32_t len[] = {1, 1};
	struct stk_spec spec = plain_spec();
	struct stkd_plan *plan;
	uint32_t n;

	(void)state;
	spec.rows = 0;
	spec.tokens = UINT64_MAX;
	plan = make_plan(&spec, len, 2, 1);
	assert_int_equal(stkd_plan_classes(plan, &n)->rows, 65536);
	stkd_plan_free(plan);
}

/* Changing any of these sequences breaks saved states: bump STKD_PLAN_VERSION with them. */
struct pinned {
	uint32_t class, width, rows_part, nids;
	uint64_t real_tokens, ids[6];
};

static void assert_pinned(const struct stk_spec *spec, uint32_t world, uint64_t epoch,
			  const struct pinned *expected, size_t n)
{
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	uint32_t len[40];

	assert_int_equal(STKD_PLAN_VERSION, 1);
	for (uint32_t i = 0; i < 40; i++)
		len[i] = (i * i * 7 + i * 3) % 61;
	plan = make_plan(spec, len, 40, world);
	iter = make_iter(plan, NULL, 0);
	assert_int_equal(stkd_iter_seek(iter, epoch, 0, NULL), 0);
	for (size_t s = 0; s < n; s++) {
		struct stkd_step step;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_int_equal(step.shape_class, expected[s].class);
		assert_int_equal(step.width, expected[s].width);
		assert_int_equal(step.rows_part, expected[s].rows_part);
		assert_int_equal(step.nids, expected[s].nids);
		assert_int_equal(step.real_tokens, expected[s].real_tokens);
		for (uint32_t i = 0; i < step.nids; i++)
			assert_int_equal(step.ids[i], expected[s].ids[i]);
	}
	stkd_iter_free(iter);
	stkd_plan_free(plan);
}

static void the_sequence_of_a_shuffled_fixed_plan_is_pinned(void **state)
{
	static const struct pinned expected[] = {
		{0, 56, 2, 4, 89, {17, 37, 5, 11}},
		{0, 60, 2, 4, 142, {31, 2, 29, 4}},
		{0, 36, 2, 4, 62, {33, 14, 32, 16}},
	};
	struct stk_spec spec = plain_spec();

	(void)state;
	spec.order = STK_ORDER_FULL;
	spec.pad_to = STK_PAD_LONGEST;
	spec.multiple_of = 4;
	assert_pinned(&spec, 2, 0, expected, STK_ARRAY_SIZE(expected));
}

static void the_sequence_of_a_budget_with_optimal_edges_is_pinned(void **state)
{
	static const struct pinned expected[] = {
		{2, 64, 1, 2, 105, {10, 30}},
		{2, 56, 1, 2, 101, {26, 31}},
		{2, 64, 1, 2, 104, {7, 9}},
		{1, 40, 3, 6, 149, {35, 34, 28, 11, 22, 6}},
		{2, 64, 1, 2, 114, {20, 27}},
		{2, 56, 1, 2, 107, {23, 37}},
		{1, 40, 3, 6, 200, {39, 2, 15, 38, 36, 21}},
		{2, 64, 1, 2, 115, {29, 25}},
		{1, 40, 3, 6, 90, {19, 33, 24, 3, 4, 13}},
		{1, 16, 3, 6, 37, {14, 12, 1, 18, 32, 0}},
		{2, 48, 1, 2, 45, {8, 17}},
		{2, 16, 1, 2, 17, {5, 16}},
	};
	struct stk_spec spec = plain_spec();

	(void)state;
	spec.order = STK_ORDER_FULL;
	spec.seed = 18;
	spec.group = STK_GROUP_BUCKET;
	spec.buckets = 3;
	spec.rows = 0;
	spec.tokens = 120;
	spec.accumulate = 2;
	spec.multiple_of = 8;
	spec.pad_to = STK_PAD_LONGEST;
	assert_pinned(&spec, 1, 1, expected, STK_ARRAY_SIZE(expected));
}

static void the_sequence_of_given_edges_with_a_padded_tail_is_pinned(void **state)
{
	static const struct pinned expected[] = {
		{2, 50, 3, 6, 233, {30, 21, 8, 38, 15, 2}},
		{1, 30, 3, 6, 147, {36, 6, 19, 39, 34, 28}},
		{0, 10, 3, 6, 39, {1, 32, 5, 12, 16, 17}},
		{1, 30, 3, 6, 87, {35, 14, 3, 11, 24, 18}},
		{2, 50, 3, 6, 170, {31, 33, 9, 22, 4, 0}},
		{2, 50, 3, 1, 2, {13}},
	};
	struct stk_spec spec = plain_spec();

	(void)state;
	spec.order = STK_ORDER_FULL;
	spec.seed = 19;
	spec.group = STK_GROUP_BUCKET;
	spec.edges[0] = 10;
	spec.edges[1] = 30;
	spec.edges[2] = 50;
	spec.nedges = 3;
	spec.rows = 3;
	spec.multiple_of = 8;
	spec.overlong = STK_OVERLONG_DROP;
	spec.tail = STK_TAIL_PAD;
	assert_pinned(&spec, 2, 0, expected, STK_ARRAY_SIZE(expected));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_budget_counts_padded_tokens),
		cmocka_unit_test(no_batch_of_a_hundred_thousand_samples_is_over_budget),
		cmocka_unit_test(a_world_that_does_not_divide_loses_and_repeats_nothing),
		cmocka_unit_test(fewer_samples_than_ranks_are_refused_unless_padded),
		cmocka_unit_test(with_one_row_for_each_rank_the_last_step_is_masked),
		cmocka_unit_test(a_smaller_bucket_lends_when_the_largest_has_single_rows),
		cmocka_unit_test(the_last_batch_has_only_the_rows_that_are_left),
		cmocka_unit_test(an_epoch_is_the_same_each_time_it_is_asked_for),
		cmocka_unit_test(what_waits_moves_up_to_the_largest_bucket_that_has_rows),
		cmocka_unit_test(overlong_samples_are_cut_dropped_or_named),
		cmocka_unit_test(samples_of_length_zero_are_rows_of_padding),
		cmocka_unit_test(the_width_is_the_longest_row_rounded_but_never_over_the_edge),
		cmocka_unit_test(numbers_that_cannot_work_are_refused_with_their_key),
		cmocka_unit_test(more_tokens_than_64_bits_are_refused),
		cmocka_unit_test(a_huge_budget_asks_for_a_bounded_number_of_rows),
		cmocka_unit_test(the_sequence_of_a_shuffled_fixed_plan_is_pinned),
		cmocka_unit_test(the_sequence_of_a_budget_with_optimal_edges_is_pinned),
		cmocka_unit_test(the_sequence_of_given_edges_with_a_padded_tail_is_pinned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
