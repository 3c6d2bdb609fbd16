/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and token streams: what is in which row, and what is refused. */
#include "daemon/plan/cursor.h"
#include "daemon/plan/fit.h"
#include "tests/unit/plan_fixture.h"

static struct stk_spec stream_spec(uint32_t max_length)
{
	struct stk_spec spec = packed_spec(max_length);

	spec.group = STK_GROUP_CONCAT;
	return spec;
}

/* The rows of an epoch as text: "0:0+3 1:0+2 | 2:0+3", a line for each step. */
static char *text_of(const struct stkd_plan *plan, const void *cursor, size_t size)
{
	struct stkd_iter *iter = make_iter(plan, cursor, size);
	struct stkd_step step = {0};
	char *text = NULL;
	size_t length;
	FILE *out = open_memstream(&text, &length);

	while (!step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		for (uint32_t row = 0; row < step.nids; row++) {
			fputs(row ? " | " : "", out);
			for (uint32_t s = step.row_first[row]; s < step.row_first[row + 1]; s++)
				fprintf(out, "%s%d:%u+%u", s > step.row_first[row] ? " " : "",
					(int)step.segments[s].id, step.segments[s].from,
					step.segments[s].length);
		}
		putc('\n', out);
	}
	fclose(out);
	stkd_iter_free(iter);
	return text;
}

static void assert_rows(const struct stk_spec *spec, const uint32_t *len, uint64_t n,
			uint32_t world, const char *want)
{
	struct stkd_plan *plan = make_plan(spec, len, n, world);
	char *text = text_of(plan, NULL, 0);

	assert_string_equal(text, want);
	free(text);
	stkd_plan_free(plan);
}

static void samples_fill_the_tightest_row(void **state)
{
	static const uint32_t len[] = {3, 2, 3, 1, 7, 6};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	/* 7, 6, 3+3; the 2 fits behind 6 and behind 3+3, which is newer; the 1 behind 7. Rows stand
	 * in the order of their last arrival. */
	assert_rows(&spec, len, 6, 1, "0:0+3 1:0+2 2:0+3\n3:0+1 4:0+7\n5:0+6\n");
	spec.rows = 3;
	assert_rows(&spec, len, 6, 1, "0:0+3 1:0+2 2:0+3 | 3:0+1 4:0+7 | 5:0+6\n");
}

static void a_window_is_closed_at_its_end(void **state)
{
	static const uint32_t len[] = {5, 5, 3, 3};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	assert_rows(&spec, len, 4, 1, "1:0+5 2:0+3\n0:0+5 3:0+3\n");
	spec.window = 2;
	assert_rows(&spec, len, 4, 1, "0:0+5\n1:0+5\n2:0+3 3:0+3\n");
}

static void long_samples_are_split_truncated_or_dropped(void **state)
{
	static const uint32_t len[] = {9, 2, 4, 1};
	struct stk_spec spec = packed_spec(4);

	(void)state;
	spec.overlong = STK_OVERLONG_SPLIT;
	assert_rows(&spec, len, 4, 1, "0:0+4\n0:4+4\n2:0+4\n0:8+1 1:0+2 3:0+1\n");
	spec.overlong = STK_OVERLONG_TRUNCATE;
	assert_rows(&spec, len, 4, 1, "0:0+4\n2:0+4\n1:0+2 3:0+1\n");
	spec.overlong = STK_OVERLONG_DROP;
	assert_rows(&spec, len, 4, 1, "2:0+4\n1:0+2 3:0+1\n");
	spec.overlong = STK_OVERLONG_ERROR;
	assert_refused(&spec, len, 4, 1,
		       "more than max_length 4 (1 such samples); truncate, split and drop");
}

static void rows_keep_to_their_segments_and_alignment(void **state)
{
	static const uint32_t len[] = {1, 1, 1, 1, 1};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	spec.segments_max = 2;
	assert_rows(&spec, len, 5, 1, "0:0+1 1:0+1\n2:0+1 3:0+1\n4:0+1\n");
	spec.segments_max = 0;
	spec.align = 4;
	assert_rows(&spec, len, 5, 1, "0:0+1 1:0+1\n2:0+1 3:0+1\n4:0+1\n");
}

static void samples_without_a_token_are_counted(void **state)
{
	static const uint32_t len[] = {0, 3, 0, 2};
	struct stk_spec spec = packed_spec(8);
	struct stkd_plan *plan = make_plan(&spec, len, 4, 1);

	(void)state;
	assert_int_equal(stkd_plan_counts(plan)->empty, 2);
	assert_int_equal(stkd_plan_counts(plan)->delivered, 2);
	stkd_plan_free(plan);
	assert_rows(&spec, len, 4, 1, "1:0+3 3:0+2\n");
	spec = stream_spec(4);
	spec.separator = true;
	assert_rows(&spec, len, 4, 1, "1:0+4\n3:0+3\n");
}

