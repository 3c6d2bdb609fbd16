/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the walk through the steps of buckets: reads the order, fills them, emits steps, carries the
 * rest up at the end, and starts from a cursor. An iterator belongs to one thread at a time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/bucket.h"
#include "daemon/plan/cursor.h"
#include "daemon/plan/iter.h"
#include "daemon/plan/source.h"

struct bucket_iter {
	struct stkd_iter head;
	const struct stkd_plan *plan;
	uint64_t epoch, step; /* of the next step; step 0: the buckets still show the last epoch */
	uint64_t delivered;
	uint64_t lent; /* steps of the lending bucket in this epoch */
	bool in_tail;
	uint32_t current; /* bucket that the tail has come to */
	uint32_t emitted; /* bucket whose ids the last step lends */
	struct stkd_source *source;
	struct stkd_bucket buckets[];
};

static struct bucket_iter *of(struct stkd_iter *head)
{
	return (struct bucket_iter *)head;
}

static int begin(struct bucket_iter *iter, uint64_t epoch)
{
	iter->epoch = epoch;
	iter->step = iter->delivered = iter->lent = 0;
	iter->in_tail = false;
	iter->current = iter->emitted = 0;
	for (uint32_t b = 0; b < iter->plan->nclasses; b++)
		stkd_bucket_clear(&iter->buckets[b]);
	return stkd_source_begin(iter->source, epoch);
}

/* Reads samples until one makes its bucket full. Returns that bucket, nclasses at the end of the
 * order, or -ENOMEM. */
static int64_t read_until_full(struct bucket_iter *iter)
{
	const struct stkd_plan *plan = iter->plan;
	struct stkd_arrival arrival;

	while (stkd_source_next(iter->source, &arrival)) {
		struct stkd_bucket *bucket;
		uint32_t b;
		int r;

		if (!arrival.delivered)
			continue;
		b = stkd_plan_bucket(plan, arrival.length);
		bucket = &iter->buckets[b];
		r = stkd_bucket_push(bucket, arrival.id, arrival.length);
		if (r < 0)
			return r;
		if (stkd_bucket_waiting(bucket) >= stkd_outline_global(&plan->outline, b))
			return b;
	}
	return plan->nclasses;
}

static uint64_t sum_lengths(const struct stkd_plan *plan, const uint64_t *ids, size_t n,
			    uint32_t *ret_longest)
{
	uint64_t tokens = 0;

	*ret_longest = 0;
	for (size_t i = 0; i < n; i++) {
		uint32_t length = stkd_plan_length(plan, ids[i]);

		tokens += length;
		*ret_longest = STK_MAX(*ret_longest, length);
	}
	return tokens;
}

/* Takes the n oldest rows of a bucket as the next step. */
static void emit(struct bucket_iter *iter, uint32_t b, size_t n, uint32_t rows_part,
		 struct stkd_step *ret)
{
	const struct stkd_plan *plan = iter->plan;
	struct stkd_bucket *bucket = &iter->buckets[b];
	uint64_t tokens = bucket->tokens;
	uint32_t longest = bucket->longest;

	if (n < stkd_bucket_waiting(bucket))
		bucket->split = true;
	if (bucket->split)
		tokens = sum_lengths(plan, bucket->ids + bucket->head, n, &longest);
	*ret = (struct stkd_step){
		.epoch = iter->epoch,
		.step = iter->step,
		.shape_class = b,
		.ids = bucket->ids + bucket->head,
		.nids = (uint32_t)n,
		.rows_part = rows_part,
		.width = stkd_plan_width(plan, b, longest),
		.real_tokens = tokens,
		.last_of_epoch = iter->step + 1 == plan->outline.steps,
	};
	bucket->head += n;
	if (!stkd_bucket_waiting(bucket)) {
		bucket->split = false;
		bucket->tokens = bucket->longest = 0;
	}
	iter->emitted = b;
	iter->delivered += n;
	iter->step++;
	if (ret->last_of_epoch) {
		/* The ids are still lent: begin() follows with the next call. */
		iter->epoch++;
		iter->step = 0;
	}
}

/* A bucket that has a step's rows emits it, whole or less what it lends. */
static void emit_full(struct bucket_iter *iter, uint32_t b, struct stkd_step *ret)
{
	const struct stkd_outline *o = &iter->plan->outline;
	uint64_t take = stkd_outline_global(o, b);
	uint32_t rows_part = o->rows[b];

	if (b == o->lender && ++iter->lent == o->lend_step) {
		take -= o->lend;
		rows_part = 0;
	}
	emit(iter, b, take, rows_part, ret);
}

static bool is_full(const struct bucket_iter *iter, uint32_t b)
{
	return stkd_bucket_waiting(&iter->buckets[b]) >=
	       stkd_outline_global(&iter->plan->outline, b);
}

static int next_main(struct bucket_iter *iter, struct stkd_step *ret)
{
	int64_t b = read_until_full(iter);

	if (b < 0)
		return (int)b;
	if (b == iter->plan->nclasses)
		return -EBADMSG;
	emit_full(iter, (uint32_t)b, ret);
	return 0;
}

