/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly against a bare loop that writes the same bytes, both in turn on one core: ids, mask and
 * labels, as I32 and as I64. Prints medians of GB/s written and their ratio. One thread.
 */
#include <stdio.h>

#include "tests/bench/assembly_bench.h"

enum { SAMPLES = 20000, LONGEST = 2000, WIDTH = 2048, BATCHES = 60, SLOTS = 48 };

#define DEFINE_BARE(type)                                                                          \
	static void widen_##type(type *restrict dst, const uint8_t *restrict src, uint32_t n,      \
				 type pad)                                                         \
	{                                                                                          \
		for (uint32_t i = 0; i < n; i++) {                                                 \
			int32_t value;                                                             \
                                                                                                   \
			memcpy(&value, src + i * sizeof(value), sizeof(value));                    \
			dst[i] = value;                                                            \
		}                                                                                  \
		for (uint32_t i = n; i < WIDTH; i++)                                               \
			dst[i] = pad;                                                              \
	}                                                                                          \
                                                                                                   \
	static void bare_##type(const struct bench *b, uint32_t row, const uint8_t *src,           \
				uint32_t n)                                                        \
	{                                                                                          \
		type *mask = (type *)(b->slot + b->layout.fields[1].offset) + row * WIDTH;         \
                                                                                                   \
		widen_##type((type *)(b->slot + b->layout.fields[0].offset) + row * WIDTH, src, n, \
			     0);                                                                   \
		for (uint32_t i = 0; i < WIDTH; i++)                                               \
			mask[i] = i < n;                                                           \
		widen_##type((type *)(b->slot + b->layout.fields[2].offset) + row * WIDTH, src, n, \
			     -100);                                                                \
	}

DEFINE_BARE(int32_t)
DEFINE_BARE(int64_t)

typedef void bare_row(const struct bench *b, uint32_t row, const uint8_t *src, uint32_t n);

/* What a loop that knows nothing of fields, shards or guards would do. */
static void run_bare(const struct bench *b, bare_row *bare)
{
	const struct stkd_dataset *dataset = &b->fake.dataset;

	for (uint32_t row = 0; row < BENCH_ROWS; row++) {
		uint64_t sample = b->ids[row];
		const uint8_t *src = dataset->shards[0]->map + b->fake.offsets[0][sample];

		bare(b, row, src, dataset->lengths[sample]);
	}
}

static void run_i32(const struct bench *b)
{
	run_bare(b, bare_int32_t);
}

static void run_i64(const struct bench *b)
{
	run_bare(b, bare_int64_t);
}

static void measure(struct bench *b, enum stk_dtype dtype)
{
	struct stk_spec_field fields[] = {
		{.name = (char *)"input_ids", .dtype = dtype},
		{.name = (char *)"attention_mask", .make = STK_MAKE_MASK, .dtype = dtype},
		{.name = (char *)"labels",
		 .from = (char *)"input_ids",
		 .dtype = dtype,
		 .pad_set = true,
		 .pad = -100,
		 .pad_float = -100},
	};
	struct stk_spec spec = {
		.multiple_of = 8, .fields = fields, .nfields = STK_ARRAY_SIZE(fields)};
	struct bench_figures figures;

	b->bare = dtype == STK_DTYPE_I64 ? run_i64 : run_i32;
	bench_open(b, &spec, LONGEST, WIDTH);
	bench_compare(b, &figures);
	printf("%s ids, mask, labels: bare loop %.1f GB/s, assembly %.1f GB/s, ratio %.2f "
	       "(%.2f to %.2f)\n",
	       stk_dtype_name(dtype), figures.bare, figures.ours, figures.ratio, figures.least,
	       figures.most);
	bench_close(b);
}

int main(void)
{
	static struct bench b = {.samples = SAMPLES, .batches = BATCHES, .nslots = SLOTS};

	if (bench_start() < 0)
		return 1;
	fake_init(&b.fake, SAMPLES, 7);
	fake_field(&b.fake, "input_ids", STK_DTYPE_I32, true, LONGEST, 0, 0);
	fake_build(&b.fake, 1, 0);
	printf("rows of 0 to %d tokens padded to %d, %d rows a batch; GB written per second\n",
	       LONGEST, WIDTH, BENCH_ROWS);
	measure(&b, STK_DTYPE_I32);
	measure(&b, STK_DTYPE_I64);
	fake_deinit(&b.fake);
	return 0;
}
