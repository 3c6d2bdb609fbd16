/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress line: what it says and that it never exceeds the terminal.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tools/stoker/progress.h"

static void sizes_have_one_decimal_and_a_unit(void **state)
{
	char text[PROGRESS_SIZE_MAX];

	(void)state;
	assert_string_equal(progress_size(0, text), "0 B");
	assert_string_equal(progress_size(999, text), "999 B");
	assert_string_equal(progress_size(1000, text), "1.0 kB");
	assert_string_equal(progress_size(999940, text), "999.9 kB");
	assert_string_equal(progress_size(999999, text), "1.0 MB");
	assert_string_equal(progress_size(4200000000u, text), "4.2 GB");
	assert_string_equal(progress_size(UINT64_MAX, text), "18446.7 PB");
}

static void the_line_has_share_and_time_left_when_the_total_is_known(void **state)
{
	struct progress progress = {.noun = "samples", .total = 40000000};
	char line[256];

	(void)state;
	progress_format(line, sizeof(line), 100, &progress, 1234, 10000000, 2000000000);
	assert_string_equal(line, "1234 samples  10.0 MB  5.0 MB/s"
				  "  [#######                       ]   25 %  ETA 0:06");
	progress_format(line, sizeof(line), 55, &progress, 1234, 10000000, 2000000000);
	assert_string_equal(line, "1234 samples  10.0 MB  5.0 MB/s   25 %  ETA 0:06");
	progress.total = 0;
	progress_format(line, sizeof(line), 80, &progress, 1234, 10000000, 2000000000);
	assert_string_equal(line, "1234 samples  10.0 MB  5.0 MB/s");
}

static void the_line_never_exceeds_the_width(void **state)
{
	struct progress progress = {.noun = "samples", .total = UINT64_MAX};
	char line[256];

	(void)state;
	for (unsigned width = 0; width < 200; width++) {
		progress_format(line, sizeof(line), width, &progress, UINT64_MAX, 1, UINT64_MAX);
		assert_true(strlen(line) <= width);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_have_one_decimal_and_a_unit),
		cmocka_unit_test(the_line_has_share_and_time_left_when_the_total_is_known),
		cmocka_unit_test(the_line_never_exceeds_the_width),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
