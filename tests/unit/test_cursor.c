/* SPDX-License-Identifier: Apache-2.0 */
/* Cursors: their bytes, what does not fit, and the refusal of everything that was made up. */
#include "daemon/plan/cursor.h"

#include <xxhash.h>

#include "daemon/plan/plan_private.h"
#include "tests/unit/plan_fixture.h"

struct fixture {
	struct stk_spec spec;
	uint32_t len[200];
	struct stkd_plan *plan;
	/* A cursor in the main phase, and its numbers. */
	struct stkd_cursor good;
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	size_t size;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct stkd_iter *iter;
	struct stkd_step step;
	uint64_t seed = 3;

	if (!f)
		return -1;
	f->spec = plain_spec();
	f->spec.order = STK_ORDER_FULL;
	f->spec.group = STK_GROUP_BUCKET;
	f->spec.buckets = 4;
	f->spec.rows = 4;
	f->spec.max_length = 50;
	f->spec.overlong = STK_OVERLONG_DROP;
	for (uint32_t i = 0; i < STK_ARRAY_SIZE(f->len); i++)
		f->len[i] = 1 + below(&seed, 52);
	f->plan = make_plan(&f->spec, f->len, STK_ARRAY_SIZE(f->len), 2);
	iter = make_iter(f->plan, NULL, 0);
	for (int i = 0; i < 9; i++)
		assert_int_equal(stkd_iter_next(iter, &step), 0);
	f->size = stkd_iter_cursor(iter, f->bytes);
	stkd_iter_free(iter);
	assert_int_equal(stkd_cursor_decode(f->bytes, f->size, &f->good, NULL), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	stkd_plan_free(f->plan);
	free(f);
	return 0;
}

static void assert_cursor_refused(struct fixture *f, const void *data, size_t size,
				  const char *text)
{
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};

	assert_int_equal(stkd_iter_new(f->plan, data, size, &iter, &err), -EINVAL);
	assert_null(iter);
	if (!strstr(err.text, text))
		print_error("got: %s\n", err.text);
	assert_non_null(strstr(err.text, text));
}

static void assert_made_up_refused(struct fixture *f, const struct stkd_cursor *cursor,
				   const char *text)
{
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	size_t size = stkd_cursor_encode(cursor, bytes);

	assert_cursor_refused(f, bytes, size, text);
}

static void what_is_encoded_is_decoded(void **state)
{
	struct fixture *f = *state;
	uint8_t bytes[STK_SHM_CURSOR_MAX];

	assert_int_equal(f->good.step, 9);
	assert_int_equal(f->good.nbuckets, 4);
	assert_true(f->good.position > 9 * 8);
	assert_int_equal(f->good.delivered, 9 * 8);
	assert_int_equal(stkd_cursor_encode(&f->good, bytes), f->size);
	assert_memory_equal(bytes, f->bytes, f->size);
}

static void the_bytes_of_a_cursor_are_pinned(void **state)
{
	static const uint8_t bare[] = {0x01, 0x02, 0x00, 0x00, 0x9b, 0x4f, 0x35, 0xc4};
	static const uint8_t counted[] = {0x01, 0x00, 0x03, 0x01, 0x0c, 0x0c,
					  0x00, 0x00, 0x28, 0x2e, 0x68, 0xa4};
	struct stkd_cursor cursor = {.epoch = 2};
	uint8_t bytes[STK_SHM_CURSOR_MAX];

	(void)state;
	assert_int_equal(stkd_cursor_encode(&cursor, bytes), sizeof(bare));
	assert_memory_equal(bytes, bare, sizeof(bare));
	cursor = (struct stkd_cursor){.step = 3, .nbuckets = 1, .position = 12, .delivered = 12};
	assert_int_equal(stkd_cursor_encode(&cursor, bytes), sizeof(counted));
	assert_memory_equal(bytes, counted, sizeof(counted));
}

