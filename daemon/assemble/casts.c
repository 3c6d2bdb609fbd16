/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled once for each instruction set, with STKD_ISA as the end of its table's name. Only what
 * compilers vectorise: no branches in loops, no calls. Contraction to fused multiply-add is off, so
 * that each build rounds alike.
 *
 * AVX-512's own conversion to BF16 is not used: it flushes subnormal numbers to zero.
 */
#include "daemon/assemble/casts_isa.h"
#ifndef STKD_PLAIN
#include "daemon/assemble/halves.h"
#endif

#include <float.h>
#include <math.h>
#include <string.h>

/* Loads. */

#define DEFINE_LOAD(name, from, to, expression)                                                    \
	static void name(void *restrict block, const void *restrict src, size_t n)                 \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = block;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from x;                                                                    \
                                                                                                   \
			memcpy(&x, s + i * sizeof(x), sizeof(x));                                  \
			d[i] = expression;                                                         \
		}                                                                                  \
	}

static inline uint32_t bits_of(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float float_of(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

/* Subnormal ones are made normal by a subtraction, so that there is no loop. */
static inline float from_f16(uint16_t half)
{
	const uint32_t inf = 0x7c00u << 13;
	uint32_t sign = (uint32_t)(half & 0x8000) << 16, magnitude = (uint32_t)(half & 0x7fff)
								     << 13;
	uint32_t normal = magnitude + ((127 - 15) << 23);
	uint32_t special = (magnitude + ((255 - 31) << 23)) | (magnitude > inf ? 0x400000u : 0);
	uint32_t small = bits_of(float_of(normal + (1u << 23)) - float_of(113u << 23));
	uint32_t bits = magnitude >= inf ? special : magnitude < 1u << 23 ? small : normal;

	return float_of(bits | sign);
}

static inline float from_bf16(uint16_t half)
{
	return float_of((uint32_t)half << 16);
}

/* Rounded to odd: the last bit says that something was lost. */
static inline double odd_from_u64(uint64_t value)
{
	uint64_t lost = value >> 53 ? value & 0x7ff : 0;

	/* With the lowest eleven bits gone converting is exact; at least 42 stay. */
	return value >> 53 ? (double)((value & ~UINT64_C(0x7ff)) | (lost ? 0x800 : 0))
			   : (double)value;
}

static inline double odd_from_i64(int64_t value)
{
	uint64_t magnitude = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;

	return value < 0 ? -odd_from_u64(magnitude) : odd_from_u64(magnitude);
}

#define DEFINE_INTEGER_LOADS(name, type)                                                           \
	DEFINE_LOAD(load_i64_##name, type, int64_t, (int64_t)x)                                    \
	DEFINE_LOAD(load_f64_##name, type, double, (double)x)

#define DEFINE_SMALL_LOADS(name, type)                                                             \
	DEFINE_INTEGER_LOADS(name, type)                                                           \
	DEFINE_LOAD(load_f32_##name, type, float, (float)x)

DEFINE_SMALL_LOADS(u8, uint8_t)
DEFINE_SMALL_LOADS(i8, int8_t)
DEFINE_SMALL_LOADS(u16, uint16_t)
DEFINE_SMALL_LOADS(i16, int16_t)
DEFINE_INTEGER_LOADS(u32, uint32_t)
DEFINE_INTEGER_LOADS(i32, int32_t)
DEFINE_LOAD(load_i64_i64, int64_t, int64_t, x)
DEFINE_LOAD(load_u64_u64, uint64_t, uint64_t, x)
DEFINE_LOAD(load_f64_i64, int64_t, double, (double)x)
DEFINE_LOAD(load_f64_u64, uint64_t, double, (double)x)
DEFINE_LOAD(load_odd_i64, int64_t, double, odd_from_i64(x))
DEFINE_LOAD(load_odd_u64, uint64_t, double, odd_from_u64(x))
/* A stored BOOL may be any byte. */
DEFINE_LOAD(load_i64_bool, uint8_t, int64_t, x != 0)
DEFINE_LOAD(load_f32_bool, uint8_t, float, x != 0 ? 1.0f : 0.0f)
DEFINE_LOAD(load_f64_bool, uint8_t, double, x != 0 ? 1.0 : 0.0)
DEFINE_LOAD(load_f32_f32, float, float, x)
DEFINE_LOAD(load_f32_bf16, uint16_t, float, from_bf16(x))
DEFINE_LOAD(load_f64_f16, uint16_t, double, (double)from_f16(x))
DEFINE_LOAD(load_f64_bf16, uint16_t, double, (double)from_bf16(x))
DEFINE_LOAD(load_f64_f32, float, double, (double)x)
DEFINE_LOAD(load_f64_f64, double, double, x)
#ifndef LANES
DEFINE_LOAD(load_f32_f16, uint16_t, float, from_f16(x))
#else
static void load_f32_f16(void *restrict block, const void *restrict src, size_t n)
{
	const uint8_t *s = src;
	float *d = block;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		floats_put(d + i, floats_of_halves(s + 2 * i));
	for (; i < n; i++) {
		uint16_t half;

		memcpy(&half, s + 2 * i, sizeof(half));
		d[i] = from_f16(half);
	}
}
#endif

/* Stores. `beyond` is a constant wherever these are inlined. */

#define DEFINE_STORE(name, type, from, to, expression, is_beyond)                                  \
	static inline bool name(void *restrict dst, const void *restrict block, size_t n,          \
				enum stkd_beyond beyond)                                           \
	{                                                                                          \
		const uint8_t *s = block;                                                          \
		to *d = dst;                                                                       \
		type any = 0;                                                                      \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from x;                                                                    \
                                                                                                   \
			memcpy(&x, s + i * sizeof(x), sizeof(x));                                  \
			d[i] = (to)(expression);                                                   \
			any |= (type)(is_beyond);                                                  \
		}                                                                                  \
		return beyond == STKD_SATURATE && any;                                             \
	}                                                                                          \
	static bool name##_saturate(void *restrict dst, const void *restrict block, size_t n)      \
	{                                                                                          \
		return name(dst, block, n, STKD_SATURATE);                                         \
	}                                                                                          \
	__attribute__((unused)) static bool name##_wrap(void *restrict dst,                        \
							const void *restrict block, size_t n)      \
	{                                                                                          \
		return name(dst, block, n, STKD_WRAP);                                             \
	}

#define IN_I64(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))

#define DEFINE_STORE_I64(name, to, low, high)                                                      \
	DEFINE_STORE(store_i64_##name, uint64_t, int64_t, to,                                      \
		     beyond == STKD_WRAP ? x : IN_I64(x, (int64_t)(low), (int64_t)(high)),         \
		     x < (int64_t)(low) || x > (int64_t)(high))                                    \
	DEFINE_STORE(store_u64_##name, uint64_t, uint64_t, to,                                     \
		     beyond == STKD_WRAP || x <= (uint64_t)(high) ? x : (uint64_t)(high),          \
		     x > (uint64_t)(high))

DEFINE_STORE_I64(u8, uint8_t, 0, UINT8_MAX)
DEFINE_STORE_I64(i8, int8_t, INT8_MIN, INT8_MAX)
DEFINE_STORE_I64(u16, uint16_t, 0, UINT16_MAX)
DEFINE_STORE_I64(i16, int16_t, INT16_MIN, INT16_MAX)
DEFINE_STORE_I64(u32, uint32_t, 0, UINT32_MAX)
DEFINE_STORE_I64(i32, int32_t, INT32_MIN, INT32_MAX)
DEFINE_STORE_I64(i64, int64_t, INT64_MIN, INT64_MAX)
DEFINE_STORE(store_i64_u64, uint64_t, int64_t, uint64_t,
	     beyond == STKD_WRAP || x >= 0 ? (uint64_t)x : 0, x < 0)
DEFINE_STORE(store_u64_u64, uint64_t, uint64_t, uint64_t, x, 0)
DEFINE_STORE(store_i64_bool, uint64_t, int64_t, uint8_t, x != 0, 0)
DEFINE_STORE(store_u64_bool, uint64_t, uint64_t, uint8_t, x != 0, 0)
DEFINE_STORE(store_f32_bool, uint32_t, float, uint8_t, x != 0, 0)
DEFINE_STORE(store_f64_bool, uint64_t, double, uint8_t, x != 0, 0)

/* To the nearest whole number, ties to even, without a call: what is added and taken away again
 * leaves no room for a fraction. */
static inline float whole_f32(float x)
{
	float magic = float_of((bits_of(x) & 0x80000000u) | 0x4b000000u);
	float r = (x + magic) - magic;

	return fabsf(x) < 0x1p23f ? r : x;
}

static inline double whole_f64(double x)
{
	double magic = copysign(0x1p52, x);
	double r = (x + magic) - magic;

	return fabs(x) < 0x1p52 ? r : x;
}

/* Below and above are no values of the type, or its own ends where those are floats. */
static inline int32_t i32_of(float whole, float low, float high)
{
	float in = whole < low ? low : whole > high ? high : whole;

	return (int32_t)(in == in ? in : 0.0f);
}

/* The bits that two's complement would keep; 0 beyond 64 bits and for NaN. */
static inline int64_t i64_of(double whole)
{
	return (int64_t)(whole >= -0x1p63 && whole < 0x1p63 ? whole : 0.0);
}

#define DEFINE_STORE_F32(name, to, low, high)                                                      \
	DEFINE_STORE(store_f32_##name, uint32_t, float, to,                                        \
		     beyond == STKD_WRAP ? (to)i64_of((double)whole_f32(x))                        \
					 : (to)i32_of(whole_f32(x), (float)(low), (float)(high)),  \
		     !(whole_f32(x) >= (float)(low) && whole_f32(x) <= (float)(high)))

DEFINE_STORE_F32(u8, uint8_t, 0, UINT8_MAX)
DEFINE_STORE_F32(i8, int8_t, INT8_MIN, INT8_MAX)
DEFINE_STORE_F32(u16, uint16_t, 0, UINT16_MAX)
DEFINE_STORE_F32(i16, int16_t, INT16_MIN, INT16_MAX)

/* `over` is the first number above the type's range. */
#define DEFINE_STORE_F64(name, to, low, over, max)                                                 \
	static inline to whole_as_##name(double whole, enum stkd_beyond beyond)                    \
	{                                                                                          \
		if (beyond == STKD_WRAP)                                                           \
			return (to)i64_of(whole);                                                  \
		if (whole >= (over))                                                               \
			return max;                                                                \
		return whole >= (low) ? (to)whole : whole < (low) ? (to)(low) : 0;                 \
	}                                                                                          \
	DEFINE_STORE(store_f64_##name, uint64_t, double, to,                                       \
		     whole_as_##name(whole_f64(x), beyond),                                        \
		     !(whole_f64(x) >= (low) && whole_f64(x) < (over)))

DEFINE_STORE_F64(u8, uint8_t, 0.0, 0x1p8, UINT8_MAX)
DEFINE_STORE_F64(i8, int8_t, -0x1p7, 0x1p7, INT8_MAX)
DEFINE_STORE_F64(u16, uint16_t, 0.0, 0x1p16, UINT16_MAX)
DEFINE_STORE_F64(i16, int16_t, -0x1p15, 0x1p15, INT16_MAX)
DEFINE_STORE_F64(u32, uint32_t, 0.0, 0x1p32, UINT32_MAX)
DEFINE_STORE_F64(i32, int32_t, -0x1p31, 0x1p31, INT32_MAX)
DEFINE_STORE_F64(u64, uint64_t, 0.0, 0x1p64, UINT64_MAX)
DEFINE_STORE_F64(i64, int64_t, -0x1p63, 0x1p63, INT64_MAX)

/* Floats: magnitude and sign apart; adding half of the last place that stays, less one for an even
 * one, rounds to nearest, and a carry goes into the exponent by itself. */
#define INF32 0x7f800000u

static inline uint32_t magnitude_of(float x)
{
	return bits_of(x) & 0x7fffffffu;
}

/* Finite, but at least `limit`: it would become infinite. */
static inline bool is_over(float x, uint32_t limit)
{
	/* One comparison: compilers give up at two that are tied by &&. */
	return magnitude_of(x) - limit < INF32 - limit;
}

static inline uint16_t to_bf16(float x, enum stkd_beyond beyond)
{
	uint32_t bits = bits_of(x);
	uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	if (beyond == STKD_SATURATE)
		rounded = is_over(x, 0x7f7f8000u) ? (bits >> 16 & 0x8000) | 0x7f7f : rounded;
	return (uint16_t)(magnitude_of(x) > INF32 ? (bits >> 16) | 0x40 : rounded);
}

static inline uint16_t to_f16(float x, enum stkd_beyond beyond)
{
	uint32_t sign = bits_of(x) >> 16 & 0x8000, u = magnitude_of(x);
	uint32_t normal = (u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13;
	uint32_t small = bits_of(float_of(u) + 0.5f) - 0x3f000000u;
	uint32_t half = u < 0x38800000u ? small : normal;
	uint32_t lowered = beyond == STKD_SATURATE ? is_over(x, 0x477ff000u) : 0;

	half = u >= 0x477ff000u ? 0x7c00 : half;
	half = u > INF32 ? 0x7e00 | (u >> 13 & 0x3ff) : half;
	/* The largest number is one below infinity. */
	return (uint16_t)((half - lowered) | sign);
}

static inline uint8_t to_e4m3(float x, enum stkd_beyond beyond)
{
	uint32_t sign = bits_of(x) >> 24 & 0x80, u = magnitude_of(x);
	uint32_t normal = (u - (120u << 23) + 0x7ffff + (u >> 20 & 1)) >> 20;
	uint32_t small = bits_of(float_of(u) + 0x1p14f) - 0x46800000u;
	uint32_t byte = u < 0x3c800000u ? small : normal;

	/* 464 lies between 448, the largest, and what would be the next one. */
	byte = u > 0x43e80000u ? (beyond == STKD_SATURATE && u <= INF32 ? 0x7e : 0x7f) : byte;
	return (uint8_t)((u > INF32 ? 0x7f : byte) | sign);
}

static inline uint8_t to_e5m2(float x, enum stkd_beyond beyond)
{
	uint32_t sign = bits_of(x) >> 24 & 0x80, u = magnitude_of(x);
	uint32_t normal = (u - (112u << 23) + 0xfffff + (u >> 21 & 1)) >> 21;
	uint32_t small = bits_of(float_of(u) + 0x1p7f) - 0x43000000u;
	uint32_t byte = u < 0x38800000u ? small : normal;
	uint32_t over = beyond == STKD_SATURATE && u < INF32 ? 0x7b : 0x7c;

	byte = u >= 0x47700000u ? over : byte;
	return (uint8_t)((u > INF32 ? 0x7f : byte) | sign);
}

/* Rounded to odd, so that the rounding after it is the only one. */
static inline float odd_from_f64(double x)
{
	float f = (float)x;
	uint32_t bits = bits_of(f);
	uint32_t down = fabs((double)f) > fabs(x) ? bits - 1 : bits;

	return (double)f == x || x != x ? f : float_of(down | 1);
}

#define DEFINE_STORE_F32_FLOAT(name, to, limit)                                                    \
	DEFINE_STORE(store_f32_##name, uint32_t, float, to, to_##name(x, beyond), is_over(x, limit))

#define DEFINE_STORE_F64_FLOAT(name, to, limit)                                                    \
	DEFINE_STORE(store_f64_##name, uint64_t, double, to, to_##name(odd_from_f64(x), beyond),   \
		     is_over(odd_from_f64(x), limit) || (fabs(x) > FLT_MAX && fabs(x) <= DBL_MAX))

DEFINE_STORE_F32_FLOAT(bf16, uint16_t, 0x7f7f8000u)
DEFINE_STORE_F64_FLOAT(bf16, uint16_t, 0x7f7f8000u)
DEFINE_STORE_F64_FLOAT(f16, uint16_t, 0x477ff000u)
DEFINE_STORE_F32_FLOAT(e4m3, uint8_t, 0x43e80001u)
DEFINE_STORE_F64_FLOAT(e4m3, uint8_t, 0x43e80001u)
DEFINE_STORE_F32_FLOAT(e5m2, uint8_t, 0x47700000u)
DEFINE_STORE_F64_FLOAT(e5m2, uint8_t, 0x47700000u)
DEFINE_STORE(store_f32_f32, uint32_t, float, float, x, 0)
DEFINE_STORE(store_f32_f64, uint64_t, float, double, (double)x, 0)
DEFINE_STORE(store_f64_f64, uint64_t, double, double, x, 0)

/* The last bits of a double decide what rounds up to infinity. */
static inline float to_f32(double x, enum stkd_beyond beyond)
{
	float f = (float)x;

	if (beyond == STKD_WRAP || fabs(x) > DBL_MAX || x != x || fabsf(f) <= FLT_MAX)
		return f;
	return x < 0 ? -FLT_MAX : FLT_MAX;
}

DEFINE_STORE(store_f64_f32, uint64_t, double, float, to_f32(x, beyond),
	     fabsf((float)x) > FLT_MAX && fabs(x) <= DBL_MAX)

#ifndef LANES
DEFINE_STORE_F32_FLOAT(f16, uint16_t, 0x477ff000u)
#else
static inline bool store_f32_f16(void *restrict dst, const void *restrict block, size_t n,
				 enum stkd_beyond beyond)
{
	const uint8_t *s = block;
	uint16_t *d = dst;
	uint32_t any = 0;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		floats x = floats_at(s + 4 * i);

		halves_put(d + i, beyond == STKD_SATURATE ? floats_lower(x, &any) : x);
	}
	for (; i < n; i++) {
		float x;

		memcpy(&x, s + 4 * i, sizeof(x));
		d[i] = to_f16(x, beyond);
		any |= is_over(x, 0x477ff000u);
	}
	return beyond == STKD_SATURATE && any;
}

static bool store_f32_f16_saturate(void *restrict dst, const void *restrict block, size_t n)
{
	return store_f32_f16(dst, block, n, STKD_SATURATE);
}

static bool store_f32_f16_wrap(void *restrict dst, const void *restrict block, size_t n)
{
	return store_f32_f16(dst, block, n, STKD_WRAP);
}
#endif

/* Arithmetic on blocks. */

#define DEFINE_AFFINE(name, type)                                                                  \
	static void affine_##name(type *block, type scale, type bias, size_t n)                    \
	{                                                                                          \
		for (size_t i = 0; i < n; i++)                                                     \
			block[i] = block[i] * scale + bias;                                        \
	}                                                                                          \
	static void affines_##name(type *restrict block, const type *restrict scale,               \
				   const type *restrict bias, size_t n)                            \
	{                                                                                          \
		for (size_t i = 0; i < n; i++)                                                     \
			block[i] = block[i] * scale[i] + bias[i];                                  \
	}

#define DEFINE_CLAMP(name, type)                                                                   \
	static void clamp_##name(type *block, type low, type high, size_t n)                       \
	{                                                                                          \
		for (size_t i = 0; i < n; i++) {                                                   \
			type x = block[i];                                                         \
                                                                                                   \
			x = x < low ? low : x;                                                     \
			block[i] = x > high ? high : x;                                            \
		}                                                                                  \
	}

DEFINE_AFFINE(f32, float)
DEFINE_AFFINE(f64, double)
DEFINE_CLAMP(f32, float)
DEFINE_CLAMP(f64, double)
DEFINE_CLAMP(i64, int64_t)
DEFINE_CLAMP(u64, uint64_t)

static void modulo_u64(uint64_t *block, uint64_t modulus, size_t n)
{
	for (size_t i = 0; i < n; i++)
		block[i] = block[i] < modulus ? block[i] : block[i] % modulus;
}

static void modulo_i64(int64_t *block, int64_t modulus, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		int64_t rest = block[i] % modulus;

		block[i] = rest < 0 ? rest + modulus : rest;
	}
}

/* Pixels: from the source to the target without a block between, floats as IEEE rounds them. */

/* Not of NaN, which finite ones do not make of a byte. */
static inline uint16_t number_to_bf16(float x)
{
	uint32_t bits = bits_of(x);

	return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

#define DEFINE_PIXELS(name, to, convert)                                                           \
	static void pixels_##name(void *restrict dst, const void *restrict src, size_t n,          \
				  float scale, float bias)                                         \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			float x = (float)s[i] * scale + bias;                                      \
                                                                                                   \
			d[i] = convert;                                                            \
		}                                                                                  \
	}                                                                                          \
	static void pixels_in_turn_##name(void *restrict dst, const void *restrict src, size_t n,  \
					  const float *restrict scale, const float *restrict bias) \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			float x = (float)s[i] * scale[i] + bias[i];                                \
                                                                                                   \
			d[i] = convert;                                                            \
		}                                                                                  \
	}

