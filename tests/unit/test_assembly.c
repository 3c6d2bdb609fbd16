/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of padded rows: every byte, against a reference that goes byte by byte. One thread. */
#include "tests/unit/assembly_fixture.h"

#define STALE 0xAA /* what a slot holds before */

/*
 * The reference: one byte at a time, from the words of the design rather than from the code.
 */
struct reference {
	const struct fake_dataset *fake;
	const struct stk_spec_field *fields;
	size_t nfields;
	const struct stkd_recipe *recipe;
	uint32_t max_length;
	uint8_t *slot;
	uint64_t end; /* bytes used so far */
};

static uint64_t read_value(const uint8_t *bytes, enum stk_dtype dtype)
{
	size_t size = stk_dtype_size(dtype);
	uint64_t bits = 0;

	for (size_t i = 0; i < size; i++)
		bits |= (uint64_t)bytes[i] << (8 * i);
	if (stk_dtype_min(dtype) < 0 && size < 8 && bits >> (8 * size - 1))
		bits |= UINT64_MAX << (8 * size);
	return bits;
}

static void put_value(struct reference *ref, enum stk_dtype dtype, uint64_t bits)
{
	for (size_t i = 0; i < stk_dtype_size(dtype); i++)
		ref->slot[ref->end++] = (uint8_t)(bits >> (8 * i));
}

static void align(struct reference *ref, uint64_t alignment, bool zero)
{
	while (ref->end % alignment) {
		if (zero)
			ref->slot[ref->end] = 0;
		ref->end++;
	}
}

static uint32_t shorter(uint64_t a, uint64_t b)
{
	return (uint32_t)(a < b ? a : b);
}

static uint32_t stored_index(const struct reference *ref, const struct stk_spec_field *field)
{
	const char *name = field->from ? field->from : field->name;

	for (uint32_t f = 0; f < ref->fake->dataset.nfields; f++)
		if (!strcmp(ref->fake->fields[f].name, name))
			return f;
	return ref->fake->dataset.length_field;
}

/* Width of a ragged field in this batch. */
static uint32_t width_of(const struct reference *ref, uint32_t stored)
{
	return ref->fake->aligned[stored]    ? ref->recipe->width
	       : ref->fake->aligned2[stored] ? ref->recipe->width2
					     : (uint32_t)((ref->fake->longest[stored] + 7) / 8 * 8);
}

/* Elements that a row shows of a ragged field. */
static uint32_t shown(const struct reference *ref, uint32_t stored, uint32_t row)
{
	uint32_t n;

	if (row >= ref->recipe->rows_real)
		return 0;
	n = shorter(ref->fake->counts[stored][ref->recipe->ids[row]], width_of(ref, stored));
	return ref->fake->aligned[stored] ? shorter(n, ref->max_length) : n;
}

static const uint8_t *source(const struct reference *ref, uint32_t stored, uint32_t row)
{
	const struct stkd_dataset *dataset = &ref->fake->dataset;
	uint64_t sample = ref->recipe->ids[row];
	size_t s = 0;

	while (sample >= dataset->first[s + 1])
		s++;
	return dataset->shards[s]->map + ref->fake->offsets[stored][sample];
}

static void copy_reference(struct reference *ref, const struct stk_spec_field *field)
{
	uint32_t f = stored_index(ref, field);
	const struct stkd_field *stored = &ref->fake->fields[f];
	enum stk_dtype to = field->dtype ? field->dtype : stored->dtype;
	uint32_t width = stored->ragged ? width_of(ref, f) : 1;

	for (uint32_t row = 0; row < ref->recipe->rows; row++) {
		uint32_t n = row < ref->recipe->rows_real ? 1 : 0;

		if (stored->ragged)
			n = shown(ref, f, row);
		for (uint32_t i = 0; i < width; i++) {
			uint32_t skip = field->side == STK_SIDE_LEFT ? width - n : 0;

			for (uint64_t v = 0; v < stored->inner_count; v++) {
				uint64_t at = ((i - skip) * stored->inner_count + v) *
					      stk_dtype_size(stored->dtype);
				bool real = i >= skip && i - skip < n;

				put_value(ref, to,
					  real ? read_value(source(ref, f, row) + at, stored->dtype)
					       : (uint64_t)field->pad);
			}
		}
	}
}

