/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled once for each instruction set, with STKD_ISA as the end of its table's name. Plain loops
 * with a constant number of planes: compilers turn them into shuffles (x86) or loads and stores of
 * whole groups (NEON).
 */
#include "daemon/assemble/casts_isa.h"

#include <string.h>

#define LOAD(value, s, i) memcpy(&(value), (s) + (i) * sizeof(value), sizeof(value))

/* `to` is i, or counts from the other end. */
#define DEFINE_SPLITS(type, name, to)                                                              \
	static void name##_2_##type(void *restrict dst, const void *restrict src, size_t n)        \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		type *d = dst, a, b;                                                               \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			LOAD(a, s, 2 * i);                                                         \
			LOAD(b, s, 2 * i + 1);                                                     \
			d[to] = a;                                                                 \
			d[STKD_BLOCK + (to)] = b;                                                  \
		}                                                                                  \
	}                                                                                          \
	static void name##_3_##type(void *restrict dst, const void *restrict src, size_t n)        \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		type *d = dst, a, b, c;                                                            \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			LOAD(a, s, 3 * i);                                                         \
			LOAD(b, s, 3 * i + 1);                                                     \
			LOAD(c, s, 3 * i + 2);                                                     \
			d[to] = a;                                                                 \
			d[STKD_BLOCK + (to)] = b;                                                  \
			d[2 * STKD_BLOCK + (to)] = c;                                              \
		}                                                                                  \
	}                                                                                          \
	static void name##_4_##type(void *restrict dst, const void *restrict src, size_t n)        \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		type *d = dst, a, b, c, e;                                                         \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			LOAD(a, s, 4 * i);                                                         \
			LOAD(b, s, 4 * i + 1);                                                     \
			LOAD(c, s, 4 * i + 2);                                                     \
			LOAD(e, s, 4 * i + 3);                                                     \
			d[to] = a;                                                                 \
			d[STKD_BLOCK + (to)] = b;                                                  \
			d[2 * STKD_BLOCK + (to)] = c;                                              \
			d[3 * STKD_BLOCK + (to)] = e;                                              \
		}                                                                                  \
	}

#define DEFINE_MERGES(type)                                                                        \
	static void merge_2_##type(void *restrict dst, const void *restrict src, size_t n)         \
	{                                                                                          \
		const type *s = src;                                                               \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			d[2 * i] = s[i];                                                           \
			d[2 * i + 1] = s[STKD_BLOCK + i];                                          \
		}                                                                                  \
	}                                                                                          \
	static void merge_3_##type(void *restrict dst, const void *restrict src, size_t n)         \
	{                                                                                          \
		const type *s = src;                                                               \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			d[3 * i] = s[i];                                                           \
			d[3 * i + 1] = s[STKD_BLOCK + i];                                          \
			d[3 * i + 2] = s[2 * STKD_BLOCK + i];                                      \
		}                                                                                  \
	}                                                                                          \
	static void merge_4_##type(void *restrict dst, const void *restrict src, size_t n)         \
	{                                                                                          \
		const type *s = src;                                                               \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			d[4 * i] = s[i];                                                           \
			d[4 * i + 1] = s[STKD_BLOCK + i];                                          \
			d[4 * i + 2] = s[2 * STKD_BLOCK + i];                                      \
			d[4 * i + 3] = s[3 * STKD_BLOCK + i];                                      \
		}                                                                                  \
	}

#define DEFINE_BACK(type)                                                                          \
	static void back_##type(void *restrict dst, const void *restrict src, size_t n)            \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		type *d = dst, x;                                                                  \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			LOAD(x, s, i);                                                             \
			d[n - 1 - i] = x;                                                          \
		}                                                                                  \
	}

#define DEFINE_ALL(type)                                                                           \
	DEFINE_SPLITS(type, split, i)                                                              \
	DEFINE_SPLITS(type, split_back, n - 1 - i)                                                 \
	DEFINE_MERGES(type)                                                                        \
	DEFINE_BACK(type)

DEFINE_ALL(uint8_t)
DEFINE_ALL(uint16_t)
DEFINE_ALL(uint32_t)
DEFINE_ALL(uint64_t)

#define SIZES(name)                                                                                \
	{                                                                                          \
		name##_uint8_t, name##_uint16_t, name##_uint32_t, name##_uint64_t                  \
	}

const struct stkd_planes STKD_PLANES(STKD_ISA) = {
	.name = STKD_NAME(STKD_ISA),
	.split = {[2] = SIZES(split_2), [3] = SIZES(split_3), [4] = SIZES(split_4)},
	.split_back =
		{[2] = SIZES(split_back_2), [3] = SIZES(split_back_3), [4] = SIZES(split_back_4)},
	.merge = {[2] = SIZES(merge_2), [3] = SIZES(merge_3), [4] = SIZES(merge_4)},
	.back = SIZES(back),
};
