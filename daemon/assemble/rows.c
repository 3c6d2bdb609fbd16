/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled once for each instruction set, with STKD_ISA as the end of its table's name. Short rows
 * are what counts: where there are masks, the values and the padding that share a vector are written
 * in one store, and no loop has a remainder.
 */
#include "daemon/assemble/casts_isa.h"

#include <string.h>
#ifdef __AVX512VL__
#include <immintrin.h>
#endif

#ifdef __AVX512VL__

/* The bits of the first n lanes. */
static inline uint64_t first_lanes(size_t n)
{
	return n >= 64 ? UINT64_MAX : (UINT64_C(1) << n) - 1;
}

/* `load` gives the lanes of a mask from so many bytes behind an address, and zeros in the others. */
#define DEFINE_ROW(name, from, to, bits, load)                                                     \
	static void name(void *restrict dst, const void *restrict src, size_t n, size_t width,     \
			 uint64_t pad)                                                             \
	{                                                                                          \
		enum { lanes = 64 / sizeof(to) };                                                  \
		const uint8_t *s = src;                                                            \
		uint8_t *d = dst;                                                                  \
		__m512i padding = _mm512_set1_epi##bits((to)pad);                                  \
		size_t i = 0;                                                                      \
                                                                                                   \
		for (; i + lanes <= n; i += lanes)                                                 \
			_mm512_storeu_si512(d + i * sizeof(to),                                    \
					    load(first_lanes(lanes), s, i * sizeof(from)));        \
		if (i < n) {                                                                       \
			uint64_t real = first_lanes(n - i);                                        \
			__m512i x = _mm512_mask_blend_epi##bits(real, padding,                     \
								load(real, s, i * sizeof(from)));  \
                                                                                                   \
			_mm512_mask_storeu_epi##bits(d + i * sizeof(to), first_lanes(width - i),   \
						     x);                                           \
			i += lanes;                                                                \
		}                                                                                  \
		for (; i + lanes <= width; i += lanes)                                             \
			_mm512_storeu_si512(d + i * sizeof(to), padding);                          \
		if (i < width)                                                                     \
			_mm512_mask_storeu_epi##bits(d + i * sizeof(to), first_lanes(width - i),   \
						     padding);                                     \
	}

/* The same values into two rows, each with padding of its own. */
#define DEFINE_TWINS(name, from, to, bits, load)                                                   \
	static void name(void *restrict dst, void *restrict twin, const void *restrict src,        \
			 size_t n, size_t width, uint64_t pad, uint64_t twin_pad)                  \
	{                                                                                          \
		enum { lanes = 64 / sizeof(to) };                                                  \
		const uint8_t *s = src;                                                            \
		uint8_t *d = dst, *t = twin;                                                       \
		__m512i padding = _mm512_set1_epi##bits((to)pad);                                  \
		__m512i twins = _mm512_set1_epi##bits((to)twin_pad);                               \
		size_t i = 0;                                                                      \
                                                                                                   \
		for (; i + lanes <= n; i += lanes) {                                               \
			__m512i x = load(first_lanes(lanes), s, i * sizeof(from));                 \
                                                                                                   \
			_mm512_storeu_si512(d + i * sizeof(to), x);                                \
			_mm512_storeu_si512(t + i * sizeof(to), x);                                \
		}                                                                                  \
		if (i < n) {                                                                       \
			uint64_t real = first_lanes(n - i);                                        \
			__m512i x = load(real, s, i * sizeof(from));                               \
                                                                                                   \
			_mm512_mask_storeu_epi##bits(                                              \
				d + i * sizeof(to), first_lanes(width - i),                        \
				_mm512_mask_blend_epi##bits(real, padding, x));                    \
			_mm512_mask_storeu_epi##bits(t + i * sizeof(to), first_lanes(width - i),   \
						     _mm512_mask_blend_epi##bits(real, twins, x)); \
			i += lanes;                                                                \
		}                                                                                  \
		for (size_t k = i; k < width; k += lanes)                                          \
			_mm512_mask_storeu_epi##bits(d + k * sizeof(to), first_lanes(width - k),   \
						     padding);                                     \
		for (size_t k = i; k < width; k += lanes)                                          \
			_mm512_mask_storeu_epi##bits(t + k * sizeof(to), first_lanes(width - k),   \
						     twins);                                       \
	}