static void made_reference(struct reference *ref, const struct stk_spec_field *field)
{
	uint32_t f = stored_index(ref, field), width = width_of(ref, f);

	for (uint32_t row = 0; row < ref->recipe->rows; row++) {
		uint32_t n = shown(ref, f, row);
		uint32_t skip = field->side == STK_SIDE_LEFT ? width - n : 0;

		if (field->make == STK_MAKE_LENGTHS)
			put_value(ref, field->dtype ? field->dtype : STK_DTYPE_I32, n);
		else if (field->make == STK_MAKE_SAMPLE_IDS)
			put_value(ref, STK_DTYPE_I64,
				  row < ref->recipe->rows_real ? ref->recipe->ids[row]
							       : (uint64_t)-1);
		else
			for (uint32_t i = 0; i < width; i++)
				put_value(ref, field->dtype ? field->dtype : STK_DTYPE_BOOL,
					  i >= skip && i - skip < n);
	}
}

static void build_reference(struct reference *ref)
{
	uint32_t length_field = ref->fake->dataset.length_field;

	for (size_t i = 0; i < ref->nfields; i++) {
		align(ref, 256, true);
		if (ref->fields[i].make == STK_MAKE_COPY)
			copy_reference(ref, &ref->fields[i]);
		else
			made_reference(ref, &ref->fields[i]);
	}
	align(ref, 256, false);
	for (uint32_t row = 0; row < ref->recipe->rows; row++)
		put_value(ref, STK_DTYPE_U64,
			  row < ref->recipe->rows_real ? ref->recipe->ids[row] : UINT64_MAX);
	for (uint32_t row = 0; row < ref->recipe->rows; row++)
		put_value(ref, STK_DTYPE_U32, shown(ref, length_field, row));
}

/* Assembles in ranges of `range` rows and compares every byte of the slot, and some behind it. */
static void check_batch(struct fake_dataset *fake, const struct stkd_assembly *assembly,
			struct stk_spec_field *fields, size_t nfields,
			const struct stkd_recipe *recipe, uint32_t max_length, uint32_t range)
{
	enum { BEHIND = 64 };
	struct stkd_rows_result sum = {.real_tokens = 0}, one;
	struct stkd_layout layout;
	struct reference ref = {.fake = fake,
				.fields = fields,
				.nfields = nfields,
				.recipe = recipe,
				.max_length = max_length};
	uint64_t tokens = 0, longest = 0;
	struct stk_err err = {.text = ""};
	uint8_t *slot;

	assert_int_equal(stkd_assembly_layout(assembly, recipe->rows, recipe->width, recipe->width2,
					      &layout),
			 0);
	slot = aligned_alloc(256, (layout.size + BEHIND + 255) / 256 * 256);
	ref.slot = malloc(layout.size + BEHIND);
	memset(slot, STALE, layout.size + BEHIND);
	memset(ref.slot, STALE, layout.size + BEHIND);
	for (uint32_t first = 0; first < recipe->rows; first += range) {
		uint32_t n = shorter(range, recipe->rows - first);

		if (stkd_assembly_rows(assembly, &layout, recipe, slot, first, n, &one, &err) < 0)
			fail_msg("%s", err.text);
		sum.real_tokens += one.real_tokens;
		sum.max_length = STK_MAX(sum.max_length, one.max_length);
	}
	build_reference(&ref);
	assert_int_equal(ref.end, layout.size);
	assert_memory_equal(slot, ref.slot, layout.size + BEHIND);
	for (uint32_t row = 0; row < recipe->rows_real; row++) {
		uint32_t n = shown(&ref, fake->dataset.length_field, row);

		tokens += n;
		longest = STK_MAX(longest, n);
	}
	assert_int_equal(sum.real_tokens, tokens);
	assert_int_equal(sum.max_length, longest);
	free(ref.slot);
	free(slot);
}

static const enum stk_dtype integers[] = {STK_DTYPE_U8,  STK_DTYPE_I8,  STK_DTYPE_U16,
					  STK_DTYPE_I16, STK_DTYPE_U32, STK_DTYPE_I32,
					  STK_DTYPE_U64, STK_DTYPE_I64};

/* A type that holds every value of an integer type. */
static enum stk_dtype wider(struct fake_dataset *fake, enum stk_dtype from)
{
	for (;;) {
		enum stk_dtype to = integers[fake_random(fake, STK_ARRAY_SIZE(integers))];

		if (to == from || (stk_dtype_size(to) > stk_dtype_size(from) &&
				   stk_dtype_min(to) <= stk_dtype_min(from)))
			return to;
	}
}

