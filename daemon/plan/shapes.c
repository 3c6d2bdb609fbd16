/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns how edges and rows of a class follow from the spec and the lengths. Any thread.
 */
#include "daemon/plan/shapes.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/plan/pairs.h"
#include "daemon/plan/tally.h"

#define ROWS_MAX        65536 /* a budget asks for no more rows of a batch than this */
#define GLOBAL_ROWS_MAX (UINT64_C(1) << 30) /* or of a step */

static int check_edges(const struct stk_spec *spec, struct stk_err *err)
{
	if (spec->edges_file)
		return stk_err_set(err, -EINVAL, "edges: the file %s was not read",
				   spec->edges_file);
	if (spec->nedges > STK_SPEC_EDGES_MAX)
		return stk_err_set(err, -EINVAL, "edges: %zu given, at most %d allowed",
				   spec->nedges, STK_SPEC_EDGES_MAX);
	for (size_t i = 0; i < spec->nedges; i++) {
		uint32_t before = i ? spec->edges[i - 1] : 0;
		bool beside = i && spec->edges[i] == before && spec->edges2[i];

		if (spec->edges[i] < before || (spec->edges[i] == before && !beside))
			return stk_err_set(err, -EINVAL,
					   "edges: %" PRIu32 " follows %" PRIu32
					   "; edges ascend and are at least 1",
					   spec->edges[i], before);
	}
	if (!spec->nedges && (spec->buckets < 1 || spec->buckets > STK_SPEC_EDGES_MAX))
		return stk_err_set(err, -EINVAL, "buckets: %" PRIu32 " is out of range, 1..%d",
				   spec->buckets, STK_SPEC_EDGES_MAX);
	return 0;
}

/* Ways to say how many rows a batch has, that are given. */
static int sizes_given(const struct stk_spec *spec)
{
	return !!spec->rows + !!spec->nrows + !!spec->tokens + !!spec->cost.budget +
	       !!spec->global_rows + !!spec->global_tokens;
}

static int check_global(const struct stk_spec *spec, uint32_t world, struct stk_err *err)
{
	uint64_t parts = (uint64_t)world * spec->accumulate;
	uint64_t of = spec->global_rows ? spec->global_rows : spec->world_multiple;

	if (of && of % parts == 0)
		return 0;
	return stk_err_set(err, -EINVAL,
			   "world: %" PRIu32 " x accumulate %" PRIu32 " does not divide %s %" PRIu64
			   ", so a step would not be the same for every world",
			   world, spec->accumulate,
			   spec->global_rows ? "global_rows" : "world_multiple", of);
}

int stkd_shapes_check(const struct stk_spec *spec, uint32_t world, struct stk_err *err)
{
	if (sizes_given(spec) != 1)
		return stk_err_set(err, -EINVAL,
				   "rows and tokens: give one of them (rows %" PRIu32
				   ", tokens %" PRIu64 "), or cost, global_rows or global_tokens",
				   spec->rows, spec->tokens);
	if (stk_spec_is_global(spec)) {
		int r = check_global(spec, world, err);

		if (r < 0)
			return r;
	}
	return spec->group == STK_GROUP_BUCKET ? check_edges(spec, err) : 0;
}

static int choose_pairs(struct stkd_plan *plan, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	_cleanup_(stkd_pairs_deinit) struct stkd_pairs pairs = {0};
	size_t n = 0;
	int r = stkd_pairs_init(&pairs, STK_MIN(plan->limit, plan->counts.longest), plan->limit2,
				spec->multiple_of);

	if (r == 0) {
		stkd_tally_pairs(plan, &pairs);
		r = stkd_pairs_edges(&pairs, spec->bucket_method, spec->buckets, spec->max_length,
				     plan->edges, plan->edges2, &n);
	}
	plan->nclasses = (uint32_t)n;
	if (r == -EOVERFLOW)
		return stk_err_set(err, -EINVAL,
				   "lengths: %" PRIu64 " samples of up to %" PRIu32 " and %" PRIu32
				   " rounded to multiple_of %" PRIu32
				   " are more tokens than 2^64, or an edge above 2^32",
				   plan->counts.delivered, plan->counts.longest, plan->limit2,
				   spec->multiple_of);
	return r < 0 ? stk_err_set(err, r, "no memory to choose %" PRIu32 " pairs of edges",
				   spec->buckets)
		     : 0;
}

int stkd_shapes_edges(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	uint32_t k = spec->group == STK_GROUP_BUCKET ? spec->buckets : 1;
	int method = spec->group == STK_GROUP_BUCKET ? spec->bucket_method : STK_BUCKET_OPTIMAL;
	size_t n = spec->nedges;
	int r;

	if (plan->lengths.second && !n)
		return choose_pairs(plan, err);
	if (spec->group == STK_GROUP_BUCKET && n) {
		memcpy(plan->edges, spec->edges, n * sizeof(*plan->edges));
		memcpy(plan->edges2, spec->edges2, n * sizeof(*plan->edges2));
		plan->nclasses = (uint32_t)n;
		return 0;
	}
	r = stkd_edges_choose(method, h, k, spec->multiple_of, spec->max_length, plan->edges, &n);
	if (r == -EOVERFLOW)
		return stk_err_set(err, -EINVAL,
				   "lengths: %" PRIu64 " samples of up to %" PRIu32
				   " rounded to multiple_of %" PRIu32
				   " are more tokens than 2^64, or an edge above 2^32",
				   plan->counts.delivered, h->length[h->n - 1], spec->multiple_of);
	if (r < 0)
		return stk_err_set(err, r, "no memory to choose %" PRIu32 " edges", k);
	plan->nclasses = (uint32_t)n;
	return 0;
}

