/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/standin.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/cuda/runtime.h"

#define DEVICES_MAX 8
#define PIECE_MAX   (UINT64_C(1) << 30)
#define MAGIC_LIVE  0x57A9D149u
#define MAGIC_DEAD  0xDEADDEADu

enum {
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	INVALID_HANDLE = 400,
	CAPTURE_UNSUPPORTED = 900,
};

#define API STANDIN_PUBLIC __attribute__((noinline))

#define DIE(...)                                                                                   \
	do {                                                                                       \
		fprintf(stderr, "stand-in for CUDA: " __VA_ARGS__);                                \
		fputc('\n', stderr);                                                               \
		abort();                                                                           \
	} while (0)

enum kind { REGISTERED, PINNED, DEVICE };

struct range {
	struct range *next;
	enum kind kind;
	int device;
	uint8_t *base;
	size_t size;
	unsigned busy; /* copies in flight */
};

struct event {
	struct event *next;
	unsigned magic;
	int device;
	uint64_t recorded, done;
};

enum op_kind { COPY, RECORD, WAIT, CALL };

struct op {
	struct op *next;
	enum op_kind kind;
	uint8_t *dst, *staged;
	const uint8_t *src;
	size_t size;
	uint64_t sum, seq;
	struct range *from, *to;
	struct event *event;
	void (*fn)(void *);
	void *arg;
};

struct stream {
	struct stream *next;
	unsigned magic;
	int device;
	bool is_default, stop;
	pthread_t thread;
	struct op *head, **tail;
	uint64_t issued, done;
};

struct call {
	struct call *next;
	char name[48];
	uint64_t n;
	unsigned fail_in, fail_times;
	int fail_code;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
/* Dead streams and events stay listed, so that a stale handle is known for one. */
static struct stream *streams, *legacy[DEVICES_MAX];
static struct event *events;
static struct range *ranges;
static struct call *calls;
static bool contexts[DEVICES_MAX], capturing;
static int ndevices = 2;
static _Atomic unsigned delay_us;
static unsigned nstreams, nevents;
static uint64_t pageable;
static unsigned era; /* per-thread streams of an older one are dead */

static __thread int current;
static __thread int last_error;
static __thread int capture_mode; /* 0: global */
static __thread struct stream *own[DEVICES_MAX];
static __thread unsigned own_era;

/* Every call. */

static struct call *find_call(const char *name)
{
	struct call *c;

	for (c = calls; c; c = c->next)
		if (!strcmp(c->name, name))
			return c;
	c = calloc(1, sizeof(*c));
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->next = calls;
	return calls = c;
}

static int finish(int code)
{
	if (code)
		last_error = code;
	return code;
}

/* Counts; returns an error that was asked for. Returns with the lock held. */
static int enter(const char *name, bool touches)
{
	struct call *c;

	pthread_mutex_lock(&lock);
	if (touches)
		contexts[current] = true;
	c = find_call(name);
	c->n++;
	if (!c->fail_times)
		return 0;
	if (c->fail_in > 1) {
		c->fail_in--;
		return 0;
	}
	c->fail_times--;
	return c->fail_code;
}

static int leave(int code)
{
	pthread_mutex_unlock(&lock);
	return finish(code);
}

/* What a capture in global mode forbids to threads that have not relaxed. */
#define FORBIDDEN_IN_CAPTURE()                                                                     \
	do {                                                                                       \
		if (capturing && capture_mode != STK__CUDA_CAPTURE_RELAXED)                        \
			return leave(CAPTURE_UNSUPPORTED);                                         \
	} while (0)

#define ENTER(touches)                                                                             \
	do {                                                                                       \
		int code_ = enter(__func__, touches);                                              \
                                                                                                   \
		if (code_)                                                                         \
			return leave(code_);                                                       \
	} while (0)

/* Memory. */

static struct range *range_of(const void *p, size_t size, bool host)
{
	const uint8_t *at = p;

	for (struct range *r = ranges; r; r = r->next)
		if (at < r->base + r->size && at + size > r->base && (r->kind != DEVICE) == host)
			return r;
	return NULL;
}

static bool holds(const struct range *r, const void *p, size_t size)
{
	const uint8_t *at = p;

	return at >= r->base && at + size <= r->base + r->size;
}

static struct range *add_range(enum kind kind, void *base, size_t size)
{
	struct range *r = calloc(1, sizeof(*r));

