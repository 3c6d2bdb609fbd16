/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mixtures: shares of every prefix, ends of an epoch, passes, and positions reached both ways.
 */
#include <inttypes.h>

#include "daemon/plan/mix.h"
#include "daemon/plan/source.h"
#include "tests/unit/plan_fixture.h"

#define DATASETS 32

struct mixture {
	struct stkd_mix mix;
	uint64_t first[STK_SPEC_DATA_MAX + 1], weights[STK_SPEC_DATA_MAX];
	uint32_t n;
};

static void open_mixture(struct mixture *m, int stop)
{
	struct stk_err err = {0};
	int r = stkd_mix_init(&m->mix, m->first, m->weights, m->n, stop, &err);

	if (r < 0)
		print_error("%s\n", err.text);
	assert_int_equal(r, 0);
}

static void random_mixture(struct mixture *m, uint64_t *seed, uint32_t n, uint32_t samples)
{
	m->n = n;
	for (uint32_t d = 0; d < n; d++) {
		m->first[d + 1] = m->first[d] + 1 + below(seed, samples);
		m->weights[d] = below(seed, 5) ? 1 + below(seed, below(seed, 2) ? 1000000 : 9) : 0;
	}
	m->weights[below(seed, n)] = 1 + below(seed, 7);
}

/* |draws * period - place * weight| < period */
static void assert_within_one(const struct stkd_mix *mix, const uint64_t *draws, uint64_t place)
{
	for (uint32_t d = 0; d < mix->n; d++) {
		__int128 off = (__int128)draws[d] * mix->period -
			       (__int128)place * mix->datasets[d].weight;

		assert_true(off < (__int128)mix->period && -off < (__int128)mix->period);
	}
}

static void every_prefix_is_within_one_of_the_exact_share(void **state)
{
	struct stkd_mix_page *page = malloc(sizeof(*page));

	(void)state;
	assert_non_null(page);
	for (uint64_t seed = 1; seed <= 16; seed++) {
		uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15), draws[DATASETS] = {0};
		struct mixture m = {0};
		uint32_t left = 0;

		random_mixture(&m, &s, 2 + (uint32_t)(seed % (DATASETS - 1)), 1000);
		open_mixture(&m, STK_STOP_NEVER);
		stkd_mix_page_reset(page);
		for (uint64_t place = 0; place < (seed % 8 ? 9000 : 70000); place++) {
			uint64_t number;
			uint32_t d;

			left = left ? left : stkd_mix_page_seek(&m.mix, page, place);
			d = stkd_mix_page_next(page, &number);
			left--;
			assert_true(m.weights[d] > 0);
			assert_int_equal(number, draws[d]);
			draws[d]++;
			assert_within_one(&m.mix, draws, place + 1);
		}
		stkd_mix_deinit(&m.mix);
	}
	free(page);
}

static void many_datasets_of_any_weights_keep_their_shares(void **state)
{
	struct stkd_mix_page *page = malloc(sizeof(*page));
	uint64_t draws[STK_SPEC_DATA_MAX] = {0}, seed = 99;
	struct mixture m = {.n = STK_SPEC_DATA_MAX};

	(void)state;
	assert_non_null(page);
	for (uint32_t d = 0; d < m.n; d++) {
		m.first[d + 1] = m.first[d] + 500;
		m.weights[d] = 1 + below(&seed, d % 3 ? 40 : 4000);
	}
	open_mixture(&m, STK_STOP_ALL);
	stkd_mix_page_reset(page);
	for (uint64_t place = 0; place < 70000; place++) {
		uint64_t number;

		stkd_mix_page_seek(&m.mix, page, place);
		draws[stkd_mix_page_next(page, &number)]++;
		if (place % 61 == 0)
			assert_within_one(&m.mix, draws, place + 1);
	}
	stkd_mix_deinit(&m.mix);
	free(page);
}

/* FNV-1a over the datasets drawn at the first places, and at some that are far apart. */
static uint64_t draws_of(const struct mixture *m)
{
	struct stkd_mix_page *page = malloc(sizeof(*page));
	uint64_t hash = UINT64_C(0xcbf29ce484222325), number;

	assert_non_null(page);
	stkd_mix_page_reset(page);
	for (uint64_t i = 0; i < 30000; i++) {
		stkd_mix_page_seek(&m->mix, page, i < 20000 ? i : i * i * 7);
		hash = (hash ^ stkd_mix_page_next(page, &number)) * UINT64_C(0x100000001b3);
		hash = (hash ^ number) * UINT64_C(0x100000001b3);
	}
	free(page);
	return hash;
}

