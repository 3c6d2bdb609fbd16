/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One device, and how to have it current without touching the caller's current device: setting that
 * back would make a context on a device that nobody asked for. Calls of a thread whose current
 * device it is run there; all others run on a thread of ours, started when first needed. Counted.
 */
#ifndef STK_CUDA_DEVICE_H
#define STK_CUDA_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include "client/cuda/runtime.h"
#include "client/cuda/stoker_cuda.h"

struct stk__cuda_device {
	_Atomic uint32_t refs;
	const struct stk__cuda_runtime *rt;
	int ordinal;
	pthread_mutex_t callers; /* one call at a time on the thread; then everything below */
	pthread_mutex_t lock;    /* the job */
	pthread_cond_t changed;
	pthread_t thread;
	bool started, stop, pending;
	int failed; /* of cudaSetDevice() there */
	int (*fn)(void *arg);
	void *arg;
	int result;
};

/* -1: the current device. -ENODEV. Makes no context. */
int stk__cuda_device_new(int ordinal, struct stk__cuda_device **ret, struct stk_err *err);
struct stk__cuda_device *stk__cuda_device_ref(struct stk__cuda_device *device);
/* Not from within stk__cuda_run(). */
struct stk__cuda_device *stk__cuda_device_unref(struct stk__cuda_device *device);
STK_DEFINE_CLEANUP(struct stk__cuda_device *, stk__cuda_device_unref)

/* True when the calling thread's current device is this one, or nothing can be made on any. */
bool stk__cuda_is_current(const struct stk__cuda_device *device);

/**
 * stk__cuda_run() - call @fn with the device current
 *
 * A capture that some thread has under way is not disturbed by what @fn does.
 *
 * Return: what @fn returns; -EAGAIN: no thread could be started; -EIO: the device cannot be used.
 */
int stk__cuda_run(struct stk__cuda_device *device, int (*fn)(void *arg), void *arg,
		  struct stk_err *err);

#endif
