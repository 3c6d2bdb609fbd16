/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of text from plain, gzip and zstd files: where they end, and which damage is told.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <cmocka.h>

#include "tools/stoker/input.h"

struct bytes {
	uint8_t data[1 << 20];
	size_t size;
};

struct fixture {
	char path[64];
	struct bytes file;
	struct stk_err err;
	struct input *input;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	int fd;

	assert_non_null(f);
	strcpy(f->path, "/tmp/test_input.XXXXXX");
	fd = mkstemp(f->path);
	assert_true(fd >= 0);
	close(fd);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	input_free(f->input);
	unlink(f->path);
	free(f);
	return 0;
}

static void add_text(struct fixture *f, const char *data, size_t size)
{
	memcpy(f->file.data + f->file.size, data, size);
	f->file.size += size;
}

static void add_gzip(struct fixture *f, const char *data, size_t size)
{
	z_stream z = {0};

	assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_in = (uint8_t *)data;
	z.avail_in = (uInt)size;
	z.next_out = f->file.data + f->file.size;
	z.avail_out = (uInt)(sizeof(f->file.data) - f->file.size);
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	f->file.size += z.total_out;
	deflateEnd(&z);
}

static void add_zstd(struct fixture *f, const char *data, size_t size)
{
	size_t n = ZSTD_compress(f->file.data + f->file.size, sizeof(f->file.data) - f->file.size,
				 data, size, 3);

	assert_false(ZSTD_isError(n));
	f->file.size += n;
}

static void store(struct fixture *f)
{
	FILE *out = fopen(f->path, "w");

	assert_non_null(out);
	assert_int_equal(fwrite(f->file.data, 1, f->file.size, out), f->file.size);
	fclose(out);
}

static int open_input(struct fixture *f, size_t line_max)
{
	store(f);
	return input_open(f->path, line_max, -1, &f->input, &f->err);
}

static void expect_line(struct fixture *f, const char *expected)
{
	const char *line = NULL;
	size_t size = 0;

	assert_int_equal(input_line(f->input, &line, &size, &f->err), 1);
	assert_int_equal(size, strlen(expected));
	assert_memory_equal(line, expected, size);
}

static void expect_end(struct fixture *f)
{
	const char *line;
	size_t size;

	assert_int_equal(input_line(f->input, &line, &size, &f->err), 0);
}

/* Reads on until an error comes. */
static int read_on(struct fixture *f)
{
	const char *line;
	size_t size;
	int r;

	do
		r = input_line(f->input, &line, &size, &f->err);
	while (r > 0);
	return r;
}

static void lines_end_with_lf_or_crlf_and_the_last_with_nothing(void **state)
{
	struct fixture *f = *state;

	add_text(f, "one\r\ntwo\n\nlast", 14);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "one");
	expect_line(f, "two");
	expect_line(f, "");
	expect_line(f, "last");
	assert_int_equal(input_line_number(f->input), 4);
	expect_end(f);
	expect_end(f);
	assert_int_equal(input_bytes(f->input), 14);
}

static void an_empty_file_has_no_lines(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(open_input(f, 100), 0);
	expect_end(f);
}

static void a_byte_order_mark_is_skipped_on_the_first_line_only(void **state)
{
	struct fixture *f = *state;

	add_text(f,
		 "\xef\xbb\xbf"
		 "a\n\xef\xbb\xbf"
		 "b\n",
		 10);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "a");
	expect_line(f, "\xef\xbb\xbf"
		       "b");
}

static void concatenated_gzip_members_are_one_text(void **state)
{
	struct fixture *f = *state;

	add_gzip(f, "one\ntw", 6);
	add_gzip(f, "", 0);
	add_gzip(f, "o\nthree\n", 8);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "one");
	expect_line(f, "two");
	expect_line(f, "three");
	expect_end(f);
}

static void several_zstd_frames_and_skippable_ones_are_one_text(void **state)
{
	struct fixture *f = *state;

	add_text(f, "\x5e\x2a\x4d\x18\x03\0\0\0abc", 11);
	add_zstd(f, "one\ntw", 6);
	add_text(f, "\x50\x2a\x4d\x18\0\0\0\0", 8);
	add_zstd(f, "o\n", 2);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "one");
	expect_line(f, "two");
	expect_end(f);
}

static void text_far_larger_than_the_buffers_comes_out_whole(void **state)
{
	struct fixture *f = *state;
	size_t size = 3 << 20;
	char *text = malloc(size);
	const char *line;
	size_t got;

	assert_non_null(text);
	memset(text, 'x', size);
	text[size - 3] = '\n';
	add_gzip(f, text, size);
	assert_int_equal(open_input(f, size), 0);
	assert_int_equal(input_line(f->input, &line, &got, &f->err), 1);
	assert_int_equal(got, size - 3);
	expect_line(f, "xx");
	expect_end(f);
	free(text);
}

static void a_gzip_file_cut_anywhere_is_an_error(void **state)
{
	struct fixture *f = *state;
	size_t whole;

	add_gzip(f, "one\ntwo\nthree\n", 14);
	whole = f->file.size;
	for (size_t size = 2; size < whole; size++) {
		f->file.size = size;
		assert_int_equal(open_input(f, 100), 0);
		assert_int_equal(read_on(f), -EBADMSG);
		assert_non_null(strstr(f->err.text, "truncated: the gzip data"));
		f->input = input_free(f->input);
	}
}

