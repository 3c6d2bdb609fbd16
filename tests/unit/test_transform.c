/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/assemble/assembly.h"
#include "daemon/assemble/image.h"
#include "tests/unit/fake_dataset.h"

#define SAMPLES 40
#define LONGEST 30
#define HEIGHT  9
#define WIDTH   37
#define SEED    123

static struct fake_dataset fake;
enum { IDS, LABEL_MASK, FEATS, IMAGE, PLANES, POINT };

static int set_up(void **state)
{
	(void)state;
	fake_init(&fake, SAMPLES, 5);
	fake_field(&fake, "ids", STK_DTYPE_U16, true, LONGEST, 0, 0);
	fake_field(&fake, "label_mask", STK_DTYPE_BOOL, true, LONGEST, 0, 0);
	fake_field(&fake, "feats", STK_DTYPE_F32, true, LONGEST, 5, 0);
	fake_field(&fake, "image", STK_DTYPE_U8, false, 0, HEIGHT, WIDTH);
	fake_field(&fake, "planes", STK_DTYPE_U8, false, 0, 3, 50);
	fake_field(&fake, "point", STK_DTYPE_I64, false, 0, 0, 0);
	fake.fields[IMAGE].inner[2] = 3;
	fake.fields[IMAGE].ndims = 3;
	fake.fields[IMAGE].inner_count *= 3;
	fake_align(&fake, LABEL_MASK, IDS);
	fake_align(&fake, FEATS, IDS);
	fake_build(&fake, 2, IDS);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	fake_deinit(&fake);
	return 0;
}

struct batch {
	struct stkd_layout layout;
	struct stkd_recipe recipe;
	uint64_t ids[8];
	uint8_t *slot;
	int r;
	struct stk_err err;
};

/* One field over some samples and a masked row, in two ranges. */
static void assemble(struct stk_spec_field *field, uint64_t epoch, struct batch *b)
{
	struct stk_spec spec = {.multiple_of = 8, .seed = SEED, .fields = field, .nfields = 1};
	struct stkd_assembly *assembly = NULL;
	struct stkd_rows_result result;

	b->recipe = (struct stkd_recipe){
		.epoch = epoch, .rows = 7, .rows_real = 6, .width = 32, .ids = b->ids};
	for (uint32_t i = 0; i < 6; i++)
		b->ids[i] = (i * 17 + 3) % SAMPLES;
	if (stkd_assembly_new(&spec, &fake.dataset, LONGEST, &assembly, &b->err) < 0)
		fail_msg("%s", b->err.text);
	assert_int_equal(stkd_assembly_layout(assembly, 7, 32, 0, &b->layout), 0);
	b->slot = aligned_alloc(256, stk_align_up(b->layout.size, 256));
	memset(b->slot, 0xAA, b->layout.size);
	b->r = stkd_assembly_rows(assembly, &b->layout, &b->recipe, b->slot, 0, 4, &result,
				  &b->err);
	if (b->r == 0)
		b->r = stkd_assembly_rows(assembly, &b->layout, &b->recipe, b->slot, 4, 3, &result,
					  &b->err);
	stkd_assembly_free(assembly);
}

static const char *refusal(struct stk_spec_field *field)
{
	static struct stk_err err;
	struct stk_spec spec = {.multiple_of = 8, .fields = field, .nfields = 1};
	struct stkd_assembly *assembly = NULL;

	assert_int_equal(stkd_assembly_new(&spec, &fake.dataset, LONGEST, &assembly, &err),
			 -EINVAL);
	return err.text;
}

static const uint8_t *stored(uint32_t field, uint64_t sample)
{
	const struct stkd_dataset *d = &fake.dataset;

	return d->shards[sample >= d->first[1]]->map + fake.offsets[field][sample];
}

static uint16_t id_of(uint64_t sample, uint32_t i)
{
	uint16_t id;

	memcpy(&id, stored(IDS, sample) + 2 * i, 2);
	return id;
}

