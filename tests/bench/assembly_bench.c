/* SPDX-License-Identifier: Apache-2.0 */
/* The turns of assembly and a bare loop, and what is left of them: medians. One thread. */
#include "tests/bench/assembly_bench.h"

#include <sched.h>
#include <stdio.h>
#include <time.h>

#include "daemon/shard/guard.h"

enum { RUNS = 11 };

static double seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

int bench_start(void)
{
	cpu_set_t one;

	/* Where we are is as good as anywhere; without it only the figures spread more. */
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	sched_setaffinity(0, sizeof(one), &one);
	return stkd_guard_install();
}

static size_t slot_size(const struct bench *b)
{
	return stk_align_up(b->layout.size, 4096);
}

void bench_open(struct bench *b, const struct stk_spec *spec, uint32_t max_length, uint32_t width)
{
	struct stk_err err;

	b->recipe = (struct stkd_recipe){
		.rows = BENCH_ROWS, .rows_real = BENCH_ROWS, .width = width, .ids = b->ids};
	if (stkd_assembly_new(spec, &b->fake.dataset, max_length, &b->assembly, &err) < 0 ||
	    stkd_assembly_layout(b->assembly, BENCH_ROWS, width, 0, &b->layout) < 0)
		exit(1);
	b->slots = mmap(NULL, (size_t)b->nslots * slot_size(b), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (b->slots == MAP_FAILED)
		exit(1);
	b->slot = b->slots;
}

void bench_close(struct bench *b)
{
	munmap(b->slots, (size_t)b->nslots * slot_size(b));
	b->assembly = stkd_assembly_free(b->assembly);
}

void bench_assemble(const struct bench *b)
{
	struct stkd_rows_result result;
	struct stk_err err;

	if (stkd_assembly_rows(b->assembly, &b->layout, &b->recipe, b->slot, 0, BENCH_ROWS, &result,
			       &err) < 0) {
		fprintf(stderr, "bench: %s\n", err.text);
		exit(1);
	}
}

/* GB/s of one pass over random batches; the same ones for the same seed. */
static double pass(struct bench *b, void (*run)(const struct bench *b), uint64_t seed)
{
	double start, time = 0;

	b->fake.seed = seed;
	for (int batch = 0; batch < b->batches; batch++) {
		for (uint32_t i = 0; i < BENCH_ROWS; i++)
			b->ids[i] = fake_random(&b->fake, b->samples);
		b->slot = b->slots + (size_t)(batch % b->nslots) * slot_size(b);
		start = seconds();
		run(b);
		time += seconds() - start;
	}
	return (double)b->layout.extent_size * b->batches / time / 1e9;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

void bench_compare(struct bench *b, struct bench_figures *ret)
{
	double bare[RUNS], ours[RUNS], ratio[RUNS];

	for (int i = -1; i < RUNS; i++) { /* the first only warms up */
		double x = pass(b, b->bare, (uint64_t)i), y = pass(b, bench_assemble, (uint64_t)i);

		if (i >= 0) {
			bare[i] = x;
			ours[i] = y;
			ratio[i] = y / x;
		}
	}
	qsort(bare, RUNS, sizeof(bare[0]), compare);
	qsort(ours, RUNS, sizeof(ours[0]), compare);
	qsort(ratio, RUNS, sizeof(ratio[0]), compare);
	*ret = (struct bench_figures){.bare = bare[RUNS / 2],
				      .ours = ours[RUNS / 2],
				      .ratio = ratio[RUNS / 2],
				      .least = ratio[0],
				      .most = ratio[RUNS - 1]};
}