static void a_zstd_file_cut_anywhere_is_an_error(void **state)
{
	struct fixture *f = *state;
	size_t whole;

	add_zstd(f, "one\ntwo\nthree\n", 14);
	whole = f->file.size;
	for (size_t size = 4; size < whole; size++) {
		f->file.size = size;
		assert_int_equal(open_input(f, 100), 0);
		assert_int_equal(read_on(f), -EBADMSG);
		assert_non_null(strstr(f->err.text, "truncated: the zstd data"));
		f->input = input_free(f->input);
	}
}

static void damage_and_trailing_garbage_name_file_line_and_place(void **state)
{
	struct fixture *f = *state;
	char expected[128];

	add_gzip(f, "one\ntwo\n", 8);
	add_text(f, "garbage behind it", 17);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "one");
	expect_line(f, "two");
	assert_int_equal(read_on(f), -EBADMSG);
	snprintf(expected, sizeof(expected), "%s:3: damaged gzip data near byte ", f->path);
	assert_memory_equal(f->err.text, expected, strlen(expected));

	f->input = input_free(f->input);
	f->file.size = 0;
	add_zstd(f, "one\n", 4);
	add_text(f, "garbage behind it", 17);
	assert_int_equal(open_input(f, 100), 0);
	expect_line(f, "one");
	assert_int_equal(read_on(f), -EBADMSG);
	assert_non_null(strstr(f->err.text, ":2: damaged zstd data near byte "));
}

static void a_zstd_window_over_128_mib_is_refused(void **state)
{
	/* A frame header: no content size, window descriptor 0x90: 2^(10 + 18) bytes. */
	static const char frame[] = "\x28\xb5\x2f\xfd\x00\x90\x01\x00\x00";
	struct fixture *f = *state;

	add_text(f, frame, sizeof(frame) - 1);
	assert_int_equal(open_input(f, 100), 0);
	assert_int_equal(read_on(f), -EBADMSG);
	assert_non_null(strstr(f->err.text, "128 MiB"));
}

static void a_line_over_the_limit_is_an_error_and_one_at_it_is_not(void **state)
{
	struct fixture *f = *state;

	add_text(f, "12345\n123456\n", 13);
	assert_int_equal(open_input(f, 5), 0);
	expect_line(f, "12345");
	assert_int_equal(read_on(f), -EBADMSG);
	assert_non_null(strstr(f->err.text, ":2: longer than 5 bytes"));
}

static void other_kinds_of_files_are_named(void **state)
{
	static const char *const cases[][2] = {
		{"PAR1....", "a Parquet file"},
		{"BZh91AY", "bzip2"},
		{"PK\3\4....", "a zip archive"},
		{"\xff\xfe{\"", "UTF-16"},
		{"version https://git-lfs.github.com/spec/v1\n", "git-lfs"},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		f->file.size = 0;
		add_text(f, cases[i][0], strlen(cases[i][0]));
		assert_int_equal(open_input(f, 100), -EBADMSG);
		assert_non_null(strstr(f->err.text, cases[i][1]));
	}
}

static void a_missing_file_and_a_directory_are_named(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(input_open("/nonexistent/x", 9, -1, &f->input, &f->err), -ENOENT);
	assert_non_null(strstr(f->err.text, "/nonexistent/x"));
	assert_int_equal(input_open("/tmp", 9, -1, &f->input, &f->err), -EISDIR);
	assert_null(f->input);
}

static void a_stop_ends_the_wait_for_data(void **state)
{
	struct fixture *f = *state;
	char path[32];
	int data[2], stop[2];

	assert_int_equal(pipe(data), 0);
	assert_int_equal(pipe(stop), 0);
	assert_int_equal(write(stop[1], "x", 1), 1);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", data[0]);
	assert_int_equal(input_open(path, 100, stop[0], &f->input, &f->err), -EINTR);
	for (int i = 0; i < 2; i++) {
		close(data[i]);
		close(stop[i]);
	}
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(lines_end_with_lf_or_crlf_and_the_last_with_nothing),
		TEST(an_empty_file_has_no_lines),
		TEST(a_byte_order_mark_is_skipped_on_the_first_line_only),
		TEST(concatenated_gzip_members_are_one_text),
		TEST(several_zstd_frames_and_skippable_ones_are_one_text),
		TEST(text_far_larger_than_the_buffers_comes_out_whole),
		TEST(a_gzip_file_cut_anywhere_is_an_error),
		TEST(a_zstd_file_cut_anywhere_is_an_error),
		TEST(damage_and_trailing_garbage_name_file_line_and_place),
		TEST(a_zstd_window_over_128_mib_is_refused),
		TEST(a_line_over_the_limit_is_an_error_and_one_at_it_is_not),
		TEST(other_kinds_of_files_are_named),
		TEST(a_missing_file_and_a_directory_are_named),
		TEST(a_stop_ends_the_wait_for_data),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
