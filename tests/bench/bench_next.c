/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a ready batch costs a trainer: next() and release() in C, each pair timed alone, against an
 * empty timing pair in the same run. Usage: bench_next PATH [KEY=VALUE ...]. Prints medians and
 * percentiles; asserts nothing. The ring is given time to fill before each burst, so that only
 * ready batches are measured.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/stoker.h"

#define ROUNDS 4000
#define BURST  6

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static void print(const char *what, uint32_t *ns, size_t n)
{
	qsort(ns, n, sizeof(*ns), by_value);
	printf("%-28s p50 %5u ns   p90 %5u ns   p99 %6u ns   of %zu\n", what, ns[n / 2],
	       ns[n * 9 / 10], ns[n * 99 / 100], n);
}

/* One burst of ready batches; the pause before lets the daemon fill its slots. */
static int burst(struct stk_client *client, uint32_t *pair, uint32_t *empty)
{
	const struct timespec pause = {0, 300000};
	struct stk_batch *batch;

	nanosleep(&pause, NULL);
	for (int i = 0; i < BURST; i++) {
		uint64_t a = now_ns(), b = now_ns(), c;
		int r = stk_client_next(client, -1, &batch);

		if (r == STK_EPOCH_END)
			r = stk_client_next(client, -1, &batch);
		if (r) {
			fprintf(stderr, "next: %d: %s\n", r, stk_client_error(client));
			return -1;
		}
		stk_batch_release(batch);
		c = now_ns();
		empty[i] = (uint32_t)(b - a);
		pair[i] = (uint32_t)(c - b);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static uint32_t pair[ROUNDS * BURST], empty[ROUNDS * BURST];
	struct stk_client_opts opts = {.size = sizeof(opts)};
	struct stk_client *client;
	char error[1024];

	if (argc < 2) {
		fprintf(stderr, "usage: bench_next PATH [KEY=VALUE ...]\n");
		return 2;
	}
	opts.path = argv[1];
	opts.keys = (const char *const *)argv + 2;
	if (stk_client_open(&opts, &client, error, sizeof(error)) < 0) {
		fprintf(stderr, "%s\n", error);
		return 1;
	}
	for (int i = 0; i < ROUNDS; i++)
		if (burst(client, pair + i * BURST, empty + i * BURST) < 0)
			return 1;
	stk_client_close(client);
	print("next() + release(), ready", pair, ROUNDS * BURST);
	print("nothing (two clock reads)", empty, ROUNDS * BURST);
	return 0;
}
