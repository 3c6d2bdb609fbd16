/* SPDX-License-Identifier: Apache-2.0 */
/* The order of samples: a bijection for every n, unrelated between seeds, epochs and datasets. */
#include "daemon/plan/order.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

static struct stkd_order full(uint64_t n, uint64_t seed, uint64_t epoch)
{
	struct stkd_order order;

	stkd_order_init(&order, STK_ORDER_FULL, n, seed, epoch, 0);
	return order;
}

static void assert_bijection(uint64_t n, uint64_t seed)
{
	struct stkd_order order = full(n, seed, 3);
	uint8_t *seen = calloc(n, 1);

	assert_non_null(seen);
	for (uint64_t i = 0; i < n; i++) {
		uint64_t id = stkd_order_at(&order, i);

		assert_true(id < n);
		assert_int_equal(seen[id], 0);
		seen[id] = 1;
	}
	free(seen);
}

static void every_n_gets_a_bijection(void **state)
{
	static const uint64_t large[] = {255, 256, 257, 1023, 65535, 65536, 65537, 300007};

	(void)state;
	for (uint64_t n = 1; n <= 200; n++)
		for (uint64_t seed = 0; seed < 3; seed++)
			assert_bijection(n, seed);
	for (size_t i = 0; i < STK_ARRAY_SIZE(large); i++)
		assert_bijection(large[i], 17);
}

static void none_is_the_identity(void **state)
{
	struct stkd_order order;

	(void)state;
	stkd_order_init(&order, STK_ORDER_NONE, 1000, 17, 5, 0);
	for (uint64_t i = 0; i < 1000; i++)
		assert_int_equal(stkd_order_at(&order, i), i);
}

static void a_huge_n_stays_inside_and_distinct(void **state)
{
	static const uint64_t huge[] = {(UINT64_C(1) << 32) + 1, UINT64_C(1) << 40,
					(UINT64_C(1) << 48) + 12345, UINT64_MAX};

	(void)state;
	for (size_t h = 0; h < STK_ARRAY_SIZE(huge); h++) {
		struct stkd_order order = full(huge[h], 1, 0);
		uint64_t low = 0;

		for (uint64_t i = 0; i < 1000; i++) {
			uint64_t a = stkd_order_at(&order, i);

			assert_true(a < huge[h]);
			assert_true(a != stkd_order_at(&order, huge[h] - 1 - i));
			low += a < huge[h] / 2;
		}
		assert_in_range(low, 400, 600);
	}
}

static void permutations_of_few_samples_are_all_reached_evenly(void **state)
{
	/* Position of sample 0 among 5, over 5000 epochs: 1000 each, deviation 28. */
	uint64_t where[5] = {0}, orders[120] = {0}, distinct = 0;

	(void)state;
	for (uint64_t epoch = 0; epoch < 5000; epoch++) {
		struct stkd_order order = full(5, 99, epoch);
		unsigned digits = 0, rank = 0, used = 0;

		for (unsigned i = 0; i < 5; i++) {
			unsigned id = (unsigned)stkd_order_at(&order, i), smaller = 0;

			if (id == 0)
				where[i]++;
			for (unsigned j = 0; j < id; j++)
				smaller += !(used >> j & 1);
			used |= 1u << id;
			rank = rank * (5 - i) + smaller;
			digits++;
		}
		assert_int_equal(digits, 5);
		distinct += !orders[rank]++;
	}
	for (unsigned i = 0; i < 5; i++)
		assert_in_range(where[i], 850, 1150);
	assert_int_equal(distinct, 120);
}

/* Fixed points, neighbours that stay neighbours, and the sum of products of positions. */
struct relation {
	uint64_t fixed, neighbours;
	double correlation;
};

static struct relation relate(const struct stkd_order *a, const struct stkd_order *b)
{
	struct relation r = {0};
	double n = (double)a->n, mean = (n - 1) / 2, sum = 0;
	int64_t last = -2;

	for (uint64_t i = 0; i < a->n; i++) {
		int64_t x = (int64_t)stkd_order_at(a, i), y = (int64_t)stkd_order_at(b, i);

		r.fixed += x == y;
		r.neighbours += y == last + 1;
		last = y;
		sum += ((double)x - mean) * ((double)y - mean);
	}
	r.correlation = sum / (n * (n * n - 1) / 12);
	return r;
}

static void assert_unrelated(const struct stkd_order *a, const struct stkd_order *b)
{
	struct relation r = relate(a, b);

	/* Both counts are close to Poisson with mean 1; the correlation deviates by 0.0032. */
	assert_in_range(r.fixed, 0, 9);
	assert_in_range(r.neighbours, 0, 9);
	assert_true(r.correlation > -0.016 && r.correlation < 0.016);
}

