/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Kernels in plain C that compilers vectorise: no alias between source and target, loads through
 * memcpy() because nothing in a shard is aligned. Any thread.
 */
#include "daemon/assemble/kernels.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* From here on the library's copy is faster; below, its start costs a tenth of a row of tokens. */
#define LARGE 16384

#define DEFINE_COPY(type)                                                                          \
	static void copy_##type(void *restrict dst, const void *restrict src, size_t n)            \
	{                                                                                          \
		if (n >= LARGE / sizeof(type))                                                     \
			memcpy(dst, src, n * sizeof(type));                                        \
		else                                                                               \
			type##_to_##type(dst, src, n);                                             \
	}

#define DEFINE_WIDEN(from, to)                                                                     \
	static void from##_to_##to(void *restrict dst, const void *restrict src, size_t n)         \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from value;                                                                \
                                                                                                   \
			memcpy(&value, s + i * sizeof(value), sizeof(value));                      \
			d[i] = value;                                                              \
		}                                                                                  \
	}

/* A stored BOOL may be any byte; as a number it is 0 or 1. */
#define DEFINE_BOOL(to)                                                                            \
	static void bool_to_##to(void *restrict dst, const void *restrict src, size_t n)           \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = s[i] != 0;                                                          \
	}

/* Not memset(): it stores the bytes where its last two vectors overlap twice. */
#define DEFINE_FILL(type)                                                                          \
	static void fill_##type(void *dst, uint64_t bits, size_t n)                                \
	{                                                                                          \
		type value = (type)bits;                                                           \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = value;                                                              \
	}

#define DEFINE_COUNT(type)                                                                         \
	static void count_##type(void *dst, uint64_t first, size_t n)                              \
	{                                                                                          \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = (type)(first + i);                                                  \
	}

DEFINE_WIDEN(uint8_t, uint8_t)
DEFINE_WIDEN(uint16_t, uint16_t)
DEFINE_WIDEN(uint32_t, uint32_t)
DEFINE_WIDEN(uint64_t, uint64_t)

DEFINE_WIDEN(uint8_t, uint16_t)
DEFINE_WIDEN(uint8_t, uint32_t)
DEFINE_WIDEN(uint8_t, uint64_t)
DEFINE_WIDEN(uint16_t, uint32_t)
DEFINE_WIDEN(uint16_t, uint64_t)
DEFINE_WIDEN(uint32_t, uint64_t)
DEFINE_WIDEN(int8_t, int16_t)
DEFINE_WIDEN(int8_t, int32_t)
DEFINE_WIDEN(int8_t, int64_t)
DEFINE_WIDEN(int16_t, int32_t)
DEFINE_WIDEN(int16_t, int64_t)
DEFINE_WIDEN(int32_t, int64_t)

DEFINE_COPY(uint8_t)
DEFINE_COPY(uint16_t)
DEFINE_COPY(uint32_t)
DEFINE_COPY(uint64_t)

DEFINE_BOOL(uint8_t)
DEFINE_BOOL(uint16_t)
DEFINE_BOOL(uint32_t)
DEFINE_BOOL(uint64_t)

DEFINE_FILL(uint8_t)
DEFINE_FILL(uint16_t)
DEFINE_FILL(uint32_t)
DEFINE_FILL(uint64_t)

DEFINE_COUNT(uint32_t)
DEFINE_COUNT(uint64_t)

/* Tables are indexed by the binary logarithm of the size in bytes: 1, 2, 4, 8. */
enum { NSIZES = 4 };

static const stkd_copy_fn same[NSIZES] = {copy_uint8_t, copy_uint16_t, copy_uint32_t,
					  copy_uint64_t};
static const stkd_copy_fn from_bool[NSIZES] = {bool_to_uint8_t, bool_to_uint16_t, bool_to_uint32_t,
					       bool_to_uint64_t};
static const stkd_copy_fn from_unsigned[NSIZES][NSIZES] = {
	{NULL, uint8_t_to_uint16_t, uint8_t_to_uint32_t, uint8_t_to_uint64_t},
	{NULL, NULL, uint16_t_to_uint32_t, uint16_t_to_uint64_t},
	{NULL, NULL, NULL, uint32_t_to_uint64_t},
};
static const stkd_copy_fn from_signed[NSIZES][NSIZES] = {
	{NULL, int8_t_to_int16_t, int8_t_to_int32_t, int8_t_to_int64_t},
	{NULL, NULL, int16_t_to_int32_t, int16_t_to_int64_t},
	{NULL, NULL, NULL, int32_t_to_int64_t},
};
static const stkd_fill_fn fills[NSIZES] = {fill_uint8_t, fill_uint16_t, fill_uint32_t,
					   fill_uint64_t};

