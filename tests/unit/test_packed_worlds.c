/* SPDX-License-Identifier: Apache-2.0 */
/* Packs and token streams in worlds of several sizes, and from one world into another. */
#include "tests/unit/plan_fixture.h"

/* A number for the samples of a step, wherever they are in it. */
static uint64_t sum_of(const struct stkd_step *step)
{
	uint64_t sum = 0;

	for (uint32_t s = step->row_first[0]; s < step->row_first[step->nids]; s++) {
		uint64_t h = step->segments[s].id * UINT64_C(0x9e3779b97f4a7c15) +
			     ((uint64_t)step->segments[s].from << 32 | step->segments[s].length);

		h = (h ^ h >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
		sum += h ^ h >> 29;
	}
	return sum;
}

enum { WORLDS_N = 700 };

static void random_samples(uint32_t len[WORLDS_N], uint64_t seed)
{
	for (uint32_t i = 0; i < WORLDS_N; i++)
		len[i] = below(&seed, below(&seed, 2) ? 70 : 15);
}

static void a_global_batch_is_the_same_in_every_world(void **state)
{
	static const uint32_t worlds[] = {1, 2, 4, 8};
	uint32_t len[WORLDS_N];

	(void)state;
	random_samples(len, 3);
	for (int kind = 0; kind < 4; kind++) {
		struct stk_spec spec = packed_spec(64);
		struct stkd_iter *iters[STK_ARRAY_SIZE(worlds)];
		struct stkd_plan *plans[STK_ARRAY_SIZE(worlds)];
		struct stkd_step step = {0};

		spec.order = STK_ORDER_FULL;
		spec.group = kind % 2 ? STK_GROUP_CONCAT : STK_GROUP_PACK;
		spec.overlong = STK_OVERLONG_SPLIT;
		spec.balance = kind / 2 ? STK_BALANCE_COST : STK_BALANCE_NONE;
		spec.window = 100;
		spec.rows = 0;
		spec.global_rows = 32;
		spec.world_multiple = 8;
		for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++) {
			plans[w] = make_plan(&spec, len, WORLDS_N, worlds[w]);
			iters[w] = make_iter(plans[w], NULL, 0);
		}
		while (!step.last_of_epoch) {
			uint64_t sum = 0;

			for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++) {
				assert_int_equal(stkd_iter_next(iters[w], &step), 0);
				if (!w)
					sum = sum_of(&step);
				assert_int_equal(sum_of(&step), sum);
			}
		}
		for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++) {
			stkd_iter_free(iters[w]);
			stkd_plan_free(plans[w]);
		}
	}
}

/* What an iterator has left of its epoch. */
static uint64_t rest_of(struct stkd_iter *iter)
{
	struct stkd_step step = {0};
	uint64_t sum = 0;

	while (!step.last_of_epoch) {
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		sum += sum_of(&step);
	}
	return sum;
}

static void a_state_goes_on_in_another_world(void **state)
{
	uint32_t len[WORLDS_N];

	(void)state;
	random_samples(len, 4);
	for (int concat = 0; concat < 2; concat++) {
		struct stk_spec spec = packed_spec(64);
		struct stkd_plan *three, *two;
		uint8_t cursor[STK_SHM_CURSOR_MAX];

		spec.order = STK_ORDER_FULL;
		spec.group = concat ? STK_GROUP_CONCAT : STK_GROUP_PACK;
		spec.overlong = STK_OVERLONG_SPLIT;
		spec.window = 100;
		spec.rows = 4;
		three = make_plan(&spec, len, WORLDS_N, 3);
		two = make_plan(&spec, len, WORLDS_N, 2);
		for (unsigned steps = 1; steps < 9; steps++) {
			struct stkd_iter *iter = make_iter(three, NULL, 0), *other = NULL;
			struct stkd_step step;
			size_t size;

			for (unsigned i = 0; i < steps; i++)
				assert_int_equal(stkd_iter_next(iter, &step), 0);
			size = stkd_iter_cursor(iter, cursor);
			assert_int_equal(
				stkd_iter_new_from_world(two, 3, cursor, size, &other, NULL), 0);
			assert_int_equal(stkd_iter_step(other), steps);
			assert_int_equal(rest_of(other), rest_of(iter));
			stkd_iter_free(iter);
			stkd_iter_free(other);
		}
		stkd_plan_free(three);
		stkd_plan_free(two);
	}
}

