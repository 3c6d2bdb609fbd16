/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole rows of a ragged field: values widened without loss, then padding, in one ascending walk.
 * Compiled for several instruction sets, as casts are. No state, any thread.
 */
#ifndef STKD_ROWS_H
#define STKD_ROWS_H

#include "proto/dtype.h"

/* n values, then the low bytes of `pad` up to `width` values. Reads nothing behind the n values. */
typedef void (*stkd_row_fn)(void *restrict dst, const void *restrict src, size_t n, size_t width,
			    uint64_t pad);

/* The same into two rows that differ in their padding: each value is read once. */
typedef void (*stkd_twins_fn)(void *restrict dst, void *restrict twin, const void *restrict src,
			      size_t n, size_t width, uint64_t pad, uint64_t twin_pad);

enum { STKD_NSIZES = 4 }; /* 1, 2, 4, 8 bytes */

struct stkd_rows {
	const char *name;
	/* By the logarithms of the sizes, from and to; NULL where the target is smaller. */
	stkd_row_fn unsigned_[STKD_NSIZES][STKD_NSIZES];
	stkd_row_fn signed_[STKD_NSIZES][STKD_NSIZES];
	stkd_twins_fn unsigned_twins[STKD_NSIZES][STKD_NSIZES];
	stkd_twins_fn signed_twins[STKD_NSIZES][STKD_NSIZES];
	stkd_row_fn ones[STKD_NSIZES]; /* n times 1; src is not read */
};

/* Those that this processor has, the best one first; at least one. */
size_t stkd_rows_list(const struct stkd_rows *ret[3]);

/* For a cast without loss between whole numbers, or of any type to itself; NULL: there is none. */
stkd_row_fn stkd_row_find(enum stk_dtype from, enum stk_dtype to);
/* Where there is a row function. */
stkd_twins_fn stkd_twins_find(enum stk_dtype from, enum stk_dtype to);
stkd_row_fn stkd_row_ones(enum stk_dtype to);

#endif