static void labels_are_the_next_token_where_the_mask_says_so(void **state)
{
	(void)state;
	for (int left = 0; left < 2; left++) {
		struct stk_spec_field field = {.name = (char *)"labels",
					       .from = (char *)"ids",
					       .dtype = STK_DTYPE_I64,
					       .pad_set = true,
					       .pad = -100,
					       .pad_float = -100,
					       .shift = true,
					       .side = left ? STK_SIDE_LEFT : STK_SIDE_RIGHT,
					       .ops = {.where = (char *)"label_mask"}};
		struct batch b;

		assemble(&field, 0, &b);
		assert_int_equal(b.r, 0);
		for (uint32_t row = 0; row < 7; row++) {
			uint32_t n = row < 6 ? fake.counts[IDS][b.ids[row]] : 0;
			uint32_t before = left ? 32 - n : 0;

			for (uint32_t i = 0; i < 32; i++) {
				int64_t got, expected = -100;
				uint32_t token = i - before + 1;

				if (i >= before && token < n &&
				    stored(LABEL_MASK, b.ids[row])[token])
					expected = id_of(b.ids[row], token);
				memcpy(&got, b.slot + (row * 32 + i) * 8, 8);
				assert_true(got == expected);
			}
		}
		free(b.slot);
	}
}

static void channels_of_ragged_elements_have_their_own_scale(void **state)
{
	struct stk_spec_field field = {
		.name = (char *)"feats",
		.dtype = STK_DTYPE_F32,
		.ops = {.nscale = 5,
			.scale = {1, 2, 0.5, -1, 4},
			.nbias = 1,
			.bias = {0.25},
			.clamp_set = true,
			.clamp = {-1e6, 1e6}},
	};
	struct batch b;

	(void)state;
	assemble(&field, 0, &b);
	for (uint32_t row = 0; row < 6; row++) {
		uint32_t n = fake.counts[IDS][b.ids[row]];

		for (uint32_t i = 0; i < n * 5; i++) {
			float x, got, expected;

			memcpy(&x, stored(FEATS, b.ids[row]) + 4 * i, 4);
			memcpy(&got, b.slot + (row * 32 * 5 + i) * 4, 4);
			expected = x * (float)field.ops.scale[i % 5] + 0.25f;
			expected = expected < -1e6f ? -1e6f : expected > 1e6f ? 1e6f : expected;
			assert_true(got == expected || (got != got && x != x));
		}
	}
	free(b.slot);
}

/* What the keys say of one sample. */
static void place_of(uint64_t sample, uint64_t epoch, const struct stk_spec_ops *ops,
		     uint32_t ret[3])
{
	uint64_t key = stkd_key(SEED, epoch, sample);
	uint32_t spare[2] = {HEIGHT - ops->crop[0], WIDTH - ops->crop[1]};

	for (uint32_t i = 0; i < 2; i++)
		ret[i] = ops->crop_at == STK_CROP_RANDOM
				 ? (uint32_t)stkd_key_draw(key, i, spare[i] + 1)
				 : spare[i] / 2;
	ret[2] = ops->flip == STK_FLIP_RANDOM && stkd_key_draw(key, 2, 2);
}

static void check_image(struct stk_spec_field *field, uint64_t epoch)
{
	const struct stk_spec_ops *ops = &field->ops;
	uint32_t h = ops->crop[0], w = ops->crop[1], place[3];
	bool planes = ops->ntranspose, real = ops->nscale;
	struct batch b;

	assemble(field, epoch, &b);
	assert_int_equal(b.r, 0);
	assert_int_equal(b.layout.fields[0].size, 7 * h * w * 3 * (real ? 4 : 1));
	for (uint32_t i = 0; i < 6 * h * w * 3; i++) {
		uint32_t row = i / (h * w * 3), in = i % (h * w * 3);
		uint32_t c = planes ? in / (h * w) : in % 3;
		uint32_t y = planes ? in / w % h : in / 3 / w, x = planes ? in % w : in / 3 % w;
		uint8_t value;
		float got;

		place_of(b.ids[row], epoch, ops, place);
		x = place[2] ? w - 1 - x : x;
		value = stored(IMAGE, b.ids[row])[((y + place[0]) * WIDTH + x + place[1]) * 3 + c];
		if (!real) {
			assert_int_equal(b.slot[i], value);
			continue;
		}
		memcpy(&got, b.slot + 4 * i, 4);
		assert_true(got == (float)value * (float)ops->scale[c] + (float)ops->bias[c]);
	}
	free(b.slot);
}