#define DEFINE_BOTH(types, from, to, bits, load)                                                   \
	DEFINE_ROW(row_##types, from, to, bits, load)                                              \
	DEFINE_TWINS(twins_##types, from, to, bits, load)

#define LOAD_ONES_8(k, s, at)  ((void)(s), (void)(at), _mm512_set1_epi8(1))
#define LOAD_ONES_16(k, s, at) ((void)(s), (void)(at), _mm512_set1_epi16(1))
#define LOAD_ONES_32(k, s, at) ((void)(s), (void)(at), _mm512_set1_epi32(1))
#define LOAD_ONES_64(k, s, at) ((void)(s), (void)(at), _mm512_set1_epi64(1))
#define LOAD_8_8(k, s, at)     _mm512_maskz_loadu_epi8(k, (s) + (at))
#define LOAD_16_16(k, s, at)   _mm512_maskz_loadu_epi16((__mmask32)(k), (s) + (at))
#define LOAD_32_32(k, s, at)   _mm512_maskz_loadu_epi32((__mmask16)(k), (s) + (at))
#define LOAD_64_64(k, s, at)   _mm512_maskz_loadu_epi64((__mmask8)(k), (s) + (at))
#define LOAD_U8_16(k, s, at)                                                                       \
	_mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8((__mmask32)(k), (s) + (at)))
#define LOAD_U8_32(k, s, at) _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8((__mmask16)(k), (s) + (at)))
#define LOAD_U8_64(k, s, at)                                                                       \
	_mm512_cvtepu8_epi64(_mm_maskz_loadu_epi8((__mmask16)((k)&0xff), (s) + (at)))
#define LOAD_U16_32(k, s, at)                                                                      \
	_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16((__mmask16)(k), (s) + (at)))
#define LOAD_U16_64(k, s, at)                                                                      \
	_mm512_cvtepu16_epi64(_mm_maskz_loadu_epi16((__mmask8)(k), (s) + (at)))
#define LOAD_U32_64(k, s, at)                                                                      \
	_mm512_cvtepu32_epi64(_mm256_maskz_loadu_epi32((__mmask8)(k), (s) + (at)))
#define LOAD_I8_16(k, s, at)                                                                       \
	_mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8((__mmask32)(k), (s) + (at)))
#define LOAD_I8_32(k, s, at) _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8((__mmask16)(k), (s) + (at)))
#define LOAD_I8_64(k, s, at)                                                                       \
	_mm512_cvtepi8_epi64(_mm_maskz_loadu_epi8((__mmask16)((k)&0xff), (s) + (at)))
#define LOAD_I16_32(k, s, at)                                                                      \
	_mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16((__mmask16)(k), (s) + (at)))
#define LOAD_I16_64(k, s, at)                                                                      \
	_mm512_cvtepi16_epi64(_mm_maskz_loadu_epi16((__mmask8)(k), (s) + (at)))
#define LOAD_I32_64(k, s, at)                                                                      \
	_mm512_cvtepi32_epi64(_mm256_maskz_loadu_epi32((__mmask8)(k), (s) + (at)))

DEFINE_BOTH(u8_u8, uint8_t, int8_t, 8, LOAD_8_8)
DEFINE_BOTH(u8_u16, uint8_t, int16_t, 16, LOAD_U8_16)
DEFINE_BOTH(u8_u32, uint8_t, int32_t, 32, LOAD_U8_32)
DEFINE_BOTH(u8_u64, uint8_t, int64_t, 64, LOAD_U8_64)
DEFINE_BOTH(u16_u16, uint16_t, int16_t, 16, LOAD_16_16)
DEFINE_BOTH(u16_u32, uint16_t, int32_t, 32, LOAD_U16_32)
DEFINE_BOTH(u16_u64, uint16_t, int64_t, 64, LOAD_U16_64)
DEFINE_BOTH(u32_u32, uint32_t, int32_t, 32, LOAD_32_32)
DEFINE_BOTH(u32_u64, uint32_t, int64_t, 64, LOAD_U32_64)
DEFINE_BOTH(u64_u64, uint64_t, int64_t, 64, LOAD_64_64)
DEFINE_BOTH(i8_i16, int8_t, int16_t, 16, LOAD_I8_16)
DEFINE_BOTH(i8_i32, int8_t, int32_t, 32, LOAD_I8_32)
DEFINE_BOTH(i8_i64, int8_t, int64_t, 64, LOAD_I8_64)
DEFINE_BOTH(i16_i32, int16_t, int32_t, 32, LOAD_I16_32)
DEFINE_BOTH(i16_i64, int16_t, int64_t, 64, LOAD_I16_64)
DEFINE_BOTH(i32_i64, int32_t, int64_t, 64, LOAD_I32_64)
DEFINE_ROW(ones_8, uint8_t, int8_t, 8, LOAD_ONES_8)
DEFINE_ROW(ones_16, uint16_t, int16_t, 16, LOAD_ONES_16)
DEFINE_ROW(ones_32, uint32_t, int32_t, 32, LOAD_ONES_32)
DEFINE_ROW(ones_64, uint64_t, int64_t, 64, LOAD_ONES_64)

#else

