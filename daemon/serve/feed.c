/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/feed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/serve/flight.h"

struct stkd_feed *stkd_feed_alloc(const struct stkd_feed_params *params)
{
	struct stkd_feed *feed = calloc(1, sizeof(*feed));

	if (!feed)
		return NULL;
	feed->seats = calloc(params->replicas, sizeof(*feed->seats));
	if (!feed->seats) {
		free(feed);
		return NULL;
	}
	atomic_store_explicit(&feed->refs, 1, memory_order_relaxed);
	pthread_mutex_init(&feed->lock, NULL);
	feed->stream = stkd_stream_ref(params->stream);
	feed->pool = params->pool;
	feed->share.weight = feed->planner_share.weight = params->stream->spec->weight;
	feed->rank = params->rank;
	feed->replicas = params->replicas;
	feed->nslots = params->nslots;
	feed->micros = params->stream->spec->accumulate;
	feed->control.fd = feed->slots.fd = feed->control_ro_fd = -1;
	for (uint32_t i = 0; i < params->replicas; i++) {
		feed->seats[i].number = i;
		feed->seats[i].kick_fd = feed->seats[i].wake_fds[0] = feed->seats[i].wake_fds[1] =
			-1;
		feed->seats[i].file.fd = -1;
	}
	return feed;
}

static void fill_control(struct stkd_feed *feed, const struct stk_shm_control *plan)
{
	struct stk_shm_control *shm = feed->shm;
	struct stk_state_header state;

	/* Everything before the atomics of the daemon's line, which are zero in a new file. */
	memcpy(shm, plan, offsetof(struct stk_shm_control, ready));
	shm->rank = feed->rank;
	shm->world = feed->stream->world;
	shm->replicas = feed->replicas;
	shm->micros = feed->micros;
	memcpy(feed->control.map + shm->schema_off, feed->stream->schema, shm->schema_size);
	stkd_stream_state_header(feed->stream, &state);
	memcpy(feed->control.map + shm->state_off, &state, sizeof(state));
	memcpy(feed->control.map + shm->start_off, feed->stream->start, shm->start_size);
	feed->ring = (struct stk_ring_pub){
		.shm = shm,
		.entries = (struct stk_shm_entry *)(feed->control.map + shm->ring_off),
		.mask = shm->ring_entries - 1,
	};
	/* Pairs with the acquire in stk_shm_control_check(). */
	atomic_store_explicit(&shm->ready, 1, memory_order_release);
}

static int build_control(struct stkd_feed *feed, const struct stkd_feed_params *params,
			 struct stk_err *err)
{
	const struct stkd_place place = {.node = -1, .populate = true, .lock = -1, .numa = -1};
	struct stk_shm_geometry geometry = {
		.nslots = params->nslots,
		.nfields = stkd_assembly_nfields(params->stream->assembly),
		.slot_size = params->stream->slot_size,
		.schema_size = strlen(params->stream->schema),
		.state_size = sizeof(struct stk_state_header),
		.start_size = (uint32_t)params->stream->start_size,
	};
	struct stk_shm_control plan;
	int r;

	stkd_plan_classes(params->stream->plan, &geometry.nclasses);
	r = stk_shm_control_plan(&geometry, &plan);
	if (r < 0)
		return stk_err_set(err, r,
				   "feed: %" PRIu32 " slots of %" PRIu64 " bytes are not possible",
				   params->nslots, params->stream->slot_size);
	r = stkd_memfile_new("stoker-control", plan.file_size, &place, &feed->control, err);
	if (r < 0)
		return r;
	feed->shm = (struct stk_shm_control *)feed->control.map;
	feed->control_ro_fd = stkd_memfile_readonly(&feed->control, err);
	if (feed->control_ro_fd < 0)
		return feed->control_ro_fd;
	fill_control(feed, &plan);
	return 0;
}

static int build_slots(struct stkd_feed *feed, const struct stkd_feed_params *params,
		       struct stk_err *err)
{
	struct stkd_place place = {
		.node = params->node,
		.numa = params->numa,
		.lock = params->lock,
		.populate = true,
		.progress = &feed->progress,
		.warn = stkd_warn_once,
	};

