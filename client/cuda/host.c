/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Host batches that the caller copies himself: given back when the streams that he names are done
 * with them. The runtime's own allocators guard only memory of their own. Any thread.
 */
#include <errno.h>
#include <stdlib.h>

#include "client/cuda/pipeline.h"

#define CAPTURE_PAUSES 20000 /* some seconds */

struct host_call {
	struct stk_cuda *c;
	struct stk__cuda_deferred *deferred;
	void *const *streams;
	uint32_t n;
	int wrong; /* a stream cannot be used: a negative errno, looked at on the caller's thread */
	bool last; /* out: the pipeline is closed, and no batch is left */
	struct stk_err err;
};

static int poll_one(struct stk_cuda *c, struct stk__cuda_deferred *d, struct stk_err *err)
{
	while (d->n) {
		int r = stk__cuda_event_done(c->rt, d->events[d->n - 1], err);

		if (r <= 0)
			return r;
		d->unordered |= r == STK__CUDA_EVENT_TAKEN;
		stk__cuda_event_put(c, d->events[--d->n]);
	}
	return !d->unordered || stk__cuda_wait_device(c);
}

int stk__cuda_poll_deferred(struct stk_cuda *c, struct stk_err *err)
{
	struct stk__cuda_deferred **at = &c->deferred;

	while (*at) {
		struct stk__cuda_deferred *d = *at;
		int r = poll_one(c, d, err);

		if (r < 0)
			return r;
		if (!r) {
			at = &d->next;
			continue;
		}
		*at = d->next;
		stk_batch_release(d->batch);
		free(d);
	}
	return 0;
}

void stk__cuda_drain_deferred(struct stk_cuda *c)
{
	unsigned pauses = 0;

	/* The caller may be the one who captures: that is not waited for without end. */
	while (c->deferred && stk__cuda_poll_deferred(c, NULL) == 0 &&
	       !(c->deferred && c->deferred->unordered && ++pauses > CAPTURE_PAUSES))
		if (c->deferred)
			stk__cuda_pause();
	/* A broken device reads nothing any more. */
	while (c->deferred) {
		struct stk__cuda_deferred *d = c->deferred;

		c->deferred = d->next;
		while (d->n)
			stk__cuda_event_put(c, d->events[--d->n]);
		stk_batch_release(d->batch);
		free(d);
	}
}

static int record_all(struct host_call *call)
{
	struct stk_cuda *c = call->c;
	struct stk__cuda_deferred *d = call->deferred;

	for (uint32_t i = 0; i < call->n; i++) {
		void *stream = stk__cuda_stream(c, call->streams[i]);
		int code, r;

		if (stream == STK_CUDA_ANY_STREAM)
			d->unordered |= !stk__cuda_wait_device(c);
		if (stream == STK_CUDA_ANY_STREAM || stream == STK_CUDA_NO_STREAM)
			continue;
		r = stk__cuda_event_get(c, &d->events[d->n], &call->err);
		if (r < 0)
			return r;
		code = c->rt->EventRecord(d->events[d->n++], stream);
		if (code != STK__CUDA_SUCCESS)
			return stk__cuda_error(c->rt, code, "cudaEventRecord", &call->err,
					       "on a stream that copies a host batch");
	}
	return 0;
}

/* A batch less that the caller holds. */
static bool is_last(struct stk_cuda *c)
{
	c->lent--;
	return c->closed && !c->lent;
}

static int defer(void *arg)
{
	struct host_call *call = arg;
	struct stk_cuda *c = call->c;
	int r;

	pthread_mutex_lock(&c->lock);
	r = call->wrong ? call->wrong : record_all(call);
	if (r < 0) {
		/* Nothing tells when the copy is done: it is waited for. -ENOMEM would ask for more. */
		c->err = call->err;
		call->deferred->unordered |= !stk__cuda_wait_device(c);
		r = r == -ENOMEM ? -EIO : r;
	}
	call->deferred->next = c->deferred;
	c->deferred = STK_STEAL(call->deferred);
	/* An error here is found again by the next call. */
	stk__cuda_poll_deferred(c, NULL);
	if (c->closed) /* there will be no next call */
		stk__cuda_drain_deferred(c);
	call->last = is_last(c);
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int settle_held(void *arg)
{
	struct stk_cuda *c = arg;

	pthread_mutex_lock(&c->lock);
	stk__cuda_settle(c, c->held->session);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

int stk__cuda_lend_host(struct stk_cuda *c, struct stk_batch **ret, struct stk_err *err)
{
	int r = 0;

	if (!stk__cuda_is_settled(c, c->held->session))
		r = stk__cuda_run(c->device, settle_held, c, err);
	if (r < 0)
		return r;
	pthread_mutex_lock(&c->lock);
	r = stk_batch_state(c->held, c->state, sizeof(c->state));
	c->state_size = r < 0 ? 0 : (size_t)r;
	c->batches++;
	c->lent++;
	*ret = STK_STEAL(c->held);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

/* Nobody copied from it. */
static void give_back(struct host_call *call, struct stk_batch *batch)
{
	struct stk_cuda *c = call->c;

	stk_batch_release(batch);
	pthread_mutex_lock(&c->lock);
	call->last = is_last(c);
	pthread_mutex_unlock(&c->lock);
}

/* By way of events, with the device current. */
static int give_back_later(struct host_call *call, struct stk_batch *batch)
{
	struct stk_cuda *c = call->c;
	struct stk__cuda_device *device;
	int r;

	call->deferred = calloc(1, sizeof(*call->deferred) + call->n * sizeof(void *));
	if (!call->deferred)
		return -ENOMEM;
	call->deferred->batch = batch;
	for (uint32_t i = 0; i < call->n && !call->wrong; i++)
		call->wrong = stk__cuda_check_stream(c, stk__cuda_stream(c, call->streams[i]),
						     &call->err);
	/* Another thread may give back the last batch, and free all of it, before we are back. */
	device = stk__cuda_device_ref(c->device);
	r = stk__cuda_run(device, defer, call, &call->err);
	stk__cuda_device_unref(device);
	free(call->deferred); /* the device was out of reach: nothing was done */
	return r;
}

STK_PUBLIC int stk_cuda_release_host(struct stk_cuda *c, struct stk_batch *batch,
				     void *const *streams, uint32_t n)
{
	struct host_call call = {.c = c, .streams = streams, .n = n};
	int r = 0;

	if (!batch)
		return 0;
	if (!stk__cuda_usable(c)) {
		stk_batch_release(batch);
		return 0;
	}
	if (n)
		r = give_back_later(&call, batch);
	else
		give_back(&call, batch);
	if (call.last)
		stk__cuda_destroy(c);
	return r;
}

static int poll_all(void *arg)
{
	struct host_call *call = arg;
	struct stk_cuda *c = call->c;
	int r;

	pthread_mutex_lock(&c->lock);
	r = stk__cuda_poll(c, &call->err);
	if (r == 0)
		r = stk__cuda_poll_deferred(c, &call->err);
	if (r < 0)
		c->err = call->err;
	pthread_mutex_unlock(&c->lock);
	return r;
}

STK_PUBLIC int stk_cuda_poll(struct stk_cuda *c)
{
	struct host_call call = {.c = c};

	return stk__cuda_usable(c) ? stk__cuda_run(c->device, poll_all, &call, &call.err) : -ECHILD;
}