/* Five rows for two parts of two: the step before lends a row. */
static void the_last_step_borrows_from_the_one_before(void **state)
{
	static const uint32_t len[] = {8, 8, 8, 8, 8};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	spec.rows = 2;
	assert_rows(&spec, len, 5, 2, "0:0+8 | 1:0+8 | 2:0+8\n3:0+8 | 4:0+8\n");
	spec.tail = STK_TAIL_PAD;
	assert_rows(&spec, len, 5, 2, "0:0+8 | 1:0+8 | 2:0+8 | 3:0+8\n4:0+8\n");
	spec.tail = STK_TAIL_DROP;
	assert_rows(&spec, len, 5, 2, "0:0+8 | 1:0+8 | 2:0+8 | 3:0+8\n");
}

/* One row for each of three parts, and four rows: the last one is taken apart. */
static void a_last_row_is_shared_by_all_parts(void **state)
{
	static const uint32_t len[] = {8, 8, 8, 2, 3, 1};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	assert_rows(&spec, len, 6, 3, "0:0+8 | 1:0+8 | 2:0+8\n3:0+2 | 4:0+3 | 5:0+1\n");
}

static void flat_packs_fill_the_last_step(void **state)
{
	static const uint32_t len[] = {4, 4, 4, 4, 4};
	struct stk_spec spec = packed_spec(0);

	(void)state;
	spec.rows = 0;
	spec.tokens = 12;
	spec.flat = true;
	assert_rows(&spec, len, 5, 2, "1:0+4 3:0+4 | 0:0+4 2:0+4 4:0+4\n");
	assert_rows(&spec, len, 5, 3, "2:0+4 | 0:0+4 3:0+4 | 1:0+4 4:0+4\n");
}

static void balanced_parts_cost_about_as_much(void **state)
{
	/* Four rows: one of 8, one of 4+4, one of 2*4, one of 1*8; squares 64, 32, 16, 8. */
	static const uint32_t len[] = {8, 4, 4, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1};
	struct stk_spec spec = packed_spec(8);

	(void)state;
	spec.rows = 2;
	assert_rows(&spec, len, 15, 2,
		    "0:0+8 | 1:0+4 2:0+4 | 3:0+2 4:0+2 5:0+2 6:0+2 | "
		    "7:0+1 8:0+1 9:0+1 10:0+1 11:0+1 12:0+1 13:0+1 14:0+1\n");
	spec.balance = STK_BALANCE_COST;
	assert_rows(&spec, len, 15, 2,
		    "0:0+8 | 7:0+1 8:0+1 9:0+1 10:0+1 11:0+1 12:0+1 13:0+1 14:0+1 | "
		    "1:0+4 2:0+4 | 3:0+2 4:0+2 5:0+2 6:0+2\n");
}

static void a_stream_is_cut_into_equal_rows(void **state)
{
	static const uint32_t len[] = {3, 6, 0, 2};
	struct stk_spec spec = stream_spec(4);

	(void)state;
	assert_rows(&spec, len, 4, 1, "0:0+3 1:0+1\n1:1+4\n1:5+1 3:0+2\n");
	spec.overlap = 1;
	assert_rows(&spec, len, 4, 1, "0:0+3 1:0+2\n1:1+5\n1:5+1 3:0+2\n");
	spec.overlap = 0;
	spec.separator = true;
	assert_rows(&spec, len, 4, 1, "0:0+4\n1:0+4\n1:4+3 3:0+1\n3:1+2\n");
	spec.tail = STK_TAIL_DROP;
	assert_rows(&spec, len, 4, 1, "0:0+4\n1:0+4\n1:4+3 3:0+1\n");
}

/* Tokens, and rows of 8 that they make: with the token that labels need, and without. */
static void whole_rows_of_a_stream_follow_from_its_tokens(void **state)
{
	static const struct {
		uint32_t tokens, shifted, plain;
	} cases[] = {{1, 0, 0}, {7, 0, 0}, {8, 0, 1}, {9, 1, 1}, {16, 1, 2}, {17, 2, 2}};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		for (uint32_t overlap = 0; overlap < 2; overlap++) {
			uint32_t len[17], rows = overlap ? cases[i].shifted : cases[i].plain;
			struct stk_spec spec = stream_spec(8);
			struct stkd_plan *plan;

			for (uint32_t t = 0; t < cases[i].tokens; t++)
				len[t] = 1;
			spec.overlap = overlap;
			spec.tail = STK_TAIL_DROP;
			if (!rows) {
				assert_refused(&spec, len, cases[i].tokens, 1,
					       "an epoch would have no step");
				continue;
			}
			plan = make_plan(&spec, len, cases[i].tokens, 1);
			assert_int_equal(stkd_plan_counts(plan)->steps, rows);
			stkd_plan_free(plan);
		}
	}
}

