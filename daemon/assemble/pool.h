/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool of one NUMA node: threads pinned to its cores. A task is a bag of rows; workers
 * claim ranges under the pool's lock (one claim per range, none per row), the last to finish calls
 * done(). Tasks of one share start in order; shares take turns, range by range, so that each gets
 * bytes by its weight. Idle workers sleep.
 */
#ifndef STKD_POOL_H
#define STKD_POOL_H

#include <sched.h>

#include "proto/err.h"

/*
 * Whose tasks these are, and how much they get beside those of others. Its owner's memory, from the
 * first submit until the last task has run; zeroed but for the weight.
 */
struct stkd_share {
	uint32_t
		weight; /* at least 1; twice the weight gets twice the bytes while both want some */
	/* The pool's. */
	uint64_t taken;                 /* so far, by weight; compared with that of others */
	struct stkd_task *first, *last; /* of those with unclaimed rows */
	struct stkd_share *turn;        /* whose turn is after this one's */
};

struct stkd_task {
	/* Set by the owner before submit. */
	uint32_t nrows;      /* 0: done() runs at once on a worker */
	uint32_t range_rows; /* rows per claim, at least 1 */
	uint64_t row_bytes;  /* that one row writes: what it costs */
	void (*run)(struct stkd_task *task, uint32_t first, uint32_t n);
	/* Runs on the worker that finished the last range; may submit more tasks, may free this one. */
	void (*done)(struct stkd_task *task);
	struct stkd_share *share;
	/* The pool's. */
	struct stkd_task *next; /* of the same share */
	uint32_t claimed, finished;
};

struct stkd_pool;

/* @cpus: NULL: not pinned; a core that may not be used is no error. Threads are named "<name>-<i>". */
int stkd_pool_new(unsigned nworkers, const cpu_set_t *cpus, const char *name,
		  struct stkd_pool **ret, struct stk_err *err);
/* Runs what was submitted to its end, also what done() submits meanwhile, then joins the workers. */
struct stkd_pool *stkd_pool_free(struct stkd_pool *pool);

/* Any thread. The task is the pool's until its done() is called, and never after. */
void stkd_pool_submit(struct stkd_pool *pool, struct stkd_task *task);
unsigned stkd_pool_size(const struct stkd_pool *pool);

#endif
