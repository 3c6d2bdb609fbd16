/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the packing of one window: sorts by length with a stable radix sort, fills rows, puts them
 * into the order of arrival. All arrays grow with the largest window. The packer's thread.
 */
#include "daemon/plan/pack.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/fit.h"

#define ROOM_MIN   ((size_t)64)
#define LOOKS      16   /* lengths that are tried to fill a row */
#define LOOK_MAX   4096 /* segments of a window that is packed again, looking ahead */
#define WIDE_MIN   128  /* rows of a window that may be one more for the sake of evenness */
#define DIGIT_BITS 12
#define DIGITS     (1u << DIGIT_BITS)

struct bin {
	uint32_t free, count;
	uint32_t last; /* segment that arrived last */
};

struct stkd_packer {
	struct stkd_pack_limits limits;
	struct stkd_fit fit;
	/* The window. Arrays have `room` elements. */
	size_t n, room;
	struct stk_segment *segments;
	uint32_t *need;    /* tokens that each takes, its alignment included */
	uint32_t *order;   /* longest first */
	uint32_t *scratch; /* of the sort, of the index, of the heap, of the rows' places */
	uint32_t *bin_of;  /* by segment */
	struct bin *bins;  /* nbins */
	uint32_t nbins;
};

int stkd_packer_new(const struct stkd_pack_limits *limits, struct stkd_packer **ret)
{
	struct stkd_packer *packer = calloc(1, sizeof(*packer));

	assert(limits->align && limits->capacity % limits->align == 0);
	if (!packer)
		return -ENOMEM;
	packer->limits = *limits;
	if (!limits->segments_max)
		packer->limits.segments_max = UINT32_MAX;
	if (stkd_fit_init(&packer->fit, limits->capacity) < 0) {
		stkd_packer_free(packer);
		return -ENOMEM;
	}
	*ret = packer;
	return 0;
}

struct stkd_packer *stkd_packer_free(struct stkd_packer *packer)
{
	if (!packer)
		return NULL;
	stkd_fit_deinit(&packer->fit);
	free(packer->segments);
	free(packer->need);
	free(packer->order);
	free(packer->scratch);
	free(packer->bin_of);
	free(packer->bins);
	free(packer);
	return NULL;
}

static int grow_one(void **array, size_t room, size_t size)
{
	void *grown = reallocarray(*array, room, size);

	if (!grown)
		return -ENOMEM;
	*array = grown;
	return 0;
}

static int grow(struct stkd_packer *p)
{
	size_t room = STK_MAX(2 * p->room, ROOM_MIN);

	if (room > UINT32_MAX || grow_one((void **)&p->segments, room, sizeof(*p->segments)) < 0 ||
	    grow_one((void **)&p->need, room, sizeof(*p->need)) < 0 ||
	    grow_one((void **)&p->order, room, sizeof(*p->order)) < 0 ||
	    grow_one((void **)&p->scratch, room, sizeof(*p->scratch)) < 0 ||
	    grow_one((void **)&p->bin_of, room, sizeof(*p->bin_of)) < 0 ||
	    grow_one((void **)&p->bins, room, sizeof(*p->bins)) < 0)
		return -ENOMEM;
	p->room = room;
	return 0;
}

int stkd_packer_add(struct stkd_packer *p, const struct stk_segment *segment)
{
	assert(segment->length && segment->length <= p->limits.capacity);
	if (p->n == p->room && grow(p) < 0)
		return -ENOMEM;
	p->segments[p->n] = *segment;
	p->need[p->n++] = (uint32_t)stk_round_up(segment->length, p->limits.align);
	return 0;
}

void stkd_packer_clear(struct stkd_packer *p)
{
	p->n = 0;
	p->nbins = 0;
}

/* One digit, largest first; equal ones keep their order. */
static void sort_digit(const uint32_t *need, const uint32_t *from, uint32_t *to, size_t n,
		       unsigned shift)
{
	uint32_t at[DIGITS] = {0}, sum = 0;

	for (size_t i = 0; i < n; i++)
		at[~(need[i] >> shift) % DIGITS]++;
	for (unsigned d = 0; d < DIGITS; d++) {
		uint32_t count = at[d];

		at[d] = sum;
		sum += count;
	}
	for (size_t i = 0; i < n; i++) {
		uint32_t k = from ? from[i] : (uint32_t)i;

		to[at[~(need[k] >> shift) % DIGITS]++] = k;
	}
}

