/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside the stand-in: one lock for everything, the beginning and end of each call. standin.c has the
 * devices and what tests ask, standin_memory.c the ranges, standin_stream.c streams and events.
 */
#ifndef STANDIN_PRIVATE_H
#define STANDIN_PRIVATE_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/runtime.h"
#include "tests/cuda/standin.h"

#define DEVICES_MAX 8

enum {
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	INVALID_HANDLE = 400,
	CAPTURE_UNSUPPORTED = 900,
	CAPTURE_ISOLATION = 905,
	CAPTURED_EVENT = 907,
};

#define API STANDIN_PUBLIC __attribute__((noinline))

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "stand-in for CUDA: " __VA_ARGS__);                                \
		fputc('\n', stderr);                                                               \
		abort();                                                                           \
	} while (0)

/* What programs that look at a runtime do on purpose: no death where the environment says so. */
#define STRICT(...)                                                                                \
	do {                                                                                       \
		if (!standin_lax)                                                                  \
			DIE(__VA_ARGS__);                                                          \
	} while (0)

enum kind { REGISTERED, PINNED, DEVICE };

/* Memory that the runtime knows. */
struct range {
	struct range *next;
	enum kind kind;
	int device;
	uint8_t *base;
	size_t size;
	unsigned busy; /* copies in flight */
};

extern pthread_mutex_t standin_lock;
extern pthread_cond_t standin_changed; /* something happened on a stream */
extern bool standin_capturing;
extern bool standin_lax;
extern int standin_broken;             /* what all calls of the device return; 0 */
extern _Atomic unsigned standin_delay; /* of a copy, microseconds */
extern __thread int standin_current;
extern __thread int standin_capture_mode; /* 0: global */

/* Counts; returns an error that was asked for. Returns with the lock held. */
int standin_enter(const char *name, bool touches);
int standin_leave(int code);

/* What a capture in global mode forbids to threads that have not relaxed. */
#define FORBIDDEN_IN_CAPTURE()                                                                     \
	do {                                                                                       \
		if (standin_capturing && standin_capture_mode != STK__CUDA_CAPTURE_RELAXED)        \
			return standin_leave(CAPTURE_UNSUPPORTED);                                 \
	} while (0)

#define ENTER(touches)                                                                             \
	do {                                                                                       \
		int code_ = standin_enter(__func__, touches);                                      \
                                                                                                   \
		if (code_)                                                                         \
			return standin_leave(code_);                                               \
	} while (0)

#define BROKEN()                                                                                   \
	do {                                                                                       \
		if (standin_broken)                                                                \
			return standin_leave(standin_broken);                                      \
	} while (0)

/* The rest under the lock. */

/* Host memory (or the device's) that overlaps; NULL. */
struct range *standin_range(const void *p, size_t size, bool host);
bool standin_holds(const struct range *range, const void *p, size_t size);
/* End the process when something is left. */
void standin_memory_balance(void);
void standin_stream_balance(void);
/* Forgets counts. */
void standin_stream_reset(void);
/* Default streams end with their work. */
void standin_end_defaults(void);

#endif