/* A random copy of stored field f; pads that every type holds. */
static struct stk_spec_field random_copy(struct fake_dataset *fake, uint32_t f)
{
	const struct stkd_field *stored = &fake->fields[f];
	struct stk_spec_field field = {.name = stored->name};

	if (stk_dtype_class(stored->dtype) == STK_DTYPE_IS_INT && fake_random(fake, 3)) {
		field.dtype = wider(fake, stored->dtype);
		field.pad_set = true;
		field.pad = stk_dtype_min(field.dtype) < 0 ? -100 : 100;
		field.pad_float = (double)field.pad;
	}
	field.side = fake_random(fake, 2) ? STK_SIDE_LEFT : STK_SIDE_RIGHT;
	return field;
}

static struct stk_spec_field random_made(struct fake_dataset *fake, uint32_t nstored)
{
	static const enum stk_dtype masks[] = {STK_DTYPE_NONE, STK_DTYPE_BOOL, STK_DTYPE_U8,
					       STK_DTYPE_I32, STK_DTYPE_I64};
	struct stk_spec_field field = {.name = (char *)"made"};
	uint32_t f = fake_random(fake, nstored);

	field.make = 1 + fake_random(fake, 3);
	if (field.make != STK_MAKE_SAMPLE_IDS && fake->fields[f].ragged)
		field.from = fake->fields[f].name;
	if (field.make == STK_MAKE_MASK)
		field.dtype = masks[fake_random(fake, STK_ARRAY_SIZE(masks))];
	if (field.make == STK_MAKE_LENGTHS && fake_random(fake, 2))
		field.dtype = STK_DTYPE_I64;
	field.side = fake_random(fake, 2) ? STK_SIDE_LEFT : STK_SIDE_RIGHT;
	return field;
}

/* The first such field has the second lengths, the others have them from it. */
static void second_lengths(struct fake_dataset *fake, uint32_t f, uint32_t *second)
{
	if (*second)
		fake_align(fake, f, *second);
	else
		*second = f;
}

/* Random set, random fields, random batches: some rows cut, some empty, some masked. */
static void random_batches(uint64_t seed)
{
	static const enum stk_dtype dtypes[] = {
		STK_DTYPE_BOOL, STK_DTYPE_U8,  STK_DTYPE_I8,      STK_DTYPE_U16, STK_DTYPE_I16,
		STK_DTYPE_U32,  STK_DTYPE_I32, STK_DTYPE_U64,     STK_DTYPE_I64, STK_DTYPE_F16,
		STK_DTYPE_BF16, STK_DTYPE_F32, STK_DTYPE_F8_E4M3, STK_DTYPE_C64};
	struct stk_spec_field fields[12];
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	uint64_t ids[150];
	uint32_t nstored, max_length, second = 0;
	size_t nfields;

	fake_init(&fake, 60, seed);
	nstored = 1 + fake_random(&fake, 5);
	for (uint32_t f = 0; f < nstored; f++) {
		char name[] = {'f', (char)('a' + f), '\0'};

		fake_field(&fake, name, dtypes[fake_random(&fake, STK_ARRAY_SIZE(dtypes))],
			   f == 0 || fake_random(&fake, 2), 40, fake_random(&fake, 3),
			   fake_random(&fake, 3));
		if (fake.fields[f].ragged && fake_random(&fake, 2))
			fake_align(&fake, f, 0);
		else if (fake.fields[f].ragged && fake_random(&fake, 2))
			second_lengths(&fake, f, &second);
	}
	if (second)
		fake_second(&fake, second);
	fake_build(&fake, 1 + fake_random(&fake, 4), 0);
	nfields = 1 + fake_random(&fake, STK_ARRAY_SIZE(fields));
	for (size_t i = 0; i < nfields; i++)
		fields[i] = fake_random(&fake, 3) ? random_copy(&fake, fake_random(&fake, nstored))
						  : random_made(&fake, nstored);
	max_length = 1 + fake_random(&fake, 50);
	assembly = compile(&fake, fields, nfields, max_length);
	for (int batch = 0; batch < 4; batch++) {
		struct stkd_recipe recipe = {.ids = ids,
					     .width = fake_random(&fake, 48),
					     .width2 = fake_random(&fake, 48)};

		recipe.rows = 1 + fake_random(&fake, STK_ARRAY_SIZE(ids));
		recipe.rows_real =
			fake_random(&fake, 3) ? recipe.rows : fake_random(&fake, recipe.rows + 1);
		for (uint32_t i = 0; i < recipe.rows_real; i++)
			ids[i] = fake_random(&fake, 60);
		check_batch(&fake, assembly, fields, nfields, &recipe, max_length,
			    1 + fake_random(&fake, recipe.rows + 10));
	}
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void every_byte_of_a_batch_is_as_the_reference_says(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 150; seed++)
		random_batches(seed);
}

