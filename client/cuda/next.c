/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stk_cuda_next(), seek and state: what owns the client. Waits for the daemon outside the lock, on
 * the caller's thread; touches the device in short steps.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <time.h>

#include "client/cuda/nvtx.h"
#include "client/cuda/pipeline.h"

#define SLOT_PAUSE_NS 100000 /* between looks at a device that is behind */
#define FLIGHT_MS     1      /* between looks at copies, while nothing is ready */
#define FOREVER       INT64_MAX

struct next_call {
	struct stk_cuda *c;
	void *stream;
	struct stk_cuda_batch *batch; /* out */
	struct stk_err err;
};

/* Time. */

static int64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int64_t left_ns(int64_t deadline_ns)
{
	return deadline_ns == FOREVER ? FOREVER : STK_MAX(deadline_ns - now_ns(), 0);
}

static void pause_ns(int64_t ns)
{
	struct timespec ts = {.tv_nsec = (long)ns};

	nanosleep(&ts, NULL);
}

/* Delivering. */

int stk__cuda_check_stream(struct stk_cuda *c, const void *stream, struct stk_err *err)
{
	if (stream != STK__CUDA_STREAM_PER_THREAD || stk__cuda_is_current(c->device))
		return 0;
	return stk_err_set(err, -EINVAL,
			   "stream: the per-thread default stream of a thread whose current device "
			   "is not %d",
			   c->device->ordinal);
}

static int wait_copied(const struct stk_cuda *c, const struct stk_cuda_batch *slot, void *stream,
		       struct stk_err *err)
{
	int code;

	if (stream == STK_CUDA_NO_STREAM)
		return 0;
	code = c->rt->StreamWaitEvent(stream, slot->copied, 0);
	if (code == STK__CUDA_SUCCESS)
		return 0;
	return stk__cuda_error(c->rt, code, "cudaStreamWaitEvent", err,
			       "making the caller's stream wait for the copy");
}

/* Hands out the first batch that is ahead, or the end of an epoch before it. */
static int deliver(struct next_call *call)
{
	struct stk_cuda *c = call->c;
	struct stk_cuda_batch *slot = c->ahead[c->ahead_head % STK__CUDA_DEPTH_MAX];
	int r;

	if (slot->epoch_ends) {
		slot->epoch_ends--;
		return STK_EPOCH_END;
	}
	r = wait_copied(c, slot, call->stream, &call->err);
	if (r < 0)
		return r;
	c->ahead_head++;
	c->nahead--;
	c->lent++;
	c->batches++;
	slot->slot = STK__CUDA_LENT;
	memcpy(c->state, slot->state, slot->state_size);
	c->state_size = slot->state_size;
	call->batch = slot;
	return 0;
}

/* Nothing was ahead: what is held is copied now, and what is ready with it. */
static int deliver_now(struct next_call *call)
{
	struct stk_cuda *c = call->c;
	int r;

	if (c->epoch_ends) {
		c->epoch_ends--;
		return STK_EPOCH_END;
	}
	if (!c->held)
		return STK__CUDA_NEED_BATCH;
	r = stk__cuda_issue(c, true, &call->err);
	if (r == 0)
		r = deliver(call);
	if (r == 0)
		stk__cuda_pump(c);
	return r;
}

/* Nothing is ahead: looks at what is complete, then goes on as far as that allows. */
static int look(struct next_call *call)
{
	struct stk_cuda *c = call->c;
	int r = stk__cuda_poll(c, &call->err);

	if (r == 0 && c->deferred)
		r = stk__cuda_poll_deferred(c, &call->err);
	if (r < 0)
		return r;
	if (c->flags & STK_CUDA_HOST)
		return STK__CUDA_NEED_BATCH;
	if (stk__cuda_exhausted(c))
		return stk_err_set(
			&call->err, -EBUSY,
			"all %u device slots are held: release a batch, or open with more depth",
			c->depth);
	return deliver_now(call);
}

/*
 * As far as it goes without waiting. With the device current. What is ahead is handed out by one
 * call of the runtime; the release looks at what is complete.
 */
static int step(void *arg)
{
	struct next_call *call = arg;
	struct stk_cuda *c = call->c;
	int r;

	pthread_mutex_lock(&c->lock);
	if (c->nahead) {
		r = deliver(call);
		c->ahead_hits += r == 0;
	} else {
		r = look(call);
	}
	pthread_mutex_unlock(&c->lock);
	return r;
}

/* Waiting. */

static bool in_flight(struct stk_cuda *c)
{
	bool busy;

	pthread_mutex_lock(&c->lock);
	busy = c->nflight || c->deferred;
	pthread_mutex_unlock(&c->lock);
	return busy;
}

/* Waits for the daemon, but not longer than copies may be left alone. 0: c->held is set. */
static int wait_client(struct next_call *call, int64_t deadline_ns)
{
	struct stk_cuda *c = call->c;
	int64_t left = left_ns(deadline_ns);
	int timeout_ms = left == FOREVER ? -1 : (int)STK_MIN((left + 999999) / 1000000, INT32_MAX);
	int r;

	if (in_flight(c) && (timeout_ms < 0 || timeout_ms > FLIGHT_MS))
		timeout_ms = FLIGHT_MS;
	stk__nvtx_push("stoker wait");
	r = stk_client_next(c->client, timeout_ms, &c->held);
	stk__nvtx_pop();
	if (r == STK_TIMEOUT && left_ns(deadline_ns))
		return STK__CUDA_NEED_BATCH;
	return r < 0 ? stk_err_set(&call->err, r, "%s", stk_client_error(c->client)) : r;
}

