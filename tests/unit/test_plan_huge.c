/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Epochs of more than 2^32 arrivals, and streams without end behind 2^40: a small dataset that is read
 * again and again. Cursors far inside are made by hand, as walking there would take too long.
 */
#include "daemon/plan/cursor.h"
#include "tests/unit/plan_fixture.h"

#define SAMPLES (UINT64_C(1) << 18)
#define TIMES   UINT64_C(40000) /* draws of the one sample of the other dataset for each of these */
#define WORLD   8

static const uint64_t first[] = {0, SAMPLES, SAMPLES + 1};

struct fixture {
	uint32_t *len;
	struct stk_spec spec;
	struct stk_spec_data data[2];
	struct stkd_plan *plan;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	f->len = malloc((SAMPLES + 1) * sizeof(*f->len));
	assert_non_null(f->len);
	for (uint64_t i = 0; i <= SAMPLES; i++)
		f->len[i] = 1 + (uint32_t)(i % 40);
	f->spec = plain_spec();
	f->spec.order = STK_ORDER_FULL;
	f->spec.rows = 4;
	f->spec.stop = STK_STOP_ALL;
	f->data[0].weight = 1;
	f->data[1].weight = TIMES;
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	stkd_plan_free(f->plan);
	free(f->len);
	free(f);
	return 0;
}

static void open_plan(struct fixture *f)
{
	struct stkd_lengths lengths = {
		.len = f->len, .count = SAMPLES + 1, .first = first, .ndatasets = 2};
	struct stk_err err = {0};

	f->spec.data = f->data;
	f->spec.ndata = 2;
	if (stkd_plan_new(&f->spec, &lengths, WORLD, &f->plan, &err) < 0)
		fail_msg("%s", err.text);
}

/* Steps from a cursor are those of the plan, and a cursor behind each of them gives the next one. */
static void assert_goes_on(struct fixture *f, const void *cursor, size_t size, uint64_t epoch,
			   uint64_t step)
{
	struct stkd_iter *iter = make_iter(f->plan, cursor, size);

	for (int i = 0; i < 5; i++, step++) {
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		struct stkd_step a, b;
		struct stkd_iter *again = make_iter(f->plan, bytes, stkd_iter_cursor(iter, bytes));

		assert_int_equal(stkd_iter_next(iter, &a), 0);
		assert_int_equal(stkd_iter_next(again, &b), 0);
		assert_int_equal(a.epoch, epoch);
		assert_int_equal(a.step, step);
		assert_int_equal(a.nids, b.nids);
		assert_int_equal(a.real_tokens, b.real_tokens);
		assert_true(a.real_tokens > 0);
		for (uint32_t row = 0; a.ids && row < a.nids; row++) {
			assert_true(a.ids[row] <= SAMPLES);
			assert_int_equal(a.ids[row], b.ids[row]);
		}
		stkd_iter_free(again);
	}
	stkd_iter_free(iter);
}

/* In the middle of a step, so that some samples wait. */
static void assert_bucket_at(struct fixture *f, uint64_t epoch, uint64_t position)
{
	uint64_t step = position / (4 * WORLD);
	struct stkd_cursor cursor = {
		.epoch = epoch,
		.step = step,
		.nbuckets = 1,
		.position = position,
		.delivered = step * 4 * WORLD,
		.waiting = {position % (4 * WORLD)},
	};
	uint8_t bytes[STK_SHM_CURSOR_MAX];

	assert_goes_on(f, bytes, stkd_cursor_encode(&cursor, bytes), epoch, step);
}

static void an_epoch_may_have_more_than_2_32_arrivals(void **state)
{
	struct fixture *f = *state;
	const struct stkd_plan_counts *counts;
	struct stkd_iter *iter;
	struct stkd_step step;

	f->spec.group = STK_GROUP_FIXED;
	open_plan(f);
	counts = stkd_plan_counts(f->plan);
	assert_true(counts->delivered > UINT64_C(1) << 33);
	assert_int_equal(counts->delivered, SAMPLES + counts->repeated + 1);
	assert_true(counts->steps >= counts->delivered / (4 * WORLD));
	assert_bucket_at(f, 0, (UINT64_C(1) << 33) + 11);
	assert_bucket_at(f, 7, (UINT64_C(1) << 32) - 3);
	/* Its tail is reached without a walk. */
	iter = make_iter(f->plan, NULL, 0);
	assert_int_equal(stkd_iter_seek(iter, UINT64_C(1) << 41, counts->steps - 1, NULL), 0);
	assert_int_equal(stkd_iter_next(iter, &step), 0);
	assert_int_equal(step.epoch, UINT64_C(1) << 41);
	assert_true(step.last_of_epoch);
	stkd_iter_free(iter);
}

static void a_stream_without_end_goes_on_behind_2_40(void **state)
{
	struct fixture *f = *state;

	f->spec.group = STK_GROUP_FIXED;
	f->spec.stop = STK_STOP_NEVER;
	open_plan(f);
	assert_bucket_at(f, 0, (UINT64_C(1) << 40) + 5);
	assert_bucket_at(f, 0, (UINT64_C(1) << 62) + 17);
}

static void packed_rows_and_streams_of_tokens_go_as_far(void **state)
{
	struct fixture *f = *state;

	for (int concat = 0; concat < 2; concat++) {
		struct stkd_packed_cursor cursor = {.epoch = 3, .step = 9, .in = 1};
		uint8_t bytes[STK_SHM_CURSOR_MAX];

		f->spec.group = concat ? STK_GROUP_CONCAT : STK_GROUP_PACK;
		f->spec.max_length = 64;
		f->spec.window = 1000;
		f->spec.align = 1;
		f->plan = stkd_plan_free(f->plan);
		open_plan(f);
		cursor.at = concat ? (UINT64_C(1) << 33) + 11 : (UINT64_C(1) << 33) / 1000;
		cursor.in = concat ? 0 : 1;
		assert_goes_on(f, bytes, stkd_packed_cursor_encode(&cursor, bytes), 3, 9);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(an_epoch_may_have_more_than_2_32_arrivals, setup,
						teardown),
		cmocka_unit_test_setup_teardown(a_stream_without_end_goes_on_behind_2_40, setup,
						teardown),
		cmocka_unit_test_setup_teardown(packed_rows_and_streams_of_tokens_go_as_far, setup,
						teardown),
	};

	return cmocka_run_group_tests_name("plan_huge", tests, NULL, NULL);
}
