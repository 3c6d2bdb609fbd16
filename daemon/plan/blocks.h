/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block order of one dataset: blocks of neighbouring samples are permuted, and the samples of a
 * window of blocks are mixed. Where blocks begin is fixed; a walk is one pass, of its source's
 * thread.
 */
#ifndef STKD_BLOCKS_H
#define STKD_BLOCKS_H

#include "daemon/plan/order.h"
#include "proto/err.h"

#define STKD_BLOCKS_WINDOW_MAX 1024

struct stkd_blocks {
	uint64_t count;  /* samples */
	uint64_t size;   /* samples of a block; 0: `first` says it */
	uint64_t n;      /* blocks */
	uint64_t *first; /* of blocks in length units: n + 1 samples; NULL otherwise */
	uint32_t window; /* blocks that are mixed */
};

/**
 * stkd_blocks_init() - cut a dataset
 * @len:   lengths of its samples, for blocks in length units; else NULL
 * @block: samples, or length units, of a block; the last sample may exceed it
 *
 * Return: 0, -EINVAL (too many blocks, with the number), -ENOMEM.
 */
int stkd_blocks_init(struct stkd_blocks *blocks, const uint32_t *len, uint64_t count,
		     uint64_t block, uint32_t window, struct stk_err *err);
void stkd_blocks_deinit(struct stkd_blocks *blocks);

struct stkd_block_walk {
	const struct stkd_blocks *blocks;
	uint64_t seed, pass;
	uint32_t dataset;
	struct stkd_order order; /* of the blocks */
	uint64_t nwindows;
	uint64_t *begin;                             /* position of each window, and the end */
	uint64_t window;                             /* that is loaded; UINT64_MAX: none */
	struct stkd_order mix;                       /* of its samples */
	uint32_t nloaded;                            /* blocks of it */
	uint64_t first[STKD_BLOCKS_WINDOW_MAX];      /* sample that each begins with */
	uint64_t before[STKD_BLOCKS_WINDOW_MAX + 1]; /* samples of the window before it */
};

/* Return: 0 or -ENOMEM. */
int stkd_block_walk_new(const struct stkd_blocks *blocks, struct stkd_block_walk **ret);
struct stkd_block_walk *stkd_block_walk_free(struct stkd_block_walk *walk);

void stkd_block_walk_begin(struct stkd_block_walk *walk, uint64_t seed, uint64_t pass,
			   uint32_t dataset);
/* Sample at position i < count. */
uint64_t stkd_block_walk_at(struct stkd_block_walk *walk, uint64_t i);

#endif
