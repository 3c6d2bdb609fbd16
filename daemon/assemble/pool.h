/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool of one NUMA node: threads pinned to its cores. A task is a bag of rows; workers
 * claim ranges with one atomic add, the last to finish calls done(). Tasks of one owner start in
 * order; owners take turns. Idle workers sleep on a condition.
 */
#ifndef STKD_POOL_H
#define STKD_POOL_H

#include <sched.h>
#include <stdatomic.h>

#include "proto/err.h"

struct stkd_task {
	/* Set by the owner before submit. */
	uint32_t nrows;      /* 0: done() runs at once on a worker */
	uint32_t range_rows; /* rows per claim, at least 1 */
	void (*run)(struct stkd_task *task, uint32_t first, uint32_t n);
	/* Runs on the worker that finished the last range; may submit more tasks, may free this one. */
	void (*done)(struct stkd_task *task);
	/* The pool's. */
	struct stkd_task *next;
	_Atomic uint32_t claimed, finished;
	_Atomic uint32_t users; /* workers that still look at it */
};

struct stkd_pool;

/* @cpus: NULL: not pinned. Threads are named "<name>-<i>". */
int stkd_pool_new(unsigned nworkers, const cpu_set_t *cpus, const char *name,
		  struct stkd_pool **ret, struct stk_err *err);
/* Waits for running tasks; queued ones are not started and their done() is not called. */
struct stkd_pool *stkd_pool_free(struct stkd_pool *pool);

void stkd_pool_submit(struct stkd_pool *pool, struct stkd_task *task);
unsigned stkd_pool_size(const struct stkd_pool *pool);

#endif
