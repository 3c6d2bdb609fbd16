/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrivals: the samples of an epoch in the order they are read, each with its length as delivered.
 * A position counts all of them, those too that are not delivered. Every grouping reads them here.
 * A source belongs to one thread at a time.
 */
#ifndef STKD_SOURCE_H
#define STKD_SOURCE_H

#include "daemon/plan/order.h"
#include "daemon/plan/plan_private.h"

/* Ids are computed this far ahead, so that their lengths arrive in the cache meanwhile. */
#define STKD_SOURCE_AHEAD 64

struct stkd_arrival {
	uint64_t id;
	uint32_t length; /* as delivered */
	bool delivered;  /* false: overlong and dropped, or filtered */
};

/* The order of one dataset: the pass that is being read. */
struct stkd_pass {
	uint64_t number; /* of the passes of this epoch; UINT64_MAX: none is set up */
	struct stkd_order order;
	struct stkd_block_walk *blocks; /* order block */
};

struct stkd_source {
	const struct stkd_plan *plan;
	uint64_t epoch;
	uint64_t position, end; /* next to be read; of the epoch: UINT64_MAX when it never ends */
	uint64_t first, n;      /* positions of `ids` */
	uint64_t ids[STKD_SOURCE_AHEAD];
	uint64_t next_first, next_n; /* positions of `next`, whose lengths are on their way */
	uint64_t next[STKD_SOURCE_AHEAD];
	struct stkd_mix_page *page; /* NULL: one pass over one dataset */
	struct stkd_pass passes[];  /* of each dataset */
};

/* Return: 0 or -ENOMEM. Then begin() before anything else. */
int stkd_source_new(const struct stkd_plan *plan, struct stkd_source **ret);
struct stkd_source *stkd_source_free(struct stkd_source *source);
STK_DEFINE_CLEANUP(struct stkd_source *, stkd_source_free)

/* The first position of an epoch. Return: 0 or -ENOMEM. */
int stkd_source_begin(struct stkd_source *source, uint64_t epoch);

/* Any position up to the end of this epoch, cheaply; next() reads on from there. */
void stkd_source_seek(struct stkd_source *source, uint64_t position);

/*
 * The samples at n positions of a pass over dataset d, from i on; n is at most STKD_SOURCE_AHEAD. Reading on
 * by next() is another matter, and so are its passes: not on one source.
 */
void stkd_source_pass(struct stkd_source *source, uint32_t d, uint64_t number, uint64_t i,
		      uint64_t n, uint64_t *ids);

/* Computes ids so that @position < end is among them: those behind it, or (back) those before. */
void stkd_source_load(struct stkd_source *source, uint64_t position, bool back);

static inline void stkd_source_get(struct stkd_source *source, uint64_t position,
				   struct stkd_arrival *ret)
{
	ret->id = source->ids[position - source->first];
	ret->delivered = stkd_plan_delivers(source->plan, ret->id, &ret->length);
}

/* The next arrival; false at the end of the epoch. */
static inline bool stkd_source_next(struct stkd_source *source, struct stkd_arrival *ret)
{
	if (source->position == source->end)
		return false;
	if (source->position - source->first >= source->n)
		stkd_source_load(source, source->position, false);
	stkd_source_get(source, source->position++, ret);
	return true;
}

/* The arrival before the position, which moves to it; false at the beginning of the epoch. */
static inline bool stkd_source_back(struct stkd_source *source, struct stkd_arrival *ret)
{
	if (!source->position)
		return false;
	source->position--;
	if (source->position - source->first >= source->n)
		stkd_source_load(source, source->position, true);
	stkd_source_get(source, source->position, ret);
	return true;
}

#endif
