/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly of packed rows: every byte against a reference that writes one token at a time, and the
 * values that attention kernels read.
 */
#include "tests/unit/packed_fixture.h"

static void borders_of_packed_samples_are_exact(void **state)
{
	static const uint32_t lengths[] = {3, 2, 3, 1};
	static const uint64_t first[] = {0, 1, 2}, second[] = {3};
	static const int32_t tokens[] = {1, 1, 1, 2, 2, 3, 3, 3, 4, -7, -7, -7, -7, -7, -7, -7};
	static const int32_t positions[] = {0, 1, 2, 0, 1, 0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 7};
	static const int32_t segments[] = {1, 1, 1, 2, 2, 3, 3, 3, 1, 0, 0, 0, 0, 0, 0, 0};
	static const int32_t sums[] = {0, 3, 5, 8, 9}, padded[] = {0, 3, 5, 8, 16}, longest[] = {3};
	static const int32_t labels[] = {1,    1,    -100, 2,    -100, 3,    3,    -100,
					 -100, -100, -100, -100, -100, -100, -100, -100};
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids", .pad_set = true, .pad = -7, .pad_float = -7},
		{.name = (char *)"position_ids", .make = STK_MAKE_POSITION_IDS},
		{.name = (char *)"segment_ids", .make = STK_MAKE_SEGMENT_IDS},
		{.name = (char *)"cu_seqlens", .make = STK_MAKE_CU_SEQLENS},
		{.name = (char *)"cu_seqlens_padded", .make = STK_MAKE_CU_SEQLENS_PADDED},
		{.name = (char *)"max_seqlen", .make = STK_MAKE_MAX_SEQLEN},
		{.name = (char *)"labels",
		 .from = (char *)"ids",
		 .pad_set = true,
		 .pad = -100,
		 .pad_float = -100,
		 .shift = true},
	};
	struct fixture f;
	struct stkd_rows_result sum;

	(void)state;
	numbered(&f, lengths, 4);
	compile(&f, fields, STK_ARRAY_SIZE(fields));
	f.recipe.width = 8;
	add_row(&f, first, 3);
	add_row(&f, second, 1);
	for (uint32_t range = 1; range < 3; range++) {
		sum = assemble(&f, range);
		assert_int_equal(sum.real_tokens, 9);
		assert_int_equal(sum.max_length, 3);
		assert_i32s(&f, 0, tokens, 16);
		assert_i32s(&f, 1, positions, 16);
		assert_i32s(&f, 2, segments, 16);
		assert_i32s(&f, 3, sums, 5);
		assert_i32s(&f, 4, padded, 5);
		assert_i32s(&f, 5, longest, 1);
		assert_i32s(&f, 6, labels, 16);
	}
	/* One dimension, as kernels take it. */
	assert_int_equal(f.layout.fields[3].nlead, 1);
	assert_int_equal(f.layout.fields[3].lead[0], 5);
	tear_down(&f);
}

static void positions_begin_where_they_are_told(void **state)
{
	static const uint32_t lengths[] = {3, 2, 9};
	static const uint64_t row[] = {0, 1};
	static const int32_t restart[] = {2, 3, 4, 2, 3, 4, 5, 6};
	static const int32_t whole_row[] = {2, 3, 4, 5, 6, 7, 8, 9};
	static const int32_t piece[] = {6, 7, 8, 9, 10, 11, 12, 13};
	struct stk_spec_field fields[] = {
		{.name = (char *)"a", .make = STK_MAKE_POSITION_IDS, .start = 2},
		{.name = (char *)"b",
		 .make = STK_MAKE_POSITION_IDS,
		 .start = 2,
		 .positions = STK_POSITIONS_ROW},
		{.name = (char *)"c",
		 .make = STK_MAKE_POSITION_IDS,
		 .start = 2,
		 .positions = STK_POSITIONS_SAMPLE},
	};
	struct fixture f;

	(void)state;
	numbered(&f, lengths, 3);
	compile(&f, fields, 3);
	f.recipe.width = 8;
	add_row(&f, row, 2);
	assemble(&f, 1);
	assert_i32s(&f, 0, restart, 8);
	assert_i32s(&f, 1, whole_row, 8);
	assert_i32s(&f, 2, restart, 8);
	/* The second piece of a sample goes on. */
	f.recipe.rows = f.recipe.rows_real = 0;
	f.recipe.nsegments = 0;
	add_row(&f, (uint64_t[]){2}, 1);
	f.segments[0].from = 4;
	f.segments[0].length = 5;
	assemble(&f, 1);
	assert_i32s(&f, 2, piece, 8);
	tear_down(&f);
}

