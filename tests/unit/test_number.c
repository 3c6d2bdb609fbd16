/* SPDX-License-Identifier: Apache-2.0 */
/*
 * JSON numbers as elements: ranges, rounding, and what is refused.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tools/stoker/number.h"

static int put(const char *text, enum stk_dtype dtype, void *out, struct stk_err *err)
{
	json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
	int r;

	assert_non_null(value);
	r = number_put(value, dtype, out, err);
	json_decref(value);
	return r;
}

static uint16_t half(enum stk_dtype dtype, const char *text)
{
	uint16_t bits = 0xdead;

	assert_int_equal(put(text, dtype, &bits, NULL), 0);
	return bits;
}

static void both_ends_of_every_integer_type_are_written_and_the_next_is_refused(void **state)
{
	static const struct {
		enum stk_dtype dtype;
		const char *low, *below, *high, *above;
		uint64_t low_bits, high_bits;
	} cases[] = {
		{STK_DTYPE_U8, "0", "-1", "255", "256", 0, 0xff},
		{STK_DTYPE_I8, "-128", "-129", "127", "128", 0x80, 0x7f},
		{STK_DTYPE_U16, "0", "-1", "65535", "65536", 0, 0xffff},
		{STK_DTYPE_I16, "-32768", "-32769", "32767", "32768", 0x8000, 0x7fff},
		{STK_DTYPE_U32, "0", "-1", "4294967295", "4294967296", 0, 0xffffffff},
		{STK_DTYPE_I32, "-2147483648", "-2147483649", "2147483647", "2147483648",
		 0x80000000, 0x7fffffff},
		{STK_DTYPE_BOOL, "0", "-1", "1", "2", 0, 1},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_err err = {0};
		uint64_t bits = 0;

		assert_int_equal(put(cases[i].low, cases[i].dtype, &bits, &err), 0);
		assert_int_equal(bits, cases[i].low_bits);
		bits = 0;
		assert_int_equal(put(cases[i].high, cases[i].dtype, &bits, &err), 0);
		assert_int_equal(bits, cases[i].high_bits);
		assert_true(put(cases[i].below, cases[i].dtype, &bits, &err) < 0);
		assert_true(put(cases[i].above, cases[i].dtype, &bits, &err) < 0);
		assert_non_null(strstr(err.text, cases[i].above));
	}
}

static void a_range_error_says_value_and_range(void **state)
{
	struct stk_err err = {0};
	uint16_t out;

	(void)state;
	assert_int_equal(put("70000", STK_DTYPE_U16, &out, &err), -ERANGE);
	assert_string_equal(err.text, "70000 is not an integer from 0 to 65535 (U16)");
}

static void integers_take_no_fractions_strings_booleans_or_null(void **state)
{
	static const char *const values[] = {"1.5", "1.0", "\"1\"", "true", "null", "[1]", "{}"};
	int32_t out;

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(values); i++)
		assert_int_equal(put(values[i], STK_DTYPE_I32, &out, NULL), -EINVAL);
}

static void f16_is_rounded_to_nearest_even(void **state)
{
	(void)state;
	assert_int_equal(half(STK_DTYPE_F16, "0"), 0x0000);
	assert_int_equal(half(STK_DTYPE_F16, "-0.0"), 0x8000);
	assert_int_equal(half(STK_DTYPE_F16, "1"), 0x3c00);
	assert_int_equal(half(STK_DTYPE_F16, "-2.0"), 0xc000);
	assert_int_equal(half(STK_DTYPE_F16, "65504"), 0x7bff);
	assert_int_equal(half(STK_DTYPE_F16, "65519.999"), 0x7bff);
	assert_int_equal(half(STK_DTYPE_F16, "2049"), 0x6800); /* a tie, to even */
	assert_int_equal(half(STK_DTYPE_F16, "2051"), 0x6802);
	/* A tie but for its last bit: rounding to float first would lose it. */
	assert_int_equal(half(STK_DTYPE_F16, "2049.0000000001"), 0x6801);
	assert_int_equal(half(STK_DTYPE_F16, "6.103515625e-05"), 0x0400); /* smallest normal */
	assert_int_equal(half(STK_DTYPE_F16, "6.1e-05"), 0x03ff);         /* subnormal */
	assert_int_equal(half(STK_DTYPE_F16, "6.103e-05"), 0x0400);       /* rounds up to it */
	assert_int_equal(half(STK_DTYPE_F16, "5.9604644775390625e-08"), 0x0001);
	assert_int_equal(half(STK_DTYPE_F16, "2.9802322387695312e-08"), 0x0000); /* a tie */
	assert_int_equal(half(STK_DTYPE_F16, "2.9802322387695316e-08"), 0x0001);
	assert_int_equal(half(STK_DTYPE_F16, "1e-300"), 0x0000);
}

static void bf16_is_rounded_to_nearest_even(void **state)
{
	(void)state;
	assert_int_equal(half(STK_DTYPE_BF16, "1"), 0x3f80);
	assert_int_equal(half(STK_DTYPE_BF16, "-3"), 0xc040);
	assert_int_equal(half(STK_DTYPE_BF16, "257"), 0x4380); /* a tie, to even */
	assert_int_equal(half(STK_DTYPE_BF16, "259"), 0x4382);
	assert_int_equal(half(STK_DTYPE_BF16, "3.3895313892515355e38"), 0x7f7f);
}

static void floats_never_become_infinite(void **state)
{
	struct stk_err err = {0};
	uint64_t out;

	(void)state;
	assert_int_equal(put("65520", STK_DTYPE_F16, &out, &err), -ERANGE);
	assert_non_null(strstr(err.text, "65504"));
	assert_int_equal(put("-1e6", STK_DTYPE_F16, &out, &err), -ERANGE);
	assert_int_equal(put("3.4e38", STK_DTYPE_BF16, &out, &err), -ERANGE);
	assert_int_equal(put("3.5e38", STK_DTYPE_F32, &out, &err), -ERANGE);
	assert_int_equal(put("1e308", STK_DTYPE_F64, &out, &err), 0);
	assert_int_equal(put("\"x\"", STK_DTYPE_F32, &out, &err), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			both_ends_of_every_integer_type_are_written_and_the_next_is_refused),
		cmocka_unit_test(a_range_error_says_value_and_range),
		cmocka_unit_test(integers_take_no_fractions_strings_booleans_or_null),
		cmocka_unit_test(f16_is_rounded_to_nearest_even),
		cmocka_unit_test(bf16_is_rounded_to_nearest_even),
		cmocka_unit_test(floats_never_become_infinite),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
