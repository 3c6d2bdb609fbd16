/* SPDX-License-Identifier: Apache-2.0 */
/**
 * stoker.h - receive batches from stokerd
 *
 * A client is one seat at one feed: what one data-parallel rank (or one replica of it) of a job
 * receives. Several clients may live in one process. A client may be used from any thread, one
 * thread at a time for open, next, seek and close; batches may be released from any thread.
 *
 * Functions return 0 or a positive outcome (enum stk_outcome), or a negative errno; then
 * stk_client_error() has one sentence with the place, the value and what is allowed.
 */
#ifndef STOKER_H
#define STOKER_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STK_PUBLIC __attribute__((visibility("default")))

#define STK_VERSION_MAJOR 0
#define STK_VERSION_MINOR 1

struct stk_client;
struct stk_batch;

enum stk_outcome {
	STK_TIMEOUT = 1,    /* no batch within the time given */
	STK_EPOCH_END = 2,  /* one epoch is over; the next call goes on with the next one */
	STK_STREAM_END = 3, /* the last epoch is over; final */
};

/* Element types; the values are part of the shared-memory layout. */
enum stk_element {
	STK_BOOL = 1,
	STK_U8 = 2,
	STK_I8 = 3,
	STK_U16 = 4,
	STK_I16 = 5,
	STK_U32 = 6,
	STK_I32 = 7,
	STK_U64 = 8,
	STK_I64 = 9,
	STK_F16 = 10,
	STK_BF16 = 11,
	STK_F32 = 12,
	STK_F64 = 13,
	STK_F8_E4M3 = 14,
	STK_F8_E5M2 = 15,
	STK_C64 = 16,
};

#define STK_DIMS_MAX  9
#define STK_ROW_EMPTY UINT64_MAX /* sample id of a masked row */

enum stk_daemon {
	STK_DAEMON_AUTO = 0,    /* a path: private; a stream name: system */
	STK_DAEMON_SYSTEM = 1,  /* the socket given, $STOKER_SOCKET, or the installed default */
	STK_DAEMON_PRIVATE = 2, /* one per job and node, started by the first client of the job */
};

/* Zero everything, set `size`, then what you need. */
struct stk_client_opts {
	size_t size;        /* sizeof() as the caller was built; the library defaults the rest */
	const char *stream; /* name of a configured stream, or NULL */
	const char *path;   /* shards: file, directory or glob, or NULL; one of the two is needed */
	const char *const *keys; /* spec keys "rows=32", NULL-terminated; NULL: none */
	const char *spec;        /* spec as JSON or YAML text: whole, or on top of stream or path */
	const char *job;      /* NULL: from the launcher's environment, else this process alone */
	const char *socket;   /* NULL: see enum stk_daemon */
	uint32_t daemon;      /* enum stk_daemon */
	uint32_t rank, world; /* data-parallel; world 0 means 1 */
	uint32_t replica, replicas; /* seats of the same rank; replicas 0 means 1 */
	int32_t attach_timeout_ms;  /* of silence, not of work; 0: 300 s; -1: for ever */
	int32_t reconnect_ms;       /* after a lost connection; 0: -EPIPE at once */
	const void *state;          /* start after this state; NULL: at the beginning */
	size_t state_size;
	/* Called during open with what the daemon is doing; may be NULL. */
	void (*progress)(void *data, const char *stage, uint64_t done, uint64_t total);
	void *progress_data;
	uint32_t flags; /* must be 0 */
	uint32_t reserved;
	/* Called several times a second while open, next or seek waits; true ends the wait with -EINTR.
	 * May be NULL. */
	int (*interrupted)(void *data);
	void *interrupt_data;
	/* The device that batches go to, as stk_cuda_device() tells: stokerd places slots and workers
	 * next to it. NULL: none, and host_node is not looked at. */
	const char *pci;   /* "0000:41:00.0" */
	int32_t host_node; /* NUMA node of the host next to it; -1: not known */
	uint32_t reserved2;
	/* Name of the private daemon, which several jobs may share; NULL: the job's. */
	const char *private_name;
};

/**
 * stk_client_open() - attach to a feed
 * @opts:       copied
 * @ret_client: for stk_client_close(); set only when 0 is returned
 * @error:      room for the error text, or NULL
 * @error_size: bytes of @error
 *
 * Starts a private daemon when needed. Blocks until the feed's memory is ready.
 *
 * Return: 0; -EINVAL a key or option is wrong; -ENOENT unknown stream or no shards; -EBADMSG a bad
 * shard; -EBUSY the seat is taken; -EEXIST the job was created with other values; -ENOMEM,
 * -EMFILE, -EPERM a limit, named; -ECONNREFUSED no daemon; -EPROTO versions; -ETIMEDOUT.
 */
