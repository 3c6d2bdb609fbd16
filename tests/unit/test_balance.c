/* SPDX-License-Identifier: Apache-2.0 */
/* Items go to parts: within capacities, evenly, and the same way every time. */
#include <inttypes.h>

#include "daemon/plan/balance.h"
#include "tests/unit/plan_fixture.h"

#define ITEMS_MAX 300
#define PARTS_MAX 20

struct fixture {
	struct stkd_balancer *balancer;
	struct stkd_load items[ITEMS_MAX];
	struct stkd_capacity capacity[PARTS_MAX];
	uint32_t part_of[ITEMS_MAX];
	uint32_t nitems, nparts;
};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(stkd_balancer_new(&f->balancer), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	stkd_balancer_free(f->balancer);
	free(f);
	return 0;
}

static void balance(struct fixture *f)
{
	assert_int_equal(
		stkd_balance(f->balancer, f->items, f->nitems, f->capacity, f->nparts, f->part_of),
		0);
}

/* The difference between the costliest part and the cheapest; capacities are checked. */
static uint64_t gap(const struct fixture *f)
{
	uint64_t cost[PARTS_MAX] = {0}, size[PARTS_MAX] = {0}, least = UINT64_MAX, most = 0;
	uint32_t count[PARTS_MAX] = {0};

	for (uint32_t i = 0; i < f->nitems; i++) {
		assert_true(f->part_of[i] < f->nparts);
		cost[f->part_of[i]] += f->items[i].cost;
		size[f->part_of[i]] += f->items[i].size;
		count[f->part_of[i]]++;
	}
	for (uint32_t p = 0; p < f->nparts; p++) {
		assert_true(size[p] <= f->capacity[p].size);
		assert_true(count[p] <= f->capacity[p].items);
		least = STK_MIN(least, cost[p]);
		most = STK_MAX(most, cost[p]);
	}
	return most - least;
}

static void rows_are_dealt_out_evenly(void **state)
{
	static const uint64_t costs[] = {9, 8, 7, 6, 5, 4, 3, 2};
	struct fixture *f = *state;

	f->nitems = 8;
	f->nparts = 2;
	for (uint32_t i = 0; i < 8; i++) {
		f->items[i] = (struct stkd_load){.cost = costs[i], .size = 1};
		f->part_of[i] = STKD_NO_PART;
	}
	f->capacity[0] = f->capacity[1] = (struct stkd_capacity){.size = 4, .items = 4};
	balance(f);
	assert_int_equal(gap(f), 0);
}

static void parts_of_different_size_are_filled(void **state)
{
	struct fixture *f = *state;
	uint32_t count[3] = {0};

	f->nitems = 7;
	f->nparts = 3;
	for (uint32_t i = 0; i < 7; i++) {
		f->items[i] = (struct stkd_load){.cost = 10 + i, .size = 1};
		f->part_of[i] = STKD_NO_PART;
	}
	for (uint32_t p = 0; p < 3; p++)
		f->capacity[p] =
			(struct stkd_capacity){.size = 2 + (p == 0), .items = 2 + (p == 0)};
	balance(f);
	gap(f);
	for (uint32_t i = 0; i < 7; i++)
		count[f->part_of[i]]++;
	assert_int_equal(count[0], 3);
	assert_int_equal(count[1], 2);
	assert_int_equal(count[2], 2);
}

static void an_item_moves_where_there_is_room(void **state)
{
	struct fixture *f = *state;

	f->nitems = 3;
	f->nparts = 2;
	for (uint32_t i = 0; i < 3; i++) {
		f->items[i] = (struct stkd_load){.cost = 5, .size = 5};
		f->part_of[i] = 0;
	}
	f->capacity[0] = f->capacity[1] = (struct stkd_capacity){.size = 20, .items = 9};
	balance(f);
	assert_int_equal(gap(f), 5);
	/* No room for another item: everything stays. */
	for (uint32_t i = 0; i < 3; i++)
		f->part_of[i] = 0;
	f->capacity[1].items = 0;
	balance(f);
	assert_int_equal(gap(f), 15);
}

static void nothing_to_balance_is_no_error(void **state)
{
	struct fixture *f = *state;

	f->nparts = 1;
	f->capacity[0] = (struct stkd_capacity){.size = 4, .items = 4};
	balance(f);
	f->nitems = 1;
	f->items[0] = (struct stkd_load){.cost = UINT64_MAX / 2, .size = 4};
	f->part_of[0] = 0;
	balance(f);
	assert_int_equal(f->part_of[0], 0);
}

