/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank's feed of a job: what it is charged, on which node it lies, how it is built on a work
 * thread, and what becomes of it when seats do not come or do not come back. Belongs to the loop.
 */
#ifndef STKD_JOBFEED_H
#define STKD_JOBFEED_H

#include <uv.h>

#include "daemon/serve/feed.h"

struct stkd_conn;
struct stkd_job;

struct stkd_job_feed {
	struct stkd_job_feed *next;
	struct stkd_server *server;
	struct stkd_job *job; /* NULL: dropped while a work thread had it */
	uint32_t rank;
	struct stkd_feed *feed;    /* a reference */
	bool building;             /* a work thread has it */
	uint64_t waiting_since_ns; /* for its seats */
	uv_work_t work;
	struct stkd_feed_params params;
	uint8_t *state; /* for the work thread; params.state while it is built */
	size_t state_size;
	char *notice;     /* what its seats are told at attach; NULL: nothing */
	uint32_t replica; /* whose state is looked at; UINT32_MAX while it is built */
	struct stk_err err;
	int result;
};

/* Drops a reference to a feed on a work thread. */
void stkd_job_feed_unref(struct stkd_server *server, struct stkd_feed *feed);

struct stkd_job_feed *stkd_job_feed_find(struct stkd_job *job, uint32_t rank);

/*
 * Charges and builds the feed of the rank that @conn attaches to; stkd_job_built() follows. -EAGAIN:
 * memory is about to be given back, try again.
 */
int stkd_job_feed_start(struct stkd_job *job, const struct stkd_conn *conn, struct stk_err *err);

/*
 * Makes the feed start at @conn's own state if that is earlier: seats that come back after a lost
 * connection may stand at different batches. Returns false when nothing is to be done; else
 * stkd_job_built() follows.
 */
bool stkd_job_feed_rewind(struct stkd_job_feed *jf, struct stkd_conn *conn);

/* Nobody wants it any more. */
void stkd_job_feed_drop(struct stkd_job_feed *jf);

/* Timeouts. Returns true while it still needs the tick. */
bool stkd_job_feed_tick(struct stkd_job_feed *jf);

#endif
