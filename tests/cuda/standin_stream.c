/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events of the stand-in. A stream is a thread that does its operations in order; a copy
 * makes sure that what it reads is not written meanwhile.
 */
#include <unistd.h>

#include "tests/cuda/standin_private.h"

#define MAGIC_LIVE 0x57A9D149u
#define MAGIC_DEAD 0xDEADDEADu

struct event {
	struct event *next;
	unsigned magic;
	int device;
	struct stream *on; /* where it was recorded last; NULL: nowhere yet */
	uint64_t point;    /* so many operations of that stream are done by then */
	bool captured;     /* taken into a graph */
};

enum op_kind { COPY, RECORD, WAIT, CALL };

struct op {
	struct op *next;
	enum op_kind kind;
	uint8_t *dst;
	const uint8_t *src;
	size_t size;
	uint64_t sum;
	struct range *from, *to;
	const struct stream
		*on; /* WAIT: as the event had it at the call, whatever becomes of the event */
	uint64_t point;
	void (*fn)(void *);
	void *arg;
};

struct stream {
	struct stream *next;
	unsigned magic;
	int device;
	bool is_default, stop;
	bool capturing;
	pthread_t thread;
	struct op *head, **tail;
	uint64_t issued, done;
};

/* Dead streams and events stay listed, so that a stale handle is known for one. */
static struct stream *streams, *legacy[DEVICES_MAX];
static struct event *events;
static unsigned nstreams, nevents;
static uint64_t pageable;
static unsigned era; /* per-thread streams of an older one are dead */

static __thread struct stream *own[DEVICES_MAX];
static __thread unsigned own_era;

static uint64_t sum_of(const uint8_t *p, size_t n)
{
	uint64_t sum = n;

	for (size_t i = 0; i < n; i++)
		sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
	return sum;
}

static void copy(struct op *op)
{
	const uint8_t *from = op->src;
	size_t half = op->size / 2;

	memcpy(op->dst, from, half);
	if (standin_delay)
		usleep(standin_delay);
	memcpy(op->dst + half, from + half, op->size - half);
	if (sum_of(from, op->size) != op->sum)
		STRICT("%zu bytes at %p were written while they were copied", op->size, from);
}

static bool is_reached(const struct stream *on, uint64_t point)
{
	return !on || on->done >= point;
}

/* Called and returns with the lock held; works without it. */
static void perform(struct op *op)
{
	while (op->kind == WAIT && !is_reached(op->on, op->point))
		pthread_cond_wait(&standin_changed, &standin_lock);
	if (op->kind == WAIT || op->kind == RECORD)
		return;
	pthread_mutex_unlock(&standin_lock);
	if (op->kind == COPY)
		copy(op);
	else
		op->fn(op->arg);
	pthread_mutex_lock(&standin_lock);
	if (op->from)
		op->from->busy--;
	if (op->to)
		op->to->busy--;
}

static void *stream_run(void *data)
{
	struct stream *s = data;

	pthread_mutex_lock(&standin_lock);
	for (;;) {
		struct op *op = s->head;

		if (!op && s->stop)
			break;
		if (!op) {
			pthread_cond_wait(&standin_changed, &standin_lock);
			continue;
		}
		perform(op);
		s->head = op->next;
		if (!s->head)
			s->tail = &s->head;
		free(op);
		s->done++;
		pthread_cond_broadcast(&standin_changed);
	}
	pthread_mutex_unlock(&standin_lock);
	return NULL;
}

static struct stream *new_stream(int device, bool is_default)
{
	struct stream *s = calloc(1, sizeof(*s));

	s->magic = MAGIC_LIVE;
	s->device = device;
	s->is_default = is_default;
	s->tail = &s->head;
	s->next = streams;
	streams = s;
	if (pthread_create(&s->thread, NULL, stream_run, s))
		DIE("no thread for a stream");
	return s;
}

/* Not for a stream with work: whoever destroys one has waited. */
static void end_stream(struct stream *s)
{
	s->stop = true;
	s->magic = MAGIC_DEAD;
	pthread_cond_broadcast(&standin_changed);
	pthread_mutex_unlock(&standin_lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&standin_lock);
}