DEFINE_PIXELS(f32, float, x)
DEFINE_PIXELS(bf16, uint16_t, number_to_bf16(x))
#ifdef LANES
static void pixels_f16(void *restrict dst, const void *restrict src, size_t n, float scale,
		       float bias)
{
	floats scales = floats_all(scale), biases = floats_all(bias);
	const uint8_t *s = src;
	uint16_t *d = dst;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		halves_put(d + i, floats_affine(floats_of_bytes(s + i), scales, biases));
	for (; i < n; i++)
		d[i] = to_f16((float)s[i] * scale + bias, STKD_WRAP);
}

static void pixels_in_turn_f16(void *restrict dst, const void *restrict src, size_t n,
			       const float *restrict scale, const float *restrict bias)
{
	const uint8_t *s = src;
	uint16_t *d = dst;
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		halves_put(d + i, floats_affine(floats_of_bytes(s + i), floats_at(scale + i),
						floats_at(bias + i)));
	for (; i < n; i++)
		d[i] = to_f16((float)s[i] * scale[i] + bias[i], STKD_WRAP);
}
#else
DEFINE_PIXELS(f16, uint16_t, to_f16(x, STKD_WRAP))
#endif

#define BOTH(name)                                                                                 \
	{                                                                                          \
		[STKD_SATURATE] = name##_saturate, [STKD_WRAP] = name##_wrap                       \
	}

