/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the histogram of lengths and the choice of bucket edges. Memory grows with the number of
 * distinct lengths, not of samples. No state; any thread.
 */
#include "daemon/plan/edges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec.h"

#define DIRECT      UINT32_C(65536) /* lengths below are counted in a table */
#define PENDING_MIN ((size_t)65536) /* longer ones are gathered, sorted and merged */

/* Lengths from DIRECT on, while they are counted. */
struct gather {
	uint32_t *pending;
	size_t npending, room;
	struct stkd_histogram *to;
};

static int compare_u32(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

/* Sorts pending in place into runs; returns their number and leaves each run's count in @counts. */
static size_t squeeze(uint32_t *length, size_t n, uint64_t *counts)
{
	size_t runs = 0;

	qsort(length, n, sizeof(*length), compare_u32);
	for (size_t i = 0; i < n; i++) {
		if (runs && length[runs - 1] == length[i]) {
			counts[runs - 1]++;
			continue;
		}
		length[runs] = length[i];
		counts[runs++] = 1;
	}
	return runs;
}

/* One sorted list of two; returns the number of distinct lengths. */
static size_t merge(const struct stkd_histogram *a, const uint32_t *length, const uint64_t *count,
		    size_t n, uint32_t *ret_length, uint64_t *ret_count)
{
	size_t i = 0, j = 0, out = 0;

	while (i < a->n || j < n) {
		bool take_a = i < a->n && (j == n || a->length[i] <= length[j]);
		bool take_b = j < n && (i == a->n || length[j] <= a->length[i]);

		ret_length[out] = take_a ? a->length[i] : length[j];
		ret_count[out++] = (take_a ? a->count[i] : 0) + (take_b ? count[j] : 0);
		i += take_a;
		j += take_b;
	}
	return out;
}

static int gather_flush(struct gather *g)
{
	_cleanup_(stk_freep) uint64_t *counts = NULL;
	_cleanup_(stk_freep) uint32_t *length = NULL;
	_cleanup_(stk_freep) uint64_t *count = NULL;
	size_t runs, room;

	if (!g->npending)
		return 0;
	counts = malloc(g->npending * sizeof(*counts));
	if (!counts)
		return -ENOMEM;
	runs = squeeze(g->pending, g->npending, counts);
	room = g->to->n + runs;
	length = calloc(room, sizeof(*length));
	count = calloc(room, sizeof(*count));
	if (!length || !count)
		return -ENOMEM;
	room = merge(g->to, g->pending, counts, runs, length, count);
	stkd_histogram_deinit(g->to);
	*g->to = (struct stkd_histogram){STK_STEAL(length), STK_STEAL(count), room};
	g->npending = 0;
	return 0;
}

static int gather_add(struct gather *g, uint32_t length)
{
	if (g->npending == g->room) {
		size_t room;
		uint32_t *grown;
		int r = gather_flush(g);

		if (r < 0)
			return r;
		/* As many as there are distinct ones, so that all merges together stay linear. */
		room = STK_MAX(PENDING_MIN, g->to->n);
		grown = reallocarray(g->pending, room, sizeof(*grown));
		if (!grown)
			return -ENOMEM;
		g->pending = grown;
		g->room = room;
	}
	g->pending[g->npending++] = length;
	return 0;
}

static int join(const uint64_t *direct, const struct stkd_histogram *longer,
		struct stkd_histogram *ret)
{
	size_t n = longer->n;
	struct stkd_histogram all = {0};

	for (uint32_t v = 0; v < DIRECT; v++)
		n += direct[v] > 0;
	all.length = calloc(n + 1, sizeof(*all.length));
	all.count = calloc(n + 1, sizeof(*all.count));
	if (!all.length || !all.count) {
		stkd_histogram_deinit(&all);
		return -ENOMEM;
	}
	for (uint32_t v = 0; v < DIRECT; v++) {
		if (!direct[v])
			continue;
		all.length[all.n] = v;
		all.count[all.n++] = direct[v];
	}
	for (size_t i = 0; i < longer->n; i++) {
		all.length[all.n] = longer->length[i];
		all.count[all.n++] = longer->count[i];
	}
	*ret = all;
	return 0;
}

int stkd_histogram_new(const uint32_t *len, uint64_t count, struct stkd_histogram *ret)
{
	_cleanup_(stk_freep) uint64_t *direct = calloc(DIRECT, sizeof(*direct));
	struct stkd_histogram longer = {0};
	struct gather g = {.to = &longer};
	int r = direct ? 0 : -ENOMEM;

	for (uint64_t i = 0; i < count && r == 0; i++) {
		if (len[i] < DIRECT)
			direct[len[i]]++;
		else
			r = gather_add(&g, len[i]);
	}
	if (r == 0)
		r = gather_flush(&g);
	if (r == 0)
		r = join(direct, &longer, ret);
	free(g.pending);
	stkd_histogram_deinit(&longer);
	return r;
}

void stkd_histogram_deinit(struct stkd_histogram *histogram)
{
	free(histogram->length);
	free(histogram->count);
	*histogram = (struct stkd_histogram){0};
}

uint64_t stkd_histogram_cut(struct stkd_histogram *h, uint32_t limit, bool keep)
{
	uint64_t cut = 0;

	while (h->n && h->length[h->n - 1] > limit)
		cut += h->count[--h->n];
	if (!keep || !cut)
		return cut;
	if (!h->n || h->length[h->n - 1] != limit) {
		h->length[h->n] = limit;
		h->count[h->n++] = 0;
	}
	h->count[h->n - 1] += cut;
	return cut;
}

/*
 * The dynamic program. edge[i] are the m distinct rounded lengths, upto[i] counts the samples in
 * the first i of them. A group of edges (i, j] pads to edge[j], so it costs edge[j] * (upto[j+1] -
 * upto[i+1]): a Monge matrix, whose leftmost best splits ascend, so each layer is found by halving.
 */
struct search {
	const uint64_t *edge;
	const uint64_t *upto;
	uint64_t *before,
		*now;    /* least cost of the first i + 1 edges in layers - 1 and layers groups */
	uint32_t *split; /* of this layer: the last edge of the groups before */
};

/* Finds now[lo..hi]; the best splits are known to lie in [from, to]. */
static void layer(const struct search *s, size_t lo, size_t hi, size_t from, size_t to)
{
	size_t mid = lo + (hi - lo) / 2, end = STK_MIN(to, mid - 1), best = from;
	uint64_t least = UINT64_MAX;

	for (size_t i = from; i <= end; i++) {
		uint64_t cost = s->before[i] + s->edge[mid] * (s->upto[mid + 1] - s->upto[i + 1]);

		/* Strictly less: a tie keeps the smaller edge. */
		if (cost < least) {
			least = cost;
			best = i;
		}
	}
	s->now[mid] = least;
	s->split[mid] = (uint32_t)best;
	if (mid > lo)
		layer(s, lo, mid - 1, from, best);
	if (mid < hi)
		layer(s, mid + 1, hi, best, to);
}

/* Least padding for exactly k <= m groups; writes the index of each group's last edge. */
static int partition(const uint64_t *edge, const uint64_t *upto, size_t m, size_t k, size_t *ret)
{
	_cleanup_(stk_freep) uint64_t *cost = calloc(2 * m, sizeof(*cost));
	_cleanup_(stk_freep) uint32_t *splits = calloc(k * m, sizeof(*splits));
	struct search s = {.edge = edge, .upto = upto};
	size_t last = m - 1;

	if (!cost || !splits)
		return -ENOMEM;
	s.before = cost;
	s.now = cost + m;
	for (size_t i = 0; i < m; i++)
		s.before[i] = edge[i] * upto[i + 1];
	for (size_t g = 1; g < k; g++) {
		uint64_t *swap = s.before;

		s.split = splits + g * m;
		layer(&s, g, m - 1, g - 1, m - 2);
		s.before = s.now;
		s.now = swap;
	}
	for (size_t g = k; g-- > 0;) {
		ret[g] = last;
		if (g)
			last = splits[g * m + last];
	}
	return 0;
}

/* The distinct edges that the lengths round up to, and the samples up to each. Returns how many. */
static size_t rounded(const struct stkd_histogram *h, uint32_t multiple_of, uint32_t max_length,
		      uint64_t *edge, uint64_t *upto)
{
	size_t m = 0;

	upto[0] = 0;
	for (size_t i = 0; i < h->n; i++) {
		uint64_t e = stk_round_up(STK_MAX(h->length[i], 1u), multiple_of);

		/* Only where max_length is no multiple; a sample of that length still fits. */
		if (max_length && e > max_length && h->length[i] <= max_length)
			e = max_length;
		if (!m || edge[m - 1] != e) {
			edge[m++] = e;
			upto[m] = upto[m - 1];
		}
		upto[m] += h->count[i];
	}
	return m;
}

int stkd_edges_optimal(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		       uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	_cleanup_(stk_freep) uint64_t *edge = calloc(histogram->n, sizeof(*edge));
	_cleanup_(stk_freep) uint64_t *upto = calloc(histogram->n + 1, sizeof(*upto));
	size_t chosen[STK_SPEC_EDGES_MAX];
	uint64_t most;
	size_t m, groups;
	int r;

	if (!edge || !upto)
		return -ENOMEM;
	m = rounded(histogram, multiple_of, max_length, edge, upto);
	/* Each cost is at most this one, so nothing in the search wraps. */
	if (edge[m - 1] > UINT32_MAX || stk_mul_overflow(edge[m - 1], upto[m], &most))
		return -EOVERFLOW;
	groups = STK_MIN(STK_MIN((size_t)k, m), STK_ARRAY_SIZE(chosen));
	r = partition(edge, upto, m, groups, chosen);
	if (r < 0)
		return r;
	for (size_t i = 0; i < groups; i++)
		ret_edges[i] = (uint32_t)edge[chosen[i]];
	*ret_n = groups;
	return 0;
}

uint64_t stkd_edges_padded(const struct stkd_histogram *histogram, const uint32_t *edges, size_t n)
{
	uint64_t padded = 0;
	size_t b = 0;

	for (size_t i = 0; i < histogram->n; i++) {
		while (b + 1 < n && histogram->length[i] > edges[b])
			b++;
		padded += edges[b] * histogram->count[i];
	}
	return padded;
}
