/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The best bare loop: what the memory system and one simple loop allow for the bytes of a batch.
 * Knows no shards, guards, rings or checks; a yardstick and nothing else. No state, any thread.
 */
#ifndef STOKER_BARELOOP_H
#define STOKER_BARELOOP_H

#include "proto/dtype.h"

#define BARE_FIELDS_MAX 64

/* n values, then padding up to width values; src is NULL where the values are all 1. */
typedef void (*bare_fn)(void *restrict dst, const void *restrict src, size_t n, size_t width,
			uint64_t pad);

/* n values times scale plus bias. */
typedef void (*bare_affine_fn)(void *restrict dst, const void *restrict src, size_t n, float scale,
			       float bias);

struct bare_field {
	bare_fn fn;
	bare_affine_fn affine; /* of a fixed field, for rows that hold a sample; NULL: fn */
	float scale, bias;
	const uint8_t *base;   /* of the source's mapping; NULL: made of nothing stored */
	const uint64_t *start; /* by sample, from base */
	bool ragged;
	uint64_t inner; /* values of one element */
	uint64_t size;  /* bytes of one value in the batch */
	uint64_t pad;
};

struct bare_batch {
	const uint64_t *ids;
	uint32_t rows_real, rows, width;
	const uint64_t *offsets; /* of each field in the slot */
};

struct bareloop {
	struct bare_field fields[BARE_FIELDS_MAX];
	uint32_t nfields;
	const uint32_t *lengths; /* by sample */
	uint32_t max_length;
	/* ids, mask and labels of one source: one loop, as somebody would write it by hand. */
	void (*triple)(const struct bareloop *loop, const struct bare_batch *batch, uint8_t *slot);
};

/* The loop from one type to another; NULL: there is none of such a kind. @from NONE: ones. */
bare_fn bareloop_find(enum stk_dtype from, enum stk_dtype to);
bare_affine_fn bareloop_find_affine(enum stk_dtype from, enum stk_dtype to);
/* After the fields are set: finds the one loop for all of them, if there is one. */
void bareloop_fuse(struct bareloop *loop, enum stk_dtype from);

void bareloop_run(const struct bareloop *loop, const struct bare_batch *batch, uint8_t *slot);

#endif