static void sort_window(struct stkd_packer *p)
{
	static_assert(STKD_FIT_MAX <= UINT32_C(1) << 2 * DIGIT_BITS, "two digits sort all");
	if (p->limits.capacity < DIGITS) {
		sort_digit(p->need, NULL, p->order, p->n, 0);
		return;
	}
	sort_digit(p->need, NULL, p->scratch, p->n, 0);
	sort_digit(p->need, p->scratch, p->order, p->n, DIGIT_BITS);
}

static void best_fit(struct stkd_packer *p)
{
	const struct stkd_pack_limits *limits = &p->limits;
	uint32_t least = p->n ? p->need[p->order[p->n - 1]] : 0;

	p->nbins = 0;
	for (size_t i = 0; i < p->n; i++) {
		uint32_t k = p->order[i], need = p->need[k], free;
		uint32_t b = stkd_fit_take(&p->fit, p->scratch, need, &free);

		if (b == STKD_FIT_NONE) {
			b = p->nbins++;
			free = limits->capacity;
			p->bins[b].count = 0;
		}
		p->bin_of[k] = b;
		p->bins[b].free = free - need;
		p->bins[b].count++;
		/* A row that takes nothing more is not looked at again. */
		if (free - need >= least && p->bins[b].count < limits->segments_max)
			stkd_fit_put(&p->fit, p->scratch, b, free - need);
	}
	for (uint32_t b = 0; b < p->nbins; b++)
		stkd_fit_forget(&p->fit, p->bins[b].free);
}

/* Does row a come before row b: more free, then the smaller number. */
static bool is_emptier(const struct stkd_packer *p, uint32_t a, uint32_t b)
{
	if (p->bins[a].free != p->bins[b].free)
		return p->bins[a].free > p->bins[b].free;
	return a < b;
}

/* The heap's root has changed: it goes down to its place. */
static void sift_down(const struct stkd_packer *p, uint32_t *heap, uint32_t n)
{
	uint32_t b = heap[0], i = 0;

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && is_emptier(p, heap[child + 1], heap[child]))
			child++;
		if (is_emptier(p, b, heap[child]))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = b;
}

/* Longest first, each into the emptiest of nbins rows. False: they do not take it all. */
static bool spread_over(struct stkd_packer *p, uint32_t nbins)
{
	uint32_t *heap = p->scratch;

	p->nbins = nbins;
	for (uint32_t b = 0; b < nbins; b++) {
		p->bins[b] = (struct bin){.free = p->limits.capacity};
		heap[b] = b;
	}
	for (size_t i = 0; i < p->n; i++) {
		uint32_t k = p->order[i];
		struct bin *bin = &p->bins[heap[0]];

		if (bin->free < p->need[k] || bin->count == p->limits.segments_max)
			return false;
		p->bin_of[k] = heap[0];
		bin->free -= p->need[k];
		bin->count++;
		sift_down(p, heap, nbins);
	}
	return true;
}

/* Best fit, then segments of rows that have others move out until there are so many rows. */
static void best_fit_over(struct stkd_packer *p, uint32_t nbins)
{
	best_fit(p);
	for (size_t i = p->n; i-- > 0 && p->nbins < nbins;) {
		uint32_t k = p->order[i];

		if (p->bins[p->bin_of[k]].count == 1)
			continue;
		p->bins[p->bin_of[k]].count--;
		p->bin_of[k] = p->nbins;
		p->bins[p->nbins++].count = 1;
	}
}

/*
 * Of the lengths that fit into `gap`, the one that fills it best, alone or with another one. Keys of
 * the index are what a segment leaves of a whole row. STKD_FIT_NONE: none fits.
 */
static uint32_t find_filler(const struct stkd_packer *p, uint32_t gap, bool pairs)
{
	uint32_t capacity = p->limits.capacity, most = 0;
	uint32_t key = stkd_fit_find(&p->fit, capacity - gap), best = key;

	for (int i = 0; pairs && i < LOOKS && key != STKD_FIT_NONE && most < gap; i++) {
		uint32_t sum = capacity - key, from = capacity - (gap - sum), second;

		/* The other one is as long where there are two, or shorter. */
		from = STK_MAX(from, key + !p->scratch[p->fit.newest[key] - 1]);
		second = stkd_fit_find(&p->fit, from);
		if (second != STKD_FIT_NONE)
			sum += capacity - second;
		if (sum > most) {
			best = key;
			most = sum;
		}
		key = stkd_fit_find(&p->fit, key + 1);
	}
	return best;
}

