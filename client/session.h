/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One attachment to a feed: the three mappings, the two rings and a fixed array of batches, one per
 * slot. Counted: the client holds one reference and each borrowed batch one, so that batches stay
 * readable after the client was closed, the daemon died or the client attached anew.
 */
#ifndef STK_CLIENT_SESSION_H
#define STK_CLIENT_SESSION_H

#include <pthread.h>

#include "client/schema.h"
#include "proto/ring.h"
#include "proto/state.h"

struct stk__session;

/* What somebody did to the mapping of the slots, and undoes before it is unmapped. */
struct stk__pin {
	void (*end)(struct stk__pin *pin); /* on the thread that drops the last reference */
};

/* Belongs to its session; borrowed from next() to release(). */
struct stk_batch {
	struct stk__session *session;
	const uint8_t *data;      /* the slot */
	uint32_t index;           /* of the publish entry that lent it */
	atomic_bool lent;         /* cleared before the release is visible to the daemon */
	struct stk_shm_desc desc; /* checked private copy, cursor included as far as it goes */
	struct stk_shm_field fields[];
};

struct stk__session {
	_Atomic uint32_t refs;
	struct stk__session *next, **link; /* fork.c: every session of the process */
	pthread_mutex_t lock;              /* release ring, live, and the descriptors' end */
	bool live;                         /* false: releases stay local, descriptors are closed */
	int sock, kick, wake;
	const struct stk_shm_control *control; /* read-only mappings of these sizes */
	struct stk_shm_seat *seat;
	uint8_t *slots;
	size_t control_size, seat_size, slots_size;
	uint64_t release_off;              /* of the release ring in the seat file */
	struct stk_shm_control geometry;   /* checked private copy of the header */
	struct stk_state_header state;     /* of a state, but for its cursor_size */
	uint8_t start[STK_SHM_CURSOR_MAX]; /* cursor of the beginning; geometry.start_size of it */
	struct stk_ring_sub sub;           /* the consumer's thread */
	struct stk_ring_rel rel;           /* under lock */
	uint32_t owed;        /* releases that a dry daemon was not told of; under lock */
	uint32_t owed_max;    /* this many are told together */
	uint32_t number;      /* of this seat in its feed */
	bool eager;           /* nothing is ready: tell each; under lock */
	struct stk__pin *pin; /* of libstoker-cuda, or NULL; under lock */
	struct stk__schema *schema;
	char *batches; /* nslots * batch_size */
	size_t batch_size;
};

/* Descriptors of an attach, in the order in which they come. */
enum stk__fd { STK__FD_CONTROL, STK__FD_SLOTS, STK__FD_SEAT, STK__FD_KICK, STK__FD_WAKE, STK__FDS };

/**
 * stk__session_new() - map and check what an attach brought
 * @sock:  the connection
 * @fds:   STK__FDS descriptors
 * @first: publish index of the first entry for this seat
 *
 * On success sock and all of fds are the session's (set to -1), else the caller's.
 *
 * Return: 0; -EPROTO what came does not fit together; -ENOMEM a mapping was refused.
 */
int stk__session_new(int *sock, int fds[STK__FDS], uint32_t first, struct stk__session **ret,
		     struct stk_err *err);
void stk__session_ref(struct stk__session *session);
void stk__session_unref(struct stk__session *session);
/* Hangs up and closes the descriptors; what is borrowed stays readable. */
void stk__session_end(struct stk__session *session);

/* Lends the slot of a BATCH entry with that index. 0 and a new reference, or -EPROTO. */
int stk__session_lend(struct stk__session *session, const struct stk_shm_entry *entry,
		      uint32_t index, struct stk_batch **ret, struct stk_err *err);
/* Gives back the slot of an entry that nobody wants; a slot out of range is ignored. */
void stk__session_skip(struct stk__session *session, uint32_t slot, uint32_t index);
/*
 * Nothing is ready, or the stream is over: the daemon is told of every release from now on, and of
 * those it was not told of. With false again: only of several together.
 */
void stk__session_eager(struct stk__session *session, bool eager);
/* One of several seats: the daemon is told of every release of the others, too, until eager ends. */
void stk__session_hungry(struct stk__session *session);
/* The text of an ERROR entry, terminated. */
void stk__session_error(const struct stk__session *session, char text[STK_SHM_ERROR_SIZE]);

/* fork.c: in a forked child every session of the parent ends, without touching shared memory. */
void stk__fork_watch(struct stk__session *session);
void stk__fork_forget(struct stk__session *session);
/* Differs in a forked child from what the parent saw. Exported for libstoker-cuda. */
STK_PUBLIC unsigned stk__fork_generation(void);

#endif
