/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the exchange of items between parts. Work is bounded: rounds are few, of a part with many
 * items only some are looked at, sorting takes time with their number, and what a part holds lies
 * together. The balancer's thread.
 */
#include "daemon/plan/balance.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS_MAX     32
#define CANDIDATES_MAX 32   /* items of a part that are looked at */
#define EVEN_ENOUGH    8192 /* costs differ by less than this share of the largest */
#define FEW            32   /* are sorted by insertion */
#define DIGIT_BITS_MAX 11
#define AHEAD          8 /* deals */

struct part {
	uint64_t cost, free; /* capacity that is left */
	uint32_t first;      /* 1 + item, then 1 + node; 0: none */
	uint32_t count, count_max;
	uint32_t vain; /* 1 + the part that it last had no deal with, as both are; 0: none */
};

/* An item once it has a part; those of a part lie side by side, but for what moved since. */
struct node {
	struct stkd_load load;
	uint32_t next; /* 1 + the next one of its part */
	uint32_t item;
};

/* What is sorted by cost. */
struct key {
	uint64_t cost;
	uint32_t of;
};

struct stkd_balancer {
	const struct stkd_load *items; /* of the call */
	struct part *parts;
	uint32_t *next; /* by item: 1 + the next one of its part */
	struct node *nodes;
	struct key *keys, *scratch; /* of items, then of parts */
	struct key *heap;           /* of parts; one that is full costs UINT64_MAX */
	size_t items_room, parts_room;
};

/* A node of a part, and the link that leads to it. */
struct candidate {
	struct stkd_load load;
	uint32_t node;
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
	free(balancer->nodes);
	free(balancer->keys);
	free(balancer->scratch);
	free(balancer->heap);
	free(balancer);
	return NULL;
}

static int grow(void **array, size_t room, size_t size)
{
	void *grown = reallocarray(*array, room, size);

	if (!grown)
		return -ENOMEM;
	*array = grown;
	return 0;
}

static int make_room(struct stkd_balancer *b, uint32_t nitems, uint32_t nparts)
{
	size_t most = STK_MAX(nitems, nparts);

	if (b->items_room < most) {
		if (grow((void **)&b->next, most, sizeof(*b->next)) < 0 ||
		    grow((void **)&b->nodes, most, sizeof(*b->nodes)) < 0 ||
		    grow((void **)&b->keys, most, sizeof(*b->keys)) < 0 ||
		    grow((void **)&b->scratch, most, sizeof(*b->scratch)) < 0)
			return -ENOMEM;
		b->items_room = most;
	}
	if (b->parts_room < nparts) {
		if (grow((void **)&b->parts, nparts, sizeof(*b->parts)) < 0 ||
		    grow((void **)&b->heap, nparts, sizeof(*b->heap)) < 0)
			return -ENOMEM;
		b->parts_room = nparts;
	}
	return 0;
}

static void sort_few(struct key *keys, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++) {
		struct key key = keys[i];
		uint32_t at = i;

		for (; at && keys[at - 1].cost < key.cost; at--)
			keys[at] = keys[at - 1];
		keys[at] = key;
	}
}

/* One digit of how much a key is below the largest. */
static void sort_digit(const struct key *from, struct key *to, uint32_t n, uint64_t most,
		       unsigned shift, unsigned bits)
{
	uint32_t at[1u << DIGIT_BITS_MAX], sum = 0, digits = 1u << bits;

	memset(at, 0, digits * sizeof(*at));
	for (uint32_t i = 0; i < n; i++)
		at[(most - from[i].cost) >> shift & (digits - 1)]++;
	for (uint32_t d = 0; d < digits; d++) {
		uint32_t count = at[d];

		at[d] = sum;
		sum += count;
	}
	for (uint32_t i = 0; i < n; i++)
		to[at[(most - from[i].cost) >> shift & (digits - 1)]++] = from[i];
}

/* The costliest first; equal ones keep their order. In time with n, as costs do not differ much. */
static void sort_keys(struct stkd_balancer *b, uint32_t n)
{
	unsigned bits = n < 1u << DIGIT_BITS_MAX ? 8 : DIGIT_BITS_MAX;
	uint64_t most = 0, least = UINT64_MAX;

	if (n <= FEW) {
		sort_few(b->keys, n);
		return;
	}
	for (uint32_t i = 0; i < n; i++) {
		most = STK_MAX(most, b->keys[i].cost);
		least = STK_MIN(least, b->keys[i].cost);
	}
	for (unsigned shift = 0; shift < 64 && (most - least) >> shift; shift += bits) {
		struct key *sorted = b->scratch;

		sort_digit(b->keys, sorted, n, most, shift, bits);
		b->scratch = b->keys;
		b->keys = sorted;
	}
}

