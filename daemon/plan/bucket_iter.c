/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the walk through the steps of buckets: reads the order, fills them, emits steps, carries the
 * rest up at the end. An iterator belongs to one thread at a time.
 */
#include "daemon/plan/bucket_iter.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/tally.h"

/* Epochs in a row that a mixture may have no step in, before that is an error. */
#define EMPTY_EPOCHS_MAX 1000

/* The outline of an epoch whose samples are its own. */
static int draw_outline(struct bucket_iter *iter, uint64_t epoch)
{
	_cleanup_(stk_freep) struct stkd_outcome *outcome = NULL;
	int r;

	*iter->own = iter->plan->outline;
	iter->outline = iter->own;
	if (!epoch)
		return 0; /* that is the plan's */
	outcome = malloc(sizeof(*outcome));
	r = outcome ? stkd_tally_epoch(iter->plan, epoch, outcome) : -ENOMEM;
	if (r < 0)
		return r;
	memcpy(iter->own->arrivals, outcome->arrivals, sizeof(outcome->arrivals));
	stkd_outline_fill(iter->own);
	stkd_plan_choose_first(iter->plan, iter->own);
	return 0;
}

int stkd_bucket_begin(struct bucket_iter *iter, uint64_t epoch, bool outline)
{
	const struct stkd_mix *mix = &iter->plan->mix;

	iter->epoch = epoch;
	iter->step = iter->delivered = iter->lent = iter->skip = iter->base = 0;
	iter->in_tail = iter->brimming = false;
	iter->current = iter->emitted = 0;
	for (uint32_t b = 0; b < iter->plan->nclasses; b++)
		stkd_bucket_clear(&iter->buckets[b]);
	iter->outline = &iter->plan->outline;
	if (outline && !mix->whole && mix->draws != UINT64_MAX) {
		int r = draw_outline(iter, epoch);

		if (r < 0)
			return r;
	}
	return stkd_source_begin(iter->source, epoch);
}

/* Was this arrival taken by the epoch's first step? */
static bool skipped(struct bucket_iter *iter, uint32_t b)
{
	if (b != iter->outline->first)
		return false;
	iter->skip--;
	return true;
}

static int push(struct bucket_iter *iter, uint32_t b, const struct stkd_arrival *arrival)
{
	struct stkd_bucket *bucket = &iter->buckets[b];
	int r = stkd_bucket_push(bucket, arrival->id, arrival->length);

	if (r == 0 && iter->plan->lengths.second)
		bucket->longest2 =
			STK_MAX(bucket->longest2, stkd_plan_second(iter->plan, arrival->id));
	return r;
}

/* Reads samples until one makes its bucket full. Returns that bucket, nclasses at the end of the
 * order, or -ENOMEM. */
static int64_t read_until_full(struct bucket_iter *iter)
{
	const struct stkd_plan *plan = iter->plan;
	struct stkd_arrival arrival;

	while (stkd_source_next(iter->source, &arrival)) {
		uint32_t b;
		int r;

		if (!arrival.delivered)
			continue;
		b = stkd_plan_place(plan, arrival.id, arrival.length);
		if (iter->skip && skipped(iter, b))
			continue;
		r = push(iter, b, &arrival);
		if (r < 0)
			return r;
		if (stkd_bucket_is_full(iter, b))
			return b;
	}
	return plan->nclasses;
}

static void sum_lengths(const struct stkd_plan *plan, const uint64_t *ids, size_t n,
			struct stkd_bucket *ret)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t length = stkd_plan_length(plan, ids[i]);

		ret->tokens += length;
		ret->longest = STK_MAX(ret->longest, length);
		ret->longest2 = STK_MAX(ret->longest2, stkd_plan_second(plan, ids[i]));
	}
}

/* The numbers of a step of these ids, as if they were all that waits. */
static struct stkd_bucket measure(const struct stkd_plan *plan, const struct stkd_bucket *bucket,
				  size_t n)
{
	struct stkd_bucket sums = {0};

	if (!bucket->split)
		return *bucket;
	sum_lengths(plan, bucket->ids + bucket->head, n, &sums);
	return sums;
}

