/* SPDX-License-Identifier: Apache-2.0 */
/* Random small plans of every kind, each from the number of its case. */
#ifndef STK_TEST_PLAN_CASES_H
#define STK_TEST_PLAN_CASES_H

#include "daemon/plan/plan_private.h"
#include "tests/unit/plan_fixture.h"

#define SAMPLES  160
#define DATASETS 4

struct one {
	struct stk_spec spec;
	struct stk_spec_data data[DATASETS];
	uint64_t first[DATASETS + 1];
	uint32_t ndatasets; /* 0: one, without weights */
	uint32_t len[SAMPLES], len2[SAMPLES], n, world;
	bool two; /* lengths */
	struct stkd_plan *plan;
	uint32_t parts, nclasses;
	const struct stkd_class *classes;
	const struct stkd_plan_counts *counts;
};

static inline void random_edges(struct stk_spec *spec, uint64_t *seed, uint32_t span)
{
	uint32_t edge = 0;

	spec->nedges = 1 + below(seed, 5);
	for (size_t i = 0; i < spec->nedges; i++) {
		edge += 1 + below(seed, span / 2 + 1);
		spec->edges[i] = edge;
	}
}

/* [first, second] edges; the last one holds every other. */
static inline void random_pairs(struct one *c, uint64_t *seed, uint32_t span)
{
	uint32_t edge = 0, most = 6 + span / 2 + below(seed, span);
	struct stk_spec *spec = &c->spec;

	c->two = true;
	spec->group = STK_GROUP_BUCKET;
	spec->length = (char *)"feats";
	spec->length2 = (char *)"tokens";
	spec->nedges = 0;
	spec->max_length = 0;
	for (uint32_t rows = 1 + below(seed, 3); rows > 0; rows--) {
		uint32_t second = 0, columns = 1 + below(seed, 3);

		edge += 1 + below(seed, span / 2 + 1);
		while (columns--) {
			second += 1 + below(seed, most / 4);
			if (rows == 1 && !columns)
				second = most;
			spec->edges[spec->nedges] = edge;
			spec->edges2[spec->nedges++] = second;
		}
	}
}

/* Several datasets, some of a single sample and some of no weight. */
static inline void random_datasets(struct one *c, uint64_t *seed)
{
	uint32_t n = 2 + below(seed, DATASETS - 1), weight = 0;

	if (n > c->n)
		return;
	for (uint32_t d = 0; d < n; d++) {
		uint64_t from = c->first[d] + 1, most = c->n - (n - d - 1);

		c->first[d + 1] =
			d + 1 == n ? c->n : from + below(seed, (uint32_t)((most - from) / 2 + 1));
		c->data[d].weight = UINT64_C(100000) * below(seed, 10);
		weight += c->data[d].weight > 0;
	}
	if (!weight)
		c->data[0].weight = 5;
	c->spec.stop = (int)below(seed, 2);
	c->spec.data = c->data;
	c->spec.ndata = c->ndatasets = n;
}

/* What a sample must be to be delivered at all. */
static inline void random_keep(struct one *c, uint64_t *seed, uint32_t span)
{
	struct stk_spec_keep *keep = &c->spec.keep;

	if (below(seed, 2))
		keep->min_length = below(seed, span / 4 + 1);
	if (below(seed, 2))
		keep->max_length = span / 2 + 1 + below(seed, span);
	if (c->two && below(seed, 2)) {
		bool inverted = below(seed, 2);

		keep->over = (char *)(inverted ? "tokens" : "feats");
		keep->under = (char *)(inverted ? "feats" : "tokens");
		keep->ratio_min = below(seed, 600000);
		keep->ratio_max = 1000000 + below(seed, 5000000);
	}
}

