/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of edges for two lengths. Of every way to share k out over both, the one with the
 * least padding is taken; ties go to the fewer edges of the first length. Any thread.
 */
#include "daemon/plan/pairs.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* One way to choose, and what it costs: the sums of both edges of all samples. */
struct choice {
	uint32_t edges[STK_SPEC_EDGES_MAX], edges2[STK_SPEC_EDGES_MAX];
	size_t n;
	unsigned __int128 padded;
};

struct search {
	const struct stkd_pairs *pairs;
	uint32_t max_length;
	struct stkd_histogram h; /* of one of the lengths; room for all cells */
	struct choice best, now;
};

static uint64_t cell_size(uint32_t longest, uint32_t multiple_of)
{
	uint64_t multiples = ((uint64_t)longest + multiple_of - 1) / multiple_of;

	return multiple_of *
	       STK_MAX((multiples + STKD_PAIRS_CELLS - 1) / STKD_PAIRS_CELLS, UINT64_C(1));
}

int stkd_pairs_init(struct stkd_pairs *pairs, uint32_t longest, uint32_t longest2,
		    uint32_t multiple_of)
{
	uint64_t cell = cell_size(longest, multiple_of), cell2 = cell_size(longest2, multiple_of);

	*pairs = (struct stkd_pairs){.longest = longest, .longest2 = longest2};
	if (cell > UINT32_MAX || stk_round_up(STK_MAX(longest2, 1u), cell2) > UINT32_MAX)
		return -EOVERFLOW;
	pairs->cell = (uint32_t)cell;
	pairs->cell2 = (uint32_t)cell2;
	pairs->n = stkd_pairs_cell(longest, pairs->cell) + 1;
	pairs->n2 = stkd_pairs_cell(longest2, pairs->cell2) + 1;
	pairs->count = calloc((size_t)pairs->n * pairs->n2, sizeof(*pairs->count));
	return pairs->count ? 0 : -ENOMEM;
}

void stkd_pairs_deinit(struct stkd_pairs *pairs)
{
	free(pairs->count);
	pairs->count = NULL;
}

/* The longest length of a cell. */
static uint32_t length_of(uint32_t i, uint32_t cell, uint32_t longest)
{
	return (uint32_t)STK_MIN((uint64_t)(i + 1) * cell, (uint64_t)longest);
}

static void put(struct stkd_histogram *h, uint32_t length, uint64_t count)
{
	if (!count)
		return;
	h->length[h->n] = length;
	h->count[h->n++] = count;
}

static void take_first(struct search *s)
{
	const struct stkd_pairs *p = s->pairs;

	s->h.n = 0;
	for (uint32_t i = 0; i < p->n; i++) {
		uint64_t sum = 0;

		for (uint32_t j = 0; j < p->n2; j++)
			sum += p->count[(size_t)i * p->n2 + j];
		put(&s->h, length_of(i, p->cell, p->longest), sum);
	}
}

/* Of the samples whose first length is in these cells. */
static void take_second(struct search *s, uint32_t from, uint32_t to)
{
	const struct stkd_pairs *p = s->pairs;

	s->h.n = 0;
	for (uint32_t j = 0; j < p->n2; j++) {
		uint64_t sum = 0;

		for (uint32_t i = from; i < to; i++)
			sum += p->count[(size_t)i * p->n2 + j];
		put(&s->h, length_of(j, p->cell2, p->longest2), sum);
	}
}

/* Edges of the second length beside one of the first; the last one's hold every sample. */
static int choose_second(struct search *s, int method, uint32_t k, uint32_t edge, bool last)
{
	struct choice *to = &s->now;
	uint32_t cell2 = s->pairs->cell2;
	uint32_t all = (uint32_t)stk_round_up(STK_MAX(s->pairs->longest2, 1u), cell2);
	uint32_t seconds[STK_SPEC_EDGES_MAX];
	bool apart = last && s->h.length[s->h.n - 1] < s->pairs->longest2 && k > 1;
	size_t n = 0;
	int r = stkd_edges_choose(method, &s->h, k - apart, cell2, 0, seconds, &n);

	if (r < 0)
		return r;
	if (apart && seconds[n - 1] < all)
		seconds[n++] = all;
	if (last)
		seconds[n - 1] = all;
	for (size_t i = 0; i < n; i++) {
		to->edges[to->n] = edge;
		to->edges2[to->n++] = seconds[i];
	}
	return 0;
}

