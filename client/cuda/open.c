/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a pipeline, and how the memory of a session is to be copied. The calls that
 * may wait for the device are all here.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/cuda/pipeline.h"

#define DEPTH_DEFAULT 3
#define FLAGS         (STK_CUDA_BOUNCE | STK_CUDA_PAGEABLE | STK_CUDA_PER_THREAD | STK_CUDA_HOST)
#define PAUSE_NS      100000

/* Memory. */

void stk__cuda_say(struct stk_cuda *c)
{
	char text[sizeof(c->reason) + 128];
	bool unsaid;

	pthread_mutex_lock(&c->lock);
	unsaid = c->unsaid;
	c->unsaid = false;
	snprintf(text, sizeof(text), "stoker: slots are not page-locked, copied %s: %s",
		 c->memory == STK_CUDA_MEMORY_BOUNCE ? "through pinned buffers"
						     : "as pageable memory",
		 c->reason);
	pthread_mutex_unlock(&c->lock);
	if (unsaid && c->warn)
		c->warn(c->warn_data, text);
	else if (unsaid)
		fprintf(stderr, "%s\n", text);
}

/* A pinned buffer for each device slot, so that it is free when the slot is. */
static int make_bounce(struct stk_cuda *c, struct stk_err *err)
{
	for (uint32_t i = 0; i < c->depth; i++) {
		void *buffer;
		int code;

		if (c->slots[i].bounce)
			continue;
		code = c->rt->HostAlloc(&buffer, c->slot_size, STK__CUDA_HOST_ALLOC_PORTABLE);
		if (code != STK__CUDA_SUCCESS)
			return stk__cuda_error(c->rt, code, "cudaHostAlloc", err,
					       "making a pinned buffer of %" PRIu64 " bytes",
					       c->slot_size);
		c->slots[i].bounce = buffer;
	}
	return 0;
}

/* Not registered, for the reason in err. To be told once for each kind of memory. */
static void settle_for_less(struct stk_cuda *c, bool wanted, struct stk_err *err)
{
	enum stk_cuda_memory before = c->memory;
	struct stk_err why = *err;

	c->memory = STK_CUDA_MEMORY_PAGEABLE;
	if (!(c->flags & (STK_CUDA_PAGEABLE | STK_CUDA_HOST)) && make_bounce(c, err) == 0)
		c->memory = STK_CUDA_MEMORY_BOUNCE;
	memcpy(c->reason, why.text, sizeof(c->reason));
	if (!wanted && c->memory != before)
		c->unsaid = true;
}

void stk__cuda_settle(struct stk_cuda *c, struct stk__session *session)
{
	bool wanted = c->flags & (STK_CUDA_BOUNCE | STK_CUDA_PAGEABLE);
	struct stk_err err;

	c->session = session;
	if (wanted)
		stk_err_set(&err, -EOPNOTSUPP, "the caller asked for it");
	else if (stk__cuda_pin(c->device, session, &err) == 0) {
		c->memory = STK_CUDA_MEMORY_REGISTERED;
		c->reason[0] = '\0';
		return;
	}
	settle_for_less(c, wanted, &err);
}

/* Closing. */

void stk__cuda_pause(void)
{
	struct timespec ts = {.tv_nsec = PAUSE_NS};

	nanosleep(&ts, NULL);
}

bool stk__cuda_wait_device(struct stk_cuda *c)
{
	int code = c->rt->DeviceSynchronize();

	if (code == STK__CUDA_SUCCESS)
		return true;
	c->rt->GetLastError();
	return code < STK__CUDA_CAPTURE_UNSUPPORTED || code > STK__CUDA_CAPTURE_WRONG_THREAD;
}

/* Readers of released batches, before their memory goes; those without an event cudaFree() waits for. */
static void wait_readers(struct stk_cuda *c)
{
	for (uint32_t i = 0; c->slots && i < c->depth; i++) {
		struct stk_cuda_batch *slot = &c->slots[i];

		while (slot->nuses) {
			if (stk__cuda_event_done(c->rt, slot->uses[slot->nuses - 1], NULL) == 0)
				stk__cuda_pause();
			else
				stk__cuda_event_put(c, slot->uses[--slot->nuses]);
		}
	}
}

static int free_device_side(void *arg)
{
	struct stk_cuda *c = arg;

	wait_readers(c);
	stk__cuda_slots_free(c);
	return 0;
}

