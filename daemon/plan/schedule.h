/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of a mixture over one page of places: which dataset is drawn at each. A draw costs the
 * same for any number of datasets. A member of a page, used by its source.
 */
#ifndef STKD_SCHEDULE_H
#define STKD_SCHEDULE_H

#include "proto/spec.h"

#define STKD_MIX_PAGE 4096                /* places of a schedule */
#define STKD_MIX_NEAR (2 * STKD_MIX_PAGE) /* last places that are told apart without a heap */

struct stkd_mix;

/* Datasets in a heap, the smallest (key, number) on top. */
struct stkd_mix_heap {
	uint64_t key[STK_SPEC_DATA_MAX];
	uint32_t item[STK_SPEC_DATA_MAX], n;
};

/* Datasets by last place: a bit for each place, and one for each word of these. */
struct stkd_mix_near {
	uint64_t sums[STKD_MIX_NEAR / 4096], words[STKD_MIX_NEAR / 64];
	uint8_t set_of[STKD_MIX_NEAR];                            /* where the bit is set */
	uint64_t sets[STK_SPEC_DATA_MAX][STK_SPEC_DATA_MAX / 64]; /* a bit for each dataset */
	uint8_t unused[STK_SPEC_DATA_MAX];                        /* of the sets */
	uint32_t nunused;
};

/* Datasets by first place. */
struct stkd_mix_later {
	uint64_t words[STKD_MIX_PAGE / 64];
	uint8_t head[STKD_MIX_PAGE];      /* where the bit is set */
	uint16_t next[STK_SPEC_DATA_MAX]; /* STK_SPEC_DATA_MAX: the last one of its place */
};

/* The next draws of a mixture's datasets. */
struct stkd_schedule {
	const struct stkd_mix *mix;
	uint64_t base;                     /* the place before the first one */
	uint64_t place;                    /* that was given last */
	uint64_t begun[STK_SPEC_DATA_MAX]; /* floor(j * period / w) of the draw behind the next */
	uint64_t rest[STK_SPEC_DATA_MAX];  /* and what this division leaves */
	uint64_t last[STK_SPEC_DATA_MAX];  /* last place of the next draw */
	/* Those whose next draw may stand at the next place, by its last place, and the others. */
	struct stkd_mix_near near;
	struct stkd_mix_heap far;
	struct stkd_mix_later later;
};

/* Enters behind a place, where each dataset has had so many draws. */
void stkd_schedule_enter(struct stkd_schedule *schedule, const struct stkd_mix *mix, uint64_t place,
			 const uint64_t *draws);

/* The dataset at the next place; at most STKD_MIX_PAGE times. */
uint32_t stkd_schedule_step(struct stkd_schedule *schedule);

#endif
