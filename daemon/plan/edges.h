/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bucket edges from a histogram of lengths: least padding for k edges, by a divide-and-conquer
 * dynamic program over the distinct (rounded) lengths. Pure.
 */
#ifndef STKD_EDGES_H
#define STKD_EDGES_H

#include "proto/err.h"

struct stkd_histogram {
	uint32_t *length; /* distinct, ascending */
	uint64_t *count;
	size_t n;
};
int stkd_histogram_new(const uint32_t *len, uint64_t count, struct stkd_histogram *ret);
void stkd_histogram_deinit(struct stkd_histogram *histogram);
/* Takes lengths above the limit out, or (keep) counts them as the limit. Returns how many. */
uint64_t stkd_histogram_cut(struct stkd_histogram *histogram, uint32_t limit, bool keep);

/**
 * stkd_edges_optimal() - at most k edges with the least padding
 * @histogram:   lengths as delivered (after truncation and drops), not empty
 * @k:           1..256
 * @multiple_of: edges are multiples of it, at least it
 * @max_length:  upper limit of an edge: the last edge is min(rounded longest, max_length) when that
 *               is not a multiple; 0: none
 * @ret_edges:   ascending, room for k
 * @ret_n:       edges used; fewer than k when fewer distinct lengths
 *
 * Ties go to the smaller edges, so every machine agrees. Return: 0 or -ENOMEM, -EOVERFLOW.
 */
int stkd_edges_optimal(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		       uint32_t max_length, uint32_t *ret_edges, size_t *ret_n);

/* Padded tokens when each length goes to its smallest edge; lengths above the last edge count as the last edge. */
uint64_t stkd_edges_padded(const struct stkd_histogram *histogram, const uint32_t *edges, size_t n);

#endif
