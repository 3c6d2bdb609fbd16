/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the index of free tokens: a bitmap with a bitmap of its words above it, and so on. Whoever
 * owns the index is its only thread.
 */
#include "daemon/plan/fit.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

int stkd_fit_init(struct stkd_fit *fit, uint32_t most)
{
	uint32_t nbits = most + 1;

	assert(most <= STKD_FIT_MAX);
	*fit = (struct stkd_fit){.newest = calloc(nbits, sizeof(*fit->newest))};
	while (fit->newest && fit->nlevels < STKD_FIT_LEVELS) {
		unsigned level = fit->nlevels;
		uint32_t nwords = (nbits + 63) / 64;

		fit->bits[level] = calloc(nwords, sizeof(uint64_t));
		if (!fit->bits[level])
			break;
		fit->nbits[level] = nbits;
		fit->nlevels++;
		if (nwords == 1)
			return 0;
		nbits = nwords;
	}
	stkd_fit_deinit(fit);
	return -ENOMEM;
}

void stkd_fit_deinit(struct stkd_fit *fit)
{
	for (unsigned i = 0; i < STKD_FIT_LEVELS; i++)
		free(fit->bits[i]);
	free(fit->newest);
	*fit = (struct stkd_fit){0};
}

static void set_bit(struct stkd_fit *fit, uint32_t v)
{
	for (unsigned level = 0; level < fit->nlevels; level++, v /= 64) {
		uint64_t *word = &fit->bits[level][v / 64];
		bool known = *word != 0;

		*word |= UINT64_C(1) << v % 64;
		if (known)
			return;
	}
}

static void clear_bit(struct stkd_fit *fit, uint32_t v)
{
	for (unsigned level = 0; level < fit->nlevels; level++, v /= 64) {
		uint64_t *word = &fit->bits[level][v / 64];

		*word &= ~(UINT64_C(1) << v % 64);
		if (*word)
			return;
	}
}

void stkd_fit_put(struct stkd_fit *fit, uint32_t *next, uint32_t row, uint32_t free)
{
	next[row] = fit->newest[free];
	fit->newest[free] = row + 1;
	if (!next[row])
		set_bit(fit, free);
}

/* Up until a word has one, then down again. */
uint32_t stkd_fit_find(const struct stkd_fit *fit, uint32_t v)
{
	unsigned level = 0;
	uint64_t word;

	for (;; level++, v = v / 64 + 1) {
		if (level == fit->nlevels || v >= fit->nbits[level])
			return STKD_FIT_NONE;
		word = fit->bits[level][v / 64] >> v % 64;
		if (word)
			break;
	}
	v += (uint32_t)__builtin_ctzll(word);
	while (level--)
		v = v * 64 + (uint32_t)__builtin_ctzll(fit->bits[level][v]);
	return v;
}

uint32_t stkd_fit_take(struct stkd_fit *fit, const uint32_t *next, uint32_t need,
		       uint32_t *ret_free)
{
	uint32_t free = stkd_fit_find(fit, need), row;

	if (free == STKD_FIT_NONE)
		return STKD_FIT_NONE;
	row = fit->newest[free] - 1;
	fit->newest[free] = next[row];
	if (!next[row])
		clear_bit(fit, free);
	*ret_free = free;
	return row;
}

void stkd_fit_forget(struct stkd_fit *fit, uint32_t free)
{
	if (!fit->newest[free])
		return;
	fit->newest[free] = 0;
	clear_bit(fit, free);
}
