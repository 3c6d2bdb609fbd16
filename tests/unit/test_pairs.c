/* SPDX-License-Identifier: Apache-2.0 */
/* Edges that are chosen for two lengths: what they hold, what they cost, and what a plan makes of them. */
#include <inttypes.h>

#include "daemon/plan/pairs.h"
#include "tests/unit/plan_fixture.h"

#define N 400

struct samples {
	uint32_t first[N], second[N], n, longest, longest2;
};

struct edges {
	uint32_t first[STK_SPEC_EDGES_MAX], second[STK_SPEC_EDGES_MAX];
	size_t n;
};

/* The second length follows the first one more or less. */
static void random_samples(struct samples *s, uint64_t *seed)
{
	uint32_t span = 1 + below(seed, 600), span2 = 1 + below(seed, 90), noise = below(seed, 20);

	*s = (struct samples){.n = 1 + below(seed, N)};
	for (uint32_t i = 0; i < s->n; i++) {
		s->first[i] = below(seed, below(seed, 2) ? span : span / 4 + 1);
		s->second[i] =
			(uint32_t)((uint64_t)s->first[i] * span2 / span) + below(seed, noise + 1);
		s->longest = STK_MAX(s->longest, s->first[i]);
		s->longest2 = STK_MAX(s->longest2, s->second[i]);
	}
}

static void choose(const struct samples *s, int method, uint32_t k, uint32_t multiple_of,
		   uint32_t max_length, struct edges *ret)
{
	struct stkd_pairs pairs;

	assert_int_equal(stkd_pairs_init(&pairs, s->longest, s->longest2, multiple_of), 0);
	for (uint32_t i = 0; i < s->n; i++)
		stkd_pairs_add(&pairs, s->first[i], s->second[i], 1);
	assert_int_equal(
		stkd_pairs_edges(&pairs, method, k, max_length, ret->first, ret->second, &ret->n),
		0);
	stkd_pairs_deinit(&pairs);
}

/* As the plan places them: the smallest first edge, then the first pair that holds both. */
static uint64_t padded(const struct samples *s, const struct edges *e)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < s->n; i++) {
		size_t b = 0;

		while (b < e->n && (e->first[b] < s->first[i] || e->second[b] < s->second[i]))
			b++;
		assert_true(b < e->n);
		sum += (uint64_t)e->first[b] + e->second[b];
	}
	return sum;
}

static void assert_ordered(const struct samples *s, const struct edges *e, uint32_t k,
			   uint32_t multiple_of)
{
	assert_true(e->n >= 1 && e->n <= k);
	for (size_t b = 0; b < e->n; b++) {
		assert_int_equal(e->second[b] % multiple_of, 0);
		assert_true(e->second[b] <= e->second[e->n - 1]);
		if (b)
			assert_true(e->first[b] > e->first[b - 1] ||
				    (e->first[b] == e->first[b - 1] &&
				     e->second[b] > e->second[b - 1]));
	}
	assert_true(e->first[e->n - 1] >= s->longest);
	assert_true(e->second[e->n - 1] >= s->longest2);
}

static void no_method_has_less_padding_than_the_optimal_one(void **state)
{
	static const int methods[] = {STK_BUCKET_UNIFORM, STK_BUCKET_QUANTILE, STK_BUCKET_KMEANS};
	uint64_t sums[2] = {0};

	(void)state;
	for (uint64_t number = 1; number <= 500; number++) {
		uint64_t seed = number * UINT64_C(0x9e3779b97f4a7c15);
		struct edges best, other;
		struct samples s;
		uint32_t multiple_of, k;

		random_samples(&s, &seed);
		multiple_of = 1 + below(&seed, 9);
		k = 1 + below(&seed, below(&seed, 4) ? 20 : STK_SPEC_EDGES_MAX);
		choose(&s, STK_BUCKET_OPTIMAL, k, multiple_of, 0, &best);
		assert_ordered(&s, &best, k, multiple_of);
		for (size_t m = 0; m < STK_ARRAY_SIZE(methods); m++) {
			choose(&s, methods[m], k, multiple_of, 0, &other);
			assert_ordered(&s, &other, k, multiple_of);
			if (padded(&s, &best) > padded(&s, &other))
				fail_msg("case %" PRIu64 ", method %d: %" PRIu64 " > %" PRIu64,
					 number, methods[m], padded(&s, &best), padded(&s, &other));
			if (!m) {
				sums[0] += padded(&s, &best);
				sums[1] += padded(&s, &other);
			}
		}
	}
	print_message("padded by optimal pairs %" PRIu64 ", by uniform ones %" PRIu64 "\n", sums[0],
		      sums[1]);
	assert_true(sums[0] < sums[1]);
}

/* What one edge of the first length, or one of the second for each, would cost is never undercut. */
static void more_pairs_have_no_more_padding(void **state)
{
	(void)state;
	for (uint64_t number = 1; number <= 60; number++) {
		uint64_t seed = number * UINT64_C(0xbf58476d1ce4e5b9), before = UINT64_MAX;
		struct samples s;

		random_samples(&s, &seed);
		for (uint32_t k = 1; k <= STK_SPEC_EDGES_MAX; k *= 2) {
			struct edges e;

			choose(&s, STK_BUCKET_OPTIMAL, k, 1, 0, &e);
			assert_true(padded(&s, &e) <= before);
			before = padded(&s, &e);
		}
	}
}

static void one_pair_is_the_longest_of_both(void **state)
{
	const struct samples s = {{5, 9, 0}, {30, 2, 1}, 3, 9, 30};
	struct edges e;

	(void)state;
	choose(&s, STK_BUCKET_OPTIMAL, 1, 4, 0, &e);
	assert_int_equal(e.n, 1);
	assert_int_equal(e.first[0], 12);
	assert_int_equal(e.second[0], 32);
	choose(&s, STK_BUCKET_OPTIMAL, 1, 4, 10, &e);
	assert_int_equal(e.first[0], 10); /* max_length, though it is no multiple */
}

