/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cursor as bytes: little-endian base-128 numbers {version, epoch, step, nbuckets, [position,
 * delivered, lent, a count per bucket, more]} and XXH32 of them, little-endian. More is left out when
 * it would be 0: {flags, [skip, first], [base, steps, main_steps, lender, lend_step, lend]}. Where the counts
 * take too much room, as numbers, flags come first and the counts last, each of `bits` bits. nbuckets 0 is a bare
 * cursor: epoch and step alone say everything (the beginning, the tail), or the counts would not
 * fit and the epoch is planned again up to the step. Plain value.
 */
#ifndef STKD_CURSOR_H
#define STKD_CURSOR_H

#include "proto/err.h"
#include "proto/shm.h"
#include "proto/spec.h"

#define STKD_CURSOR_VERSION 1

struct stkd_cursor {
	uint64_t epoch, step; /* the next one */
	uint32_t nbuckets;    /* 0: bare, nothing below is there */
	uint64_t position;    /* samples of the order that were read */
	uint64_t delivered;   /* rows of the steps so far */
	uint64_t lent;        /* steps of the lending bucket so far */
	uint64_t waiting[STK_SPEC_EDGES_MAX];
	uint32_t first; /* bucket of the first step, where skip is not 0 */
	uint64_t
		skip; /* arrivals that the epoch's first step took in advance and are still to come */
	bool outline; /* of an epoch, or the rest of one, that is unlike the others: */
	uint64_t base, steps, main_steps;
	uint32_t lender;
	uint64_t lend_step, lend;
};

/* Falls back to a bare cursor when the counts do not fit. Return: size. */
size_t stkd_cursor_encode(const struct stkd_cursor *cursor, uint8_t out[STK_SHM_CURSOR_MAX]);

/* Checks form and checksum; what the numbers mean is the iterator's to check. -EINVAL. */
int stkd_cursor_decode(const void *data, size_t size, struct stkd_cursor *ret, struct stk_err *err);

/*
 * The cursor of packed rows: {version, epoch, step, at, in}, in the same spelling. The first row that
 * was not delivered is number `in` of window `at`, or begins with token `in` of the sample at
 * position `at`. Step 0: both are 0. Of flat packs that another world left within their last window,
 * {parts, before} follow: what its rows were spread for.
 */
#define STKD_CURSOR_PACKED 64 /* its version; those of the other kind stay below */

struct stkd_packed_cursor {
	uint64_t epoch, step, at, in;
	uint64_t parts, before; /* parts 0: left out */
};

size_t stkd_packed_cursor_encode(const struct stkd_packed_cursor *cursor,
				 uint8_t out[STK_SHM_CURSOR_MAX]);
int stkd_packed_cursor_decode(const void *data, size_t size, struct stkd_packed_cursor *ret,
			      struct stk_err *err);

#endif
