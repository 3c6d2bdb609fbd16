/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the walk through steps of packed rows: packs windows, or cuts the stream of tokens, into a
 * queue of rows, and makes steps of it. An iterator belongs to one thread at a time.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "daemon/plan/concat.h"
#include "daemon/plan/cursor.h"
#include "daemon/plan/iter.h"
#include "daemon/plan/packing.h"
#include "daemon/plan/reshape.h"

struct packed_iter {
	struct stkd_iter head;
	const struct stkd_plan *plan;
	uint64_t epoch, step; /* of the next step */
	uint64_t global;      /* rows of a full step */
	uint64_t unit;        /* rows that the last step has at least, where it can */
	uint32_t parts;
	struct stkd_source *source;
	struct stkd_rows queue;
	bool ended; /* all rows of the epoch were put into the queue */
	/* Group pack. */
	struct stkd_packer *packer;
	uint64_t window; /* the next one */
	uint64_t taken;  /* rows of it that were delivered before the iterator began there */
	/* What the last window of flat packs is spread for: parts, and rows before it (less than these).
	 * Begun in another world it is spread as there. */
	uint32_t spread_parts;
	uint64_t spread_before;
	bool elsewhere;
	/* Group concat. */
	struct stkd_concat concat;
	struct stkd_reshape reshape;
};

static struct packed_iter *of(struct stkd_iter *head)
{
	return (struct packed_iter *)head;
}

static int begin(struct packed_iter *iter, uint64_t epoch)
{
	iter->epoch = epoch;
	iter->step = iter->window = iter->taken = 0;
	iter->ended = iter->elsewhere = false;
	stkd_rows_clear(&iter->queue);
	stkd_concat_begin(&iter->concat);
	return stkd_source_begin(iter->source, epoch);
}

/* Filling the queue. */

/* A sample for the packer, in pieces where it is longer than a row. */
static int add_sample(struct packed_iter *iter, const struct stkd_arrival *arrival)
{
	uint32_t whole = stkd_packing_piece(iter->plan->spec), left = arrival->length;
	struct stk_segment segment = {.id = arrival->id, .position = iter->source->position - 1};
	int r = 0;

	for (; left && r == 0; segment.from += segment.length) {
		segment.length = whole ? STK_MIN(left, whole) : left;
		left -= segment.length;
		r = stkd_packer_add(iter->packer, &segment);
	}
	return r;
}

/* Is the last window spread so that no part of the last step lacks a row? */
static bool fills_last(const struct packed_iter *iter)
{
	const struct stk_spec *spec = iter->plan->spec;

	return spec->flat && spec->tail == STK_TAIL_SHORT;
}

/* The window that comes next begins behind the rows that wait, or in the middle of a step. */
static void spread_here(struct packed_iter *iter)
{
	uint64_t before = stkd_rows_waiting(&iter->queue) + iter->parts - iter->taken % iter->parts;

	iter->spread_parts = iter->parts;
	iter->spread_before = before % iter->parts;
}

static int fill_window(struct packed_iter *iter)
{
	const struct stk_spec *spec = iter->plan->spec;
	uint64_t left = spec->window ? spec->window : UINT64_MAX;
	struct stkd_arrival arrival;
	uint32_t rows;
	bool fills; /* the last window fills the last step of flat packs */
	int r = 0;

	for (; left && r == 0 && stkd_source_next(iter->source, &arrival); left--)
		if (arrival.delivered)
			r = add_sample(iter, &arrival);
	if (r < 0)
		return r;
	iter->ended = iter->source->position == iter->source->end;
	fills = iter->ended && fills_last(iter);
	if (!iter->elsewhere)
		spread_here(iter);
	r = stkd_packer_rows(iter->packer, stkd_packing_spread(spec, fills), iter->spread_before,
			     fills ? iter->spread_parts : 1, &rows);
	if (r == 0)
		r = stkd_packer_take(iter->packer, iter->window, &iter->queue);
	if (r < 0)
		return r;
	iter->window++;
	if (iter->taken > rows)
		return -EBADMSG;
	iter->queue.head += iter->taken;
	iter->taken = 0;
	return 0;
}

/* Until so many rows wait, or the epoch has no more. */
static int fill(struct packed_iter *iter, uint64_t rows)
{
	int r = 0;

	stkd_rows_settle(&iter->queue);
	while (r >= 0 && !iter->ended && stkd_rows_waiting(&iter->queue) < rows) {
		if (iter->packer) {
			r = fill_window(iter);
			continue;
		}
		r = stkd_concat_row(&iter->concat, &iter->queue);
		iter->ended = r == 0;
	}
	return STK_MIN(r, 0);
}

/* Making steps. */

