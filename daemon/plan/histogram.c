/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the histogram of lengths. Memory grows with the number of distinct lengths, not of samples.
 * No state; any thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/edges.h"

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

#define CHUNK ((size_t)1024)

int stkd_histogram_read(stkd_lengths_fn read, void *context, struct stkd_histogram *ret)
{
	_cleanup_(stk_freep) uint64_t *direct = calloc(DIRECT, sizeof(*direct));
	struct stkd_histogram longer = {0};
	struct gather g = {.to = &longer};
	uint32_t chunk[CHUNK];
	int r = direct ? 0 : -ENOMEM;

	while (r == 0) {
		size_t n = read(context, chunk, CHUNK);

		if (!n)
			break;
		for (size_t i = 0; i < n && r == 0; i++) {
			if (chunk[i] < DIRECT)
				direct[chunk[i]]++;
			else
				r = gather_add(&g, chunk[i]);
		}
	}
	if (r == 0)
		r = gather_flush(&g);
	if (r == 0)
		r = join(direct, &longer, ret);
	free(g.pending);
	stkd_histogram_deinit(&longer);
	return r;
}

struct array {
	const uint32_t *len;
	uint64_t count;
};

static size_t read_array(void *context, uint32_t *out, size_t room)
{
	struct array *array = context;
	size_t n = (size_t)STK_MIN((uint64_t)room, array->count);

	if (n)
		memcpy(out, array->len, n * sizeof(*out));
	array->len += n;
	array->count -= n;
	return n;
}

int stkd_histogram_new(const uint32_t *len, uint64_t count, struct stkd_histogram *ret)
{
	struct array array = {len, count};

	return stkd_histogram_read(read_array, &array, ret);
}

int stkd_histogram_add(struct stkd_histogram *to, const struct stkd_histogram *h, uint64_t times)
{
	size_t room = to->n + h->n + 1; /* one more, for stkd_histogram_cut() */
	struct stkd_histogram all = {calloc(room, sizeof(*all.length)),
				     calloc(room, sizeof(*all.count)), 0};
	_cleanup_(stk_freep) uint64_t *count = calloc(h->n + 1, sizeof(*count));

	if (!all.length || !all.count || !count) {
		stkd_histogram_deinit(&all);
		return -ENOMEM;
	}
	for (size_t i = 0; i < h->n; i++)
		count[i] = h->count[i] * times;
	all.n = merge(to, h->length, count, h->n, all.length, all.count);
	stkd_histogram_deinit(to);
	*to = all;
	return 0;
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