static void what_cannot_be_packed_is_refused(void **state)
{
	static const uint32_t len[] = {4, 4, 4}, none[] = {0, 0}, one[] = {1};
	struct stk_spec spec = packed_spec(4);

	(void)state;
	assert_refused(&spec, none, 2, 1, "no tokens: all 2 samples are empty");
	assert_refused(&spec, len, 3, 4, "12 tokens make 3 segments");
	spec.overlong = STK_OVERLONG_DROP;
	spec.max_length = 3;
	assert_refused(&spec, len, 3, 1, "no samples left");
	spec = packed_spec(4);
	spec.tail = STK_TAIL_DROP;
	assert_refused(&spec, len, 3, 4, "12 tokens make 3 rows");
	spec = packed_spec(0);
	spec.rows = 0;
	spec.flat = true;
	spec.tokens = STKD_FIT_MAX + 1;
	assert_refused(&spec, len, 3, 1, "tokens: a packed row of 16777217 tokens");
	spec = packed_spec(6);
	spec.align = 4;
	assert_refused(&spec, len, 3, 1, "align: 4 does not divide the 6 tokens");
	spec = packed_spec(4);
	spec.rows = 0;
	spec.tokens = 3;
	assert_refused(&spec, len, 3, 1, "tokens: budget 3 is smaller than one row");
	spec = stream_spec(4);
	assert_refused(&spec, len, 3, 4, "12 tokens make 3 rows");
	spec.overlap = 1;
	assert_refused(&spec, one, 1, 1, "fewer tokens than one row");
	spec = packed_spec(1u << 24);
	spec.rows = 65536;
	assert_refused(&spec, one, 1, 65536, "are more than");
}

static void parts_without_a_row_get_a_masked_one_when_asked(void **state)
{
	static const uint32_t len[] = {4, 4};
	struct stk_spec spec = packed_spec(4);
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	struct stkd_step step;
	struct stkd_part part;

	(void)state;
	spec.tail = STK_TAIL_PAD;
	plan = make_plan(&spec, len, 2, 4);
	assert_int_equal(stkd_plan_counts(plan)->masked, 2);
	iter = make_iter(plan, NULL, 0);
	assert_int_equal(stkd_iter_next(iter, &step), 0);
	for (uint32_t rank = 0; rank < 4; rank++) {
		stkd_step_part(plan, &step, rank, 0, &part);
		assert_int_equal(part.rows, 1);
		assert_int_equal(part.rows_real, rank < 2);
	}
	stkd_iter_free(iter);
	stkd_plan_free(plan);
}

/* The window, and how far into it, are all that a cursor needs. */
static void a_window_goes_on_where_it_was_left(void **state)
{
	static const uint32_t len[] = {3, 2, 4, 1, 4, 2, 2, 3, 1, 4};
	struct stk_spec spec = packed_spec(4);
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	char *whole;
	size_t done = 0;

	(void)state;
	spec.window = 5;
	spec.order = STK_ORDER_FULL;
	plan = make_plan(&spec, len, 10, 1);
	whole = text_of(plan, NULL, 0);
	iter = make_iter(plan, NULL, 0);
	for (;;) {
		uint8_t cursor[STK_SHM_CURSOR_MAX];
		struct stkd_step step;
		size_t size;
		char *rest;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		if (step.last_of_epoch)
			break;
		done = (size_t)(strchr(whole + done, '\n') - whole) + 1;
		size = stkd_iter_cursor(iter, cursor);
		rest = text_of(plan, cursor, size);
		assert_string_equal(rest, whole + done);
		free(rest);
	}
	free(whole);
	stkd_iter_free(iter);
	stkd_plan_free(plan);
}

