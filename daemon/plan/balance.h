/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Spreads items (rows, or segments of flat packs) over the parts of a step so that each part costs
 * about as much. Integers only, ties go to the smaller number: the same on every machine. A
 * balancer belongs to one thread at a time.
 */
#ifndef STKD_BALANCE_H
#define STKD_BALANCE_H

#include "proto/err.h"

struct stkd_load {
	uint64_t cost;
	uint32_t size; /* of the part's capacity */
};

/* What a part may hold; the sizes and counts of its items never exceed it. */
struct stkd_capacity {
	uint64_t size;
	uint32_t items;
};

struct stkd_balancer;

/* Return: 0 or -ENOMEM. */
int stkd_balancer_new(struct stkd_balancer **ret);
struct stkd_balancer *stkd_balancer_free(struct stkd_balancer *balancer);
STK_DEFINE_CLEANUP(struct stkd_balancer *, stkd_balancer_free)

/**
 * stkd_balance() - even costs
 * @capacity: of each part, nparts
 * @part_of:  in: where each item is, within the capacities; or NO_PART everywhere: items of size 1
 *            that fill all parts. Out: where it goes
 *
 * From the given start, or the costliest item first to the cheapest part, parts exchange items
 * pair by pair, costly with cheap, as long as that helps.
 *
 * Return: 0 or -ENOMEM.
 */
int stkd_balance(struct stkd_balancer *balancer, const struct stkd_load *items, uint32_t nitems,
		 const struct stkd_capacity *capacity, uint32_t nparts, uint32_t *part_of);

#define STKD_NO_PART UINT32_MAX

#endif
