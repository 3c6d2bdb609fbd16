/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client of a daemon in this process, a pipeline on the stand-in, and what tests do with them. One
 * at a time; belongs to its test.
 */
#ifndef CUDA_FIXTURE_H
#define CUDA_FIXTURE_H

#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/cuda/runtime.h"
#include "client/cuda/stoker_cuda.h"
#include "tests/cuda/standin.h"
#include "tests/unit/fake_daemon.h"

/* Of the stand-in; the runtime's own names. */
int cudaSetDevice(int device);
int cudaGetDevice(int *ret);
int cudaStreamCreateWithFlags(void **ret, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
int cudaStreamWaitEvent(void *stream, void *event, unsigned flags);
int cudaEventCreateWithFlags(void **ret, unsigned flags);
int cudaEventRecord(void *event, void *stream);
int cudaEventQuery(void *event);
int cudaEventDestroy(void *event);

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
	struct stk_cuda_opts cuda_opts;
	struct stk_cuda *cuda;
	void *stream; /* the trainer's */
	uint64_t published, drained;
	unsigned warnings;
	char warning[2048];
};

/* A kernel that reads the batch on the device. */
struct check {
	const int32_t *ids;
	uint64_t step;
	unsigned usec;
	_Atomic unsigned bad, ran;
};

extern sem_t gate; /* what gate_kernel() waits for */

void open_client(struct fixture *f);
void open_cuda(struct fixture *f);
int set_up_client(void **state);
int set_up(void **state);
void close_all(struct fixture *f);
int tear_down(void **state);
unsigned drain(struct fixture *f);
void publish(struct fixture *f);
struct stk_cuda_batch *next_batch(struct fixture *f);
int look(struct fixture *f);
uint64_t step_of(const struct stk_cuda_batch *batch);
void launch_check(struct fixture *f, const struct stk_cuda_batch *batch, struct check *check);
void check_kernel(void *arg);
void settle(struct fixture *f);
void gate_kernel(void *arg);

#define WITH(test)   cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define CLIENT(test) cmocka_unit_test_setup_teardown(test, set_up_client, tear_down)

#endif
