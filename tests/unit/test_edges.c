/* SPDX-License-Identifier: Apache-2.0 */
/* Histogram and optimal edges, against brute force over all choices of edges. */
#include "daemon/plan/edges.h"

#include "tests/unit/plan_fixture.h"

static struct stkd_histogram histogram(const uint32_t *len, uint64_t n)
{
	struct stkd_histogram h = {0};

	assert_int_equal(stkd_histogram_new(len, n, &h), 0);
	return h;
}

static void a_histogram_counts_short_and_long_lengths_in_order(void **state)
{
	static const uint32_t len[] = {70000, 3, 65535, 3, UINT32_MAX, 65536, 0, 70000, 3};
	static const uint32_t lengths[] = {0, 3, 65535, 65536, 70000, UINT32_MAX};
	static const uint64_t counts[] = {1, 3, 1, 1, 2, 1};
	struct stkd_histogram h = histogram(len, STK_ARRAY_SIZE(len));

	(void)state;
	assert_int_equal(h.n, STK_ARRAY_SIZE(lengths));
	for (size_t i = 0; i < h.n; i++) {
		assert_int_equal(h.length[i], lengths[i]);
		assert_int_equal(h.count[i], counts[i]);
	}
	stkd_histogram_deinit(&h);
	assert_null(h.length);
}

static void lengths_above_a_limit_are_taken_out_or_counted_as_the_limit(void **state)
{
	static const uint32_t len[] = {5, 9, 9, 12, 20};
	struct stkd_histogram h = histogram(len, 5);

	(void)state;
	assert_int_equal(stkd_histogram_cut(&h, 20, true), 0);
	assert_int_equal(h.n, 4);
	assert_int_equal(stkd_histogram_cut(&h, 10, true), 2);
	assert_int_equal(h.n, 3);
	assert_int_equal(h.length[2], 10);
	assert_int_equal(h.count[2], 2);
	assert_int_equal(stkd_histogram_cut(&h, 9, true), 2);
	assert_int_equal(h.n, 2);
	assert_int_equal(h.count[1], 4);
	assert_int_equal(stkd_histogram_cut(&h, 4, false), 5);
	assert_int_equal(h.n, 0);
	stkd_histogram_deinit(&h);
}

static void many_distinct_long_lengths_are_merged(void **state)
{
	const uint32_t n = 200000, distinct = 90001;
	uint32_t *len = calloc(n, sizeof(*len));
	struct stkd_histogram h;
	uint64_t total = 0;

	(void)state;
	assert_non_null(len);
	for (uint32_t i = 0; i < n; i++)
		len[i] = 65536 + (uint32_t)((uint64_t)i * 7919 % distinct) * 3;
	h = histogram(len, n);
	assert_int_equal(h.n, distinct);
	for (size_t i = 0; i < h.n; i++) {
		assert_int_equal(h.length[i], 65536 + 3 * i);
		assert_in_range(h.count[i], n / distinct, n / distinct + 1);
		total += h.count[i];
	}
	assert_int_equal(total, n);
	stkd_histogram_deinit(&h);
	free(len);
}

/* Least padding over all sets of at most k edges; edges are rounded lengths, the last one is in. */
static uint64_t brute_force(const struct stkd_histogram *h, unsigned k, uint32_t multiple,
			    uint32_t max_length)
{
	uint32_t edges[16], chosen[16];
	uint64_t least = UINT64_MAX;
	size_t m = 0;

	for (size_t i = 0; i < h->n; i++) {
		uint32_t e = (uint32_t)stk_round_up(STK_MAX(h->length[i], 1u), multiple);

		if (max_length)
			e = STK_MIN(e, max_length);
		if (!m || edges[m - 1] != e)
			edges[m++] = e;
	}
	for (unsigned set = 1u << (m - 1); set < 1u << m; set++) {
		size_t n = 0;

		if ((unsigned)__builtin_popcount(set) > k)
			continue;
		for (size_t i = 0; i < m; i++)
			if (set >> i & 1)
				chosen[n++] = edges[i];
		least = STK_MIN(least, stkd_edges_padded(h, chosen, n));
	}
	return least;
}