/* Ten samples, four rows: the third batch has two rows, or two masked ones. */
static void a_last_batch_shows_nothing_of_the_one_before(void **state)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids", .pad = -7, .pad_set = true, .pad_float = -7}};
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	uint64_t ids[] = {8, 9, 0, 0};
	struct stkd_recipe recipe = {.rows = 2, .rows_real = 2, .width = 16, .ids = ids};

	(void)state;
	fake_init(&fake, 10, 5);
	fake_build(&fake, 1, fake_field(&fake, "ids", STK_DTYPE_I32, true, 12, 0, 0));
	assembly = compile(&fake, fields, 1, 16);
	check_batch(&fake, assembly, fields, 1, &recipe, 16, 4);
	recipe.rows = 4;
	check_batch(&fake, assembly, fields, 1, &recipe, 16, 4);
	recipe.rows_real = 0;
	check_batch(&fake, assembly, fields, 1, &recipe, 16, 4);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

/* Two floats that lie at an odd address in the file. */
static void unaligned_floats_are_read_exactly_and_stand_aligned(void **state)
{
	static const float want[] = {1.0f, -2.0f};
	struct stk_spec_field fields[] = {{.name = (char *)"a"}, {.name = (char *)"b"}};
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_rows_result result;
	uint64_t ids[] = {0};
	struct stkd_recipe recipe = {.rows = 1, .rows_real = 1, .width = 8, .ids = ids};
	_Alignas(256) uint8_t slot[2048];

	(void)state;
	fake_init(&fake, 1, 5);
	fake_field(&fake, "a", STK_DTYPE_U8, true, 3, 0, 0);
	fake_field(&fake, "b", STK_DTYPE_F32, false, 0, 2, 0);
	fake_build(&fake, 1, 0);
	memcpy((uint8_t *)fake.dataset.shards[0]->map + fake.offsets[1][0], want, sizeof(want));
	assert_int_equal((uintptr_t)(fake.dataset.shards[0]->map + fake.offsets[1][0]) % 2, 1);
	assembly = compile(&fake, fields, 2, 8);
	assert_int_equal(stkd_assembly_layout(assembly, 1, 8, 0, &layout), 0);
	assert_int_equal(layout.fields[1].offset % 256, 0);
	assert_int_equal(stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, 1, &result, NULL),
			 0);
	assert_memory_equal(slot + layout.fields[1].offset, want, sizeof(want));
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