	atomic_store_explicit(&feed->progress.stage, "populating slots", memory_order_relaxed);
	return stkd_memfile_new("stoker-slots", params->stream->slot_size * params->nslots, &place,
				&feed->slots, err);
}

int stkd_feed_build(struct stkd_feed *feed, const struct stkd_feed_params *params,
		    struct stk_err *err)
{
	int r = stkd_stream_iter(params->stream, params->state, params->state_size, &feed->iter,
				 err);

	if (r < 0)
		return r;
	feed->cursor_size = (uint32_t)stkd_stream_cursor(feed->stream, feed->iter, feed->cursor);
	r = stkd_flights_new(feed);
	if (r < 0)
		return stk_err_set(err, r, "out of memory");
	r = build_slots(feed, params, err);
	return r < 0 ? r : build_control(feed, params, err);
}

static void start_at(struct stkd_feed *feed, struct stkd_iter *iter)
{
	if (!feed->planning) /* else it ends with the step that is planned */
		stkd_iter_free(feed->iter);
	feed->iter = iter;
	feed->cursor_size = (uint32_t)stkd_stream_cursor(feed->stream, iter, feed->cursor);
}

static bool is_before(const struct stkd_iter *a, const struct stkd_iter *b)
{
	if (stkd_iter_epoch(a) != stkd_iter_epoch(b))
		return stkd_iter_epoch(a) < stkd_iter_epoch(b);
	return stkd_iter_step(a) < stkd_iter_step(b);
}

int stkd_feed_rewind(struct stkd_feed *feed, const void *state, size_t size, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	int r = stkd_stream_iter(feed->stream, state, size, &iter, err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&feed->lock);
	if (feed->state == STKD_FEED_WAITING && is_before(iter, feed->iter))
		start_at(feed, STK_STEAL(iter));
	pthread_mutex_unlock(&feed->lock);
	return 0;
}

struct stkd_feed *stkd_feed_ref(struct stkd_feed *feed)
{
	/* Relaxed: whoever copies a reference holds one already. */
	atomic_fetch_add_explicit(&feed->refs, 1, memory_order_relaxed);
	return feed;
}