/* Takes the n oldest rows of a bucket as the next step. */
static void emit(struct bucket_iter *iter, uint32_t b, size_t n, uint32_t rows_part,
		 struct stkd_step *ret)
{
	const struct stkd_plan *plan = iter->plan;
	struct stkd_bucket *bucket = &iter->buckets[b], sums;

	if (n < stkd_bucket_waiting(bucket))
		bucket->split = true;
	sums = measure(plan, bucket, n);
	*ret = (struct stkd_step){
		.epoch = iter->epoch,
		.step = iter->step,
		.shape_class = b,
		.ids = bucket->ids + bucket->head,
		.nids = (uint32_t)n,
		.rows_part = rows_part,
		.width = stkd_plan_width(plan, b, sums.longest),
		.width2 = plan->lengths.second ? stkd_plan_width2(plan, b, sums.longest2) : 0,
		.real_tokens = sums.tokens,
		.last_of_epoch = iter->step - iter->base + 1 == iter->outline->steps,
	};
	bucket->head += n;
	if (!stkd_bucket_waiting(bucket)) {
		bucket->split = false;
		bucket->tokens = bucket->longest = bucket->longest2 = 0;
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

/* Where the rows do not suffice for one each, the parts that get none have a masked one. */
static uint32_t rows_or_masked(const struct stkd_outline *o, uint64_t rows)
{
	return rows < o->parts ? 1 : 0;
}

/* A bucket that has a step's rows emits it, whole or less what it lends. */
static void emit_full(struct bucket_iter *iter, uint32_t b, struct stkd_step *ret)
{
	const struct stkd_outline *o = iter->outline;
	uint64_t take = stkd_outline_global(o, b);
	uint32_t rows_part = o->rows[b];

	if (b == o->lender && ++iter->lent == o->lend_step) {
		take -= o->lend;
		rows_part = rows_or_masked(o, take);
	}
	emit(iter, b, take, rows_part, ret);
}

/* Reads ahead for the first step's rows, then goes back to the beginning: there they are skipped. */
static int emit_first(struct bucket_iter *iter, struct stkd_step *ret)
{
	uint32_t b = iter->outline->first;
	struct stkd_arrival arrival;
	int r = 0;

	while (r == 0 && !stkd_bucket_is_full(iter, b) && stkd_source_next(iter->source, &arrival))
		if (arrival.delivered &&
		    stkd_plan_place(iter->plan, arrival.id, arrival.length) == b)
			r = push(iter, b, &arrival);
	if (r < 0)
		return r;
	if (!stkd_bucket_is_full(iter, b))
		return -EBADMSG;
	stkd_source_seek(iter->source, 0);
	emit_full(iter, b, ret);
	iter->skip = ret->nids;
	/* What the step lends comes again, when its turn is. */
	stkd_bucket_drop(&iter->buckets[b]);
	return 0;
}

/* The first bucket that is full before anything is read, or nclasses. */
static uint32_t find_full(const struct bucket_iter *iter)
{
	uint32_t b = 0;

	while (b < iter->plan->nclasses && !stkd_bucket_is_full(iter, b))
		b++;
	return b;
}

static int next_main(struct bucket_iter *iter, struct stkd_step *ret)
{
	int64_t b = iter->plan->nclasses;

	if (!iter->step && iter->outline->first < iter->plan->nclasses)
		return emit_first(iter, ret);
	if (iter->brimming) {
		b = find_full(iter);
		iter->brimming = b < iter->plan->nclasses;
	}
	if (!iter->brimming)
		b = read_until_full(iter);
	if (b < 0)
		return (int)b;
	if (b == iter->plan->nclasses)
		return -EBADMSG;
	emit_full(iter, (uint32_t)b, ret);
	return 0;
}

/* Reads the samples behind the last full step. What then waits was known. */
static int enter_tail(struct bucket_iter *iter)
{
	const struct stkd_plan *plan = iter->plan;
	int64_t full = read_until_full(iter);

	if (full < 0)
		return (int)full;
	/* The outline of a cursor says how many steps there are, and only here what waits. */
	if (!stkd_bucket_is_plain(iter) && !iter->own->settled) {
		for (uint32_t b = 0; b < plan->nclasses; b++)
			iter->own->waiting[b] = stkd_bucket_waiting(&iter->buckets[b]);
		if (!stkd_outline_settle(iter->own, iter->lent))
			return -EBADMSG;
	}
	for (uint32_t b = 0; b < plan->nclasses; b++)
		if (stkd_bucket_waiting(&iter->buckets[b]) != iter->outline->waiting[b])
			return -EBADMSG;
	iter->in_tail = true;
	iter->current = 0;
	iter->tail_delivered = iter->delivered;
	return 0;
}

/* What is left in a bucket goes behind the rows of the next one that holds it. */
static int promote(struct bucket_iter *iter, uint32_t b)
{
	struct stkd_bucket *from = &iter->buckets[b];
	struct stkd_bucket *to = &iter->buckets[iter->outline->up[b]];
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
	to->longest2 = STK_MAX(to->longest2, from->longest2);
	stkd_bucket_clear(from);
	return 0;
}

static void emit_rest(struct bucket_iter *iter, uint32_t b, struct stkd_step *ret)
{
	const struct stkd_outline *o = iter->outline;
	uint32_t rows_part = rows_or_masked(o, o->rest);

	if (o->tail == STK_TAIL_PAD)
		rows_part = o->rows[b];
	emit(iter, b, o->rest, rows_part, ret);
}

static int next_tail(struct bucket_iter *iter, struct stkd_step *ret)
{
	int r = iter->in_tail ? 0 : enter_tail(iter);

	for (; r == 0 && iter->current < iter->outline->top; iter->current++) {
		if (stkd_bucket_is_full(iter, iter->current))
			break;
		r = promote(iter, iter->current);
	}
	if (r < 0)
		return r;
	if (stkd_bucket_is_full(iter, iter->current))
		emit_full(iter, iter->current, ret);
	else
		emit_rest(iter, iter->current, ret);
	return 0;
}

/* Begins the next epoch that has a step: of a mixture with tail: drop one may have none. */
static int begin_next(struct bucket_iter *iter)
{
	for (int empty = 0; empty < EMPTY_EPOCHS_MAX; empty++) {
		int r = stkd_bucket_begin(iter, iter->epoch, true);

		if (r < 0 || iter->outline->steps)
			return r;
		iter->epoch++;
	}
	return -EBADMSG;
}

int stkd_bucket_next(struct stkd_iter *head, struct stkd_step *ret)
{
	struct bucket_iter *iter = stkd_bucket_iter(head);
	int r = 0;

	if (!iter->step)
		r = begin_next(iter);
	else if (!iter->in_tail)
		stkd_bucket_settle(&iter->buckets[iter->emitted]);
	if (r < 0)
		return r;
	if (iter->step - iter->base < iter->outline->main_steps)
		return next_main(iter, ret);
	return next_tail(iter, ret);
}

static void destroy(struct stkd_iter *head)
{
	struct bucket_iter *iter = stkd_bucket_iter(head);

	for (uint32_t b = 0; b < iter->plan->nclasses; b++)
		stkd_bucket_deinit(&iter->buckets[b]);
	stkd_source_free(iter->source);
	free(iter->own);
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
	iter->outline = &plan->outline;
	for (uint32_t b = 0; b < plan->nclasses; b++)
		iter->buckets[b].most = plan->mix.whole
						? STK_MIN(stkd_outline_global(&plan->outline, b),
							  plan->outline.arrivals[b])
						: stkd_outline_global(&plan->outline, b);
	iter->own = calloc(1, sizeof(*iter->own));
	r = iter->own ? stkd_source_new(plan, &iter->source) : -ENOMEM;
	if (r == 0)
		r = stkd_bucket_begin(iter, 0, false);
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

const struct stkd_iter_ops stkd_bucket_ops = {
	.create = create,
	.destroy = destroy,
	.resume = stkd_bucket_resume,
	.next = stkd_bucket_next,
	.seek = stkd_bucket_seek,
	.cursor = stkd_bucket_cursor,
	.where = where,
	.adopt = stkd_bucket_adopt,
};
