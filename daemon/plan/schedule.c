/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of the next draw. Draw j (from 0) of a dataset with share w / period may stand at
 * places floor(j * period / w) + 1 to ceil((j + 1) * period / w), counted from 1: there it keeps
 * every prefix within one of the exact share. Of the draws that may stand at a place, the one whose
 * last place comes first gets it, which always works out for unit jobs (as in Tijdeman's rule for the
 * chairman assignment). What comes depends on the draws so far alone. The source's thread.
 */
#include "daemon/plan/schedule.h"

#include <assert.h>
#include <string.h>

#include "daemon/plan/mix.h"

/* The heap: of draws that may wait for longer than a page, so that few of them come. */

static inline bool before(const struct stkd_mix_heap *h, uint32_t a, uint32_t b)
{
	return h->key[a] != h->key[b] ? h->key[a] < h->key[b] : h->item[a] < h->item[b];
}

static inline void swap(struct stkd_mix_heap *h, uint32_t a, uint32_t b)
{
	uint64_t key = h->key[a];
	uint32_t item = h->item[a];

	h->key[a] = h->key[b];
	h->item[a] = h->item[b];
	h->key[b] = key;
	h->item[b] = item;
}

static void push_far(struct stkd_mix_heap *h, uint64_t key, uint32_t item)
{
	uint32_t i = h->n++;

	h->key[i] = key;
	h->item[i] = item;
	for (; i && before(h, i, (i - 1) / 2); i = (i - 1) / 2)
		swap(h, i, (i - 1) / 2);
}

static uint32_t pop_far(struct stkd_mix_heap *h)
{
	uint32_t top = h->item[0], i = 0;

	swap(h, 0, --h->n);
	for (;;) {
		uint32_t child = 2 * i + 1;

		if (child + 1 < h->n && before(h, child + 1, child))
			child++;
		if (child >= h->n || before(h, i, child))
			return top;
		swap(h, i, child);
		i = child;
	}
}

/* Places. */

static void push_near(struct stkd_mix_near *near, uint32_t place, uint32_t d)
{
	uint64_t bit = UINT64_C(1) << place % 64;

	if (!(near->words[place / 64] & bit)) {
		near->sums[place / 4096] |= UINT64_C(1) << place / 64 % 64;
		near->words[place / 64] |= bit;
		near->set_of[place] = near->unused[--near->nunused];
	}
	near->sets[near->set_of[place]][d / 64] |= UINT64_C(1) << d % 64;
}

/* The first dataset of the first place; there is one. */
static uint32_t pop_near(struct stkd_mix_near *near)
{
	uint32_t sum = near->sums[0] ? 0 : 1;
	uint32_t word = 64 * sum + (uint32_t)__builtin_ctzll(near->sums[sum]);
	uint32_t place = 64 * word + (uint32_t)__builtin_ctzll(near->words[word]);
	uint64_t *set = near->sets[near->set_of[place]], left = 0;
	uint32_t part = 0, d;

	static_assert(STKD_MIX_NEAR / 4096 == 2, "two sums");
	while (!set[part])
		part++;
	d = 64 * part + (uint32_t)__builtin_ctzll(set[part]);
	set[part] &= set[part] - 1;
	for (uint32_t i = part; i < STK_SPEC_DATA_MAX / 64; i++)
		left |= set[i];
	if (left)
		return d;
	near->unused[near->nunused++] = near->set_of[place];
	near->words[word] &= near->words[word] - 1;
	if (!near->words[word])
		near->sums[sum] &= near->sums[sum] - 1;
	return d;
}

static void push_later(struct stkd_mix_later *later, uint32_t place, uint32_t d)
{
	uint64_t bit = UINT64_C(1) << place % 64;

	later->next[d] = later->words[place / 64] & bit ? later->head[place] : STK_SPEC_DATA_MAX;
	later->words[place / 64] |= bit;
	later->head[place] = (uint8_t)d;
}

static void make_ready(struct stkd_schedule *s, uint32_t d)
{
	uint64_t place = s->last[d] - s->base - 1;

	if (place < STKD_MIX_NEAR)
		push_near(&s->near, (uint32_t)place, d);
	else
		push_far(&s->far, s->last[d], d);
}

/* Draw j's places from those of j - 1. What comes behind the page is not noted. */
static void offer(struct stkd_schedule *s, uint32_t d)
{
	uint64_t w = s->mix->datasets[d].weight;
	uint64_t first = s->begun[d] + 1, end = s->begun[d] + s->mix->datasets[d].every;
	uint64_t rest = s->rest[d] + s->mix->datasets[d].over;

	if (rest >= w) {
		rest -= w;
		end++;
	}
	s->begun[d] = end; /* of the draw behind this one */
	s->rest[d] = rest;
	s->last[d] = end + (rest > 0);
	if (first <= s->place + 1)
		make_ready(s, d);
	else if (first - s->base <= STKD_MIX_PAGE)
		push_later(&s->later, (uint32_t)(first - s->base - 1), d);
}

void stkd_schedule_enter(struct stkd_schedule *s, const struct stkd_mix *mix, uint64_t place,
			 const uint64_t *draws)
{
	s->mix = mix;
	s->base = s->place = place;
	memset(s->near.sums, 0, sizeof(s->near.sums));
	memset(s->near.words, 0, sizeof(s->near.words));
	memset(s->near.sets, 0, sizeof(s->near.sets));
	memset(s->later.words, 0, sizeof(s->later.words));
	s->near.nunused = STK_SPEC_DATA_MAX;
	for (uint32_t i = 0; i < STK_SPEC_DATA_MAX; i++)
		s->near.unused[i] = (uint8_t)i;
	s->far.n = 0;
	for (uint32_t d = 0; d < mix->n; d++) {
		uint64_t w = mix->datasets[d].weight;
		unsigned __int128 at;

		if (!w)
			continue;
		at = (unsigned __int128)draws[d] * mix->period;
		s->begun[d] = (uint64_t)(at / w);
		s->rest[d] = (uint64_t)(at % w);
		offer(s, d);
	}
}

uint32_t stkd_schedule_step(struct stkd_schedule *s)
{
	uint32_t place = (uint32_t)(s->place++ - s->base), d;
	uint64_t *waits = &s->later.words[place / 64], bit = UINT64_C(1) << place % 64;

	assert(place < STKD_MIX_PAGE);
	if (*waits & bit) {
		*waits &= ~bit;
		for (d = s->later.head[place]; d < STK_SPEC_DATA_MAX; d = s->later.next[d])
			make_ready(s, d);
	}
	assert(s->near.sums[0] | s->near.sums[1] | s->far.n);
	d = s->near.sums[0] | s->near.sums[1] ? pop_near(&s->near) : pop_far(&s->far);
	assert(s->last[d] >= s->place);
	offer(s, d);
	return d;
}