const struct stkd_casts
	STKD_CASTS(STKD_ISA) =
		{
			.name = STKD_NAME(STKD_ISA),
			.load =
				{
					[STKD_I64] =
						{
							[STK_DTYPE_BOOL] = load_i64_bool,
							[STK_DTYPE_U8] = load_i64_u8,
							[STK_DTYPE_I8] = load_i64_i8,
							[STK_DTYPE_U16] = load_i64_u16,
							[STK_DTYPE_I16] = load_i64_i16,
							[STK_DTYPE_U32] = load_i64_u32,
							[STK_DTYPE_I32] = load_i64_i32,
							[STK_DTYPE_I64] = load_i64_i64,
						},
					[STKD_U64] = {[STK_DTYPE_U64] = load_u64_u64},
					[STKD_F32] =
						{
							[STK_DTYPE_BOOL] = load_f32_bool,
							[STK_DTYPE_U8] = load_f32_u8,
							[STK_DTYPE_I8] = load_f32_i8,
							[STK_DTYPE_U16] = load_f32_u16,
							[STK_DTYPE_I16] = load_f32_i16,
							[STK_DTYPE_F16] = load_f32_f16,
							[STK_DTYPE_BF16] = load_f32_bf16,
							[STK_DTYPE_F32] = load_f32_f32,
						},
					[STKD_F64] =
						{
							[STK_DTYPE_BOOL] = load_f64_bool,
							[STK_DTYPE_U8] = load_f64_u8,
							[STK_DTYPE_I8] = load_f64_i8,
							[STK_DTYPE_U16] = load_f64_u16,
							[STK_DTYPE_I16] = load_f64_i16,
							[STK_DTYPE_U32] = load_f64_u32,
							[STK_DTYPE_I32] = load_f64_i32,
							[STK_DTYPE_U64] = load_f64_u64,
							[STK_DTYPE_I64] = load_f64_i64,
							[STK_DTYPE_F16] = load_f64_f16,
							[STK_DTYPE_BF16] = load_f64_bf16,
							[STK_DTYPE_F32] = load_f64_f32,
							[STK_DTYPE_F64] = load_f64_f64,
						},
				},
			.store =
				{
					[STKD_I64] =
						{
							[STK_DTYPE_BOOL] = BOTH(store_i64_bool),
							[STK_DTYPE_U8] = BOTH(store_i64_u8),
							[STK_DTYPE_I8] = BOTH(store_i64_i8),
							[STK_DTYPE_U16] = BOTH(store_i64_u16),
							[STK_DTYPE_I16] = BOTH(store_i64_i16),
							[STK_DTYPE_U32] = BOTH(store_i64_u32),
							[STK_DTYPE_I32] = BOTH(store_i64_i32),
							[STK_DTYPE_U64] = BOTH(store_i64_u64),
							[STK_DTYPE_I64] = BOTH(store_i64_i64),
						},
					[STKD_U64] =
						{
							[STK_DTYPE_BOOL] = BOTH(store_u64_bool),
							[STK_DTYPE_U8] = BOTH(store_u64_u8),
							[STK_DTYPE_I8] = BOTH(store_u64_i8),
							[STK_DTYPE_U16] = BOTH(store_u64_u16),
							[STK_DTYPE_I16] = BOTH(store_u64_i16),
							[STK_DTYPE_U32] = BOTH(store_u64_u32),
							[STK_DTYPE_I32] = BOTH(store_u64_i32),
							[STK_DTYPE_U64] = BOTH(store_u64_u64),
							[STK_DTYPE_I64] = BOTH(store_u64_i64),
						},
					[STKD_F32] =
						{
							[STK_DTYPE_BOOL] = BOTH(store_f32_bool),
							[STK_DTYPE_U8] = BOTH(store_f32_u8),
							[STK_DTYPE_I8] = BOTH(store_f32_i8),
							[STK_DTYPE_U16] = BOTH(store_f32_u16),
							[STK_DTYPE_I16] = BOTH(store_f32_i16),
							[STK_DTYPE_F16] = BOTH(store_f32_f16),
							[STK_DTYPE_BF16] = BOTH(store_f32_bf16),
							[STK_DTYPE_F32] = BOTH(store_f32_f32),
							[STK_DTYPE_F64] = BOTH(store_f32_f64),
							[STK_DTYPE_F8_E4M3] = BOTH(store_f32_e4m3),
							[STK_DTYPE_F8_E5M2] = BOTH(store_f32_e5m2),
						},
					[STKD_F64] =
						{
							[STK_DTYPE_BOOL] = BOTH(store_f64_bool),
							[STK_DTYPE_U8] = BOTH(store_f64_u8),
							[STK_DTYPE_I8] = BOTH(store_f64_i8),
							[STK_DTYPE_U16] = BOTH(store_f64_u16),
							[STK_DTYPE_I16] = BOTH(store_f64_i16),
							[STK_DTYPE_U32] = BOTH(store_f64_u32),
							[STK_DTYPE_I32] = BOTH(store_f64_i32),
							[STK_DTYPE_U64] = BOTH(store_f64_u64),
							[STK_DTYPE_I64] = BOTH(store_f64_i64),
							[STK_DTYPE_F16] = BOTH(store_f64_f16),
							[STK_DTYPE_BF16] = BOTH(store_f64_bf16),
							[STK_DTYPE_F32] = BOTH(store_f64_f32),
							[STK_DTYPE_F64] = BOTH(store_f64_f64),
							[STK_DTYPE_F8_E4M3] = BOTH(store_f64_e4m3),
							[STK_DTYPE_F8_E5M2] = BOTH(store_f64_e5m2),
						},
				},
			.load_odd =
				{[STK_DTYPE_U64] = load_odd_u64, [STK_DTYPE_I64] = load_odd_i64},
			.pixels =
				{
					[STK_DTYPE_F16] = {pixels_f16, pixels_in_turn_f16},
					[STK_DTYPE_BF16] = {pixels_bf16, pixels_in_turn_bf16},
					[STK_DTYPE_F32] = {pixels_f32, pixels_in_turn_f32},
				},
			.affine_f32 = affine_f32,
			.affine_f64 = affine_f64,
			.affines_f32 = affines_f32,
			.affines_f64 = affines_f64,
			.clamp_f32 = clamp_f32,
			.clamp_f64 = clamp_f64,
			.clamp_i64 = clamp_i64,
			.clamp_u64 = clamp_u64,
			.modulo_i64 = modulo_i64,
			.modulo_u64 = modulo_u64,
};