/* Padding is no segment: what looks like a border does so no more often than there are samples. */
static void padding_looks_like_no_sample(void **state)
{
	static const uint32_t lengths[] = {3, 2, 5};
	struct stk_spec_field fields[] = {
		{.name = (char *)"position_ids", .make = STK_MAKE_POSITION_IDS},
		{.name = (char *)"segment_ids", .make = STK_MAKE_SEGMENT_IDS},
		{.name = (char *)"cu_seqlens", .make = STK_MAKE_CU_SEQLENS},
	};
	struct fixture f;
	unsigned zeros = 0, unnumbered = 0;

	(void)state;
	numbered(&f, lengths, 3);
	compile(&f, fields, 3);
	f.recipe.width = 8;
	add_row(&f, (uint64_t[]){0, 1}, 2);
	add_row(&f, (uint64_t[]){2}, 1);
	assemble(&f, 2);
	for (unsigned i = 0; i < 16; i++) {
		zeros += i32s(&f, 0)[i] == 0;
		unnumbered += i32s(&f, 1)[i] == 0;
	}
	assert_int_equal(zeros, 3);
	assert_int_equal(unnumbered, 6);
	assert_int_equal(f.layout.fields[2].lead[0], 4);
	tear_down(&f);
}

static void separators_stand_behind_their_samples(void **state)
{
	static const uint32_t lengths[] = {2, 3};
	static const int32_t tokens[] = {1, 1, 50, 2, 2, 2, 50, 0};
	static const int32_t labels[] = {1, 50, -1, 2, 2, 50, -1, -1};
	static const int32_t mask[] = {1, 1, 1, 1, 1, 1, 1, 0};
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids", .separator_set = true, .separator = 50},
		{.name = (char *)"labels",
		 .from = (char *)"ids",
		 .pad_set = true,
		 .pad = -1,
		 .pad_float = -1,
		 .separator_set = true,
		 .separator = 50,
		 .shift = true},
		{.name = (char *)"mask", .make = STK_MAKE_MASK, .dtype = STK_DTYPE_I32},
	};
	struct fixture f;

	(void)state;
	numbered(&f, lengths, 2);
	f.spec.group = STK_GROUP_CONCAT;
	f.spec.separator = true;
	compile(&f, fields, 3);
	f.recipe.width = 8;
	add_row(&f, (uint64_t[]){0, 1}, 2);
	f.segments[0].length++;
	f.segments[1].length++;
	assemble(&f, 1);
	assert_i32s(&f, 0, tokens, 8);
	assert_i32s(&f, 1, labels, 8);
	assert_i32s(&f, 2, mask, 8);
	/* A row may end within a sample, and the next one begin with its separator. */
	f.segments[1].length = 1;
	assemble(&f, 1);
	assert_int_equal(i32s(&f, 1)[3], 2);
	f.recipe.nsegments = f.row_first[1] = 1;
	f.segments[0] = (struct stk_segment){.id = 1, .from = 3, .length = 1};
	assemble(&f, 1);
	assert_int_equal(i32s(&f, 0)[0], 50);
	assert_int_equal(i32s(&f, 1)[0], -1);
	tear_down(&f);
}

static void a_batch_without_a_sample_has_a_sum_of_nothing(void **state)
{
	static const uint32_t lengths[] = {2};
	static const int32_t none[] = {0};
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids", .pad_set = true, .pad = 9, .pad_float = 9},
		{.name = (char *)"cu_seqlens", .make = STK_MAKE_CU_SEQLENS},
		{.name = (char *)"padded", .make = STK_MAKE_CU_SEQLENS_PADDED},
		{.name = (char *)"max_seqlen", .make = STK_MAKE_MAX_SEQLEN},
	};
	struct fixture f;

	(void)state;
	numbered(&f, lengths, 1);
	compile(&f, fields, 4);
	f.recipe.width = 4;
	f.recipe.rows = 2;
	assemble(&f, 1);
	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(i32s(&f, 0)[i], 9);
	assert_i32s(&f, 1, none, 1);
	assert_i32s(&f, 2, none, 1);
	assert_i32s(&f, 3, none, 1);
	tear_down(&f);
}

