/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mixture: which dataset each position of an epoch is drawn from, by weight, so that the draws of
 * every prefix are less than one away from the exact share. Immutable once made; any thread. A page
 * of it belongs to the source that reads it.
 */
#ifndef STKD_MIX_H
#define STKD_MIX_H

#include "daemon/plan/schedule.h"
#include "proto/err.h"
#include "proto/spec.h"

struct stkd_mix_dataset {
	uint64_t first, count; /* its samples */
	uint64_t weight;       /* draws of a period; 0: not used */
	uint64_t every, over;  /* period / weight, and what this division leaves */
	uint64_t drawn;        /* draws of an epoch; 0 when it never ends */
	uint64_t passes;       /* begun in an epoch, each in an order of its own */
};

/* The datasets that finished one more draw than their share rounded down, a bit for each. */
struct stkd_mix_entry {
	uint64_t ahead[STK_SPEC_DATA_MAX / 64];
};

struct stkd_mix {
	uint32_t n;
	struct stkd_mix_dataset datasets[STK_SPEC_DATA_MAX];
	uint64_t period; /* the schedule repeats after so many draws: the sum of weights */
	uint64_t draws;  /* of an epoch; UINT64_MAX when it never ends */
	bool whole;      /* every epoch draws the same samples, in whatever order */
	struct stkd_mix_entry *entries; /* where each page of a period begins */
	uint64_t npages;
};

/**
 * stkd_mix_init() - datasets, their shares, and the end of an epoch
 * @first: first sample of each dataset, and the number of all; n + 1 numbers
 * @weights: n, in any unit
 *
 * Takes time with the shorter of a period and an epoch. Return: 0, -EINVAL with the reason,
 * -ENOMEM.
 */
int stkd_mix_init(struct stkd_mix *mix, const uint64_t *first, const uint64_t *weights, uint32_t n,
		  int stop, struct stk_err *err);
void stkd_mix_deinit(struct stkd_mix *mix);

/* Is a schedule needed, or is the epoch one pass over one dataset? */
static inline bool stkd_mix_is_plain(const struct stkd_mix *mix)
{
	return mix->n == 1 && mix->draws != UINT64_MAX;
}

/* One page of the schedule, and a place in it. */
struct stkd_mix_page {
	uint64_t lap, page;                /* which; UINT64_MAX: none yet */
	uint32_t n;                        /* positions of it */
	uint32_t have;                     /* and so many of them are scheduled */
	uint32_t at;                       /* place: draws[] are those before it */
	uint64_t draws[STK_SPEC_DATA_MAX]; /* of each dataset in this epoch */
	struct stkd_schedule schedule;
	uint8_t choice[STKD_MIX_PAGE];
};

void stkd_mix_page_reset(struct stkd_mix_page *page);
/* Goes to a position. Returns how many positions from there on can be read: at least 64, or the rest
 * of the page. */
uint32_t stkd_mix_page_seek(const struct stkd_mix *mix, struct stkd_mix_page *page,
			    uint64_t position);

/* Dataset at the place, and the number of its draw; goes on to the next place. */
static inline uint32_t stkd_mix_page_next(struct stkd_mix_page *page, uint64_t *ret_draw)
{
	uint32_t d = page->choice[page->at++];

	*ret_draw = page->draws[d]++;
	return d;
}

#endif