static struct stream *stream_of(void *handle)
{
	struct stream *s = handle;

	if (own_era != era)
		memset(own, 0, sizeof(own));
	own_era = era;
	if (!handle || handle == STK__CUDA_STREAM_LEGACY)
		return legacy[standin_current]
			       ? legacy[standin_current]
			       : (legacy[standin_current] = new_stream(standin_current, true));
	if (handle == STK__CUDA_STREAM_PER_THREAD)
		return own[standin_current]
			       ? own[standin_current]
			       : (own[standin_current] = new_stream(standin_current, true));
	if (s->magic == MAGIC_DEAD)
		return NULL;
	if (s->magic != MAGIC_LIVE)
		DIE("%p is no stream", handle);
	return s;
}

static struct op *enqueue(struct stream *s, enum op_kind kind)
{
	struct op *op = calloc(1, sizeof(*op));

	op->kind = kind;
	*s->tail = op;
	s->tail = &op->next;
	s->issued++;
	pthread_cond_broadcast(&standin_changed);
	return op;
}

static void drain(const struct stream *s)
{
	uint64_t issued = s->issued;

	while (s->done < issued)
		pthread_cond_wait(&standin_changed, &standin_lock);
}

API int cudaStreamCreateWithFlags(void **ret, unsigned flags)
{
	ENTER(true);
	BROKEN();
	if (flags != STK__CUDA_STREAM_NON_BLOCKING)
		DIE("a stream with flags %u", flags);
	*ret = new_stream(standin_current, false);
	nstreams++;
	return standin_leave(0);
}

API int cudaStreamDestroy(void *stream)
{
	struct stream *s;

	ENTER(true);
	s = stream_of(stream);
	if (!s)
		return standin_leave(INVALID_HANDLE);
	if (standin_broken)
		drain(s);
	if (s->head)
		DIE("a stream is destroyed with work on it");
	end_stream(s);
	nstreams--;
	BROKEN();
	return standin_leave(0);
}

API int cudaStreamSynchronize(void *stream)
{
	struct stream *s;

	ENTER(true);
	s = stream_of(stream);
	if (s)
		drain(s);
	BROKEN();
	return standin_leave(s ? 0 : INVALID_HANDLE);
}

/* Forbidden also to those who have relaxed: it would wait for what is only being written down. */
static bool is_captured_on(int device)
{
	for (const struct stream *s = streams; s; s = s->next)
		if (s->device == device && s->capturing)
			return true;
	return standin_capturing;
}

API int cudaDeviceSynchronize(void)
{
	ENTER(true);
	BROKEN();
	if (is_captured_on(standin_current))
		return standin_leave(CAPTURE_UNSUPPORTED);
	for (const struct stream *s = streams; s; s = s->next)
		if (s->device == standin_current && s->magic == MAGIC_LIVE)
			drain(s);
	return standin_leave(0);
}

API int cudaMemcpyAsync(void *dst, const void *src, size_t size, int kind, void *stream)
{
	struct range *from, *to;
	struct stream *s;
	struct op *op;

	ENTER(true);
	s = stream_of(stream);
	if (!s)
		return standin_leave(INVALID_HANDLE);
	BROKEN();
	if (s->capturing)
		DIE("a copy is taken into a graph");
	from = standin_range(src, size, true);
	to = standin_range(dst, size, false);
	if (kind != STK__CUDA_COPY_HOST_TO_DEVICE || !to || !standin_holds(to, dst, size))
		DIE("%zu bytes to %p: not within device memory", size, dst);
	if (to->device != s->device)
		DIE("a copy to device %d on a stream of device %d", to->device, s->device);
	if (from && !standin_holds(from, src, size))
		return standin_leave(STK__CUDA_INVALID_VALUE); /* it spans two registrations */
	op = enqueue(s, COPY);
	op->dst = dst;
	op->src = src;
	op->size = size;
	op->sum = sum_of(src, size);
	op->from = from;
	op->to = to;
	to->busy++;
	/* Pageable memory "might" be read before the call returns: nobody may count on it. */
	if (from)
		from->busy++;
	else
		pageable++;
	return standin_leave(0);
}

