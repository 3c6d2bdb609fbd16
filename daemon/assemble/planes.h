/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of images: values that take turns into planes of their own and back, and values in reverse.
 * Compiled for several instruction sets, as casts are. No state, any thread.
 */
#ifndef STKD_PLANES_H
#define STKD_PLANES_H

#include "daemon/assemble/casts.h"
#include "daemon/assemble/rows.h"

enum { STKD_PLANES_MAX = 4 };

/*
 * n groups of so many values as there are planes, n <= STKD_BLOCK. The planes of a block lie STKD_BLOCK
 * values apart; what is not the block may lie at any address. Nothing behind the groups is read.
 */
typedef void (*stkd_planes_fn)(void *restrict dst, const void *restrict src, size_t n);

struct stkd_planes {
	const char *name;
	/* By the number of planes, 2 to 4, and the logarithm of a value's size. */
	stkd_planes_fn split[STKD_PLANES_MAX + 1][STKD_NSIZES];      /* groups into a block */
	stkd_planes_fn split_back[STKD_PLANES_MAX + 1][STKD_NSIZES]; /* the last group first */
	stkd_planes_fn merge[STKD_PLANES_MAX + 1][STKD_NSIZES];      /* a block into groups */
	/* n values, the last one first. */
	stkd_planes_fn back[STKD_NSIZES];
};

/* Those that this processor has, the best one first; at least one. */
size_t stkd_planes_list(const struct stkd_planes *ret[3]);

#endif
