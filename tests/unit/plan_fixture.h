/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of the plan share: a spec to start from, random numbers with a seed to print. */
#ifndef STK_TEST_PLAN_FIXTURE_H
#define STK_TEST_PLAN_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "daemon/plan/plan.h"

static inline struct stk_spec plain_spec(void)
{
	return (struct stk_spec){
		.seed = 17,
		.order = STK_ORDER_NONE,
		.overlong = STK_OVERLONG_TRUNCATE,
		.group = STK_GROUP_FIXED,
		.rows = 2,
		.accumulate = 1,
		.multiple_of = 1,
		.pad_to = STK_PAD_EDGE,
		.tail = STK_TAIL_SHORT,
	};
}

/* xorshift64*: the same cases on every machine. */
static inline uint64_t draw(uint64_t *seed)
{
	*seed ^= *seed >> 12;
	*seed ^= *seed << 25;
	*seed ^= *seed >> 27;
	return *seed * UINT64_C(2685821657736338717);
}

static inline uint32_t below(uint64_t *seed, uint32_t n)
{
	return (uint32_t)((draw(seed) >> 32) * n >> 32);
}

static inline struct stkd_plan *make_plan(const struct stk_spec *spec, const uint32_t *len,
					  uint64_t count, uint32_t world)
{
	struct stkd_lengths lengths = {len, count};
	struct stkd_plan *plan = NULL;
	struct stk_err err = {0};

	if (stkd_plan_new(spec, &lengths, world, &plan, &err) < 0)
		print_error("%s\n", err.text);
	assert_non_null(plan);
	return plan;
}

static inline struct stkd_iter *make_iter(const struct stkd_plan *plan, const void *cursor,
					  size_t size)
{
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};

	if (stkd_iter_new(plan, cursor, size, &iter, &err) < 0)
		print_error("%s\n", err.text);
	assert_non_null(iter);
	return iter;
}

/* Expects a refusal whose text holds @text. */
static inline void assert_refused(const struct stk_spec *spec, const uint32_t *len, uint64_t count,
				  uint32_t world, const char *text)
{
	struct stkd_lengths lengths = {len, count};
	struct stkd_plan *plan = NULL;
	struct stk_err err = {0};

	assert_int_equal(stkd_plan_new(spec, &lengths, world, &plan, &err), -EINVAL);
	assert_null(plan);
	if (!strstr(err.text, text))
		print_error("got: %s\n", err.text);
	assert_non_null(strstr(err.text, text));
}

static inline struct stk_spec packed_spec(uint32_t max_length)
{
	struct stk_spec spec = plain_spec();

	spec.group = STK_GROUP_PACK;
	spec.max_length = max_length;
	spec.align = 1;
	spec.rows = 1;
	return spec;
}

#endif
