/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shape classes: the edges of buckets, and the rows of a batch of each. Decided once, when a plan
 * is made. Any thread.
 */
#ifndef STKD_SHAPES_H
#define STKD_SHAPES_H

#include "daemon/plan/edges.h"
#include "daemon/plan/plan_private.h"

/* The keys that shapes follow from. Each function returns 0, -EINVAL with the reason, or -ENOMEM. */
int stkd_shapes_check(const struct stk_spec *spec, uint32_t world, struct stk_err *err);
/* Edges as given, or chosen from the lengths as delivered. */
int stkd_shapes_edges(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err);
/* Rows of each class; @shortest and @shortest2 are the least lengths that are delivered. */
int stkd_shapes_rows(struct stkd_plan *plan, uint32_t shortest, uint32_t shortest2,
		     struct stk_err *err);

#endif
