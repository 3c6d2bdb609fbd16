/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images cut out, turned round and transposed (bytes in HWC to F32, BF16 or F16 in CHW, with scale and
 * bias for each channel) against a bare loop that writes the same bytes, both in turn on one core.
 * Prints medians of GB/s written and their ratio. Built for the machine it runs on. One thread.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "daemon/assemble/assembly.h"
#include "daemon/assemble/image.h"
#include "daemon/shard/guard.h"
#include "tests/unit/fake_dataset.h"

enum { SAMPLES = 600, SIDE = 224, CUT = 192, ROWS = 32, BATCHES = 12, RUNS = 11, SLOTS = 12 };

struct bench {
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_recipe recipe;
	uint64_t ids[ROWS];
	uint8_t *slots, *slot; /* all; the one being written */
	const char *name;
	uint32_t channels, cut;
	enum stk_dtype dtype;
	bool flip;
};

static const float scales[3] = {1 / 58.4f, 1 / 57.1f, 1 / 57.4f};
static const float biases[3] = {-2.12f, -2.04f, -1.80f};

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void line_f32(void *restrict dst, const uint8_t *restrict src, uint32_t n, float scale,
		     float bias)
{
	float *d = dst;

	for (uint32_t i = 0; i < n; i++)
		d[i] = (float)src[i] * scale + bias;
}

static void line_bf16(void *restrict dst, const uint8_t *restrict src, uint32_t n, float scale,
		      float bias)
{
	uint16_t *d = dst;

	for (uint32_t i = 0; i < n; i++) {
		float x = (float)src[i] * scale + bias;
		uint32_t bits;

		memcpy(&bits, &x, sizeof(bits));
		d[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
}

#ifdef __F16C__
/* n is a multiple of eight here. */
static void line_f16(void *restrict dst, const uint8_t *restrict src, uint32_t n, float scale,
		     float bias)
{
	uint16_t *d = dst;

	for (uint32_t i = 0; i < n; i += 8) {
		__m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(src + i)));
		__m256 y =
			_mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(x), _mm256_set1_ps(scale)),
				      _mm256_set1_ps(bias));

		_mm_storeu_si128((void *)(d + i), _mm256_cvtps_ph(y, _MM_FROUND_TO_NEAREST_INT));
	}
}
#endif

static void line(const struct bench *b, uint8_t *dst, const uint8_t *src, uint32_t channel)
{
	switch (b->dtype) {
	case STK_DTYPE_F32:
		line_f32(dst, src, b->cut, scales[channel], biases[channel]);
		return;
#ifdef __F16C__
	case STK_DTYPE_F16:
		line_f16(dst, src, b->cut, scales[channel], biases[channel]);
		return;
#endif
	default:
		line_bf16(dst, src, b->cut, scales[channel], biases[channel]);
	}
}

/* One line of pixels as its colours. */
static void part(uint8_t *restrict to, const uint8_t *restrict src, size_t n, bool turned)
{
	if (turned) {
		for (size_t i = 0; i < n; i++) {
			to[n - 1 - i] = src[3 * i];
			to[SIDE + n - 1 - i] = src[3 * i + 1];
			to[2 * SIDE + n - 1 - i] = src[3 * i + 2];
		}
	} else {
		for (size_t i = 0; i < n; i++) {
			to[i] = src[3 * i];
			to[SIDE + i] = src[3 * i + 1];
			to[2 * SIDE + i] = src[3 * i + 2];
		}
	}
}

static void turn(uint8_t *restrict to, const uint8_t *restrict src, size_t n)
{
	for (size_t i = 0; i < n; i++)
		to[n - 1 - i] = src[i];
}

static void bare_image(const struct bench *b, uint8_t *dst, const uint8_t *src, uint64_t key)
{
	uint32_t top = (uint32_t)stkd_key_draw(key, 0, SIDE - b->cut + 1);
	uint32_t left = (uint32_t)stkd_key_draw(key, 1, SIDE - b->cut + 1);
	bool turned = b->flip && stkd_key_draw(key, 2, 2);
	size_t out = stk_dtype_size(b->dtype);
	uint8_t parts[3][SIDE];

	for (uint32_t y = 0; y < b->cut; y++) {
		const uint8_t *from = src + ((top + y) * SIDE + left) * b->channels;

		if (b->channels == 1 && !turned) {
			line(b, dst + y * b->cut * out, from, 0);
			continue;
		}
		if (b->channels == 1)
			turn(parts[0], from, b->cut);
		else
			part(parts[0], from, b->cut, turned);
		for (uint32_t c = 0; c < b->channels; c++)
			line(b, dst + (c * b->cut + y) * b->cut * out, parts[c], c);
	}
}

/* What a loop that knows nothing of fields, shards or guards would do. */
static void run_bare(struct bench *b)
{
	const struct stkd_dataset *dataset = &b->fake.dataset;
	uint32_t field = b->channels == 1;
	size_t size = (size_t)b->cut * b->cut * b->channels * stk_dtype_size(b->dtype);

	for (uint32_t row = 0; row < ROWS; row++)
		bare_image(b, b->slot + b->layout.fields[0].offset + row * size,
			   dataset->shards[0]->map + b->fake.offsets[field][b->ids[row]],
			   stkd_key(0, 0, b->ids[row]));
}

static void run_assembly(struct bench *b)
{
	struct stkd_rows_result result;
	struct stk_err err;

	if (stkd_assembly_rows(b->assembly, &b->layout, &b->recipe, b->slot, 0, ROWS, &result,
			       &err) < 0) {
		fprintf(stderr, "bench: %s\n", err.text);
		exit(1);
	}
}

