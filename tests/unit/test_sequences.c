/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Known answers: one hash over the steps, parts and cursors of many random plans. It is the same for
 * every compiler and processor; when it changes, STKD_PLAN_VERSION does, too.
 */
#include <inttypes.h>

#include "tests/unit/plan_cases.h"

#define CASES 1200
#define STEPS 300

/* FNV-1a over numbers, byte by byte, so that it is the same everywhere. */
static void add(uint64_t *hash, uint64_t number)
{
	for (int i = 0; i < 8; i++, number >>= 8)
		*hash = (*hash ^ (number & 0xff)) * UINT64_C(0x100000001b3);
}

static void add_step(uint64_t *hash, const struct one *c, const struct stkd_step *step)
{
	struct stkd_part part;

	add(hash, step->epoch);
	add(hash, step->step);
	add(hash, step->shape_class);
	add(hash, step->width);
	add(hash, step->width2);
	add(hash, step->real_tokens);
	for (uint32_t i = 0; i < step->nids; i++)
		add(hash, step->ids[i]);
	stkd_step_part(c->plan, step, c->world - 1, 0, &part);
	add(hash, part.rows);
	add(hash, part.rows_real);
}

static void add_case(uint64_t *hash, uint64_t number, unsigned *plans)
{
	struct one *c = calloc(1, sizeof(*c));
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	struct stkd_iter *iter;
	uint64_t last = 0;

	assert_non_null(c);
	random_case(c, (number + 7) * UINT64_C(0x9e3779b97f4a7c15));
	if (!open_case(c)) {
		free(c);
		return;
	}
	++*plans;
	iter = make_iter(c->plan, NULL, 0);
	for (int s = 0; s < STEPS && last < 2; s++) {
		struct stkd_step step;
		size_t size;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		add_step(hash, c, &step);
		size = stkd_iter_cursor(iter, cursor);
		for (size_t i = 0; i < size; i++)
			add(hash, cursor[i]);
		last += step.last_of_epoch;
	}
	stkd_iter_free(iter);
	stkd_plan_free(c->plan);
	free(c);
}

static void sequences_are_the_same_on_every_machine_and_release(void **state)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);
	unsigned plans = 0;

	(void)state;
	for (uint64_t number = 0; number < CASES; number++)
		add_case(&hash, number, &plans);
	print_message("%u plans: %016" PRIx64 "\n", plans, hash);
	assert_true(plans > CASES / 2);
	assert_true(hash == UINT64_C(0x43e33f0ec2acb8c5));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sequences_are_the_same_on_every_machine_and_release),
	};

	return cmocka_run_group_tests_name("sequences", tests, NULL, NULL);
}
