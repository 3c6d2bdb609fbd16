/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Vectors of floats, for processors that convert F16 themselves: as many as one instruction takes.
 * They round as IEEE says, to nearest, ties to even, subnormal numbers and NaN too. Private to casts.c.
 */
#ifndef STKD_HALVES_H
#define STKD_HALVES_H

#include "proto/base.h"

#define HALF_MAX  65504.0f /* the largest one */
#define HALF_OVER 65520.0f /* and what is half a step above, which rounds to infinity */

#if defined(__AVX512F__)
#include <immintrin.h>

#define LANES 16
typedef __m512 floats;

static inline floats floats_at(const void *src)
{
	return _mm512_loadu_ps(src);
}

static inline floats floats_all(float x)
{
	return _mm512_set1_ps(x);
}

static inline floats floats_of_bytes(const uint8_t *src)
{
	return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)src)));
}

static inline floats floats_of_halves(const void *src)
{
	return _mm512_cvtph_ps(_mm256_loadu_si256(src));
}

static inline void floats_put(void *dst, floats x)
{
	_mm512_storeu_ps(dst, x);
}

static inline void halves_put(void *dst, floats x)
{
	_mm256_storeu_si256(dst, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline floats floats_affine(floats x, floats scale, floats bias)
{
	return _mm512_add_ps(_mm512_mul_ps(x, scale), bias);
}

/* Finite ones as the nearest half; adds to *any where there were such beyond. */
static inline floats floats_lower(floats x, uint32_t *any)
{
	__m512 size = _mm512_abs_ps(x), most = _mm512_set1_ps(HALF_MAX);
	__mmask16 over = _mm512_cmp_ps_mask(size, _mm512_set1_ps(HALF_OVER), _CMP_GE_OQ) &
			 _mm512_cmp_ps_mask(size, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ);
	__mmask16 below = over & _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);

	*any |= over;
	x = _mm512_mask_mov_ps(x, over, most);
	return _mm512_mask_sub_ps(x, below, _mm512_setzero_ps(), most);
}

#elif defined(__F16C__)
#include <immintrin.h>

#define LANES 8
typedef __m256 floats;

static inline floats floats_at(const void *src)
{
	return _mm256_loadu_ps(src);
}

static inline floats floats_all(float x)
{
	return _mm256_set1_ps(x);
}

static inline floats floats_of_bytes(const uint8_t *src)
{
	return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)src)));
}

static inline floats floats_of_halves(const void *src)
{
	return _mm256_cvtph_ps(_mm_loadu_si128(src));
}

static inline void floats_put(void *dst, floats x)
{
	_mm256_storeu_ps(dst, x);
}

static inline void halves_put(void *dst, floats x)
{
	_mm_storeu_si128(dst, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}

static inline floats floats_affine(floats x, floats scale, floats bias)
{
	return _mm256_add_ps(_mm256_mul_ps(x, scale), bias);
}

/* Finite ones as the nearest half; adds to *any where there were such beyond. */
static inline floats floats_lower(floats x, uint32_t *any)
{
	__m256 sign = _mm256_and_ps(x, _mm256_set1_ps(-0.0f)), size = _mm256_xor_ps(x, sign);
	__m256 over =
		_mm256_and_ps(_mm256_cmp_ps(size, _mm256_set1_ps(HALF_OVER), _CMP_GE_OQ),
			      _mm256_cmp_ps(size, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ));

	*any |= (uint32_t)_mm256_movemask_ps(over);
	return _mm256_blendv_ps(x, _mm256_or_ps(_mm256_set1_ps(HALF_MAX), sign), over);
}

#elif defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

#define LANES 4
typedef float32x4_t floats;

/* As bytes: shards align nothing. */
static inline floats floats_at(const void *src)
{
	return vreinterpretq_f32_u8(vld1q_u8(src));
}

static inline floats floats_all(float x)
{
	return vdupq_n_f32(x);
}

static inline floats floats_of_bytes(const uint8_t *src)
{
	uint32_t bytes;

	memcpy(&bytes, src, sizeof(bytes));
	return vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(bytes)))));
}

static inline floats floats_of_halves(const void *src)
{
	return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(src)));
}

static inline void floats_put(void *dst, floats x)
{
	vst1q_u8(dst, vreinterpretq_u8_f32(x));
}

static inline void halves_put(void *dst, floats x)
{
	vst1_u8(dst, vreinterpret_u8_f16(vcvt_f16_f32(x)));
}

static inline floats floats_affine(floats x, floats scale, floats bias)
{
	return vaddq_f32(vmulq_f32(x, scale), bias);
}

/* Finite ones as the nearest half; adds to *any where there were such beyond. */
static inline floats floats_lower(floats x, uint32_t *any)
{
	uint32x4_t sign = vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0x80000000u));
	uint32x4_t over = vandq_u32(vcageq_f32(x, vdupq_n_f32(HALF_OVER)),
				    vcaltq_f32(x, vdupq_n_f32(__builtin_inff())));
	uint32x4_t most = vorrq_u32(vreinterpretq_u32_f32(vdupq_n_f32(HALF_MAX)), sign);

	*any |= vmaxvq_u32(over);
	return vbslq_f32(over, vreinterpretq_f32_u32(most), x);
}

#endif

#endif