STK_PUBLIC int stk_client_open(const struct stk_client_opts *opts, struct stk_client **ret_client,
			       char *error, size_t error_size);

/* Ends the seat. Batches still held stay readable until they are released. NULL is fine; returns NULL. */
STK_PUBLIC struct stk_client *stk_client_close(struct stk_client *client);

/**
 * stk_client_next() - borrow the next batch
 * @client:     open client; one thread at a time
 * @timeout_ms: -1 waits for ever, 0 only looks
 * @ret_batch:  borrowed until stk_batch_release(); set only when 0 is returned
 *
 * Copies nothing, and makes no system call when a batch is already waiting. With reconnect_ms a lost
 * connection is restored in here, which may take longer than @timeout_ms.
 *
 * Return: 0, or STK_TIMEOUT, STK_EPOCH_END, STK_STREAM_END; else a negative errno (-EPIPE: stokerd
 * is gone; -ECHILD: this is a forked child, open your own client; the daemon's code for an error of
 * the stream, final).
 */
STK_PUBLIC int stk_client_next(struct stk_client *client, int timeout_ms,
			       struct stk_batch **ret_batch);

/**
 * stk_client_take() - the next batch if one is ready
 *
 * As stk_client_next() with a timeout of 0, but looks at the ring alone: no system call, no
 * attaching anew. STK_TIMEOUT also when the connection is lost; stk_client_next() sees to that.
 */
STK_PUBLIC int stk_client_take(struct stk_client *client, struct stk_batch **ret_batch);

/**
 * stk_client_why() - who is waited for, in one sentence with figures
 * @text: room for @size bytes; always terminated
 *
 * Names the limiting stage: trainer, ring, assembly, storage, plan or stokerd. Asks the daemon, and waits for
 * it at most two seconds.
 *
 * Return: 0; or the negative errno of the call, and then @text says that stokerd does not answer.
 */
STK_PUBLIC int stk_client_why(struct stk_client *client, char *text, size_t size);

/**
 * stk_batch_release() - give a batch's memory back
 * @batch: NULL is fine
 *
 * From any thread, in any order, also after the client was closed or the daemon died. The tensors
 * are invalid afterwards. No system call unless the daemon waits for memory.
 */
STK_PUBLIC void stk_batch_release(struct stk_batch *batch);

struct stk_batch_info {
	size_t size; /* set by the caller before stk_batch_info() */
	uint64_t epoch, step;
	uint32_t micro, last_micro; /* micro-batch of the step; 1 on the last one */
	uint32_t shape_class, edge; /* index into the shapes, and its bucket edge */
	uint32_t rows, rows_real, rows_bad;
	uint32_t width;      /* padded length */
	uint32_t max_length; /* longest real row; packed: longest segment */
	uint32_t era;
	uint64_t real_tokens, padded_tokens;
	uint64_t global_tokens; /* label tokens of all ranks in this step */
	const void *data; /* start of the batch; all tensors lie in data_size bytes: one copy */
	uint64_t data_size;
	const uint64_t *sample_ids; /* [nids]: of the rows, STK_ROW_EMPTY for a masked one; or of
				     * the segments of packed rows */
	const uint32_t *lengths;    /* [nids] */
	uint32_t nids, slot;
	uint64_t ready_ns; /* CLOCK_MONOTONIC when it was published; 0: an older daemon */
	/* Packed rows, else NULL: row r has segments row_first[r] to row_first[r + 1] - 1, and each
	 * one begins at element segment_from of its sample. */
	const uint32_t *row_first;    /* [rows + 1] */
	const uint32_t *segment_from; /* [nids] */
	uint32_t ends_epoch; /* 1: the epoch has no batch behind it; 0 from older daemons */
	uint32_t reserved;
};
STK_PUBLIC int stk_batch_info(const struct stk_batch *batch, struct stk_batch_info *ret);

struct stk_tensor {
	const char *name; /* valid while the client or the batch is */
	const void
		*data; /* 256-byte aligned; writable for a single seat, but nobody reads it back */
	uint64_t size; /* bytes */
	uint32_t element; /* enum stk_element */
	uint32_t ndim;
	uint64_t shape[STK_DIMS_MAX]; /* C order, contiguous */
};

STK_PUBLIC uint32_t stk_batch_ntensors(const struct stk_batch *batch);
/* By position, 0 .. ntensors - 1. Return: 0 or -ERANGE. */
STK_PUBLIC int stk_batch_tensor_at(const struct stk_batch *batch, uint32_t i,
				   struct stk_tensor *ret);