static void without_fields_packed_rows_say_where_samples_are(void **state)
{
	static const char *const names[] = {"ids",          "attention_mask", "segment_ids",
					    "position_ids", "cu_seqlens",     "max_seqlen"};
	static const char *const kinds[] = {"ragged", "ragged", "ragged",
					    "ragged", "sums",   "batch"};
	static const uint32_t lengths[] = {2};
	struct fixture f;
	json_t *schema;

	(void)state;
	numbered(&f, lengths, 1);
	compile(&f, NULL, 0);
	schema = stkd_assembly_schema(f.assembly);
	assert_int_equal(json_array_size(schema), 6);
	for (size_t i = 0; i < 6; i++) {
		json_t *field = json_array_get(schema, i);

		assert_string_equal(json_string_value(json_object_get(field, "name")), names[i]);
		assert_string_equal(json_string_value(json_object_get(field, "kind")), kinds[i]);
	}
	json_decref(schema);
	tear_down(&f);
}

static void assert_refused(struct fixture *f, struct stk_spec_field field, const char *text)
{
	struct stk_err err = {.text = ""};

	f->spec.fields = &field;
	f->spec.nfields = 1;
	assert_int_equal(stkd_assembly_new(&f->spec, &f->fake.dataset, 0, &f->assembly, &err),
			 -EINVAL);
	if (!strstr(err.text, text))
		fail_msg("\"%s\" lacks \"%s\"", err.text, text);
}

static void what_packed_rows_cannot_hold_is_refused(void **state)
{
	struct stkd_layout layout;
	struct fixture f;
	uint32_t ids;

	(void)state;
	set_up(&f, 9, 5);
	ids = fake_field(&f.fake, "ids", STK_DTYPE_I32, true, 9, 0, 0);
	fake_field(&f.fake, "other", STK_DTYPE_I32, true, 9, 0, 0);
	fake_field(&f.fake, "class", STK_DTYPE_I32, false, 0, 0, 0);
	fake_build(&f.fake, 1, ids);
	assert_refused(&f, (struct stk_spec_field){.name = (char *)"other"},
		       "the lengths of \"other\" are not those of the length field \"ids\"");
	assert_refused(&f,
		       (struct stk_spec_field){
			       .name = (char *)"m", .make = STK_MAKE_MASK, .from = (char *)"other"},
		       "the lengths of \"other\"");
	assert_refused(&f, (struct stk_spec_field){.name = (char *)"ids", .side = STK_SIDE_LEFT},
		       "side: left");
	assert_refused(&f, (struct stk_spec_field){.name = (char *)"class", .shift = true},
		       "one value for each sample");
	f.spec.group = STK_GROUP_BUCKET;
	assert_refused(&f,
		       (struct stk_spec_field){.name = (char *)"s", .make = STK_MAKE_SEGMENT_IDS},
		       "is of packed rows");
	/* Sums of lengths are 32 bits wide. */
	f.spec.group = STK_GROUP_PACK;
	compile(&f, (struct stk_spec_field[]){{.name = (char *)"ids"}}, 1);
	assert_int_equal(stkd_assembly_layout_packed(f.assembly, 1 << 16, 1 << 15, 4, &layout),
			 -EOVERFLOW);
	tear_down(&f);
}

/* The reference. */

static uint8_t *reserve(const struct fixture *f, uint32_t field, uint8_t *slot)
{
	return slot + f->layout.fields[field].offset;
}

/* Stored value of an element: zero beyond the sample (padding). */
static uint16_t stored_u16(const struct fixture *f, uint64_t sample, uint64_t element)
{
	const struct stkd_dataset *d = &f->fake.dataset;
	uint16_t value = 0;
	uint64_t row;
	size_t s;

	if (element >= d->lengths[sample])
		return 0;
	stkd_dataset_locate(d, sample, &s, &row);
	memcpy(&value, d->shards[s]->map + f->fake.offsets[0][sample] + element * sizeof(value),
	       sizeof(value));
	return value;
}

