/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room share about a plan: filled by plan.c, read by iter.c. Immutable
 * after stkd_plan_new().
 */
#ifndef STKD_PLAN_PRIVATE_H
#define STKD_PLAN_PRIVATE_H

#include "daemon/plan/blocks.h"
#include "daemon/plan/mix.h"
#include "daemon/plan/outline.h"
#include "daemon/plan/plan.h"

struct stkd_plan {
	const struct stk_spec *spec; /* borrowed */
	struct stkd_lengths lengths; /* borrowed */
	uint32_t world;
	uint32_t limit, limit2; /* longer samples are overlong, in either length */
	bool picks;             /* stkd_plan_keeps() must be asked */
	bool drops;             /* overlong samples */
	bool ratio_inverted;    /* keep.ratio is of the second length over the first */
	struct stkd_mix mix;
	struct stkd_blocks *blocks; /* order block: of each dataset; else NULL */
	uint32_t nclasses;
	uint32_t edges[STK_SPEC_EDGES_MAX];
	uint32_t edges2[STK_SPEC_EDGES_MAX]; /* 0: one length */
	struct stkd_class classes[STK_SPEC_EDGES_MAX];
	struct stkd_outline outline; /* of every epoch, or of epoch 0 where they differ */
	struct stkd_plan_counts counts;
};

/* The smallest bucket that holds a length of at most the last edge. Without branches. */
static inline uint32_t stkd_plan_bucket(const struct stkd_plan *plan, uint32_t length)
{
	uint32_t first = 0;

	for (uint32_t n = plan->nclasses; n > 1;) {
		uint32_t half = n / 2;

		/* A mask: compilers make a branch of a choice, and it goes either way. */
		first += half & -(uint32_t)(plan->edges[first + half - 1] < length);
		n -= half;
	}
	return first;
}

/* The same for two lengths, of which edges2 of the last bucket holds every second one. */
uint32_t stkd_plan_bucket2(const struct stkd_plan *plan, uint32_t length, uint32_t second);

/* Second length as delivered; 0 where there is one length. */
static inline uint32_t stkd_plan_second(const struct stkd_plan *plan, uint64_t id)
{
	return plan->lengths.second ? STK_MIN(plan->lengths.second[id], plan->limit2) : 0;
}

/* The bucket of a sample that is delivered with this length. */
static inline uint32_t stkd_plan_place(const struct stkd_plan *plan, uint64_t id, uint32_t length)
{
	if (plan->lengths.second)
		return stkd_plan_bucket2(plan, length, stkd_plan_second(plan, id));
	return stkd_plan_bucket(plan, length);
}

/* Does a sample pass `keep`, and is its second length one that is delivered? */
bool stkd_plan_keeps(const struct stkd_plan *plan, uint64_t id);
/* The first half of it. */
bool stkd_plan_passes(const struct stkd_plan *plan, uint64_t id);

/* Length as delivered and true, or false for a sample that is dropped. */
static inline bool stkd_plan_delivers(const struct stkd_plan *plan, uint64_t id, uint32_t *ret)
{
	uint32_t length = plan->lengths.len[id];

	*ret = STK_MIN(length, plan->limit);
	if (plan->picks && !stkd_plan_keeps(plan, id))
		return false;
	return length <= plan->limit || !plan->drops;
}

/* Sets outline->first: the class of an epoch's first step, under largest_first. */
void stkd_plan_choose_first(const struct stkd_plan *plan, struct stkd_outline *outline);

/* Padded width of a step of a bucket whose longest row this is. */
uint32_t stkd_plan_width(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest);
/* The same of the second length; 0 where there is one. */
uint32_t stkd_plan_width2(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest);

#endif
