/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The consumers of a bench: one thread and one client for each (rank, replica), all doing the same
 * at the same time. benchseats_phase() is called by one thread; the seats' threads own their sums.
 */
#ifndef STOKER_BENCHSEAT_H
#define STOKER_BENCHSEAT_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/stoker.h"
#include "tools/stoker/benchtimes.h"

enum benchseat_phase {
	BENCH_RUN,   /* next, release, next, ... until told to stop */
	BENCH_READY, /* once through a full ring, each next() and release() timed together */
	BENCH_WAKE,  /* hold every slot, give one back, wait for the one batch, again and again */
	BENCH_QUIT,
};

/* What one phase came to; summed over the seats. */
struct benchseat_sums {
	uint64_t batches, rows, real_tokens, padded_tokens, bytes;
	uint64_t cpu_ns; /* of the seats' threads */
	struct benchtimes next, ready, wake;
};

struct benchseats;

struct benchseat_opts {
	const struct stk_client_opts *client; /* rank and replica are set here */
	uint32_t ranks, replicas;
	uint32_t pace_us; /* between a release and the next next() */
	uint32_t wakes;   /* of one BENCH_WAKE, at most */
};

/**
 * benchseats_new() - open all clients, at once
 * @ret_first_s: seconds from the start of the open to the first batch of the slowest seat
 *
 * Return: 0, or the first negative errno with its text in @error.
 */
int benchseats_new(const struct benchseat_opts *opts, struct benchseats **ret, double *ret_first_s,
		   char *error, size_t error_size);
struct benchseats *benchseats_free(struct benchseats *seats);

/* Runs one phase on every seat. Return: 0; 1: the stream has ended; a negative errno, with text. */
int benchseats_phase(struct benchseats *seats, enum benchseat_phase phase, double seconds,
		     struct benchseat_sums *ret, char *error, size_t error_size);

/* Of the first seat; lives as long as the seats do. */
const struct stk_client *benchseats_client(const struct benchseats *seats);

#endif
