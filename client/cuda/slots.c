/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device slots: which one is free, the copy into it, and when host memory goes back. Owns the
 * copies in flight. Under the pipeline's lock, with its device current.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/nvtx.h"
#include "client/cuda/pipeline.h"

/* Events. */

int stk__cuda_event_get(struct stk_cuda *c, void **ret, struct stk_err *err)
{
	int code;

	if (c->nevents) {
		*ret = c->events[--c->nevents];
		return 0;
	}
	code = c->rt->EventCreateWithFlags(ret, STK__CUDA_EVENT_DISABLE_TIMING);
	if (code == STK__CUDA_SUCCESS)
		return 0;
	return stk__cuda_error(c->rt, code, "cudaEventCreateWithFlags", err, "making an event");
}

/* At the process's end the runtime may be gone before us; the trainer is not to hear of it. */
static void tolerate(const struct stk_cuda *c, int code)
{
	if (code != STK__CUDA_SUCCESS)
		c->rt->GetLastError();
}

void stk__cuda_event_put(struct stk_cuda *c, void *event)
{
	if (c->nevents == c->events_room) {
		uint32_t room = STK_MAX(2 * c->events_room, 16);
		void **events = realloc(c->events, room * sizeof(*events));

		if (!events) {
			tolerate(c, c->rt->EventDestroy(event));
			return;
		}
		c->events = events;
		c->events_room = room;
	}
	c->events[c->nevents++] = event;
}

/* Making and freeing. */

static int slot_new(struct stk_cuda *c, uint32_t i, struct stk_err *err)
{
	struct stk_cuda_batch *slot = &c->slots[i];
	void *data;
	int code;

	slot->cuda = c;
	slot->number = i;
	code = c->rt->Malloc(&data, c->slot_size);
	if (code != STK__CUDA_SUCCESS)
		return stk__cuda_error(c->rt, code, "cudaMalloc", err,
				       "making device slot %" PRIu32 " of %" PRIu32 ", %" PRIu64
				       " bytes on device %d",
				       i, c->depth, c->slot_size, c->device->ordinal);
	slot->data = data;
	return stk__cuda_event_get(c, &slot->copied, err);
}

int stk__cuda_slots_new(struct stk_cuda *c, struct stk_err *err)
{
	int code = c->rt->StreamCreateWithFlags(&c->stream, STK__CUDA_STREAM_NON_BLOCKING);
	int r = 0;

	if (code != STK__CUDA_SUCCESS)
		return stk__cuda_error(c->rt, code, "cudaStreamCreateWithFlags", err,
				       "making the copy stream on device %d", c->device->ordinal);
	for (uint32_t i = 0; r == 0 && i < c->depth; i++)
		r = slot_new(c, i, err);
	return r;
}

static void slot_free(struct stk_cuda *c, struct stk_cuda_batch *slot)
{
	while (slot->nuses)
		stk__cuda_event_put(c, slot->uses[--slot->nuses]);
	if (slot->copied)
		stk__cuda_event_put(c, slot->copied);
	if (slot->bounce)
		tolerate(c, c->rt->FreeHost(slot->bounce));
	if (slot->data)
		tolerate(c, c->rt->Free(slot->data));
	stk__schema_unref(slot->schema);
	free(slot->uses);
	free(slot->lists);
}

void stk__cuda_slots_free(struct stk_cuda *c)
{
	for (uint32_t i = 0; c->slots && i < c->depth; i++)
		slot_free(c, &c->slots[i]);
	while (c->nevents)
		tolerate(c, c->rt->EventDestroy(c->events[--c->nevents]));
	if (c->stream)
		tolerate(c, c->rt->StreamDestroy(c->stream));
	c->stream = NULL;
}

/* What is done? */

static void landed(struct stk_cuda_batch *slot)
{
	slot->copying = false;
	stk_batch_release(slot->host);
	slot->host = NULL;
}

