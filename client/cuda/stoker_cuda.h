/* SPDX-License-Identifier: Apache-2.0 */
/**
 * stoker_cuda.h - batches of a stoker client on a CUDA device
 *
 * A pipeline turns a client's batches into device batches: one asynchronous copy each, from shared
 * memory that is page-locked in place, on a stream of its own. The caller's streams wait by event;
 * no function here waits for the device while batches flow. The CUDA runtime is the one the process
 * has already, else libcudart.so.13 or .12; nothing is linked.
 *
 * While a pipeline is open its client belongs to it: of the client only stk_client_info(),
 * stk_client_shapes(), stk_client_fd() and, as stk_cuda_next(), stk_client_why() may be called. Close
 * the pipeline first, then the client.
 * stk_cuda_next(), _seek(), _state() and _close() take one thread at a time; the rest any thread,
 * also at the same time.
 *
 * Streams are cudaStream_t; NULL is the device's legacy default stream (with STK_CUDA_PER_THREAD
 * the calling thread's), cudaStreamLegacy and cudaStreamPerThread mean what they say. A stream must
 * belong to the pipeline's device, and no graph may be captured on it meanwhile.
 * STK_CUDA_NO_STREAM and STK_CUDA_ANY_STREAM stand for streams where it is said.
 *
 * Functions return 0 or a positive outcome (enum stk_outcome), or a negative errno; then
 * stk_cuda_error() has one sentence with CUDA's name for it and what was being done.
 */
#ifndef STOKER_CUDA_H
#define STOKER_CUDA_H

#include <stoker.h>