static void the_end_of_an_epoch_has_one_form(void **state)
{
	struct fixture *f = *state;
	const struct stkd_cursor next = {.epoch = 1};
	struct stkd_iter *iter = make_iter(f->plan, NULL, 0);
	uint8_t expected[STK_SHM_CURSOR_MAX], bytes[STK_SHM_CURSOR_MAX];
	struct stkd_step step = {0};
	size_t size = stkd_cursor_encode(&next, expected);

	while (!step.last_of_epoch)
		assert_int_equal(stkd_iter_next(iter, &step), 0);
	assert_int_equal(stkd_iter_cursor(iter, bytes), size);
	assert_memory_equal(bytes, expected, size);
	stkd_iter_free(iter);
}

static void every_flipped_bit_and_every_cut_is_refused(void **state)
{
	struct fixture *f = *state;

	for (size_t bit = 0; bit < 8 * f->size; bit++) {
		f->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
		assert_cursor_refused(f, f->bytes, f->size, "cursor: ");
		f->bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
	}
	for (size_t size = 1; size < f->size; size++)
		assert_cursor_refused(f, f->bytes, size, "cursor: ");
	assert_cursor_refused(f, f->bytes, STK_SHM_CURSOR_MAX + 1, "1025 bytes, 5..1024 allowed");
}

static void numbers_out_of_the_plan_are_refused_with_the_number(void **state)
{
	struct fixture *f = *state;
	struct stkd_cursor c = f->good;

	c.position = 201;
	assert_made_up_refused(f, &c, "position 201 is behind the last of 200 samples");
	c.position = UINT64_MAX;
	assert_made_up_refused(f, &c, "position 18446744073709551615");
	c = f->good;
	c.waiting[1] = 8;
	assert_made_up_refused(f, &c, "8 samples wait in bucket 1, fewer than 8 can");
	c.waiting[1] = UINT64_MAX;
	assert_made_up_refused(f, &c, "samples wait in bucket 1");
	c = f->good;
	c.nbuckets = 3;
	assert_made_up_refused(f, &c, "3 buckets, the plan has 4");
	c = f->good;
	c.delivered += 8;
	assert_made_up_refused(f, &c, "do not fit position");
	c.delivered = UINT64_MAX - 1;
	assert_made_up_refused(f, &c, "do not fit position");
	c = f->good;
	c.delivered++;
	assert_made_up_refused(f, &c, "do not fit position");
	c = f->good;
	c.lent = 10;
	assert_made_up_refused(f, &c, "do not fit position");
	c = f->good;
	c.step = 0;
	assert_made_up_refused(f, &c, "step 0 has counts");
	c.step = UINT64_MAX;
	assert_made_up_refused(f, &c, "has counts");
	c = (struct stkd_cursor){.step = stkd_plan_counts(f->plan)->steps};
	assert_made_up_refused(f, &c, "an epoch has");
	c.step = UINT64_MAX;
	assert_made_up_refused(f, &c, "an epoch has");
}

/* Appends the right checksum, as somebody with the source would. */
static size_t seal(uint8_t *bytes, size_t size)
{
	uint32_t sum = XXH32(bytes, size, 0);

	for (unsigned i = 0; i < 4; i++)
		bytes[size++] = (uint8_t)(sum >> (8 * i));
	return size;
}

