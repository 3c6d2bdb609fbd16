/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the exchange of items between parts. Work is bounded: rounds are few, and of a part with many
 * items only some are looked at, so that a sample costs the same in any world. The balancer's
 * thread.
 */
#include "daemon/plan/balance.h"

#include <errno.h>
#include <stdlib.h>

#define ROUNDS_MAX     32
#define CANDIDATES_MAX 32   /* items of a part that are looked at */
#define EVEN_ENOUGH    8192 /* costs differ by less than this share of the largest */

struct part {
	uint64_t cost, free; /* capacity that is left */
	uint32_t first;      /* 1 + item; 0: none */
	uint32_t count, count_max;
};

struct stkd_balancer {
	const struct stkd_load *items; /* of the call */
	struct part *parts;
	uint32_t *next;  /* by item: 1 + the next one of its part */
	uint32_t *order; /* of items, then of parts */
	uint32_t *heap;  /* of parts */
	size_t items_room, parts_room;
};

/* An item of a part, and the link that leads to it. */
struct candidate {
	uint32_t item;
	uint32_t *link;
};

int stkd_balancer_new(struct stkd_balancer **ret)
{
	struct stkd_balancer *balancer = calloc(1, sizeof(*balancer));

	if (!balancer)
		return -ENOMEM;
	*ret = balancer;
	return 0;
}

struct stkd_balancer *stkd_balancer_free(struct stkd_balancer *balancer)
{
	if (!balancer)
		return NULL;
	free(balancer->parts);
	free(balancer->next);
	free(balancer->order);
	free(balancer->heap);
	free(balancer);
	return NULL;
}

static int make_room(struct stkd_balancer *b, uint32_t nitems, uint32_t nparts)
{
	size_t most = STK_MAX(nitems, nparts);
	void *grown;

	if (b->items_room < most) {
		grown = reallocarray(b->next, most, sizeof(*b->next));
		if (!grown)
			return -ENOMEM;
		b->next = grown;
		grown = reallocarray(b->order, most, sizeof(*b->order));
		if (!grown)
			return -ENOMEM;
		b->order = grown;
		b->items_room = most;
	}
	if (b->parts_room < nparts) {
		grown = reallocarray(b->parts, nparts, sizeof(*b->parts));
		if (!grown)
			return -ENOMEM;
		b->parts = grown;
		grown = reallocarray(b->heap, nparts, sizeof(*b->heap));
		if (!grown)
			return -ENOMEM;
		b->heap = grown;
		b->parts_room = nparts;
	}
	return 0;
}

static void put(struct stkd_balancer *b, uint32_t item, struct part *part)
{
	b->next[item] = part->first;
	part->first = item + 1;
	part->count++;
	part->cost += b->items[item].cost;
	part->free -= b->items[item].size;
}

/* Heap order: the least cost first among those with room, then the smaller number. */
static bool is_cheaper(const struct part *parts, uint32_t a, uint32_t b)
{
	bool full_a = !parts[a].free, full_b = !parts[b].free;

	if (full_a != full_b)
		return full_b;
	if (parts[a].cost != parts[b].cost)
		return parts[a].cost < parts[b].cost;
	return a < b;
}

static void sift_down(const struct part *parts, uint32_t *heap, uint32_t n)
{
	uint32_t part = heap[0], i = 0;

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && is_cheaper(parts, heap[child + 1], heap[child]))
			child++;
		if (is_cheaper(parts, part, heap[child]))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = part;
}

static int compare_items(const void *x, const void *y, void *data)
{
	const struct stkd_load *items = data;
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	if (items[a].cost != items[b].cost)
		return items[a].cost > items[b].cost ? -1 : 1;
	return a < b ? -1 : a > b;
}

static int compare_parts(const void *x, const void *y, void *data)
{
	const struct part *parts = data;
	uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;

	if (parts[a].cost != parts[b].cost)
		return parts[a].cost > parts[b].cost ? -1 : 1;
	return a < b ? -1 : a > b;
}

/* Costliest first, each to the cheapest part that has room. */
static void deal_out(struct stkd_balancer *b, uint32_t nitems, uint32_t nparts)
{
	for (uint32_t p = 0; p < nparts; p++)
		b->heap[p] = p;
	for (uint32_t i = 0; i < nitems; i++)
		b->order[i] = i;
	qsort_r(b->order, nitems, sizeof(*b->order), compare_items, (void *)b->items);
	for (uint32_t i = 0; i < nitems; i++) {
		put(b, b->order[i], &b->parts[b->heap[0]]);
		sift_down(b->parts, b->heap, nparts);
	}
}

