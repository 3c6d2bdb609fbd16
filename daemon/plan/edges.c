/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of bucket edges: all ways work on the distinct lengths, rounded. No state; any
 * thread.
 */
#include "daemon/plan/edges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec.h"

#define ROUNDS_MAX 64 /* of Lloyd's, which nearly always stand still after a few */

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

/* What all ways start from. */
struct lengths {
	uint64_t *edge; /* m distinct rounded lengths */
	uint64_t *upto; /* samples in the first i of them */
	size_t m;
	size_t groups; /* asked for, but no more than there are edges */
};

static void lengths_deinit(struct lengths *l)
{
	free(l->edge);
	free(l->upto);
}

static int lengths_init(struct lengths *l, const struct stkd_histogram *h, uint32_t k,
			uint32_t multiple_of, uint32_t max_length)
{
	uint64_t most;

	l->edge = calloc(h->n, sizeof(*l->edge));
	l->upto = calloc(h->n + 1, sizeof(*l->upto));
	if (!l->edge || !l->upto)
		return -ENOMEM;
	l->m = rounded(h, multiple_of, max_length, l->edge, l->upto);
	/* Each cost is at most this one, so nothing in the search wraps. */
	if (l->edge[l->m - 1] > UINT32_MAX ||
	    stk_mul_overflow(l->edge[l->m - 1], l->upto[l->m], &most))
		return -EOVERFLOW;
	l->groups = STK_MIN(STK_MIN((size_t)k, l->m), (size_t)STK_SPEC_EDGES_MAX);
	return 0;
}

int stkd_edges_optimal(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		       uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	_cleanup_(lengths_deinit) struct lengths l = {0};
	size_t chosen[STK_SPEC_EDGES_MAX];
	int r = lengths_init(&l, histogram, k, multiple_of, max_length);

	if (r == 0)
		r = partition(l.edge, l.upto, l.m, l.groups, chosen);
	if (r < 0)
		return r;
	for (size_t i = 0; i < l.groups; i++)
		ret_edges[i] = (uint32_t)l.edge[chosen[i]];
	*ret_n = l.groups;
	return 0;
}

/* The index after which @share of @of samples are, at least. */
static size_t quantile(const struct lengths *l, uint64_t share, uint64_t of)
{
	unsigned __int128 want = (unsigned __int128)l->upto[l->m] * share;
	size_t i = 0;

	while (i + 1 < l->m && (unsigned __int128)l->upto[i + 1] * of < want)
		i++;
	return i;
}

int stkd_edges_quantile(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
			uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	_cleanup_(lengths_deinit) struct lengths l = {0};
	int r = lengths_init(&l, histogram, k, multiple_of, max_length);

	if (r < 0)
		return r;
	*ret_n = 0;
	for (uint64_t g = 1; g <= l.groups; g++) {
		uint32_t edge =
			(uint32_t)l.edge[g < l.groups ? quantile(&l, g, l.groups) : l.m - 1];

		if (!*ret_n || ret_edges[*ret_n - 1] != edge)
			ret_edges[(*ret_n)++] = edge;
	}
	return 0;
}

/* Samples that are as wide as @edge or less. */
static uint64_t samples_to(const struct lengths *l, uint64_t edge)
{
	size_t low = 0, high = l->m;

	while (low < high) {
		size_t mid = low + (high - low) / 2;

		if (l->edge[mid] <= edge)
			low = mid + 1;
		else
			high = mid;
	}
	return l->upto[low];
}

int stkd_edges_uniform(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		       uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	_cleanup_(lengths_deinit) struct lengths l = {0};
	int r = lengths_init(&l, histogram, k, multiple_of, max_length);
	uint64_t last, below = 0;

	if (r < 0)
		return r;
	*ret_n = 0;
	last = l.edge[l.m - 1];
	k = STK_MIN(k, STK_SPEC_EDGES_MAX);
	for (uint64_t g = 1; g <= k; g++) {
		uint64_t edge = stk_round_up((last * g + k - 1) / k, multiple_of);
		uint64_t to;

		edge = STK_MIN(edge, last);
		to = samples_to(&l, edge);
		if (to == below)
			continue;
		below = to;
		ret_edges[(*ret_n)++] = (uint32_t)edge;
	}
	return 0;
}

