/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the comparison of edges: the same lengths, rows and tail, only the edges differ.
 * One thread.
 */
#include "tools/stoker/policy.h"

#include <errno.h>
#include <string.h>

#include "tools/stoker/packing.h"

struct comparison {
	const struct stk_spec *spec;
	const struct stkd_lengths *lengths;
	uint32_t world, limit; /* limit: longer samples are cut or dropped; 0: none are */
	struct stkd_histogram delivered;
};

double policy_padding(uint64_t real, uint64_t padded)
{
	return padded ? 1 - (double)real / (double)padded : 0;
}

/* The histogram of lengths as the plan delivers them. */
static int deliver(struct comparison *c, const struct stkd_plan *plan)
{
	struct stkd_histogram *h = &c->delivered;
	int r = stkd_histogram_new(c->lengths->len, c->lengths->count, h);

	if (r < 0)
		return r;
	stkd_histogram_cut(h, stkd_plan_counts(plan)->max_length,
			   c->spec->overlong == STK_OVERLONG_TRUNCATE);
	return 0;
}

static void choose_powers(const struct stkd_histogram *h, uint32_t last, struct policy *policy)
{
	for (uint64_t edge = 1; edge < last; edge *= 2)
		if (edge >= h->length[0])
			policy->edges[policy->nedges++] = (uint32_t)edge;
	policy->edges[policy->nedges++] = last;
}

/* Tokens at these edges, and the steps of an epoch of the spec with them. */
static void measure(const struct comparison *c, struct policy *policy)
{
	const struct stkd_histogram *h = &c->delivered;
	struct stk_spec spec = *c->spec;
	struct stkd_plan *plan;

	policy->padded = stkd_edges_padded(h, policy->edges, policy->nedges);
	for (size_t i = 0; i < h->n; i++)
		policy->real += h->length[i] * h->count[i];
	spec.group = STK_GROUP_BUCKET;
	spec.max_length = c->limit;
	memcpy(spec.edges, policy->edges, policy->nedges * sizeof(*spec.edges));
	spec.nedges = policy->nedges;
	if (stkd_plan_new(&spec, c->lengths, c->world, &plan, NULL) < 0)
		return; /* a budget below its longest row, say; then it has no steps */
	policy->steps = stkd_plan_counts(plan)->steps;
	stkd_plan_free(plan);
}

static const struct {
	const char *name;
	int (*choose)(const struct stkd_histogram *, uint32_t, uint32_t, uint32_t, uint32_t *,
		      size_t *);
} methods[] = {
	{"uniform", stkd_edges_uniform},
	{"quantile", stkd_edges_quantile},
	{"kmeans", stkd_edges_kmeans},
	{"optimal", stkd_edges_optimal},
};

static int compare(const struct comparison *c, struct policy policies[POLICIES_MAX])
{
	const struct stk_spec *spec = c->spec;
	uint32_t k = spec->buckets ? spec->buckets : 1;
	struct policy *p = policies;
	int r;

	p->name = "one size";
	r = stkd_edges_optimal(&c->delivered, 1, spec->multiple_of, c->limit, p->edges, &p->nedges);
	if (r < 0)
		return r;
	p++;
	p->name = "powers of two";
	choose_powers(&c->delivered, policies->edges[0], p++);
	for (size_t m = 0; m < STK_ARRAY_SIZE(methods); m++, p++) {
		p->name = methods[m].name;
		r = methods[m].choose(&c->delivered, k, spec->multiple_of, c->limit, p->edges,
				      &p->nedges);
		if (r < 0)
			return r;
	}
	if (spec->group == STK_GROUP_BUCKET && spec->nedges) {
		p->name = "as given";
		memcpy(p->edges, spec->edges, spec->nedges * sizeof(*p->edges));
		p++->nedges = spec->nedges;
	}
	for (struct policy *q = policies; q < p; q++)
		measure(c, q);
	r = packing_measure(spec, c->lengths, c->world, p);
	if (r == -ENOMEM)
		return r;
	p += r == 0; /* what cannot be packed has no line */
	return (int)(p - policies);
}

/* Adds what the samples of two lengths take, each in the first class that holds both. */
static void measure_pairs(const struct comparison *c, const struct stkd_plan *plan,
			  struct policy *policy)
{
	uint32_t limit = stkd_plan_counts(plan)->max_length;
	const struct stkd_class *classes;
	uint32_t n;