static void pairs_follow_the_samples(void **state)
{
	/* Short with short and long with long, but for one. */
	const struct samples s = {
		{10, 10, 10, 100, 100, 100, 100}, {2, 2, 2, 50, 50, 50, 3}, 7, 100, 50};
	struct edges e;

	(void)state;
	choose(&s, STK_BUCKET_OPTIMAL, 2, 1, 0, &e);
	assert_int_equal(e.n, 2);
	assert_int_equal(e.first[0], 10);
	assert_int_equal(e.second[0], 2);
	assert_int_equal(e.first[1], 100);
	assert_int_equal(e.second[1], 50);
	choose(&s, STK_BUCKET_OPTIMAL, 4, 1, 0, &e);
	assert_int_equal(padded(&s, &e), 3 * 12 + 3 * 150 + 103);
}

static void lengths_that_are_too_large_are_refused(void **state)
{
	struct stkd_pairs pairs = {0};

	(void)state;
	assert_int_equal(stkd_pairs_init(&pairs, UINT32_MAX, 1, 1u << 31), 0);
	stkd_pairs_deinit(&pairs);
	assert_int_equal(stkd_pairs_init(&pairs, 1, UINT32_MAX, 1u << 31), -EOVERFLOW);
	assert_int_equal(stkd_pairs_init(&pairs, UINT32_MAX, UINT32_MAX, 1), -EOVERFLOW);
}

/* Every sample of an epoch comes once, in a class that holds it; a cursor after each step goes on. */
static void check_epoch(const struct stkd_plan *plan, const struct samples *s)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	const struct stkd_class *classes;
	uint32_t seen[N] = {0}, n;
	struct stkd_step step = {0};

	classes = stkd_plan_classes(plan, &n);
	while (!step.last_of_epoch) {
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		struct stkd_iter *again = make_iter(plan, bytes, stkd_iter_cursor(iter, bytes));
		struct stkd_step same;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_int_equal(stkd_iter_next(again, &same), 0);
		assert_int_equal(step.nids, same.nids);
		assert_memory_equal(step.ids, same.ids, step.nids * sizeof(step.ids[0]));
		stkd_iter_free(again);
		for (uint32_t i = 0; i < step.nids; i++) {
			uint64_t id = step.ids[i];

			seen[id]++;
			assert_true(s->first[id] <= classes[step.shape_class].edge);
			assert_true(s->second[id] <= classes[step.shape_class].edge2);
			assert_true(s->first[id] <= step.width && s->second[id] <= step.width2);
		}
	}
	for (uint32_t i = 0; i < s->n; i++)
		assert_int_equal(seen[i], 1);
	stkd_iter_free(iter);
}

static void a_plan_of_chosen_pairs_delivers_every_sample_once(void **state)
{
	unsigned plans = 0;

	(void)state;
	for (uint64_t number = 1; number <= 300; number++) {
		uint64_t seed = number * UINT64_C(0x94d049bb133111eb);
		struct stk_spec spec = plain_spec();
		struct stkd_plan *plan = NULL;
		struct stkd_lengths lengths;
		struct stk_err err = {0};
		struct samples s;

		random_samples(&s, &seed);
		spec.order = STK_ORDER_FULL;
		spec.group = STK_GROUP_BUCKET;
		spec.buckets = 1 + below(&seed, 20);
		spec.bucket_method = (int)below(&seed, 4);
		spec.multiple_of = 1 + below(&seed, 8);
		spec.pad_to = below(&seed, 2) ? STK_PAD_EDGE : STK_PAD_LONGEST;
		spec.tail = below(&seed, 2) ? STK_TAIL_PAD : STK_TAIL_SHORT;
		spec.max_length = below(&seed, 3) ? 0 : s.longest + below(&seed, 9);
		spec.length = (char *)"frames";
		spec.length2 = (char *)"text";
		lengths = (struct stkd_lengths){.len = s.first, .count = s.n, .second = s.second};
		if (stkd_plan_new(&spec, &lengths, 1 + below(&seed, 3), &plan, &err) < 0) {
			assert_non_null(strstr(err.text, "an epoch would have no step"));
			continue;
		}
		plans++;
		check_epoch(plan, &s);
		stkd_plan_free(plan);
	}
	assert_true(plans > 200);
}

static void chosen_pairs_are_pinned(void **state)
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325), seed = 5;

	(void)state;
	for (int method = 0; method < 4; method++)
		for (uint32_t k = 1; k < 60; k = 2 * k + 1) {
			struct samples s;
			struct edges e;

			random_samples(&s, &seed);
			choose(&s, method, k, 1 + k % 8, 0, &e);
			for (size_t b = 0; b < e.n; b++) {
				hash = (hash ^ e.first[b]) * UINT64_C(0x100000001b3);
				hash = (hash ^ e.second[b]) * UINT64_C(0x100000001b3);
			}
		}
	if (hash != UINT64_C(0x85b28d386adb2a93))
		fail_msg("0x%016" PRIx64, hash);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_method_has_less_padding_than_the_optimal_one),
		cmocka_unit_test(more_pairs_have_no_more_padding),
		cmocka_unit_test(one_pair_is_the_longest_of_both),
		cmocka_unit_test(pairs_follow_the_samples),
		cmocka_unit_test(lengths_that_are_too_large_are_refused),
		cmocka_unit_test(a_plan_of_chosen_pairs_delivers_every_sample_once),
		cmocka_unit_test(chosen_pairs_are_pinned),
	};

	return cmocka_run_group_tests_name("pairs", tests, NULL, NULL);
}
