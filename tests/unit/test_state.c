/* SPDX-License-Identifier: Apache-2.0 */
/* States are hostile when read: header, cursor and hexadecimal text. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/state.h"

/* A state with a cursor of n bytes, in memory of exactly its size. Free it. */
static uint8_t *make(uint32_t n, size_t *ret_size)
{
	struct stk_state_header header;
	uint8_t *bytes;

	stk_state_header_init(&header);
	header.cursor_size = n;
	*ret_size = sizeof(header) + n;
	bytes = malloc(*ret_size);
	assert_non_null(bytes);
	memcpy(bytes, &header, sizeof(header));
	memset(bytes + sizeof(header), 0x5a, n);
	return bytes;
}

static int parse(const uint8_t *bytes, size_t size, struct stk_err *err)
{
	struct stk_state_header header;
	const uint8_t *cursor;

	return stk_state_parse(bytes, size, &header, &cursor, err);
}

static void a_state_splits_into_header_and_cursor(void **state)
{
	struct stk_state_header header;
	const uint8_t *cursor;
	struct stk_err err;
	size_t size;
	uint8_t *bytes = make(9, &size);

	(void)state;
	assert_int_equal(stk_state_parse(bytes, size, &header, &cursor, &err), 0);
	assert_int_equal(header.version, STK_STATE_VERSION);
	assert_int_equal(header.cursor_size, 9);
	assert_ptr_equal(cursor, bytes + sizeof(header));
	free(bytes);
}

static void a_state_that_is_cut_or_longer_is_refused_with_both_numbers(void **state)
{
	struct stk_err err;
	size_t size;
	uint8_t *bytes = make(9, &size);

	(void)state;
	for (size_t n = 0; n < size; n++)
		assert_int_equal(parse(bytes, n, &err), -EINVAL);
	assert_int_equal(parse(bytes, sizeof(struct stk_state_header) - 1, &err), -EINVAL);
	assert_non_null(strstr(err.text, "71 bytes"));
	bytes[offsetof(struct stk_state_header, cursor_size)] = 8;
	assert_int_equal(parse(bytes, size, &err), -EINVAL);
	assert_non_null(strstr(err.text, "8 bytes"));
	assert_non_null(strstr(err.text, "9 bytes"));
	free(bytes);
}

static void a_cursor_size_past_all_memory_is_refused(void **state)
{
	struct stk_err err;
	size_t size;
	uint8_t *bytes = make(0, &size);

	(void)state;
	memset(bytes + offsetof(struct stk_state_header, cursor_size), 0xff, 4);
	assert_int_equal(parse(bytes, size, &err), -EINVAL);
	free(bytes);
}

static void another_magic_or_version_is_refused(void **state)
{
	struct stk_err err;
	size_t size;
	uint8_t *bytes = make(0, &size);

	(void)state;
	bytes[8]++;
	assert_int_equal(parse(bytes, size, &err), -EINVAL);
	assert_non_null(strstr(err.text, "version 2"));
	bytes[0] = 'X';
	assert_int_equal(parse(bytes, size, &err), -EINVAL);
	assert_non_null(strstr(err.text, "not a stoker state"));
	free(bytes);
}

static void hexadecimal_text_goes_there_and_back_for_every_byte(void **state)
{
	uint8_t bytes[256], back[256];
	char text[513];

	(void)state;
	for (int i = 0; i < 256; i++)
		bytes[i] = (uint8_t)i;
	stk_hex_encode(bytes, sizeof(bytes), text);
	assert_int_equal(strlen(text), 512);
	assert_int_equal(stk_hex_decode(text, back, sizeof(back)), 256);
	assert_memory_equal(bytes, back, 256);
	assert_int_equal(stk_hex_decode("AbCd", back, sizeof(back)), 2);
	assert_int_equal(back[0], 0xab);
}

static void text_that_is_odd_foreign_or_too_long_is_refused(void **state)
{
	static const char *const bad[] = {"a", "abc", "0g", "g0", "0x10", " 00", "\xff\xff"};
	uint8_t out[2];

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(bad); i++)
		assert_int_equal(stk_hex_decode(bad[i], out, sizeof(out)), -EINVAL);
	assert_int_equal(stk_hex_decode("000000", out, sizeof(out)), -EINVAL);
	assert_int_equal(stk_hex_decode("", out, sizeof(out)), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_state_splits_into_header_and_cursor),
		cmocka_unit_test(a_state_that_is_cut_or_longer_is_refused_with_both_numbers),
		cmocka_unit_test(a_cursor_size_past_all_memory_is_refused),
		cmocka_unit_test(another_magic_or_version_is_refused),
		cmocka_unit_test(hexadecimal_text_goes_there_and_back_for_every_byte),
		cmocka_unit_test(text_that_is_odd_foreign_or_too_long_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