	r->kind = kind;
	r->device = current;
	r->base = base;
	r->size = size;
	r->next = ranges;
	return ranges = r;
}

static int drop_range(enum kind kind, void *base, const char *what)
{
	for (struct range **at = &ranges; *at; at = &(*at)->next) {
		struct range *r = *at;

		if (r->kind != kind || r->base != base)
			continue;
		if (r->busy)
			DIE("%s: %u copies are in flight there", what, r->busy);
		*at = r->next;
		free(r);
		return 0;
	}
	return kind == REGISTERED ? NOT_REGISTERED : STK__CUDA_INVALID_VALUE;
}

/* All of it mapped, readable, writable and shared? */
static bool is_shared_writable(const void *base, size_t size)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t at = (uintptr_t)base, end = at + size, first, last;
	char line[512], access[8];

	while (maps && at < end && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &first, &last, access) == 3 &&
		    first <= at && at < last && !strncmp(access, "rw-s", 4))
			at = last;
	if (maps)
		fclose(maps);
	return at >= end;
}

API int cudaHostRegister(void *base, size_t size, unsigned flags)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	if ((uintptr_t)base % page || size % page)
		DIE("registering %zu bytes at %p: not whole pages", size, base);
	if (size > PIECE_MAX)
		DIE("registering %zu bytes in one call", size);
	if (flags != STK__CUDA_REGISTER_PORTABLE)
		DIE("registering with flags %u", flags);
	if (!size || !is_shared_writable(base, size))
		return leave(STK__CUDA_INVALID_VALUE);
	if (range_of(base, size, true))
		return leave(ALREADY_REGISTERED);
	add_range(REGISTERED, base, size);
	return leave(0);
}

API int cudaHostUnregister(void *base)
{
	struct range *r;
	unsigned char in_core;

	ENTER(true);
	r = range_of(base, 1, true);
	if (r && mincore(r->base + r->size - 1 - ((uintptr_t)r->base + r->size - 1) % 4096, 1,
			 &in_core) < 0)
		DIE("unregistering %p: it is not mapped any more", base);
	return leave(drop_range(REGISTERED, base, "cudaHostUnregister"));
}

API int cudaHostAlloc(void **ret, size_t size, unsigned flags)
{
	(void)flags;
	ENTER(true);
	*ret = aligned_alloc(4096, stk_align_up(size, 4096));
	memset(*ret, 0xAA, size);
	add_range(PINNED, *ret, size);
	return leave(0);
}

API int cudaFreeHost(void *p)
{
	int r;

	ENTER(true);
	r = drop_range(PINNED, p, "cudaFreeHost");
	if (!r)
		free(p);
	return leave(r);
}

API int cudaMalloc(void **ret, size_t size)
{
	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	*ret = aligned_alloc(256, stk_align_up(size, 256));
	memset(*ret, 0xCC, size);
	add_range(DEVICE, *ret, size);
	return leave(0);
}

API int cudaFree(void *p)
{
	int r;

	ENTER(true);
	r = drop_range(DEVICE, p, "cudaFree");
	if (!r)
		free(p);
	return leave(r);
}

/* Streams. */

static uint64_t sum_of(const uint8_t *p, size_t n)
{
	uint64_t sum = n;

	for (size_t i = 0; i < n; i++)
		sum = (sum ^ p[i]) * UINT64_C(0x100000001b3);
	return sum;
}

static void copy(struct op *op)
{
	const uint8_t *from = op->staged ? op->staged : op->src;
	size_t half = op->size / 2;

	memcpy(op->dst, from, half);
	if (delay_us)
		usleep(delay_us);
	memcpy(op->dst + half, from + half, op->size - half);
	if (sum_of(from, op->size) != op->sum)
		DIE("%zu bytes at %p were written while they were copied", op->size, from);
	free(op->staged);
}

