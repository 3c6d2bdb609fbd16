/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast packed rows and token streams are planned, and resumed. Usage: bench_pack [MILLIONS of
 * samples]. Lengths are made up; medians of several rounds, one core. Prints, asserts nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/plan/plan.h"

#define ROUNDS 5

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
	const double *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void fail(const struct stk_err *err)
{
	fprintf(stderr, "bench_pack: %s\n", err->text);
	exit(1);
}

/* Many short samples, some long ones, as text has them: up to 4096. */
static uint32_t *make_lengths(uint64_t n)
{
	uint32_t *len = malloc(n * sizeof(*len));
	uint64_t x = 88172645463325252u;

	for (uint64_t i = 0; len && i < n; i++) {
		uint32_t top;

		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		top = 64u << (x >> 60) % 7;
		len[i] = 1 + (uint32_t)((x & 0xffffffff) * top >> 32);
	}
	return len;
}

static struct stk_spec base_spec(void)
{
	return (struct stk_spec){
		.seed = 1,
		.order = STK_ORDER_FULL,
		.overlong = STK_OVERLONG_SPLIT,
		.group = STK_GROUP_PACK,
		.max_length = 4096,
		.rows = 4,
		.accumulate = 1,
		.multiple_of = 8,
		.window = 4096,
		.align = 1,
	};
}

static void measure(const char *name, const struct stk_spec *spec,
		    const struct stkd_lengths *lengths, uint32_t world)
{
	double s[ROUNDS], tokens = 0, rows = 0;
	struct stkd_plan *plan;
	struct stk_err err;

	if (stkd_plan_new(spec, lengths, world, &plan, &err) < 0)
		fail(&err);
	for (int round = 0; round < ROUNDS; round++) {
		struct stkd_step step = {0};
		struct stkd_iter *iter;
		double start = now_s();

		if (stkd_iter_new(plan, NULL, 0, &iter, &err) < 0)
			fail(&err);
		tokens = rows = 0;
		while (!step.last_of_epoch && stkd_iter_next(iter, &step) == 0) {
			tokens += (double)step.real_tokens;
			rows += (double)step.nids * step.width;
		}
		s[round] = now_s() - start;
		stkd_iter_free(iter);
	}
	qsort(s, ROUNDS, sizeof(s[0]), by_value);
	printf("%-34s world %5u %7.2f M samples/s   efficiency %.4f\n", name, world,
	       (double)lengths->count / s[ROUNDS / 2] / 1e6, tokens / rows);
	stkd_plan_free(plan);
}

/* From a cursor at a hundredth, the middle and the end of the epoch to the next step. */
static void measure_resume(const struct stk_spec *spec, const struct stkd_lengths *lengths)
{
	uint8_t cursors[3][STK_SHM_CURSOR_MAX];
	struct stkd_step step = {0};
	struct stkd_iter *iter;
	struct stkd_plan *plan;
	struct stk_err err;
	size_t sizes[3] = {0};
	uint64_t steps;

	if (stkd_plan_new(spec, lengths, 8, &plan, &err) < 0 ||
	    stkd_iter_new(plan, NULL, 0, &iter, &err) < 0)
		fail(&err);
	steps = stkd_plan_counts(plan)->rows_least / (spec->rows * 8);
	for (uint64_t i = 1; !step.last_of_epoch && stkd_iter_next(iter, &step) == 0; i++) {
		int at = i == steps / 100 ? 0 : i == steps / 2 ? 1 : i == steps / 100 * 99 ? 2 : -1;

		if (at >= 0)
			sizes[at] = stkd_iter_cursor(iter, cursors[at]);
	}
	stkd_iter_free(iter);
	for (int at = 0; at < 3 && sizes[at]; at++) {
		double start = now_s();

		if (stkd_iter_new(plan, cursors[at], sizes[at], &iter, &err) < 0)
			fail(&err);
		stkd_iter_next(iter, &step);
		printf("resume at step %10llu: %.2f ms, a cursor of %zu bytes\n",
		       (unsigned long long)step.step, (now_s() - start) * 1e3, sizes[at]);
		stkd_iter_free(iter);
	}
	stkd_plan_free(plan);
}

int main(int argc, char **argv)
{
	struct stkd_lengths lengths = {.count = 1000000};
	struct stk_spec spec = base_spec();
	uint32_t *len;

	if (argc > 1)
		lengths.count = strtoull(argv[1], NULL, 10) * 1000000;
	len = lengths.count ? make_lengths(lengths.count) : NULL;
	lengths.len = len;
	if (!len) {
		fprintf(stderr, "usage: bench_pack [MILLIONS]\n");
		return 2;
	}
	measure("pack, window 4096", &spec, &lengths, 8);
	spec.balance = STK_BALANCE_COST;
	for (uint32_t world = 1; world <= 16384; world *= world == 1 ? 8 : world == 8 ? 128 : 16)
		measure("pack, balance cost", &spec, &lengths, world);
	spec.balance = STK_BALANCE_NONE;
	for (uint32_t world = 1; world <= 16384; world *= world == 1 ? 8 : world == 8 ? 128 : 16)
		measure("pack", &spec, &lengths, world);
	measure_resume(&spec, &lengths);
	spec.flat = true;
	spec.rows = 0;
	spec.tokens = 32768;
	measure("flat packs of 32768", &spec, &lengths, 8);
	spec.balance = STK_BALANCE_COST;
	measure("flat packs, balance cost", &spec, &lengths, 8);
	spec = base_spec();
	spec.group = STK_GROUP_CONCAT;
	measure("concat", &spec, &lengths, 8);
	free(len);
	return 0;
}
