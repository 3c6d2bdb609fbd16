/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A feed: what one data-parallel rank of a job receives. It drives itself: whoever frees a slot or
 * finishes a batch (a worker, or the loop on a kick) drains the release rings, plans the next
 * batches into free slots and submits them to the pool; finished batches are published in order.
 * One mutex guards it; slot memory is written by workers only while the slot is FILLING. Counted:
 * the job holds it, and each batch in flight.
 */
#ifndef STKD_FEED_H
#define STKD_FEED_H

#include <pthread.h>

#include "daemon/assemble/pool.h"
#include "daemon/serve/seat.h"
#include "daemon/serve/stream.h"
#include "daemon/serve/worktime.h"

enum stkd_feed_state {
	STKD_FEED_WAITING, /* for its seats */
	STKD_FEED_RUNNING,
	STKD_FEED_ENDED,  /* STREAM_END is published or on its way */
	STKD_FEED_FAILED, /* ERROR is published */
	STKD_FEED_CLOSED,
};

enum stkd_slot_state { STKD_SLOT_FREE, STKD_SLOT_FILLING, STKD_SLOT_PUBLISHED };

struct stkd_slot {
	enum stkd_slot_state state;
	uint32_t index;    /* in the publish ring, once published */
	uint64_t holders;  /* bit per seat that has not released it */
	uint64_t since_ns; /* published at */
};

struct stkd_feed;

/* One batch on its way from plan to ring; as many as slots. */
struct stkd_flight {
	struct stkd_task task;
	struct stkd_feed *feed;
	struct stkd_recipe recipe;
	struct stkd_layout layout;
	uint32_t slot;
	bool in_use, done, stale;
	bool epoch_ends, stream_ends; /* entries that follow this batch */
	uint64_t steps_in_epoch;
	uint64_t planned_ns;
	_Atomic uint64_t real_tokens;
	_Atomic uint32_t max_length;
	_Atomic uint32_t rows_bad;
	_Atomic int failed; /* first failure wins */
	struct stk_err err;
	struct stk_shm_desc desc;
};

struct stkd_feed {
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	struct stkd_stream *stream;
	struct stkd_pool *pool;
	struct stkd_share share, planner_share; /* planning does not wait behind rows of its own */
	uint32_t rank, replicas;
	enum stkd_feed_state state;
	struct stkd_memfile control, slots;
	int control_ro_fd;
	struct stk_shm_control *shm;
	struct stk_ring_pub ring;
	uint32_t nslots;
	struct stkd_slot *slot;
	struct stkd_seat *seats; /* replicas of them */
	/* Planning. */
	struct stkd_iter *iter;
	struct stkd_step step; /* its micro-batches [micro, micros) are still to be planned */
	uint32_t micro, micros;
	bool have_step;
	bool planning;      /* some worker works out the next step, without the lock */
	bool planner_waits; /* `planner` is in the pool */
	struct stkd_task planner;
	uint8_t cursor[STK_SHM_CURSOR_MAX], cursor_before[STK_SHM_CURSOR_MAX];
	uint32_t cursor_size, cursor_before_size;
	uint32_t era;
	/* Flights in step order: a queue over an array of nslots. */
	struct stkd_flight *flights;
	struct stkd_flight **queue;
	uint32_t queue_head, queue_len;
	uint32_t unfinished; /* submitted, and not done */
	/* For the eye. */
	uint64_t batches, steps, epoch;
	struct stkd_worktime worktime;
	bool dry;
	uint32_t teller;       /* of its seats the one that tells of releases while it is dry */
	int broken;            /* why the plan cannot go on; said behind what is in flight */
	struct stk_err failed; /* what its ERROR says */
	/* Called from any thread, under the lock: a seat has a fault to be ended for, or waits for a seek
	 * of a feed that has failed. */
	void (*fault)(void *data);
	void *fault_data;
	/* Called when the last reference goes: bytes of memory given back. */
	void (*freed)(void *data, uint64_t bytes);
	void *freed_data;
	uint64_t charged; /* bytes counted against the daemon's budget */
	struct stkd_progress progress;
};

struct stkd_feed_params {
	struct stkd_stream *stream; /* a reference is taken */
	struct stkd_pool *pool;
	uint32_t rank, replicas, nslots;
	int node;       /* kernel's node number, -1: not bound */
	int numa, lock; /* enum stk_need */
	const void *state;
	size_t state_size;
};

/**
 * stkd_feed_new() - memory, rings and an iterator; publishes nothing yet
 *
 * Runs on a work thread: populating takes time; @ret is given out early so that its progress can
 * be watched, and holds a feed for stkd_feed_unref() also on failure.
 */
struct stkd_feed *stkd_feed_alloc(const struct stkd_feed_params *params);
int stkd_feed_build(struct stkd_feed *feed, const struct stkd_feed_params *params,
		    struct stk_err *err);
/*
 * Starts after @state if that is earlier than where it starts now. While it waits for its seats; on a
 * work thread, as it takes time.
 */
int stkd_feed_rewind(struct stkd_feed *feed, const void *state, size_t size, struct stk_err *err);
struct stkd_feed *stkd_feed_ref(struct stkd_feed *feed);
struct stkd_feed *stkd_feed_unref(struct stkd_feed *feed); /* NULL */

/* The rest is called by the loop; each takes the lock. */

/* Takes a seat that is EMPTY or VACANT; the feed starts when it is the last one. -EBUSY names the holder. */
int stkd_feed_take_seat(struct stkd_feed *feed, uint32_t seat, const struct ucred *peer,
			const void *owner, struct stk_err *err);
/* The holder has gone. One seat: the feed closes. Several: the seat is vacant. */
void stkd_feed_leave_seat(struct stkd_feed *feed, uint32_t seat);
/* Ends the feed with an ERROR entry for those who still look. */
void stkd_feed_fail(struct stkd_feed *feed, int code, const char *reason);
void stkd_feed_close(struct stkd_feed *feed);
enum stkd_feed_state stkd_feed_get_state(struct stkd_feed *feed);
/* A seat kicked, or somebody wants fresh figures: drain, plan, go on. */
void stkd_feed_poke(struct stkd_feed *feed);

/**
 * stkd_feed_seek() - one seat asks for a state
 * @iter: starts after that state; taken over with 1
 *
 * Return: 1 all seats have asked, the new era is in *ret_era and every seek_pending seat is to be
 * answered; 0 others are awaited; -EINVAL refused, nothing changed for this seat.
 */
int stkd_feed_seek(struct stkd_feed *feed, uint32_t seat, const void *state, size_t size,
		   struct stkd_iter *iter, uint32_t *ret_era, struct stk_err *err);

/* Figures of one feed for `queues`; copied under the lock. */
struct stkd_feed_figures {
	enum stkd_feed_state state;
	uint32_t slots, ready, leased, free, filling;
	uint64_t epoch, published, consumed; /* steps */
	struct stkd_worktime_figures work;
};
struct stkd_seat_figures {
	bool taken;
	struct ucred peer;
	uint64_t since_ns, batches, wait_ns, waits, waiting_ns, oldest_ns; /* oldest_ns 0: none */
	uint32_t leased;
};
void stkd_feed_figures(struct stkd_feed *feed, struct stkd_feed_figures *ret,
		       struct stkd_seat_figures *seats /* replicas */);
const char *stkd_feed_state_name(enum stkd_feed_state state);

#endif
