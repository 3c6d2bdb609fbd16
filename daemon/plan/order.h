/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The order of samples in an epoch: identity, or a keyed permutation computed by index in O(1)
 * memory (Feistel network over a domain just above n, walked until inside). Plain value.
 */
#ifndef STKD_ORDER_H
#define STKD_ORDER_H

#include "proto/spec.h"

#define STKD_ORDER_ROUNDS 6

struct stkd_order {
	uint64_t n;
	int kind;            /* enum stk_order */
	uint64_t left;       /* values of the left half of an index */
	unsigned right_bits; /* of its right half */
	uint64_t keys[STKD_ORDER_ROUNDS];
};

void stkd_order_init(struct stkd_order *order, int kind, uint64_t n, uint64_t seed, uint64_t epoch,
		     uint32_t dataset);
/* Sample at position i < n. */
uint64_t stkd_order_at(const struct stkd_order *order, uint64_t i);

/* The samples at n positions from i on. */
void stkd_order_fill(const struct stkd_order *order, uint64_t i, uint64_t n, uint64_t *ret);

#endif