static uint8_t stored_u8(const struct fixture *f, uint64_t sample)
{
	uint64_t row;
	size_t s;

	stkd_dataset_locate(&f->fake.dataset, sample, &s, &row);
	return f->fake.dataset.shards[s]->map[f->fake.offsets[1][sample]];
}

static void check_tokens(const struct fixture *f, uint32_t row, uint32_t s, uint32_t at,
			 uint32_t end)
{
	const struct stk_segment *segment = s == UINT32_MAX ? NULL : &f->segments[s];
	uint64_t base = (uint64_t)row * f->recipe.width;

	for (uint32_t t = at; t < end; t++) {
		bool real = segment && t - at < segment->length;
		uint32_t from = segment ? segment->from : 0;
		uint32_t want = real ? stored_u16(f, segment->id, from + (t - at)) : 0;

		assert_int_equal((uint32_t)i32s(f, 0)[base + t], want);
		assert_int_equal(reserve(f, 1, f->slot)[base + t], real);
		assert_int_equal(i32s(f, 2)[base + t], real ? s - f->row_first[row] + 1 : 0);
		assert_int_equal(i32s(f, 3)[base + t], t - at);
	}
}

static void check_batch(const struct fixture *f)
{
	uint64_t sum = 0;

	for (uint32_t row = 0; row < f->recipe.rows; row++) {
		uint32_t first = f->row_first[STK_MIN(row, f->recipe.rows_real)];
		uint32_t last = f->row_first[STK_MIN(row + 1, f->recipe.rows_real)], at = 0;

		if (first == last)
			check_tokens(f, row, UINT32_MAX, 0, f->recipe.width);
		for (uint32_t s = first; s < last; s++) {
			const struct stk_segment *segment = &f->segments[s];
			uint32_t end = f->recipe.width;

			if (s + 1 < last)
				end = (uint32_t)stk_round_up(at + segment->length, f->spec.align);
			check_tokens(f, row, s, at, end);
			assert_int_equal(i32s(f, 4)[s], sum);
			assert_int_equal(i32s(f, 5)[s], row * f->recipe.width + at);
			assert_int_equal(reserve(f, 6, f->slot)[s], stored_u8(f, segment->id));
			assert_memory_equal(f->slot + f->layout.ids_off + 8 * s, &segment->id, 8);
			assert_memory_equal(f->slot + f->layout.lengths_off + 4 * s,
					    &segment->length, 4);
			assert_memory_equal(f->slot + f->layout.from_off + 4 * s, &segment->from,
					    4);
			sum += segment->length;
			at = end;
		}
		assert_memory_equal(f->slot + f->layout.row_first_off + 4 * row, &first, 4);
	}
	assert_int_equal(i32s(f, 4)[f->recipe.nsegments], sum);
}

/* Bytes between fields are zero, and none is left as it was. */
static void check_gaps(const struct fixture *f, uint32_t nfields)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < nfields; i++) {
		for (; end < f->layout.fields[i].offset; end++)
			assert_int_equal(f->slot[end], 0);
		end += f->layout.fields[i].size;
	}
	assert_int_equal(end, f->layout.extent_size);
}

static void random_recipe(struct fixture *f)
{
	struct stkd_recipe *r = &f->recipe;

	f->spec.align = 1 + fake_random(&f->fake, 3) * fake_random(&f->fake, 2);
	r->width = f->spec.align * (8 + fake_random(&f->fake, 60));
	r->rows_real = fake_random(&f->fake, ROWS_MAX);
	r->rows = r->rows_real + fake_random(&f->fake, 3) / 2;
	r->rows += !r->rows;
	r->nsegments = 0;
	for (uint32_t row = 0; row < r->rows_real; row++) {
		uint32_t at = 0;

		while (at < r->width) {
			uint64_t id = fake_random(&f->fake, (uint32_t)f->fake.dataset.count);
			uint32_t length = f->fake.dataset.lengths[id], from;

			from = fake_random(&f->fake, 2) ? fake_random(&f->fake, length) : 0;
			length = STK_MIN(length - from, r->width - at);
			if (!length)
				break;
			f->segments[r->nsegments++] =
				(struct stk_segment){.id = id, .from = from, .length = length};
			at = (uint32_t)stk_round_up(at + length, f->spec.align);
		}
		f->row_first[row + 1] = r->nsegments;
	}
}

