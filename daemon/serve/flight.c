/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/flight.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANGE_BYTES (UINT64_C(256) << 10) /* of a slot, for one claim of a worker */

static void flight_run(struct stkd_task *task, uint32_t first, uint32_t n);
static void flight_done(struct stkd_task *task);

/* Room for the largest one. */
static int make_recipe(const struct stkd_stream *stream, struct stkd_recipe *recipe)
{
	size_t segments = (size_t)stream->rows_max * stream->row_segments;

	if (!segments) {
		recipe->ids = calloc(stream->rows_max, sizeof(*recipe->ids));
		return recipe->ids ? 0 : -ENOMEM;
	}
	recipe->segments = calloc(segments, sizeof(*recipe->segments));
	recipe->row_first = calloc((size_t)stream->rows_max + 1, sizeof(*recipe->row_first));
	return recipe->segments && recipe->row_first ? 0 : -ENOMEM;
}

static void free_recipe(struct stkd_recipe *recipe)
{
	free(recipe->ids);
	free(recipe->segments);
	free(recipe->row_first);
}

int stkd_flights_new(struct stkd_feed *feed)
{
	feed->flights = calloc(feed->nslots, sizeof(*feed->flights));
	feed->queue = calloc(feed->nslots, sizeof(struct stkd_flight *));
	feed->slot = calloc(feed->nslots, sizeof(*feed->slot));
	if (!feed->flights || !feed->queue || !feed->slot)
		return -ENOMEM;
	for (uint32_t i = 0; i < feed->nslots; i++) {
		struct stkd_flight *f = &feed->flights[i];

		f->feed = feed;
		f->task.run = flight_run;
		f->task.done = flight_done;
		if (make_recipe(feed->stream, &f->recipe) < 0)
			return -ENOMEM;
	}
	return 0;
}

void stkd_flights_free(struct stkd_feed *feed)
{
	for (uint32_t i = 0; feed->flights && i < feed->nslots; i++)
		free_recipe(&feed->flights[i].recipe);
	free(feed->flights);
	free(feed->queue);
	free(feed->slot);
}

/* Publishing. */