static void images_are_cut_turned_and_transposed_as_their_keys_say(void **state)
{
	(void)state;
	for (unsigned bits = 0; bits < 32; bits++) {
		struct stk_spec_field field = {
			.name = (char *)"image",
			.dtype = bits & 8 ? STK_DTYPE_F32 : STK_DTYPE_U8,
			.ops = {.crop = {bits & 16 ? HEIGHT : 4, bits & 16 ? WIDTH : 33},
				.crop_at = bits & 1 ? STK_CROP_RANDOM : STK_CROP_CENTRE,
				.flip = bits & 2 ? STK_FLIP_RANDOM : STK_FLIP_NONE,
				.ntranspose = bits & 4 ? 3 : 0,
				.transpose = {2, 0, 1},
				.nscale = bits & 8 ? 3 : 0,
				.scale = {0.5, 2, 3},
				.nbias = bits & 8 ? 3 : 0,
				.bias = {-1, 0, 1}},
		};

		for (uint64_t epoch = 0; epoch < 3; epoch++)
			check_image(&field, epoch);
	}
}

static void the_first_dimension_may_be_the_channels(void **state)
{
	struct stk_spec_field field = {
		.name = (char *)"planes",
		.dtype = STK_DTYPE_F32,
		.ops = {.channel = STK_CHANNEL_FIRST, .nscale = 3, .scale = {1, 10, 100}},
	};
	struct batch b;

	(void)state;
	for (int turn = 0; turn < 2; turn++) {
		field.ops.ntranspose = turn ? 2 : 0;
		field.ops.transpose[0] = 1;
		assemble(&field, 0, &b);
		for (uint32_t i = 0; i < 6 * 150; i++) {
			uint32_t in = i % 150, c = turn ? in % 3 : in / 50;
			uint32_t x = turn ? in / 3 : in % 50;
			float got;

			memcpy(&got, b.slot + 4 * i, 4);
			assert_true(got == (float)stored(PLANES, b.ids[i / 150])[c * 50 + x] *
						   (float)field.ops.scale[c]);
		}
		free(b.slot);
	}
}

static void random_keys_are_the_same_for_the_same_three_numbers(void **state)
{
	struct stk_spec_field field = {.name = (char *)"key", .make = STK_MAKE_RANDOM_KEY};
	uint64_t seen[2][7];
	struct batch b;

	(void)state;
	for (uint64_t epoch = 0; epoch < 2; epoch++) {
		assemble(&field, epoch, &b);
		memcpy(seen[epoch], b.slot, sizeof(seen[epoch]));
		for (uint32_t row = 0; row < 6; row++)
			assert_true(seen[epoch][row] == stkd_key(SEED, epoch, b.ids[row]));
		assert_true(seen[epoch][6] == 0);
		free(b.slot);
	}
	assert_true(seen[0][0] != seen[1][0] && seen[0][0] != seen[0][1]);
	/* For ever: augmentation on a device depends on it. */
	assert_true(stkd_key(17, 3, 1000) == UINT64_C(0x3ca971a43d727fa0));
}

static void draws_cover_their_range_evenly(void **state)
{
	unsigned counts[5] = {0};

	(void)state;
	for (uint64_t sample = 0; sample < 5000; sample++)
		counts[stkd_key_draw(stkd_key(1, 2, sample), 1, 5)]++;
	for (int i = 0; i < 5; i++)
		assert_in_range(counts[i], 900, 1100);
}

static void a_value_out_of_range_names_shard_sample_and_field(void **state)
{
	struct stk_spec_field field = {
		.name = (char *)"point", .dtype = STK_DTYPE_I16, .ops = {.range = STK_RANGE_ERROR}};
	struct batch b;

	(void)state;
	assemble(&field, 0, &b);
	assert_int_equal(b.r, -EBADMSG);
	assert_non_null(strstr(b.err.text, "sample 3 (row 3): field \"point\""));
	assert_non_null(strstr(b.err.text, "stored I64 does not fit I16 (range: error)"));
	free(b.slot);
	field.ops.range = STK_RANGE_SATURATE;
	assemble(&field, 0, &b);
	assert_int_equal(b.r, 0);
	free(b.slot);
}