/* One stream: copies complete in order, and the first that has not answers for the rest. */
int stk__cuda_poll(struct stk_cuda *c, struct stk_err *err)
{
	while (c->nflight) {
		struct stk_cuda_batch *slot = c->flight[c->flight_head % STK__CUDA_DEPTH_MAX];
		int r = stk__cuda_event_done(c->rt, slot->copied, err);

		if (r <= 0)
			return r;
		landed(slot);
		c->flight_head++;
		c->nflight--;
	}
	return 0;
}

/*
 * Has everybody read it who was to? A broken device says so at the next copy. All events are looked
 * at: one that was taken into a graph would take the copy stream along if it were waited for.
 */
static bool is_read(struct stk_cuda *c, struct stk_cuda_batch *slot)
{
	for (uint32_t i = slot->nuses; i-- > 0;) {
		int r = stk__cuda_event_done(c->rt, slot->uses[i], NULL);

		if (r == 0)
			continue;
		slot->unordered |= r == STK__CUDA_EVENT_TAKEN;
		stk__cuda_event_put(c, slot->uses[i]);
		slot->uses[i] = slot->uses[--slot->nuses];
	}
	return !slot->nuses && !slot->unordered;
}

/* No event tells when it is free. */
static struct stk_cuda_batch *settle_unordered(struct stk_cuda *c, struct stk_cuda_batch *slot)
{
	if (!stk__cuda_wait_device(c))
		return NULL;
	slot->unordered = false;
	return slot;
}

static struct stk_cuda_batch *choose(struct stk_cuda *c, bool lag)
{
	struct stk_cuda_batch *oldest = NULL, *unordered = NULL;

	for (uint32_t i = 0; i < c->depth; i++) {
		struct stk_cuda_batch *slot = &c->slots[i];

		if (slot->slot != STK__CUDA_FREE || slot->copying)
			continue;
		if (is_read(c, slot))
			return slot;
		if (slot->unordered)
			unordered = slot;
		else if (!oldest || slot->released < oldest->released)
			oldest = slot;
	}
	if (lag && !oldest && unordered)
		return settle_unordered(c, unordered);
	return lag ? oldest : NULL;
}

bool stk__cuda_exhausted(const struct stk_cuda *c)
{
	return c->lent == c->depth;
}

/* The copy. */

/* The device's own order: the copy stream waits for readers that are not done. */
static int after_readers(struct stk_cuda *c, struct stk_cuda_batch *slot, struct stk_err *err)
{
	c->lagging += slot->nuses > 0;
	while (slot->nuses) {
		int code = c->rt->StreamWaitEvent(c->stream, slot->uses[slot->nuses - 1], 0);

		if (code != STK__CUDA_SUCCESS)
			return stk__cuda_error(c->rt, code, "cudaStreamWaitEvent", err,
					       "ordering a copy after the slot's last batch");
		stk__cuda_event_put(c, slot->uses[--slot->nuses]);
	}
	return 0;
}

/* Where the copy reads: the slot in place, or a pinned buffer filled here. */
static const void *source(struct stk_cuda *c, struct stk_cuda_batch *slot,
			  const struct stk_batch_info *info)
{
	if (c->memory != STK_CUDA_MEMORY_BOUNCE)
		return info->data;
	memcpy(slot->bounce, info->data, info->data_size);
	return slot->bounce;
}

static int start_copy(struct stk_cuda *c, struct stk_cuda_batch *slot, struct stk_err *err)
{
	const struct stk_batch_info *info = &slot->info;
	int code = c->rt->MemcpyAsync(slot->data, source(c, slot, info), info->data_size,
				      STK__CUDA_COPY_HOST_TO_DEVICE, c->stream);
	int r;

	if (code != STK__CUDA_SUCCESS)
		return stk__cuda_error(c->rt, code, "cudaMemcpyAsync", err,
				       "copying epoch %" PRIu64 " step %" PRIu64 ", %" PRIu64
				       " bytes, to device %d",
				       info->epoch, info->step, info->data_size,
				       c->device->ordinal);
	code = c->rt->EventRecord(slot->copied, c->stream);
	if (code == STK__CUDA_SUCCESS)
		return 0;
	/* Nothing tells when the copy is done: it is waited for, and repeated by the next call. */
	r = stk__cuda_error(c->rt, code, "cudaEventRecord", err,
			    "after copying epoch %" PRIu64 " step %" PRIu64, info->epoch,
			    info->step);
	if (c->rt->StreamSynchronize(c->stream) != STK__CUDA_SUCCESS)
		c->rt->GetLastError();
	return r;
}