static void draws_of_uneven_mixtures_are_pinned(void **state)
{
	/* All alike; one above all others; each half of the one before; some rare, many not. */
	static const uint64_t want[] = {UINT64_C(0xb865809a3039af92), UINT64_C(0x1c264bb635c95086),
					UINT64_C(0x2950175bf17dcdf3), UINT64_C(0xb1bbb3cdadf80548)};

	(void)state;
	for (size_t kind = 0; kind < STK_ARRAY_SIZE(want); kind++) {
		struct mixture m = {.n = kind == 2 ? 22 : STK_SPEC_DATA_MAX};
		uint64_t hash;

		for (uint32_t d = 0; d < m.n; d++) {
			const uint64_t weights[] = {1, d ? 1 + d % 3 : 500000,
						    UINT64_C(1) << d % 64,
						    d % 5 ? 3000 + 17 * d : 1};

			m.first[d + 1] = m.first[d] + 10 + d;
			m.weights[d] = weights[kind];
		}
		open_mixture(&m, STK_STOP_NEVER);
		hash = draws_of(&m);
		if (hash != want[kind])
			fail_msg("kind %zu: 0x%016" PRIx64, kind, hash);
		stkd_mix_deinit(&m.mix);
	}
}

/* The first place at which one, or every, dataset was drawn to its end. */
static uint64_t end_by_hand(const struct mixture *m, int stop)
{
	struct mixture endless = *m;
	struct stkd_mix_page *page = malloc(sizeof(*page));
	uint64_t place = 0, done = 0, used = 0, number;

	assert_non_null(page);
	open_mixture(&endless, STK_STOP_NEVER);
	for (uint32_t d = 0; d < m->n; d++)
		used += m->weights[d] > 0;
	stkd_mix_page_reset(page);
	while (done < (stop == STK_STOP_FIRST ? 1 : used)) {
		uint32_t d;

		stkd_mix_page_seek(&endless.mix, page, place++);
		d = stkd_mix_page_next(page, &number);
		if (number + 1 == m->first[d + 1] - m->first[d])
			done++;
	}
	stkd_mix_deinit(&endless.mix);
	free(page);
	return place;
}

static void an_epoch_ends_with_the_first_or_the_last_dataset(void **state)
{
	(void)state;
	for (uint64_t seed = 1; seed <= 120; seed++) {
		uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15), total;
		int stop = seed % 2 ? STK_STOP_FIRST : STK_STOP_ALL;
		struct mixture m = {0};

		random_mixture(&m, &s, 2 + below(&s, 5), seed % 3 ? 40 : 3);
		/* Small weights, or the longest would be long in coming. */
		for (uint32_t d = 0; d < m.n; d++)
			m.weights[d] %= 13;
		m.weights[0] += 1;
		open_mixture(&m, stop);
		assert_int_equal(m.mix.draws, end_by_hand(&m, stop));
		total = 0;
		for (uint32_t d = 0; d < m.n; d++) {
			const struct stkd_mix_dataset *of = &m.mix.datasets[d];

			total += of->drawn;
			assert_true(of->passes * of->count >= of->drawn);
			assert_true(stop == STK_STOP_ALL || of->drawn <= of->count);
			assert_true(stop == STK_STOP_FIRST || !of->weight ||
				    of->drawn >= of->count);
		}
		assert_int_equal(total, m.mix.draws);
		stkd_mix_deinit(&m.mix);
	}
}

static void assert_mix_refused(struct mixture *m, int stop, const char *text)
{
	struct stk_err err = {0};

	assert_int_equal(stkd_mix_init(&m->mix, m->first, m->weights, m->n, stop, &err), -EINVAL);
	if (!strstr(err.text, text))
		print_error("got: %s\n", err.text);
	assert_non_null(strstr(err.text, text));
	stkd_mix_deinit(&m->mix);
}

static void impossible_mixtures_are_refused(void **state)
{
	struct mixture nothing = {.n = 2, .first = {0, 1, 2}};
	struct mixture empty = {.n = 2, .first = {0, 5, 5}, .weights = {1, 1}};
	struct mixture unused = {.n = 2, .first = {0, 5, 5}, .weights = {1, 0}};
	struct mixture odd = {.n = 2, .first = {0, 5, 9}, .weights = {UINT64_C(1) << 40, 3}};

	(void)state;
	assert_mix_refused(&nothing, STK_STOP_FIRST, "all weights are 0");
	assert_mix_refused(&empty, STK_STOP_FIRST, "dataset 1 (from 0) has no samples");
	open_mixture(&unused, STK_STOP_FIRST);
	assert_int_equal(unused.mix.draws, 5);
	assert_true(unused.mix.whole);
	stkd_mix_deinit(&unused.mix);
	/* It ends soon, so that its period does not matter. */
	open_mixture(&odd, STK_STOP_FIRST);
	assert_true(odd.mix.draws < 8);
	stkd_mix_deinit(&odd.mix);
	odd.weights[0] = UINT64_C(1) << 63;
	odd.weights[1] = (UINT64_C(1) << 63) + 1;
	assert_mix_refused(&odd, STK_STOP_FIRST, "add up to 2^64");
}

struct arrivals {
	uint32_t *len;
	uint64_t first[4];
	struct stk_spec_data data[3];
	struct stk_spec spec;
	struct stkd_plan *plan;
	struct stkd_source *source;
};