static void a_far_epoch_is_planned_like_a_near_one(void **state)
{
	enum { N = 20000 };
	static uint32_t len[N];
	struct stk_spec spec = packed_spec(64);
	struct stkd_packed_cursor cursor = {.epoch = UINT64_C(1) << 40};
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	struct stkd_iter *direct, *resumed;
	struct stkd_step a, b;
	struct stkd_plan *plan;

	(void)state;
	for (uint32_t i = 0; i < N; i++)
		len[i] = 1 + i % 3;
	spec.window = 1000;
	spec.order = STK_ORDER_FULL;
	plan = make_plan(&spec, len, N, 2);
	direct = make_iter(plan, NULL, 0);
	assert_int_equal(stkd_iter_seek(direct, cursor.epoch, 3, NULL), 0);
	resumed = make_iter(plan, bytes, stkd_packed_cursor_encode(&cursor, bytes));
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(stkd_iter_next(resumed, &b), 0);
	assert_int_equal(stkd_iter_next(direct, &a), 0);
	assert_int_equal(a.epoch, cursor.epoch);
	assert_int_equal(b.step, a.step);
	assert_int_equal(a.row_first[1] - a.row_first[0], b.row_first[1] - b.row_first[0]);
	assert_memory_equal(a.segments + a.row_first[0], b.segments + b.row_first[0],
			    (a.row_first[1] - a.row_first[0]) * sizeof(a.segments[0]));
	stkd_iter_free(direct);
	stkd_iter_free(resumed);
	stkd_plan_free(plan);
}

static void damaged_cursors_are_refused(void **state)
{
	static const uint32_t len[] = {4, 4, 4, 4};
	const struct stkd_packed_cursor wrong[] = {
		{.step = 1, .at = 9},
		{.step = 1, .at = UINT64_MAX},
		{.step = 1, .in = 5},
		{.step = 1, .at = 0, .in = UINT64_MAX},
		{.step = 1, .at = 0, .in = 1, .parts = 2},
		{.step = 1, .at = 0, .in = 1, .parts = UINT64_MAX},
		{.step = 1, .at = 0, .in = 1, .parts = 2, .before = 2},
		{.step = 1, .at = 0, .parts = 2},
	};
	struct stk_spec spec = packed_spec(4);
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	struct stkd_iter *iter = NULL;
	struct stkd_plan *plan;

	(void)state;
	for (int concat = 0; concat < 2; concat++) {
		spec.group = concat ? STK_GROUP_CONCAT : STK_GROUP_PACK;
		plan = make_plan(&spec, len, 4, 1);
		for (size_t i = 0; i < STK_ARRAY_SIZE(wrong); i++) {
			size_t size = stkd_packed_cursor_encode(&wrong[i], bytes);

			assert_int_equal(stkd_iter_new(plan, bytes, size, &iter, NULL), -EINVAL);
			assert_null(iter);
			bytes[1] ^= 1;
			assert_int_equal(stkd_iter_new(plan, bytes, size, &iter, NULL), -EINVAL);
		}
		stkd_plan_free(plan);
	}
}

/* Three of one dataset for each one of the other; the smaller one is read again and again. */
static void mixtures_are_packed_too(void **state)
{
	static const uint64_t first[] = {0, 300, 340};
	struct stk_spec_data data[] = {{.weight = 3000000}, {.weight = 1000000}};
	uint32_t len[340];
	uint64_t seed = 6;

	(void)state;
	for (uint32_t i = 0; i < 340; i++)
		len[i] = 1 + below(&seed, 60);
	for (int stop = STK_STOP_FIRST; stop <= STK_STOP_NEVER; stop++) {
		struct stkd_lengths lengths = {
			.len = len, .count = 340, .first = first, .ndatasets = 2};
		struct stk_spec spec = packed_spec(64);
		struct stkd_plan *plan = NULL;
		struct stk_err err = {0};
		struct stkd_iter *iter;
		struct stkd_step step = {0};
		uint64_t tokens = 0, small = 0, all = 0;

		spec.order = STK_ORDER_FULL;
		spec.data = data;
		spec.ndata = 2;
		spec.stop = stop;
		spec.window = stop == STK_STOP_NEVER ? 0 : 50;
		if (stop == STK_STOP_NEVER) {
			assert_int_equal(stkd_plan_new(&spec, &lengths, 1, &plan, &err), -EINVAL);
			assert_non_null(strstr(err.text, "never ends"));
			spec.window = 50;
		}
		if (stkd_plan_new(&spec, &lengths, 1, &plan, &err) < 0)
			fail_msg("%s", err.text);
		iter = make_iter(plan, NULL, 0);
		for (unsigned i = 0; i < 400 && !step.last_of_epoch; i++) {
			assert_int_equal(stkd_iter_next(iter, &step), 0);
			tokens += step.real_tokens;
			for (uint32_t s = step.row_first[0]; s < step.row_first[step.nids]; s++) {
				assert_int_equal(step.segments[s].length, len[step.segments[s].id]);
				small += step.segments[s].id >= 300;
				all++;
			}
		}
		assert_int_equal(step.last_of_epoch, stop != STK_STOP_NEVER);
		if (stop != STK_STOP_NEVER)
			assert_int_equal(tokens, stkd_plan_counts(plan)->real_tokens);
		/* A quarter, but for a window that is not whole. */
		assert_true(4 * small + 200 >= all && 4 * small <= all + 200);
		stkd_iter_free(iter);
		stkd_plan_free(plan);
	}
}

