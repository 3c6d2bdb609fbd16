/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of JSON as a row of columns, and the field words of the command line.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/stoker/jsonl.h"

struct fixture {
	struct field field;
	struct column column;
	struct stk_err err;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	if (f->column.field)
		column_deinit(&f->column);
	field_deinit(&f->field);
	free(f);
	return 0;
}

/* A column for a word such as "emb=e:f32:4x2", or for "KEY,KEY" as text. */
static void use(struct fixture *f, enum field_kind kind, const char *word, enum stk_dtype dtype)
{
	if (kind == FIELD_TEXT)
		assert_int_equal(field_ids("ids", kind, word, dtype, &f->field, &f->err), 0);
	else
		assert_int_equal(field_parse(word, kind, &f->field, &f->err), 0);
	assert_int_equal(column_init(&f->column, &f->field, -1, "nowhere", &f->err), 0);
}

static int row(struct fixture *f, const char *line)
{
	f->err.text[0] = '\0';
	return jsonl_row(line, strlen(line), &f->column, 1, &f->err);
}

static void expect_bytes(struct fixture *f, const void *bytes, size_t size)
{
	assert_int_equal(spool_row(&f->column.values), size);
	assert_memory_equal(f->column.values.data, bytes, size);
}

static void expect_error(struct fixture *f, const char *line, const char *text)
{
	assert_true(row(f, line) < 0);
	if (!strstr(f->err.text, text))
		fail_msg("\"%s\" does not contain \"%s\"", f->err.text, text);
}

static void texts_are_joined_by_one_newline(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "q,a", STK_DTYPE_U8);
	assert_int_equal(row(f, "{\"a\": \"\\u00e9\\u0000!\", \"x\": 1, \"q\": \"one\"}"), 0);
	expect_bytes(f, "one\n\xc3\xa9\0!", 8);
	assert_int_equal(f->column.row_elements, 8);
}

static void text_bytes_are_widened_to_the_type(void **state)
{
	static const uint16_t expected[] = {0xc3, 0xa9, 'a'};
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "t", STK_DTYPE_U16);
	assert_int_equal(row(f, "{\"t\": \"\\u00e9a\"}"), 0);
	expect_bytes(f, expected, sizeof(expected));
	assert_int_equal(f->column.row_elements, 3);
}

static void a_text_byte_that_does_not_fit_is_an_error(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "t", STK_DTYPE_I8);
	expect_error(f, "{\"t\": \"a\\u00e9\"}", "\"t\": byte 1 is 195; I8 holds up to 127");
}

static void text_must_be_a_string(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "t", STK_DTYPE_U8);
	expect_error(f, "{\"t\": 3}", "\"t\": a number, not a string");
	expect_error(f, "{\"t\": null}", "\"t\": null, not a string");
}

static void a_missing_key_lists_the_keys_that_are_there(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "text", STK_DTYPE_U8);
	expect_error(f, "{\"question\": 1, \"answer\": 2}",
		     "no key \"text\"; the line has \"question\", \"answer\"");
	expect_error(f, "{}", "no key \"text\"; the line has no keys");
}

static void a_key_is_literal_even_with_a_dot(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "a.b", STK_DTYPE_U8);
	expect_error(f, "{\"a\": {\"b\": \"x\"}}", "no key \"a.b\"");
	assert_int_equal(row(f, "{\"a.b\": \"x\"}"), 0);
}

static void ids_of_any_length_become_elements(void **state)
{
	static const uint16_t expected[] = {0, 65535, 7};
	struct fixture *f = *state;

	use(f, FIELD_RAGGED, "x=ids:u16", 0);
	assert_int_equal(row(f, "{\"ids\": [0, 65535, 7]}"), 0);
	expect_bytes(f, expected, sizeof(expected));
	assert_int_equal(f->column.row_elements, 3);
}

static void an_id_out_of_range_names_key_index_value_and_range(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_RAGGED, "x=ids:u16", 0);
	expect_error(f, "{\"ids\": [1, 2, 65536]}",
		     "\"ids\"[2]: 65536 is not an integer from 0 to 65535 (U16)");
	expect_error(f, "{\"ids\": 1}", "\"ids\": a number, not an array of numbers");
	expect_error(f, "{\"ids\": [[1]]}", "\"ids\"[0]: [1] is not an integer");
}

static void a_ragged_field_may_have_an_inner_shape(void **state)
{
	static const uint8_t expected[] = {1, 2, 3, 4};
	struct fixture *f = *state;

	use(f, FIELD_RAGGED, "x=box:u8:2", 0);
	assert_int_equal(row(f, "{\"box\": [[1, 2], [3, 4]]}"), 0);
	expect_bytes(f, expected, sizeof(expected));
	assert_int_equal(f->column.row_elements, 2);
	expect_error(f, "{\"box\": [[1, 2], [3]]}", "\"box\"[1]: 1 elements, the shape has 2");
}

