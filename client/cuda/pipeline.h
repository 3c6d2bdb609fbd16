/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline: device slots, the copy stream and what is in flight. Everything is under its lock
 * but `client`, which belongs to the thread that set `owned`. slots.c moves batches through the
 * slots, with the device current; open.c, next.c, release.c and host.c are the calls.
 *
 *   FREE --copy--> AHEAD --next--> LENT --release--> FREE
 *
 * A FREE slot may still have its copy or its readers under way: `copying` and `uses` say so.
 */
#ifndef STK_CUDA_PIPELINE_H
#define STK_CUDA_PIPELINE_H

#include "client/client.h"
#include "client/cuda/device.h"
#include "client/cuda/pin.h"

#define STK__CUDA_DEPTH_MAX 64

enum stk__cuda_slot { STK__CUDA_FREE, STK__CUDA_AHEAD, STK__CUDA_LENT };

/* Positive results inside. */
enum { STK__CUDA_NEED_BATCH = STK_STREAM_END + 1, STK__CUDA_NEED_SLOT };

/* A device slot; its address is what callers hold. */
struct stk_cuda_batch {
	struct stk_cuda *cuda;
	enum stk__cuda_slot slot;
	uint32_t number;
	uint8_t *data;          /* on the device */
	uint8_t *bounce;        /* pinned, NULL: none */
	void *copied;           /* event after the last copy */
	bool copying;           /* it is not known to be complete */
	struct stk_batch *host; /* given back when it is; NULL: has been */
	uint32_t epoch_ends;    /* so many EPOCH_END come before it */
	void **uses;            /* events after which the last batch is not read any more */
	uint32_t nuses, uses_room;
	bool unordered; /* it had readers that no event tells of, and the device was not waited for */
	uint64_t released; /* order of releases */
	/* The batch, host memory of our own. */
	struct stk_batch_info info;
	struct stk_tensor tensors[STK_SHM_MAX_FIELDS];
	uint32_t ntensors;
	struct stk__schema *schema; /* keeps names */
	void *lists;                /* what info points to */
	size_t lists_room;
	uint8_t state[STK_STATE_SIZE_MAX];
	size_t state_size;
};

/* A host batch that is given back after these events. */
struct stk__cuda_deferred {
	struct stk__cuda_deferred *next;
	struct stk_batch *batch;
	bool unordered; /* as in a device slot */
	uint32_t n;
	void *events[];
};

struct stk_cuda {
	pthread_mutex_t lock;
	struct stk_client *client;
	struct stk__cuda_device *device;
	const struct stk__cuda_runtime *rt;
	uint32_t depth, flags;
	uint64_t slot_size;
	unsigned generation; /* of stk__fork_generation() */
	bool owned;          /* a thread is in next, seek or close */
	bool closed;
	uint32_t lent; /* batches that are not released, of the device or the host */
	void *stream;
	struct stk_cuda_batch *slots;
	struct stk_cuda_batch *ahead[STK__CUDA_DEPTH_MAX], *flight[STK__CUDA_DEPTH_MAX];
	uint32_t ahead_head, nahead;   /* copied or being copied, in order */
	uint32_t flight_head, nflight; /* copies not known to be complete, in order */
	struct stk_batch *held;        /* taken from the client, not copied yet */
	uint32_t epoch_ends;           /* taken from the client, come after what is ahead */
	struct stk__cuda_deferred *deferred;
	void **events; /* spare ones */
	uint32_t nevents, events_room;
	const struct stk__session *session; /* whose memory is settled; only compared */
	enum stk_cuda_memory memory;
	char reason[sizeof(((struct stk_err *)0)->text)];
	bool unsaid; /* the caller is to be warned of the reason */
	void (*warn)(void *data, const char *text);
	void *warn_data;
	uint8_t state[STK_STATE_SIZE_MAX];
	size_t state_size;
	uint64_t batches, ahead_hits, lagging, releases;
	struct stk_err err;
};

static inline bool stk__cuda_usable(const struct stk_cuda *c)
{
	return c->generation == stk__fork_generation();
}

/* The handle that a caller's stream means. */
static inline void *stk__cuda_stream(const struct stk_cuda *c, void *stream)
{
	if (stream)
		return stream;
	return c->flags & STK_CUDA_PER_THREAD ? STK__CUDA_STREAM_PER_THREAD
					      : STK__CUDA_STREAM_LEGACY;
}

/* -EINVAL: a per-thread stream of a thread whose current device is another. */
int stk__cuda_check_stream(struct stk_cuda *c, const void *stream, struct stk_err *err);

/* open.c: the last of handle and batches is gone. Not under the lock. */
void stk__cuda_destroy(struct stk_cuda *c);
/* A new session may lie where an older one was: then it has no pin yet. */
static inline bool stk__cuda_is_settled(const struct stk_cuda *c,
					const struct stk__session *session)
{
	return c->session == session && (c->memory != STK_CUDA_MEMORY_REGISTERED || session->pin);
}
/* Decides how the memory of @session is copied. Under the lock, or before anybody else is there. */
void stk__cuda_settle(struct stk_cuda *c, struct stk__session *session);

/* A moment, while something on the device is waited for. */
void stk__cuda_pause(void);
/*
 * Where order cannot be kept by event: by waiting, once. With the device current. A device that is
 * broken reads nothing any more.
 * Return: false: not waited, for a graph is being captured, which forbids it.
 */
bool stk__cuda_wait_device(struct stk_cuda *c);
/* Warns the caller, on his thread and not under the lock. */
void stk__cuda_say(struct stk_cuda *c);

/* slots.c; under the lock, with the device current. */

int stk__cuda_slots_new(struct stk_cuda *c, struct stk_err *err);
void stk__cuda_slots_free(struct stk_cuda *c);
/* Gives back host batches whose copy is complete. */
int stk__cuda_poll(struct stk_cuda *c, struct stk_err *err);
/*
 * Starts the copy of c->held into a slot. @lag: into one that is still read, if need be, after its
 * readers. 0; NEED_SLOT; negative errno, and the batch is still held.
 */
int stk__cuda_issue(struct stk_cuda *c, bool lag, struct stk_err *err);
/* Takes what is ready off the client, as far as slots are free. By its owner, or it has none. */
void stk__cuda_pump(struct stk_cuda *c);
/* Remembers the work that is on @stream now as a reader of the slot. */
int stk__cuda_use(struct stk_cuda *c, struct stk_cuda_batch *slot, void *stream,
		  struct stk_err *err);
/* All slots are held by callers. */
bool stk__cuda_exhausted(const struct stk_cuda *c);
/* Drops what is ahead. */
void stk__cuda_drop(struct stk_cuda *c);

int stk__cuda_event_get(struct stk_cuda *c, void **ret, struct stk_err *err);
void stk__cuda_event_put(struct stk_cuda *c, void *event);

/* host.c; the same. */
int stk__cuda_poll_deferred(struct stk_cuda *c, struct stk_err *err);
/* Waits until there are none. */
void stk__cuda_drain_deferred(struct stk_cuda *c);
/* Lends c->held to the caller. Owner of the client, not under the lock. */
int stk__cuda_lend_host(struct stk_cuda *c, struct stk_batch **ret, struct stk_err *err);

/* batch.c: copies what the batch tells about itself. */
int stk__cuda_describe(struct stk_cuda_batch *slot, const struct stk_batch *batch,
		       struct stk_err *err);

#endif
