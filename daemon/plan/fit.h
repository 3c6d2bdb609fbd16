/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows by the tokens that are free in them: the tightest one that takes a sample is found in a few
 * instructions, whatever the number of rows. A member of a packer, used by its thread.
 */
#ifndef STKD_FIT_H
#define STKD_FIT_H

#include "proto/err.h"

#define STKD_FIT_MAX    (UINT32_C(1) << 24) /* free tokens of a row */
#define STKD_FIT_NONE   UINT32_MAX
#define STKD_FIT_LEVELS 5 /* 64^5 is more than STKD_FIT_MAX + 1 */

struct stkd_fit {
	/* Bit v of level 0: a row has v free; bit i of the next level: word i here is not 0. */
	uint64_t *bits[STKD_FIT_LEVELS];
	uint32_t nbits[STKD_FIT_LEVELS];
	unsigned nlevels;
	uint32_t *newest; /* by free tokens: 1 + the row that came last; 0: none */
};

/* @most: free tokens of an empty row, at most STKD_FIT_MAX. Return: 0 or -ENOMEM. */
int stkd_fit_init(struct stkd_fit *fit, uint32_t most);
void stkd_fit_deinit(struct stkd_fit *fit);

/* @next: of all rows, the caller's: who has as much free and came before (1 + row, or 0). */
void stkd_fit_put(struct stkd_fit *fit, uint32_t *next, uint32_t row, uint32_t free);

/* The least number of free tokens, at least @need, that a row has. STKD_FIT_NONE: none has. */
uint32_t stkd_fit_find(const struct stkd_fit *fit, uint32_t need);

/* Takes out the row with the least free tokens that are at least @need, of several the newest; its
 * free tokens go to @ret_free. STKD_FIT_NONE: there is none. */
uint32_t stkd_fit_take(struct stkd_fit *fit, const uint32_t *next, uint32_t need,
		       uint32_t *ret_free);

/* Takes all rows out that have so many free. */
void stkd_fit_forget(struct stkd_fit *fit, uint32_t free);

#endif