/* Random packs: never beyond a capacity, never worse than at the start, mostly far better. */
static void exchanges_only_ever_help(void **state)
{
	struct fixture *f = *state;
	uint64_t seed = 99, sum_before = 0, sum_after = 0;

	for (unsigned round = 0; round < 300; round++) {
		uint32_t again[ITEMS_MAX];
		uint64_t before, size[PARTS_MAX] = {0}, most = 0;

		f->nparts = 1 + below(&seed, PARTS_MAX);
		f->nitems = 1 + below(&seed, ITEMS_MAX);
		for (uint32_t i = 0; i < f->nitems; i++) {
			uint32_t length = 1 + below(&seed, 500);

			f->items[i] = (struct stkd_load){.cost = (uint64_t)length * length,
							 .size = length};
			f->part_of[i] = below(&seed, f->nparts);
			size[f->part_of[i]] += length;
		}
		for (uint32_t p = 0; p < f->nparts; p++)
			most = STK_MAX(most, size[p]);
		for (uint32_t p = 0; p < f->nparts; p++)
			f->capacity[p] = (struct stkd_capacity){.size = most, .items = ITEMS_MAX};
		before = gap(f);
		memcpy(again, f->part_of, sizeof(again));
		balance(f);
		assert_true(gap(f) <= before);
		if (f->nitems >= 8 * f->nparts) { /* few items cannot be even */
			sum_before += before;
			sum_after += gap(f);
		}
		for (uint32_t i = 0; i < f->nitems; i++) {
			uint32_t first = f->part_of[i];

			f->part_of[i] = again[i];
			again[i] = first;
		}
		balance(f);
		assert_memory_equal(f->part_of, again, f->nitems * sizeof(again[0]));
	}
	assert_true(sum_after < sum_before / 4);
}

/* FNV-1a, a number at a time, over where the items of many parts go. */
static uint64_t where_they_go(struct fixture *f, uint32_t nparts, uint32_t each, bool dealt)
{
	uint32_t n = nparts * each, *part_of = malloc(n * sizeof(*part_of));
	struct stkd_capacity *capacity = malloc(nparts * sizeof(*capacity));
	struct stkd_load *items = malloc(n * sizeof(*items));
	uint64_t hash = UINT64_C(0xcbf29ce484222325), seed = nparts;

	assert_true(part_of && capacity && items);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t length = below(&seed, 2048);

		/* Some cost as much as others, some nothing. */
		items[i] = (struct stkd_load){.cost = length < 64 ? 0 : (uint64_t)length * length,
					      .size = dealt ? 1 : length};
		part_of[i] = dealt ? STKD_NO_PART : i % nparts;
	}
	for (uint32_t p = 0; p < nparts; p++)
		capacity[p] = (struct stkd_capacity){.size = dealt ? each : UINT64_C(2048) * each,
						     .items = each};
	assert_int_equal(stkd_balance(f->balancer, items, n, capacity, nparts, part_of), 0);
	for (uint32_t i = 0; i < n; i++)
		hash = (hash ^ part_of[i]) * UINT64_C(0x100000001b3);
	free(part_of);
	free(capacity);
	free(items);
	return hash;
}

static void where_items_of_many_parts_go_is_pinned(void **state)
{
	static const struct {
		uint32_t nparts, each;
		uint64_t dealt, given;
	} cases[] = {
		{3, 40, UINT64_C(0x37307a3e8515a787), UINT64_C(0x0e72d8b713ecf0e7)},
		{33, 1, UINT64_C(0x957fc389e9ebcdc3), UINT64_C(0x4013a15050e8031f)},
		{100, 4, UINT64_C(0xf6518e8408669d3b), UINT64_C(0x659613d1b4967167)},
		{3000, 4, UINT64_C(0x192281ba624159e1), UINT64_C(0xf2326e728ee3fc25)},
		{5000, 1, UINT64_C(0xff4c6aefed28745f), UINT64_C(0x7405579c4bb800fd)},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		uint64_t dealt = where_they_go(*state, cases[i].nparts, cases[i].each, true);
		uint64_t given = where_they_go(*state, cases[i].nparts, cases[i].each, false);

		if (dealt != cases[i].dealt || given != cases[i].given)
			fail_msg("%u parts of %u: 0x%016" PRIx64 ", 0x%016" PRIx64, cases[i].nparts,
				 cases[i].each, dealt, given);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(rows_are_dealt_out_evenly, setup, teardown),
		cmocka_unit_test_setup_teardown(parts_of_different_size_are_filled, setup,
						teardown),
		cmocka_unit_test_setup_teardown(an_item_moves_where_there_is_room, setup, teardown),
		cmocka_unit_test_setup_teardown(nothing_to_balance_is_no_error, setup, teardown),
		cmocka_unit_test_setup_teardown(exchanges_only_ever_help, setup, teardown),
		cmocka_unit_test_setup_teardown(where_items_of_many_parts_go_is_pinned, setup,
						teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
