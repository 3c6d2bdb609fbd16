/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the ways into the middle of an epoch: from a cursor, to a step by its number, and from an
 * iterator of another world. An iterator belongs to one thread at a time.
 */
#include "daemon/plan/bucket_iter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/cursor.h"

/* Makes room for the waiting samples and says how many there are. */
static int make_room(struct bucket_iter *iter, const uint64_t *waiting, uint64_t *ret_total,
		     struct stk_err *err)
{
	*ret_total = 0;
	for (uint32_t b = 0; b < iter->plan->nclasses; b++) {
		if (stkd_bucket_reserve(&iter->buckets[b], waiting[b]) < 0)
			return stk_err_set(err, -ENOMEM,
					   "no memory for %" PRIu64 " waiting samples", waiting[b]);
		iter->buckets[b].end = waiting[b];
		*ret_total += waiting[b];
	}
	return 0;
}

/* Puts a sample in front of those that are there, unless its bucket has all that wait. */
static bool put_back(struct bucket_iter *iter, const struct stkd_arrival *arrival,
		     uint64_t *missing)
{
	struct stkd_bucket *bucket;
	uint32_t b;

	if (!arrival->delivered)
		return false;
	b = stkd_plan_place(iter->plan, arrival->id, arrival->length);
	if (!missing[b])
		return false;
	bucket = &iter->buckets[b];
	bucket->ids[--missing[b]] = arrival->id;
	bucket->tokens += arrival->length;
	bucket->longest = STK_MAX(bucket->longest, arrival->length);
	bucket->longest2 = STK_MAX(bucket->longest2, stkd_plan_second(iter->plan, arrival->id));
	return true;
}

/* What waits are the newest samples of each bucket before @position: found by going backwards. */
static int rebuild(struct bucket_iter *iter, const uint64_t *waiting, uint64_t position,
		   struct stk_err *err)
{
	uint64_t missing[STK_SPEC_EDGES_MAX], total;
	struct stkd_arrival arrival;
	int r = make_room(iter, waiting, &total, err);

	if (r < 0)
		return r;
	memcpy(missing, waiting, iter->plan->nclasses * sizeof(missing[0]));
	stkd_source_seek(iter->source, position);
	while (total && stkd_source_back(iter->source, &arrival))
		total -= put_back(iter, &arrival, missing);
	stkd_source_seek(iter->source, position);
	if (total)
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu64
				   " waiting samples are not among the first %" PRIu64
				   " of the epoch",
				   total, position);
	return 0;
}

static int begin(struct bucket_iter *iter, uint64_t epoch, bool outline, struct stk_err *err)
{
	int r = stkd_bucket_begin(iter, epoch, outline);

	return r < 0 ? stk_err_set(err, r, "no memory for the order of an epoch") : 0;
}

/* The state at the end of the order follows from the outline alone. */
static int jump_to_tail(struct bucket_iter *iter, struct stk_err *err)
{
	const struct stkd_outline *o = iter->outline;
	int r = rebuild(iter, o->waiting, iter->source->end, err);

	if (r < 0)
		return r;
	for (uint32_t b = 0; b < o->nbuckets; b++)
		iter->delivered += o->arrivals[b] - o->waiting[b];
	iter->tail_delivered = iter->delivered;
	iter->step = iter->base + o->main_steps;
	iter->lent = o->lender_main;
	iter->in_tail = true;
	return 0;
}

static int plan_up_to(struct bucket_iter *iter, uint64_t step, struct stk_err *err)
{
	while (iter->step < step) {
		struct stkd_step skipped;
		int r = stkd_bucket_next(&iter->head, &skipped);

		if (r < 0)
			return stk_err_set(err, r, "planning up to step %" PRIu64 ": %s", step,
					   r == -ENOMEM ? "no memory" : "rows ran out");
		if (skipped.last_of_epoch)
			return stk_err_set(err, -EINVAL,
					   "step %" PRIu64
					   " is behind the last of its epoch, %" PRIu64,
					   step, skipped.step);
	}
	return 0;
}