/* Some items of a part, evenly over all of them. */
static uint32_t candidates(struct stkd_balancer *b, struct part *part, struct candidate *ret)
{
	uint32_t stride = (part->count + CANDIDATES_MAX - 1) / CANDIDATES_MAX, n = 0, i = 0;

	for (uint32_t *link = &part->first; *link; link = &b->next[*link - 1])
		if (i++ % stride == 0)
			ret[n++] = (struct candidate){.item = *link - 1, .link = link};
	return n;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
	return a > b ? a - b : b - a;
}

/* What is best to exchange: from the costly part, and from the cheap one (item NO_ITEM: nothing). */
struct deal {
	struct candidate from, to;
	uint64_t gap; /* between the two parts afterwards */
};
#define NO_ITEM UINT32_MAX

static void try_deal(const struct stkd_balancer *b, const struct part *costly,
		     const struct part *cheap, const struct candidate *from,
		     const struct candidate *to, struct deal *best)
{
	const struct stkd_load *a = &b->items[from->item];
	struct stkd_load other = {0};
	uint64_t gap;

	if (to)
		other = b->items[to->item];
	else if (cheap->count == cheap->count_max)
		return;
	if (a->cost <= other.cost || a->size > cheap->free + other.size ||
	    other.size > costly->free + a->size)
		return;
	gap = distance(costly->cost - cheap->cost, 2 * (a->cost - other.cost));
	if (gap >= best->gap)
		return;
	best->gap = gap;
	best->from = *from;
	best->to = to ? *to : (struct candidate){.item = NO_ITEM};
}

static void move(struct stkd_balancer *b, const struct candidate *what, struct part *from,
		 struct part *to)
{
	*what->link = b->next[what->item];
	from->count--;
	from->cost -= b->items[what->item].cost;
	from->free += b->items[what->item].size;
	put(b, what->item, to);
}

/* Makes the best exchange between two parts. False: none helps. */
static bool exchange(struct stkd_balancer *b, struct part *costly, struct part *cheap)
{
	struct candidate from[CANDIDATES_MAX], to[CANDIDATES_MAX];
	uint32_t nfrom = candidates(b, costly, from), nto = candidates(b, cheap, to);
	uint64_t before = costly->cost - cheap->cost;
	struct deal best = {.gap = before};

	for (uint32_t i = 0; i < nfrom; i++) {
		try_deal(b, costly, cheap, &from[i], NULL, &best);
		for (uint32_t j = 0; j < nto; j++)
			try_deal(b, costly, cheap, &from[i], &to[j], &best);
	}
	if (best.gap == before)
		return false;
	/* The one that was put last is first in its part: its link is known. */
	move(b, &best.from, costly, cheap);
	if (best.to.item != NO_ITEM) {
		if (best.to.link == &cheap->first)
			best.to.link = &b->next[best.from.item];
		move(b, &best.to, cheap, costly);
	}
	return true;
}

/* The costliest part deals with the cheapest, the next one with the next, and so on. */
static bool round_of_deals(struct stkd_balancer *b, uint32_t nparts)
{
	uint64_t most, least;
	bool any = false;

	for (uint32_t p = 0; p < nparts; p++)
		b->order[p] = p;
	qsort_r(b->order, nparts, sizeof(*b->order), compare_parts, b->parts);
	most = b->parts[b->order[0]].cost;
	least = b->parts[b->order[nparts - 1]].cost;
	if (most - least <= most / EVEN_ENOUGH)
		return false;
	for (uint32_t i = 0; i < nparts / 2; i++)
		any |= exchange(b, &b->parts[b->order[i]], &b->parts[b->order[nparts - 1 - i]]);
	return any;
}

int stkd_balance(struct stkd_balancer *b, const struct stkd_load *items, uint32_t nitems,
		 const struct stkd_capacity *capacity, uint32_t nparts, uint32_t *part_of)
{
	int r = make_room(b, nitems, nparts);

	if (r < 0)
		return r;
	b->items = items;
	for (uint32_t p = 0; p < nparts; p++)
		b->parts[p] =
			(struct part){.free = capacity[p].size, .count_max = capacity[p].items};
	if (nitems && part_of[0] == STKD_NO_PART)
		deal_out(b, nitems, nparts);
	else
		for (uint32_t i = 0; i < nitems; i++)
			put(b, i, &b->parts[part_of[i]]);
	for (unsigned round = 0; round < ROUNDS_MAX && round_of_deals(b, nparts); round++)
		;
	for (uint32_t p = 0; p < nparts; p++)
		for (uint32_t i = b->parts[p].first; i; i = b->next[i - 1])
			part_of[i - 1] = p;
	return 0;
}