static size_t slot_size(const struct bench *b)
{
	return stk_align_up(b->layout.size, 4096);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double pass(struct bench *b, void (*run)(struct bench *b), uint64_t seed)
{
	double start, time = 0;

	b->fake.seed = seed;
	for (int batch = 0; batch < BATCHES; batch++) {
		for (uint32_t i = 0; i < ROWS; i++)
			b->ids[i] = fake_random(&b->fake, SAMPLES);
		b->slot = b->slots + (size_t)batch % SLOTS * slot_size(b);
		start = seconds();
		run(b);
		time += seconds() - start;
	}
	return (double)b->layout.extent_size * BATCHES / time / 1e9;
}

/* The bare loop has to write the same bytes. */
static void check(struct bench *b)
{
	uint8_t *copy = malloc(b->layout.extent_size);

	for (uint32_t i = 0; i < ROWS; i++)
		b->ids[i] = i;
	b->slot = b->slots;
	run_assembly(b);
	memcpy(copy, b->slot, b->layout.extent_size);
	run_bare(b);
	if (memcmp(copy, b->slot, b->layout.extent_size)) {
		fprintf(stderr, "bench: %s: the bare loop writes something else\n", b->name);
		exit(1);
	}
	free(copy);
}

static void compare_runs(struct bench *b)
{
	double bare[RUNS], ours[RUNS], ratio[RUNS];

	for (int i = -1; i < RUNS; i++) { /* the first only warms up */
		double x = pass(b, run_bare, (uint64_t)i), y = pass(b, run_assembly, (uint64_t)i);

		if (i >= 0) {
			bare[i] = x;
			ours[i] = y;
			ratio[i] = y / x;
		}
	}
	qsort(bare, RUNS, sizeof(bare[0]), compare);
	qsort(ours, RUNS, sizeof(ours[0]), compare);
	qsort(ratio, RUNS, sizeof(ratio[0]), compare);
	printf("%-28s %5s: bare loop %5.1f GB/s, assembly %5.1f GB/s, ratio %.2f (%.2f to %.2f)\n",
	       b->name, stk_dtype_name(b->dtype), bare[RUNS / 2], ours[RUNS / 2], ratio[RUNS / 2],
	       ratio[0], ratio[RUNS - 1]);
}

static void measure(struct bench *b)
{
	bool colours = b->channels == 3;
	struct stk_spec_field field = {
		.name = (char *)"image",
		.from = (char *)(colours ? "colours" : "grey"),
		.dtype = b->dtype,
		.ops = {.crop = {b->cut, b->cut},
			.crop_at = STK_CROP_RANDOM,
			.flip = b->flip ? STK_FLIP_RANDOM : STK_FLIP_NONE,
			.ntranspose = 3,
			.transpose = {2, 0, 1},
			.nscale = b->channels,
			.nbias = b->channels},
	};
	struct stk_spec spec = {.multiple_of = 8, .fields = &field, .nfields = 1};
	struct stk_err err;

	for (uint32_t c = 0; c < b->channels; c++) {
		field.ops.scale[c] = scales[c];
		field.ops.bias[c] = biases[c];
	}
	if (stkd_assembly_new(&spec, &b->fake.dataset, 1, &b->assembly, &err) < 0 ||
	    stkd_assembly_layout(b->assembly, ROWS, 8, 0, &b->layout) < 0)
		exit(1);
	b->slots = mmap(NULL, SLOTS * slot_size(b), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->slots == MAP_FAILED)
		exit(1);
	check(b);
	compare_runs(b);
	munmap(b->slots, SLOTS * slot_size(b));
	b->assembly = stkd_assembly_free(b->assembly);
}

int main(void)
{
	static const enum stk_dtype dtypes[] = {
		STK_DTYPE_F32,
		STK_DTYPE_BF16,
#ifdef __F16C__
		STK_DTYPE_F16,
#endif
	};
	static struct bench b;
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (stkd_guard_install() < 0)
		return 1;
	fake_init(&b.fake, SAMPLES, 7);
	fake_field(&b.fake, "colours", STK_DTYPE_U8, false, 1, SIDE, SIDE);
	fake_field(&b.fake, "grey", STK_DTYPE_U8, false, 1, SIDE, SIDE);
	fake_field(&b.fake, "label", STK_DTYPE_U8, true, 1, 0, 0);
	for (uint32_t f = 0; f < 2; f++) {
		b.fake.fields[f].inner[2] = f ? 1 : 3;
		b.fake.fields[f].ndims = 3;
		b.fake.fields[f].inner_count = SIDE * SIDE * b.fake.fields[f].inner[2];
	}
	fake_build(&b.fake, 1, 2);
	b.recipe = (struct stkd_recipe){.rows = ROWS, .rows_real = ROWS, .width = 8, .ids = b.ids};
	printf("images of %d x %d bytes, %d to a batch; GB written per second\n", SIDE, SIDE, ROWS);
	for (size_t i = 0; i < STK_ARRAY_SIZE(dtypes); i++) {
		b.dtype = dtypes[i];
		b.name = "3 channels, cut and turned";
		b.channels = 3;
		b.cut = CUT;
		b.flip = true;
		measure(&b);
		b.name = "3 channels, whole";
		b.cut = SIDE;
		b.flip = false;
		measure(&b);
		b.name = "1 channel, cut and turned";
		b.channels = 1;
		b.cut = CUT;
		b.flip = true;
		measure(&b);
	}
	fake_deinit(&b.fake);
	return 0;
}
