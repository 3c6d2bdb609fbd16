/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine's own limit for a stream: its dataset and plan opened in this process, and the same
 * batches written by the best bare loop, or by the assembly without a daemon. Built by one thread;
 * a measurement starts threads of its own and joins them.
 */
#ifndef STOKER_BENCHLIMIT_H
#define STOKER_BENCHLIMIT_H

#include "proto/err.h"

struct benchlimit;

enum benchlimit_what { BENCHLIMIT_BARE, BENCHLIMIT_ASSEMBLY, BENCHLIMIT_NWHATS };

struct benchlimit_rate {
	double bytes, real_tokens, batches; /* per second */
};

/**
 * benchlimit_new() - open what a client's stream is made of
 * @schema: of the client: its resolved spec
 * @slots, @slot_size: of the feed: the same memory, as large
 *
 * Return: 0; -ENOTSUP with the reason where the stream has no bare loop; other negative errnos.
 */
int benchlimit_new(const char *schema, uint32_t slots, uint64_t slot_size, struct benchlimit **ret,
		   struct stk_err *err);
struct benchlimit *benchlimit_free(struct benchlimit *limit);
STK_DEFINE_CLEANUP(struct benchlimit *, benchlimit_free)

/**
 * benchlimit_measure() - both, in turns of a few milliseconds, so that what disturbs hits both alike
 * @ret: rates of each per second of a thread's processor time, summed over the threads
 *
 * For so many seconds on so many threads, going on where the last call ended.
 */
int benchlimit_measure(struct benchlimit *limit, unsigned threads, double seconds,
		       struct benchlimit_rate ret[BENCHLIMIT_NWHATS], struct stk_err *err);

#endif