/* By name. Return: 0 or -ENOENT. */
STK_PUBLIC int stk_batch_tensor(const struct stk_batch *batch, const char *name,
				struct stk_tensor *ret);

#define STK_STATE_MAX 2048 /* no state is larger */

/**
 * stk_client_state() - where to continue: after the last batch that next() returned
 * @state: room for @room bytes; STK_STATE_MAX is always enough
 *
 * No message is sent; works after the daemon died. Before the first batch: the start.
 *
 * Return: bytes written, or -ENOSPC.
 */
STK_PUBLIC int stk_client_state(const struct stk_client *client, void *state, size_t room);
/* The same for a batch that is still borrowed. */
STK_PUBLIC int stk_batch_state(const struct stk_batch *batch, void *state, size_t room);

/**
 * stk_client_seek() - continue after @state instead
 *
 * With several seats at a feed all of them must ask for the same state; the call waits for the
 * others. Borrowed batches stay valid. @state NULL with size 0: the job's beginning.
 *
 * Return: 0; -EINVAL the state belongs to other data or another spec; -ETIMEDOUT; -EPIPE.
 */
STK_PUBLIC int stk_client_seek(struct stk_client *client, const void *state, size_t size);

struct stk_shape {
	uint32_t edge, rows;
	uint32_t width_min, width_max, width_multiple;
};
/* The closed set of shape classes. Return: their number; fills at most @room. */
STK_PUBLIC int stk_client_shapes(const struct stk_client *client, struct stk_shape *shapes,
				 uint32_t room);

struct stk_shape_info {
	size_t size; /* set by the caller before stk_client_shape() */
	uint32_t edge, rows;
	uint32_t width_min, width_max, width_multiple;
	uint32_t edge2, width2_min, width2_max; /* of the second length; 0: there is one */
};
/*
 * One shape class, counted from 0 as in stk_batch_info, both lengths of it. Return: 0; -ERANGE there is none of
 * this number; -EINVAL size is not set.
 */
STK_PUBLIC int stk_client_shape(const struct stk_client *client, uint32_t i,
				struct stk_shape_info *ret);

struct stk_client_info {
	size_t size;                       /* set by the caller */
	uint64_t samples, steps_per_epoch; /* steps 0: no epochs, or each has its own number */
	uint64_t overlong_dropped, truncated, promoted, tail_dropped, masked;
	uint64_t epochs; /* 0: endless */
	uint32_t rank, world, replica, replicas;
	uint32_t slots, micros;
	uint64_t slot_size;
	const char *stream, *job, *socket; /* valid while the client is */
	int32_t daemon_pid;
	uint32_t private_daemon;
	const char *schema; /* JSON: fields, classes, counts, resolved spec */
	/* What open asked for and did not get, in one sentence, such as fewer slots than prefetch; NULL:
	 * nothing, or an older daemon. */
	const char *notice;
};
STK_PUBLIC int stk_client_info(const struct stk_client *client, struct stk_client_info *ret);

/**
 * stk_client_fd() - a descriptor that polls readable when next() will not wait
 *
 * Owned by the client, the same for its life; also readable when the daemon is gone. Call
 * next(client, 0, ...) until it returns STK_TIMEOUT, then poll again.
 *
 * Return: descriptor or negative errno.
 */
STK_PUBLIC int stk_client_fd(struct stk_client *client);

/* Text of the last error of this client; "" if none. Valid until the next call on the client. */
STK_PUBLIC const char *stk_client_error(const struct stk_client *client);

/**
 * stk_control_call() - one Varlink call to a daemon
 * @socket:     path; NULL: $STOKER_SOCKET, then the installed default
 * @method:     "io.stoker.Queues"
 * @parameters: JSON object, NULL: {}
 * @ret_reply:  JSON text of the reply's parameters; free() it
 * @error:      room for an error text
 *
 * Return: 0; -ECONNREFUSED or -ENOENT no daemon; the daemon's negative errno; -ETIMEDOUT.
 */
STK_PUBLIC int stk_control_call(const char *socket, const char *method, const char *parameters,
				int timeout_ms, char **ret_reply, char *error, size_t error_size);

/**
 * stk_control_sockets() - daemons on this node: the system one and this user's private ones
 * @ret_paths: NULL-terminated; free() each and the array
 *
 * Return: number of sockets that accept a connection, or negative errno.
 */
STK_PUBLIC int stk_control_sockets(char ***ret_paths);

#ifdef __cplusplus
}
#endif

#endif