#define DEFINE_ROW(name, from, to)                                                                 \
	static void name(void *restrict dst, const void *restrict src, size_t n, size_t width,     \
			 uint64_t pad)                                                             \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from value;                                                                \
                                                                                                   \
			memcpy(&value, s + i * sizeof(value), sizeof(value));                      \
			d[i] = (to)value;                                                          \
		}                                                                                  \
		for (size_t i = n; i < width; i++)                                                 \
			d[i] = (to)pad;                                                            \
	}

#define DEFINE_TWINS(name, from, to)                                                               \
	static void name(void *restrict dst, void *restrict twin, const void *restrict src,        \
			 size_t n, size_t width, uint64_t pad, uint64_t twin_pad)                  \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst, *t = twin;                                                            \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from value;                                                                \
                                                                                                   \
			memcpy(&value, s + i * sizeof(value), sizeof(value));                      \
			d[i] = (to)value;                                                          \
			t[i] = (to)value;                                                          \
		}                                                                                  \
		for (size_t i = n; i < width; i++)                                                 \
			d[i] = (to)pad;                                                            \
		for (size_t i = n; i < width; i++)                                                 \
			t[i] = (to)twin_pad;                                                       \
	}

#define DEFINE_BOTH(types, from, to)                                                               \
	DEFINE_ROW(row_##types, from, to)                                                          \
	DEFINE_TWINS(twins_##types, from, to)

#define DEFINE_ONES(name, to)                                                                      \
	static void name(void *restrict dst, const void *restrict src, size_t n, size_t width,     \
			 uint64_t pad)                                                             \
	{                                                                                          \
		to *d = dst;                                                                       \
                                                                                                   \
		(void)src;                                                                         \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = 1;                                                                  \
		for (size_t i = n; i < width; i++)                                                 \
			d[i] = (to)pad;                                                            \
	}

DEFINE_BOTH(u8_u8, uint8_t, uint8_t)
DEFINE_BOTH(u8_u16, uint8_t, uint16_t)
DEFINE_BOTH(u8_u32, uint8_t, uint32_t)
DEFINE_BOTH(u8_u64, uint8_t, uint64_t)
DEFINE_BOTH(u16_u16, uint16_t, uint16_t)
DEFINE_BOTH(u16_u32, uint16_t, uint32_t)
DEFINE_BOTH(u16_u64, uint16_t, uint64_t)
DEFINE_BOTH(u32_u32, uint32_t, uint32_t)
DEFINE_BOTH(u32_u64, uint32_t, uint64_t)
DEFINE_BOTH(u64_u64, uint64_t, uint64_t)
DEFINE_BOTH(i8_i16, int8_t, int16_t)
DEFINE_BOTH(i8_i32, int8_t, int32_t)
DEFINE_BOTH(i8_i64, int8_t, int64_t)
DEFINE_BOTH(i16_i32, int16_t, int32_t)
DEFINE_BOTH(i16_i64, int16_t, int64_t)
DEFINE_BOTH(i32_i64, int32_t, int64_t)
DEFINE_ONES(ones_8, uint8_t)
DEFINE_ONES(ones_16, uint16_t)
DEFINE_ONES(ones_32, uint32_t)
DEFINE_ONES(ones_64, uint64_t)

#endif

const struct stkd_rows STKD_ROWS(STKD_ISA) = {
	.name = STKD_NAME(STKD_ISA),
	.unsigned_ =
		{
			{row_u8_u8, row_u8_u16, row_u8_u32, row_u8_u64},
			{NULL, row_u16_u16, row_u16_u32, row_u16_u64},
			{NULL, NULL, row_u32_u32, row_u32_u64},
			{NULL, NULL, NULL, row_u64_u64},
		},
	.signed_ =
		{
			{row_u8_u8, row_i8_i16, row_i8_i32, row_i8_i64},
			{NULL, row_u16_u16, row_i16_i32, row_i16_i64},
			{NULL, NULL, row_u32_u32, row_i32_i64},
			{NULL, NULL, NULL, row_u64_u64},
		},
	.unsigned_twins =
		{
			{twins_u8_u8, twins_u8_u16, twins_u8_u32, twins_u8_u64},
			{NULL, twins_u16_u16, twins_u16_u32, twins_u16_u64},
			{NULL, NULL, twins_u32_u32, twins_u32_u64},
			{NULL, NULL, NULL, twins_u64_u64},
		},
	.signed_twins =
		{
			{twins_u8_u8, twins_i8_i16, twins_i8_i32, twins_i8_i64},
			{NULL, twins_u16_u16, twins_i16_i32, twins_i16_i64},
			{NULL, NULL, twins_u32_u32, twins_i32_i64},
			{NULL, NULL, NULL, twins_u64_u64},
		},
	.ones = {ones_8, ones_16, ones_32, ones_64},
};
