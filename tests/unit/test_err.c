/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors: what travels up is printable, cut cleanly and names the place. UTF-8 and the nearest
 * word are tested here too. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include <jansson.h>

#include "proto/err.h"

static void set_returns_the_code_and_keeps_the_text(void **state)
{
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(stk_err_set(&err, -EINVAL, "%s: %d", "place", 7), -EINVAL);
	assert_int_equal(err.code, -EINVAL);
	assert_string_equal(err.text, "place: 7");
	assert_int_equal(stk_err_set(NULL, -ENOMEM, "nobody listens"), -ENOMEM);
}

static void percent_m_is_the_errno_of_the_call(void **state)
{
	struct stk_err err = {0};

	(void)state;
	errno = ENOENT;
	stk_err_set(&err, -errno, "file: %m");
	assert_string_equal(err.text, "file: No such file or directory");
}

static void prefix_goes_in_front_and_keeps_the_code(void **state)
{
	struct stk_err err = {0};

	(void)state;
	stk_err_set(&err, -EIO, "short read");
	assert_int_equal(stk_err_prefix(&err, "shard %d: ", 3), -EIO);
	assert_string_equal(err.text, "shard 3: short read");
	assert_int_equal(stk_err_prefix(NULL, "x"), 0);
}

static void an_error_may_quote_itself(void **state)
{
	struct stk_err err = {0};

	(void)state;
	stk_err_set(&err, -EIO, "inner");
	stk_err_set(&err, -EINVAL, "outer: %s", err.text);
	assert_string_equal(err.text, "outer: inner");
}

static void control_and_foreign_bytes_are_escaped(void **state)
{
	struct stk_err err = {0};

	(void)state;
	stk_err_set(&err, -EINVAL,
		    "a\n\x1b[31m%s\xff\xc3(\xc2\x9b"
		    "31m\xc3\xa9\xf0\x9f\x99\x82\x7f",
		    "\t");
	assert_string_equal(
		err.text,
		"a\\x0a\\x1b[31m\\x09\\xff\\xc3(\\xc2\\x9b31m\xc3\xa9\xf0\x9f\x99\x82\\x7f");
}

static void a_text_that_is_too_long_is_cut_and_stays_utf8(void **state)
{
	(void)state;
	for (size_t shift = 0; shift < 4; shift++) {
		struct stk_err err = {0};
		char text[4096];
		json_t *json;

		memset(text, 'x', shift);
		for (size_t i = shift; i + 3 < sizeof(text); i += 3)
			memcpy(text + i, "\xe2\x82\xac", 4);
		stk_err_set(&err, -EINVAL, "%s", text);
		assert_in_range(strlen(err.text), 1000, sizeof(err.text) - 1);
		json = json_string(err.text); /* refuses what is not UTF-8 */
		assert_non_null(json);
		json_decref(json);
	}
}

static void prefix_of_a_full_text_stays_within_its_room(void **state)
{
	struct stk_err err = {0};
	char text[2000];

	(void)state;
	memset(text, 'y', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	stk_err_set(&err, -EINVAL, "%s", text);
	stk_err_prefix(&err, "%s", text);
	assert_int_equal(strlen(err.text), sizeof(err.text) - 1);
	assert_int_equal(err.code, -EINVAL);
}

static void utf8_takes_whole_shortest_characters_only(void **state)
{
	static const struct {
		const char *text;
		size_t size, want;
	} cases[] = {
		{"a", 1, 1},
		{"", 1, 1}, /* NUL is a character */
		{"\xc3\xa9", 2, 2},
		{"\xe2\x82\xac", 3, 3},
		{"\xf0\x9f\x99\x82", 4, 4},
		{"\xf4\x8f\xbf\xbf", 4, 4},
		{"\xc3\xa9", 1, 0},
		{"\xe2\x82\xac", 2, 0}, /* cut */
		{"\x80", 1, 0},
		{"\xc3(", 2, 0},
		{"\xc0\x80", 2, 0},
		{"\xe0\x80\x80", 3, 0}, /* overlong */
		{"\xf0\x80\x80\x80", 4, 0},
		{"\xed\xa0\x80", 3, 0}, /* and a surrogate */
		{"\xf4\x90\x80\x80", 4, 0},
		{"\xf8\x88\x80\x80", 4, 0},
		{"\xff", 1, 0},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++)
		assert_int_equal(stk_utf8_next(cases[i].text, cases[i].size), cases[i].want);
	assert_int_equal(stk_utf8_next("a", 0), 0);
}

static void nearest_finds_a_typo_and_nothing_far(void **state)
{
	static const char *const names[] = {"rows", "tokens", "max_length", NULL};

	(void)state;
	assert_string_equal(stk_nearest("row", names), "rows");
	assert_string_equal(stk_nearest("max_lenght", names), "max_length");
	assert_null(stk_nearest("zebra_crossing", names));
	assert_null(stk_nearest("", (const char *const[]){"ab", NULL}));
	assert_null(stk_nearest(
		"a word that is far longer than any key that could be meant, honestly", names));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(set_returns_the_code_and_keeps_the_text),
		cmocka_unit_test(percent_m_is_the_errno_of_the_call),
		cmocka_unit_test(prefix_goes_in_front_and_keeps_the_code),
		cmocka_unit_test(an_error_may_quote_itself),
		cmocka_unit_test(control_and_foreign_bytes_are_escaped),
		cmocka_unit_test(a_text_that_is_too_long_is_cut_and_stays_utf8),
		cmocka_unit_test(prefix_of_a_full_text_stays_within_its_room),
		cmocka_unit_test(utf8_takes_whole_shortest_characters_only),
		cmocka_unit_test(nearest_finds_a_typo_and_nothing_far),
	};

	return cmocka_run_group_tests_name("err", tests, NULL, NULL);
}