struct stkd_feed *stkd_feed_unref(struct stkd_feed *feed)
{
	/* acq_rel: the last one sees all that others did with it. */
	if (!feed || atomic_fetch_sub_explicit(&feed->refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	for (uint32_t i = 0; i < feed->replicas; i++)
		stkd_seat_leave(&feed->seats[i], STKD_SEAT_EMPTY);
	stkd_flights_free(feed);
	stkd_iter_free(feed->iter);
	stkd_memfile_deinit(&feed->slots);
	stkd_memfile_deinit(&feed->control);
	feed->control_ro_fd = stk_close(feed->control_ro_fd);
	stkd_stream_unref(feed->stream);
	if (feed->freed)
		feed->freed(feed->freed_data, feed->charged);
	pthread_mutex_destroy(&feed->lock);
	free(feed->seats);
	free(feed);
	return NULL;
}

/* Seats. */

/* Nobody releases the end of an epoch: those right before an unread entry count as unread too. */
static uint32_t before_ends(const struct stkd_feed *feed, uint32_t first)
{
	while (first && feed->ring.tail - first < feed->ring.mask &&
	       feed->ring.entries[(first - 1) & feed->ring.mask].kind != STK_SHM_BATCH)
		first--;
	return first;
}

/*
 * Where a seat that comes back goes on: at the oldest entry it has not released. Entries behind it
 * that it did release count as unread again, as long as their slot was not reused.
 */
static int resume_vacant(struct stkd_feed *feed, uint32_t seat, uint32_t *ret_first,
			 struct stk_err *err)
{
	uint64_t bit = UINT64_C(1) << seat;
	uint32_t tail = feed->ring.tail, oldest = 0, published = 0, held = 0;

	for (uint32_t i = 0; i < feed->nslots; i++)
		if (feed->slot[i].state == STKD_SLOT_PUBLISHED && (feed->slot[i].holders & bit))
			oldest = STK_MAX(oldest, tail - feed->slot[i].index);
	*ret_first = tail - oldest;
	for (uint32_t i = 0; i < oldest; i++)
		published += feed->ring.entries[(*ret_first + i) & feed->ring.mask].kind ==
			     STK_SHM_BATCH;
	for (uint32_t i = 0; i < feed->nslots; i++)
		held += feed->slot[i].state == STKD_SLOT_PUBLISHED &&
			tail - feed->slot[i].index <= oldest && oldest;
	if (held != published)
		return stk_err_set(err, -EBUSY,
				   "replica %" PRIu32
				   ": its last holder gave batches back out of order, so it "
				   "cannot be continued; restart the job from a state",
				   seat);
	for (uint32_t i = 0; i < feed->nslots && oldest; i++)
		if (feed->slot[i].state == STKD_SLOT_PUBLISHED &&
		    tail - feed->slot[i].index <= oldest)
			feed->slot[i].holders |= bit;
	*ret_first = before_ends(feed, *ret_first);
	return 0;
}

static bool all_taken(const struct stkd_feed *feed)
{
	for (uint32_t i = 0; i < feed->replicas; i++)
		if (feed->seats[i].state != STKD_SEAT_TAKEN)
			return false;
	return true;
}

static void start(struct stkd_feed *feed)
{
	uint64_t epochs = feed->stream->spec->epochs;

	feed->state = STKD_FEED_RUNNING;
	if (epochs && stkd_iter_epoch(feed->iter) >= epochs)
		stkd_feed_publish_end(feed);
	stkd_feed_go_on(feed);
}

static int take_seat(struct stkd_feed *feed, struct stkd_seat *seat, const struct ucred *peer,
		     const void *owner, struct stk_err *err)
{
	uint32_t first = 0;
	int r;

	if (seat->state == STKD_SEAT_TAKEN)
		return stk_err_set(err, -EBUSY,
				   "rank %" PRIu32 " replica %" PRIu32
				   " is taken by pid %d of user %u since %" PRIu64 " s",
				   feed->rank, seat->number, (int)seat->peer.pid,
				   (unsigned)seat->peer.uid,
				   (stkd_now_ns() - seat->since_ns) / UINT64_C(1000000000));
	if (feed->state == STKD_FEED_FAILED || feed->state == STKD_FEED_CLOSED)
		return stk_err_set(
			err, -EPIPE, "rank %" PRIu32 ": its feed has ended with an error: %s",
			feed->rank, feed->failed.code ? feed->failed.text : "all seats left");
	if (seat->state == STKD_SEAT_VACANT) {
		r = resume_vacant(feed, seat->number, &first, err);
		if (r < 0)
			return r;
	}
	r = stkd_seat_take(seat, feed->shm->ring_entries, first, peer, owner, err);
	if (r < 0)
		return r;
	if (feed->state == STKD_FEED_WAITING && all_taken(feed))
		start(feed);
	return 0;
}

int stkd_feed_take_seat(struct stkd_feed *feed, uint32_t number, const struct ucred *peer,
			const void *owner, struct stk_err *err)
{
	int r;

	pthread_mutex_lock(&feed->lock);
	r = take_seat(feed, &feed->seats[number], peer, owner, err);
	pthread_mutex_unlock(&feed->lock);
	return r;
}

static void close_feed(struct stkd_feed *feed)
{
	stkd_flights_forget(feed);
	feed->state = STKD_FEED_CLOSED;
}

void stkd_feed_leave_seat(struct stkd_feed *feed, uint32_t number)
{
	bool any = false;

	pthread_mutex_lock(&feed->lock);
	if (!feed->seats[number].fault[0])
		stkd_feed_drain(feed);
	stkd_seat_leave(&feed->seats[number],
			feed->state == STKD_FEED_WAITING ? STKD_SEAT_EMPTY : STKD_SEAT_VACANT);
	for (uint32_t i = 0; i < feed->replicas; i++)
		any |= feed->seats[i].state == STKD_SEAT_TAKEN;
	if (!any)
		close_feed(feed);
	else
		stkd_feed_go_on(feed);
	pthread_mutex_unlock(&feed->lock);
}

void stkd_feed_fail(struct stkd_feed *feed, int code, const char *reason)
{
	pthread_mutex_lock(&feed->lock);
	stkd_feed_publish_error(feed, code, reason);
	pthread_mutex_unlock(&feed->lock);
}

void stkd_feed_close(struct stkd_feed *feed)
{
	pthread_mutex_lock(&feed->lock);
	close_feed(feed);
	pthread_mutex_unlock(&feed->lock);
}

enum stkd_feed_state stkd_feed_get_state(struct stkd_feed *feed)
{
	enum stkd_feed_state state;

	pthread_mutex_lock(&feed->lock);
	state = feed->state;
	pthread_mutex_unlock(&feed->lock);
	return state;
}

void stkd_feed_poke(struct stkd_feed *feed)
{
	pthread_mutex_lock(&feed->lock);
	if (!stkd_feed_drain(feed) && feed->dry)
		stkd_feed_change_teller(feed);
	stkd_feed_go_on(feed);
	pthread_mutex_unlock(&feed->lock);
}

/* Seek. */

static int remember_seek(struct stkd_feed *feed, struct stkd_seat *seat, const void *state,
			 size_t size, struct stk_err *err)
{
	uint8_t *copy;

	for (uint32_t i = 0; i < feed->replicas; i++) {
		const struct stkd_seat *other = &feed->seats[i];

		if (other != seat && other->seek_pending &&
		    (other->seek_size != size || (size && memcmp(other->seek, state, size))))
			return stk_err_set(err, -EINVAL,
					   "seek: replica %" PRIu32
					   " asked for another state than replica %" PRIu32,
					   seat->number, other->number);
	}
	copy = malloc(size + 1);
	if (!copy)
		return stk_err_set(err, -ENOMEM, "out of memory");
	if (size)
		memcpy(copy, state, size);
	free(seat->seek);
	seat->seek = copy;
	seat->seek_size = size;
	seat->seek_pending = true;
	return 0;
}

/* All seats agree: drop what is planned, go on after the state in a new era. */
static void new_era(struct stkd_feed *feed, struct stkd_iter *iter)
{
	stkd_flights_forget(feed);
	start_at(feed, iter);
	feed->era++;
	start(feed);
}

static int seek(struct stkd_feed *feed, struct stkd_seat *seat, const void *state, size_t size,
		struct stkd_iter *iter, struct stk_err *err)
{
	int r;

	if (feed->state != STKD_FEED_RUNNING && feed->state != STKD_FEED_ENDED)
		return stk_err_set(err, -EINVAL, "seek: the feed is %s",
				   stkd_feed_state_name(feed->state));
	r = remember_seek(feed, seat, state, size, err);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < feed->replicas; i++)
		if (!feed->seats[i].seek_pending)
			return 0;
	new_era(feed, iter);
	return 1;
}

int stkd_feed_seek(struct stkd_feed *feed, uint32_t seat, const void *state, size_t size,
		   struct stkd_iter *iter, uint32_t *ret_era, struct stk_err *err)
{
	int r;

