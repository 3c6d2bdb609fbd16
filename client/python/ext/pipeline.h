/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's pipeline of libstoker-cuda, where the loader asked for one: batches on a device, or host
 * batches in page-locked memory. Without the GIL; under the client's lock but for what is atomic.
 */
#ifndef STK_PYTHON_PIPELINE_H
#define STK_PYTHON_PIPELINE_H

#include "client/python/ext/lease.h"

enum pipeline_kind { PIPELINE_NONE, PIPELINE_DEVICE, PIPELINE_HOST };

struct pipeline {
	unsigned kind;         /* enum pipeline_kind */
	int32_t wanted;        /* ordinal; -1: the device that is current at the first next */
	uint32_t depth;        /* of device slots; 0: the library's */
	struct stk_cuda *cuda; /* NULL: not open */
	int32_t device;        /* that it is open on */
	char pci[32];
	char *_Atomic warning; /* what the library warned of, for whoever has the GIL */
};

/* Says in the options which device the batches go to. 0; -ENODEV and why. */
int pipeline_place(struct pipeline *p, struct stk_client_opts *opts, char *error, size_t size);

/* 0; -ENODEV: an error of CUDA, named; -EINVAL, -ENOMEM. Nothing to do when it is open. */
int pipeline_open(struct pipeline *p, struct stk_client *client, char *error, size_t size);

#define PIPELINE_TAKE INT32_MIN /* a timeout: what is ready */

/**
 * pipeline_next() - as stk_client_next()
 * @ret: its stream is given
 *
 * While the caller holds all device slots it is STK_TIMEOUT, a little later.
 */
int pipeline_next(struct pipeline *p, int timeout_ms, struct taken *ret, char *error, size_t size);

int pipeline_seek(struct pipeline *p, const void *state, size_t state_size, char *error,
		  size_t size);

/* Before the client is closed. */
void pipeline_close(struct pipeline *p);
/* In a forked child it is the parent's. */
void pipeline_deinit(struct pipeline *p);

#endif
