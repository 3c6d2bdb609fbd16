/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packs one window of segments into rows: best fit, longest first, or spread evenly over a number
 * of rows. Pure: the same segments give the same rows. A packer belongs to one thread at a time.
 */
#ifndef STKD_PACK_H
#define STKD_PACK_H

#include "daemon/plan/rows.h"

struct stkd_pack_limits {
	uint32_t capacity;     /* tokens of a row, a multiple of align, at most STKD_FIT_MAX */
	uint32_t align;        /* segments begin at multiples of it */
	uint32_t segments_max; /* of a row; 0: no limit */
};

enum stkd_spread { STKD_SPREAD_NONE, STKD_SPREAD, STKD_SPREAD_WIDE };

struct stkd_packer;

/* Return: 0 or -ENOMEM. */
int stkd_packer_new(const struct stkd_pack_limits *limits, struct stkd_packer **ret);
struct stkd_packer *stkd_packer_free(struct stkd_packer *packer);
STK_DEFINE_CLEANUP(struct stkd_packer *, stkd_packer_free)

/* One more for this window, 1 to capacity long, in the order of arrival. Return: 0 or -ENOMEM. */
int stkd_packer_add(struct stkd_packer *packer, const struct stk_segment *segment);

/**
 * stkd_packer_rows() - how many rows the window takes
 * @spread:   put about as many tokens into each; WIDE: of many rows, rather into one more than
 *            unevenly
 * @multiple: of rows, with @already of them before this window; as many more as are missing are
 *            made by spreading wider. 1: no such wish.
 *
 * Best fit, longest first; ties go to the earlier arrival, and to the newest row. Of a window that is
 * not too large, where there might be fewer rows, they are also filled one by one: the longest segment
 * that is left, then time and again the one that fills the rest best, alone or with another one, of
 * the 16 longest lengths that fit; where that takes fewer rows, it is these. Spreading over
 * so many rows may fail by the limits; then the rows are those of best fit, taken apart. Their number follows
 * from the lengths alone, whatever their order.
 *
 * Return: 0 or -ENOMEM.
 */
int stkd_packer_rows(struct stkd_packer *packer, enum stkd_spread spread, uint64_t already,
		     uint64_t multiple, uint32_t *ret_rows);

/*
 * Appends the rows that were found, and begins the next window. Rows are in the order of their last
 * arrival and segments in that of theirs, so that pieces which fill rows of their own come before
 * the last one of their sample. Rows are marked with @window and their number. Return: 0 or -ENOMEM, the window is as before.
 */
int stkd_packer_take(struct stkd_packer *packer, uint64_t window, struct stkd_rows *to);

void stkd_packer_clear(struct stkd_packer *packer);

#endif