static void malformed_bytes_under_a_right_checksum_are_refused(void **state)
{
	struct fixture *f = *state;
	uint8_t bytes[64] = {2, 0, 0, 0};

	assert_cursor_refused(f, bytes, seal(bytes, 4), "version 2, this stoker reads 1");
	memcpy(bytes, (uint8_t[]){1, 0, 0, 0, 0}, 5);
	assert_cursor_refused(f, bytes, seal(bytes, 5), "malformed"); /* one byte too many */
	memcpy(bytes, (uint8_t[]){1, 0, 0x80, 0, 0}, 5);
	assert_cursor_refused(f, bytes, seal(bytes, 5), "malformed"); /* zero in two bytes */
	memcpy(bytes, (uint8_t[]){1, 0, 0, 0x80}, 4);
	assert_cursor_refused(f, bytes, seal(bytes, 4), "malformed"); /* an unfinished number */
	memcpy(bytes, (uint8_t[]){1, 0, 0, 0x81, 2}, 5);
	assert_cursor_refused(f, bytes, seal(bytes, 5), "257 buckets, at most 256");
	memset(bytes, 0xff, sizeof(bytes));
	bytes[0] = 1;
	assert_cursor_refused(f, bytes, seal(bytes, 13), "malformed"); /* more than 64 bits */
	memcpy(bytes, (uint8_t[]){1, 0, 3, 4}, 4);
	assert_cursor_refused(f, bytes, seal(bytes, 4), "malformed"); /* counts are missing */
}

static void counts_that_do_not_fit_leave_a_cursor_that_still_resumes(void **state)
{
	struct stkd_cursor c = {.epoch = UINT64_MAX, .step = 5, .nbuckets = 256}, got;
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	size_t size;

	(void)state;
	c.position = c.delivered = UINT64_MAX;
	/* 2^20 rows wait in each of 256 buckets: 32 rows for each of 32768 ranks. */
	for (uint32_t b = 0; b < 256; b++)
		c.waiting[b] = 1 << 20;
	size = stkd_cursor_encode(&c, bytes);
	assert_true(size <= STK_SHM_CURSOR_MAX);
	assert_int_equal(stkd_cursor_decode(bytes, size, &got, NULL), 0);
	assert_memory_equal(&c, &got, sizeof(c));
	for (uint32_t b = 0; b < 256; b++)
		c.waiting[b] = UINT32_MAX;
	size = stkd_cursor_encode(&c, bytes);
	assert_true(size <= 20);
	assert_int_equal(stkd_cursor_decode(bytes, size, &got, NULL), 0);
	assert_int_equal(got.nbuckets, 0);
	assert_int_equal(got.epoch, UINT64_MAX);
	assert_int_equal(got.step, 5);
}

static void a_bare_cursor_plans_up_to_its_step(void **state)
{
	struct fixture *f = *state;
	const struct stkd_cursor bare = {.step = 9};
	uint8_t bytes[STK_SHM_CURSOR_MAX];
	struct stkd_iter *iter;

	iter = make_iter(f->plan, bytes, stkd_cursor_encode(&bare, bytes));
	assert_int_equal(stkd_iter_cursor(iter, bytes), f->size);
	assert_memory_equal(bytes, f->bytes, f->size);
	stkd_iter_free(iter);
}

/* Possible numbers that are not true: the walk ends with an error, never outside its memory. */
static void a_consistent_lie_ends_with_an_error(void **state)
{
	struct fixture *f = *state;
	uint64_t seed = 11;
	unsigned accepted = 0, ended = 0;

	for (int i = 0; i < 3000; i++) {
		struct stkd_cursor c = f->good;
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		struct stkd_iter *iter = NULL;
		struct stkd_step step = {0};
		uint64_t waiting = 0;
		size_t size;
		int r = 0;

		c.step = 1 + below(&seed, (uint32_t)f->plan->outline.main_steps - 1);
		for (uint32_t b = 0; b < 4; b++)
			waiting += c.waiting[b] = below(&seed, 8);
		c.delivered = 8 * below(&seed, 20);
		c.position = c.delivered + waiting + below(&seed, 8);
		size = stkd_cursor_encode(&c, bytes);
		if (stkd_iter_new(f->plan, bytes, size, &iter, NULL) < 0)
			continue;
		accepted++;
		for (int s = 0; s < 60 && r == 0; s++)
			r = stkd_iter_next(iter, &step);
		assert_true(r == 0 || r == -EBADMSG);
		ended += r == -EBADMSG;
		if (r == -EBADMSG)
			assert_int_equal(stkd_iter_next(iter, &step), -EBADMSG);
		stkd_iter_free(iter);
	}
	assert_true(accepted > 100);
	assert_true(ended > 100);
}

