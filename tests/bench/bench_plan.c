/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planning speed: samples a second of one core, memory besides the lengths, time to go on from a
 * cursor, size of a cursor, and the cost of a sample in worlds of every size.
 *
 *	bench_plan [MILLIONS [short]]       100
 */
#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "daemon/plan/order.h"
#include "daemon/plan/plan.h"

enum { RUNS = 3 };

/* Of this process's own processor time: others may run on the same core. */
static double now_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double rss_mib(void)
{
	unsigned long pages = 0, skipped;
	FILE *file = fopen("/proc/self/statm", "r");

	if (!file || fscanf(file, "%lu %lu", &skipped, &pages) != 2)
		pages = 0;
	if (file)
		fclose(file);
	return (double)pages * 4096 / (1 << 20);
}

/* Skewed lengths up to 2048, most of them short. */
static void fill_lengths(uint32_t *len, uint64_t n)
{
	uint64_t x = 88172645463325252u;

	for (uint64_t i = 0; i < n; i++) {
		uint64_t a;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		a = x >> 53;
		len[i] = 1 + (uint32_t)(a * a >> 11);
	}
}

static struct stk_spec spec_of(uint32_t buckets, uint32_t rows)
{
	return (struct stk_spec){
		.seed = 17,
		.order = STK_ORDER_FULL,
		.group = STK_GROUP_BUCKET,
		.buckets = buckets,
		.rows = rows,
		.accumulate = 1,
		.multiple_of = 8,
		.pad_to = STK_PAD_EDGE,
	};
}

static struct stkd_plan *plan_of(const struct stk_spec *spec, const struct stkd_lengths *lengths,
				 uint32_t world)
{
	struct stkd_plan *plan = NULL;
	struct stk_err err = {0};

	if (stkd_plan_new(spec, lengths, world, &plan, &err) < 0) {
		fprintf(stderr, "bench_plan: %s\n", err.text);
		exit(1);
	}
	return plan;
}

static struct stkd_iter *iter_of(const struct stkd_plan *plan, const void *cursor, size_t size)
{
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};

	if (stkd_iter_new(plan, cursor, size, &iter, &err) < 0) {
		fprintf(stderr, "bench_plan: %s\n", err.text);
		exit(1);
	}
	return iter;
}

/* Samples of the first steps, and the seconds they took. */
static uint64_t walk(struct stkd_iter *iter, uint64_t samples)
{
	uint64_t n = 0;
	struct stkd_step step = {0};

	while (n < samples && !step.last_of_epoch && stkd_iter_next(iter, &step) == 0)
		n += step.nids;
	return n;
}

static void bench_speed(const char *name, const struct stk_spec *spec,
			const struct stkd_lengths *lengths)
{
	struct stkd_plan *plan = plan_of(spec, lengths, 8);
	double best = 1e9, before, most = 0;

	for (int run = 0; run < RUNS; run++) {
		struct stkd_iter *iter;
		uint64_t n;
		double start;

		malloc_trim(0);
		before = rss_mib();
		iter = iter_of(plan, NULL, 0);
		start = now_s();
		n = walk(iter, UINT64_MAX);
		start = (now_s() - start) / (double)n;
		best = start < best ? start : best;
		before = rss_mib() - before;
		most = before > most ? before : most;
		stkd_iter_free(iter);
	}
	printf("%-34s %7.1f M samples/s, %5.1f ns each, %.1f MiB besides the lengths\n", name,
	       1e-6 / best, best * 1e9, most);
	stkd_plan_free(plan);
}

static void bench_new(const struct stk_spec *spec, const struct stkd_lengths *lengths)
{
	double start = now_s();

	stkd_plan_free(plan_of(spec, lengths, 8));
	printf("%-34s %7.3f s\n", "making the plan", now_s() - start);
}

static void bench_resume(const char *name, const struct stk_spec *spec,
			 const struct stkd_lengths *lengths, uint32_t world)
{
	struct stkd_plan *plan = plan_of(spec, lengths, world);

	for (int percent = 1; percent < 100; percent += 49) {
		struct stkd_iter *iter = iter_of(plan, NULL, 0), *again;
		uint8_t cursor[STK_SHM_CURSOR_MAX];
		struct stkd_step step;
		double start;
		size_t size;

		walk(iter, lengths->count / 100 * (uint64_t)percent);
		size = stkd_iter_cursor(iter, cursor);
		stkd_iter_free(iter);
		start = now_s();
		again = iter_of(plan, cursor, size);
		stkd_iter_next(again, &step);
		printf("%-22s at %2d %%   %9.2f ms to the next step, cursor of %zu bytes\n", name,
		       percent, (now_s() - start) * 1e3, size);
		stkd_iter_free(again);
	}
	stkd_plan_free(plan);
}

/*
 * With so many samples behind the oldest waiting one: it alone is long, in the middle of the order.
 * Changes the lengths.
 */
