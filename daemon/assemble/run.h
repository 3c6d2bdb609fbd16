/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One call of stkd_assembly_rows(), as plain and packed rows share it. Private to assemble/; lives
 * on its worker's stack.
 */
#ifndef STKD_RUN_H
#define STKD_RUN_H

#include "daemon/assemble/fields.h"

/* Extents looked up at once: what fits comfortably on a worker's stack. */
#define STKD_EXTENTS_MAX 512
#define STKD_NO_SAMPLE   UINT64_MAX

struct stkd_run {
	const struct stkd_assembly *assembly;
	const struct stkd_layout *layout;
	const struct stkd_recipe *recipe;
	uint8_t *slot;
	uint32_t first, n;
	struct stkd_rows_result result;
	struct stk_err *err;
	/* Being copied, for the error after a fault; volatile: read after the jump out of the copy. */
	volatile uint64_t sample;
	struct stkd_extent *extents; /* STKD_EXTENTS_MAX */
	bool ends;                   /* a row reached into its shard's last page */
	const struct stkd_op **bad;  /* whose value was out of range; NULL: none yet */
};

/* The file may have changed since its lengths were read: nothing in an extent is taken on trust. */
int stkd_run_check_extent(const struct stkd_run *run, uint64_t sample, uint32_t column,
			  const struct stkd_extent *extent);
/*
 * A value of the sample that was copied is out of range. Return: -EBADMSG; 0 where such samples are
 * masked: it was noted, and its row or segment is still to be written anew.
 */
int stkd_run_bad_sample(struct stkd_run *run, uint64_t sample, const struct stkd_extent *extents);
/* Fields start at multiples of 256; what lies between two belongs to the published bytes too. */
void stkd_run_zero_gaps(const struct stkd_run *run);

/* Writes packed rows [first, first + n). Runs under the guard. */
int stkd_run_packed(void *run);
/* After they were copied: did their shards keep their size? */
int stkd_run_packed_done(const struct stkd_run *run);

#endif
