/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns blocks: where they begin, and the order of a pass. A pass needs the position at which each
 * window begins, 8 bytes for each window; the rest is computed. No state beyond that.
 */
#include "daemon/plan/blocks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCKS_MAX (UINT64_C(1) << 26)

/* So that blocks and the insides of windows are permuted by other keys than a full order. */
#define BLOCK_SEED  UINT64_C(0xd1b54a32d192ed03)
#define WINDOW_SEED UINT64_C(0xaef17502108ef2d9)

static int refuse(uint64_t n, uint64_t block, struct stk_err *err)
{
	return stk_err_set(err, -EINVAL,
			   "block: %" PRIu64 " makes more than %" PRIu64
			   " blocks, at least %" PRIu64 " of them; a larger one is needed",
			   block, BLOCKS_MAX, n);
}

/* A block ends with the sample that fills it. Counts blocks, and notes them where there is room. */
static uint64_t cut(const uint32_t *len, uint64_t count, uint64_t block, uint64_t *first)
{
	uint64_t n = 0, filled = 0;

	for (uint64_t i = 0; i < count; i++) {
		if (!filled && first)
			first[n] = i;
		/* A sample without length takes a place, too. */
		filled += STK_MAX(len[i], 1u);
		if (filled < block && i + 1 < count)
			continue;
		n++;
		filled = 0;
	}
	return n;
}

int stkd_blocks_init(struct stkd_blocks *blocks, const uint32_t *len, uint64_t count,
		     uint64_t block, uint32_t window, struct stk_err *err)
{
	*blocks = (struct stkd_blocks){.count = count, .window = window};
	if (!len) {
		blocks->size = block;
		blocks->n = count / block + (count % block > 0);
		return blocks->n > BLOCKS_MAX ? refuse(blocks->n, block, err) : 0;
	}
	blocks->n = cut(len, count, block, NULL);
	if (blocks->n > BLOCKS_MAX)
		return refuse(blocks->n, block, err);
	blocks->first = calloc(blocks->n + 1, sizeof(*blocks->first));
	if (!blocks->first)
		return stk_err_set(err, -ENOMEM, "no memory for %" PRIu64 " blocks", blocks->n);
	cut(len, count, block, blocks->first);
	blocks->first[blocks->n] = count;
	return 0;
}

void stkd_blocks_deinit(struct stkd_blocks *blocks)
{
	free(blocks->first);
	*blocks = (struct stkd_blocks){0};
}

static uint64_t first_of(const struct stkd_blocks *blocks, uint64_t block)
{
	return blocks->first ? blocks->first[block] : STK_MIN(block * blocks->size, blocks->count);
}

static uint64_t size_of(const struct stkd_blocks *blocks, uint64_t block)
{
	return first_of(blocks, block + 1) - first_of(blocks, block);
}

int stkd_block_walk_new(const struct stkd_blocks *blocks, struct stkd_block_walk **ret)
{
	struct stkd_block_walk *walk = calloc(1, sizeof(*walk));

	if (!walk)
		return -ENOMEM;
	walk->blocks = blocks;
	walk->nwindows = (blocks->n + blocks->window - 1) / blocks->window;
	walk->begin = calloc(walk->nwindows + 1, sizeof(*walk->begin));
	if (!walk->begin) {
		free(walk);
		return -ENOMEM;
	}
	*ret = walk;
	return 0;
}

struct stkd_block_walk *stkd_block_walk_free(struct stkd_block_walk *walk)
{
	if (!walk)
		return NULL;
	free(walk->begin);
	free(walk);
	return NULL;
}

void stkd_block_walk_begin(struct stkd_block_walk *walk, uint64_t seed, uint64_t pass,
			   uint32_t dataset)
{
	const struct stkd_blocks *blocks = walk->blocks;
	uint64_t position = 0;

	walk->seed = seed;
	walk->pass = pass;
	walk->dataset = dataset;
	walk->window = UINT64_MAX;
	stkd_order_init(&walk->order, STK_ORDER_FULL, blocks->n, seed ^ BLOCK_SEED, pass, dataset);
	for (uint64_t b = 0; b < blocks->n; b++) {
		if (b % blocks->window == 0)
			walk->begin[b / blocks->window] = position;
		position += size_of(blocks, stkd_order_at(&walk->order, b));
	}
	walk->begin[walk->nwindows] = position;
}

static uint64_t window_of(const struct stkd_block_walk *walk, uint64_t i)
{
	uint64_t low = 0, high = walk->nwindows - 1;

	while (low < high) {
		uint64_t mid = low + (high - low + 1) / 2;

		if (walk->begin[mid] <= i)
			low = mid;
		else
			high = mid - 1;
	}
	return low;
}

static void load(struct stkd_block_walk *walk, uint64_t window)
{
	const struct stkd_blocks *blocks = walk->blocks;
	uint64_t b = window * blocks->window, n = 0;

	walk->window = window;
	walk->nloaded = (uint32_t)STK_MIN(blocks->n - b, (uint64_t)blocks->window);
	for (uint32_t k = 0; k < walk->nloaded; k++) {
		uint64_t block = stkd_order_at(&walk->order, b + k);

		walk->first[k] = first_of(blocks, block);
		walk->before[k] = n;
		n += size_of(blocks, block);
	}
	walk->before[walk->nloaded] = n;
	stkd_order_init(&walk->mix, STK_ORDER_FULL, n,
			walk->seed ^ (WINDOW_SEED + window * BLOCK_SEED), walk->pass,
			walk->dataset);
}

uint64_t stkd_block_walk_at(struct stkd_block_walk *walk, uint64_t i)
{
	uint32_t low = 0, high;
	uint64_t at;

	if (walk->window == UINT64_MAX || i < walk->begin[walk->window] ||
	    i >= walk->begin[walk->window + 1])
		load(walk, window_of(walk, i));
	at = stkd_order_at(&walk->mix, i - walk->begin[walk->window]);
	high = walk->nloaded - 1;
	while (low < high) {
		uint32_t mid = low + (high - low + 1) / 2;

		if (walk->before[mid] <= at)
			low = mid;
		else
			high = mid - 1;
	}
	return walk->first[low] + (at - walk->before[low]);
}