static void seeds_epochs_and_datasets_are_unrelated(void **state)
{
	const uint64_t n = 100003;
	struct stkd_order none, a, b;

	(void)state;
	stkd_order_init(&none, STK_ORDER_NONE, n, 0, 0, 0);
	for (uint64_t i = 0; i < 6; i++) {
		a = full(n, i, 0);
		assert_unrelated(&none, &a);
		b = full(n, i, 1);
		assert_unrelated(&a, &b);
		b = full(n, i + 1, 0);
		assert_unrelated(&a, &b);
		/* A seed must not be an epoch in disguise. */
		a = full(n, i, i + 1);
		b = full(n, i + 1, i);
		assert_unrelated(&a, &b);
		stkd_order_init(&b, STK_ORDER_FULL, n, i, i + 1, 1);
		assert_unrelated(&a, &b);
	}
}

static void no_two_seeds_and_epochs_begin_alike(void **state)
{
	static const uint64_t counts[] = {128, 129, 65536, 65537, UINT64_C(3000000000)};
	enum { SEEDS = 4, EPOCHS = 8, FIRST = 100 };
	static uint64_t begin[SEEDS * EPOCHS][FIRST];

	(void)state;
	for (size_t c = 0; c < STK_ARRAY_SIZE(counts); c++) {
		for (unsigned k = 0; k < SEEDS * EPOCHS; k++) {
			struct stkd_order order = full(counts[c], 1 + k / EPOCHS, k % EPOCHS);

			for (uint64_t i = 0; i < FIRST; i++) {
				begin[k][i] = stkd_order_at(&order, i);
				assert_true(begin[k][i] < counts[c]);
			}
			for (unsigned other = 0; other < k; other++)
				assert_memory_not_equal(begin[k], begin[other], sizeof(begin[k]));
		}
	}
}

static void samples_land_everywhere_alike(void **state)
{
	/* Sixteenth of the samples against sixteenth of the positions: 225 degrees of freedom. */
	enum { PARTS = 16, N = 160000 };

	(void)state;
	for (uint64_t seed = 0; seed < 5; seed++) {
		struct stkd_order order = full(N, seed, seed);
		double expected = (double)N / PARTS / PARTS, chi = 0;
		uint64_t cell[PARTS][PARTS] = {{0}};

		for (uint64_t i = 0; i < N; i++)
			cell[i * PARTS / N][stkd_order_at(&order, i) * PARTS / N]++;
		for (unsigned i = 0; i < PARTS * PARTS; i++) {
			double d = (double)cell[i / PARTS][i % PARTS] - expected;

			chi += d * d / expected;
		}
		/* Mean 225, deviation 21. */
		assert_true(chi > 130 && chi < 340);
	}
}

static void low_bits_of_neighbours_are_independent(void **state)
{
	uint64_t cell[8][8] = {{0}};
	struct stkd_order order = full(1 << 17, 5, 5);
	double expected = (1 << 16) / 64.0, chi = 0;

	(void)state;
	for (uint64_t i = 0; i < 1 << 17; i += 2)
		cell[stkd_order_at(&order, i) % 8][stkd_order_at(&order, i + 1) % 8]++;
	for (unsigned i = 0; i < 64; i++) {
		double d = (double)cell[i / 8][i % 8] - expected;

		chi += d * d / expected;
	}
	/* 63 degrees of freedom, deviation 11. */
	assert_true(chi > 20 && chi < 130);
}

static void the_sequence_of_a_key_is_pinned(void **state)
{
	static const uint64_t expected[] = {59159, 547172, 696340, 24349,
					    64343, 727951, 298681, 723229};
	struct stkd_order order = full(1000003, 17, 2);

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(expected); i++)
		assert_int_equal(stkd_order_at(&order, i), expected[i]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_n_gets_a_bijection),
		cmocka_unit_test(none_is_the_identity),
		cmocka_unit_test(a_huge_n_stays_inside_and_distinct),
		cmocka_unit_test(permutations_of_few_samples_are_all_reached_evenly),
		cmocka_unit_test(seeds_epochs_and_datasets_are_unrelated),
		cmocka_unit_test(no_two_seeds_and_epochs_begin_alike),
		cmocka_unit_test(samples_land_everywhere_alike),
		cmocka_unit_test(low_bits_of_neighbours_are_independent),
		cmocka_unit_test(the_sequence_of_a_key_is_pinned),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