/* Called and returns with the lock held; works without it. */
static void perform(struct op *op)
{
	if (op->kind == WAIT) {
		while (op->event->done < op->seq)
			pthread_cond_wait(&changed, &lock);
		return;
	}
	if (op->kind == RECORD) {
		op->event->done = STK_MAX(op->event->done, op->seq);
		return;
	}
	pthread_mutex_unlock(&lock);
	if (op->kind == COPY)
		copy(op);
	else
		op->fn(op->arg);
	pthread_mutex_lock(&lock);
	if (op->from)
		op->from->busy--;
	if (op->to)
		op->to->busy--;
}

static void *stream_run(void *data)
{
	struct stream *s = data;

	pthread_mutex_lock(&lock);
	for (;;) {
		struct op *op = s->head;

		if (!op && s->stop)
			break;
		if (!op) {
			pthread_cond_wait(&changed, &lock);
			continue;
		}
		perform(op);
		s->head = op->next;
		if (!s->head)
			s->tail = &s->head;
		free(op);
		s->done++;
		pthread_cond_broadcast(&changed);
	}
	pthread_mutex_unlock(&lock);
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
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
	pthread_join(s->thread, NULL);
	pthread_mutex_lock(&lock);
}

static struct stream *stream_of(void *handle)
{
	struct stream *s = handle;

	if (own_era != era)
		memset(own, 0, sizeof(own));
	own_era = era;
	if (!handle || handle == STK__CUDA_STREAM_LEGACY)
		return legacy[current] ? legacy[current]
				       : (legacy[current] = new_stream(current, true));
	if (handle == STK__CUDA_STREAM_PER_THREAD)
		return own[current] ? own[current] : (own[current] = new_stream(current, true));
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
	pthread_cond_broadcast(&changed);
	return op;
}

API int cudaStreamCreateWithFlags(void **ret, unsigned flags)
{
	ENTER(true);
	if (flags != STK__CUDA_STREAM_NON_BLOCKING)
		DIE("a stream with flags %u", flags);
	*ret = new_stream(current, false);
	nstreams++;
	return leave(0);
}

API int cudaStreamDestroy(void *stream)
{
	struct stream *s;

	ENTER(true);
	s = stream_of(stream);
	if (!s)
		return leave(INVALID_HANDLE);
	if (s->head)
		DIE("a stream is destroyed with work on it");
	end_stream(s);
	nstreams--;
	return leave(0);
}

static void drain(const struct stream *s)
{
	uint64_t issued = s->issued;

	while (s->done < issued)
		pthread_cond_wait(&changed, &lock);
}

API int cudaStreamSynchronize(void *stream)
{
	struct stream *s;

	ENTER(true);
	s = stream_of(stream);
	if (s)
		drain(s);
	return leave(s ? 0 : INVALID_HANDLE);
}

API int cudaDeviceSynchronize(void)
{
	ENTER(true);
	for (const struct stream *s = streams; s; s = s->next)
		if (s->device == current && s->magic == MAGIC_LIVE)
			drain(s);
	return leave(0);
}

API int cudaMemcpyAsync(void *dst, const void *src, size_t size, int kind, void *stream)
{
	struct range *from, *to;
	struct stream *s;
	struct op *op;

	ENTER(true);
	s = stream_of(stream);
	if (!s)
		return leave(INVALID_HANDLE);
	from = range_of(src, size, true);
	to = range_of(dst, size, false);
	if (kind != STK__CUDA_COPY_HOST_TO_DEVICE || !to || !holds(to, dst, size))
		DIE("%zu bytes to %p: not within device memory", size, dst);
	if (to->device != s->device)
		DIE("a copy to device %d on a stream of device %d", to->device, s->device);
	if (from && !holds(from, src, size))
		return leave(STK__CUDA_INVALID_VALUE); /* it spans two registrations */
	op = enqueue(s, COPY);
	op->dst = dst;
	op->src = src;
	op->size = size;
	op->sum = sum_of(src, size);
	op->from = from;
	op->to = to;
	to->busy++;
	if (from) {
		from->busy++;
	} else {
		pageable++;
		op->staged = malloc(size + 1);
		memcpy(op->staged, src, size);
	}
	return leave(0);
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
	if (flags != STK__CUDA_EVENT_DISABLE_TIMING)
		DIE("an event with flags %u", flags);
	e = calloc(1, sizeof(*e));
	e->magic = MAGIC_LIVE;
	e->device = current;
	e->next = events;
	events = e;
	nevents++;
	*ret = e;
	return leave(0);
}

