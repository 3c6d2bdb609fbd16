/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bad samples that an assembly has masked: how many rows, and which samples, the lowest ids of them.
 * What is listed follows from the samples that were met, not from their order, so it is the same on
 * each replay. Own lock; workers note, any thread asks.
 */
#ifndef STKD_QUARANTINE_H
#define STKD_QUARANTINE_H

#include "proto/base.h"

#define STKD_QUARANTINE_MAX 512 /* samples that are listed */
#define STKD_NO_OFFSET      UINT64_MAX

struct stkd_bad {
	uint64_t sample;
	uint64_t
		offset; /* in its shard, of the field's bytes; STKD_NO_OFFSET: they lie elsewhere */
	uint32_t op;    /* first field that the sample is bad in */
};

struct stkd_quarantine;

struct stkd_quarantine *stkd_quarantine_new(void); /* NULL: no memory */
struct stkd_quarantine *stkd_quarantine_free(struct stkd_quarantine *quarantine);

/* A row (packed: a segment) was masked. */
void stkd_quarantine_note(struct stkd_quarantine *quarantine, const struct stkd_bad *bad);

/* Copies the first @most samples in order. Return: how many. *ret_rows: rows so far; *ret_more: there were
 * other samples. */
uint32_t stkd_quarantine_list(struct stkd_quarantine *quarantine, struct stkd_bad *ret,
			      uint32_t most, uint64_t *ret_rows, bool *ret_more);

#endif