/* Reads the samples behind the last full step. What then waits is known from the plan. */
static int enter_tail(struct bucket_iter *iter)
{
	const struct stkd_plan *plan = iter->plan;
	int64_t full = read_until_full(iter);

	if (full < 0)
		return (int)full;
	for (uint32_t b = 0; b < plan->nclasses; b++)
		if (stkd_bucket_waiting(&iter->buckets[b]) != plan->outline.waiting[b])
			return -EBADMSG;
	iter->in_tail = true;
	iter->current = 0;
	return 0;
}

/* What is left in a bucket goes behind the rows of the next one. */
static int promote(struct bucket_iter *iter, uint32_t b)
{
	struct stkd_bucket *from = &iter->buckets[b], *to = from + 1;
	size_t n = stkd_bucket_waiting(from);
	int r = stkd_bucket_reserve(to, n);

	if (r < 0)
		return r;
	if (n)
		memcpy(to->ids + to->end, from->ids + from->head, n * sizeof(*to->ids));
	to->end += n;
	to->split = to->split || from->split;
	to->tokens += from->tokens;
	to->longest = STK_MAX(to->longest, from->longest);
	stkd_bucket_clear(from);
	return 0;
}

static void emit_rest(struct bucket_iter *iter, uint32_t b, struct stkd_step *ret)
{
	const struct stkd_outline *o = &iter->plan->outline;
	uint32_t rows_part = 0;

	if (o->tail == STK_TAIL_PAD)
		rows_part = o->rows[b];
	else if (o->rest < o->parts)
		rows_part = 1; /* nobody could lend: ranks without a sample get a masked row */
	emit(iter, b, o->rest, rows_part, ret);
}

static int next_tail(struct bucket_iter *iter, struct stkd_step *ret)
{
	int r = iter->in_tail ? 0 : enter_tail(iter);

	for (; r == 0 && iter->current < iter->plan->outline.top; iter->current++) {
		if (is_full(iter, iter->current))
			break;
		r = promote(iter, iter->current);
	}
	if (r < 0)
		return r;
	if (is_full(iter, iter->current))
		emit_full(iter, iter->current, ret);
	else
		emit_rest(iter, iter->current, ret);
	return 0;
}

static int next(struct stkd_iter *head, struct stkd_step *ret)
{
	struct bucket_iter *iter = of(head);

	int r = 0;

	if (!iter->step)
		r = begin(iter, iter->epoch);
	else if (!iter->in_tail)
		stkd_bucket_settle(&iter->buckets[iter->emitted]);
	if (r < 0)
		return r;
	if (iter->step < iter->plan->outline.main_steps)
		return next_main(iter, ret);
	return next_tail(iter, ret);
}

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
	b = stkd_plan_bucket(iter->plan, arrival->length);
	if (!missing[b])
		return false;
	bucket = &iter->buckets[b];
	bucket->ids[--missing[b]] = arrival->id;
	bucket->tokens += arrival->length;
	bucket->longest = STK_MAX(bucket->longest, arrival->length);
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

/* Are the numbers possible in this plan? Sums cannot wrap: each count is below 2^32. */
static int check_counts(const struct stkd_plan *plan, const struct stkd_cursor *cursor,
			struct stk_err *err)
{
	const struct stkd_outline *o = &plan->outline;
	uint64_t waiting = 0, seen, lent_rows, lent_most;

	if (cursor->nbuckets != plan->nclasses)
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu32 " buckets, the plan has %" PRIu32,
				   cursor->nbuckets, plan->nclasses);
	if (!cursor->step || cursor->step >= o->main_steps)
		return stk_err_set(err, -EINVAL,
				   "cursor: step %" PRIu64 " has counts, only those after the "
				   "first and among the %" PRIu64 " steps before the tail do",
				   cursor->step, o->main_steps);
	if (cursor->position > plan->lengths.count)
		return stk_err_set(err, -EINVAL,
				   "cursor: position %" PRIu64 " is behind the last of %" PRIu64
				   " samples",
				   cursor->position, plan->lengths.count);
	for (uint32_t b = 0; b < plan->nclasses; b++) {
		uint64_t below = STK_MIN(stkd_outline_global(o, b), o->arrivals[b] + 1);

		if (cursor->waiting[b] >= below)
			return stk_err_set(err, -EINVAL,
					   "cursor: %" PRIu64 " samples wait in bucket %" PRIu32
					   ", fewer than %" PRIu64 " can",
					   cursor->waiting[b], b, below);
		waiting += cursor->waiting[b];
	}
	lent_most = o->lender < o->nbuckets ? cursor->step : 0;
	lent_rows = lent_most && cursor->lent >= o->lend_step ? o->lend : 0;
	if (stk_add_overflow(cursor->delivered, waiting, &seen) || seen > cursor->position ||
	    cursor->position - seen > plan->counts.overlong_dropped ||
	    (cursor->delivered + lent_rows) % o->parts || cursor->lent > lent_most)
		return stk_err_set(err, -EINVAL,
				   "cursor: %" PRIu64 " delivered and %" PRIu64
				   " waiting samples do not fit position %" PRIu64,
				   cursor->delivered, waiting, cursor->position);
	return 0;
}

