/* SPDX-License-Identifier: Apache-2.0 */
/*
 * As much of cmocka as unit tests need where there is none: another processor's, emulated. The first
 * assertion that fails ends the program. Tests that SKIPPED names are not run.
 */
#ifndef CROSS_CMOCKA_H
#define CROSS_CMOCKA_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef SKIPPED
#define SKIPPED ""
#endif

#define print_error(...)   fprintf(stderr, __VA_ARGS__)
#define print_message(...) printf(__VA_ARGS__)
#define fail_msg(...)                                                                              \
	(fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__),             \
	 fputc('\n', stderr), exit(1))
#define fail() fail_msg("failed")
#define skip() return
#define assert_true(x)                                                                             \
	do {                                                                                       \
		if (!(x))                                                                          \
			fail_msg("%s", #x);                                                        \
	} while (0)
#define assert_false(x)                 assert_true(!(x))
#define assert_null(x)                  assert_true((x) == NULL)
#define assert_non_null(x)              assert_true((x) != NULL)
#define assert_int_equal(a, b)          assert_true((uint64_t)(a) == (uint64_t)(b))
#define assert_string_equal(a, b)       assert_true(!strcmp(a, b))
#define assert_memory_equal(a, b, size) assert_true(!memcmp(a, b, size))
#define assert_in_range(x, low, high)                                                              \
	assert_true((uint64_t)(x) >= (uint64_t)(low) && (uint64_t)(x) <= (uint64_t)(high))

struct CMUnitTest {
	const char *name;
	void (*run)(void **state);
	int (*setup)(void **state), (*teardown)(void **state);
};

#define cmocka_unit_test(f)                                                                        \
	{                                                                                          \
#f, f, NULL, NULL                                                                  \
	}
#define cmocka_unit_test_setup_teardown(f, s, t)                                                   \
	{                                                                                          \
#f, f, s, t                                                                        \
	}

static int cross_run(const struct CMUnitTest *tests, size_t n, int (*setup)(void **),
		     int (*teardown)(void **))
{
	void *group = NULL;

	if (setup && setup(&group))
		fail_msg("setup");
	for (size_t i = 0; i < n; i++) {
		void *state = group;

		if (strstr(SKIPPED, tests[i].name)) {
			printf("skipped: %s\n", tests[i].name);
			continue;
		}
		if (tests[i].setup && tests[i].setup(&state))
			fail_msg("setup of %s", tests[i].name);
		tests[i].run(&state);
		if (tests[i].teardown && tests[i].teardown(&state))
			fail_msg("teardown of %s", tests[i].name);
		printf("ok: %s\n", tests[i].name);
	}
	return teardown ? teardown(&group) : 0;
}

#define cmocka_run_group_tests(tests, setup, teardown)                                             \
	cross_run(tests, sizeof(tests) / sizeof(*(tests)), setup, teardown)
#define cmocka_run_group_tests_name(name, tests, setup, teardown)                                  \
	cmocka_run_group_tests(tests, setup, teardown)

#endif
