/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ahead: batches that were made into tensors before they are asked for. A trainer comes once in a while,
 * and finds the processor's caches full of its own: making one batch takes fifty times as long as making
 * the next one behind it. They are in order, of one epoch, and returned to nobody yet. With the GIL.
 */
#ifndef STK_PYTHON_AHEAD_H
#define STK_PYTHON_AHEAD_H

#include "client/python/ext/batch.h"

#define AHEAD_MAX 3

struct ahead {
	PyObject *batch[AHEAD_MAX]; /* a queue of n from `first` on */
	uint32_t first, n;
	uint32_t room; /* at most AHEAD_MAX; 0: nothing is made ahead */
	/* After the batch that was returned last; the library's own state is ahead, too. */
	size_t state_size;
	char state[STK_STATE_MAX];
};

/* A reference is taken over. There is room. */
void ahead_push(struct ahead *ahead, PyObject *batch);
/* A reference is given. There is one. */
PyObject *ahead_pop(struct ahead *ahead);
/* Their slots go back. */
void ahead_drop(struct ahead *ahead);
int ahead_traverse(const struct ahead *ahead, visitproc visit, void *arg);

#endif