	pthread_mutex_lock(&feed->lock);
	r = seek(feed, &feed->seats[seat], state, size, iter, err);
	*ret_era = feed->era;
	pthread_mutex_unlock(&feed->lock);
	return r;
}

/* Figures. */

const char *stkd_feed_state_name(enum stkd_feed_state state)
{
	static const char *const names[] = {
		[STKD_FEED_WAITING] = "waiting", [STKD_FEED_RUNNING] = "running",
		[STKD_FEED_ENDED] = "ended",     [STKD_FEED_FAILED] = "failed",
		[STKD_FEED_CLOSED] = "closed",
	};

	return names[state];
}

/* A seat's claims about itself: shown, never believed. */
static void seat_figures(const struct stkd_feed *feed, const struct stkd_seat *seat,
			 struct stkd_seat_figures *ret, uint32_t *ret_consumed)
{
	uint64_t now = stkd_now_ns(), waiting;

	memset(ret, 0, sizeof(*ret));
	*ret_consumed = feed->ring.tail;
	if (seat->state != STKD_SEAT_TAKEN)
		return;
	ret->taken = true;
	ret->peer = seat->peer;
	ret->since_ns = now - seat->since_ns;
	/* Relaxed: for the eye only. */
	*ret_consumed = atomic_load_explicit(&seat->shm->consumed, memory_order_relaxed);
	ret->batches = atomic_load_explicit(&seat->shm->batches, memory_order_relaxed);
	ret->wait_ns = atomic_load_explicit(&seat->shm->wait_ns, memory_order_relaxed);
	ret->waits = atomic_load_explicit(&seat->shm->waits, memory_order_relaxed);
	waiting = atomic_load_explicit(&seat->shm->waiting_since_ns, memory_order_relaxed);
	ret->waiting_ns = waiting && waiting < now ? now - waiting : 0;
}

/*
 * How long a seat has had a batch: for the one it took last by its own clock, for others at most
 * since they were published.
 */
static uint64_t lease_age(const struct stkd_slot *slot, const struct stkd_seat *seat,
			  uint32_t consumed)
{
	uint64_t now = stkd_now_ns(), age = now - slot->since_ns, taken;

	/* Relaxed: for the eye only, and not believed beyond the time of publishing. */
	taken = atomic_load_explicit(&seat->shm->last_next_ns, memory_order_relaxed);
	if (consumed - slot->index != 1 || taken > now)
		return age;
	return STK_MIN(age, now - taken);
}

/* Published slots are ready until a seat took them, then leased until all have released them. */
static void count_slots(const struct stkd_feed *feed, const uint32_t *consumed,
			struct stkd_feed_figures *ret, struct stkd_seat_figures *seats)
{
	for (uint32_t i = 0; i < feed->nslots; i++) {
		const struct stkd_slot *slot = &feed->slot[i];
		bool leased = false;
		uint64_t age;

		ret->free += slot->state == STKD_SLOT_FREE;
		ret->filling += slot->state == STKD_SLOT_FILLING;
		for (uint32_t s = 0; s < feed->replicas && slot->state == STKD_SLOT_PUBLISHED;
		     s++) {
			if (!(slot->holders & UINT64_C(1) << s) || !seats[s].taken ||
			    (int32_t)(consumed[s] - slot->index) <= 0)
				continue;
			age = lease_age(slot, &feed->seats[s], consumed[s]);
			leased = true;
			seats[s].leased++;
			seats[s].oldest_ns = STK_MAX(seats[s].oldest_ns, age);
		}
		ret->leased += leased;
		ret->ready += slot->state == STKD_SLOT_PUBLISHED && !leased;
	}
}

void stkd_feed_figures(struct stkd_feed *feed, struct stkd_feed_figures *ret,
		       struct stkd_seat_figures *seats)
{
	uint32_t consumed[STK_SHM_MAX_SEATS];
	uint64_t least = UINT64_MAX;

	memset(ret, 0, sizeof(*ret));
	pthread_mutex_lock(&feed->lock);
	stkd_feed_drain(feed);
	stkd_feed_go_on(feed);
	for (uint32_t i = 0; i < feed->replicas; i++) {
		seat_figures(feed, &feed->seats[i], &seats[i], &consumed[i]);
		if (seats[i].taken)
			least = STK_MIN(least, seats[i].batches);
	}
	ret->state = feed->state;
	ret->slots = feed->nslots;
	ret->epoch = feed->epoch;
	ret->published = feed->steps;
	ret->consumed = least == UINT64_MAX ? 0 : STK_MIN(least / feed->micros, feed->steps);
	count_slots(feed, consumed, ret, seats);
	pthread_mutex_unlock(&feed->lock);
	stkd_worktime_figures(&feed->worktime, &ret->work);
}
