/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The figures of a bench: one value for each round, medians of them as a table, as JSON, and as
 * ratios of two runs. Plain values; one thread.
 */
#ifndef STOKER_BENCHREPORT_H
#define STOKER_BENCHREPORT_H

#include <stdio.h>

#include "proto/base.h"

#define BENCH_ROUNDS_MAX 99

enum bench_figure {
	BENCH_SAMPLES,
	BENCH_REAL,
	BENCH_PADDED,
	BENCH_GB,
	BENCH_PADDING,
	BENCH_NEXT_P50,
	BENCH_NEXT_P99,
	BENCH_NEXT_P999,
	BENCH_READY_P50,
	BENCH_WAKE_P50,
	BENCH_WAKE_P99,
	BENCH_FUTEX_P50,
	BENCH_FUTEX_ONE_P50,
	BENCH_WAKE_RATIO,
	BENCH_FIRST,
	BENCH_CPU_DAEMON,
	BENCH_CPU_CLIENT,
	BENCH_MEM_ANON,
	BENCH_MEM_SHARED,
	BENCH_MEM_FILE,
	BENCH_MEM_CLIENT,
	BENCH_BARE_ONE,
	BENCH_BARE_ALL,
	BENCH_ASSEMBLY_ONE,
	BENCH_ASSEMBLY_ALL,
	BENCH_RATIO_BARE_ONE,
	BENCH_RATIO_BARE_ALL,
	BENCH_RATIO_CPU,
	BENCH_RATIO_ASSEMBLY_ONE,
	BENCH_RATIO_ASSEMBLY_ALL,
	BENCH_NFIGURES
};

struct benchreport {
	const char *what;  /* measured: a path or a stream */
	unsigned cores;    /* of "all cores" */
	const char *limit; /* NULL, or why there is no bare loop */
	unsigned ranks, replicas;
	double seconds; /* of each round */
	double values[BENCH_NFIGURES][BENCH_ROUNDS_MAX];
	unsigned n[BENCH_NFIGURES];
};

void benchreport_add(struct benchreport *report, enum bench_figure figure, double value);
void benchreport_print(const struct benchreport *report, FILE *out);
/* Return: 0 or a negative errno. */
int benchreport_print_json(const struct benchreport *report, FILE *out);
/* Two files that print_json wrote. Return: 0, or a negative errno with a line on standard error. */
int benchreport_compare(const char *path_a, const char *path_b, FILE *out);

#endif