/* Two in one pass, one alone, and others between them. */
static void copies_of_one_source_differ_in_their_padding_alone(void **state)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"a", .from = (char *)"ids", .dtype = STK_DTYPE_I64},
		{.name = (char *)"narrow", .from = (char *)"ids"},
		{.name = (char *)"mask", .make = STK_MAKE_MASK},
		{.name = (char *)"b", .from = (char *)"ids", .dtype = STK_DTYPE_I64},
		{.name = (char *)"c", .from = (char *)"ids", .dtype = STK_DTYPE_I64},
		{.name = (char *)"feats"},
		{.name = (char *)"features", .from = (char *)"feats"},
	};
	struct stk_spec spec = {.multiple_of = 8, .fields = fields, .nfields = 7};
	uint64_t ids[] = {3, 39, 0, 21, 8};
	struct stkd_recipe recipe = {.rows = 6, .rows_real = 5, .width = 24, .ids = ids};
	struct stkd_assembly *assembly = NULL;
	struct stkd_rows_result result;
	struct stkd_layout layout;
	struct stk_err err;
	uint8_t *slot;

	(void)state;
	for (int i = 0; i < 7; i++) {
		fields[i].pad_set = i != 2;
		fields[i].pad = 100 + i;
		fields[i].pad_float = 100 + i;
	}
	if (stkd_assembly_new(&spec, &fake.dataset, LONGEST, &assembly, &err) < 0)
		fail_msg("%s", err.text);
	assert_int_equal(stkd_assembly_layout(assembly, 6, 24, 0, &layout), 0);
	slot = aligned_alloc(256, stk_align_up(layout.size, 256));
	assert_int_equal(stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, 6, &result, &err),
			 0);
	for (uint32_t row = 0; row < 6; row++) {
		uint32_t n = row < 5 ? STK_MIN(fake.counts[IDS][ids[row]], 24u) : 0;

		for (uint32_t i = 0; i < 24; i++) {
			static const int wide[] = {0, 3, 4};
			int64_t got;
			float x;

			for (int k = 0; k < 3; k++) {
				memcpy(&got,
				       slot + layout.fields[wide[k]].offset + 8 * (row * 24 + i),
				       8);
				assert_true(got == (i < n ? id_of(ids[row], i) : 100 + wide[k]));
			}
			memcpy(&x, slot + layout.fields[6].offset + 20 * (row * 24 + i), 4);
			assert_true(i < n || x == 106);
			if (i < n)
				assert_memory_equal(&x, stored(FEATS, ids[row]) + 20 * i, 4);
		}
	}
	free(slot);
	stkd_assembly_free(assembly);
}

static void set_mask(uint64_t sample, uint32_t i, uint8_t value)
{
	((uint8_t *)(uintptr_t)stored(LABEL_MASK, sample))[i] = value;
}

/* Does element i fit its target: an id a byte, all five features a half float? */
static bool fits(uint32_t stored_field, uint64_t sample, uint32_t i)
{
	bool fit = true;

	if (stored_field == IDS)
		return id_of(sample, i) < 256;
	for (uint32_t k = 0; k < 5; k++) {
		float x;

		memcpy(&x, stored(FEATS, sample) + 4 * (5 * i + k), 4);
		fit = fit && (x * 0 != 0 || (x < 65520 && x > -65520));
	}
	return fit;
}

/* The mask lets through what fits, and of one sample of the batch one element more. */
static int assemble_masked(uint32_t stored_field, bool one_more)
{
	bool ids = stored_field == IDS, shown = false;
	struct stk_spec_field field = {
		.name = (char *)"some",
		.from = (char *)(ids ? "ids" : "feats"),
		.dtype = ids ? STK_DTYPE_U8 : STK_DTYPE_F16,
		.ops = {.where = (char *)"label_mask", .range = STK_RANGE_ERROR}};
	struct batch b;

	for (uint64_t s = 0; s < SAMPLES; s++) {
		for (uint32_t i = 0; i < fake.counts[IDS][s]; i++) {
			bool more = one_more && !shown && s == (2 * 17 + 3) % SAMPLES &&
				    !fits(stored_field, s, i);

			set_mask(s, i, more || fits(stored_field, s, i));
			shown = shown || more;
		}
	}
	assert_true(shown == one_more);
	assemble(&field, 0, &b);
	free(b.slot);
	return b.r;
}

static void a_value_that_the_mask_hides_is_not_out_of_range(void **state)
{
	(void)state;
	for (uint32_t f = IDS; f <= FEATS; f += FEATS - IDS) {
		assert_int_equal(assemble_masked(f, false), 0);
		assert_int_equal(assemble_masked(f, true), -EBADMSG);
	}
}