API int cudaEventDestroy(void *event)
{
	struct event *e;

	ENTER(true);
	e = event_of(event);
	if (!e)
		DIE("an event is destroyed twice");
	if (e->done != e->recorded)
		DIE("an event is destroyed before it happened");
	e->magic = MAGIC_DEAD;
	nevents--;
	return leave(0);
}

API int cudaEventRecord(void *event, void *stream)
{
	struct stream *s;
	struct event *e;
	struct op *op;

	ENTER(true);
	s = stream_of(stream);
	e = event_of(event);
	if (!s || !e || s->device != e->device)
		return leave(INVALID_HANDLE);
	op = enqueue(s, RECORD);
	op->event = e;
	op->seq = ++e->recorded;
	return leave(0);
}

API int cudaEventQuery(void *event)
{
	struct event *e;

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	e = event_of(event);
	if (!e)
		return leave(INVALID_HANDLE);
	return leave(e->done >= e->recorded ? 0 : STK__CUDA_NOT_READY);
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
		return leave(INVALID_HANDLE);
	op = enqueue(s, WAIT);
	op->event = e;
	op->seq = e->recorded;
	return leave(0);
}

/* Devices. */

API int cudaRuntimeGetVersion(int *ret)
{
	ENTER(false);
	*ret = STANDIN_VERSION;
	return leave(0);
}

API int cudaGetDeviceCount(int *ret)
{
	ENTER(false);
	*ret = ndevices;
	return leave(ndevices ? 0 : STK__CUDA_NO_DEVICE);
}

API int cudaGetDevice(int *ret)
{
	ENTER(false);
	*ret = current;
	return leave(0);
}

API int cudaSetDevice(int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return leave(STK__CUDA_INVALID_DEVICE);
	current = device;
	contexts[device] = true; /* as CUDA 12 does it */
	return leave(0);
}

API int cudaDeviceGetAttribute(int *ret, int attribute, int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return leave(STK__CUDA_INVALID_DEVICE);
	if (attribute == STK__CUDA_ATTR_HOST_NUMA_ID && STANDIN_VERSION < 13000)
		return leave(STK__CUDA_INVALID_VALUE);
	*ret = attribute == STK__CUDA_ATTR_HOST_NUMA_ID         ? 0
	       : attribute == STK__CUDA_ATTR_REGISTER_SUPPORTED ? 1
								: 0;
	return leave(0);
}

API int cudaDeviceGetPCIBusId(char *ret, int size, int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return leave(STK__CUDA_INVALID_DEVICE);
	snprintf(ret, (size_t)size, "0000:%02X:00.0", 0x41 + device);
	return leave(0);
}

API int cudaThreadExchangeStreamCaptureMode(int *mode)
{
	int old = capture_mode;

	ENTER(false);
	capture_mode = *mode;
	*mode = old;
	return leave(0);
}

API int cudaGetLastError(void)
{
	int code = last_error;

	last_error = 0;
	return code;
}

