/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bucket edges for two lengths, from how many samples have which pair of them: edges of the first
 * length, and for each of these edges of the second. Pure.
 */
#ifndef STKD_PAIRS_H
#define STKD_PAIRS_H

#include "daemon/plan/edges.h"
#include "proto/spec.h"

#define STKD_PAIRS_CELLS 1024 /* of either length, at most; edges are multiples of a cell */

struct stkd_pairs {
	uint32_t longest, longest2;
	uint32_t cell, cell2; /* sizes; multiples of multiple_of */
	uint32_t n, n2;       /* cells */
	uint64_t *count;      /* n2 for each of n */
};

/* @longest, @longest2: no sample is longer. Return: 0 or -ENOMEM, -EOVERFLOW. */
int stkd_pairs_init(struct stkd_pairs *pairs, uint32_t longest, uint32_t longest2,
		    uint32_t multiple_of);
void stkd_pairs_deinit(struct stkd_pairs *pairs);

/* Cell of a length; one of 0 needs a place, too. */
static inline uint32_t stkd_pairs_cell(uint32_t length, uint32_t cell)
{
	return length ? (length - 1) / cell : 0;
}

static inline void stkd_pairs_add(struct stkd_pairs *pairs, uint32_t length, uint32_t second,
				  uint64_t times)
{
	pairs->count[(size_t)stkd_pairs_cell(length, pairs->cell) * pairs->n2 +
		     stkd_pairs_cell(second, pairs->cell2)] += times;
}

/**
 * stkd_pairs_edges() - at most k pairs of edges
 * @method:     enum stk_bucket_method, for both lengths; STK_BUCKET_OPTIMAL has no more padding than
 *              any of the others
 * @max_length: of the first length, as for stkd_edges_optimal()
 * @edges:      ascending; beside each the edge of the second length, ascending for each first one.
 *              The last pair holds every sample.
 *
 * Tries 1, 2, 4 and so on edges of the first length. Return: 0 or -ENOMEM, -EOVERFLOW.
 */
int stkd_pairs_edges(const struct stkd_pairs *pairs, int method, uint32_t k, uint32_t max_length,
		     uint32_t edges[STK_SPEC_EDGES_MAX], uint32_t edges2[STK_SPEC_EDGES_MAX],
		     size_t *ret_n);

#endif