/* Events. */

static struct event *event_of(void *handle)
{
	struct event *e = handle;

	if (!e || (e->magic != MAGIC_LIVE && e->magic != MAGIC_DEAD))
		DIE("%p is no event", handle);
	return e->magic == MAGIC_LIVE ? e : NULL;
}

API int cudaEventCreateWithFlags(void **ret, unsigned flags)
{
	struct event *e;

	ENTER(true);
	BROKEN();
	if (flags != STK__CUDA_EVENT_DISABLE_TIMING)
		DIE("an event with flags %u", flags);
	e = calloc(1, sizeof(*e));
	e->magic = MAGIC_LIVE;
	e->device = standin_current;
	e->next = events;
	events = e;
	nevents++;
	*ret = e;
	return standin_leave(0);
}

API int cudaEventDestroy(void *event)
{
	struct event *e;

	ENTER(true);
	e = event_of(event);
	if (!e)
		DIE("an event is destroyed twice");
	if (!is_reached(e->on, e->point) && !standin_broken)
		DIE("an event is destroyed before it happened");
	e->magic = MAGIC_DEAD;
	nevents--;
	BROKEN();
	return standin_leave(0);
}

API int cudaEventRecord(void *event, void *stream)
{
	struct stream *s;
	struct event *e;

	ENTER(true);
	s = stream_of(stream);
	e = event_of(event);
	if (!s || !e || s->device != e->device)
		return standin_leave(INVALID_HANDLE);
	BROKEN();
	e->captured = s->capturing;
	if (e->captured)
		return standin_leave(0);
	enqueue(s, RECORD);
	e->on = s;
	e->point = s->issued;
	return standin_leave(0);
}

API int cudaEventQuery(void *event)
{
	struct event *e;

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	e = event_of(event);
	if (!e)
		return standin_leave(INVALID_HANDLE);
	BROKEN();
	if (e->captured)
		return standin_leave(CAPTURED_EVENT);
	return standin_leave(is_reached(e->on, e->point) ? 0 : STK__CUDA_NOT_READY);
}

API int cudaStreamWaitEvent(void *stream, void *event, unsigned flags)
{
	struct stream *s;
	struct event *e;
	struct op *op;

	ENTER(true);
	s = stream_of(stream);
	e = event_of(event);
	if (!s || !e || flags)
		return standin_leave(INVALID_HANDLE);
	BROKEN();
	if (e->captured)
		DIE("a stream is drawn into the graph that is being captured on another");
	if (s->capturing)
		return standin_leave(CAPTURE_ISOLATION);
	op = enqueue(s, WAIT);
	op->on = e->on;
	op->point = e->point;
	return standin_leave(0);
}

void standin_capture_on(void *stream, bool on)
{
	pthread_mutex_lock(&standin_lock);
	stream_of(stream)->capturing = on;
	pthread_mutex_unlock(&standin_lock);
}

void standin_launch(void *stream, void (*fn)(void *), void *arg)
{
	struct stream *s;
	struct op *op;

	pthread_mutex_lock(&standin_lock);
	s = stream_of(stream);
	if (!s)
		DIE("a launch on a stream that was destroyed");
	op = enqueue(s, CALL);
	op->fn = fn;
	op->arg = arg;
	pthread_mutex_unlock(&standin_lock);
}

uint64_t standin_pageable(void)
{
	uint64_t n;

	pthread_mutex_lock(&standin_lock);
	n = pageable;
	pthread_mutex_unlock(&standin_lock);
	return n;
}

void standin_end_defaults(void)
{
	for (struct stream *s = streams; s; s = s->next)
		if (s->is_default && s->magic == MAGIC_LIVE) {
			drain(s);
			end_stream(s);
		}
	memset(legacy, 0, sizeof(legacy));
	era++;
}

void standin_stream_balance(void)
{
	if (nstreams || nevents)
		DIE("%u streams and %u events are left", nstreams, nevents);
}

void standin_stream_reset(void)
{
	pageable = 0;
}
