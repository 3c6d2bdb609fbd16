/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the shares of a mixture and the end of its epochs. The schedule of a period can be entered
 * wherever the draws so far are known: at each page, from one bit for each dataset.
 */
#include "daemon/plan/mix.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A page is scheduled so far ahead, when less than the least of it is. */
#define AHEAD     256
#define AHEAD_MIN 64

#define SCHEDULE_MAX (UINT64_C(1) << 32) /* draws that are scheduled when a mixture is made */

static uint64_t share(const struct stkd_mix *mix, uint32_t d, uint64_t place)
{
	return (uint64_t)((unsigned __int128)place * mix->datasets[d].weight / mix->period);
}

static uint64_t gcd(uint64_t a, uint64_t b)
{
	while (b) {
		uint64_t r = a % b;

		a = b;
		b = r;
	}
	return a;
}

static int set_weights(struct stkd_mix *mix, const uint64_t *first, const uint64_t *weights,
		       struct stk_err *err)
{
	uint64_t divisor = 0, times;

	for (uint32_t d = 0; d < mix->n; d++)
		divisor = gcd(weights[d], divisor);
	if (!divisor)
		return stk_err_set(err, -EINVAL, "data: all weights are 0");
	for (uint32_t d = 0; d < mix->n; d++) {
		struct stkd_mix_dataset *to = &mix->datasets[d];

		to->first = first[d];
		to->count = first[d + 1] - first[d];
		to->weight = weights[d] / divisor;
		if (to->weight && !to->count)
			return stk_err_set(err, -EINVAL,
					   "data: dataset %" PRIu32 " (from 0) has no samples", d);
		if (stk_add_overflow(mix->period, to->weight, &mix->period))
			return stk_err_set(err, -EINVAL, "data: the weights add up to 2^64");
	}
	/* A short period is taken several times, which changes nothing but the size of a page. */
	times = STK_MAX(STKD_MIX_PAGE / mix->period, UINT64_C(1));
	mix->period *= times;
	for (uint32_t d = 0; d < mix->n; d++) {
		struct stkd_mix_dataset *of = &mix->datasets[d];

		of->weight *= times;
		of->every = of->weight ? mix->period / of->weight : 0;
		of->over = of->weight ? mix->period % of->weight : 0;
	}
	return 0;
}

/* In which lap each dataset's last sample is drawn; the epoch ends in the first or the last of these. */
static uint64_t last_lap(const struct stkd_mix *mix, int stop)
{
	uint64_t lap = stop == STK_STOP_FIRST ? UINT64_MAX : 0;

	for (uint32_t d = 0; d < mix->n; d++) {
		const struct stkd_mix_dataset *of = &mix->datasets[d];
		uint64_t its = of->weight ? (of->count - 1) / of->weight : lap;

		lap = stop == STK_STOP_FIRST ? STK_MIN(lap, its) : STK_MAX(lap, its);
	}
	return lap;
}

/* A page begins here. Return: 0 or -ENOMEM. */
static int note_entry(struct stkd_mix *mix, uint64_t place, const uint64_t *draws, uint64_t *room)
{
	struct stkd_mix_entry *entry;

	if (mix->npages == *room) {
		uint64_t more = STK_MAX(2 * *room, UINT64_C(16));
		struct stkd_mix_entry *grown = reallocarray(mix->entries, more, sizeof(*grown));

		if (!grown)
			return -ENOMEM;
		mix->entries = grown;
		*room = more;
	}
	entry = &mix->entries[mix->npages++];
	*entry = (struct stkd_mix_entry){0};
	for (uint32_t d = 0; d < mix->n; d++)
		if (draws[d] > share(mix, d, place))
			entry->ahead[d / 64] |= UINT64_C(1) << d % 64;
	return 0;
}

/* Datasets whose end counts: those that are read to it in the lap in which the epoch ends. */
static uint32_t count_ends(const struct stkd_mix *mix, uint64_t lap, uint64_t *left)
{
	uint32_t n = 0;

	for (uint32_t d = 0; d < mix->n; d++) {
		const struct stkd_mix_dataset *of = &mix->datasets[d];

		left[d] = UINT64_MAX;
		if (!of->weight || (of->count - 1) / of->weight != lap)
			continue;
		left[d] = (of->count - 1) % of->weight + 1;
		n++;
	}
	return n;
}

