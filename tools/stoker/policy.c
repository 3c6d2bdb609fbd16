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
	if (lengths->second)
		return 0;
	r = deliver(&c, plan);
	if (r == 0)
		r = compare(&c, ret);
	stkd_histogram_deinit(&c.delivered);
	if (r < 0)
		return stk_err_set(err, r, "cannot compare ways to choose edges: %s",
				   r == -ENOMEM ? "no memory" : "more than 2^64 tokens");
	return r;
}