/* How many rows the next step takes, and those of each part (0: spread evenly). */
static int decide(struct packed_iter *iter, struct stkd_step *step, uint64_t *ret_take)
{
	const struct stkd_plan *plan = iter->plan;
	uint64_t rows = stkd_rows_waiting(&iter->queue), global = iter->global;

	*ret_take = global;
	step->rows_part = plan->outline.rows[0];
	switch (plan->spec->tail) {
	case STK_TAIL_DROP:
		step->last_of_epoch = rows < 2 * global;
		return rows < global ? -EBADMSG : 0;
	case STK_TAIL_PAD:
		step->last_of_epoch = rows <= global;
		*ret_take = STK_MIN(rows, global);
		break;
	default:
		step->last_of_epoch = rows <= global;
		if (rows > global && rows < global + iter->unit && global >= 2 * iter->unit)
			*ret_take = rows - iter->unit; /* lent to the last step */
		else
			*ret_take = STK_MIN(rows, global);
		if (*ret_take < global)
			step->rows_part = 0;
	}
	return rows ? 0 : -EBADMSG;
}

static void lend_rows(struct packed_iter *iter, uint64_t n, struct stkd_step *step)
{
	struct stkd_rows *queue = &iter->queue;

	step->segments = queue->segments;
	step->row_first = queue->first + queue->head;
	step->nids = (uint32_t)n;
	for (uint32_t s = step->row_first[0]; s < step->row_first[n]; s++)
		step->real_tokens += step->segments[s].length;
	queue->head += n;
}

static void count_dropped(const struct packed_iter *iter, struct stkd_step *step)
{
	const struct stkd_rows *queue = &iter->queue;

	if (!step->last_of_epoch || iter->plan->spec->tail != STK_TAIL_DROP)
		return;
	step->dropped_rows = stkd_rows_waiting(queue);
	step->dropped_tokens = iter->concat.dropped;
	for (size_t s = queue->first[queue->head]; s < queue->nsegments; s++)
		step->dropped_tokens += queue->segments[s].length;
}

static int next_rows(struct packed_iter *iter, struct stkd_step *step)
{
	uint64_t take;
	int r = decide(iter, step, &take);

	if (r < 0)
		return r;
	lend_rows(iter, take, step);
	count_dropped(iter, step);
	if (iter->plan->spec->tail == STK_TAIL_SHORT && step->nids < iter->parts) {
		if (iter->packer)
			r = stkd_reshape_spread(&iter->reshape, iter->packer, step);
		step->rows_part = 1;
	}
	return r < 0 ? r : stkd_reshape_balance(&iter->reshape, step);
}

static int next(struct stkd_iter *head, struct stkd_step *ret)
{
	struct packed_iter *iter = of(head);
	struct stkd_step step = {.width = iter->plan->edges[0]};
	/* Seen ahead, they tell which step is the last, and whether it needs rows of this one. */
	uint64_t ahead = iter->plan->spec->tail == STK_TAIL_DROP ? iter->global : iter->unit;
	int r = iter->step ? 0 : begin(iter, iter->epoch);

	if (r == 0)
		r = fill(iter, iter->global + ahead);
	if (r == 0)
		r = next_rows(iter, &step);
	if (r < 0)
		return r;
	step.epoch = iter->epoch;
	step.step = iter->step++;
	if (step.last_of_epoch) {
		iter->epoch++;
		iter->step = 0;
	}
	*ret = step;
	return 0;
}

static int seek(struct stkd_iter *head, uint64_t epoch, uint64_t step, struct stk_err *err)
{
	struct packed_iter *iter = of(head);
	int r = 0;

	if (iter->plan->counts.steps && step >= iter->plan->counts.steps)
		return stk_err_set(err, -EINVAL,
				   "step %" PRIu64 " of epoch %" PRIu64 ": an epoch has %" PRIu64
				   " steps",
				   step, epoch, iter->plan->counts.steps);
	if (epoch != iter->epoch || step < iter->step || !iter->step)
		r = begin(iter, epoch);
	while (r == 0 && iter->step < step) {
		struct stkd_step skipped;

		r = next(head, &skipped);
		if (r == 0 && skipped.last_of_epoch)
			return stk_err_set(err, -EINVAL,
					   "step %" PRIu64 " of epoch %" PRIu64 ": it has %" PRIu64
					   " steps",
					   step, epoch, skipped.step + 1);
	}
	if (r < 0)
		stk_err_set(err, r, "planning up to step %" PRIu64 ": %s", step,
			    r == -ENOMEM ? "no memory" : "rows ran out");
	return r;
}

/* Cursors. */

static int jump(struct packed_iter *iter, const struct stkd_mark *mark)
{
	const struct stk_spec *spec = iter->plan->spec;
	uint64_t position = 0;

	if (!iter->packer)
		return stkd_concat_seek(&iter->concat, mark->at, mark->in);
	if (spec->window ? stk_mul_overflow(mark->at, (uint64_t)spec->window, &position)
			 : mark->at > 0)
		return -EINVAL;
	if (position >= iter->source->end)
		return -EINVAL;
	stkd_source_seek(iter->source, position);
	iter->window = mark->at;
	iter->taken = mark->in;
	return fill(iter, 1);
}