/* Padded tokens of a row: both lengths count. */
static uint64_t row_tokens(const struct stkd_plan *plan, uint32_t b)
{
	return (uint64_t)plan->edges[b] + plan->edges2[b];
}

/* How many rows cost no more than the budget. */
static uint64_t rows_for_cost(const struct stk_spec_cost *cost, uint64_t length)
{
	unsigned __int128 one =
		(unsigned __int128)cost->a * length + (unsigned __int128)cost->b * length * length;

	return one ? (uint64_t)((unsigned __int128)cost->budget * 1000000 / one) : ROWS_MAX;
}

static int refuse_budget(const struct stk_spec *spec, const struct stkd_plan *plan, uint32_t b,
			 struct stk_err *err)
{
	bool global = spec->global_tokens;
	const char *key = spec->cost.budget ? "cost" : global ? "global_tokens" : "tokens";
	uint64_t budget = spec->cost.budget ? spec->cost.budget
			  : global          ? spec->global_tokens
					    : spec->tokens;

	if (global)
		return stk_err_set(err, -EINVAL,
				   "%s: budget %" PRIu64
				   " is smaller than one row of bucket edge %" PRIu32
				   " for each of world_multiple %" PRIu32,
				   key, budget, plan->edges[b], spec->world_multiple);
	return stk_err_set(err, -EINVAL,
			   "%s: budget %" PRIu64 " is smaller than one row of bucket edge %" PRIu32,
			   key, budget, plan->edges[b]);
}

/* Rows of each part by a budget, before row_multiple. 0: not even one. */
static uint64_t rows_for_budget(const struct stkd_plan *plan, uint32_t b)
{
	const struct stk_spec *spec = plan->spec;
	uint64_t rows;

	if (spec->tokens)
		return STK_MIN(spec->tokens / row_tokens(plan, b), (uint64_t)ROWS_MAX);
	if (spec->cost.budget)
		return STK_MIN(rows_for_cost(&spec->cost, row_tokens(plan, b)), (uint64_t)ROWS_MAX);
	rows = STK_MIN(spec->global_tokens / row_tokens(plan, b), GLOBAL_ROWS_MAX);
	return (rows - rows % spec->world_multiple) / plan->outline.parts;
}

static int rows_of(const struct stkd_plan *plan, uint32_t b, uint64_t *ret, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	uint32_t multiple = STK_MAX(spec->row_multiple, 1u);
	bool budget = spec->tokens || spec->cost.budget;
	uint64_t rows = spec->nrows         ? spec->rows_list[b]
			: spec->rows        ? spec->rows
			: spec->global_rows ? spec->global_rows / plan->outline.parts
					    : rows_for_budget(plan, b);

	if (!rows)
		return refuse_budget(spec, plan, b, err);
	if (budget && rows >= multiple)
		rows -= rows % multiple;
	if (rows % multiple)
		return stk_err_set(err, -EINVAL,
				   "row_multiple: %" PRIu32 " does not divide the %" PRIu64
				   " rows of bucket edge %" PRIu32 "%s",
				   multiple, rows, plan->edges[b],
				   budget ? ", all that the budget has room for" : "");
	*ret = rows;
	return 0;
}

/* The next bucket that holds all rows of one; the last one holds every row. */
static uint32_t next_up(const struct stkd_plan *plan, uint32_t b)
{
	for (uint32_t u = b + 1; u < plan->nclasses; u++)
		if (plan->edges2[u] >= plan->edges2[b])
			return u;
	return b;
}

static int check_list(const struct stkd_plan *plan, struct stk_err *err)
{
	if (!plan->spec->nrows || plan->spec->nrows == plan->nclasses)
		return 0;
	return stk_err_set(err, -EINVAL,
			   "rows: %zu numbers for %" PRIu32 " buckets; one for each is needed",
			   plan->spec->nrows, plan->nclasses);
}

int stkd_shapes_rows(struct stkd_plan *plan, uint32_t shortest, uint32_t shortest2,
		     struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	struct stkd_outline *o = &plan->outline;
	int r = check_list(plan, err);

	o->nbuckets = plan->nclasses;
	o->parts = (uint64_t)plan->world * spec->accumulate;
	o->unit = stk_spec_is_global(spec) ? spec->world_multiple : o->parts;
	o->tail = spec->tail;
	/* From the largest on, so that a budget which is too small is told how much it takes. */
	for (uint32_t b = plan->nclasses; r == 0 && b-- > 0;) {
		uint64_t rows = 0, global;

		r = rows_of(plan, b, &rows, err);
		if (r < 0)
			return r;
		if (stk_mul_overflow(o->parts, rows, &global) || global > UINT32_MAX)
			return stk_err_set(err, -EINVAL,
					   "rows: %" PRIu64 " rows x world %" PRIu32
					   " x accumulate %" PRIu32
					   " are more than 4294967295 rows of one step",
					   rows, plan->world, spec->accumulate);
		o->rows[b] = (uint32_t)rows;
		o->up[b] = next_up(plan, b);
		plan->classes[b] = (struct stkd_class){
			.edge = plan->edges[b],
			.rows = (uint32_t)rows,
			.width_min = stkd_plan_width(plan, b, shortest),
			.width_max = plan->edges[b],
			.width_multiple = spec->multiple_of,
			.edge2 = plan->edges2[b],
			.width2_min = stkd_plan_width2(plan, b, shortest2),
			.width2_max = plan->edges2[b],
		};
	}
	return r;
}