	classes = stkd_plan_classes(plan, &n);
	limit = STK_MIN(limit, classes[n - 1].edge); /* what keep leaves out may be longer */
	for (uint32_t b = 0; b < n; b++) {
		policy->edges[policy->nedges] = classes[b].edge;
		policy->edges2[policy->nedges++] = classes[b].edge2;
	}
	for (uint64_t i = 0; i < c->lengths->count; i++) {
		uint32_t first = c->lengths->len[i], second = c->lengths->second[i], b = 0;
		bool overlong = first > limit || second > classes[n - 1].edge2;

		if (overlong && c->spec->overlong == STK_OVERLONG_DROP)
			continue;
		first = STK_MIN(first, limit);
		second = STK_MIN(second, classes[n - 1].edge2);
		while (classes[b].edge < first || classes[b].edge2 < second)
			b++;
		policy->real += (uint64_t)first + second;
		policy->padded += (uint64_t)classes[b].edge + classes[b].edge2;
	}
}

/* A spec with these edges, and one that differs in nothing that may be refused for want of rows. */
static int compare_pair(const struct comparison *c, const struct stk_spec *spec,
			struct policy *policy)
{
	struct stk_spec loose = *spec;
	struct stkd_plan *plan;
	int r;

	loose.tokens = loose.global_rows = loose.global_tokens = loose.cost.budget = 0;
	loose.nrows = 0;
	loose.rows = loose.accumulate = loose.row_multiple = 1;
	loose.tail = STK_TAIL_PAD;
	r = stkd_plan_new(&loose, c->lengths, 1, &plan, NULL);
	if (r < 0)
		return r;
	measure_pairs(c, plan, policy);
	stkd_plan_free(plan);
	if (stkd_plan_new(spec, c->lengths, c->world, &plan, NULL) == 0) {
		policy->steps = stkd_plan_counts(plan)->steps;
		stkd_plan_free(plan);
	}
	return 0;
}

static int compare_pairs(const struct comparison *c, struct policy policies[POLICIES_MAX])
{
	static const struct {
		const char *name;
		int method;
	} ways[] = {
		{"one size", STK_BUCKET_OPTIMAL},  {"uniform", STK_BUCKET_UNIFORM},
		{"quantile", STK_BUCKET_QUANTILE}, {"kmeans", STK_BUCKET_KMEANS},
		{"optimal", STK_BUCKET_OPTIMAL},
	};
	struct policy *p = policies;
	int r = 0;

	for (size_t i = 0; r == 0 && i < STK_ARRAY_SIZE(ways); i++, p++) {
		struct stk_spec spec = *c->spec;

		p->name = ways[i].name;
		spec.nedges = 0;
		spec.nrows = 0;
		spec.rows = spec.rows || !c->spec->nrows ? spec.rows : c->spec->rows_list[0];
		spec.buckets = i ? STK_MAX(spec.buckets, 1u) : 1;
		spec.bucket_method = ways[i].method;
		r = compare_pair(c, &spec, p);
	}
	if (r == 0 && c->spec->nedges) {
		p->name = "as given";
		r = compare_pair(c, c->spec, p++);
	}
	return r < 0 ? r : (int)(p - policies);
}

int policies_compare(const struct stk_spec *spec, const struct stkd_plan *plan,
		     const struct stkd_lengths *lengths, uint32_t world,
		     struct policy ret[POLICIES_MAX], struct stk_err *err)
{
	const struct stkd_plan_counts *counts = stkd_plan_counts(plan);
	struct comparison c = {.spec = spec, .lengths = lengths, .world = world};
	int r;

	if (spec->max_length || counts->truncated || counts->overlong_dropped)
		c.limit = counts->max_length;
	memset(ret, 0, POLICIES_MAX * sizeof(*ret));
	r = lengths->second ? 0 : deliver(&c, plan);
	if (r == 0)
		r = lengths->second ? compare_pairs(&c, ret) : compare(&c, ret);
	stkd_histogram_deinit(&c.delivered);
	if (r < 0)
		return stk_err_set(err, r, "cannot compare ways to choose edges: %s",
				   r == -ENOMEM ? "no memory" : "more than 2^64 tokens");
	return r;
}
