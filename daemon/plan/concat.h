/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cuts the samples of an epoch, one behind the other, into rows of equal length. A member of an
 * iterator, used by its thread.
 */
#ifndef STKD_CONCAT_H
#define STKD_CONCAT_H

#include "daemon/plan/rows.h"
#include "daemon/plan/source.h"

struct stkd_concat {
	struct stkd_source *source; /* borrowed */
	uint32_t row;               /* tokens from the beginning of a row to that of the next one */
	uint32_t overlap;           /* tokens that follow in the row, and begin the next one */
	bool separator;             /* a place behind each sample */
	bool partial;               /* the last row may have fewer tokens */
	/* Where the next row begins; offset == size: at the next arrival. */
	uint64_t id, position, offset, size;
	uint64_t dropped; /* tokens behind the last row */
};

void stkd_concat_init(struct stkd_concat *concat, struct stkd_source *source);

/* At the beginning of the source's epoch. */
void stkd_concat_begin(struct stkd_concat *concat);

/* At token @offset of the sample at @position. Return: 0, -EINVAL: there is no such token. */
int stkd_concat_seek(struct stkd_concat *concat, uint64_t position, uint64_t offset);

/* Appends the next row. Return: 1, or 0: there is none, or -ENOMEM. */
int stkd_concat_row(struct stkd_concat *concat, struct stkd_rows *to);

#endif