static void wake_seats(struct stkd_feed *feed)
{
	bool futex = false;

	for (uint32_t i = 0; i < feed->replicas; i++)
		futex |= stkd_seat_wake(&feed->seats[i]);
	/* All seats of a feed sleep on the one word; each looks again by itself. */
	if (futex)
		syscall(SYS_futex, &feed->shm->tail, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

void stkd_feed_publish_entry(struct stkd_feed *feed, const struct stk_shm_entry *entry)
{
	/* Relaxed: for the eye, and a hint. */
	atomic_store_explicit(&feed->shm->beat_ns, stkd_now_ns(), memory_order_relaxed);
	atomic_store_explicit(&feed->shm->cpu, (uint32_t)sched_getcpu() + 1, memory_order_relaxed);
	stk_ring_publish(&feed->ring, entry);
	wake_seats(feed);
}

/* Who waits for a seek does not look at the ring: the loop tells. */
static void refuse_seeks(struct stkd_feed *feed)
{
	bool any = false;

	for (uint32_t i = 0; i < feed->replicas; i++)
		any |= feed->seats[i].seek_pending;
	if (any && feed->fault)
		feed->fault(feed->fault_data);
}

void stkd_feed_publish_error(struct stkd_feed *feed, int code, const char *text)
{
	struct stk_shm_entry entry = {.kind = STK_SHM_ERROR,
				      .slot = STK_SHM_NO_SLOT,
				      .era = feed->era,
				      .micro = (uint32_t)-code};

	if (feed->state == STKD_FEED_FAILED || feed->state == STKD_FEED_CLOSED)
		return;
	stkd_flights_forget(feed);
	feed->state = STKD_FEED_FAILED;
	stk_err_set(&feed->failed, code, "%s", text);
	/* The entry's publication (P1) orders the text before it. */
	snprintf((char *)feed->control.map + feed->shm->error_off, STK_SHM_ERROR_SIZE, "%s", text);
	stkd_feed_publish_entry(feed, &entry);
	refuse_seeks(feed);
}

void stkd_feed_publish_end(struct stkd_feed *feed)
{
	struct stk_shm_entry entry = {
		.kind = STK_SHM_STREAM_END,
		.slot = STK_SHM_NO_SLOT,
		.era = feed->era,
		.epoch = feed->stream->spec->epochs,
	};

	feed->state = STKD_FEED_ENDED;
	stkd_feed_publish_entry(feed, &entry);
}

static void fill_descriptor(struct stkd_feed *feed, struct stkd_flight *f)
{
	uint8_t *at =
		feed->control.map + feed->shm->desc_off + (uint64_t)f->slot * feed->shm->desc_size;

	f->desc.slot = f->slot;
	f->desc.era = feed->era;
	/* Relaxed: the lock ordered the workers' sums before us. */
	f->desc.real_tokens = atomic_load_explicit(&f->real_tokens, memory_order_relaxed);
	f->desc.max_length = atomic_load_explicit(&f->max_length, memory_order_relaxed);
	f->desc.rows_bad = atomic_load_explicit(&f->rows_bad, memory_order_relaxed);
	f->desc.ready_ns = stkd_now_ns();
	f->desc.step_ns = f->desc.ready_ns - f->planned_ns;
	memcpy(at, &f->desc, offsetof(struct stk_shm_desc, cursor) + f->desc.cursor_size);
	memcpy(at + sizeof(f->desc), f->layout.fields,
	       feed->shm->nfields * sizeof(struct stk_shm_field));
}

static void publish_batch(struct stkd_feed *feed, struct stkd_flight *f)
{
	struct stkd_slot *slot = &feed->slot[f->slot];
	struct stk_shm_entry entry = {
		.kind = STK_SHM_BATCH,
		.slot = f->slot,
		.era = feed->era,
		.micro = f->desc.micro,
		.epoch = f->desc.epoch,
		.step = f->desc.step,
	};

	fill_descriptor(feed, f);
	slot->state = STKD_SLOT_PUBLISHED;
	slot->index = feed->ring.tail;
	slot->holders = feed->replicas == 64 ? UINT64_MAX : (UINT64_C(1) << feed->replicas) - 1;
	slot->since_ns = stkd_now_ns();
	feed->batches++;
	feed->epoch = f->desc.epoch;
	if (f->desc.flags & STK_SHM_DESC_LAST_MICRO)
		feed->steps++;
	atomic_store_explicit(&feed->shm->published, feed->batches, memory_order_relaxed);
	stkd_feed_publish_entry(feed, &entry);
}

static void publish_ends(struct stkd_feed *feed, const struct stkd_flight *f)
{
	struct stk_shm_entry entry = {
		.kind = STK_SHM_EPOCH_END,
		.slot = STK_SHM_NO_SLOT,
		.era = feed->era,
		.epoch = f->desc.epoch,
		.step = f->steps_in_epoch,
	};

	if (f->epoch_ends)
		stkd_feed_publish_entry(feed, &entry);
	if (f->stream_ends)
		stkd_feed_publish_end(feed);
}

/* All good batches come before the error. */
static void publish_broken(struct stkd_feed *feed)
{
	if (feed->broken && !feed->queue_len)
		stkd_feed_publish_error(feed, feed->broken,
					feed->broken == -EBADMSG
						? "the plan cannot go on: the state it started "
						  "from does not belong to it"
						: "the plan cannot go on: out of memory");
}

/* In step order: what is done at the head of the queue goes out, the rest waits behind it. */
static void publish_ready(struct stkd_feed *feed)
{
	while (feed->queue_len && feed->queue[feed->queue_head]->done) {
		struct stkd_flight *f = feed->queue[feed->queue_head];

		feed->queue_head = (feed->queue_head + 1) % feed->nslots;
		feed->queue_len--;
		f->in_use = false;
		/* Relaxed: the lock ordered the workers' stores before us. */
		if (atomic_load_explicit(&f->failed, memory_order_relaxed)) {
			feed->slot[f->slot].state = STKD_SLOT_FREE;
			stkd_feed_publish_error(feed, f->err.code, f->err.text);
			return;
		}
		publish_batch(feed, f);
		publish_ends(feed, f);
	}
	publish_broken(feed);
}

/* Assembling, on workers. */

static void flight_run(struct stkd_task *task, uint32_t first, uint32_t n)
{
	struct stkd_flight *f = (struct stkd_flight *)task;
	struct stkd_feed *feed = f->feed;
	struct stkd_rows_result result = {0};
	struct stkd_worktime_range range;
	struct stk_err err;
	uint32_t max;
	int r, none = 0;

	/* Relaxed: a stale 0 only costs work. */
	if (atomic_load_explicit(&f->failed, memory_order_relaxed))
		return;
	stkd_worktime_begin(&feed->worktime, &range);
	r = stkd_assembly_rows(feed->stream->assembly, &f->layout, &f->recipe,
			       feed->slots.map + (uint64_t)f->slot * feed->shm->slot_size, first, n,
			       &result, &err);
	stkd_worktime_end(&feed->worktime, &range);
	if (r < 0) {
		/* Only the first failure writes f->err; the pool orders it before done(). */
		if (atomic_compare_exchange_strong(&f->failed, &none, r))
			f->err = err;
		return;
	}
	/* Relaxed: sums; the pool orders them before done(). */
	atomic_fetch_add_explicit(&f->real_tokens, result.real_tokens, memory_order_relaxed);
	if (result.rows_bad)
		atomic_fetch_add_explicit(&f->rows_bad, result.rows_bad, memory_order_relaxed);
	max = atomic_load_explicit(&f->max_length, memory_order_relaxed);
	while (max < result.max_length &&
	       !atomic_compare_exchange_weak_explicit(&f->max_length, &max, result.max_length,
						      memory_order_relaxed, memory_order_relaxed))
		;
}

static void flight_done(struct stkd_task *task)
{
	struct stkd_flight *f = (struct stkd_flight *)task;
	struct stkd_feed *feed = f->feed;

	pthread_mutex_lock(&feed->lock);
	feed->unfinished--;
	f->done = true;
	if (f->stale) {
		f->in_use = false;
		feed->slot[f->slot].state = STKD_SLOT_FREE;
	} else {
		publish_ready(feed);
	}
	stkd_feed_advance(feed);
	pthread_mutex_unlock(&feed->lock);
	stkd_feed_unref(feed);
}

/* Planning. */

static struct stkd_flight *free_flight(struct stkd_feed *feed)
{
	for (uint32_t i = 0; i < feed->nslots; i++)
		if (!feed->flights[i].in_use)
			return &feed->flights[i];
	return NULL;
}

static int free_slot(const struct stkd_feed *feed)
{
	for (uint32_t i = 0; i < feed->nslots; i++)
		if (feed->slot[i].state == STKD_SLOT_FREE)
			return (int)i;
	return -1;
}

/*
 * The next step of the plan. That may take seconds, so the lock is given up meanwhile: `planning` keeps
 * others from it, and the iterator is ours even if a seek replaces it. Returns 1 when the feed went
 * elsewhere in the meantime.
 */
static int next_step(struct stkd_feed *feed)
{
	struct stkd_iter *iter = feed->iter;
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	struct stkd_step step;
	uint32_t size = 0;
	int r;

	feed->planning = true;
	pthread_mutex_unlock(&feed->lock);
	r = stkd_iter_next(iter, &step);
	if (r == 0)
		size = (uint32_t)stkd_stream_cursor(feed->stream, iter, cursor);
	pthread_mutex_lock(&feed->lock);
	feed->planning = false;
	if (feed->iter != iter) {
		stkd_iter_free(iter);
		return 1;
	}
	if (r < 0 || feed->state != STKD_FEED_RUNNING)
		return r < 0 ? r : 1;
	memcpy(feed->cursor_before, feed->cursor, feed->cursor_size);
	feed->cursor_before_size = feed->cursor_size;
	memcpy(feed->cursor, cursor, size);
	feed->cursor_size = size;
	feed->step = step;
	feed->have_step = true;
	feed->micro = 0;
	return 0;
}

/*
 * A state taken in the middle of an optimiser step goes back to the beginning of the step: its
 * gradients were never applied.
 */
static void copy_cursor(struct stkd_feed *feed, struct stkd_flight *f, bool last_micro)
{
	f->desc.cursor_size = last_micro ? feed->cursor_size : feed->cursor_before_size;
	memcpy(f->desc.cursor, last_micro ? feed->cursor : feed->cursor_before,
	       f->desc.cursor_size);
}

static void describe(struct stkd_feed *feed, struct stkd_flight *f)
{
	const struct stkd_recipe *recipe = &f->recipe;
	const struct stkd_layout *layout = &f->layout;
	bool last_micro = feed->micro + 1 == feed->micros;

	memset(&f->desc, 0, offsetof(struct stk_shm_desc, cursor));
	f->desc.epoch = recipe->epoch;
	f->desc.step = recipe->step;
	f->desc.micro = recipe->micro;
	f->desc.flags = last_micro ? STK_SHM_DESC_LAST_MICRO : 0;
	if (last_micro && feed->step.last_of_epoch)
		f->desc.flags |= STK_SHM_DESC_ENDS_EPOCH;
	f->desc.memory = STK_SHM_MEMORY_HOST;
	f->desc.shape_class = recipe->shape_class;
	f->desc.rows = recipe->rows;
	f->desc.rows_real = recipe->rows_real;
	f->desc.width = recipe->width;
	f->desc.nids = recipe->segments ? recipe->nsegments : recipe->rows;
	f->desc.padded_tokens = (uint64_t)recipe->rows * recipe->width;
	f->desc.global_tokens = feed->step.real_tokens;
	f->desc.extent_size = layout->extent_size;
	f->desc.ids_off = layout->ids_off;
	f->desc.lengths_off = layout->lengths_off;
	f->desc.row_first_off = layout->row_first_off;
	f->desc.from_off = layout->from_off;
	copy_cursor(feed, f, last_micro);
}

/* Copies what the iterator lends, and finds its places in a slot. */
static int take_part(const struct stkd_stream *stream, const struct stkd_part *part,
		     struct stkd_flight *f)
{
	struct stkd_recipe *recipe = &f->recipe;
	uint32_t first;

	recipe->rows = part->rows;
	recipe->rows_real = part->rows_real;
	if (!part->segments) {
		memcpy(recipe->ids, part->ids, part->rows_real * sizeof(uint64_t));
		return stkd_assembly_layout(stream->assembly, part->rows, recipe->width,
					    recipe->width2, &f->layout);
	}
	first = part->row_first[0];
	recipe->nsegments = part->row_first[part->rows_real] - first;
	for (uint32_t i = 0; i <= part->rows_real; i++)
		recipe->row_first[i] = part->row_first[i] - first;
	memcpy(recipe->segments, part->segments + first,
	       recipe->nsegments * sizeof(*recipe->segments));
	return stkd_assembly_layout_packed(stream->assembly, part->rows, recipe->width,
					   recipe->nsegments, &f->layout);
}

/* The recipe of this rank's next micro-batch. */
static int plan_flight(struct stkd_feed *feed, struct stkd_flight *f)
{
	const struct stkd_step *step = &feed->step;
	uint64_t epochs = feed->stream->spec->epochs;
	struct stkd_part part;
	int r;

	stkd_step_part(feed->stream->plan, step, feed->rank, feed->micro, &part);
	f->recipe.epoch = step->epoch;
	f->recipe.step = step->step;
	f->recipe.micro = feed->micro;
	f->recipe.shape_class = step->shape_class;
	f->recipe.width = step->width;
	f->recipe.width2 = step->width2;
	r = take_part(feed->stream, &part, f);
	if (r < 0)
		return r;
	describe(feed, f);
	feed->micro++;
	f->epoch_ends = feed->micro == feed->micros && step->last_of_epoch;
	f->steps_in_epoch = step->step + 1;
	f->stream_ends = f->epoch_ends && epochs && step->epoch + 1 >= epochs;
	feed->have_step = feed->micro < feed->micros;
	return 0;
}

static void submit_flight(struct stkd_feed *feed, struct stkd_flight *f, uint32_t slot)
{
	uint64_t row_bytes = f->layout.size / STK_MAX(f->recipe.rows, 1) + 1;

	f->slot = slot;
	f->in_use = true;
	f->done = f->stale = false;
	f->planned_ns = stkd_now_ns();
	/* Relaxed: submitting orders them before the workers. */
	atomic_store_explicit(&f->real_tokens, 0, memory_order_relaxed);
	atomic_store_explicit(&f->max_length, 0, memory_order_relaxed);
	atomic_store_explicit(&f->rows_bad, 0, memory_order_relaxed);
	atomic_store_explicit(&f->failed, 0, memory_order_relaxed);
	feed->slot[slot].state = STKD_SLOT_FILLING;
	feed->queue[(feed->queue_head + feed->queue_len++) % feed->nslots] = f;
	f->task.share = &feed->share;
	f->task.nrows = f->recipe.rows;
	f->task.row_bytes = row_bytes;
	f->task.range_rows = (uint32_t)STK_MAX(RANGE_BYTES / row_bytes, 1);
	feed->unfinished++;
	stkd_feed_ref(feed);
	stkd_pool_submit(feed->pool, &f->task);
}

/* How many batches a seat has not given back. */
static unsigned count_held(const struct stkd_feed *feed, uint32_t seat)
{
	unsigned held = 0;

	if (feed->seats[seat].state != STKD_SEAT_TAKEN || feed->seats[seat].fault[0])
		return 0;
	for (uint32_t i = 0; i < feed->nslots; i++)
		held += feed->slot[i].state == STKD_SLOT_PUBLISHED &&
			feed->slot[i].holders >> seat & 1;
	return held;
}

void stkd_feed_change_teller(struct stkd_feed *feed)
{
	unsigned most = count_held(feed, feed->teller), held;

	for (uint32_t i = 0; i < feed->replicas; i++) {
		held = count_held(feed, i);
		if (held > most) {
			most = held;
			feed->teller = i;
		}
	}
}

/*
 * K3, H3, H4 of ring.h. A slot is free when the slowest seat has released it, so one of the seats is
 * enough to tell; when another waits meanwhile, all tell at once.
 */
static void ask_for_kick(struct stkd_feed *feed)
{
	bool hungry = false;

	feed->dry = true;
	if (feed->replicas > 1 && !count_held(feed, feed->teller))
		stkd_feed_change_teller(feed);
	stk_ring_set_need_kick(feed->shm, feed->teller + 1);
	for (uint32_t i = 0; i < feed->replicas && feed->replicas > 1; i++)
		hungry |= feed->seats[i].state == STKD_SEAT_TAKEN &&
			  stk_ring_is_hungry(feed->seats[i].shm);
	if (hungry)
		stk_ring_set_need_kick(feed->shm, (feed->teller + 1) | STK_SHM_KICK_AT_ONCE);
}

/* Whoever finishes a batch looks for slots by himself: a kick would only disturb. */
static bool has_work(const struct stkd_feed *feed)
{
	return feed->unfinished >= STK_MIN(stkd_pool_size(feed->pool), (feed->nslots + 1) / 2);
}

/*
 * A slot for the next batch, or -1 when the feed has to wait. K3/K4 of ring.h: after need_kick is
 * set, the rings are looked at once more.
 */
static int find_slot(struct stkd_feed *feed)
{
	int slot = free_slot(feed);

	if (slot < 0 && stkd_feed_drain(feed))
		slot = free_slot(feed);
	if (slot < 0 && !has_work(feed) && (!feed->dry || feed->replicas > 1)) {
		ask_for_kick(feed);
		if (stkd_feed_drain(feed))
			slot = free_slot(feed);
	}
	if (slot >= 0 && feed->dry) {
		feed->dry = false;
		stk_ring_set_need_kick(feed->shm, 0);
	}
	return slot;
}

static void plan_broke(struct stkd_feed *feed, int r)
{
	if (feed->state != STKD_FEED_RUNNING)
		return;
	feed->broken = r;
	feed->state = STKD_FEED_ENDED;
	publish_broken(feed);
}

void stkd_feed_advance(struct stkd_feed *feed)
{
	while (feed->state == STKD_FEED_RUNNING && !feed->planning) {
		struct stkd_flight *f = free_flight(feed);
		int slot = f ? find_slot(feed) : -1, r;

		if (slot < 0)
			return;
		if (!feed->have_step) {
			r = next_step(feed);
			if (r >= 0)
				continue; /* slots may have come and gone without the lock */
		} else {
			r = plan_flight(feed, f);
		}
		if (r < 0) {
			plan_broke(feed, r);
			return;
		}
		submit_flight(feed, f, (uint32_t)slot);
		if (f->stream_ends)
			feed->state = STKD_FEED_ENDED;
	}
}

static void planner_done(struct stkd_task *task)
{
	struct stkd_feed *feed =
		(struct stkd_feed *)((char *)task - offsetof(struct stkd_feed, planner));

	pthread_mutex_lock(&feed->lock);
	feed->planner_waits = false;
	stkd_feed_advance(feed);
	pthread_mutex_unlock(&feed->lock);
	stkd_feed_unref(feed);
}

void stkd_feed_go_on(struct stkd_feed *feed)
{
	if (feed->state != STKD_FEED_RUNNING || feed->planning || feed->planner_waits ||
	    !free_flight(feed) || find_slot(feed) < 0)
		return;
	feed->planner_waits = true;
	feed->planner = (struct stkd_task){
		.range_rows = 1, .done = planner_done, .share = &feed->planner_share};
	stkd_feed_ref(feed);
	stkd_pool_submit(feed->pool, &feed->planner);
}

void stkd_flights_forget(struct stkd_feed *feed)
{
	while (feed->queue_len) {
		struct stkd_flight *f = feed->queue[feed->queue_head];

		feed->queue_head = (feed->queue_head + 1) % feed->nslots;
		feed->queue_len--;
		f->stale = true;
		/* One that is done but unpublished has no worker left to give its slot back. */
		if (f->done) {
			f->in_use = false;
			feed->slot[f->slot].state = STKD_SLOT_FREE;
		}
	}
	feed->have_step = false;
	feed->broken = 0;
}

/* Releases. */

static void seat_fault(struct stkd_feed *feed, struct stkd_seat *seat, const char *reason)
{
	snprintf(seat->fault, sizeof(seat->fault), "%s", reason);
	if (feed->fault)
		feed->fault(feed->fault_data);
}

/* One claim of a seat against our own lease table. */
static bool take_release(struct stkd_feed *feed, struct stkd_seat *seat, uint32_t slot,
			 uint32_t index, unsigned *freed)
{
	uint64_t bit = UINT64_C(1) << seat->number;

	if (slot >= feed->nslots || feed->slot[slot].state != STKD_SLOT_PUBLISHED ||
	    feed->slot[slot].index != index || !(feed->slot[slot].holders & bit))
		return false;
	feed->slot[slot].holders &= ~bit;
	if (!feed->slot[slot].holders) {
		feed->slot[slot].state = STKD_SLOT_FREE;
		(*freed)++;
	}
	return true;
}

static unsigned drain_seat(struct stkd_feed *feed, struct stkd_seat *seat)
{
	uint32_t limit = seat->drain.mask + 1, slot, index;
	unsigned freed = 0;
	char text[160];
	int got;

	/* Bounded by the ring's size: a seat cannot keep us here. */
	while (limit-- && (got = stk_ring_drain(&seat->drain, &slot, &index)) != STK_RING_EMPTY) {
		if (got == STK_RING_LIE) {
			seat_fault(feed, seat,
				   "its release index moved further than the ring is long");
			return freed;
		}
		if (!take_release(feed, seat, slot, index, &freed)) {
			snprintf(text, sizeof(text),
				 "it released slot %" PRIu32 " of entry %" PRIu32
				 ", which it does not hold",
				 slot, index);
			seat_fault(feed, seat, text);
			return freed;
		}
	}
	return freed;
}

unsigned stkd_feed_drain(struct stkd_feed *feed)
{
	unsigned freed = 0;

	for (uint32_t i = 0; i < feed->replicas; i++) {
		struct stkd_seat *seat = &feed->seats[i];

		if (seat->state == STKD_SEAT_TAKEN && !seat->fault[0])
			freed += drain_seat(feed, seat);
	}
	return freed;
}
