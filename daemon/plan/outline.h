/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The outline of an epoch: how many steps each bucket emits and what the tail does, from the
 * number of samples per bucket alone, so that it is the same for every order of them. Pure.
 */
#ifndef STKD_OUTLINE_H
#define STKD_OUTLINE_H

#include "proto/err.h"
#include "proto/spec.h"

struct stkd_outline {
	/* In. */
	uint32_t nbuckets;
	uint64_t parts; /* world * micro-batches */
	uint64_t unit; /* rows that the last step has at least, where it can: parts, or of any world
			* when the batch is global */
	int tail;      /* enum stk_tail */
	uint32_t rows[STK_SPEC_EDGES_MAX];     /* per part */
	uint64_t arrivals[STK_SPEC_EDGES_MAX]; /* samples per bucket and epoch */
	uint32_t up[STK_SPEC_EDGES_MAX]; /* where rows of a bucket move in the tail: a later bucket
					  * that holds them all; the last one holds every row */

	/* Out. A full step of bucket b has rows[b] * parts rows. */
	uint64_t full
		[STK_SPEC_EDGES_MAX]; /* steps of each bucket, main phase and tail; the lender's too */
	uint64_t waiting[STK_SPEC_EDGES_MAX]; /* rows when the order has ended */
	uint64_t main_steps;                  /* steps before that */
	uint64_t steps; /* all; the incomplete one included, unless it is dropped */
	uint32_t top;   /* the tail ends in this bucket; nbuckets: nothing waits */
	uint64_t rest;  /* rows of the incomplete step in top, 0: none */
	uint64_t promoted;

	/*
	 * A rest smaller than the unit leaves ranks without a row. Then one full step lends it
	 * `lend` rows: step number lend_step (from 1) of bucket lender, whose last rows go on
	 * waiting, and the rest becomes a unit.
	 */
	uint32_t lender; /* nbuckets: nobody lends */
	uint64_t lend_step, lend;
	uint64_t lender_main; /* steps of the lender in the main phase */
	uint32_t first;       /* bucket of the epoch's first step; nbuckets: as they come */
	bool settled;         /* waiting, top and rest are known */
};

/* Fills the outputs. Sums over arrivals were checked to fit before. */
void stkd_outline_fill(struct stkd_outline *outline);

/*
 * What waits became known, for an outline of which the numbers of steps and the lender were; the
 * lender has had @lent steps. False: they do not belong together.
 */
bool stkd_outline_settle(struct stkd_outline *outline, uint64_t lent);
/* Of an epoch without end: nobody lends, nothing is a tail. */
void stkd_outline_endless(struct stkd_outline *outline);

/* Rows of a full step. */
static inline uint64_t stkd_outline_global(const struct stkd_outline *outline, uint32_t bucket)
{
	return outline->rows[bucket] * outline->parts;
}

/* Rows of step number @number (from 1) of a bucket: all, or less what it lends. */
static inline uint64_t stkd_outline_take(const struct stkd_outline *outline, uint32_t bucket,
					 uint64_t number)
{
	uint64_t rows = stkd_outline_global(outline, bucket);

	if (bucket == outline->lender && number == outline->lend_step)
		rows -= outline->lend;
	return rows;
}

#endif