/* Audio frames and the tokens said in them: each is as wide as its own lengths need. */
static void fields_of_the_second_length_are_as_wide_as_the_second_width(void **state)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"frames"},
		{.name = (char *)"text", .dtype = STK_DTYPE_I64, .side = STK_SIDE_LEFT},
		{.name = (char *)"style"},
		{.name = (char *)"mask", .make = STK_MAKE_MASK, .from = (char *)"text"},
		{.name = (char *)"n", .make = STK_MAKE_LENGTHS, .from = (char *)"style"},
		{.name = (char *)"notes"}};
	static const uint32_t widths[] = {24, 8, 8, 8, 0, 40};
	uint64_t ids[] = {5, 0, 9, 3, 7};
	struct stkd_recipe recipe = {
		.rows = 6, .rows_real = 5, .width = 24, .width2 = 8, .ids = ids};
	struct stkd_rows_result result;
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stk_err err;
	uint8_t *slot;

	(void)state;
	fake_init(&fake, 10, 21);
	fake_field(&fake, "frames", STK_DTYPE_F32, true, 30, 3, 0);
	fake_field(&fake, "text", STK_DTYPE_U16, true, 20, 0, 0);
	fake_field(&fake, "style", STK_DTYPE_U8, true, 20, 0, 0);
	fake_field(&fake, "notes", STK_DTYPE_U8, true, 38, 0, 0);
	fake.counts[1][9] = 12; /* longer than the width: cut */
	fake.counts[3][2] = 38;
	fake_align(&fake, 2, 1);
	fake_second(&fake, 1);
	fake_build(&fake, 2, 0);
	assembly = compile(&fake, fields, STK_ARRAY_SIZE(fields), 30);
	assert_int_equal(stkd_assembly_layout(assembly, 6, 24, 8, &layout), 0);
	for (size_t i = 0; i < STK_ARRAY_SIZE(fields); i++)
		assert_int_equal(layout.fields[i].lead[1], widths[i]);
	check_batch(&fake, assembly, fields, STK_ARRAY_SIZE(fields), &recipe, 30, 4);
	slot = aligned_alloc(256, (layout.size + 255) / 256 * 256);
	fake.lie_sample = 9;
	fake.lie_field = 2;
	fake.lie_count = 11;
	assert_int_equal(stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, 6, &result, &err),
			 -EBADMSG);
	assert_non_null(strstr(err.text, "field \"style\" has 11 elements, 12 when"));
	free(slot);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void without_fields_all_stored_ones_and_a_mask_are_made(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly = NULL;
	struct stk_spec spec = {.multiple_of = 1};
	struct stk_spec_field want[] = {{.name = (char *)"ids"},
					{.name = (char *)"image"},
					{.name = (char *)"attention_mask", .make = STK_MAKE_MASK}};
	uint64_t ids[] = {3, 1, 4};
	struct stkd_recipe recipe = {.rows = 3, .rows_real = 3, .width = 9, .ids = ids};

	(void)state;
	fake_init(&fake, 5, 5);
	fake_field(&fake, "ids", STK_DTYPE_U16, true, 9, 0, 0);
	fake_field(&fake, "image", STK_DTYPE_U8, false, 0, 2, 2);
	fake_build(&fake, 1, 0);
	assert_int_equal(stkd_assembly_new(&spec, &fake.dataset, 9, &assembly, NULL), 0);
	check_batch(&fake, assembly, want, 3, &recipe, 9, 3);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void a_stored_mask_is_not_made_again(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly = NULL;
	struct stk_spec spec = {.multiple_of = 1};

	(void)state;
	fake_init(&fake, 5, 5);
	fake_field(&fake, "attention_mask", STK_DTYPE_U8, true, 9, 0, 0);
	fake_build(&fake, 1, 0);
	assert_int_equal(stkd_assembly_new(&spec, &fake.dataset, 9, &assembly, NULL), 0);
	assert_int_equal(stkd_assembly_nfields(assembly), 1);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void a_float_pad_fills_masked_rows_and_row_ends(void **state)
{
	struct stk_spec_field fields[] = {{.name = (char *)"x", .pad_set = true, .pad_float = -0.5},
					  {.name = (char *)"y", .pad_set = true, .pad_float = 1.5}};
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_rows_result result;
	uint64_t ids[] = {0};
	struct stkd_recipe recipe = {.rows = 2, .rows_real = 1, .width = 8, .ids = ids};
	_Alignas(256) uint8_t slot[2048];
	float x[16];
	uint16_t y[2];

	(void)state;
	fake_init(&fake, 1, 5);
	fake_field(&fake, "x", STK_DTYPE_F32, true, 3, 0, 0);
	fake_field(&fake, "y", STK_DTYPE_BF16, false, 0, 0, 0);
	fake_build(&fake, 1, 0);
	assembly = compile(&fake, fields, 2, 8);
	assert_int_equal(stkd_assembly_layout(assembly, 2, 8, 0, &layout), 0);
	assert_int_equal(stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, 2, &result, NULL),
			 0);
	memcpy(x, slot, sizeof(x));
	memcpy(y, slot + layout.fields[1].offset, sizeof(y));
	for (unsigned i = fake.counts[0][0]; i < 16; i++)
		assert_true(x[i] == -0.5f);
	assert_int_equal(y[1], 0x3fc0);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_byte_of_a_batch_is_as_the_reference_says),
		cmocka_unit_test(a_last_batch_shows_nothing_of_the_one_before),
		cmocka_unit_test(unaligned_floats_are_read_exactly_and_stand_aligned),
		cmocka_unit_test(fields_of_the_second_length_are_as_wide_as_the_second_width),
		cmocka_unit_test(without_fields_all_stored_ones_and_a_mask_are_made),
		cmocka_unit_test(a_stored_mask_is_not_made_again),
		cmocka_unit_test(a_float_pad_fills_masked_rows_and_row_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
