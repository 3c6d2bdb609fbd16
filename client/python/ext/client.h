/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker._stoker.Client: a seat at a feed, and Epoch, its iterator. A lock orders the threads that
 * use it; every wait gives up the GIL, and the lock is never held while the GIL is waited for.
 */
#ifndef STK_PYTHON_CLIENT_H
#define STK_PYTHON_CLIENT_H

#include <pthread.h>

#include "client/python/ext/ahead.h"
#include "client/python/ext/pipeline.h"

struct client_stats {
	uint64_t batches, rows, real_tokens, padded_tokens, waits, wait_ns, rows_bad;
};

struct client {
	PyObject_HEAD struct stk_client *client; /* NULL: closed */
	pthread_mutex_t lock;                    /* around every call on it */
	unsigned generation;                     /* of forks */
	PyThreadState *released; /* while a call runs without the GIL, for what it calls back */
	PyObject *progress, *on_wait;
	struct pipeline pipeline;
	bool pipeline_ready;      /* it is open; with the GIL */
	PyObject *current_stream; /* called with the device's number: the stream of this thread */
	struct maker *maker;
	struct lease_count *count;
	uint32_t slots, nnames, timeout_ms, lookahead;
	PyObject **names;
	struct ahead ahead;
	PyObject
		*recent; /* list: states after the last lookahead + 1 batches; NULL: no lookahead */
	/* Of the last batch. */
	uint64_t epoch, step;
	bool any, last_micro, ended; /* ended: its epoch has no batch behind it */
	bool end_due;                /* and the end itself was not returned yet */
	/*
	 * Twice the ends of epochs that were returned; one more: the library has said that another epoch is
	 * over, which may be behind batches that were made ahead. That bit is set under the lock, and goes
	 * with the GIL when the end is returned.
	 */
	_Atomic uint64_t ends;
	struct client_stats stats;
};

/* The next batch after so many ends. NULL without an exception: that epoch is over. */
PyObject *client_next(struct client *client, uint64_t ends);

/**
 * client_ready() - before a batch is taken, where there is a pipeline
 *
 * Opens it, warns of what it warned of, and finds the stream that is to wait. 0, or -1: raised.
 */
int client_ready(struct client *client, void **ret_stream);

/* Of epochs that were returned. With the GIL. */
uint64_t client_ends(const struct client *client);

/* Slots that the user holds. */
uint32_t client_held(const struct client *client);

/* Raises unless it is open and of this process. */
bool client_usable(const struct client *client);

/* A tuple of a state, which is taken over, and the epoch and step that come after it. */
PyObject *client_where(const struct client *client, PyObject *state);

/* Around a call that may wait: without the GIL, with the lock. */
void client_enter(struct client *client);
void client_leave(struct client *client);

#endif
