/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/assemble/kernels.h"

/* A stored value as the integer that it means. */
static int64_t value_of(enum stk_dtype dtype, const uint8_t *bytes)
{
	size_t size = stk_dtype_size(dtype);
	uint64_t bits = 0;

	for (size_t i = 0; i < size; i++)
		bits |= (uint64_t)bytes[i] << (8 * i);
	if (dtype == STK_DTYPE_BOOL)
		return bits != 0;
	if (stk_dtype_min(dtype) < 0 && size < 8 && bits >> (8 * size - 1))
		bits -= UINT64_C(1) << (8 * size);
	return (int64_t)bits;
}

static bool is_integer(enum stk_dtype dtype)
{
	return stk_dtype_class(dtype) == STK_DTYPE_IS_INT ||
	       stk_dtype_class(dtype) == STK_DTYPE_IS_BOOL;
}

/* By the ranges alone; 64-bit sources have no wider type. */
static bool holds_all(enum stk_dtype from, enum stk_dtype to)
{
	return is_integer(from) && stk_dtype_class(to) == STK_DTYPE_IS_INT &&
	       stk_dtype_size(from) < 8 && stk_dtype_min(to) <= stk_dtype_min(from) &&
	       stk_dtype_max(to) >= stk_dtype_max(from);
}

static void only_casts_without_loss_are_found(void **state)
{
	(void)state;
	for (unsigned from = 0; from < STK_DTYPE_COUNT + 2; from++) {
		for (unsigned to = 0; to < STK_DTYPE_COUNT + 2; to++) {
			bool found = stkd_copy_find(from, to) != NULL;
			bool same = from == to && stk_dtype_size(from) != 0;

			assert_int_equal(found, same || holds_all(from, to));
		}
	}
}

/* Every pair, from odd addresses, for lengths around the width of vector registers. */
static void every_cast_keeps_every_value(void **state)
{
	uint8_t src[8 * 70 + 1];
	_Alignas(8) uint8_t dst[8 * 71];

	(void)state;
	srand(1);
	for (size_t i = 0; i < sizeof(src); i++)
		src[i] = (uint8_t)(rand() >> 7);
	for (unsigned from = 1; from < STK_DTYPE_COUNT; from++) {
		for (unsigned to = 1; to < STK_DTYPE_COUNT; to++) {
			stkd_copy_fn copy = stkd_copy_find(from, to);
			size_t in = stk_dtype_size(from), out = stk_dtype_size(to);

			for (size_t n = 1; copy && n <= 70; n++) {
				memset(dst, 0xAA, sizeof(dst));
				copy(dst, src + 1, n);
				for (size_t i = 0; i < n && from == to; i++)
					assert_memory_equal(dst + i * out, src + 1 + i * in, in);
				for (size_t i = 0; i < n && from != to; i++)
					assert_true(value_of(to, dst + i * out) ==
						    value_of(from, src + 1 + i * in));
				assert_int_equal(dst[n * out], 0xAA);
			}
		}
	}
}

static void a_fill_writes_its_value_n_times_and_nothing_else(void **state)
{
	static const uint64_t values[] = {0, UINT64_MAX, (uint64_t)-100, 1, 0x4141414141414141};
	_Alignas(8) uint8_t dst[8 * 40];

	(void)state;
	for (size_t size = 1; size <= 8; size *= 2) {
		for (size_t v = 0; v < STK_ARRAY_SIZE(values); v++) {
			for (size_t n = 0; n < 39; n++) {
				memset(dst, 0x55, sizeof(dst));
				stkd_fill_find(size)(dst, values[v], n);
				for (size_t i = 0; i < n; i++)
					assert_memory_equal(dst + i * size, &values[v], size);
				assert_int_equal(dst[n * size], 0x55);
			}
		}
	}
	assert_null(stkd_fill_find(0));
	assert_null(stkd_fill_find(3));
	assert_null(stkd_fill_find(16));
}

static uint64_t encoded(enum stk_dtype dtype, double real)
{
	uint64_t bits = 0x5555555555555555;

	assert_int_equal(stkd_value_encode(dtype, 0, real, &bits), 0);
	return bits;
}

