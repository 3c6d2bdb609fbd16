/* SPDX-License-Identifier: Apache-2.0 */
/* How tightly packs are filled: as trying all rows would, and with real lengths if at hand. */
#include <jansson.h>

#include "daemon/plan/pack.h"
#include "tests/unit/plan_fixture.h"

enum { FIT_N = 400 };

/* Rows by trying all of them: longest first, the tightest row, of several the one that changed last. */
static void fit_slowly(const uint32_t *len, uint32_t n, uint32_t capacity, uint32_t *row_of)
{
	uint32_t free_in[FIT_N], changed[FIT_N], nrows = 0;
	bool done[FIT_N] = {false};

	for (uint32_t turn = 0; turn < n; turn++) {
		uint32_t k = n, best = n;

		for (uint32_t i = 0; i < n; i++)
			if (!done[i] && (k == n || len[i] > len[k]))
				k = i;
		done[k] = true;
		for (uint32_t row = 0; row < nrows; row++)
			if (free_in[row] >= len[k] &&
			    (best == n || free_in[row] < free_in[best] ||
			     (free_in[row] == free_in[best] && changed[row] > changed[best])))
				best = row;
		if (best == n) {
			best = nrows++;
			free_in[best] = capacity;
		}
		free_in[best] -= len[k];
		changed[best] = turn;
		row_of[k] = best;
	}
}

/* The longest length up to `most` of which so many are left; 0: none. */
static uint32_t longest_left(const uint32_t *len, const bool *done, uint32_t n, uint32_t most,
			     uint32_t twice)
{
	uint32_t longest = 0, count = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (done[i] || len[i] > most || len[i] < longest)
			continue;
		count = len[i] == longest ? count + 1 : 1;
		longest = len[i];
	}
	if (longest && longest == twice && count < 2)
		return longest_left(len, done, n, longest - 1, 0);
	return longest;
}

/* Of the 16 longest lengths that fit the one that, with another one or alone, fills the gap best. */
static uint32_t filler_slowly(const uint32_t *len, const bool *done, uint32_t n, uint32_t gap)
{
	uint32_t one = longest_left(len, done, n, gap, 0), best = one, most = 0;

	for (int i = 0; i < 16 && one; i++) {
		uint32_t rest = gap - one < one ? gap - one : one;
		uint32_t sum = one + longest_left(len, done, n, rest, one);

		if (sum > most) {
			most = sum;
			best = one;
		}
		one = longest_left(len, done, n, one - 1, 0);
	}
	return best;
}

/* Row by row. Returns how many, up to `most`. */
static uint32_t fill_slowly(const uint32_t *len, uint32_t n, uint32_t capacity, uint32_t most,
			    uint32_t *row_of)
{
	bool done[FIT_N] = {false};
	uint32_t row = 0;

	for (; row < most && longest_left(len, done, n, capacity, 0); row++) {
		uint32_t gap = capacity, one = longest_left(len, done, n, gap, 0);

		for (; one; one = filler_slowly(len, done, n, gap)) {
			uint32_t k = 0;

			while (done[k] || len[k] != one)
				k++;
			done[k] = true;
			row_of[k] = row;
			gap -= one;
		}
	}
	return row;
}

/* The better of both ways; best fit where they are alike. True: it is not best fit. */
static bool pack_slowly(const uint32_t *len, uint32_t n, uint32_t capacity, uint32_t *row_of)
{
	uint32_t ahead[FIT_N], nrows = 0;

	fit_slowly(len, n, capacity, row_of);
	for (uint32_t i = 0; i < n; i++)
		nrows = row_of[i] >= nrows ? row_of[i] + 1 : nrows;
	if (fill_slowly(len, n, capacity, nrows, ahead) == nrows)
		return false;
	memcpy(row_of, ahead, n * sizeof(*row_of));
	return true;
}

static void rows_are_those_that_trying_all_would_give(void **state)
{
	static const uint32_t capacities[] = {1, 7, 63, 64, 65, 500, 4096, 5000, 300000};
	unsigned better = 0;
	uint64_t seed = 12;

	(void)state;
	for (unsigned round = 0; round < 10 * STK_ARRAY_SIZE(capacities); round++) {
		uint32_t capacity = capacities[round % STK_ARRAY_SIZE(capacities)];
		struct stkd_pack_limits limits = {.capacity = capacity, .align = 1};
		uint32_t len[FIT_N], row_of[FIT_N], n = 1 + below(&seed, FIT_N), nrows, seen = 0;
		struct stkd_packer *packer;
		struct stkd_rows rows = {0};

		assert_int_equal(stkd_packer_new(&limits, &packer), 0);
		for (uint32_t i = 0; i < n; i++) {
			struct stk_segment segment = {.id = i, .position = i};

			len[i] = 1 + below(&seed, below(&seed, 2) ? capacity : capacity / 4 + 1);
			segment.length = len[i];
			assert_int_equal(stkd_packer_add(packer, &segment), 0);
		}
		better += pack_slowly(len, n, capacity, row_of);
		assert_int_equal(stkd_packer_rows(packer, STKD_SPREAD_NONE, 0, 1, &nrows), 0);
		assert_int_equal(stkd_packer_take(packer, 0, &rows), 0);
		assert_int_equal(rows.n, nrows);
		for (uint32_t row = 0; row < nrows; row++) {
			uint32_t first = rows.first[row], of = row_of[rows.segments[first].id],
				 all = 0;

			for (uint32_t i = 0; i < n; i++)
				all += row_of[i] == of;
			assert_int_equal(rows.first[row + 1] - first, all);
			for (uint32_t s = first; s < rows.first[row + 1]; s++)
				assert_int_equal(row_of[rows.segments[s].id], of);
			seen += all;
		}
		assert_int_equal(seen, n);
		stkd_rows_deinit(&rows);
		stkd_packer_free(packer);
	}
	assert_in_range(better, 1, 10 * STK_ARRAY_SIZE(capacities) - 1);
}

