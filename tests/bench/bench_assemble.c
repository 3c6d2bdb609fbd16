/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly against a bare loop that writes the same bytes, both in turn on one core: ids, mask and
 * labels, as I32 and as I64. Prints medians of GB/s written and their ratio. One thread.
 */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "daemon/assemble/assembly.h"
#include "daemon/shard/guard.h"
#include "tests/unit/fake_dataset.h"

enum {
	SAMPLES = 20000,
	LONGEST = 2000,
	ROWS = 32,
	WIDTH = 2048,
	BATCHES = 60,
	RUNS = 11,
	SLOTS = 48
};

struct bench {
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_recipe recipe;
	uint64_t ids[ROWS];
	uint8_t *slots, *slot; /* all; the one being written */
	bool wide;             /* I64 */
};

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

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

/* What a loop that knows nothing of fields, shards or guards would do. */
static void run_bare(struct bench *b)
{
	const struct stkd_dataset *dataset = &b->fake.dataset;

	for (uint32_t row = 0; row < ROWS; row++) {
		uint64_t sample = b->ids[row];
		const uint8_t *src = dataset->shards[0]->map + b->fake.offsets[0][sample];

		(b->wide ? bare_int64_t : bare_int32_t)(b, row, src, dataset->lengths[sample]);
	}
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

/* GB/s of one pass over random batches; the same ones for the same seed. */
static double pass(struct bench *b, void (*run)(struct bench *b), uint64_t seed)
{
	double start, time = 0;

	b->fake.seed = seed;
	for (int batch = 0; batch < BATCHES; batch++) {
		for (uint32_t i = 0; i < ROWS; i++)
			b->ids[i] = fake_random(&b->fake, SAMPLES);
		/* As a feed does: a slot comes again when the caches have forgotten it. */
		b->slot = b->slots + (size_t)batch % SLOTS * slot_size(b);
		start = seconds();
		run(b);
		time += seconds() - start;
	}
	return (double)b->layout.extent_size * BATCHES / time / 1e9;
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
	double bare[RUNS], ours[RUNS], ratio[RUNS];
	struct stk_err err;

	b->wide = dtype == STK_DTYPE_I64;
	if (stkd_assembly_new(&spec, &b->fake.dataset, LONGEST, &b->assembly, &err) < 0 ||
	    stkd_assembly_layout(b->assembly, ROWS, WIDTH, 0, &b->layout) < 0)
		exit(1);
	b->slots = mmap(NULL, SLOTS * slot_size(b), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->slots == MAP_FAILED)
		exit(1);
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
	printf("%s ids, mask, labels: bare loop %.1f GB/s, assembly %.1f GB/s, ratio %.2f "
	       "(%.2f to %.2f)\n",
	       stk_dtype_name(dtype), bare[RUNS / 2], ours[RUNS / 2], ratio[RUNS / 2], ratio[0],
	       ratio[RUNS - 1]);
	munmap(b->slots, SLOTS * slot_size(b));
	b->assembly = stkd_assembly_free(b->assembly);
}

int main(void)
{
	static struct bench b;
	cpu_set_t one;

	/* Where we are is as good as anywhere; without it only the figures spread more. */
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	if (stkd_guard_install() < 0)
		return 1;
	fake_init(&b.fake, SAMPLES, 7);
	fake_field(&b.fake, "input_ids", STK_DTYPE_I32, true, LONGEST, 0, 0);
	fake_build(&b.fake, 1, 0);
	b.recipe =
		(struct stkd_recipe){.rows = ROWS, .rows_real = ROWS, .width = WIDTH, .ids = b.ids};
	printf("rows of 0 to %d tokens padded to %d, %d rows a batch; GB written per second\n",
	       LONGEST, WIDTH, ROWS);
	measure(&b, STK_DTYPE_I32);
	measure(&b, STK_DTYPE_I64);
	fake_deinit(&b.fake);
	return 0;
}
