/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bucket edges from a histogram of lengths: least padding for k edges, by a divide-and-conquer
 * dynamic program over the distinct (rounded) lengths, and the ways that people know. Pure.
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
/* The same from a function that writes up to @room lengths at @out, and 0 at the end. */
typedef size_t (*stkd_lengths_fn)(void *context, uint32_t *out, size_t room);
int stkd_histogram_read(stkd_lengths_fn read, void *context, struct stkd_histogram *ret);
/* Adds another one, each count so many times. Return: 0 or -ENOMEM, and nothing was added. */
int stkd_histogram_add(struct stkd_histogram *to, const struct stkd_histogram *histogram,
		       uint64_t times);
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

/*
 * The same contract for what people know: clusters of lengths (Lloyd's rounds from quantiles, to a
 * fixed point or 64 of them), as many samples in each bucket, equal distances. Edges of buckets
 * that hold no sample are left out.
 */
int stkd_edges_kmeans(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		      uint32_t max_length, uint32_t *ret_edges, size_t *ret_n);
int stkd_edges_quantile(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
			uint32_t max_length, uint32_t *ret_edges, size_t *ret_n);
int stkd_edges_uniform(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		       uint32_t max_length, uint32_t *ret_edges, size_t *ret_n);

/* The same contract by enum stk_bucket_method. */
int stkd_edges_choose(int method, const struct stkd_histogram *histogram, uint32_t k,
		      uint32_t multiple_of, uint32_t max_length, uint32_t *ret_edges,
		      size_t *ret_n);

/* Padded tokens when each length goes to its smallest edge; lengths above the last edge count as the last edge. */
uint64_t stkd_edges_padded(const struct stkd_histogram *histogram, const uint32_t *edges, size_t n);

#endif
