/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that callers hold: what they read on which streams, and their way back. Any thread; a
 * release also takes the opportunity to start the next copies.
 */
#include <errno.h>

#include "client/cuda/nvtx.h"
#include "client/cuda/pipeline.h"

struct use_call {
	struct stk_cuda_batch *batch;
	void *const *streams;
	uint32_t n;
	int wrong; /* a stream cannot be used: a negative errno, looked at on the caller's thread */
	bool last; /* out: the pipeline is closed, and no batch is left */
	struct stk_err err;
};

/* Whoever reads the batch is remembered, or has been waited for, or will be before the slot is used. */
static int order_readers(struct stk_cuda *c, struct use_call *call)
{
	int r = call->wrong;

	for (uint32_t i = 0; r == 0 && i < call->n; i++) {
		if (call->streams[i] == STK_CUDA_ANY_STREAM)
			call->batch->unordered |= !stk__cuda_wait_device(c);
		else if (call->streams[i] != STK_CUDA_NO_STREAM)
			r = stk__cuda_use(c, call->batch, stk__cuda_stream(c, call->streams[i]),
					  &call->err);
	}
	if (r < 0) {
		c->err = call->err;
		call->batch->unordered |= !stk__cuda_wait_device(c);
	}
	return r;
}

static int release(void *arg)
{
	struct use_call *call = arg;
	struct stk_cuda_batch *slot = call->batch;
	struct stk_cuda *c = slot->cuda;
	int r;

	pthread_mutex_lock(&c->lock);
	stk__nvtx_push("stoker release");
	r = order_readers(c, call);
	slot->slot = STK__CUDA_FREE;
	slot->released = ++c->releases;
	c->lent--;
	/* Errors of what goes on beside it are for the next call to find. */
	if (!c->closed && stk__cuda_poll(c, NULL) == 0 && !c->owned)
		stk__cuda_pump(c);
	call->last = c->closed && !c->lent;
	stk__nvtx_pop();
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* A per-thread stream is the caller's: it is looked at before another thread has the call. */
static int check_streams(struct stk_cuda *c, struct use_call *call)
{
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < call->n; i++)
		r = stk__cuda_check_stream(c, stk__cuda_stream(c, call->streams[i]), &call->err);
	return r;
}

STK_PUBLIC int stk_cuda_release_after(struct stk_cuda_batch *batch, void *const *streams,
				      uint32_t n)
{
	struct use_call call = {.batch = batch, .streams = streams, .n = n};
	struct stk__cuda_device *device;
	struct stk_cuda *c;
	int r;

	if (!batch)
		return 0;
	c = batch->cuda;
	if (!stk__cuda_usable(c))
		return -ECHILD;
	call.wrong = check_streams(c, &call);
	/* Another thread may release the last batch, and free all of it, before we are back. */
	device = stk__cuda_device_ref(c->device);
	r = stk__cuda_run(device, release, &call, &call.err);
	stk__cuda_device_unref(device);
	if (call.last)
		stk__cuda_destroy(c);
	return r;
}

STK_PUBLIC int stk_cuda_release(struct stk_cuda_batch *batch, void *stream)
{
	return stk_cuda_release_after(batch, &stream, 1);
}

static int wait_copied(void *arg)
{
	struct use_call *call = arg;
	struct stk_cuda *c = call->batch->cuda;
	int code, r = 0;

	pthread_mutex_lock(&c->lock);
	code = c->rt->StreamWaitEvent(call->streams[0], call->batch->copied, 0);
	if (code != STK__CUDA_SUCCESS) {
		r = stk__cuda_error(c->rt, code, "cudaStreamWaitEvent", &call->err,
				    "making another stream wait for the copy");
		c->err = call->err;
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int record(void *arg)
{
	struct use_call *call = arg;
	struct stk_cuda *c = call->batch->cuda;
	int r = wait_copied(arg);

	if (r < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	r = stk__cuda_use(c, call->batch, call->streams[0], &call->err);
	if (r < 0)
		c->err = call->err;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int use_on(struct stk_cuda_batch *batch, void *stream, int (*fn)(void *arg))
{
	struct stk_cuda *c = batch->cuda;
	void *meant = stk__cuda_stream(c, stream);
	struct use_call call = {.batch = batch, .streams = &meant, .n = 1};
	int r;

	if (!stk__cuda_usable(c))
		return -ECHILD;
	r = check_streams(c, &call);
	return r < 0 ? r : stk__cuda_run(c->device, fn, &call, &call.err);
}

STK_PUBLIC int stk_cuda_wait(struct stk_cuda_batch *batch, void *stream)
{
	return use_on(batch, stream, wait_copied);
}

STK_PUBLIC int stk_cuda_record(struct stk_cuda_batch *batch, void *stream)
{
	return use_on(batch, stream, record);
}