static void random_batches_are_byte_for_byte_right(void **state)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids", .dtype = STK_DTYPE_I32},
		{.name = (char *)"mask", .make = STK_MAKE_MASK},
		{.name = (char *)"segment_ids", .make = STK_MAKE_SEGMENT_IDS},
		{.name = (char *)"position_ids", .make = STK_MAKE_POSITION_IDS},
		{.name = (char *)"cu_seqlens", .make = STK_MAKE_CU_SEQLENS},
		{.name = (char *)"padded", .make = STK_MAKE_CU_SEQLENS_PADDED},
		{.name = (char *)"class"},
	};

	(void)state;
	for (uint64_t seed = 1; seed < 150; seed++) {
		struct fixture f;
		uint32_t ids;

		set_up(&f, 1 + seed % 40, seed);
		ids = fake_field(&f.fake, "ids", STK_DTYPE_U16, true, 20, 0, 0);
		fake_field(&f.fake, "class", STK_DTYPE_U8, false, 0, 0, 0);
		fake_build(&f.fake, 1 + seed % 3, ids);
		random_recipe(&f);
		compile(&f, fields, STK_ARRAY_SIZE(fields));
		assemble(&f, 1 + fake_random(&f.fake, ROWS_MAX));
		check_batch(&f);
		check_gaps(&f, STK_ARRAY_SIZE(fields));
		tear_down(&f);
	}
}

/* More segments in a row than extents are looked up at once. */
static void a_row_of_very_many_samples_is_whole(void **state)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"ids"},
		{.name = (char *)"class", .make = STK_MAKE_SAMPLE_IDS},
	};
	struct fixture f;

	(void)state;
	set_up(&f, 1000, 8);
	fake_field(&f.fake, "ids", STK_DTYPE_I32, true, 0, 0, 0);
	for (uint32_t i = 0; i < 1000; i++)
		f.fake.counts[0][i] = 1;
	fake_build(&f.fake, 2, 0);
	compile(&f, fields, 2);
	f.recipe.width = 1000;
	for (uint64_t i = 0; i < 1000; i++)
		f.segments[i] = (struct stk_segment){.id = 999 - i, .length = 1};
	f.recipe.nsegments = f.row_first[1] = 1000;
	f.recipe.rows = f.recipe.rows_real = 1;
	assemble(&f, 1);
	for (uint64_t i = 0; i < 1000; i++) {
		uint64_t row;
		size_t s;

		stkd_dataset_locate(&f.fake.dataset, 999 - i, &s, &row);
		assert_memory_equal(&i32s(&f, 0)[i],
				    f.fake.dataset.shards[s]->map + f.fake.offsets[0][999 - i], 4);
	}
	tear_down(&f);
}

static void a_sample_that_changed_is_an_error(void **state)
{
	static const uint32_t lengths[] = {3, 4};
	struct stk_spec_field fields[] = {{.name = (char *)"ids"}};
	struct stkd_rows_result result;
	struct stk_err err = {.text = ""};
	struct fixture f;

	(void)state;
	numbered(&f, lengths, 2);
	compile(&f, fields, 1);
	f.recipe.width = 8;
	add_row(&f, (uint64_t[]){0, 1}, 2);
	assemble(&f, 1);
	f.fake.lie_sample = 1;
	f.fake.lie_count = 2;
	assert_int_equal(
		stkd_assembly_rows(f.assembly, &f.layout, &f.recipe, f.slot, 0, 1, &result, &err),
		-EBADMSG);
	assert_non_null(strstr(err.text, "sample 1"));
	tear_down(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(borders_of_packed_samples_are_exact),
		cmocka_unit_test(positions_begin_where_they_are_told),
		cmocka_unit_test(padding_looks_like_no_sample),
		cmocka_unit_test(separators_stand_behind_their_samples),
		cmocka_unit_test(a_batch_without_a_sample_has_a_sum_of_nothing),
		cmocka_unit_test(without_fields_packed_rows_say_where_samples_are),
		cmocka_unit_test(what_packed_rows_cannot_hold_is_refused),
		cmocka_unit_test(random_batches_are_byte_for_byte_right),
		cmocka_unit_test(a_row_of_very_many_samples_is_whole),
		cmocka_unit_test(a_sample_that_changed_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
