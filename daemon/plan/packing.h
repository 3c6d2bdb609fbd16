/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a plan decides about packs and token streams before step 0: the one shape class, limits of a
 * row, counts of an epoch. Pure.
 */
#ifndef STKD_PACKING_H
#define STKD_PACKING_H

#include "daemon/plan/edges.h"
#include "daemon/plan/fit.h"
#include "daemon/plan/pack.h"
#include "daemon/plan/plan_private.h"

static inline bool stkd_is_packed(const struct stk_spec *spec)
{
	return spec->group == STK_GROUP_PACK || spec->group == STK_GROUP_CONCAT;
}

/* Are lengths kept as they are, though a row is shorter? */
static inline bool stkd_splits(const struct stk_spec *spec)
{
	return spec->group == STK_GROUP_CONCAT || spec->overlong == STK_OVERLONG_SPLIT;
}

/* Longest segment of group pack. 0: as the longest sample. */
static inline uint32_t stkd_packing_piece(const struct stk_spec *spec)
{
	return spec->flat && !spec->max_length ? (uint32_t)spec->tokens : spec->max_length;
}

/* Sets the length of a row, the one edge. Return: 0, -EINVAL with the reason. */
int stkd_packing_row(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err);

/* Counts of an epoch, once the class is made; h: lengths as delivered. Return: 0, -EINVAL with the
 * reason (an epoch without a step), -ENOMEM. */
int stkd_packing_count(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err);

/* Flat packs are spread: an exchange between full ones could not make costs even. @fills: over as
 * many rows as the last step needs, and none more. */
static inline enum stkd_spread stkd_packing_spread(const struct stk_spec *spec, bool fills)
{
	if (!spec->flat)
		return STKD_SPREAD_NONE;
	return fills ? STKD_SPREAD : STKD_SPREAD_WIDE;
}

void stkd_packing_limits(const struct stkd_plan *plan, struct stkd_pack_limits *ret);

#endif