/* A cursor after each step of the rest of the epoch gives the steps that follow. */
static void assert_resumes(const struct stkd_plan *plan, const void *cursor, size_t size)
{
	struct stkd_iter *iter = make_iter(plan, cursor, size);
	uint64_t epoch = stkd_iter_epoch(iter);

	while (stkd_iter_epoch(iter) == epoch) {
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		struct stkd_iter *again = make_iter(plan, bytes, stkd_iter_cursor(iter, bytes));
		struct stkd_step a, b;

		assert_int_equal(stkd_iter_next(iter, &a), 0);
		assert_int_equal(stkd_iter_next(again, &b), 0);
		assert_int_equal(a.step, b.step);
		assert_int_equal(a.nids, b.nids);
		assert_int_equal(sum_of(&a), sum_of(&b));
		for (uint32_t row = 0; row <= a.nids; row++)
			assert_int_equal(a.row_first[row] - a.row_first[0],
					 b.row_first[row] - b.row_first[0]);
		stkd_iter_free(again);
	}
	stkd_iter_free(iter);
}

/* How the last window of flat packs is spread depends on the world that begins it. */
static void flat_packs_go_on_in_another_world(void **state)
{
	static const uint32_t worlds[] = {3, 2, 5, 1, 4};
	struct stkd_plan *plans[STK_ARRAY_SIZE(worlds)];
	uint32_t len[WORLDS_N];

	(void)state;
	random_samples(len, 5);
	for (unsigned kind = 0; kind < 6; kind++) {
		struct stk_spec spec = packed_spec(0);

		spec.rows = 0;
		spec.tokens = 200;
		spec.flat = true;
		spec.window = kind % 3 == 0 ? 0 : kind % 3 == 1 ? 100 : 37;
		spec.balance = kind < 3 ? STK_BALANCE_NONE : STK_BALANCE_COST;
		for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++)
			plans[w] = make_plan(&spec, len, WORLDS_N, worlds[w]);
		for (unsigned steps = 1; steps < 100; steps += 3) {
			struct stkd_iter *iter = make_iter(plans[0], NULL, 0);
			struct stkd_step step = {0};

			for (size_t w = 1; w < STK_ARRAY_SIZE(worlds); w++) {
				uint8_t cursor[STK_SHM_CURSOR_MAX];
				struct stkd_iter *other = NULL, *same;
				size_t size;

				for (unsigned i = 0; i < steps && !step.last_of_epoch; i++)
					assert_int_equal(stkd_iter_next(iter, &step), 0);
				if (step.last_of_epoch)
					break;
				size = stkd_iter_cursor(iter, cursor);
				assert_int_equal(stkd_iter_new_from_world(plans[w], worlds[w - 1],
									  cursor, size, &other,
									  NULL),
						 0);
				assert_int_equal(stkd_iter_step(other), stkd_iter_step(iter));
				same = make_iter(plans[w - 1], cursor, size);
				stkd_iter_free(iter);
				iter = other;
				size = stkd_iter_cursor(iter, cursor);
				assert_resumes(plans[w], cursor, size);
				other = make_iter(plans[w], cursor, size);
				assert_int_equal(rest_of(other), rest_of(same));
				stkd_iter_free(other);
				stkd_iter_free(same);
			}
			stkd_iter_free(iter);
		}
		for (size_t w = 0; w < STK_ARRAY_SIZE(worlds); w++)
			stkd_plan_free(plans[w]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_global_batch_is_the_same_in_every_world),
		cmocka_unit_test(a_state_goes_on_in_another_world),
		cmocka_unit_test(flat_packs_go_on_in_another_world),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