static uint32_t *real_lengths(uint64_t *ret_n)
{
	const char *samples = getenv("STOKER_SAMPLES");
	json_t *root, *list;
	char path[4096];
	uint32_t *len;

	snprintf(path, sizeof(path), "%s/lengths/openchat_v1.json",
		 samples ? samples : STK_SAMPLES);
	root = json_load_file(path, 0, NULL);
	if (!root) {
		print_message("skipped: no %s\n", path);
		skip();
	}
	list = json_is_array(root) ? root : json_object_get(root, "lengths");
	*ret_n = json_array_size(list);
	len = calloc(*ret_n, sizeof(*len));
	assert_non_null(len);
	for (uint64_t i = 0; i < *ret_n; i++)
		len[i] = (uint32_t)json_integer_value(json_array_get(list, i));
	json_decref(root);
	return len;
}

static uint64_t rows_of_epoch(const struct stkd_plan *plan)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	struct stkd_step step = {0};
	uint64_t rows = 0;

	while (!step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		rows += step.nids;
	}
	stkd_iter_free(iter);
	return rows;
}

static void real_samples_pack_as_tightly_as_best_fit_can(void **state)
{
	struct stk_spec spec = packed_spec(2048);
	struct stkd_plan *plan;
	uint32_t *len;
	uint64_t n;

	(void)state;
	len = real_lengths(&n);
	spec.order = STK_ORDER_FULL;
	plan = make_plan(&spec, len, n, 1);
	assert_int_equal(stkd_plan_counts(plan)->rows_least, 4650);
	assert_int_equal(stkd_plan_counts(plan)->rows, rows_of_epoch(plan));
	assert_true(rows_of_epoch(plan) <= 4673);
	stkd_plan_free(plan);
	spec.window = 1024;
	for (spec.seed = 0; spec.seed < 30; spec.seed++) {
		plan = make_plan(&spec, len, n, 1);
		/* 99.2 % of the tokens that its rows have room for. */
		assert_true(rows_of_epoch(plan) * 2048 * 992 <= UINT64_C(9521300) * 1000);
		stkd_plan_free(plan);
	}
	free(len);
}

/* The largest difference between ranks, of the sum of squared lengths. */
static uint64_t lag_of(const struct stkd_plan *plan, const struct stkd_step *step, uint32_t world)
{
	uint64_t least = UINT64_MAX, most = 0;

	for (uint32_t rank = 0; rank < world; rank++) {
		struct stkd_part part;
		uint64_t cost = 0;

		stkd_step_part(plan, step, rank, 0, &part);
		assert_int_equal(part.rows_real, 1);
		for (uint32_t s = part.row_first[0]; s < part.row_first[1]; s++)
			cost += (uint64_t)part.segments[s].length * part.segments[s].length;
		least = STK_MIN(least, cost);
		most = STK_MAX(most, cost);
	}
	return most - least;
}

static void real_samples_in_flat_packs_keep_ranks_even(void **state)
{
	struct stk_spec spec = packed_spec(0);
	struct stkd_step step = {0};
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	uint64_t n, lag = 0, tokens = 0;
	uint32_t *len;

	(void)state;
	len = real_lengths(&n);
	spec.order = STK_ORDER_FULL;
	spec.rows = 0;
	spec.tokens = 32768;
	spec.flat = true;
	spec.balance = STK_BALANCE_COST;
	plan = make_plan(&spec, len, n, 8);
	assert_int_equal(stkd_plan_counts(plan)->steps, 37);
	iter = make_iter(plan, NULL, 0);
	while (!step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		lag += lag_of(plan, &step, 8);
		tokens += step.real_tokens;
	}
	assert_int_equal(step.step, 36);
	assert_int_equal(tokens, 9521300);
	/* The mean of its root is below 400. */
	assert_true(lag / 37 < 400 * 400);
	stkd_iter_free(iter);
	stkd_plan_free(plan);
	free(len);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_are_those_that_trying_all_would_give),
		cmocka_unit_test(real_samples_pack_as_tightly_as_best_fit_can),
		cmocka_unit_test(real_samples_in_flat_packs_keep_ranks_even),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