/* NSIZES for a size that no table has. */
static unsigned size_index(size_t size)
{
	for (unsigned i = 0; i < NSIZES; i++)
		if (size == (size_t)1 << i)
			return i;
	return NSIZES;
}

stkd_copy_fn stkd_copy_find(enum stk_dtype from, enum stk_dtype to)
{
	unsigned s = size_index(stk_dtype_size(from)), d = size_index(stk_dtype_size(to));

	if (s == NSIZES || d == NSIZES)
		return NULL;
	if (from == to)
		return same[s];
	if (stk_dtype_class(to) != STK_DTYPE_IS_INT)
		return NULL;
	if (stk_dtype_class(from) == STK_DTYPE_IS_BOOL)
		return from_bool[d];
	if (stk_dtype_class(from) != STK_DTYPE_IS_INT)
		return NULL;
	/* An unsigned target has the same bytes as a signed one, but no negative values. */
	if (stk_dtype_min(from) < 0)
		return stk_dtype_min(to) < 0 ? from_signed[s][d] : NULL;
	return from_unsigned[s][d];
}

stkd_fill_fn stkd_fill_find(size_t size)
{
	unsigned i = size_index(size);

	return i == NSIZES ? NULL : fills[i];
}

stkd_count_fn stkd_count_find(size_t size)
{
	return size == 4 ? count_uint32_t : size == 8 ? count_uint64_t : NULL;
}

/* 0 <= real < 2^53; ties to even. */
static uint64_t round_even(double real)
{
	uint64_t whole = (uint64_t)real;
	double rest = real - (double)whole;

	return whole + (rest > 0.5 || (rest == 0.5 && whole & 1));
}

/*
 * Rounds a double once to a type with that many exponent and mantissa bits. Through float, BF16 and
 * F16 would be rounded twice.
 */
static int encode_small(double real, int exponent_bits, int mantissa_bits, uint64_t *ret)
{
	int bias = (1 << (exponent_bits - 1)) - 1, exponent;
	uint64_t sign = (uint64_t) !!signbit(real) << (exponent_bits + mantissa_bits);
	uint64_t infinity = ((UINT64_C(1) << exponent_bits) - 1) << mantissa_bits;
	uint64_t bits;

	if (isnan(real)) {
		*ret = sign | infinity | UINT64_C(1) << (mantissa_bits - 1);
		return 0;
	}
	if (isinf(real) || real == 0) {
		*ret = sign | (isinf(real) ? infinity : 0);
		return 0;
	}
	frexp(real, &exponent); /* |real| = [0.5, 1) * 2^exponent */
	exponent = STK_MAX(exponent - 1, 1 - bias);
	/* Units of the last mantissa bit, subnormals too; a carry moves into the exponent by itself. */
	bits = round_even(ldexp(fabs(real), mantissa_bits - exponent));
	bits += (uint64_t)(exponent + bias - 1) << mantissa_bits;
	if (bits >= infinity)
		return -ERANGE;
	*ret = sign | bits;
	return 0;
}

static int encode_f32(double real, uint64_t *ret)
{
	float value = (float)real;
	uint32_t bits;

	if (isinf(value) && !isinf(real))
		return -ERANGE;
	memcpy(&bits, &value, sizeof(bits));
	*ret = bits;
	return 0;
}

int stkd_value_encode(enum stk_dtype dtype, int64_t integer, double real, uint64_t *ret_bits)
{
	switch (stk_dtype_class(dtype)) {
	case STK_DTYPE_IS_BOOL:
	case STK_DTYPE_IS_INT:
		if (integer < stk_dtype_min(dtype) || integer > stk_dtype_max(dtype))
			return -ERANGE;
		*ret_bits = (uint64_t)integer;
		return 0;
	case STK_DTYPE_IS_FLOAT:
		if (dtype == STK_DTYPE_F16)
			return encode_small(real, 5, 10, ret_bits);
		if (dtype == STK_DTYPE_BF16)
			return encode_small(real, 8, 7, ret_bits);
		if (dtype == STK_DTYPE_F32)
			return encode_f32(real, ret_bits);
		memcpy(ret_bits, &real, sizeof(real));
		return 0;
	case STK_DTYPE_IS_OTHER:
		break;
	}
	if (integer || real != 0)
		return -ERANGE;
	*ret_bits = 0;
	return 0;
}