/* Goes to where the cursor is. */
static int go_to(struct packed_iter *iter, const struct stkd_packed_cursor *cursor)
{
	int r;

	if (cursor->parts && !fills_last(iter))
		return -EINVAL;
	iter->elsewhere = cursor->parts;
	if (iter->elsewhere) {
		iter->spread_parts = (uint32_t)cursor->parts;
		iter->spread_before = cursor->before;
	}
	r = jump(iter, &(struct stkd_mark){cursor->at, cursor->in});
	if (r == 0 && iter->packer && !stkd_rows_waiting(&iter->queue) && iter->ended)
		r = -EINVAL;
	return r == 0 && iter->elsewhere && !iter->ended ? -EINVAL : r;
}

static int resume(struct stkd_iter *head, const void *data, size_t size, struct stk_err *err)
{
	struct packed_iter *iter = of(head);
	struct stkd_packed_cursor cursor;
	int r = stkd_packed_cursor_decode(data, size, &cursor, err);

	if (r < 0)
		return r;
	r = begin(iter, cursor.epoch);
	if (r == 0 && cursor.step)
		r = go_to(iter, &cursor);
	if (r == -ENOMEM)
		return stk_err_set(err, r, "no memory for a window of samples");
	if (r < 0)
		return stk_err_set(
			err, -EINVAL, "cursor: the epoch has no row %" PRIu64 " of %s %" PRIu64,
			cursor.in, iter->packer ? "window" : "the sample at position", cursor.at);
	iter->step = cursor.step;
	return 0;
}

/* Where the first row that was not delivered comes from. */
static struct stkd_mark mark_of(const struct packed_iter *iter)
{
	if (stkd_rows_waiting(&iter->queue))
		return iter->queue.marks[iter->queue.head];
	if (iter->packer)
		return (struct stkd_mark){iter->window, iter->taken};
	return (struct stkd_mark){iter->concat.position, iter->concat.offset};
}

/* @elsewhere: for an iterator of another world. */
static size_t encode(const struct packed_iter *iter, bool elsewhere,
		     uint8_t out[STK_SHM_CURSOR_MAX])
{
	struct stkd_packed_cursor cursor = {.epoch = iter->epoch, .step = iter->step};

	if (iter->step) {
		struct stkd_mark mark = mark_of(iter);

		cursor.at = mark.at;
		cursor.in = mark.in;
	}
	/* Within the last window: its rows are what they are. */
	if (elsewhere && cursor.in && iter->ended && cursor.at + 1 == iter->window) {
		cursor.parts = iter->spread_parts;
		cursor.before = iter->spread_before;
	}
	return stkd_packed_cursor_encode(&cursor, out);
}

static size_t cursor_of(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX])
{
	const struct packed_iter *iter = (const struct packed_iter *)head;

	return encode(iter, iter->elsewhere, out);
}

/*
 * Windows and streams are the same in every world, and so are the places in them, but for how the
 * last window of flat packs is spread: where that was begun, it stays as it is.
 */
static int adopt(struct stkd_iter *head, const struct stkd_iter *other, struct stk_err *err)
{
	const struct packed_iter *from = (const struct packed_iter *)other;
	uint8_t bytes[STK_SHM_CURSOR_MAX];

	return resume(head, bytes, encode(from, fills_last(from), bytes), err);
}

static void where(const struct stkd_iter *head, uint64_t *ret_epoch, uint64_t *ret_step)
{
	const struct packed_iter *iter = (const struct packed_iter *)head;

	*ret_epoch = iter->epoch;
	*ret_step = iter->step;
}

static void destroy(struct stkd_iter *head)
{
	struct packed_iter *iter = of(head);

	stkd_source_free(iter->source);
	stkd_packer_free(iter->packer);
	stkd_rows_deinit(&iter->queue);
	stkd_reshape_deinit(&iter->reshape);
	free(iter);
}

static int make(struct packed_iter *iter, const struct stkd_plan *plan)
{
	struct stkd_pack_limits limits;
	int r = stkd_source_new(plan, &iter->source);

	if (r == 0)
		r = stkd_reshape_init(&iter->reshape, plan->spec, plan->edges[0], iter->parts);
	if (r == 0 && plan->spec->group == STK_GROUP_PACK) {
		stkd_packing_limits(plan, &limits);
		r = stkd_packer_new(&limits, &iter->packer);
	}
	if (r == 0)
		stkd_concat_init(&iter->concat, iter->source);
	return r < 0 ? r : begin(iter, 0);
}

static int create(const struct stkd_plan *plan, struct stkd_iter **ret, struct stk_err *err)
{
	struct packed_iter *iter = calloc(1, sizeof(*iter));
	int r = iter ? 0 : -ENOMEM;

	if (iter) {
		iter->head.ops = &stkd_packed_ops;
		iter->plan = plan;
		iter->global = stkd_outline_global(&plan->outline, 0);
		iter->unit = plan->outline.unit;
		iter->parts = (uint32_t)plan->outline.parts;
		r = make(iter, plan);
	}
	if (r < 0) {
		if (iter)
			destroy(&iter->head);
		return stk_err_set(err, r, "no memory for an iterator");
	}
	*ret = &iter->head;
	return 0;
}

const struct stkd_iter_ops stkd_packed_ops = {
	.create = create,
	.destroy = destroy,
	.resume = resume,
	.next = next,
	.seek = seek,
	.cursor = cursor_of,
	.adopt = adopt,
	.where = where,
};
