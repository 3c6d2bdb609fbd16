/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed rows as `stoker plan` shows them: an epoch summed up, and the segments of a step. Plain
 * values; one thread.
 */
#ifndef STOKER_PACKING_H
#define STOKER_PACKING_H

#include <jansson.h>
#include <stdio.h>

#include "tools/stoker/policy.h"

/* An epoch as it is delivered. */
struct packing {
	uint64_t steps, rows, masked, segments, tokens;
	uint64_t dropped_rows, dropped_tokens; /* tail: drop */
	uint32_t row_segments;                 /* of the fullest row */
	/* How far ranks are apart within a step, by the sum of their squared lengths. */
	double lag_sum, lag_max;
};

void packing_add(struct packing *packing, const struct stkd_plan *plan, const struct stk_spec *spec,
		 uint32_t world, const struct stkd_step *step);

/* Share of the rows' tokens that are real. */
double packing_efficiency(const struct packing *packing, const struct stkd_plan *plan);

json_t *packing_json(const struct packing *packing, const struct stkd_plan *plan);
void packing_print(FILE *out, const struct packing *packing, const struct stkd_plan *plan,
		   uint32_t world);

/* A list for each row, of a list [sample, first token, tokens] for each segment. */
json_t *packing_rows_json(const struct stk_segment *segments, const uint32_t *row_first,
			  uint32_t nrows);

/* What packing would make of a spec that does not: same lengths, rows of its longest edge. Return: 0,
 * or -EINVAL: it cannot be packed; -ENOMEM. */
int packing_measure(const struct stk_spec *spec, const struct stkd_lengths *lengths, uint32_t world,
		    struct policy *ret);

#endif