/* The samples that are listed are those that are masked, each with its place. */
static void check_list(const struct stkd_assembly *assembly, const uint8_t *who, uint32_t bad)
{
	json_t *json = stkd_assembly_quarantined(assembly, SAMPLES), *item;
	json_t *samples = json_object_get(json, "samples");
	size_t i;

	assert_int_equal(json_integer_value(json_object_get(json, "rows")), bad);
	assert_int_equal(json_array_size(samples), bad);
	assert_false(json_is_true(json_object_get(json, "more")));
	json_array_foreach (samples, i, item) {
		json_int_t sample = json_integer_value(json_object_get(item, "sample"));
		json_int_t offset = json_integer_value(json_object_get(item, "offset"));
		bool second = sample >= (json_int_t)fake.dataset.first[1];
		int64_t told;

		memcpy(&told, who + 8 * sample, 8);
		assert_int_equal(told, -1);
		assert_int_equal(offset, fake.offsets[FEATS][sample]);
		assert_int_equal(json_integer_value(json_object_get(item, "row")),
				 sample - (json_int_t)(second ? fake.dataset.first[1] : 0));
		assert_string_equal(json_string_value(json_object_get(item, "shard")),
				    fake.dataset.shards[second]->path);
		assert_string_equal(json_string_value(json_object_get(item, "field")), "feats");
		assert_string_equal(json_string_value(json_object_get(item, "reason")),
				    "a value of stored F32 does not fit F8_E5M2");
	}
	json_decref(json);
	json = stkd_assembly_quarantined(assembly, 1);
	assert_int_equal(json_array_size(json_object_get(json, "samples")), 1);
	assert_true(json_is_true(json_object_get(json, "more")) == (bad > 1));
	json_decref(json);
}

/* What is fine in one field and bad in another is masked in both, in the same rows each time. */
static void quarantine(bool listed)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"feats",
		 .dtype = STK_DTYPE_F8_E5M2,
		 .ops = {.range = STK_RANGE_ERROR}},
		{.name = (char *)"ids",
		 .dtype = STK_DTYPE_I32,
		 .pad_set = true,
		 .pad = 7,
		 .pad_float = 7},
		{.name = (char *)"who", .make = STK_MAKE_SAMPLE_IDS},
	};
	struct stk_spec spec = {.multiple_of = 8,
				.on_bad_sample = STK_ON_BAD_QUARANTINE,
				.fields = fields,
				.nfields = 3};
	uint64_t ids[SAMPLES];
	struct stkd_recipe recipe = {
		.rows = SAMPLES, .rows_real = SAMPLES, .width = 32, .ids = ids};
	struct stkd_assembly *assembly = NULL;
	struct stkd_rows_result result;
	struct stkd_layout layout;
	struct stk_err err;
	uint32_t bad = 0;
	uint8_t *slot;

	for (uint64_t i = 0; i < SAMPLES; i++)
		ids[i] = i;
	assert_int_equal(stkd_assembly_new(&spec, &fake.dataset, LONGEST, &assembly, &err), 0);
	assert_int_equal(stkd_assembly_layout(assembly, SAMPLES, 32, 0, &layout), 0);
	slot = aligned_alloc(256, stk_align_up(layout.size, 256));
	assert_int_equal(
		stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, SAMPLES, &result, &err), 0);
	for (uint64_t i = 0; i < SAMPLES; i++) {
		uint32_t n = fake.counts[IDS][i], length;
		int64_t who;
		int32_t id;
		bool over = false;

		for (uint32_t k = 0; k < 5 * n; k++) {
			float x;

			memcpy(&x, stored(FEATS, i) + 4 * k, 4);
			over = over || (x * 0 == 0 && (x >= 61440 || x <= -61440));
		}
		memcpy(&who, slot + layout.fields[2].offset + 8 * i, 8);
		memcpy(&length, slot + layout.lengths_off + 4 * i, 4);
		memcpy(&id, slot + layout.fields[1].offset + 4 * 32 * i, 4);
		assert_true(who == (over ? -1 : (int64_t)i));
		assert_int_equal(length, over ? 0 : n);
		assert_int_equal(id, over || n == 0 ? 7 : id_of(i, 0));
		bad += over;
	}
	assert_in_range(bad, 1, SAMPLES - 1);
	assert_int_equal(result.rows_bad, bad);
	if (listed)
		check_list(assembly, slot + layout.fields[2].offset, bad);
	free(slot);
	stkd_assembly_free(assembly);
}