/* A step's digest: every number of it, in order. */
static uint64_t digest_of(const struct stkd_plan *plan, unsigned steps)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	uint64_t h = 0;

	for (unsigned i = 0; i < steps; i++) {
		struct stkd_step step;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		for (uint32_t row = 0; row < step.nids; row++) {
			h = (h ^ row) * UINT64_C(0x9e3779b97f4a7c15);
			for (uint32_t s = step.row_first[row]; s < step.row_first[row + 1]; s++) {
				h = (h ^ step.segments[s].id) * UINT64_C(0x9e3779b97f4a7c15);
				h ^= h >> 29;
				h += (uint64_t)step.segments[s].from << 32 |
				     step.segments[s].length;
			}
		}
	}
	stkd_iter_free(iter);
	return h;
}

/* Other numbers here need another plan version: saved states go on with these sequences. */
static void sequences_are_the_same_on_every_machine(void **state)
{
	enum { N = 5000 };
	static uint32_t len[N];
	uint64_t seed = 5;
	const struct {
		const char *name;
		uint64_t want;
		int group, balance;
		uint32_t rows, tokens, window;
		bool flat;
	} cases[] = {
		{"pack", UINT64_C(0xf70daec1ca6b63a4), STK_GROUP_PACK, STK_BALANCE_NONE, 4, 0, 300,
		 false},
		{"balanced", UINT64_C(0x1f6b75a83d7a8b46), STK_GROUP_PACK, STK_BALANCE_COST, 4, 0,
		 300, false},
		{"flat", UINT64_C(0xed52fe5db7a4f8a9), STK_GROUP_PACK, STK_BALANCE_COST, 0, 4096,
		 1000, true},
		{"concat", UINT64_C(0x6a2d45459fa7f08b), STK_GROUP_CONCAT, STK_BALANCE_NONE, 4, 0,
		 0, false},
	};

	(void)state;
	assert_int_equal(STKD_PLAN_VERSION, 1);
	for (uint32_t i = 0; i < N; i++)
		len[i] = below(&seed, below(&seed, 2) ? 700 : 100);
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_spec spec = packed_spec(512);
		struct stkd_plan *plan;
		uint64_t got;

		spec.order = STK_ORDER_FULL;
		spec.overlong = STK_OVERLONG_SPLIT;
		spec.group = cases[i].group;
		spec.balance = cases[i].balance;
		spec.rows = cases[i].rows;
		spec.tokens = cases[i].tokens;
		spec.window = cases[i].window;
		spec.flat = cases[i].flat;
		plan = make_plan(&spec, len, N, 3);
		got = digest_of(plan, 200);
		if (got != cases[i].want)
			fail_msg("%s: 0x%016llx", cases[i].name, (unsigned long long)got);
		stkd_plan_free(plan);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(samples_fill_the_tightest_row),
		cmocka_unit_test(a_window_is_closed_at_its_end),
		cmocka_unit_test(long_samples_are_split_truncated_or_dropped),
		cmocka_unit_test(rows_keep_to_their_segments_and_alignment),
		cmocka_unit_test(samples_without_a_token_are_counted),
		cmocka_unit_test(the_last_step_borrows_from_the_one_before),
		cmocka_unit_test(a_last_row_is_shared_by_all_parts),
		cmocka_unit_test(flat_packs_fill_the_last_step),
		cmocka_unit_test(balanced_parts_cost_about_as_much),
		cmocka_unit_test(a_stream_is_cut_into_equal_rows),
		cmocka_unit_test(whole_rows_of_a_stream_follow_from_its_tokens),
		cmocka_unit_test(what_cannot_be_packed_is_refused),
		cmocka_unit_test(parts_without_a_row_get_a_masked_one_when_asked),
		cmocka_unit_test(a_window_goes_on_where_it_was_left),
		cmocka_unit_test(a_far_epoch_is_planned_like_a_near_one),
		cmocka_unit_test(damaged_cursors_are_refused),
		cmocka_unit_test(mixtures_are_packed_too),
		cmocka_unit_test(sequences_are_the_same_on_every_machine),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