static int check_size(const struct stk_cuda *c, const struct stk_cuda_batch *slot,
		      struct stk_err *err)
{
	if (slot->info.data_size <= c->slot_size)
		return 0;
	return stk_err_set(err, -EPROTO,
			   "batch of %" PRIu64 " bytes: device slots have %" PRIu64
			   ", as announced when the pipeline was opened",
			   slot->info.data_size, c->slot_size);
}

static void append(struct stk_cuda_batch **ring, uint32_t head, uint32_t *n,
		   struct stk_cuda_batch *slot)
{
	ring[(head + (*n)++) % STK__CUDA_DEPTH_MAX] = slot;
}

int stk__cuda_issue(struct stk_cuda *c, bool lag, struct stk_err *err)
{
	struct stk_cuda_batch *slot = choose(c, lag);
	int r;

	if (!slot)
		return STK__CUDA_NEED_SLOT;
	stk__nvtx_push("stoker copy");
	if (!stk__cuda_is_settled(c, c->held->session))
		stk__cuda_settle(c, c->held->session);
	if ((r = stk__cuda_describe(slot, c->held, err)) == 0 &&
	    (r = check_size(c, slot, err)) == 0 && (r = after_readers(c, slot, err)) == 0 &&
	    (r = start_copy(c, slot, err)) == 0) {
		slot->host = c->held;
		c->held = NULL;
		slot->epoch_ends = c->epoch_ends;
		c->epoch_ends = 0;
		slot->slot = STK__CUDA_AHEAD;
		slot->copying = true;
		append(c->ahead, c->ahead_head, &c->nahead, slot);
		append(c->flight, c->flight_head, &c->nflight, slot);
		if (c->memory == STK_CUDA_MEMORY_BOUNCE) {
			stk_batch_release(slot->host);
			slot->host = NULL;
		}
	}
	stk__nvtx_pop();
	return r;
}

/* Errors are left to the call that needs the batch: it tries again. */
void stk__cuda_pump(struct stk_cuda *c)
{
	while (c->nahead + c->lent < c->depth) {
		if (!c->held) {
			int r = choose(c, !c->nahead) ? stk_client_take(c->client, &c->held)
						      : STK_TIMEOUT;

			if (r == STK_EPOCH_END) {
				c->epoch_ends++;
				continue;
			}
			if (r)
				return;
		}
		if (stk__cuda_issue(c, !c->nahead, NULL))
			return;
	}
}

int stk__cuda_use(struct stk_cuda *c, struct stk_cuda_batch *slot, void *stream,
		  struct stk_err *err)
{
	void *event;
	int code, r;

	if (slot->nuses == slot->uses_room) {
		uint32_t room = STK_MAX(2 * slot->uses_room, 4);
		void **uses = realloc(slot->uses, room * sizeof(*uses));

		if (!uses)
			return stk_err_set(err, -ENOMEM, "release: no memory");
		slot->uses = uses;
		slot->uses_room = room;
	}
	r = stk__cuda_event_get(c, &event, err);
	if (r < 0)
		return r;
	code = c->rt->EventRecord(event, stream);
	if (code != STK__CUDA_SUCCESS) {
		stk__cuda_event_put(c, event);
		return stk__cuda_error(c->rt, code, "cudaEventRecord", err,
				       "on the stream that uses epoch %" PRIu64 " step %" PRIu64,
				       slot->info.epoch, slot->info.step);
	}
	slot->uses[slot->nuses++] = event;
	return 0;
}

void stk__cuda_drop(struct stk_cuda *c)
{
	while (c->nahead) {
		c->ahead[c->ahead_head++ % STK__CUDA_DEPTH_MAX]->slot = STK__CUDA_FREE;
		c->nahead--;
	}
	stk_batch_release(c->held);
	c->held = NULL;
	c->epoch_ends = 0;
}