static void bench_behind(enum stk_order order, uint32_t *len, uint64_t n, uint64_t behind)
{
	struct stkd_lengths lengths = {.len = len, .count = n};
	struct stk_spec spec = spec_of(8, 32);
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	double least = 1e9, most = 0;
	struct stkd_order arrivals;
	struct stkd_plan *plan;
	struct stkd_iter *iter;
	size_t size;

	spec.order = order;
	stkd_order_init(&arrivals, order, n, spec.seed, 0, 0);
	for (uint64_t i = 0; i < n; i++)
		len[i] = len[i] > 1792 ? 1792 : len[i];
	len[stkd_order_at(&arrivals, n / 2)] = 2048;
	for (spec.nedges = 0; spec.nedges < 8; spec.nedges++)
		spec.edges[spec.nedges] = 256 * ((uint32_t)spec.nedges + 1);
	plan = plan_of(&spec, &lengths, 8);
	iter = iter_of(plan, NULL, 0);
	behind = walk(iter, n / 2 + behind) - n / 2;
	size = stkd_iter_cursor(iter, cursor);
	stkd_iter_free(iter);
	for (int run = 0; run < RUNS; run++) {
		struct stkd_step step;
		double start = now_s();

		iter = iter_of(plan, cursor, size);
		stkd_iter_next(iter, &step);
		start = now_s() - start;
		least = start < least ? start : least;
		most = start > most ? start : most;
		stkd_iter_free(iter);
	}
	printf("order %s, %" PRIu64
	       " behind the oldest waiting one: %.2f to %.2f ms to the next step\n",
	       order == STK_ORDER_FULL ? "full" : "none", behind, least * 1e3, most * 1e3);
	stkd_plan_free(plan);
}

/* What each rank's daemon does: plan all steps, cut out one part. */
static void bench_worlds(const struct stkd_lengths *lengths)
{
	static const uint32_t worlds[] = {1, 8, 1024, 16384};

	for (size_t w = 0; w < sizeof(worlds) / sizeof(*worlds); w++) {
		struct stk_spec spec = spec_of(8, 32);
		struct stkd_plan *plan = plan_of(&spec, lengths, worlds[w]);
		double best = 1e9;

		for (int run = 0; run < RUNS; run++) {
			struct stkd_iter *iter = iter_of(plan, NULL, 0);
			struct stkd_step step;
			struct stkd_part part;
			uint64_t n = 0;
			double start = now_s();

			do {
				if (stkd_iter_next(iter, &step) < 0)
					exit(1);
				stkd_step_part(plan, &step, worlds[w] / 2, 0, &part);
				n += step.nids;
			} while (!step.last_of_epoch);
			start = (now_s() - start) / (double)n;
			best = start < best ? start : best;
			stkd_iter_free(iter);
		}
		printf("world %-28" PRIu32 " %7.1f ns each sample\n", worlds[w], best * 1e9);
		stkd_plan_free(plan);
	}
}

/* 256 datasets and 256 buckets: the largest cursor, and the cost of the schedule. */
static void bench_largest(const struct stkd_lengths *all)
{
	struct stk_spec_data data[STK_SPEC_DATA_MAX] = {0};
	uint64_t first[STK_SPEC_DATA_MAX + 1];
	struct stkd_lengths lengths = *all;
	struct stk_spec spec = spec_of(256, 32);

	spec.multiple_of = 1;
	for (uint32_t d = 0; d <= STK_SPEC_DATA_MAX; d++)
		first[d] = all->count / STK_SPEC_DATA_MAX * d;
	first[STK_SPEC_DATA_MAX] = all->count;
	for (uint32_t d = 0; d < STK_SPEC_DATA_MAX; d++)
		data[d].weight = 1000000 + 977 * d;
	spec.data = data;
	spec.ndata = STK_SPEC_DATA_MAX;
	lengths.first = first;
	lengths.ndatasets = STK_SPEC_DATA_MAX;
	bench_speed("256 datasets, 256 buckets", &spec, &lengths);
	bench_resume("the same, world 1024", &spec, &lengths, 1024);
	bench_resume("the same, world 16384", &spec, &lengths, 16384);
}

int main(int argc, char **argv)
{
	uint64_t n = (argc > 1 ? strtoull(argv[1], NULL, 10) : 100) * 1000000;
	uint32_t *len = malloc((size_t)n * sizeof(*len));
	struct stkd_lengths lengths = {.len = len, .count = n}, fewer;
	struct stk_spec spec = spec_of(8, 32);

	if (!len || !n)
		return 1;
	fill_lengths(len, n);
	fewer = lengths;
	fewer.count = n < 20000000 ? n : 20000000;
	printf("%" PRIu64 " million samples, one core, its time; best of %d runs\n", n / 1000000,
	       RUNS);
	bench_new(&spec, &lengths);
	bench_speed("order full, 8 buckets", &spec, &lengths);
	spec.order = STK_ORDER_NONE;
	bench_speed("order none, 8 buckets", &spec, &lengths);
	spec.order = STK_ORDER_BLOCK;
	spec.block = 4096;
	spec.block_window = 16;
	bench_speed("order block, 8 buckets", &spec, &lengths);
	spec = spec_of(64, 32);
	bench_speed("order full, 64 buckets", &spec, &lengths);
	bench_resume("64 buckets, world 8", &spec, &lengths, 8);
	bench_resume("64 buckets, world 1024", &spec, &lengths, 1024);
	bench_worlds(&lengths);
	if (argc < 3)
		bench_largest(&fewer);
	bench_behind(STK_ORDER_NONE, len, n, 1000000);
	fill_lengths(len, n);
	bench_behind(STK_ORDER_FULL, len, n, 1000000);
	free(len);
	return 0;
}