static void put_item(struct stkd_balancer *b, uint32_t item, struct part *part)
{
	b->next[item] = part->first;
	part->first = item + 1;
	part->count++;
	part->cost += b->items[item].cost;
	part->free -= b->items[item].size;
}

/* Items become nodes, so that those of a part are near each other. */
static void make_nodes(struct stkd_balancer *b, uint32_t nparts)
{
	uint32_t n = 0;

	for (uint32_t p = 0; p < nparts; p++) {
		uint32_t i = b->parts[p].first;

		b->parts[p].first = i ? n + 1 : 0;
		for (; i; i = b->next[i - 1], n++)
			b->nodes[n] =
				(struct node){b->items[i - 1], b->next[i - 1] ? n + 2 : 0, i - 1};
	}
}

static void put(struct stkd_balancer *b, uint32_t node, struct part *part)
{
	b->nodes[node].next = part->first;
	part->first = node + 1;
	part->count++;
	part->cost += b->nodes[node].load.cost;
	part->free -= b->nodes[node].load.size;
}

/* Heap order: the least cost first, then the smaller number. */
static bool is_cheaper(const struct key *a, const struct key *b)
{
	return a->cost != b->cost ? a->cost < b->cost : a->of < b->of;
}

/* The root has changed: it goes down to its place. */
static void sift_down(struct key *heap, uint32_t n)
{
	struct key root = heap[0];
	uint32_t i = 0;

	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && is_cheaper(&heap[child + 1], &heap[child]))
			child++;
		if (is_cheaper(&root, &heap[child]))
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = root;
}

/* Costliest first, each to the cheapest part that has room. */
static void deal_out(struct stkd_balancer *b, uint32_t nitems, uint32_t nparts)
{
	for (uint32_t p = 0; p < nparts; p++)
		b->heap[p] = (struct key){b->parts[p].free ? 0 : UINT64_MAX, p};
	for (uint32_t i = 0; i < nitems; i++)
		b->keys[i] = (struct key){b->items[i].cost, i};
	sort_keys(b, nitems);
	for (uint32_t i = 0; i < nitems; i++) {
		struct part *part = &b->parts[b->heap[0].of];

		put_item(b, b->keys[i].of, part);
		b->heap[0].cost = part->free ? part->cost : UINT64_MAX;
		sift_down(b->heap, nparts);
	}
}

/* Some nodes of a part, evenly over all of them. */
static uint32_t candidates(struct stkd_balancer *b, struct part *part, struct candidate *ret)
{
	uint32_t stride = 1, n = 0, wait = 0;

	if (part->count > CANDIDATES_MAX)
		stride = (part->count + CANDIDATES_MAX - 1) / CANDIDATES_MAX;
	for (uint32_t *link = &part->first; *link;) {
		struct node *node = &b->nodes[*link - 1];

		if (!wait--) {
			ret[n++] = (struct candidate){node->load, *link - 1, link};
			wait = stride - 1;
		}
		link = &node->next;
	}
	return n;
}

static uint64_t distance(uint64_t a, uint64_t b)
{
	return a > b ? a - b : b - a;
}

/* What is best to exchange: from the costly part, and from the cheap one (NULL: nothing). */
struct deal {
	struct candidate *from, *to;
	uint64_t gap; /* between the two parts afterwards */
};

static inline void try_deal(const struct part *costly, const struct part *cheap,
			    struct candidate *from, struct candidate *to, struct deal *best)
{
	struct stkd_load a = from->load, other = {0};
	uint64_t gap;

	if (to)
		other = to->load;
	else if (cheap->count == cheap->count_max)
		return;
	if (a.cost <= other.cost || a.size > cheap->free + other.size ||
	    other.size > costly->free + a.size)
		return;
	gap = distance(costly->cost - cheap->cost, 2 * (a.cost - other.cost));
	if (gap < best->gap)
		*best = (struct deal){from, to, gap};
}