/* Adds up what the samples of some first cells take, whose pairs are those from `group` on. */
static void add_padding(struct search *s, uint32_t from, uint32_t to, size_t group)
{
	struct choice *of = &s->now;

	for (uint32_t j = 0; j < s->pairs->n2; j++) {
		uint64_t sum = 0;

		while (of->edges2[group] < length_of(j, s->pairs->cell2, s->pairs->longest2) &&
		       group + 1 < of->n)
			group++;
		for (uint32_t i = from; i < to; i++)
			sum += s->pairs->count[(size_t)i * s->pairs->n2 + j];
		of->padded +=
			(unsigned __int128)sum * ((uint64_t)of->edges[group] + of->edges2[group]);
	}
}

static int try(struct search *s, int method, int method2, uint32_t k, uint32_t k2)
{
	const struct stkd_pairs *p = s->pairs;
	uint32_t firsts[STK_SPEC_EDGES_MAX], from = 0;
	size_t n = 0;
	int r;

	take_first(s);
	r = stkd_edges_choose(method, &s->h, k, p->cell, s->max_length, firsts, &n);
	s->now.n = 0;
	s->now.padded = 0;
	for (size_t g = 0; r == 0 && g < n; g++) {
		uint32_t to = from;
		size_t group = s->now.n;

		while (to < p->n && length_of(to, p->cell, p->longest) <= firsts[g])
			to++;
		take_second(s, from, to);
		r = choose_second(s, method2, k2, firsts[g], g + 1 == n);
		if (r == 0)
			add_padding(s, from, to, group);
		from = to;
	}
	if (r == 0 && (!s->best.n || s->now.padded < s->best.padded))
		s->best = s->now;
	return r;
}

/* The best of the ways of each method, and of its edges of the first length with better second ones. */
static int try_best(struct search *s, uint32_t k, uint32_t k2)
{
	static const int methods[] = {STK_BUCKET_OPTIMAL, STK_BUCKET_KMEANS, STK_BUCKET_QUANTILE,
				      STK_BUCKET_UNIFORM};
	int r = 0;

	for (size_t m = 0; r == 0 && m < STK_ARRAY_SIZE(methods); m++) {
		r = try(s, methods[m], STK_BUCKET_OPTIMAL, k, k2);
		if (r == 0 && methods[m] != STK_BUCKET_OPTIMAL)
			r = try(s, methods[m], methods[m], k, k2);
	}
	return r;
}

int stkd_pairs_edges(const struct stkd_pairs *pairs, int method, uint32_t k, uint32_t max_length,
		     uint32_t edges[STK_SPEC_EDGES_MAX], uint32_t edges2[STK_SPEC_EDGES_MAX],
		     size_t *ret_n)
{
	_cleanup_(stk_freep) struct search *s = calloc(1, sizeof(*s));
	size_t cells = STK_MAX(pairs->n, pairs->n2);
	int r = s ? 0 : -ENOMEM;

	if (r < 0)
		return r;
	s->pairs = pairs;
	s->max_length = max_length;
	s->h.length = calloc(cells, sizeof(*s->h.length));
	s->h.count = calloc(cells, sizeof(*s->h.count));
	if (!s->h.length || !s->h.count)
		r = -ENOMEM;
	for (uint32_t first = 1; r == 0 && first <= k; first *= 2)
		r = method == STK_BUCKET_OPTIMAL ? try_best(s, first, k / first)
						 : try(s, method, method, first, k / first);
	stkd_histogram_deinit(&s->h);
	if (r < 0)
		return r;
	*ret_n = s->best.n;
	memcpy(edges, s->best.edges, s->best.n * sizeof(*edges));
	memcpy(edges2, s->best.edges2, s->best.n * sizeof(*edges2));
	return 0;
}
