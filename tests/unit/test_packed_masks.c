/* SPDX-License-Identifier: Apache-2.0 */
/* What packed rows do not show: tokens that a mask hides, samples that are bad. */
#include "tests/unit/packed_fixture.h"

/* What a loss sees at one place: the next token of its sample, if the mask shows it. */
static int64_t next_label(const struct fixture *f, const struct stk_segment *segment, uint32_t k)
{
	const uint8_t *map = f->fake.dataset.shards[0]->map;
	uint32_t t = segment->from + k + 1, length = f->fake.dataset.lengths[segment->id];
	uint16_t id;

	if (t == length && f->spec.separator)
		return 7777;
	if (t >= length || !map[f->fake.offsets[1][segment->id] + t])
		return -100;
	memcpy(&id, map + f->fake.offsets[0][segment->id] + 2 * t, sizeof(id));
	return id;
}

/* Samples in pieces, the next row going on where one was cut, some with their separators. */
static void cut_row(struct fixture *f, uint32_t width, uint64_t *id, uint32_t *from)
{
	uint32_t left = width;

	while (left && *id < f->fake.dataset.count) {
		uint32_t all = f->fake.dataset.lengths[*id] + f->spec.separator;
		uint32_t n = STK_MIN(left, all - *from);

		if (n)
			f->segments[f->recipe.nsegments++] =
				(struct stk_segment){.id = *id, .from = *from, .length = n};
		left -= n;
		*from += n;
		if (*from == all) {
			*from = 0;
			(*id)++;
		}
	}
	f->row_first[++f->recipe.rows_real] = f->recipe.nsegments;
	f->recipe.rows++;
}

static void check_labels(const struct fixture *f)
{
	const int64_t *labels = (const int64_t *)(f->slot + f->layout.fields[0].offset);

	for (uint32_t row = 0; row < f->recipe.rows; row++) {
		uint32_t at = 0;

		for (uint32_t s = f->row_first[row]; s < f->row_first[row + 1]; s++)
			for (uint32_t k = 0; k < f->segments[s].length; k++, at++)
				assert_true(labels[row * f->recipe.width + at] ==
					    next_label(f, &f->segments[s], k));
		for (; at < f->recipe.width; at++)
			assert_true(labels[row * f->recipe.width + at] == -100);
	}
}

static void labels_are_masked_and_shifted_within_their_sample_across_pieces(void **state)
{
	struct stk_spec_field labels = {.name = (char *)"labels",
					.from = (char *)"ids",
					.dtype = STK_DTYPE_I64,
					.pad_set = true,
					.pad = -100,
					.pad_float = -100,
					.shift = true,
					.separator_set = true,
					.separator = 7777,
					.ops = {.where = (char *)"mask"}};

	(void)state;
	for (uint64_t round = 0; round < 40; round++) {
		struct fixture f;
		uint64_t id = 0;
		uint32_t from = 0;

		set_up(&f, 12, round + 1);
		fake_field(&f.fake, "ids", STK_DTYPE_U16, true, 1 + (uint32_t)round * 3, 0, 0);
		fake_field(&f.fake, "mask", STK_DTYPE_U8, true, 1, 0, 0);
		fake_align(&f.fake, 1, 0);
		fake_build(&f.fake, 1, 0);
		for (uint64_t i = 0; i < 12; i++)
			for (uint32_t t = 0; t < f.fake.counts[1][i]; t++)
				((uint8_t *)f.fake.dataset.shards[0]
					 ->map)[f.fake.offsets[1][i] + t] &= 1;
		f.spec.separator = round % 2;
		f.spec.group = round % 2 ? STK_GROUP_CONCAT : STK_GROUP_PACK;
		compile(&f, &labels, 1);
		f.recipe.width = 8 + fake_random(&f.fake, 60);
		while (f.recipe.rows < ROWS_MAX)
			cut_row(&f, f.recipe.width, &id, &from);
		assemble(&f, 1 + (uint32_t)round % 3);
		check_labels(&f);
		tear_down(&f);
	}
}

static void a_bad_sample_in_quarantine_keeps_its_place_and_shows_nothing(void **state)
{
	static const uint32_t lengths[] = {3, 2, 4};
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids"},
		{.name = (char *)"labels",
		 .from = (char *)"ids",
		 .dtype = STK_DTYPE_U8,
		 .pad_set = true,
		 .pad = 9,
		 .pad_float = 9,
		 .ops = {.range = STK_RANGE_ERROR}},
		{.name = (char *)"mask", .make = STK_MAKE_MASK, .dtype = STK_DTYPE_I32},
		{.name = (char *)"segments", .make = STK_MAKE_SEGMENT_IDS},
		{.name = (char *)"sums", .make = STK_MAKE_CU_SEQLENS},
		{.name = (char *)"who", .make = STK_MAKE_SAMPLE_IDS},
		{.name = (char *)"key", .make = STK_MAKE_RANDOM_KEY},
	};
	const uint8_t labels[] = {1, 1, 1, 9, 9, 3, 3, 3, 3, 9, 9, 9};
	const int64_t who[] = {0, -1, 2};
	const int32_t beyond = 256;
	struct fixture f;

	(void)state;
	numbered(&f, lengths, 3);
	memcpy((uint8_t *)f.fake.dataset.shards[0]->map + f.fake.offsets[0][1] + 4, &beyond, 4);
	f.spec.on_bad_sample = STK_ON_BAD_QUARANTINE;
	compile(&f, fields, STK_ARRAY_SIZE(fields));
	f.recipe.width = 12;
	add_row(&f, (uint64_t[]){0, 1, 2}, 3);
	assert_int_equal(assemble(&f, 1).real_tokens, 7);
	assert_i32s(&f, 0, (int32_t[]){1, 1, 1, 0, 0, 3, 3, 3, 3, 0, 0, 0}, 12);
	assert_memory_equal(f.slot + f.layout.fields[1].offset, labels, sizeof(labels));
	assert_i32s(&f, 2, (int32_t[]){1, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0}, 12);
	assert_i32s(&f, 3, (int32_t[]){1, 1, 1, 2, 2, 3, 3, 3, 3, 0, 0, 0}, 12);
	assert_i32s(&f, 4, (int32_t[]){0, 3, 5, 9}, 4);
	assert_memory_equal(f.slot + f.layout.fields[5].offset, who, sizeof(who));
	assert_memory_equal(f.slot + f.layout.fields[6].offset + 8, (int64_t[]){0}, 8);
	assert_memory_equal(f.slot + f.layout.ids_off, who, sizeof(who));
	tear_down(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(labels_are_masked_and_shifted_within_their_sample_across_pieces),
		cmocka_unit_test(a_bad_sample_in_quarantine_keeps_its_place_and_shows_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
