/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tallies: what lengths an epoch reads, and what becomes of them, for the counts of a plan. Passes
 * over lengths, in the order they are stored where that is enough. Any thread.
 */
#ifndef STKD_TALLY_H
#define STKD_TALLY_H

#include "daemon/plan/edges.h"
#include "daemon/plan/plan_private.h"

/* Samples that pass `keep`, and those that do not. */
struct stkd_tally {
	uint64_t kept, filtered;
	uint32_t shortest2, longest2; /* second length of those that pass */
};

/**
 * stkd_tally_lengths() - the lengths that pass `keep`
 * @drawn: true: as often as epoch 0 draws them (all of its draws, where there is an end); false:
 *         each stored one as often as every epoch does at least, once where epochs differ
 *
 * Datasets of weight 0 are left out. Return: 0 or -ENOMEM.
 */
int stkd_tally_lengths(const struct stkd_plan *plan, bool drawn, struct stkd_histogram *ret,
		       struct stkd_tally *ret_tally);

/* The first stored sample that is overlong, or UINT64_MAX. */
uint64_t stkd_tally_overlong(const struct stkd_plan *plan);

struct stkd_pairs;
/* Adds both lengths, as delivered, of the stored samples, as often as every epoch reads them at least. */
void stkd_tally_pairs(const struct stkd_plan *plan, struct stkd_pairs *ret);

/* What becomes of the samples of an epoch, once buckets are known. */
struct stkd_outcome {
	uint64_t filtered, overlong, delivered, real_tokens;
	uint64_t arrivals[STK_SPEC_EDGES_MAX];
};

/* Of every epoch alike (plan->mix.whole). */
void stkd_tally_stored(const struct stkd_plan *plan, struct stkd_outcome *ret);
/* Of this epoch. Return: 0 or -ENOMEM. */
int stkd_tally_epoch(const struct stkd_plan *plan, uint64_t epoch, struct stkd_outcome *ret);

#endif
