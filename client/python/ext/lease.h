/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: the memory of one batch, counted over everything that points into it. The last reference
 * gives the slot back, from whichever thread and without the GIL: plain C and atomics, no Python. A
 * batch of a pipeline goes back after the work on the streams that read it.
 */
#ifndef STK_PYTHON_LEASE_H
#define STK_PYTHON_LEASE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "client/python/ext/cuda.h"
#include "client/python/ext/dlpack.h"
#include "client/stoker.h"

/* Slots that a client has lent out and that are still alive; outlives the client. */
struct lease_count {
	_Atomic uint32_t refs, held;
};

#define LEASE_USES 16 /* more streams than that are waited for */

/* A stream that reads the batch. The per-thread default stream is another one on each thread. */
struct lease_use {
	void *stream;
	pthread_t thread;
};

/* A batch as it was taken: of the host or of a device, and the pipeline it came through. */
struct taken {
	struct stk_batch *batch;
	struct stk_cuda_batch *on_device;
	struct stk_cuda *cuda; /* NULL: none */
	int32_t device;        /* of on_device */
	void *stream;          /* reads it from now on; STK_CUDA_NO_STREAM: none yet */
};

struct lease {
	_Atomic uint32_t refs;
	struct taken taken; /* no batch: the bytes were copied and the slot is back */
	struct lease_use uses[LEASE_USES]; /* with the GIL, then whoever drops the last reference */
	uint32_t nuses;
	bool unordered;     /* a consumer orders its reads itself */
	bool too_many;      /* streams */
	struct lease *next; /* of those that could not be given back yet */
	struct lease_count *count;
	char *copy;
	const char *base; /* of the batch; copied bytes lie at the same distances from copy */
};

/* A tensor within a lease; plain data. */
struct view {
	struct lease *lease; /* borrowed */
	void *data;
	uint64_t size;
	uint32_t element, ndim;
	bool read_only;
	int32_t device; /* -1: host memory */
	int64_t shape[STK_DIMS_MAX];
};

struct lease_count *lease_count_new(void);
void lease_count_unref(struct lease_count *count);

/* Takes over the batch, also when it fails. NULL: no memory. */
struct lease *lease_new(const struct taken *taken, struct lease_count *count, bool copy);
/* After the views were made: a copied batch's slot goes back at once. */
void lease_settle(struct lease *lease);
void lease_ref(struct lease *lease);
void lease_unref(struct lease *lease); /* NULL is fine */

/* Gives back what could not be given back when its last reference was dropped. */
void lease_retry(void);

/* What a batch tells, as stk_batch_info() and the others; slot is the device's. */
void taken_info(const struct taken *taken, struct stk_batch_info *info);
int taken_state(const struct taken *taken, void *state, size_t room);
uint32_t taken_ntensors(const struct taken *taken);
int taken_tensor_at(const struct taken *taken, uint32_t i, struct stk_tensor *ret);
/* Gives back a batch that nobody read. */
void taken_drop(const struct taken *taken);

/**
 * lease_use() - a stream reads the batch
 *
 * It waits for the copy to the device. The memory is kept until the work is done that is on the
 * stream when the last reference is dropped. With the GIL.
 *
 * Return: 0; 1: the batch came through no pipeline, and nothing was done; -EIO, -EINVAL.
 */
int lease_use(struct lease *lease, void *stream);

/* The tensor at a position; false when there is none. */
bool lease_view(struct lease *lease, uint32_t i, bool read_only, struct view *ret);
/* What comes with a batch beside its tensors, as signed numbers. */
enum lease_numbers {
	LEASE_SAMPLE_IDS,
	LEASE_LENGTHS,
	LEASE_ROW_FIRST,
	LEASE_SEGMENT_FROM,
	LEASE_NUMBERS,
};
const char *lease_numbers_name(enum lease_numbers which);
/*
 * False: this batch has none, as its rows are not packed. The view's lease is a new reference: those
 * of a batch on a device are copied, so that who keeps them does not keep its slot.
 */
bool lease_view_numbers(struct lease *lease, const struct stk_batch_info *info,
			enum lease_numbers which, bool read_only, struct view *ret);

/* New references to the lease, for a capsule. NULL: no memory. */
struct dlpack_managed *lease_export(const struct view *view, bool bool_as_u8);
struct dlpack_managed_versioned *lease_export_versioned(const struct view *view);

size_t view_item_size(const struct view *view);

#endif