static void a_fixed_field_takes_exactly_its_shape(void **state)
{
	static const float expected[] = {1, 2, 3, 4, 5, 6};
	struct fixture *f = *state;

	use(f, FIELD_FIXED, "x=e:f32:3x2", 0);
	assert_int_equal(row(f, "{\"e\": [[1, 2.0], [3, 4], [5, 6]]}"), 0);
	expect_bytes(f, expected, sizeof(expected));
	expect_error(f, "{\"e\": [[1, 2], [3, 4]]}", "\"e\": 2 elements, the shape has 3");
	expect_error(f, "{\"e\": [[1, 2], [3, 4, 5], [6]]}",
		     "\"e\"[1]: 3 elements, the shape has 2");
	expect_error(f, "{\"e\": [[1, 2], 3, [5, 6]]}", "\"e\"[1]: a number, not an array of 2");
	expect_error(f, "{\"e\": [[1, 2], [3, \"4\"], [5, 6]]}",
		     "\"e\"[1][1]: \"4\" is not a number");
}

static void a_scalar_is_a_fixed_field_without_shape(void **state)
{
	static const double expected = 0.25;
	struct fixture *f = *state;

	use(f, FIELD_FIXED, "score=s:f64", 0);
	assert_int_equal(row(f, "{\"s\": 0.25}"), 0);
	expect_bytes(f, &expected, sizeof(expected));
	expect_error(f, "{\"s\": [0.25]}", "\"s\": [0.25] is not a number");
}

static void broken_json_names_the_column(void **state)
{
	struct fixture *f = *state;

	use(f, FIELD_TEXT, "t", STK_DTYPE_U8);
	expect_error(f, "{\"t\": \"x\"", "column 9");
	expect_error(f, "{\"t\": \"\xff\"}", "column ");
	expect_error(f, "{\"t\": \"\\ud800\"}", "column ");
	expect_error(f, "{\"t\": \"x\"} {}", "column ");
	expect_error(f, "{\"t\": 99999999999999999999}", "column ");
	expect_error(f, "{\"t\": \"x\", \"t\": \"y\"}", "duplicate");
	expect_error(f, "[1]", "an array; each line is one object");
}

static void blank_means_spaces_tabs_and_returns(void **state)
{
	(void)state;
	assert_true(jsonl_blank("", 0));
	assert_true(jsonl_blank(" \t\r", 3));
	assert_false(jsonl_blank(" x", 2));
	assert_false(jsonl_blank("\0", 1));
}

static void a_field_word_is_cut_from_the_right_so_that_keys_may_hold_colons(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(field_parse("n=a:b:c:u8:2x3", FIELD_FIXED, &f->field, &f->err), 0);
	assert_string_equal(f->field.name, "n");
	assert_string_equal(f->field.keys, "a:b:c");
	assert_int_equal(f->field.dtype, STK_DTYPE_U8);
	assert_int_equal(f->field.ndims, 2);
	assert_int_equal(f->field.shape[0], 2);
	assert_int_equal(f->field.count, 6);
}

static void a_wrong_field_word_says_what_is_allowed(void **state)
{
	static const char *const cases[][2] = {
		{"score", "write NAME=KEY:DTYPE"},
		{"score=s", "no type"},
		{"score=s:f31", "\"f31\" is no type to write; allowed: bool, u8"},
		{"score=s:c64", "\"c64\" is no type to write"},
		{"=s:f32", "a field name is empty"},
		{"a.values=s:f32", "cannot be a field name"},
		{"x\xff=s:f32", "not UTF-8"},
		{"x=s:f32:0", "no size"},
		{"x=s:f32:2x", "no size"},
		{"x=s:f32:2y3", "no size"},
		{"x=s:f32:1x1x1x1x1x1x1x1", "more than 7 dimensions"},
		{"x=s:f32:4294967296x4294967296", "too large"},
		{"x=s:f32:99999999999999999999", "too large"},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		assert_int_equal(field_parse(cases[i][0], FIELD_FIXED, &f->field, &f->err),
				 -EINVAL);
		if (!strstr(f->err.text, cases[i][1]))
			fail_msg("%s: %s", cases[i][0], f->err.text);
	}
}

static void an_empty_text_key_and_a_float_id_type_are_refused(void **state)
{
	static const char *const keys[] = {"", ",a", "a,", "a,,b"};
	struct fixture *f = *state;

	for (size_t i = 0; i < STK_ARRAY_SIZE(keys); i++)
		assert_int_equal(
			field_ids("x", FIELD_TEXT, keys[i], STK_DTYPE_U8, &f->field, &f->err),
			-EINVAL);
	assert_int_equal(field_ids("x", FIELD_RAGGED, "k", STK_DTYPE_F32, &f->field, &f->err),
			 -EINVAL);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(texts_are_joined_by_one_newline),
		TEST(text_bytes_are_widened_to_the_type),
		TEST(a_text_byte_that_does_not_fit_is_an_error),
		TEST(text_must_be_a_string),
		TEST(a_missing_key_lists_the_keys_that_are_there),
		TEST(a_key_is_literal_even_with_a_dot),
		TEST(ids_of_any_length_become_elements),
		TEST(an_id_out_of_range_names_key_index_value_and_range),
		TEST(a_ragged_field_may_have_an_inner_shape),
		TEST(a_fixed_field_takes_exactly_its_shape),
		TEST(a_scalar_is_a_fixed_field_without_shape),
		TEST(broken_json_names_the_column),
		TEST(blank_means_spaces_tabs_and_returns),
		TEST(a_field_word_is_cut_from_the_right_so_that_keys_may_hold_colons),
		TEST(a_wrong_field_word_says_what_is_allowed),
		TEST(an_empty_text_key_and_a_float_id_type_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