/* Clusters are the edges (last[g - 1], last[g]]. Their means, in edge units; true when they moved. */
static bool find_means(const struct lengths *l, const unsigned __int128 *sums, const size_t *last,
		       uint64_t *mean)
{
	bool moved = false;
	size_t from = 0;

	for (size_t g = 0; g < l->groups; g++) {
		size_t end = last[g] + 1;
		uint64_t n = l->upto[end] - l->upto[from];
		uint64_t m = n ? (uint64_t)((sums[end] - sums[from]) / n) : mean[g];

		moved |= m != mean[g];
		mean[g] = m;
		from = end;
	}
	return moved;
}

/* To the first mean than to the second, which is not smaller? */
static bool nearer(uint64_t edge, uint64_t first, uint64_t second)
{
	return edge <= first || (edge <= second && edge - first <= second - edge);
}

/* Each edge goes to the nearest mean, half-way to the smaller; each cluster keeps one edge. */
static void assign(const struct lengths *l, const uint64_t *mean, size_t *last)
{
	size_t i = 0;

	for (size_t g = 0; g + 1 < l->groups; g++) {
		size_t most = l->m - (l->groups - g); /* leaves one for each that follows */

		while (i < most && nearer(l->edge[i + 1], mean[g], mean[g + 1]))
			i++;
		last[g] = i++;
	}
	last[l->groups - 1] = l->m - 1;
}

int stkd_edges_kmeans(const struct stkd_histogram *histogram, uint32_t k, uint32_t multiple_of,
		      uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	_cleanup_(lengths_deinit) struct lengths l = {0};
	_cleanup_(stk_freep) unsigned __int128 *sums = NULL;
	uint64_t mean[STK_SPEC_EDGES_MAX] = {0};
	size_t last[STK_SPEC_EDGES_MAX];
	int r = lengths_init(&l, histogram, k, multiple_of, max_length);

	if (r < 0)
		return r;
	sums = calloc(l.m + 1, sizeof(*sums));
	if (!sums)
		return -ENOMEM;
	for (size_t i = 0; i < l.m; i++)
		sums[i + 1] = sums[i] + (unsigned __int128)l.edge[i] * (l.upto[i + 1] - l.upto[i]);
	for (size_t g = 0; g < l.groups; g++) {
		size_t at = quantile(&l, g + 1, l.groups), least = g ? last[g - 1] + 1 : 0;

		last[g] = STK_MIN(STK_MAX(at, least), l.m - (l.groups - g));
	}
	last[l.groups - 1] = l.m - 1;
	for (int round = 0; round < ROUNDS_MAX && find_means(&l, sums, last, mean); round++)
		assign(&l, mean, last);
	for (size_t g = 0; g < l.groups; g++)
		ret_edges[g] = (uint32_t)l.edge[last[g]];
	*ret_n = l.groups;
	return 0;
}

static int (*const methods[])(const struct stkd_histogram *, uint32_t, uint32_t, uint32_t,
			      uint32_t *, size_t *) = {
	[STK_BUCKET_OPTIMAL] = stkd_edges_optimal,
	[STK_BUCKET_KMEANS] = stkd_edges_kmeans,
	[STK_BUCKET_QUANTILE] = stkd_edges_quantile,
	[STK_BUCKET_UNIFORM] = stkd_edges_uniform,
};

int stkd_edges_choose(int method, const struct stkd_histogram *histogram, uint32_t k,
		      uint32_t multiple_of, uint32_t max_length, uint32_t *ret_edges, size_t *ret_n)
{
	return methods[method](histogram, k, multiple_of, max_length, ret_edges, ret_n);
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
