/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels of transforms: values of a stored type into a block, arithmetic on blocks, and blocks into
 * values of a batch's type. The same C is compiled for several instruction sets and gives the same
 * bits on each; the best that the processor has is chosen once. No state, any thread.
 */
#ifndef STKD_CASTS_H
#define STKD_CASTS_H

#include "proto/dtype.h"

#define STKD_BLOCK 512 /* values of a block: all of it stays in the first-level cache */

/* What a block's values are. */
enum stkd_domain { STKD_I64, STKD_U64, STKD_F32, STKD_F64, STKD_NDOMAINS };

/* Values beyond the target's range become its nearest one, or what the bits say (integers) or
 * infinity (floats; E4M3 has none and takes NaN). */
enum stkd_beyond { STKD_SATURATE, STKD_WRAP, STKD_NBEYOND };

/* n values at any address into a block. */
typedef void (*stkd_load_fn)(void *restrict block, const void *restrict src, size_t n);
/* A block's n values, at any address, into aligned ones. Saturating ones say whether any value was
 * out of range; wrapping ones say false. */
typedef bool (*stkd_store_fn)(void *restrict dst, const void *restrict block, size_t n);

struct stkd_casts {
	const char *name;
	/* NULL: not possible. */
	stkd_load_fn load[STKD_NDOMAINS][STK_DTYPE_COUNT];
	/* 64-bit integers into F64, rounded to odd, so that a store as a smaller float after it rounds
	 * as if there had been one rounding. */
	stkd_load_fn load_odd[STK_DTYPE_COUNT];
	stkd_store_fn store[STKD_NDOMAINS][STK_DTYPE_COUNT][STKD_NBEYOND];
	/* U8 times scale plus bias, all of them finite, straight to a float type; the second with values
	 * of their own for each place. NULL: there is none. */
	struct {
		void (*all)(void *restrict dst, const void *restrict src, size_t n, float scale,
			    float bias);
		void (*in_turn)(void *restrict dst, const void *restrict src, size_t n,
				const float *restrict scale, const float *restrict bias);
	} pixels[STK_DTYPE_COUNT];
	/* block = block * scale + bias, rounded twice. */
	void (*affine_f32)(float *block, float scale, float bias, size_t n);
	void (*affine_f64)(double *block, double scale, double bias, size_t n);
	/* The same with values of their own for each place. */
	void (*affines_f32)(float *restrict block, const float *restrict scale,
			    const float *restrict bias, size_t n);
	void (*affines_f64)(double *restrict block, const double *restrict scale,
			    const double *restrict bias, size_t n);
	/* NaN stays. */
	void (*clamp_f32)(float *block, float low, float high, size_t n);
	void (*clamp_f64)(double *block, double low, double high, size_t n);
	void (*clamp_i64)(int64_t *block, int64_t low, int64_t high, size_t n);
	void (*clamp_u64)(uint64_t *block, uint64_t low, uint64_t high, size_t n);
	/* The rest from 0 to modulus - 1. */
	void (*modulo_i64)(int64_t *block, int64_t modulus, size_t n);
	void (*modulo_u64)(uint64_t *block, uint64_t modulus, size_t n);
};

/* Those that this processor has, the best one first; at least one. */
size_t stkd_casts_list(const struct stkd_casts *ret[3]);
const struct stkd_casts *stkd_casts_best(void);

#endif