static int refuse_step(const struct bucket_iter *iter, uint64_t epoch, uint64_t step,
		       struct stk_err *err)
{
	return stk_err_set(err, -EINVAL,
			   "step %" PRIu64 " of epoch %" PRIu64 ": an epoch has %" PRIu64 " steps",
			   step, epoch, iter->outline->steps);
}

int stkd_bucket_seek(struct stkd_iter *head, uint64_t epoch, uint64_t step, struct stk_err *err)
{
	struct bucket_iter *iter = stkd_bucket_iter(head);
	bool plain = iter->plan->mix.whole || iter->plan->mix.draws == UINT64_MAX;
	int r = 0;

	if (plain && step >= iter->plan->outline.steps)
		return stk_err_set(err, -EINVAL,
				   "step %" PRIu64 " of epoch %" PRIu64 ": an epoch has %" PRIu64
				   " steps",
				   step, epoch, iter->plan->outline.steps);
	if (iter->plan->mix.draws == UINT64_MAX && epoch)
		return stk_err_set(err, -EINVAL,
				   "epoch %" PRIu64 ": with stop: never there is only epoch 0",
				   epoch);
	/* What was begun in another world is begun anew. */
	if (epoch != iter->epoch || step < iter->step || !iter->step || iter->base)
		r = begin(iter, epoch, step > 0, err);
	if (r < 0 || !step)
		return r;
	if (step >= iter->outline->steps)
		return refuse_step(iter, epoch, step, err);
	if (step >= iter->outline->main_steps && iter->step < iter->outline->main_steps) {
		r = begin(iter, epoch, true, err);
		if (r == 0)
			r = jump_to_tail(iter, err);
	}
	return r < 0 ? r : plan_up_to(iter, step, err);
}

/* Are the numbers possible in this plan? Sums cannot wrap: each count is below 2^32, or of samples. */
static int check_waiting(const struct stkd_plan *plan, const struct stkd_outline *o,
			 const struct stkd_cursor *cursor, struct stk_err *err)
{
	uint64_t waiting = 0, seen, slack = plan->counts.overlong_dropped + plan->counts.filtered;

	for (uint32_t b = 0; b < plan->nclasses; b++) {
		/* Another world may have left more than one step, and so may the end of the order. */
		uint64_t below = cursor->base ? UINT32_MAX : stkd_outline_global(o, b);

		if (plan->mix.whole)
			below = STK_MIN(below, plan->outline.arrivals[b] + 1);
		if (cursor->waiting[b] >= below)
			return stk_err_set(err, -EINVAL,
					   "cursor: %" PRIu64 " samples wait in bucket %" PRIu32
					   ", fewer than %" PRIu64 " can",
					   cursor->waiting[b], b, below);
		waiting += cursor->waiting[b];
	}
	/* What was taken in advance was delivered, so nothing can wait that was not read. */
	if (cursor->skip > cursor->delivered ||
	    stk_add_overflow(cursor->delivered, waiting, &seen) ||
	    stk_add_overflow(cursor->position, cursor->skip, &seen) ||
	    cursor->delivered + waiting > seen ||
	    (plan->mix.whole && seen - cursor->delivered - waiting > slack))
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu64 " delivered and %" PRIu64
				   " waiting samples do not fit position %" PRIu64,
				   cursor->delivered, waiting, cursor->position);
	return 0;
}

static int check_counts(const struct bucket_iter *iter, const struct stkd_cursor *cursor,
			struct stk_err *err)
{
	const struct stkd_plan *plan = iter->plan;
	const struct stkd_outline *o = &plan->outline;
	uint64_t lent_rows, lent_most;

