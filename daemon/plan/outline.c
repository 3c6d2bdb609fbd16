/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the arithmetic of an epoch's end: promotion from the smallest bucket up, the one incomplete
 * step, and who lends rows to it. Works on counts; iter.c does the same with ids. Any thread.
 */
#include "daemon/plan/outline.h"

/* The order, start to end: each bucket emits when it is full. */
static void main_phase(struct stkd_outline *o)
{
	o->main_steps = 0;
	o->top = o->nbuckets;
	for (uint32_t b = 0; b < o->nbuckets; b++) {
		uint64_t global = stkd_outline_global(o, b);
		uint64_t rows = o->arrivals[b];

		o->full[b] = rows / global;
		if (b == o->lender && o->full[b] >= o->lend_step) {
			/* What was lent waits again, and may fill another step. */
			rows += o->lend;
			o->full[b] = rows / global;
		}
		if (b == o->lender)
			o->lender_main = o->full[b];
		o->waiting[b] = rows - o->full[b] * global;
		o->main_steps += o->full[b];
		if (o->waiting[b])
			o->top = b;
	}
}

static void tail_phase(struct stkd_outline *o)
{
	uint64_t rows = 0;

	o->promoted = 0;
	o->steps = o->main_steps;
	for (uint32_t b = 0; o->top < o->nbuckets && b <= o->top; b++) {
		uint64_t own = o->waiting[b];

		rows += own;
		while (rows >= stkd_outline_global(o, b)) {
			uint64_t take = stkd_outline_take(o, b, ++o->full[b]);

			rows -= take;
			own -= STK_MIN(own, take);
			o->steps++;
		}
		if (b < o->top)
			o->promoted += own;
	}
	o->rest = rows;
	if (rows && o->tail != STK_TAIL_DROP)
		o->steps++;
}

/* The largest bucket that emits a step from which rows can be taken: its last one lends. */
static void choose_lender(struct stkd_outline *o)
{
	for (uint32_t b = o->nbuckets; b-- > 0;) {
		/* With one row for each part there is nothing to spare. */
		if (!o->full[b] || o->rows[b] < 2)
			continue;
		o->lender = b;
		o->lend_step = o->full[b];
		o->lend = o->parts - o->rest;
		return;
	}
}

void stkd_outline_fill(struct stkd_outline *o)
{
	o->lender = o->nbuckets;
	o->lend_step = o->lend = o->lender_main = 0;
	main_phase(o);
	tail_phase(o);
	if (o->tail != STK_TAIL_SHORT || !o->rest || o->rest >= o->parts)
		return;
	choose_lender(o);
	if (o->lender == o->nbuckets)
		return;
	main_phase(o);
	tail_phase(o);
}