/* The state at the end of the order follows from the plan alone. */
static int jump_to_tail(struct bucket_iter *iter, struct stk_err *err)
{
	const struct stkd_outline *o = &iter->plan->outline;
	int r = rebuild(iter, o->waiting, iter->plan->lengths.count, err);

	if (r < 0)
		return r;
	iter->step = o->main_steps;
	iter->lent = o->lender_main;
	iter->in_tail = true;
	return 0;
}

static int seek(struct stkd_iter *head, uint64_t epoch, uint64_t step, struct stk_err *err)
{
	struct bucket_iter *iter = of(head);
	const struct stkd_outline *o = &iter->plan->outline;
	int r = 0;

	if (step >= o->steps)
		return stk_err_set(err, -EINVAL,
				   "step %" PRIu64 " of epoch %" PRIu64 ": an epoch has %" PRIu64
				   " steps",
				   step, epoch, o->steps);
	if (epoch != iter->epoch || step < iter->step || !iter->step)
		r = begin(iter, epoch);
	if (r == 0 && step && step >= o->main_steps && iter->step < o->main_steps) {
		r = begin(iter, epoch);
		if (r == 0)
			r = jump_to_tail(iter, err);
	}
	while (r == 0 && iter->step < step) {
		struct stkd_step skipped;

		r = next(head, &skipped);
		if (r < 0)
			stk_err_set(err, r, "planning up to step %" PRIu64 ": %s", step,
				    r == -ENOMEM ? "no memory" : "rows ran out");
	}
	return r;
}

static int resume(struct stkd_iter *head, const void *data, size_t size, struct stk_err *err)
{
	struct bucket_iter *iter = of(head);
	struct stkd_cursor cursor;
	int r = stkd_cursor_decode(data, size, &cursor, err);

	if (r < 0)
		return r;
	if (!cursor.nbuckets) {
		r = seek(head, cursor.epoch, cursor.step, err);
		return r < 0 ? stk_err_prefix(err, "cursor: ") : 0;
	}
	r = check_counts(iter->plan, &cursor, err);
	if (r < 0)
		return r;
	r = begin(iter, cursor.epoch);
	if (r < 0)
		return stk_err_set(err, r, "no memory for the order of an epoch");
	r = rebuild(iter, cursor.waiting, cursor.position, err);
	if (r < 0)
		return r;
	iter->step = cursor.step;
	iter->delivered = cursor.delivered;
	iter->lent = cursor.lent;
	return 0;
}

static void destroy(struct stkd_iter *head)
{
	struct bucket_iter *iter = of(head);

	for (uint32_t b = 0; b < iter->plan->nclasses; b++)
		stkd_bucket_deinit(&iter->buckets[b]);
	stkd_source_free(iter->source);
	free(iter);
}

static int create(const struct stkd_plan *plan, struct stkd_iter **ret, struct stk_err *err)
{
	struct bucket_iter *iter =
		calloc(1, sizeof(*iter) + plan->nclasses * sizeof(iter->buckets[0]));
	int r;

	if (!iter)
		return stk_err_set(err, -ENOMEM, "no memory for an iterator");
	iter->head.ops = &stkd_bucket_ops;
	iter->plan = plan;
	for (uint32_t b = 0; b < plan->nclasses; b++)
		iter->buckets[b].most =
			STK_MIN(stkd_outline_global(&plan->outline, b), plan->outline.arrivals[b]);
	r = stkd_source_new(plan, &iter->source);
	if (r == 0)
		r = begin(iter, 0);
	if (r < 0) {
		destroy(&iter->head);
		return stk_err_set(err, r, "no memory for the order of an epoch");
	}
	*ret = &iter->head;
	return 0;
}

static void where(const struct stkd_iter *head, uint64_t *ret_epoch, uint64_t *ret_step)
{
	const struct bucket_iter *iter = (const struct bucket_iter *)head;

	*ret_epoch = iter->epoch;
	*ret_step = iter->step;
}

static size_t cursor_of(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX])
{
	const struct bucket_iter *iter = (const struct bucket_iter *)head;
	struct stkd_cursor cursor = {
		.epoch = iter->epoch,
		.step = iter->step,
		.position = iter->source->position,
		.delivered = iter->delivered,
		.lent = iter->lent,
	};

	/* At both ends of an epoch the step says it all. */
	if (iter->step && iter->step < iter->plan->outline.main_steps) {
		cursor.nbuckets = iter->plan->nclasses;
		for (uint32_t b = 0; b < cursor.nbuckets; b++)
			cursor.waiting[b] = stkd_bucket_waiting(&iter->buckets[b]);
	}
	return stkd_cursor_encode(&cursor, out);
}

const struct stkd_iter_ops stkd_bucket_ops = {
	.create = create,
	.destroy = destroy,
	.resume = resume,
	.next = next,
	.seek = seek,
	.cursor = cursor_of,
	.where = where,
};