	if (cursor->nbuckets != plan->nclasses)
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu32 " buckets, the plan has %" PRIu32,
				   cursor->nbuckets, plan->nclasses);
	if (cursor->position > iter->source->end)
		return stk_err_set(err, -EINVAL,
				   "cursor: position %" PRIu64 " is behind the last of %" PRIu64
				   " samples",
				   cursor->position, iter->source->end);
	if (cursor->outline && plan->mix.draws == UINT64_MAX)
		return stk_err_set(err, -EINVAL,
				   "cursor: an outline of an epoch, but stop is never");
	if (cursor->outline)
		return check_waiting(plan, o, cursor, err);
	if (!plan->mix.whole && plan->mix.draws != UINT64_MAX)
		return stk_err_set(err, -EINVAL, "cursor: the outline of its epoch is missing");
	if (!cursor->step || cursor->step >= o->main_steps)
		return stk_err_set(err, -EINVAL,
				   "cursor: step %" PRIu64 " has counts, only those after the "
				   "first and among the %" PRIu64 " steps before the tail do",
				   cursor->step, o->main_steps);
	lent_most = o->lender < o->nbuckets ? cursor->step : 0;
	lent_rows = lent_most && cursor->lent >= o->lend_step ? o->lend : 0;
	if (cursor->lent > lent_most || (cursor->skip && cursor->first != o->first) ||
	    (!stk_spec_is_global(plan->spec) && (cursor->delivered + lent_rows) % o->parts))
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu64 " delivered samples and %" PRIu64
				   " lending steps do not fit position %" PRIu64,
				   cursor->delivered, cursor->lent, cursor->position);
	return check_waiting(plan, o, cursor, err);
}

/* The outline of an epoch's rest, as the cursor has it. */
static int take_outline(struct bucket_iter *iter, const struct stkd_cursor *cursor,
			struct stk_err *err)
{
	struct stkd_outline *o = iter->own;

	*o = iter->plan->outline;
	o->steps = cursor->steps;
	o->main_steps = cursor->main_steps;
	o->lender = cursor->lender;
	o->lend_step = cursor->lend_step;
	o->lend = cursor->lend;
	o->first = cursor->skip ? cursor->first : o->nbuckets;
	o->settled = false;
	if (cursor->step <= cursor->base ||
	    cursor->step - cursor->base >= o->steps + !!cursor->base || o->main_steps > o->steps ||
	    o->steps - o->main_steps > 2 * (uint64_t)o->nbuckets + UINT32_MAX ||
	    o->lender > o->nbuckets ||
	    (o->lender < o->nbuckets &&
	     (o->lend >= stkd_outline_global(o, o->lender) || !o->lend_step)))
		return stk_err_set(err, -EINVAL,
				   "cursor: step %" PRIu64 " is not among the %" PRIu64
				   " steps behind step %" PRIu64,
				   cursor->step, o->steps, cursor->base);
	iter->outline = o;
	iter->base = cursor->base;
	return 0;
}

/* A cursor in the tail says what waited when it began: its steps are planned again. */
static int resume_counts(struct bucket_iter *iter, const struct stkd_cursor *cursor,
			 struct stk_err *err)
{
	uint64_t end;
	int r = begin(iter, cursor->epoch, false, err);

	if (r == 0)
		r = check_counts(iter, cursor, err);
	if (r == 0 && cursor->outline)
		r = take_outline(iter, cursor, err);
	if (r == 0)
		r = rebuild(iter, cursor->waiting, cursor->position, err);
	if (r < 0)
		return r;
	end = iter->base + iter->outline->main_steps;
	iter->step = cursor->outline ? STK_MIN(cursor->step, end) : cursor->step;
	iter->delivered = cursor->delivered;
	iter->lent = cursor->lent;
	iter->skip = cursor->skip;
	iter->brimming = true;
	return plan_up_to(iter, cursor->step, err);
}

int stkd_bucket_resume(struct stkd_iter *head, const void *data, size_t size, struct stk_err *err)
{
	struct bucket_iter *iter = stkd_bucket_iter(head);
	struct stkd_cursor cursor;
	int r = stkd_cursor_decode(data, size, &cursor, err);

	if (r < 0)
		return r;
	if (cursor.nbuckets)
		return resume_counts(iter, &cursor, err);
	r = stkd_bucket_seek(head, cursor.epoch, cursor.step, err);
	return r < 0 ? stk_err_prefix(err, "cursor: ") : 0;
}