static void edges_are_as_good_as_the_best_of_all_choices(void **state)
{
	(void)state;
	for (uint64_t c = 1; c <= 500; c++) {
		uint64_t seed = c * 7919;
		uint32_t len[40], edges[16], longest = 0, n = 1 + below(&seed, 40);
		uint32_t span = 1 + below(&seed, 12), scale = 1 + below(&seed, 9);
		uint32_t k = 1 + below(&seed, 6), multiple = 1 + below(&seed, 9), max_length = 0;
		struct stkd_histogram h;
		size_t nedges = 0;

		for (uint32_t i = 0; i < n; i++) {
			len[i] = below(&seed, span) * scale;
			longest = STK_MAX(longest, len[i]);
		}
		if (below(&seed, 2))
			max_length = STK_MAX(longest, 1u) + below(&seed, 3);
		h = histogram(len, n);
		assert_int_equal(stkd_edges_optimal(&h, k, multiple, max_length, edges, &nedges),
				 0);
		if (stkd_edges_padded(&h, edges, nedges) !=
		    brute_force(&h, k, multiple, max_length))
			print_error("case %d\n", (int)c);
		assert_int_equal(stkd_edges_padded(&h, edges, nedges),
				 brute_force(&h, k, multiple, max_length));
		assert_in_range(nedges, 1, k);
		assert_true(edges[nedges - 1] >= longest);
		for (size_t i = 0; i < nedges; i++) {
			assert_true(edges[i] > (i ? edges[i - 1] : 0));
			assert_true(edges[i] % multiple == 0 || edges[i] == max_length);
		}
		stkd_histogram_deinit(&h);
	}
}