static int next(struct next_call *call, int timeout_ms)
{
	struct stk_cuda *c = call->c;
	int64_t deadline = 0, left; /* the clock is not read for what is ready */
	int r;

	for (;;) {
		r = stk__cuda_run(c->device, step, call, &call->err);
		if (r != STK__CUDA_NEED_BATCH && r != STK__CUDA_NEED_SLOT)
			return r;
		if (!deadline)
			deadline =
				timeout_ms < 0 ? FOREVER : now_ns() + timeout_ms * INT64_C(1000000);
		if (r == STK__CUDA_NEED_SLOT) {
			left = left_ns(deadline);
			if (!left)
				return STK_TIMEOUT;
			pause_ns(STK_MIN(left, SLOT_PAUSE_NS));
			continue;
		}
		r = wait_client(call, deadline);
		if ((r && r != STK__CUDA_NEED_BATCH) || (r == 0 && c->flags & STK_CUDA_HOST))
			return r;
	}
}

/* What is ahead, or ready in the ring. */
static int take(struct next_call *call)
{
	struct stk_cuda *c = call->c;

	for (;;) {
		int r = stk__cuda_run(c->device, step, call, &call->err);

		if (r == STK__CUDA_NEED_SLOT)
			return STK_TIMEOUT;
		if (r != STK__CUDA_NEED_BATCH)
			return r;
		r = stk_client_take(c->client, &c->held);
		if (r < 0)
			return stk_err_set(&call->err, r, "%s", stk_client_error(c->client));
		if (r || c->flags & STK_CUDA_HOST)
			return r;
	}
}

/* One thread at a time takes from the client. */
static int own(struct stk_cuda *c)
{
	int r = 0;

	if (!stk__cuda_usable(
		    c)) /* and its lock may be held for ever by a thread that is not here */
		return stk_err_set(&c->err, -ECHILD,
				   "this pipeline belongs to the process that forked; open one "
				   "here");
	pthread_mutex_lock(&c->lock);
	if (c->owned)
		r = stk_err_set(&c->err, -EBUSY, "another thread is in next or seek");
	else
		c->owned = true;
	pthread_mutex_unlock(&c->lock);
	return r;
}

static int disown(struct next_call *call, int r)
{
	struct stk_cuda *c = call->c;
	bool unsaid;

	pthread_mutex_lock(&c->lock);
	if (r < 0)
		c->err = call->err;
	c->owned = false;
	unsaid = c->unsaid;
	pthread_mutex_unlock(&c->lock);
	if (unsaid)
		stk__cuda_say(c);
	return r;
}

#define TAKE INT_MIN /* for a timeout: what is ready, or nothing */

static int next_device(struct stk_cuda *c, int timeout_ms, void *stream,
		       struct stk_cuda_batch **ret_batch)
{
	struct next_call call = {.c = c, .stream = stk__cuda_stream(c, stream)};
	int r = own(c);

	if (r < 0)
		return r;
	r = stk__cuda_check_stream(c, call.stream, &call.err);
	if (r == 0 && c->flags & STK_CUDA_HOST)
		r = stk_err_set(&call.err, -EINVAL, "this pipeline has no device slots");
	if (r == 0)
		r = timeout_ms == TAKE ? take(&call) : next(&call, timeout_ms);
	if (r == 0)
		*ret_batch = call.batch;
	return disown(&call, r);
}

static int next_host(struct stk_cuda *c, int timeout_ms, struct stk_batch **ret_batch)
{
	struct next_call call = {.c = c};
	int r = own(c);

	if (r < 0)
		return r;
	if (!(c->flags & STK_CUDA_HOST))
		r = stk_err_set(&call.err, -EINVAL,
				"this pipeline was not opened for host batches");
	if (r == 0 && !c->held)
		r = timeout_ms == TAKE ? take(&call) : next(&call, timeout_ms);
	if (r == 0)
		r = stk__cuda_lend_host(c, ret_batch, &call.err);
	return disown(&call, r);
}

STK_PUBLIC int stk_cuda_next(struct stk_cuda *c, int timeout_ms, void *stream,
			     struct stk_cuda_batch **ret_batch)
{
	return next_device(c, STK_MAX(timeout_ms, -1), stream, ret_batch);
}

STK_PUBLIC int stk_cuda_take(struct stk_cuda *c, void *stream, struct stk_cuda_batch **ret_batch)
{
	return next_device(c, TAKE, stream, ret_batch);
}

STK_PUBLIC int stk_cuda_next_host(struct stk_cuda *c, int timeout_ms, struct stk_batch **ret_batch)
{
	return next_host(c, STK_MAX(timeout_ms, -1), ret_batch);
}

STK_PUBLIC int stk_cuda_take_host(struct stk_cuda *c, struct stk_batch **ret_batch)
{
	return next_host(c, TAKE, ret_batch);
}

STK_PUBLIC int stk_cuda_state(struct stk_cuda *c, void *state, size_t room)
{
	int r;

	pthread_mutex_lock(&c->lock);
	r = c->state_size > room ? -ENOSPC : (int)c->state_size;
	if (r >= 0)
		memcpy(state, c->state, c->state_size);
	pthread_mutex_unlock(&c->lock);
	return r;
}

STK_PUBLIC int stk_cuda_seek(struct stk_cuda *c, const void *state, size_t size)
{
	struct next_call call = {.c = c};
	int r = own(c);

	if (r < 0)
		return r;
	r = stk_client_seek(c->client, state, size);
	if (r < 0)
		return disown(&call, stk_err_set(&call.err, r, "%s", stk_client_error(c->client)));
	pthread_mutex_lock(&c->lock);
	stk__cuda_drop(c);
	r = stk_client_state(c->client, c->state, sizeof(c->state));
	c->state_size = r < 0 ? 0 : (size_t)r;
	pthread_mutex_unlock(&c->lock);
	return disown(&call, 0);
}