static void seek_refuses_a_step_that_an_epoch_does_not_have(void **state)
{
	struct fixture *f = *state;
	struct stkd_iter *iter = make_iter(f->plan, f->bytes, f->size);
	struct stk_err err = {0};

	assert_int_equal(stkd_iter_seek(iter, 1, stkd_plan_counts(f->plan)->steps, &err), -EINVAL);
	assert_non_null(strstr(err.text, "of epoch 1: an epoch has"));
	assert_int_equal(stkd_iter_step(iter), 9);
	assert_int_equal(stkd_iter_epoch(iter), 0);
	stkd_iter_free(iter);
}

/* Every form, there and back; counts that need too many bytes as numbers are packed into bits. */
static void cursors_of_every_form_read_back_exactly(void **state)
{
	uint64_t seed = 77;

	(void)state;
	for (int round = 0; round < 2000; round++) {
		struct stkd_cursor c = {.epoch = draw(&seed) >> below(&seed, 64), .step = 3}, got;
		unsigned bits = 1 + below(&seed, 29);
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		size_t size;

		c.nbuckets = 1 + below(&seed, 256);
		c.position = draw(&seed) >> below(&seed, 64);
		c.delivered = draw(&seed) >> below(&seed, 64);
		for (uint32_t b = 0; b < c.nbuckets; b++)
			c.waiting[b] = draw(&seed) >> (64 - bits);
		if (below(&seed, 2)) {
			c.skip = 1 + below(&seed, 1000);
			c.first = below(&seed, c.nbuckets);
		}
		c.outline = below(&seed, 2);
		if (c.outline) {
			c.base = below(&seed, 9);
			c.steps = draw(&seed) >> below(&seed, 64);
			c.main_steps = draw(&seed) >> below(&seed, 64);
			c.lender = below(&seed, c.nbuckets + 1);
			c.lend_step = below(&seed, 100);
			c.lend = draw(&seed) >> 40;
		}
		size = stkd_cursor_encode(&c, bytes);
		assert_in_range(size, 1, STK_SHM_CURSOR_MAX);
		assert_int_equal(stkd_cursor_decode(bytes, size, &got, NULL), 0);
		assert_int_equal(got.nbuckets, c.nbuckets);
		assert_memory_equal(got.waiting, c.waiting, sizeof(c.waiting));
		assert_true(got.epoch == c.epoch && got.position == c.position &&
			    got.delivered == c.delivered && got.skip == c.skip &&
			    got.first == c.first && got.outline == c.outline &&
			    got.base == c.base && got.steps == c.steps &&
			    got.main_steps == c.main_steps && got.lender == c.lender &&
			    got.lend_step == c.lend_step && got.lend == c.lend);
		/* One spelling: a byte more or less is none. */
		assert_true(stkd_cursor_decode(bytes, size - 1, &got, NULL) < 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cursors_of_every_form_read_back_exactly),
		cmocka_unit_test(what_is_encoded_is_decoded),
		cmocka_unit_test(the_bytes_of_a_cursor_are_pinned),
		cmocka_unit_test(the_end_of_an_epoch_has_one_form),
		cmocka_unit_test(every_flipped_bit_and_every_cut_is_refused),
		cmocka_unit_test(numbers_out_of_the_plan_are_refused_with_the_number),
		cmocka_unit_test(malformed_bytes_under_a_right_checksum_are_refused),
		cmocka_unit_test(counts_that_do_not_fit_leave_a_cursor_that_still_resumes),
		cmocka_unit_test(a_bare_cursor_plans_up_to_its_step),
		cmocka_unit_test(a_consistent_lie_ends_with_an_error),
		cmocka_unit_test(seek_refuses_a_step_that_an_epoch_does_not_have),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}