static void a_tie_goes_to_the_smaller_edges(void **state)
{
	/* Splitting after 1, 2 or 3 costs the same: {1,4} = 1+3*4, {2,4} = 4+8 = 12 < 13; so use
	 * counts that tie: 1 at 1, 1 at 2, 1 at 3: {1,3} = 1+6 = 7, {2,3} = 4+3 = 7. */
	static const uint32_t len[] = {1, 2, 3};
	struct stkd_histogram h = histogram(len, 3);
	uint32_t edges[2];
	size_t n = 0;

	(void)state;
	assert_int_equal(stkd_edges_optimal(&h, 2, 1, 0, edges, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(edges[0], 1);
	assert_int_equal(edges[1], 3);
	stkd_histogram_deinit(&h);
}

static void fewer_distinct_lengths_give_fewer_edges(void **state)
{
	static const uint32_t len[] = {5, 9, 16, 5, 9};
	struct stkd_histogram h = histogram(len, 5);
	uint32_t edges[256];
	size_t n = 0;

	(void)state;
	assert_int_equal(stkd_edges_optimal(&h, 256, 8, 0, edges, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(edges[0], 8);
	assert_int_equal(edges[1], 16);
	stkd_histogram_deinit(&h);
}

static void the_last_edge_is_max_length_where_that_is_no_multiple(void **state)
{
	static const uint32_t len[] = {50, 97, 100};
	struct stkd_histogram h = histogram(len, 3);
	uint32_t edges[4];
	size_t n = 0;

	(void)state;
	assert_int_equal(stkd_edges_optimal(&h, 4, 8, 100, edges, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(edges[0], 56);
	assert_int_equal(edges[1], 100);
	stkd_histogram_deinit(&h);
}

static void lengths_of_zero_get_an_edge_of_at_least_one_multiple(void **state)
{
	static const uint32_t len[] = {0, 0};
	struct stkd_histogram h = histogram(len, 2);
	uint32_t edges[4];
	size_t n = 0;

	(void)state;
	assert_int_equal(stkd_edges_optimal(&h, 4, 8, 0, edges, &n), 0);
	assert_int_equal(n, 1);
	assert_int_equal(edges[0], 8);
	stkd_histogram_deinit(&h);
}

static void what_does_not_fit_is_refused_not_wrapped(void **state)
{
	static const uint32_t longest[] = {UINT32_MAX};
	struct stkd_histogram h = histogram(longest, 1);
	uint32_t edges[4] = {7};
	size_t n = 9;

	(void)state;
	assert_int_equal(stkd_edges_optimal(&h, 4, 8, 0, edges, &n), -EOVERFLOW);
	assert_int_equal(n, 9);
	assert_int_equal(stkd_edges_optimal(&h, 4, 1, 0, edges, &n), 0);
	assert_int_equal(edges[0], UINT32_MAX);
	h.count[0] = (UINT64_C(1) << 32) + 2;
	assert_int_equal(stkd_edges_optimal(&h, 4, 1, 0, edges, &n), -EOVERFLOW);
	stkd_histogram_deinit(&h);
}

typedef int (*choose_fn)(const struct stkd_histogram *, uint32_t, uint32_t, uint32_t, uint32_t *,
			 size_t *);

/* Every way gives edges that hold all lengths, and none has less padding than the best. */
static void no_other_way_has_less_padding(void **state)
{
	static const choose_fn ways[] = {stkd_edges_kmeans, stkd_edges_quantile,
					 stkd_edges_uniform};
	uint64_t seed = 11;

	(void)state;
	for (int round = 0; round < 400; round++) {
		uint32_t len[300], n = 1 + below(&seed, 300), span = 1 + below(&seed, 3000);
		uint32_t k = 1 + below(&seed, 20), multiple = below(&seed, 2) ? 1 : 8;
		struct stkd_histogram h;
		uint32_t best[256], edges[256];
		size_t nbest, nedges = 0;

		for (uint32_t i = 0; i < n; i++)
			len[i] = below(&seed, below(&seed, 4) ? span / 5 + 1 : span);
		h = histogram(len, n);
		assert_int_equal(stkd_edges_optimal(&h, k, multiple, 0, best, &nbest), 0);
		for (size_t w = 0; w < STK_ARRAY_SIZE(ways); w++) {
			assert_int_equal(ways[w](&h, k, multiple, 0, edges, &nedges), 0);
			assert_in_range(nedges, 1, k);
			for (size_t i = 0; i < nedges; i++)
				assert_true(edges[i] % multiple == 0 &&
					    (!i || edges[i] > edges[i - 1]));
			assert_int_equal(edges[nedges - 1], best[nbest - 1]);
			assert_true(stkd_edges_padded(&h, best, nbest) <=
				    stkd_edges_padded(&h, edges, nedges));
		}
		stkd_histogram_deinit(&h);
	}
}

static void each_way_does_what_its_name_says(void **state)
{
	static const uint32_t len[] = {1, 1, 1, 1, 2, 2, 9, 10, 90, 100};
	struct stkd_histogram h = histogram(len, 10);
	uint32_t edges[8];
	size_t n = 0;

	(void)state;
	assert_int_equal(stkd_edges_quantile(&h, 2, 1, 0, edges, &n), 0);
	assert_int_equal(n, 2);
	assert_int_equal(edges[0], 2); /* half of the samples, at least */
	assert_int_equal(stkd_edges_uniform(&h, 4, 1, 0, edges, &n), 0);
	assert_int_equal(n, 2); /* nothing is from 26 to 75 long */
	assert_int_equal(edges[0], 25);
	assert_int_equal(edges[1], 100);
	assert_int_equal(stkd_edges_kmeans(&h, 3, 1, 0, edges, &n), 0);
	assert_int_equal(n, 3);
	assert_int_equal(edges[0], 2);
	assert_int_equal(edges[1], 10);
	assert_int_equal(edges[2], 100);
	stkd_histogram_deinit(&h);
}

static size_t read_some(void *context, uint32_t *out, size_t room)
{
	uint32_t *left = context;
	size_t n = STK_MIN(*left, (uint32_t)STK_MIN(room, (size_t)7));

	for (size_t i = 0; i < n; i++)
		out[i] = --*left % 5 * 50000;
	return n;
}

static void histograms_are_read_in_pieces_and_added(void **state)
{
	uint32_t left = 1000;
	struct stkd_histogram h = {0}, sum = {0};

	(void)state;
	assert_int_equal(stkd_histogram_read(read_some, &left, &h), 0);
	assert_int_equal(h.n, 5);
	assert_int_equal(h.length[4], 200000);
	assert_int_equal(h.count[4], 200);
	assert_int_equal(stkd_histogram_add(&sum, &h, 3), 0);
	assert_int_equal(stkd_histogram_add(&sum, &h, 1), 0);
	assert_int_equal(sum.n, 5);
	assert_int_equal(sum.count[0], 800);
	stkd_histogram_deinit(&h);
	stkd_histogram_deinit(&sum);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_histogram_counts_short_and_long_lengths_in_order),
		cmocka_unit_test(lengths_above_a_limit_are_taken_out_or_counted_as_the_limit),
		cmocka_unit_test(many_distinct_long_lengths_are_merged),
		cmocka_unit_test(edges_are_as_good_as_the_best_of_all_choices),
		cmocka_unit_test(a_tie_goes_to_the_smaller_edges),
		cmocka_unit_test(fewer_distinct_lengths_give_fewer_edges),
		cmocka_unit_test(the_last_edge_is_max_length_where_that_is_no_multiple),
		cmocka_unit_test(lengths_of_zero_get_an_edge_of_at_least_one_multiple),
		cmocka_unit_test(what_does_not_fit_is_refused_not_wrapped),
		cmocka_unit_test(no_other_way_has_less_padding),
		cmocka_unit_test(each_way_does_what_its_name_says),
		cmocka_unit_test(histograms_are_read_in_pieces_and_added),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