/* Runs a period, or an epoch if that is shorter: notes the pages, finds the end. */
static int run(struct stkd_mix *mix, int stop, struct stk_err *err)
{
	_cleanup_(stk_freep) struct stkd_schedule *s = calloc(1, sizeof(*s));
	uint64_t draws[STK_SPEC_DATA_MAX] = {0}, left[STK_SPEC_DATA_MAX], end = 0, room = 0;
	bool never = stop == STK_STOP_NEVER;
	uint64_t lap = never ? 1 : last_lap(mix, stop);
	uint32_t ends = count_ends(mix, never ? UINT64_MAX : lap, left);

	if (!s)
		return -ENOMEM;
	ends = stop == STK_STOP_FIRST ? 1 : ends;
	for (uint64_t place = 0; place < mix->period && (lap || ends); place++) {
		uint32_t d;

		if (place == SCHEDULE_MAX)
			return stk_err_set(err, -EINVAL,
					   "data: the weights repeat only after %" PRIu64
					   " samples, more than %" PRIu64
					   "; give them with fewer digits",
					   mix->period, SCHEDULE_MAX);
		if (place % STKD_MIX_PAGE == 0) {
			if (note_entry(mix, place, draws, &room) < 0)
				return -ENOMEM;
			stkd_schedule_enter(s, mix, place, draws);
		}
		d = stkd_schedule_step(s);
		draws[d]++;
		if (ends && draws[d] == left[d]) {
			ends--;
			end = place + 1;
		}
	}
	mix->draws = UINT64_MAX;
	if (never)
		return 0;
	if (stk_mul_overflow(lap, mix->period, &mix->draws) ||
	    stk_add_overflow(mix->draws, end, &mix->draws) || mix->draws >= UINT64_MAX / 2)
		return stk_err_set(err, -EINVAL,
				   "data: an epoch of these weights has more than 2^63 samples");
	return 0;
}

/* What an epoch draws of each dataset. */
static int count_draws(struct stkd_mix *mix)
{
	struct stkd_mix_page *page;

	mix->whole = mix->draws != UINT64_MAX;
	if (!mix->whole)
		return 0;
	page = malloc(sizeof(*page));
	if (!page)
		return -ENOMEM;
	stkd_mix_page_reset(page);
	stkd_mix_page_seek(mix, page, mix->draws - 1);
	page->draws[page->choice[page->at]]++;
	for (uint32_t d = 0; d < mix->n; d++) {
		struct stkd_mix_dataset *of = &mix->datasets[d];

		of->drawn = of->weight ? page->draws[d] : 0;
		of->passes = of->count ? (of->drawn + of->count - 1) / of->count : 0;
		if (of->weight && of->drawn % of->count)
			mix->whole = false;
	}
	free(page);
	return 0;
}

int stkd_mix_init(struct stkd_mix *mix, const uint64_t *first, const uint64_t *weights, uint32_t n,
		  int stop, struct stk_err *err)
{
	int r;

	*mix = (struct stkd_mix){.n = n};
	r = set_weights(mix, first, weights, err);
	if (r < 0)
		return r;
	if (n == 1 && stop != STK_STOP_NEVER) {
		mix->draws = mix->datasets[0].drawn = mix->datasets[0].count;
		mix->datasets[0].passes = 1;
		mix->whole = true;
		return 0;
	}
	r = run(mix, stop, err);
	if (r == 0)
		r = count_draws(mix);
	return r == -ENOMEM ? stk_err_set(err, r, "no memory for a mixture") : r;
}

void stkd_mix_deinit(struct stkd_mix *mix)
{
	free(mix->entries);
	mix->entries = NULL;
}

void stkd_mix_page_reset(struct stkd_mix_page *page)
{
	page->lap = page->page = UINT64_MAX;
}

static void load(const struct stkd_mix *mix, struct stkd_mix_page *page)
{
	const struct stkd_mix_entry *entry = &mix->entries[page->page];
	uint64_t place = page->page * STKD_MIX_PAGE;

	for (uint32_t d = 0; d < mix->n; d++)
		page->draws[d] = share(mix, d, place) + (entry->ahead[d / 64] >> d % 64 & 1);
	stkd_schedule_enter(&page->schedule, mix, place, page->draws);
	page->n = (uint32_t)STK_MIN(mix->period - place, (uint64_t)STKD_MIX_PAGE);
	page->at = page->have = 0;
}

/* A page is scheduled as far as it is read. */
static void extend(struct stkd_mix_page *page, uint32_t to)
{
	while (page->have < to)
		page->choice[page->have++] = (uint8_t)stkd_schedule_step(&page->schedule);
}

uint32_t stkd_mix_page_seek(const struct stkd_mix *mix, struct stkd_mix_page *page,
			    uint64_t position)
{
	uint64_t lap = position / mix->period, place = position % mix->period;
	uint32_t to = (uint32_t)(place % STKD_MIX_PAGE);

	if (page->page != place / STKD_MIX_PAGE) {
		page->page = place / STKD_MIX_PAGE;
		load(mix, page);
		page->lap = 0;
	}
	/* The same page of another lap differs in the draws before it only. */
	for (uint32_t d = 0; page->lap != lap && d < mix->n; d++)
		page->draws[d] += (lap - page->lap) * mix->datasets[d].weight;
	page->lap = lap;
	if (page->have < STK_MIN(page->n, to + AHEAD_MIN))
		extend(page, STK_MIN(page->n, to + AHEAD));
	for (; page->at < to; page->at++)
		page->draws[page->choice[page->at]]++;
	while (page->at > to)
		page->draws[page->choice[--page->at]]--;
	return page->have - to;
}