static void floats_are_rounded_once_to_nearest_even(void **state)
{
	(void)state;
	assert_int_equal(encoded(STK_DTYPE_F16, 1.0), 0x3c00);
	assert_int_equal(encoded(STK_DTYPE_F16, -2.0), 0xc000);
	assert_int_equal(encoded(STK_DTYPE_F16, -0.0), 0x8000);
	assert_int_equal(encoded(STK_DTYPE_F16, 65504), 0x7bff);
	assert_int_equal(encoded(STK_DTYPE_F16, 65519.99), 0x7bff);
	assert_int_equal(encoded(STK_DTYPE_F16, 0x1p-24), 0x0001);
	assert_int_equal(encoded(STK_DTYPE_F16, 0x1p-25), 0x0000);
	assert_int_equal(encoded(STK_DTYPE_F16, 0x1.8p-24), 0x0002);
	assert_int_equal(encoded(STK_DTYPE_F16, 0x1.ffcp-15), 0x03ff + 1);
	assert_int_equal(encoded(STK_DTYPE_F16, 1 + 0x1p-11), 0x3c00);
	assert_int_equal(encoded(STK_DTYPE_F16, 1 + 0x3p-11), 0x3c02);
	assert_int_equal(encoded(STK_DTYPE_F16, INFINITY), 0x7c00);
	assert_int_equal(encoded(STK_DTYPE_F16, NAN) & 0x7fff, 0x7e00);
	assert_int_equal(encoded(STK_DTYPE_BF16, -100), 0xc2c8);
	assert_int_equal(encoded(STK_DTYPE_BF16, -INFINITY), 0xff80);
	/* Through float the last bit would be lost, and the tie fall to the even side. */
	assert_int_equal(encoded(STK_DTYPE_BF16, 1 + 0x1p-8 + 0x1p-40), 0x3f81);
	assert_int_equal(encoded(STK_DTYPE_BF16, 1 + 0x1p-8), 0x3f80);
	assert_int_equal(encoded(STK_DTYPE_BF16, 0x1p-133), 0x0001);
	assert_int_equal(encoded(STK_DTYPE_F32, 0.1), 0x3dcccccd);
	assert_int_equal(encoded(STK_DTYPE_F64, 0.1), 0x3fb999999999999a);
}

/* The compiler's own conversion is the reference for every F32 that BF16 can hold, and for floats. */
static void every_bfloat16_encodes_to_itself(void **state)
{
	(void)state;
	for (uint32_t bits = 0; bits < 0x10000; bits++) {
		uint32_t wide = bits << 16;
		float value;

		memcpy(&value, &wide, sizeof(value));
		if (!isnan(value))
			assert_int_equal(encoded(STK_DTYPE_BF16, value), bits);
	}
}

static void a_value_that_does_not_fit_is_refused(void **state)
{
	uint64_t bits;

	(void)state;
	assert_int_equal(stkd_value_encode(STK_DTYPE_U8, -1, -1, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_U8, 256, 256, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_BOOL, 2, 2, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_I32, INT64_C(1) << 31, 0, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_F16, 0, 65520, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_BF16, 0, 3.4e38, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_F32, 0, 1e39, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_F8_E4M3, 1, 1, &bits), -ERANGE);
	assert_int_equal(stkd_value_encode(STK_DTYPE_C64, 0, 0, &bits), 0);
	assert_int_equal(stkd_value_encode(STK_DTYPE_I8, -100, -100, &bits), 0);
	assert_int_equal((uint8_t)bits, 0x9c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_casts_without_loss_are_found),
		cmocka_unit_test(every_cast_keeps_every_value),
		cmocka_unit_test(a_fill_writes_its_value_n_times_and_nothing_else),
		cmocka_unit_test(floats_are_rounded_once_to_nearest_even),
		cmocka_unit_test(every_bfloat16_encodes_to_itself),
		cmocka_unit_test(a_value_that_does_not_fit_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
