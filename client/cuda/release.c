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
	void *stream;
	int wrong; /* the stream cannot be used: a negative errno, looked at on the caller's thread */
	bool last; /* out: the pipeline is closed, and no batch is left */
	struct stk_err err;
};

/* The order could not be kept by event: then by waiting, once. */
static void wait_device(struct stk_cuda *c)
{
	if (c->rt->DeviceSynchronize() != STK__CUDA_SUCCESS)
		c->rt->GetLastError();
}

static int release(void *arg)
{
	struct use_call *call = arg;
	struct stk_cuda_batch *slot = call->batch;
	struct stk_cuda *c = slot->cuda;
	int r;

	pthread_mutex_lock(&c->lock);
	stk__nvtx_push("stoker release");
	r = call->wrong ? call->wrong : stk__cuda_use(c, slot, call->stream, &call->err);
	if (r < 0) {
		c->err = call->err;
		wait_device(c);
	}
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

STK_PUBLIC int stk_cuda_release(struct stk_cuda_batch *batch, void *stream)
{
	struct use_call call = {.batch = batch};
	struct stk__cuda_device *device;
	struct stk_cuda *c;
	int r;

	if (!batch)
		return 0;
	c = batch->cuda;
	if (!stk__cuda_usable(c))
		return -ECHILD;
	call.stream = stk__cuda_stream(c, stream);
	call.wrong = stk__cuda_check_stream(c, call.stream, &call.err);
	/* Another thread may release the last batch, and free all of it, before we are back. */
	device = stk__cuda_device_ref(c->device);
	r = stk__cuda_run(device, release, &call, &call.err);
	stk__cuda_device_unref(device);
	if (call.last)
		stk__cuda_destroy(c);
	return r;
}

static int record(void *arg)
{
	struct use_call *call = arg;
	struct stk_cuda *c = call->batch->cuda;
	int code, r;

	pthread_mutex_lock(&c->lock);
	code = c->rt->StreamWaitEvent(call->stream, call->batch->copied, 0);
	if (code != STK__CUDA_SUCCESS)
		r = stk__cuda_error(c->rt, code, "cudaStreamWaitEvent", &call->err,
				    "making another stream wait for the copy");
	else
		r = stk__cuda_use(c, call->batch, call->stream, &call->err);
	if (r < 0)
		c->err = call->err;
	pthread_mutex_unlock(&c->lock);
	return r;
}

STK_PUBLIC int stk_cuda_record(struct stk_cuda_batch *batch, void *stream)
{
	struct stk_cuda *c = batch->cuda;
	struct use_call call = {.batch = batch, .stream = stk__cuda_stream(c, stream)};
	int r;

	if (!stk__cuda_usable(c))
		return -ECHILD;
	r = stk__cuda_check_stream(c, call.stream, &call.err);
	return r < 0 ? r : stk__cuda_run(c->device, record, &call, &call.err);
}
