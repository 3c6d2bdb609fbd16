/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Images cut out, turned round and transposed (bytes in HWC to F32, BF16 or F16 in CHW, with scale and
 * bias for each channel) against a bare loop that writes the same bytes, both in turn on one core.
 * Prints medians of GB/s written and their ratio. Built for the machine it runs on. One thread.
 */
#include <stdio.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include "daemon/assemble/image.h"
#include "tests/bench/assembly_bench.h"

enum { SAMPLES = 600, SIDE = 224, CUT = 192, BATCHES = 12, SLOTS = 12 };

/* One kind of images in, one kind out. */
struct images {
	struct bench bench; /* first */
	const char *name;
	uint32_t channels, cut;
	enum stk_dtype dtype;
	bool flip;
};

static const float scales[3] = {1 / 58.4f, 1 / 57.1f, 1 / 57.4f};
static const float biases[3] = {-2.12f, -2.04f, -1.80f};

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

static void line(const struct images *im, uint8_t *dst, const uint8_t *src, uint32_t channel)
{
	switch (im->dtype) {
	case STK_DTYPE_F32:
		line_f32(dst, src, im->cut, scales[channel], biases[channel]);
		return;
#ifdef __F16C__
	case STK_DTYPE_F16:
		line_f16(dst, src, im->cut, scales[channel], biases[channel]);
		return;
#endif
	default:
		line_bf16(dst, src, im->cut, scales[channel], biases[channel]);
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

static void bare_image(const struct images *im, uint8_t *dst, const uint8_t *src, uint64_t key)
{
	uint32_t top = (uint32_t)stkd_key_draw(key, 0, SIDE - im->cut + 1);
	uint32_t left = (uint32_t)stkd_key_draw(key, 1, SIDE - im->cut + 1);
	bool turned = im->flip && stkd_key_draw(key, 2, 2);
	size_t out = stk_dtype_size(im->dtype);
	uint8_t parts[3][SIDE];

	for (uint32_t y = 0; y < im->cut; y++) {
		const uint8_t *from = src + ((top + y) * SIDE + left) * im->channels;

		if (im->channels == 1 && !turned) {
			line(im, dst + y * im->cut * out, from, 0);
			continue;
		}
		if (im->channels == 1)
			turn(parts[0], from, im->cut);
		else
			part(parts[0], from, im->cut, turned);
		for (uint32_t c = 0; c < im->channels; c++)
			line(im, dst + (c * im->cut + y) * im->cut * out, parts[c], c);
	}
}

/* What a loop that knows nothing of fields, shards or guards would do. */
static void run_bare(const struct bench *b)
{
	const struct images *im = (const struct images *)b;
	const struct stkd_dataset *dataset = &b->fake.dataset;
	uint32_t field = im->channels == 1;
	size_t size = (size_t)im->cut * im->cut * im->channels * stk_dtype_size(im->dtype);

	for (uint32_t row = 0; row < BENCH_ROWS; row++)
		bare_image(im, b->slot + b->layout.fields[0].offset + row * size,
			   dataset->shards[0]->map + b->fake.offsets[field][b->ids[row]],
			   stkd_key(0, 0, b->ids[row]));
}

/* The bare loop has to write the same bytes. */
static void check(struct images *im)
{
	struct bench *b = &im->bench;
	uint8_t *copy = malloc(b->layout.extent_size);

	for (uint32_t i = 0; i < BENCH_ROWS; i++)
		b->ids[i] = i;
	bench_assemble(b);
	memcpy(copy, b->slot, b->layout.extent_size);
	run_bare(b);
	if (memcmp(copy, b->slot, b->layout.extent_size)) {
		fprintf(stderr, "bench: %s: the bare loop writes something else\n", im->name);
		exit(1);
	}
	free(copy);
}

static void measure(struct images *im)
{
	bool colours = im->channels == 3;
	struct stk_spec_field field = {
		.name = (char *)"image",
		.from = (char *)(colours ? "colours" : "grey"),
		.dtype = im->dtype,
		.ops = {.crop = {im->cut, im->cut},
			.crop_at = STK_CROP_RANDOM,
			.flip = im->flip ? STK_FLIP_RANDOM : STK_FLIP_NONE,
			.ntranspose = 3,
			.transpose = {2, 0, 1},
			.nscale = im->channels,
			.nbias = im->channels},
	};
	struct stk_spec spec = {.multiple_of = 8, .fields = &field, .nfields = 1};
	struct bench_figures figures;

	for (uint32_t c = 0; c < im->channels; c++) {
		field.ops.scale[c] = scales[c];
		field.ops.bias[c] = biases[c];
	}
	bench_open(&im->bench, &spec, 1, 8);
	check(im);
	bench_compare(&im->bench, &figures);
	printf("%-28s %5s: bare loop %5.1f GB/s, assembly %5.1f GB/s, ratio %.2f (%.2f to %.2f)\n",
	       im->name, stk_dtype_name(im->dtype), figures.bare, figures.ours, figures.ratio,
	       figures.least, figures.most);
	bench_close(&im->bench);
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
	static struct images im = {
		.bench = {
			.samples = SAMPLES, .batches = BATCHES, .nslots = SLOTS, .bare = run_bare}};
	struct fake_dataset *fake = &im.bench.fake;

	if (bench_start() < 0)
		return 1;
	fake_init(fake, SAMPLES, 7);
	fake_field(fake, "colours", STK_DTYPE_U8, false, 1, SIDE, SIDE);
	fake_field(fake, "grey", STK_DTYPE_U8, false, 1, SIDE, SIDE);
	fake_field(fake, "label", STK_DTYPE_U8, true, 1, 0, 0);
	for (uint32_t f = 0; f < 2; f++) {
		fake->fields[f].inner[2] = f ? 1 : 3;
		fake->fields[f].ndims = 3;
		fake->fields[f].inner_count = SIDE * SIDE * fake->fields[f].inner[2];
	}
	fake_build(fake, 1, 2);
	printf("images of %d x %d bytes, %d to a batch; GB written per second\n", SIDE, SIDE,
	       BENCH_ROWS);
	for (size_t i = 0; i < STK_ARRAY_SIZE(dtypes); i++) {
		im.dtype = dtypes[i];
		im.name = "3 channels, cut and turned";
		im.channels = 3;
		im.cut = CUT;
		im.flip = true;
		measure(&im);
		im.name = "3 channels, whole";
		im.cut = SIDE;
		im.flip = false;
		measure(&im);
		im.name = "1 channel, cut and turned";
		im.channels = 1;
		im.cut = CUT;
		im.flip = true;
		measure(&im);
	}
	fake_deinit(fake);
	return 0;
}