#ifdef __cplusplus
extern "C" {
#endif

struct stk_cuda;
struct stk_cuda_batch;

/* next, take: no stream waits yet; release: none reads the batch but those that were recorded. */
#define STK_CUDA_NO_STREAM ((void *)-1)
/*
 * release: it is not known which streams read the batch; the device is waited for. While a graph is
 * being captured CUDA forbids that, and breaks the capture; then it is waited for later, before the
 * memory is used again.
 */
#define STK_CUDA_ANY_STREAM ((void *)-2)

/* What CUDA says of a device, without making a context on it. */
struct stk_cuda_device {
	size_t size;        /* set by the caller */
	int32_t device;     /* ordinal */
	int32_t host_node;  /* NUMA node of the host next to it, -1: not known */
	char pci[32];       /* "0000:41:00.0" */
	int32_t runtime;    /* version of the CUDA runtime in use, 13000 for 13.0 */
	int32_t attributes; /* enum stk_cuda_attribute */
};

enum stk_cuda_attribute {
	STK_CUDA_ATTR_PAGEABLE = 1,    /* reads pageable memory directly */
	STK_CUDA_ATTR_REGISTER = 2,    /* page-locks memory in place */
	STK_CUDA_ATTR_HOST_TABLES = 4, /* through the host's page tables: nothing is page-locked */
	STK_CUDA_ATTR_REGISTER_READ = 8, /* page-locks read-only memory in place */
};

/**
 * stk_cuda_device() - look at a device, for stk_client_opts.pci and .host_node
 * @device: ordinal; -1: the calling thread's current device
 *
 * Return: 0; -ENODEV no driver, no runtime or no such device.
 */
STK_PUBLIC int stk_cuda_device(int device, struct stk_cuda_device *ret, char *error,
			       size_t error_size);

enum stk_cuda_flag {
	STK_CUDA_BOUNCE = 1,     /* do not page-lock the slots: copy through pinned buffers */
	STK_CUDA_PAGEABLE = 2,   /* no page-locked memory at all */
	STK_CUDA_PER_THREAD = 4, /* stream NULL is the per-thread default stream */
	STK_CUDA_HOST = 8,       /* host batches only: stk_cuda_next_host(), no device memory */
};

/* Zero everything, set `size` and `device`, then what you need. */
struct stk_cuda_opts {
	size_t size;
	int32_t device; /* ordinal; -1: the calling thread's current device */
	uint32_t depth; /* device slots, 1 to 64; 0: 3 */
	uint32_t flags; /* enum stk_cuda_flag */
	uint32_t reserved;
	/* Called by open or next, on their caller's thread, with one sentence; NULL: standard error. */
	void (*warn)(void *data, const char *text);
	void *warn_data;
};

/**
 * stk_cuda_open() - page-lock a client's slots and make device slots
 * @client: belongs to the pipeline until stk_cuda_close()
 *
 * Makes a context on the device asked for and on no other, whatever the calling thread's current
 * device is; that stays as it was. Slots that cannot be page-locked are copied through pinned
 * buffers, or as pageable memory, with a warning.
 *
 * Return: 0; -ENODEV; -ENOMEM; -EINVAL an option; -EIO any other CUDA error, named.
 */
STK_PUBLIC int stk_cuda_open(struct stk_client *client, const struct stk_cuda_opts *opts,
			     struct stk_cuda **ret_cuda, char *error, size_t error_size);

/*
 * Waits for copies under way. Batches still held stay valid until they are released; the last one
 * frees the device memory. NULL is fine; returns NULL.
 */
STK_PUBLIC struct stk_cuda *stk_cuda_close(struct stk_cuda *cuda);

/**
 * stk_cuda_next() - the next batch, on the device
 * @timeout_ms: for the daemon's batch, not for the copy; -1 waits for ever, 0 only looks
 * @stream:     waits for the copy; work queued on it from now on sees the batch
 * @ret_batch:  yours until stk_cuda_release(); set only when 0 is returned
 *
 * Return: as stk_client_next(); -EBUSY: all device slots are held, release one; -EIO, -ENOMEM:
 * CUDA refused, the batch is not lost.
 */
STK_PUBLIC int stk_cuda_next(struct stk_cuda *cuda, int timeout_ms, void *stream,
			     struct stk_cuda_batch **ret_batch);

/**
 * stk_cuda_take() - the next batch if one is ready
 *
 * As stk_cuda_next() with a timeout of 0, but never attaches anew: STK_TIMEOUT also when the
 * connection is lost; stk_cuda_next() sees to that.
 */
STK_PUBLIC int stk_cuda_take(struct stk_cuda *cuda, void *stream,
			     struct stk_cuda_batch **ret_batch);

/* Makes one more stream wait for the copy. Return: as stk_cuda_record(). */
STK_PUBLIC int stk_cuda_wait(struct stk_cuda_batch *batch, void *stream);

/**
 * stk_cuda_record() - another stream uses the batch
 *
 * Makes @stream wait for the copy and keeps the memory until the work that is on it now is done.
 * Call it before work is queued, for the first, and after it, for the second: each call counts.
 */
STK_PUBLIC int stk_cuda_record(struct stk_cuda_batch *batch, void *stream);

/**
 * stk_cuda_release() - give a device slot back
 * @batch:  NULL is fine; not to be touched afterwards
 * @stream: its memory is used again after the work that is on this stream now
 *
 * Return: 0; -EAGAIN: nothing was done, call it again; another negative errno: the order could not
 * be kept by event, the device was waited for and the batch is released.
 */
STK_PUBLIC int stk_cuda_release(struct stk_cuda_batch *batch, void *stream);
/* The same after the work of each of @n streams. */
STK_PUBLIC int stk_cuda_release_after(struct stk_cuda_batch *batch, void *const *streams,
				      uint32_t n);

/* `data` is a device address; the lists are host memory, valid until the release. */
STK_PUBLIC int stk_cuda_batch_info(const struct stk_cuda_batch *batch, struct stk_batch_info *ret);
/* The device slot: batches of one slot and one shape lie at the same addresses. */
STK_PUBLIC uint32_t stk_cuda_batch_slot(const struct stk_cuda_batch *batch);
STK_PUBLIC uint32_t stk_cuda_batch_ntensors(const struct stk_cuda_batch *batch);
/* As for struct stk_batch, with device addresses. */
STK_PUBLIC int stk_cuda_batch_tensor_at(const struct stk_cuda_batch *batch, uint32_t i,
					struct stk_tensor *ret);
STK_PUBLIC int stk_cuda_batch_tensor(const struct stk_cuda_batch *batch, const char *name,
				     struct stk_tensor *ret);
STK_PUBLIC int stk_cuda_batch_state(const struct stk_cuda_batch *batch, void *state, size_t room);

/* As stk_client_state(): after the last batch that stk_cuda_next() returned. */
STK_PUBLIC int stk_cuda_state(struct stk_cuda *cuda, void *state, size_t room);
/* As stk_client_seek(); batches copied ahead are dropped. */
STK_PUBLIC int stk_cuda_seek(struct stk_cuda *cuda, const void *state, size_t size);

/**
 * stk_cuda_next_host() - the next batch as host memory, for those who copy it themselves
 *
 * As stk_client_next() on a page-locked mapping; meanwhile gives back what stk_cuda_release_host()
 * took. Not to be mixed with stk_cuda_next(). @ret_batch: yours until stk_cuda_release_host().
 */
STK_PUBLIC int stk_cuda_next_host(struct stk_cuda *cuda, int timeout_ms,
				  struct stk_batch **ret_batch);
/* The same if one is ready, as stk_cuda_take(). */
STK_PUBLIC int stk_cuda_take_host(struct stk_cuda *cuda, struct stk_batch **ret_batch);

/**
 * stk_cuda_release_host() - give a host batch back when streams are done with it
 * @streams: each is waited for, by event, up to the work that is on it now; n 0: nothing was copied
 *
 * Also after stk_cuda_close(), and then it waits for the streams itself; the last one frees the rest.
 *
 * Return: 0; -ENOMEM, -EAGAIN: nothing was done, call it again; another negative errno: an event
 * could not be recorded, the device was waited for and the batch is on its way back.
 */
STK_PUBLIC int stk_cuda_release_host(struct stk_cuda *cuda, struct stk_batch *batch,
				     void *const *streams, uint32_t n);

/**
 * stk_cuda_poll() - give back what is complete
 *
 * Next and release do it by the way; this is for those who do something else for long.
 *
 * Return: 0, or -EIO: the device is broken.
 */
STK_PUBLIC int stk_cuda_poll(struct stk_cuda *cuda);

enum stk_cuda_memory {
	STK_CUDA_MEMORY_REGISTERED = 1, /* page-locked in place */
	STK_CUDA_MEMORY_BOUNCE = 2,     /* through pinned buffers */
	STK_CUDA_MEMORY_PAGEABLE = 3,   /* not pinned */
};

struct stk_cuda_info {
	size_t size; /* set by the caller */
	int32_t device;
	uint32_t depth;
	uint32_t memory; /* enum stk_cuda_memory, of the newest batches */
	uint32_t
		in_flight; /* copies not known to be complete, host batches that wait for a stream */
	uint64_t slot_size; /* bytes of a device slot */
	uint64_t batches;   /* returned by next */
	uint64_t ahead;     /* of these, with the copy under way before the call */
	uint64_t lagging;   /* copies that had to be ordered after a release not yet done */
	const char *
		reason; /* why memory is not registered; "" if it is; valid while the pipeline is */
};
STK_PUBLIC int stk_cuda_info(struct stk_cuda *cuda, struct stk_cuda_info *ret);

/* Text of the last error; "" if none. Valid until the next call on the pipeline. */
STK_PUBLIC const char *stk_cuda_error(const struct stk_cuda *cuda);

/* Copies that text, whatever other threads do. Return: CUDA's code for it, 0: not CUDA's error. */
STK_PUBLIC int stk_cuda_last_error(struct stk_cuda *cuda, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif
