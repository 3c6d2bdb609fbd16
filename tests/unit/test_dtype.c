/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: codes, names, sizes and ranges agree with one another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "client/stoker.h"
#include "proto/dtype.h"

static void every_name_leads_back_to_its_code(void **state)
{
	(void)state;
	for (int i = 1; i < STK_DTYPE_COUNT; i++) {
		const char *name = stk_dtype_name((enum stk_dtype)i);

		assert_int_equal(stk_dtype_from_safetensors(name, strlen(name)), i);
		assert_int_equal(stk_dtype_from_spec(name), i);
	}
}

static void names_of_safetensors_are_exact_and_those_of_specs_ignore_case(void **state)
{
	(void)state;
	assert_int_equal(stk_dtype_from_safetensors("i32", 3), STK_DTYPE_NONE);
	assert_int_equal(stk_dtype_from_safetensors("I32x", 3), STK_DTYPE_I32);
	assert_int_equal(stk_dtype_from_safetensors("I3", 2), STK_DTYPE_NONE);
	assert_int_equal(stk_dtype_from_safetensors("F8_E4M3FN", 9), STK_DTYPE_NONE);
	assert_int_equal(stk_dtype_from_spec("bf16"), STK_DTYPE_BF16);
	assert_int_equal(stk_dtype_from_spec("int32"), STK_DTYPE_NONE);
	assert_int_equal(stk_dtype_from_spec("?"), STK_DTYPE_NONE);
}

static void unknown_codes_have_no_size_and_a_name_that_can_be_printed(void **state)
{
	(void)state;
	assert_int_equal(stk_dtype_size((enum stk_dtype)STK_DTYPE_COUNT), 0);
	assert_int_equal(stk_dtype_bits((enum stk_dtype) - 1), 0);
	assert_string_equal(stk_dtype_name((enum stk_dtype)1000), "?");
}

static void elements_that_are_no_whole_bytes_have_bits_but_no_size(void **state)
{
	(void)state;
	assert_int_equal(stk_dtype_bits(STK_DTYPE_F4), 4);
	assert_int_equal(stk_dtype_size(STK_DTYPE_F4), 0);
	assert_int_equal(stk_dtype_bits(STK_DTYPE_F6_E2M3), 6);
	assert_int_equal(stk_dtype_size(STK_DTYPE_F6_E2M3), 0);
}

static void ranges_of_integers_follow_from_their_sizes(void **state)
{
	(void)state;
	for (int i = 1; i < STK_DTYPE_COUNT; i++) {
		enum stk_dtype d = (enum stk_dtype)i;
		unsigned bits = stk_dtype_bits(d);

		if (stk_dtype_class(d) != STK_DTYPE_IS_INT)
			continue;
		if (stk_dtype_name(d)[0] == 'I') {
			assert_int_equal(stk_dtype_max(d), INT64_MAX >> (64 - bits));
			assert_int_equal(stk_dtype_min(d), INT64_MIN >> (64 - bits));
		} else {
			assert_int_equal(stk_dtype_min(d), 0);
			assert_int_equal(stk_dtype_max(d),
					 bits == 64 ? INT64_MAX : (INT64_C(1) << bits) - 1);
		}
	}
}

static void the_public_header_has_the_same_codes(void **state)
{
	(void)state;
	assert_int_equal(STK_BOOL, STK_DTYPE_BOOL);
	assert_int_equal(STK_I32, STK_DTYPE_I32);
	assert_int_equal(STK_I64, STK_DTYPE_I64);
	assert_int_equal(STK_BF16, STK_DTYPE_BF16);
	assert_int_equal(STK_F64, STK_DTYPE_F64);
	assert_int_equal(STK_C64, STK_DTYPE_C64);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_name_leads_back_to_its_code),
		cmocka_unit_test(names_of_safetensors_are_exact_and_those_of_specs_ignore_case),
		cmocka_unit_test(unknown_codes_have_no_size_and_a_name_that_can_be_printed),
		cmocka_unit_test(elements_that_are_no_whole_bytes_have_bits_but_no_size),
		cmocka_unit_test(ranges_of_integers_follow_from_their_sizes),
		cmocka_unit_test(the_public_header_has_the_same_codes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