static void open_arrivals(struct arrivals *a, int order, int stop)
{
	static const uint64_t weights[] = {700000, 200000, 100000};
	struct stkd_lengths lengths;
	struct stk_err err = {0};

	*a = (struct arrivals){.first = {0, 900, 901, 1100}, .spec = plain_spec()};
	a->len = calloc(1100, sizeof(*a->len));
	assert_non_null(a->len);
	for (uint32_t i = 0; i < 1100; i++)
		a->len[i] = 1 + i % 37;
	for (size_t d = 0; d < 3; d++)
		a->data[d].weight = weights[d];
	a->spec.order = order;
	a->spec.block = 16;
	a->spec.block_window = 3;
	a->spec.block_unit = STK_BLOCK_TOKENS;
	a->spec.stop = stop;
	a->spec.data = a->data;
	a->spec.ndata = 3;
	lengths = (struct stkd_lengths){a->len, 1100, NULL, a->first, 3};
	if (stkd_plan_new(&a->spec, &lengths, 2, &a->plan, &err) < 0)
		print_error("%s\n", err.text);
	assert_non_null(a->plan);
	assert_int_equal(stkd_source_new(a->plan, &a->source), 0);
	assert_int_equal(stkd_source_begin(a->source, 3), 0);
}

static void close_arrivals(struct arrivals *a)
{
	stkd_source_free(a->source);
	stkd_plan_free(a->plan);
	free(a->len);
}

static void arrivals_read_the_same_forwards_backwards_and_from_anywhere(void **state)
{
	static const int orders[] = {STK_ORDER_NONE, STK_ORDER_FULL, STK_ORDER_BLOCK};

	(void)state;
	for (size_t o = 0; o < STK_ARRAY_SIZE(orders); o++) {
		for (int stop = STK_STOP_FIRST; stop <= STK_STOP_NEVER; stop++) {
			uint64_t ids[3000], n = 0, seed = 7;
			struct stkd_arrival got;
			struct arrivals a;

			open_arrivals(&a, orders[o], stop);
			while (n < 3000 && stkd_source_next(a.source, &got))
				ids[n++] = got.id;
			assert_true(stop == STK_STOP_NEVER ? n == 3000
							   : n == a.source->end || n == 3000);
			for (uint64_t i = a.source->position; i-- > 0;) {
				assert_true(stkd_source_back(a.source, &got));
				assert_int_equal(got.id, ids[i]);
			}
			assert_false(stkd_source_back(a.source, &got));
			for (int t = 0; t < 300; t++) {
				uint64_t at = below(&seed, (uint32_t)n);

				stkd_source_seek(a.source, at);
				assert_true(stkd_source_next(a.source, &got));
				assert_int_equal(got.id, ids[at]);
				if (below(&seed, 2) && at) {
					assert_true(stkd_source_back(a.source, &got));
					assert_true(stkd_source_back(a.source, &got));
					assert_int_equal(got.id, ids[at - 1]);
				}
			}
			close_arrivals(&a);
		}
	}
}

static void each_pass_over_a_dataset_is_a_permutation_of_its_own(void **state)
{
	struct stkd_arrival got;
	struct arrivals a;
	uint64_t previous[199] = {0}, now[199], n = 0, passes = 0, same = 0;
	uint8_t seen[199] = {0};

	(void)state;
	open_arrivals(&a, STK_ORDER_FULL, STK_STOP_NEVER);
	while (passes < 5 && stkd_source_next(a.source, &got)) {
		if (got.id < 901)
			continue;
		assert_false(seen[got.id - 901]);
		seen[got.id - 901] = 1;
		now[n++] = got.id;
		if (n < 199)
			continue;
		for (uint64_t i = 0; i < n; i++)
			same += passes && now[i] == previous[i];
		memcpy(previous, now, sizeof(now));
		memset(seen, 0, sizeof(seen));
		n = 0;
		passes++;
	}
	assert_true(same < 20);
	close_arrivals(&a);
}

static void positions_far_behind_2_40_are_reached_at_once(void **state)
{
	uint64_t at = UINT64_C(3) << 40, ids[100];
	struct stkd_arrival got;
	struct arrivals a;

	(void)state;
	open_arrivals(&a, STK_ORDER_FULL, STK_STOP_NEVER);
	stkd_source_seek(a.source, at);
	for (int i = 0; i < 100; i++) {
		assert_true(stkd_source_next(a.source, &got));
		assert_true(got.id < 1100);
		ids[i] = got.id;
	}
	for (int i = 100; i-- > 0;) {
		assert_true(stkd_source_back(a.source, &got));
		assert_int_equal(got.id, ids[i]);
	}
	close_arrivals(&a);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_prefix_is_within_one_of_the_exact_share),
		cmocka_unit_test(many_datasets_of_any_weights_keep_their_shares),
		cmocka_unit_test(draws_of_uneven_mixtures_are_pinned),
		cmocka_unit_test(an_epoch_ends_with_the_first_or_the_last_dataset),
		cmocka_unit_test(impossible_mixtures_are_refused),
		cmocka_unit_test(arrivals_read_the_same_forwards_backwards_and_from_anywhere),
		cmocka_unit_test(each_pass_over_a_dataset_is_a_permutation_of_its_own),
		cmocka_unit_test(positions_far_behind_2_40_are_reached_at_once),
	};

	return cmocka_run_group_tests_name("mix", tests, NULL, NULL);
}
