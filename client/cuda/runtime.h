/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the CUDA runtime that are used, found when first needed: in the process, else by
 * dlopen(). Only functions, values and structures that are the same in CUDA 12 and 13. Immutable
 * once loaded; any thread.
 */
#ifndef STK_CUDA_RUNTIME_H
#define STK_CUDA_RUNTIME_H

#include "proto/err.h"

/* Values of cudaError_t that decide something. */
enum {
	STK__CUDA_SUCCESS = 0,
	STK__CUDA_INVALID_VALUE = 1,
	STK__CUDA_NO_MEMORY = 2,
	STK__CUDA_UNLOADING = 4,
	STK__CUDA_OLD_DRIVER = 35,
	STK__CUDA_NO_DEVICE = 100,
	STK__CUDA_INVALID_DEVICE = 101,
	STK__CUDA_NOT_READY = 600,
	STK__CUDA_NOT_SUPPORTED = 801,
	/* Errors that have to do with a graph being captured: from the first to the last. */
	STK__CUDA_CAPTURE_UNSUPPORTED = 900,
	STK__CUDA_CAPTURED_EVENT = 907,
	STK__CUDA_CAPTURE_WRONG_THREAD = 908,
};

enum {
	STK__CUDA_EVENT_DISABLE_TIMING = 2,
	STK__CUDA_STREAM_NON_BLOCKING = 1,
	STK__CUDA_REGISTER_PORTABLE = 1,
	STK__CUDA_HOST_ALLOC_PORTABLE = 1,
	STK__CUDA_COPY_HOST_TO_DEVICE = 1,
	STK__CUDA_CAPTURE_RELAXED = 2,
	STK__CUDA_ATTR_PAGEABLE_ACCESS = 88,
	STK__CUDA_ATTR_REGISTER_SUPPORTED = 99,
	STK__CUDA_ATTR_HOST_PAGE_TABLES = 100,
	STK__CUDA_ATTR_REGISTER_READ_ONLY = 113,
	STK__CUDA_ATTR_HOST_NUMA_ID = 134,
};

#define STK__CUDA_STREAM_LEGACY     ((void *)1)
#define STK__CUDA_STREAM_PER_THREAD ((void *)2)

/* Name without "cuda", parameters. Handles are pointers, enumerations ints. */
#define STK__CUDA_FUNCTIONS(F)                                                                     \
	F(RuntimeGetVersion, (int *))                                                              \
	F(GetDeviceCount, (int *))                                                                 \
	F(GetDevice, (int *))                                                                      \
	F(SetDevice, (int))                                                                        \
	F(DeviceGetAttribute, (int *, int, int))                                                   \
	F(DeviceGetPCIBusId, (char *, int, int))                                                   \
	F(DeviceSynchronize, (void))                                                               \
	F(ThreadExchangeStreamCaptureMode, (int *))                                                \
	F(GetLastError, (void))                                                                    \
	F(HostRegister, (void *, size_t, unsigned))                                                \
	F(HostUnregister, (void *))                                                                \
	F(HostAlloc, (void **, size_t, unsigned))                                                  \
	F(FreeHost, (void *))                                                                      \
	F(Malloc, (void **, size_t))                                                               \
	F(Free, (void *))                                                                          \
	F(MemcpyAsync, (void *, const void *, size_t, int, void *))                                \
	F(StreamCreateWithFlags, (void **, unsigned))                                              \
	F(StreamDestroy, (void *))                                                                 \
	F(StreamSynchronize, (void *))                                                             \
	F(StreamWaitEvent, (void *, void *, unsigned))                                             \
	F(EventCreateWithFlags, (void **, unsigned))                                               \
	F(EventDestroy, (void *))                                                                  \
	F(EventRecord, (void *, void *))                                                           \
	F(EventQuery, (void *))

struct stk__cuda_runtime {
#define STK__CUDA_MEMBER(name, parameters) int(*name) parameters;
	STK__CUDA_FUNCTIONS(STK__CUDA_MEMBER)
#undef STK__CUDA_MEMBER
	const char *(*GetErrorName)(int);
	const char *(*GetErrorString)(int);
	int version;
};

/**
 * stk__cuda_runtime() - the process's CUDA runtime, with at least one device
 *
 * Makes no context. A failure is found out again by the next call: a driver may come later.
 *
 * Return: 0; -ENODEV: no runtime, driver or device; the text says which.
 */
int stk__cuda_runtime(const struct stk__cuda_runtime **ret, struct stk_err *err);

/*
 * After a call that failed with @code: takes the error away from the thread, so that the trainer's
 * next check is not blamed for it. "cudaMalloc: cudaErrorMemoryAllocation (out of memory): WHAT".
 * The error's code becomes @code itself, which is positive.
 * Return: -ENOMEM, -ENODEV or -EIO.
 */
int stk__cuda_error(const struct stk__cuda_runtime *rt, int code, const char *function,
		    struct stk_err *err, const char *what, ...) _printf_(5, 6);

/* Of an event, beside 1 and 0. */
enum { STK__CUDA_EVENT_TAKEN = 2 };

/*
 * What an event is: 1 complete, 0 not yet, EVENT_TAKEN into a graph that was being captured on its
 * stream, so that it tells nothing and must not be waited for; negative errno. Leaves nothing behind
 * either.
 */
int stk__cuda_event_done(const struct stk__cuda_runtime *rt, void *event, struct stk_err *err);

#endif
