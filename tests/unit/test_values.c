/* SPDX-License-Identifier: Apache-2.0 */
/* Values: elements as people and programs read them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/stoker/values.h"

static void prints(enum stk_dtype dtype, const void *data, uint64_t n, uint64_t shown, bool text,
		   const char *wanted)
{
	_cleanup_(stk_freep) char *buffer = NULL;
	size_t size;
	FILE *out = open_memstream(&buffer, &size);

	assert_non_null(out);
	if (text)
		values_print_text(out, dtype, data, n, shown);
	else
		values_print(out, dtype, data, n, shown);
	assert_int_equal(fclose(out), 0);
	assert_string_equal(buffer, wanted);
}

static void gives_json(json_t *json, const char *wanted)
{
	_cleanup_(stk_freep) char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);

	json_decref(json);
	assert_string_equal(text, wanted);
}

static void every_kind_of_number_is_shown_as_its_value(void **state)
{
	const int8_t i8[] = {-1, 127};
	const int16_t i16[] = {-32768, 5};
	const int64_t i64[] = {INT64_MIN};
	const uint16_t u16[] = {65535};
	const uint64_t u64[] = {UINT64_MAX, 1};
	const float f32[] = {0.1f, -2, 16777216};
	const double f64[] = {0.1, 1e300};
	const uint16_t f16[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x7c00};
	const uint16_t bf16[] = {0x3f80, 0xc040};

	(void)state;
	prints(STK_DTYPE_I8, i8, 2, 9, false, "[-1, 127]");
	prints(STK_DTYPE_I16, i16, 2, 9, false, "[-32768, 5]");
	prints(STK_DTYPE_I64, i64, 1, 9, false, "[-9223372036854775808]");
	prints(STK_DTYPE_U16, u16, 1, 9, false, "[65535]");
	prints(STK_DTYPE_U64, u64, 2, 9, false, "[18446744073709551615, 1]");
	prints(STK_DTYPE_F32, f32, 3, 9, false, "[0.1, -2, 16777216]");
	prints(STK_DTYPE_F64, f64, 2, 9, false, "[0.1, 1e+300]");
	prints(STK_DTYPE_F16, f16, 5, 9, false, "[1, -2, 65504, 5.9604645e-08, inf]");
	prints(STK_DTYPE_BF16, bf16, 2, 9, false, "[1, -3]");
	prints(STK_DTYPE_BOOL, "\0\1", 2, 9, false, "[false, true]");
	prints(STK_DTYPE_F8_E4M3, "\x0a", 1, 9, false, "[0x0a]");
	prints(STK_DTYPE_F4, "\xab\x01", 2, 9, false, "[0xab, 0x01]");
}

static void long_lists_say_how_much_is_left_out(void **state)
{
	const uint8_t bytes[] = {1, 2, 3, 4, 5};

	(void)state;
	prints(STK_DTYPE_U8, bytes, 5, 5, false, "[1, 2, 3, 4, 5]");
	prints(STK_DTYPE_U8, bytes, 5, 3, false, "[1, 2, 3, ... (2 more)]");
	prints(STK_DTYPE_U8, bytes, 0, 3, false, "[]");
	prints(STK_DTYPE_U8, "abcde", 5, 3, true, "\"abc\" ... (2 more)");
}

static void text_is_escaped_so_that_a_terminal_is_safe(void **state)
{
	const int32_t ids[] = {'h', 'i', 256, -1, '\n', 0xc3, 0xa9};

	(void)state;
	prints(STK_DTYPE_U8, "a\"\\\n\t\x1b[2J", 9, 99, true, "\"a\\\"\\\\\\n\\t\\x1b[2J\"");
	prints(STK_DTYPE_U8, "\xc3\xa9\xff\xc2\x9b", 5, 99, true, "\"\xc3\xa9\\xff\\xc2\\x9b\"");
	prints(STK_DTYPE_I32, ids, 7, 99, true, "\"hi<256><-1>\\n\xc3\xa9\"");
}

static void a_character_is_never_cut_in_two(void **state)
{
	(void)state;
	prints(STK_DTYPE_U8, "a\xe2\x82\xacz", 5, 2, true, "\"a\xe2\x82\xac\" ... (1 more)");
}

static void json_keeps_every_number_exact_or_as_text(void **state)
{
	const uint64_t u64[] = {UINT64_MAX, INT64_MAX};
	const uint16_t f16[] = {0x3800, 0x7c00};

	(void)state;
	gives_json(values_json(STK_DTYPE_U64, u64, 2),
		   "[\"18446744073709551615\",9223372036854775807]");
	gives_json(values_json(STK_DTYPE_F16, f16, 2), "[0.5,\"inf\"]");
	gives_json(values_json(STK_DTYPE_BOOL, "\1\0", 2), "[true,false]");
	gives_json(values_json_text(STK_DTYPE_U8, "h\xc3\xa9\n", 4), "\"h\xc3\xa9\\n\"");
	assert_null(values_json_text(STK_DTYPE_U8, "\xff", 1));
	assert_null(values_json_text(STK_DTYPE_I8, "\xff", 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_kind_of_number_is_shown_as_its_value),
		cmocka_unit_test(long_lists_say_how_much_is_left_out),
		cmocka_unit_test(text_is_escaped_so_that_a_terminal_is_safe),
		cmocka_unit_test(a_character_is_never_cut_in_two),
		cmocka_unit_test(json_keeps_every_number_exact_or_as_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