/* What waits in @other, by the bucket that each sample came to first: a suffix of its arrivals. */
static void count_waiting(const struct bucket_iter *other, uint64_t *ret)
{
	const struct stkd_plan *plan = other->plan;

	memset(ret, 0, STK_SPEC_EDGES_MAX * sizeof(*ret));
	for (uint32_t b = 0; b < plan->nclasses; b++) {
		const struct stkd_bucket *bucket = &other->buckets[b];

		for (size_t i = bucket->head; i < bucket->end; i++)
			ret[stkd_plan_place(plan, bucket->ids[i],
					    stkd_plan_length(plan, bucket->ids[i]))]++;
	}
}

/* The outline of what waits and what is still to come. */
static void outline_rest(struct bucket_iter *iter, const uint64_t *waiting, uint64_t position,
			 uint64_t skip, uint32_t first)
{
	const struct stkd_plan *plan = iter->plan;
	struct stkd_outline *o = iter->own;
	struct stkd_arrival arrival;

	*o = plan->outline;
	memcpy(o->arrivals, waiting, sizeof(o->arrivals));
	stkd_source_seek(iter->source, position);
	while (stkd_source_next(iter->source, &arrival))
		if (arrival.delivered)
			o->arrivals[stkd_plan_place(plan, arrival.id, arrival.length)]++;
	if (skip)
		o->arrivals[first] -= skip;
	stkd_outline_fill(o);
	o->first = first; /* for the arrivals that are skipped: the first step is over */
	stkd_source_seek(iter->source, position);
}

int stkd_bucket_adopt(struct stkd_iter *head, const struct stkd_iter *from, struct stk_err *err)
{
	struct bucket_iter *iter = stkd_bucket_iter(head);
	const struct bucket_iter *other = (const struct bucket_iter *)from;
	bool endless = iter->plan->mix.draws == UINT64_MAX;
	uint64_t waiting[STK_SPEC_EDGES_MAX];
	int r = begin(iter, other->epoch, false, err);

	if (r < 0 || !other->step)
		return r;
	count_waiting(other, waiting);
	if (!endless) {
		outline_rest(iter, waiting, other->source->position, other->skip,
			     other->outline->first);
		iter->outline = iter->own;
		iter->base = other->step;
	}
	/* With tail: drop nothing may be left that makes a step. */
	if (!iter->outline->steps)
		return begin(iter, other->epoch + 1, false, err);
	r = rebuild(iter, waiting, other->source->position, err);
	if (r < 0)
		return r;
	iter->step = other->step;
	iter->delivered = other->delivered;
	iter->skip = other->skip;
	iter->brimming = true;
	return 0;
}

size_t stkd_bucket_cursor(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX])
{
	const struct bucket_iter *iter = (const struct bucket_iter *)head;
	const struct stkd_outline *o = iter->outline;
	struct stkd_cursor cursor = {
		.epoch = iter->epoch,
		.step = iter->step,
		.position = iter->source->position,
		.delivered = iter->delivered,
		.lent = iter->lent,
		.skip = iter->skip,
		.first = iter->skip ? o->first : 0,
		.outline = !stkd_bucket_is_plain(iter),
		.base = iter->base,
	};
	bool tail = iter->step - iter->base >= o->main_steps;

	/* At both ends of an epoch like all others the step says it all. */
	if (!iter->step || (tail && !cursor.outline))
		return stkd_cursor_encode(&cursor, out);
	cursor.nbuckets = iter->plan->nclasses;
	if (cursor.outline) {
		cursor.steps = o->steps;
		cursor.main_steps = o->main_steps;
		cursor.lender = o->lender;
		cursor.lend_step = o->lend_step;
		cursor.lend = o->lend;
	}
	/* In the tail: what waited when it began, and only the step goes on. */
	if (iter->in_tail) {
		cursor.delivered = iter->tail_delivered;
		cursor.lent = o->lender_main;
	}
	for (uint32_t b = 0; b < cursor.nbuckets; b++)
		cursor.waiting[b] =
			iter->in_tail ? o->waiting[b] : stkd_bucket_waiting(&iter->buckets[b]);
	return stkd_cursor_encode(&cursor, out);
}