static void a_bad_sample_in_quarantine_is_a_masked_row(void **state)
{
	(void)state;
	quarantine(false);
}

static void samples_in_quarantine_are_listed_with_their_places(void **state)
{
	(void)state;
	quarantine(true);
}

static void what_does_not_fit_the_field_is_refused_with_its_numbers(void **state)
{
	struct stk_spec_field f = {.name = (char *)"image", .dtype = STK_DTYPE_F32};

	(void)state;
	f.ops = (struct stk_spec_ops){.nscale = 4};
	assert_string_equal(refusal(&f),
			    "field \"image\": scale is a list of 4, the last dimension "
			    "has 3 channels");
	f.ops = (struct stk_spec_ops){.nbias = 3, .channel = STK_CHANNEL_FIRST};
	assert_string_equal(refusal(&f),
			    "field \"image\": bias is a list of 3, the first dimension "
			    "has 9 channels");
	f.ops = (struct stk_spec_ops){.crop = {10, 10}};
	assert_string_equal(refusal(&f),
			    "field \"image\": crop: [10, 10] of samples that are [9, 37]");
	f.ops = (struct stk_spec_ops){.ntranspose = 2, .transpose = {1, 0}};
	assert_string_equal(refusal(&f), "field \"image\": transpose: 2 axes, a sample has 3");
	f = (struct stk_spec_field){
		.name = (char *)"planes",
		.dtype = STK_DTYPE_F32,
		.ops = {.channel = STK_CHANNEL_FIRST, .nscale = 3, .flip = STK_FLIP_RANDOM}};
	assert_string_equal(refusal(&f), "field \"planes\": flip: dimension 0 of a sample is its "
					 "channels, not its height or width");
	f = (struct stk_spec_field){.name = (char *)"ids", .ops = {.flip = STK_FLIP_RANDOM}};
	assert_non_null(strstr(refusal(&f), "for samples of one shape"));
	f = (struct stk_spec_field){.name = (char *)"ids", .ops = {.nscale = 2}};
	assert_non_null(strstr(refusal(&f), "its elements have no channels"));
	f = (struct stk_spec_field){.name = (char *)"point", .ops = {.flip = STK_FLIP_RANDOM}};
	assert_non_null(strstr(refusal(&f), "a sample has 0 dimensions"));
	f = (struct stk_spec_field){.name = (char *)"point",
				    .ops = {.where = (char *)"label_mask"}};
	assert_non_null(strstr(refusal(&f), "where: \"label_mask\": both need the lengths"));
	f = (struct stk_spec_field){.name = (char *)"ids", .ops = {.where = (char *)"feats"}};
	assert_non_null(strstr(refusal(&f), "one BOOL or whole number is needed"));
	f = (struct stk_spec_field){.name = (char *)"ids", .ops = {.where = (char *)"mask"}};
	assert_non_null(strstr(refusal(&f), "has no field \"mask\""));
	f = (struct stk_spec_field){.name = (char *)"point", .shift = true};
	assert_non_null(strstr(refusal(&f), "shift; it has one value for each sample"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(labels_are_the_next_token_where_the_mask_says_so),
		cmocka_unit_test(channels_of_ragged_elements_have_their_own_scale),
		cmocka_unit_test(images_are_cut_turned_and_transposed_as_their_keys_say),
		cmocka_unit_test(the_first_dimension_may_be_the_channels),
		cmocka_unit_test(random_keys_are_the_same_for_the_same_three_numbers),
		cmocka_unit_test(draws_cover_their_range_evenly),
		cmocka_unit_test(a_value_out_of_range_names_shard_sample_and_field),
		cmocka_unit_test(a_bad_sample_in_quarantine_is_a_masked_row),
		cmocka_unit_test(samples_in_quarantine_are_listed_with_their_places),
		cmocka_unit_test(copies_of_one_source_differ_in_their_padding_alone),
		cmocka_unit_test(a_value_that_the_mask_hides_is_not_out_of_range),
		cmocka_unit_test(what_does_not_fit_the_field_is_refused_with_its_numbers),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
