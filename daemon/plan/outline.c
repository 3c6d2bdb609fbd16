/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the arithmetic of an epoch's end: promotion from the smallest bucket up, the one incomplete
 * step, and who lends rows to it. Works on counts; iter.c does the same with ids. Any thread.
 */
#include "daemon/plan/outline.h"

/* The first bucket that rows of both come to. */
static uint32_t meet(const struct stkd_outline *o, uint32_t a, uint32_t b)
{
	while (a != b) {
		uint32_t *lower = a < b ? &a : &b;

		*lower = o->up[*lower];
	}
	return a;
}

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
			o->top = o->top < o->nbuckets ? meet(o, o->top, b) : b;
	}
}

static void tail_phase(struct stkd_outline *o)
{
	uint64_t carried[STK_SPEC_EDGES_MAX] = {0};

	o->promoted = o->rest = 0;
	o->steps = o->main_steps;
	for (uint32_t b = 0; o->top < o->nbuckets && b <= o->top; b++) {
		uint64_t own = o->waiting[b], rows = carried[b] + own;

		while (rows >= stkd_outline_global(o, b)) {
			uint64_t take = stkd_outline_take(o, b, ++o->full[b]);

			rows -= take;
			own -= STK_MIN(own, take);
			o->steps++;
		}
		if (b == o->top) {
			o->rest = rows;
			break;
		}
		carried[o->up[b]] += rows;
		o->promoted += own;
	}
	if (o->rest && o->tail != STK_TAIL_DROP)
		o->steps++;
}

/* The largest bucket that emits a step from which rows can be taken: its last one lends. */
static void choose_lender(struct stkd_outline *o)
{
	for (uint32_t b = o->nbuckets; b-- > 0;) {
		/* With one row for each part there is nothing to spare. */
		if (!o->full[b] || stkd_outline_global(o, b) < 2 * o->unit)
			continue;
		o->lender = b;
		o->lend_step = o->full[b];
		o->lend = o->unit - o->rest;
		return;
	}
}

void stkd_outline_fill(struct stkd_outline *o)
{
	o->lender = o->nbuckets;
	o->lend_step = o->lend = o->lender_main = 0;
	o->settled = true;
	main_phase(o);
	tail_phase(o);
	if (o->tail != STK_TAIL_SHORT || !o->rest || o->rest >= o->unit)
		return;
	choose_lender(o);
	if (o->lender == o->nbuckets)
		return;
	main_phase(o);
	tail_phase(o);
}

bool stkd_outline_settle(struct stkd_outline *o, uint64_t lent)
{
	uint64_t steps = o->steps;

	o->top = o->nbuckets;
	for (uint32_t b = 0; b < o->nbuckets; b++) {
		o->full[b] = b == o->lender ? lent : 0;
		if (o->waiting[b])
			o->top = o->top < o->nbuckets ? meet(o, o->top, b) : b;
	}
	tail_phase(o);
	o->lender_main = lent;
	o->settled = true;
	return o->steps == steps;
}

void stkd_outline_endless(struct stkd_outline *o)
{
	o->lender = o->nbuckets;
	o->top = o->nbuckets;
	o->steps = o->main_steps = UINT64_MAX;
}