static void move(struct stkd_balancer *b, const struct candidate *what, struct part *from,
		 struct part *to)
{
	*what->link = b->nodes[what->node].next;
	from->count--;
	from->cost -= what->load.cost;
	from->free += what->load.size;
	put(b, what->node, to);
}

static void make_deal(struct stkd_balancer *b, struct deal *deal, struct part *costly,
		      struct part *cheap)
{
	costly->vain = cheap->vain = 0;
	/* The one that was put last is first in its part: its link is known. */
	move(b, deal->from, costly, cheap);
	if (!deal->to)
		return;
	if (deal->to->link == &cheap->first)
		deal->to->link = &b->nodes[deal->from->node].next;
	move(b, deal->to, cheap, costly);
}

/* Does a difference lie within the gap, whether or not it fits? Most often none does. */
static bool may_help(const struct candidate *from, uint32_t nfrom, const struct candidate *to,
		     uint32_t nto, uint64_t gap)
{
	bool any = false;

	for (uint32_t i = 0; i < nfrom; i++) {
		uint64_t cost = from[i].load.cost - 1; /* what is not above 0 wraps */

		any |= cost < gap - 1;
		for (uint32_t j = 0; j < nto; j++)
			any |= cost - to[j].load.cost < gap - 1;
	}
	return any && gap;
}

/* Makes the best exchange between two parts. False: none helps. */
static bool exchange(struct stkd_balancer *b, uint32_t c, uint32_t d)
{
	struct candidate from[CANDIDATES_MAX], to[CANDIDATES_MAX];
	struct part *costly = &b->parts[c], *cheap = &b->parts[d];
	uint64_t before = costly->cost - cheap->cost;
	struct deal best = {.gap = before};
	uint32_t nfrom, nto;
	bool helps;

	if (costly->vain == d + 1 && cheap->vain == c + 1)
		return false; /* nothing has changed */
	nfrom = candidates(b, costly, from);
	nto = candidates(b, cheap, to);
	helps = may_help(from, nfrom, to, nto, before);
	for (uint32_t i = 0; i < nfrom && helps; i++) {
		try_deal(costly, cheap, &from[i], NULL, &best);
		for (uint32_t j = 0; j < nto; j++)
			try_deal(costly, cheap, &from[i], &to[j], &best);
	}
	if (best.gap == before) {
		costly->vain = d + 1;
		cheap->vain = c + 1;
		return false;
	}
	make_deal(b, &best, costly, cheap);
	return true;
}

/* The parts of a deal that is due soon are on their way into the cache. */
static void fetch(const struct stkd_balancer *b, uint32_t i, uint32_t nparts)
{
	const struct part *parts = b->parts;
	uint32_t near = i + AHEAD / 2;

	if (i + AHEAD >= nparts / 2)
		return;
	__builtin_prefetch(&parts[b->keys[i + AHEAD].of]);
	__builtin_prefetch(&parts[b->keys[nparts - 1 - i - AHEAD].of]);
	__builtin_prefetch(b->nodes + parts[b->keys[near].of].first);
	__builtin_prefetch(b->nodes + parts[b->keys[nparts - 1 - near].of].first);
}

/* The costliest part deals with the cheapest, the next one with the next, and so on. */
static bool round_of_deals(struct stkd_balancer *b, uint32_t nparts)
{
	uint64_t most, least;
	bool any = false;

	for (uint32_t p = 0; p < nparts; p++)
		b->keys[p] = (struct key){b->parts[p].cost, p};
	sort_keys(b, nparts);
	most = b->keys[0].cost;
	least = b->keys[nparts - 1].cost;
	if (most - least <= most / EVEN_ENOUGH)
		return false;
	for (uint32_t i = 0; i < nparts / 2; i++) {
		fetch(b, i, nparts);
		any |= exchange(b, b->keys[i].of, b->keys[nparts - 1 - i].of);
	}
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
			put_item(b, i, &b->parts[part_of[i]]);
	make_nodes(b, nparts);
	for (unsigned round = 0; round < ROUNDS_MAX && round_of_deals(b, nparts); round++)
		;
	for (uint32_t p = 0; p < nparts; p++)
		for (uint32_t i = b->parts[p].first; i; i = b->nodes[i - 1].next)
			part_of[b->nodes[i - 1].item] = p;
	return 0;
}