API const char *cudaGetErrorName(int code)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {
		{0, "cudaSuccess"},
		{STK__CUDA_INVALID_VALUE, "cudaErrorInvalidValue"},
		{STK__CUDA_NO_MEMORY, "cudaErrorMemoryAllocation"},
		{STK__CUDA_OLD_DRIVER, "cudaErrorInsufficientDriver"},
		{STK__CUDA_NO_DEVICE, "cudaErrorNoDevice"},
		{STK__CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice"},
		{INVALID_HANDLE, "cudaErrorInvalidResourceHandle"},
		{STK__CUDA_NOT_READY, "cudaErrorNotReady"},
		{700, "cudaErrorIllegalAddress"},
		{ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered"},
		{NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered"},
		{STK__CUDA_NOT_SUPPORTED, "cudaErrorNotSupported"},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(names); i++)
		if (names[i].code == code)
			return names[i].name;
	return "unrecognized error code";
}

API const char *cudaGetErrorString(int code)
{
	return code ? "as the stand-in was told" : "no error";
}

/* What tests ask and tell. */

uint64_t standin_calls(const char *name)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = find_call(name)->n;
	pthread_mutex_unlock(&lock);
	return n;
}

void standin_fail(const char *name, unsigned nth, unsigned times, int code)
{
	struct call *c;

	pthread_mutex_lock(&lock);
	c = find_call(name);
	c->fail_in = nth;
	c->fail_times = times;
	c->fail_code = code;
	pthread_mutex_unlock(&lock);
}

void standin_devices(int n)
{
	pthread_mutex_lock(&lock);
	ndevices = STK_MIN(n, DEVICES_MAX);
	pthread_mutex_unlock(&lock);
}

void standin_delay_us(unsigned us)
{
	pthread_mutex_lock(&lock);
	delay_us = us;
	pthread_mutex_unlock(&lock);
}

void standin_capture(bool on)
{
	pthread_mutex_lock(&lock);
	capturing = on;
	pthread_mutex_unlock(&lock);
}

bool standin_has_context(int device)
{
	bool has;

	pthread_mutex_lock(&lock);
	has = contexts[device];
	pthread_mutex_unlock(&lock);
	return has;
}

int standin_last_error(void)
{
	return last_error;
}

void standin_launch(void *stream, void (*fn)(void *), void *arg)
{
	struct stream *s;
	struct op *op;

	pthread_mutex_lock(&lock);
	s = stream_of(stream);
	if (!s)
		DIE("a launch on a stream that was destroyed");
	op = enqueue(s, CALL);
	op->fn = fn;
	op->arg = arg;
	pthread_mutex_unlock(&lock);
}

uint64_t standin_pageable(void)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = pageable;
	pthread_mutex_unlock(&lock);
	return n;
}

uint64_t standin_registered_bytes(void)
{
	uint64_t n = 0;

	pthread_mutex_lock(&lock);
	for (const struct range *r = ranges; r; r = r->next)
		n += r->kind == REGISTERED ? r->size : 0;
	pthread_mutex_unlock(&lock);
	return n;
}

static void end_defaults(void)
{
	for (struct stream *s = streams; s; s = s->next)
		if (s->is_default && s->magic == MAGIC_LIVE) {
			drain(s);
			end_stream(s);
		}
	memset(legacy, 0, sizeof(legacy));
	era++;
}

void standin_check_balance(void)
{
	static const char *const names[] = {"registered", "pinned", "device"};

	pthread_mutex_lock(&lock);
	for (const struct range *r = ranges; r; r = r->next)
		DIE("%zu bytes of %s memory at %p are left", r->size, names[r->kind], r->base);
	if (nstreams || nevents)
		DIE("%u streams and %u events are left", nstreams, nevents);
	end_defaults();
	pthread_mutex_unlock(&lock);
}

void standin_reset(void)
{
	standin_check_balance();
	pthread_mutex_lock(&lock);
	for (struct call *c = calls; c; c = c->next)
		c->n = c->fail_times = 0;
	memset(contexts, 0, sizeof(contexts));
	capturing = false;
	ndevices = 2;
	delay_us = 0;
	pageable = 0;
	current = 0;
	last_error = 0;
	pthread_mutex_unlock(&lock);
}

/* For programs that find it by themselves: STANDIN_FAIL="NAME:NTH:TIMES:CODE", STANDIN_DELAY_US. */
__attribute__((constructor)) static void from_environment(void)
{
	const char *fail = getenv("STANDIN_FAIL"), *delay = getenv("STANDIN_DELAY_US");
	const char *devices = getenv("STANDIN_DEVICES");
	unsigned nth, times;
	char name[48];
	int code;

	if (fail && sscanf(fail, "%47[^:]:%u:%u:%d", name, &nth, &times, &code) == 4)
		standin_fail(name, nth, times, code);
	if (delay)
		delay_us = (unsigned)atoi(delay);
	if (devices)
		standin_devices(atoi(devices));
}

__attribute__((destructor)) static void at_end(void)
{
	pthread_mutex_lock(&lock);
	end_defaults();
	pthread_mutex_unlock(&lock);
}
