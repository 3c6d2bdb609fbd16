/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan refuses because keys do not fit each other, the world or the data, with its text.
 */
#include "tests/unit/plan_fixture.h"

static void ones(uint32_t *len, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		len[i] = 1;
}

static void global_batches_of_worlds_that_do_not_divide_are_refused(void **state)
{
	struct stk_spec spec = plain_spec();
	uint32_t len[64];

	(void)state;
	ones(len, 64);
	spec.rows = 0;
	spec.world_multiple = 8;
	spec.global_rows = 12;
	assert_refused(&spec, len, 64, 8, "world: 8 x accumulate 1 does not divide global_rows 12");
	spec.accumulate = 3;
	assert_refused(&spec, len, 64, 8, "world: 8 x accumulate 3 does not divide global_rows 12");
	spec.accumulate = 1;
	spec.global_rows = 0;
	spec.global_tokens = 100;
	assert_refused(&spec, len, 64, 16, "does not divide world_multiple 8");
	spec.global_tokens = 7;
	assert_refused(&spec, len, 64, 8,
		       "global_tokens: budget 7 is smaller than one row of bucket edge 1 for each "
		       "of world_multiple 8");
	spec.rows = 2;
	assert_refused(&spec, len, 64, 8, "give one of them");
}

static void rows_that_fit_no_class_are_refused(void **state)
{
	struct stk_spec spec = plain_spec();
	uint32_t len[64];

	(void)state;
	ones(len, 64);
	spec.group = STK_GROUP_BUCKET;
	spec.nedges = 2;
	spec.edges[0] = 4;
	spec.edges[1] = 8;
	spec.rows = 0;
	spec.nrows = 3;
	spec.rows_list[0] = spec.rows_list[1] = spec.rows_list[2] = 1;
	assert_refused(&spec, len, 64, 1, "rows: 3 numbers for 2 buckets");
	spec.nrows = 0;
	spec.rows = 6;
	spec.row_multiple = 4;
	assert_refused(&spec, len, 64, 1,
		       "row_multiple: 4 does not divide the 6 rows of bucket edge 8");
	spec.rows = 0;
	spec.tokens = 24;
	assert_refused(&spec, len, 64, 1,
		       "the 3 rows of bucket edge 8, all that the budget has room for");
	spec.tokens = 0;
	spec.cost = (struct stk_spec_cost){.a = 1000000, .b = 1000000, .budget = 71};
	assert_refused(&spec, len, 64, 1,
		       "cost: budget 71 is smaller than one row of bucket edge 8");
	spec.cost.budget = 72 * 4;
	stkd_plan_free(make_plan(&spec, len, 64, 1));
	spec.edges_file = (char *)"x.json";
	assert_refused(&spec, len, 64, 1, "edges: the file x.json was not read");
}

static void a_filter_that_keeps_nothing_is_refused(void **state)
{
	struct stk_spec spec = plain_spec();
	uint32_t len[64];

	(void)state;
	ones(len, 64);
	spec.keep.min_length = 2;
	assert_refused(&spec, len, 64, 1, "no samples left: none of 64 passes keep");
}

static void mixtures_that_do_not_fit_their_spec_are_refused(void **state)
{
	struct stk_spec_data data[2] = {{NULL, 0}, {NULL, 0}};
	struct stk_spec spec = plain_spec();
	const uint64_t first[] = {0, 10, 20};
	struct stkd_lengths lengths = {.count = 20, .first = first, .ndatasets = 2};
	struct stkd_plan *plan = NULL;
	struct stk_err err = {0};
	uint32_t len[20];

	(void)state;
	ones(len, 20);
	lengths.len = len;
	assert_int_equal(stkd_plan_new(&spec, &lengths, 1, &plan, &err), -EINVAL);
	assert_non_null(strstr(err.text, "data: 2 datasets, 0 of them in the spec"));
	spec.data = data;
	spec.ndata = 2;
	assert_int_equal(stkd_plan_new(&spec, &lengths, 1, &plan, &err), -EINVAL);
	assert_non_null(strstr(err.text, "data: all weights are 0"));
	assert_null(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(global_batches_of_worlds_that_do_not_divide_are_refused),
		cmocka_unit_test(rows_that_fit_no_class_are_refused),
		cmocka_unit_test(a_filter_that_keeps_nothing_is_refused),
		cmocka_unit_test(mixtures_that_do_not_fit_their_spec_are_refused),
	};

	return cmocka_run_group_tests_name("plan_refusals", tests, NULL, NULL);
}