/* Rows, in one of the ways to say how many. */
static inline void random_rows(struct one *c, uint64_t *seed, uint32_t span)
{
	struct stk_spec *spec = &c->spec;
	uint32_t parts = c->world * spec->accumulate;
	/* Often one row of the largest bucket, so that lenders are smaller ones. */
	uint32_t budget = 3 * span + 14 + below(seed, below(seed, 2) ? 4 * span + 1 : 8);

	spec->rows = 0;
	spec->world_multiple = parts * (1 + below(seed, 3));
	switch (below(seed, 8)) {
	case 0:
		spec->cost.a = below(seed, 3000000);
		spec->cost.b = 1 + below(seed, 40000);
		spec->cost.budget = 6 * (uint64_t)budget;
		return;
	case 1:
		spec->global_rows = parts * (1 + below(seed, 4));
		return;
	case 2:
		spec->global_tokens = (uint64_t)spec->world_multiple * budget;
		return;
	case 3:
	case 4:
		spec->tokens = c->two ? budget : span + 8 + below(seed, 3 * span);
		spec->row_multiple = below(seed, 4) ? 1 : 2;
		return;
	case 5:
		if (spec->group == STK_GROUP_BUCKET && spec->nedges) {
			spec->nrows = spec->nedges;
			for (size_t i = 0; i < spec->nrows; i++)
				spec->rows_list[i] = 1 + below(seed, 5);
			return;
		}
		/* fallthrough */
	default:
		spec->rows = 1 + below(seed, 5);
	}
}

static inline void random_case(struct one *c, uint64_t seed)
{
	uint32_t span = 1 + below(&seed, 60);

	c->spec = plain_spec();
	c->spec.seed = draw(&seed);
	c->spec.order = (int)below(&seed, 3);
	c->spec.block = 16;
	c->spec.block_window = 1 + below(&seed, 3);
	c->spec.block_unit = (int)below(&seed, 2);
	c->spec.overlong = (int)below(&seed, 2);
	c->spec.group = below(&seed, 4) ? STK_GROUP_BUCKET : STK_GROUP_FIXED;
	c->spec.buckets = 1 + below(&seed, 6);
	c->spec.bucket_method = (int)below(&seed, 4);
	c->spec.accumulate = 1 + below(&seed, 3) / 2;
	c->spec.multiple_of = below(&seed, 2) ? 1 : 1 + below(&seed, 8);
	c->spec.pad_to = (int)below(&seed, 2);
	c->spec.tail = (int)below(&seed, 4) % 3;
	if (below(&seed, 2))
		c->spec.max_length = 1 + below(&seed, span + 5);
	if (c->spec.group == STK_GROUP_BUCKET && below(&seed, 2))
		random_edges(&c->spec, &seed, span);
	c->spec.largest_first = !below(&seed, 4);
	c->world = 1 + below(&seed, 7);
	c->n = 1 + below(&seed, below(&seed, 3) ? SAMPLES : 12);
	for (uint32_t i = 0; i < c->n; i++) {
		c->len[i] = below(&seed, below(&seed, 3) ? span : span / 3 + 1);
		c->len2[i] = below(&seed, span);
	}
	if (!below(&seed, 5))
		random_pairs(c, &seed, span);
	random_rows(c, &seed, span);
	if (!below(&seed, 3))
		random_datasets(c, &seed);
	if (!below(&seed, 4))
		random_keep(c, &seed, span);
	c->parts = c->world * c->spec.accumulate;
}

static inline struct stkd_lengths lengths_of(const struct one *c)
{
	return (struct stkd_lengths){
		.len = c->len,
		.count = c->n,
		.second = c->two ? c->len2 : NULL,
		.first = c->ndatasets ? c->first : NULL,
		.ndatasets = c->ndatasets,
	};
}

/* Could nothing be left for a step? */
static inline bool may_be_empty(const struct one *c)
{
	const struct stk_spec_keep *keep = &c->spec.keep;

	return c->spec.tail == STK_TAIL_DROP || c->n < c->parts || c->ndatasets ||
	       c->spec.overlong == STK_OVERLONG_DROP || keep->min_length || keep->max_length ||
	       keep->over;
}

/* False when the plan refuses, which it may do here for few reasons. */
static inline bool open_case(struct one *c)
{
	static const char *const allowed[] = {"no step", "no samples left", "smaller than one row",
					      "row_multiple: 2 does not divide the 1 rows"};
	struct stkd_lengths lengths = lengths_of(c);
	struct stk_err err = {0};
	int r = stkd_plan_new(&c->spec, &lengths, c->world, &c->plan, &err);
	size_t i = 0;

	if (r < 0) {
		assert_int_equal(r, -EINVAL);
		while (i < STK_ARRAY_SIZE(allowed) && !strstr(err.text, allowed[i]))
			i++;
		if (i == STK_ARRAY_SIZE(allowed))
			fail_msg("%s", err.text);
		assert_true(i > 1 || may_be_empty(c));
		return false;
	}
	c->classes = stkd_plan_classes(c->plan, &c->nclasses);
	c->counts = stkd_plan_counts(c->plan);
	return true;
}

#endif
