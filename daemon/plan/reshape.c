/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the copy of a step whose rows or segments changed their places. The iterator's thread.
 */
#include "daemon/plan/reshape.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stkd_reshape_init(struct stkd_reshape *reshape, const struct stk_spec *spec, uint32_t row,
		      uint32_t parts)
{
	*reshape = (struct stkd_reshape){.spec = spec, .row = row, .parts = parts};
	return stkd_balancer_new(&reshape->balancer);
}

void stkd_reshape_deinit(struct stkd_reshape *reshape)
{
	stkd_rows_deinit(&reshape->rows);
	stkd_balancer_free(reshape->balancer);
	free(reshape->loads);
	free(reshape->part_of);
	free(reshape->order);
	free(reshape->capacity);
	*reshape = (struct stkd_reshape){0};
}

static int grow(void **array, size_t room, size_t size)
{
	void *grown = reallocarray(*array, room, size);

	if (!grown)
		return -ENOMEM;
	*array = grown;
	return 0;
}

static int reserve(struct stkd_reshape *r, size_t nitems, size_t nparts)
{
	if (nparts > r->capacity_room) {
		if (grow((void **)&r->capacity, nparts, sizeof(*r->capacity)) < 0)
			return -ENOMEM;
		r->capacity_room = nparts;
	}
	if (nitems <= r->room)
		return 0;
	if (grow((void **)&r->loads, nitems, sizeof(*r->loads)) < 0 ||
	    grow((void **)&r->part_of, nitems, sizeof(*r->part_of)) < 0 ||
	    grow((void **)&r->order, nitems, sizeof(*r->order)) < 0)
		return -ENOMEM;
	r->room = nitems;
	return 0;
}

static uint64_t cost_of(const struct stkd_reshape *r, const struct stk_segment *segment)
{
	uint64_t length = segment->length;

	return r->spec->balance == STK_BALANCE_COST ? length * length : length;
}

static int compare_segments(const void *x, const void *y)
{
	const struct stk_segment *a = x, *b = y;

	if (a->position != b->position)
		return a->position < b->position ? -1 : 1;
	return a->from < b->from ? -1 : a->from > b->from;
}

/* Items ordered by part; those of one part keep their order. @ends: room for nparts. */
static void order_by_part(struct stkd_reshape *r, uint32_t nitems, uint32_t nparts, uint32_t *ends)
{
	uint32_t sum = 0;

	memset(ends, 0, nparts * sizeof(*ends));
	for (uint32_t i = 0; i < nitems; i++)
		ends[r->part_of[i]]++;
	for (uint32_t p = 0; p < nparts; p++) {
		uint32_t count = ends[p];

		ends[p] = sum;
		sum += count;
	}
	for (uint32_t i = 0; i < nitems; i++)
		r->order[ends[r->part_of[i]]++] = i;
}

static void lend(struct stkd_reshape *r, struct stkd_step *step)
{
	step->segments = r->rows.segments;
	step->row_first = r->rows.first;
	step->nids = (uint32_t)r->rows.n;
}

/* Segments go to other rows, of which each part has one. */
static int balance_segments(struct stkd_reshape *r, struct stkd_step *step)
{
	const struct stk_segment *segments = step->segments + step->row_first[0];
	uint32_t nrows = step->nids, n = step->row_first[nrows] - step->row_first[0];
	uint32_t items = r->spec->segments_max ? r->spec->segments_max : UINT32_MAX;
	struct stkd_rows *to = &r->rows;
	int e;

	for (uint32_t row = 0, s = 0; row < nrows; row++) {
		r->capacity[row] = (struct stkd_capacity){.size = r->row, .items = items};
		for (; s < step->row_first[row + 1] - step->row_first[0]; s++) {
			uint64_t size = stk_round_up(segments[s].length, r->spec->align);

			r->loads[s].cost = cost_of(r, &segments[s]);
			r->loads[s].size = (uint32_t)size;
			r->part_of[s] = row;
		}
	}
	e = stkd_balance(r->balancer, r->loads, n, r->capacity, nrows, r->part_of);
	if (e < 0)
		return e;
	order_by_part(r, n, nrows, to->first + 1);
	to->n = nrows;
	for (uint32_t i = 0; i < n; i++)
		stkd_rows_push(to, &segments[r->order[i]]);
	for (uint32_t row = 0; row < nrows; row++)
		qsort(to->segments + to->first[row], to->first[row + 1] - to->first[row],
		      sizeof(*to->segments), compare_segments);
	lend(r, step);
	return 0;
}

/* Whole rows go to other parts; each part has as many as before. */
static int balance_rows(struct stkd_reshape *r, struct stkd_step *step)
{
	uint32_t n = step->nids, each = n / r->parts, more = n % r->parts;
	int e;

	for (uint32_t p = 0; p < r->parts; p++) {
		uint32_t rows = each + (p < more);

		r->capacity[p] = (struct stkd_capacity){.size = rows, .items = rows};
	}
	for (uint32_t row = 0; row < n; row++) {
		r->loads[row] = (struct stkd_load){.size = 1};
		r->part_of[row] = STKD_NO_PART;
		for (uint32_t s = step->row_first[row]; s < step->row_first[row + 1]; s++)
			r->loads[row].cost += cost_of(r, &step->segments[s]);
	}
	e = stkd_balance(r->balancer, r->loads, n, r->capacity, r->parts, r->part_of);
	if (e < 0)
		return e;
	/* Room for as many rows as parts was made: here their numbers stand for a while. */
	order_by_part(r, n, r->parts, r->rows.first + 1);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t row = r->order[i];

		for (uint32_t s = step->row_first[row]; s < step->row_first[row + 1]; s++)
			stkd_rows_push(&r->rows, &step->segments[s]);
		stkd_rows_close(&r->rows, 0, 0);
	}
	lend(r, step);
	return 0;
}

int stkd_reshape_balance(struct stkd_reshape *r, struct stkd_step *step)
{
	uint32_t nrows = step->nids, n = step->row_first[nrows] - step->row_first[0];
	uint32_t most = STK_MAX(nrows, r->parts);

	if (r->spec->balance == STK_BALANCE_NONE)
		return 0;
	/* A last step that was spread is borrowed from here already, and even as it is. */
	if (step->segments == r->rows.segments)
		return 0;
	stkd_rows_clear(&r->rows);
	if (reserve(r, STK_MAX(n, nrows), most) < 0 || stkd_rows_reserve(&r->rows, most, n) < 0)
		return -ENOMEM;
	return r->spec->flat ? balance_segments(r, step) : balance_rows(r, step);
}

int stkd_reshape_spread(struct stkd_reshape *r, struct stkd_packer *packer, struct stkd_step *step)
{
	const struct stk_segment *segments = step->segments + step->row_first[0];
	uint32_t n = step->row_first[step->nids] - step->row_first[0], rows;
	int e;

	/* In the order of arrival, as the packer takes them. */
	stkd_rows_clear(&r->rows);
	e = stkd_rows_reserve(&r->rows, 0, n);
	if (e < 0)
		return e;
	memcpy(r->rows.segments, segments, n * sizeof(*segments));
	qsort(r->rows.segments, n, sizeof(*segments), compare_segments);
	for (uint32_t i = 0; e == 0 && i < n; i++)
		e = stkd_packer_add(packer, &r->rows.segments[i]);
	if (e == 0)
		e = stkd_packer_rows(packer, STKD_SPREAD, 0, r->parts, &rows);
	if (e == 0)
		e = stkd_packer_take(packer, 0, &r->rows);
	if (e < 0)
		return e;
	lend(r, step);
	return 0;
}
