/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "tools/stoker/benchtimes.h"

static struct benchtimes times, other;

static int reset(void **state)
{
	(void)state;
	times = other = (struct benchtimes){0};
	return 0;
}

static void a_single_time_comes_back_within_four_percent(void **state)
{
	(void)state;
	for (uint64_t ns = 1; ns < UINT64_C(1) << 40; ns += ns / 7 + 1) {
		reset(NULL);
		benchtimes_add(&times, ns);
		assert_true(fabs(benchtimes_at(&times, 500000) - (double)ns) <= 0.04 * (double)ns);
	}
}

static void percentiles_split_the_times_in_their_order(void **state)
{
	(void)state;
	for (uint64_t ns = 1000; ns > 0; ns--)
		benchtimes_add(&times, ns);
	assert_true(fabs(benchtimes_at(&times, 500000) - 500) < 20);
	assert_true(fabs(benchtimes_at(&times, 990000) - 990) < 40);
	assert_true(benchtimes_at(&times, 0) == 1);
}

static void merged_histograms_count_both(void **state)
{
	(void)state;
	for (int i = 0; i < 3; i++)
		benchtimes_add(&times, 10);
	for (int i = 0; i < 4; i++)
		benchtimes_add(&other, 20);
	benchtimes_merge(&times, &other);
	assert_int_equal(times.n, 7);
	assert_true(benchtimes_at(&times, 400000) == 10);
	assert_true(benchtimes_at(&times, 500000) == 20);
}

static void no_times_have_the_percentile_zero(void **state)
{
	(void)state;
	assert_true(benchtimes_at(&times, 500000) == 0);
}

static void a_time_beyond_all_cells_is_counted_in_the_last(void **state)
{
	(void)state;
	benchtimes_add(&times, UINT64_MAX);
	assert_true(benchtimes_at(&times, 500000) > 1e12);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(a_single_time_comes_back_within_four_percent, reset),
		cmocka_unit_test_setup(percentiles_split_the_times_in_their_order, reset),
		cmocka_unit_test_setup(merged_histograms_count_both, reset),
		cmocka_unit_test_setup(no_times_have_the_percentile_zero, reset),
		cmocka_unit_test_setup(a_time_beyond_all_cells_is_counted_in_the_last, reset),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