void stk__cuda_destroy(struct stk_cuda *c)
{
	stk__cuda_run(c->device, free_device_side, c, NULL);
	stk__cuda_device_unref(c->device);
	free(c->slots);
	free(c->events);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* Copies under way, and host batches that streams still read. */
static int drain(void *arg)
{
	struct stk_cuda *c = arg;

	pthread_mutex_lock(&c->lock);
	stk__cuda_drop(c);
	if (c->stream && c->rt->StreamSynchronize(c->stream) != STK__CUDA_SUCCESS)
		c->rt->GetLastError();
	for (; c->nflight; c->nflight--) {
		struct stk_cuda_batch *slot = c->flight[c->flight_head++ % STK__CUDA_DEPTH_MAX];

		stk_batch_release(slot->host);
		slot->host = NULL;
		slot->copying = false;
	}
	stk__cuda_drain_deferred(c);
	pthread_mutex_unlock(&c->lock);
	return 0;
}

STK_PUBLIC struct stk_cuda *stk_cuda_close(struct stk_cuda *c)
{
	bool last;

	/* In a forked child all of it is the parent's; the little memory stays. */
	if (!c || !stk__cuda_usable(c))
		return NULL;
	stk__cuda_run(c->device, drain, c, NULL);
	pthread_mutex_lock(&c->lock);
	c->closed = true;
	c->client = NULL;
	last = !c->lent;
	pthread_mutex_unlock(&c->lock);
	if (last)
		stk__cuda_destroy(c);
	return NULL;
}

/* Opening. */

static int take_opts(struct stk_cuda *c, const struct stk_cuda_opts *opts, int *ret_device,
		     struct stk_err *err)
{
	struct stk_cuda_opts o = {0};
	const uint8_t *bytes = (const uint8_t *)opts;

	if (!opts || opts->size < offsetof(struct stk_cuda_opts, warn))
		return stk_err_set(err, -EINVAL,
				   "options: size %zu, set it to sizeof(struct stk_cuda_opts)",
				   opts ? opts->size : 0);
	for (size_t i = sizeof(o); i < opts->size; i++)
		if (bytes[i])
			return stk_err_set(
				err, -EINVAL,
				"options: byte %zu is set, this libstoker-cuda " STK_RELEASE
				" knows %zu bytes",
				i, sizeof(o));
	memcpy(&o, opts, STK_MIN(opts->size, sizeof(o)));
	if (o.depth > STK__CUDA_DEPTH_MAX)
		return stk_err_set(err, -EINVAL, "options: depth %" PRIu32 ", 1 to %d", o.depth,
				   STK__CUDA_DEPTH_MAX);
	if (o.flags & ~(uint32_t)FLAGS || o.reserved)
		return stk_err_set(err, -EINVAL,
				   "options: flags 0x%" PRIx32 ", known are 0x%x; reserved %" PRIu32
				   ", must be 0",
				   o.flags, FLAGS, o.reserved);
	c->depth = o.depth ? o.depth : DEPTH_DEFAULT;
	c->flags = o.flags;
	c->warn = o.warn;
	c->warn_data = o.warn_data;
	*ret_device = o.device;
	return 0;
}

static int open_on_device(void *arg)
{
	struct stk_cuda *c = arg;
	int r = 0;

	if (!(c->flags & STK_CUDA_HOST))
		r = stk__cuda_slots_new(c, &c->err);
	if (r == 0 && c->client->session)
		stk__cuda_settle(c, c->client->session);
	return r;
}

static int open_pipeline(struct stk_cuda *c, struct stk_client *client,
			 const struct stk_cuda_opts *opts)
{
	int device = -1, r;

	r = take_opts(c, opts, &device, &c->err);
	if (r < 0)
		return r;
	if (client->generation != c->generation)
		return stk_err_set(&c->err, -ECHILD,
				   "this client belongs to the process that forked; open one here");
	r = stk__cuda_device_new(device, &c->device, &c->err);
	if (r < 0)
		return r;
	c->rt = c->device->rt;
	c->client = client;
	c->slot_size = client->geometry.slot_size;
	r = stk_client_state(client, c->state, sizeof(c->state));
	c->state_size = r < 0 ? 0 : (size_t)r;
	if (!(c->flags & STK_CUDA_HOST)) {
		c->slots = calloc(c->depth, sizeof(*c->slots));
		if (!c->slots)
			return stk_err_set(&c->err, -ENOMEM, "pipeline: no memory");
	}
	return stk__cuda_run(c->device, open_on_device, c, &c->err);
}

STK_PUBLIC int stk_cuda_open(struct stk_client *client, const struct stk_cuda_opts *opts,
			     struct stk_cuda **ret_cuda, char *error, size_t error_size)
{
	struct stk_cuda *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		if (error && error_size)
			snprintf(error, error_size, "pipeline: no memory");
		return -ENOMEM;
	}
	pthread_mutex_init(&c->lock, NULL);
	c->generation = stk__fork_generation();
	r = open_pipeline(c, client, opts);
	if (r < 0) {
		if (error && error_size)
			snprintf(error, error_size, "%s", c->err.text);
		if (c->device)
			stk__cuda_destroy(c);
		else
			free(c);
		return r;
	}
	if (c->unsaid)
		stk__cuda_say(c);
	*ret_cuda = c;
	return 0;
}

STK_PUBLIC int stk_cuda_info(struct stk_cuda *c, struct stk_cuda_info *ret)
{
	struct stk_cuda_info i = {.size = STK_MIN(ret->size, sizeof(i))};

	if (ret->size < sizeof(ret->size))
		return -EINVAL;
	pthread_mutex_lock(&c->lock);
	i.device = c->device->ordinal;
	i.depth = c->depth;
	i.memory = c->memory;
	i.in_flight = c->nflight;
	for (const struct stk__cuda_deferred *d = c->deferred; d; d = d->next)
		i.in_flight++;
	i.slot_size = c->slot_size;
	i.batches = c->batches;
	i.ahead = c->ahead_hits;
	i.lagging = c->lagging;
	i.reason = c->reason;
	pthread_mutex_unlock(&c->lock);
	memcpy(ret, &i, i.size);
	return 0;
}

STK_PUBLIC const char *stk_cuda_error(const struct stk_cuda *c)
{
	return c->err.text;
}

STK_PUBLIC int stk_cuda_last_error(struct stk_cuda *c, char *text, size_t size)
{
	int code;

	pthread_mutex_lock(&c->lock);
	snprintf(text, size, "%s", c->err.text);
	code = STK_MAX(c->err.code, 0); /* an errno is below */
	pthread_mutex_unlock(&c->lock);
	return code;
}
