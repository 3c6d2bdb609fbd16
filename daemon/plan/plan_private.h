/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of this room share about a plan: filled by plan.c, read by iter.c. Immutable
 * after stkd_plan_new().
 */
#ifndef STKD_PLAN_PRIVATE_H
#define STKD_PLAN_PRIVATE_H

#include "daemon/plan/outline.h"
#include "daemon/plan/plan.h"

struct stkd_plan {
	const struct stk_spec *spec; /* borrowed */
	struct stkd_lengths lengths; /* borrowed */
	uint32_t world;
	uint32_t limit; /* longer samples are overlong */
	uint32_t nclasses;
	uint32_t edges[STK_SPEC_EDGES_MAX];
	struct stkd_class classes[STK_SPEC_EDGES_MAX];
	struct stkd_outline outline;
	struct stkd_plan_counts counts;
};

/* The smallest bucket that holds a length of at most the last edge. Without branches. */
static inline uint32_t stkd_plan_bucket(const struct stkd_plan *plan, uint32_t length)
{
	uint32_t first = 0;

	for (uint32_t n = plan->nclasses; n > 1;) {
		uint32_t half = n / 2;

		first += plan->edges[first + half - 1] < length ? half : 0;
		n -= half;
	}
	return first;
}

/* Length as delivered and true, or false for a sample that is dropped. */
static inline bool stkd_plan_delivers(const struct stkd_plan *plan, uint64_t id, uint32_t *ret)
{
	uint32_t length = plan->lengths.len[id];

	*ret = STK_MIN(length, plan->limit);
	return length <= plan->limit || plan->spec->overlong != STK_OVERLONG_DROP;
}

/* Padded width of a step of a bucket whose longest row this is. */
uint32_t stkd_plan_width(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest);

#endif