/* One row: the longest segment that is left, then what fills it best. */
static void fill_row(struct stkd_packer *p, uint32_t b)
{
	uint32_t capacity = p->limits.capacity, key = 0;
	struct bin *bin = &p->bins[b];

	*bin = (struct bin){.free = capacity};
	do {
		uint32_t k = stkd_fit_take(&p->fit, p->scratch, key, &key);

		p->bin_of[k] = b;
		bin->free -= capacity - key;
		bin->count++;
		if (bin->count == p->limits.segments_max)
			break;
		key = find_filler(p, bin->free, bin->count + 1 < p->limits.segments_max);
	} while (key != STKD_FIT_NONE);
}

/* Row by row into fewer than nbins rows. False: it takes as many. */
static bool fill_rows(struct stkd_packer *p, uint32_t nbins)
{
	uint32_t capacity = p->limits.capacity;
	bool done;

	/* Backwards, so that of equal ones the first to arrive is the newest. */
	for (size_t i = p->n; i-- > 0;)
		stkd_fit_put(&p->fit, p->scratch, p->order[i], capacity - p->need[p->order[i]]);
	for (p->nbins = 0; p->nbins + 1 < nbins; p->nbins++) {
		if (stkd_fit_find(&p->fit, 0) == STKD_FIT_NONE)
			break;
		fill_row(p, p->nbins);
	}
	done = stkd_fit_find(&p->fit, 0) == STKD_FIT_NONE;
	for (size_t i = 0; !done && i < p->n; i++)
		stkd_fit_forget(&p->fit, capacity - p->need[i]);
	return done;
}

/* No packing takes fewer rows: their tokens fill as many. */
static uint64_t least_rows(const struct stkd_packer *p)
{
	uint64_t tokens = 0;

	for (size_t i = 0; i < p->n; i++)
		tokens += p->need[i];
	return (tokens + p->limits.capacity - 1) / p->limits.capacity;
}

int stkd_packer_rows(struct stkd_packer *p, enum stkd_spread spread, uint64_t already,
		     uint64_t multiple, uint32_t *ret_rows)
{
	uint64_t rows, wide;

	sort_window(p);
	best_fit(p);
	rows = p->nbins;
	/* Of more segments best fit loses less, and looking ahead takes its time. */
	if (spread == STKD_SPREAD_NONE && p->n <= LOOK_MAX && rows > least_rows(p) &&
	    !fill_rows(p, (uint32_t)rows))
		best_fit(p);
	if (spread != STKD_SPREAD_NONE && rows) {
		/* Every row gets a segment. */
		wide = rows + (multiple - (already + rows) % multiple) % multiple;
		wide = STK_MIN(wide, (uint64_t)p->n);
		if (!spread_over(p, (uint32_t)wide) &&
		    (spread != STKD_SPREAD_WIDE || wide == p->n || wide < WIDE_MIN ||
		     !spread_over(p, (uint32_t)wide + 1)))
			best_fit_over(p, (uint32_t)wide);
	}
	*ret_rows = p->nbins;
	return 0;
}

/* Where each row begins, in the order of the rows' last arrivals. */
static void place_rows(struct stkd_packer *p, uint64_t window, uint32_t *place,
		       struct stkd_rows *to)
{
	uint32_t end = (uint32_t)to->nsegments, row = 0;

	for (size_t k = 0; k < p->n; k++)
		p->bins[p->bin_of[k]].last = (uint32_t)k;
	for (size_t k = 0; k < p->n; k++) {
		uint32_t b = p->bin_of[k];

		if (p->bins[b].last != k)
			continue;
		place[b] = end;
		end += p->bins[b].count;
		to->nsegments = end;
		stkd_rows_close(to, window, row++);
	}
}

int stkd_packer_take(struct stkd_packer *p, uint64_t window, struct stkd_rows *to)
{
	uint32_t *place = p->scratch;

	if (stkd_rows_reserve(to, p->nbins, p->n) < 0)
		return -ENOMEM;
	place_rows(p, window, place, to);
	for (size_t k = 0; k < p->n; k++)
		to->segments[place[p->bin_of[k]]++] = p->segments[k];
	stkd_packer_clear(p);
	return 0;
}
