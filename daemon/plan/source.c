/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the way from a position to a sample id: which dataset, which pass over it, which sample of
 * that pass. The iterator's thread.
 */
#include "daemon/plan/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int stkd_source_new(const struct stkd_plan *plan, struct stkd_source **ret)
{
	uint32_t n = plan->mix.n;
	_cleanup_(stkd_source_freep) struct stkd_source *source =
		calloc(1, sizeof(*source) + n * sizeof(source->passes[0]));
	int r = 0;

	if (!source)
		return -ENOMEM;
	source->plan = plan;
	source->end = plan->mix.draws;
	if (!stkd_mix_is_plain(&plan->mix)) {
		source->page = malloc(sizeof(*source->page));
		if (!source->page)
			return -ENOMEM;
		stkd_mix_page_reset(source->page);
	}
	for (uint32_t d = 0; r == 0 && plan->blocks && d < n; d++)
		if (plan->mix.datasets[d].weight)
			r = stkd_block_walk_new(&plan->blocks[d], &source->passes[d].blocks);
	if (r < 0)
		return r;
	*ret = STK_STEAL(source);
	return 0;
}

struct stkd_source *stkd_source_free(struct stkd_source *source)
{
	if (!source)
		return NULL;
	for (uint32_t d = 0; d < source->plan->mix.n; d++)
		stkd_block_walk_free(source->passes[d].blocks);
	free(source->page);
	free(source);
	return NULL;
}

/* Every pass over a dataset has an order of its own, whichever epoch it is in. */
static void set_pass(struct stkd_source *source, uint32_t d, uint64_t number)
{
	const struct stk_spec *spec = source->plan->spec;
	const struct stkd_mix_dataset *of = &source->plan->mix.datasets[d];
	struct stkd_pass *pass = &source->passes[d];
	uint64_t key = source->epoch * of->passes + number;

	pass->number = number;
	if (pass->blocks)
		stkd_block_walk_begin(pass->blocks, spec->seed, key, d);
	else
		stkd_order_init(&pass->order, spec->order, of->count, spec->seed, key, d);
}

int stkd_source_begin(struct stkd_source *source, uint64_t epoch)
{
	source->epoch = epoch;
	source->position = source->first = source->n = source->next_n = 0;
	for (uint32_t d = 0; d < source->plan->mix.n; d++)
		source->passes[d].number = UINT64_MAX;
	if (!source->page)
		set_pass(source, 0, 0);
	return 0;
}

void stkd_source_seek(struct stkd_source *source, uint64_t position)
{
	source->position = position;
}

static inline uint64_t sample_at(struct stkd_pass *pass, uint64_t i)
{
	return pass->blocks ? stkd_block_walk_at(pass->blocks, i) : stkd_order_at(&pass->order, i);
}

static uint64_t draw(struct stkd_source *source)
{
	uint64_t number, pass;
	uint32_t d = stkd_mix_page_next(source->page, &number);
	const struct stkd_mix_dataset *of = &source->plan->mix.datasets[d];

	pass = number < of->count ? 0 : number / of->count;
	if (pass != source->passes[d].number)
		set_pass(source, d, pass);
	return of->first + sample_at(&source->passes[d], number - pass * of->count);
}

/* Computes up to n ids from a position on and fetches their lengths. Returns how many there are. */
static uint64_t compute(struct stkd_source *source, uint64_t first, uint64_t n, uint64_t *ids)
{
	if (!n)
		return 0;
	if (source->page)
		n = STK_MIN(n,
			    (uint64_t)stkd_mix_page_seek(&source->plan->mix, source->page, first));
	if (!source->page && !source->passes[0].blocks)
		stkd_order_fill(&source->passes[0].order, first, n, ids);
	else
		for (uint64_t i = 0; i < n; i++)
			ids[i] = source->page ? draw(source)
					      : sample_at(&source->passes[0], first + i);
	for (uint64_t i = 0; i < n; i++)
		__builtin_prefetch(&source->plan->lengths.len[ids[i]]);
	return n;
}

void stkd_source_pass(struct stkd_source *source, uint32_t d, uint64_t number, uint64_t i,
		      uint64_t n, uint64_t *ids)
{
	struct stkd_pass *pass = &source->passes[d];
	uint64_t first = source->plan->mix.datasets[d].first;

	if (pass->number != number)
		set_pass(source, d, number);
	if (!pass->blocks)
		stkd_order_fill(&pass->order, i, n, ids);
	for (uint64_t k = 0; k < n; k++) {
		ids[k] = first + (pass->blocks ? stkd_block_walk_at(pass->blocks, i + k) : ids[k]);
		__builtin_prefetch(&source->plan->lengths.len[ids[k]]);
	}
}

static uint64_t ahead(const struct stkd_source *source, uint64_t position)
{
	return STK_MIN(source->end - position, (uint64_t)STKD_SOURCE_AHEAD);
}

/* Going on, the ids were computed one load before, so that their lengths had time to arrive. */
static void load_forward(struct stkd_source *source, uint64_t position)
{
	if (source->next_n && position == source->next_first) {
		memcpy(source->ids, source->next, source->next_n * sizeof(source->ids[0]));
		source->n = source->next_n;
	} else {
		source->n = compute(source, position, ahead(source, position), source->ids);
	}
	source->first = position;
	source->next_first = position + source->n;
	source->next_n = compute(source, source->next_first, ahead(source, source->next_first),
				 source->next);
}

/* Ids of the positions before `end`, as many as a page holds. Returns the first one. */
static uint64_t compute_before(struct stkd_source *source, uint64_t end, uint64_t *ids)
{
	uint64_t n = STK_MIN(end, (uint64_t)STKD_SOURCE_AHEAD), got;

	while ((got = compute(source, end - n, n, ids)) < n)
		n -= got; /* the end is in a page behind that one */
	return end - n;
}

/* The same in the other direction. */
static void load_back(struct stkd_source *source, uint64_t end)
{
	if (source->next_n && source->next_first + source->next_n == end) {
		source->first = source->next_first;
		memcpy(source->ids, source->next, source->next_n * sizeof(source->ids[0]));
	} else {
		source->first = compute_before(source, end, source->ids);
	}
	source->n = end - source->first;
	source->next_first = compute_before(source, source->first, source->next);
	source->next_n = source->first - source->next_first;
}

void stkd_source_load(struct stkd_source *source, uint64_t position, bool back)
{
	if (back)
		load_back(source, position + 1);
	else
		load_forward(source, position);
}
