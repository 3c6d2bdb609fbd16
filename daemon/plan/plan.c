/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns what is decided before step 0: the limit of lengths, edges, rows of each class, and the
 * counts of an epoch. One pass over the lengths; the rest works on their histogram. Any thread.
 */
#include "daemon/plan/plan.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/plan/edges.h"
#include "daemon/plan/packing.h"
#include "daemon/plan/plan_private.h"

#define WORLD_MAX       65536
#define TOKENS_ROWS_MAX 65536 /* a budget of tokens asks for no more rows than this */

static int check_edges(const struct stk_spec *spec, struct stk_err *err)
{
	if (spec->nedges > STK_SPEC_EDGES_MAX)
		return stk_err_set(err, -EINVAL, "edges: %zu given, at most %d allowed",
				   spec->nedges, STK_SPEC_EDGES_MAX);
	for (size_t i = 0; i < spec->nedges; i++) {
		uint32_t before = i ? spec->edges[i - 1] : 0;

		if (spec->edges[i] <= before)
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

static int check_spec(const struct stk_spec *spec, uint32_t world, struct stk_err *err)
{
	if (world < 1 || world > WORLD_MAX)
		return stk_err_set(err, -EINVAL, "world: %" PRIu32 " is out of range, 1..%d", world,
				   WORLD_MAX);
	if (spec->accumulate < 1)
		return stk_err_set(err, -EINVAL, "accumulate: 0 is out of range, at least 1");
	if (spec->multiple_of < 1)
		return stk_err_set(err, -EINVAL, "multiple_of: 0 is out of range, at least 1");
	if (!spec->rows == !spec->tokens)
		return stk_err_set(err, -EINVAL,
				   "rows and tokens: give one of them (rows %" PRIu32
				   ", tokens %" PRIu64 ")",
				   spec->rows, spec->tokens);
	return spec->group == STK_GROUP_BUCKET ? check_edges(spec, err) : 0;
}

static bool edges_given(const struct stk_spec *spec)
{
	return spec->group == STK_GROUP_BUCKET && spec->nedges > 0;
}

/* The longest length that is delivered whole, and the key that says so (NULL: none does). */
static uint32_t length_limit(const struct stk_spec *spec, uint32_t longest, const char **ret_key)
{
	uint32_t limit = spec->max_length ? spec->max_length : UINT32_MAX;
	uint32_t last = edges_given(spec) ? spec->edges[spec->nedges - 1] : UINT32_MAX;

	*ret_key = spec->max_length ? "max_length" : NULL;
	if (stkd_is_packed(spec)) {
		*ret_key = spec->max_length ? "max_length" : "tokens";
		limit = stkd_packing_piece(spec);
		if (!limit || stkd_splits(spec))
			*ret_key = NULL;
	}
	if (last < limit) {
		limit = last;
		*ret_key = "the last edge";
	}
	return *ret_key ? limit : longest;
}

static uint64_t find_overlong(const struct stkd_lengths *lengths, uint32_t limit)
{
	for (uint64_t i = 0; i < lengths->count; i++)
		if (lengths->len[i] > limit)
			return i;
	return UINT64_MAX;
}

/* Cuts the histogram to the lengths as delivered and counts what was cut. */
static int apply_limit(struct stkd_plan *plan, struct stkd_histogram *h, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t overlong;
	const char *key;

	plan->limit = length_limit(plan->spec, counts->longest, &key);
	counts->max_length = plan->limit;
	counts->first_overlong = UINT64_MAX;
	overlong =
		stkd_histogram_cut(h, plan->limit, plan->spec->overlong == STK_OVERLONG_TRUNCATE);
	counts->delivered = counts->samples;
	if (!overlong)
		return 0;
	counts->first_overlong = find_overlong(&plan->lengths, plan->limit);
	if (plan->spec->overlong == STK_OVERLONG_ERROR)
		return stk_err_set(
			err, -EINVAL,
			"overlong: sample %" PRIu64 " has length %" PRIu32 ", more than %s %" PRIu32
			" (%" PRIu64 " such samples); truncate and drop are the other choices",
			counts->first_overlong, plan->lengths.len[counts->first_overlong], key,
			plan->limit, overlong);
	if (plan->spec->overlong == STK_OVERLONG_DROP) {
		counts->overlong_dropped = overlong;
		counts->delivered -= overlong;
		if (!h->n)
			return stk_err_set(err, -EINVAL,
					   "no samples left: all %" PRIu64
					   " are longer than %s %" PRIu32 " (overlong: drop)",
					   overlong, key, plan->limit);
		return 0;
	}
	counts->truncated = overlong;
	return 0;
}

static int choose_edges(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	uint32_t k = spec->group == STK_GROUP_BUCKET ? spec->buckets : 1;
	size_t n = spec->nedges;
	int r;

	if (edges_given(spec)) {
		memcpy(plan->edges, spec->edges, n * sizeof(*plan->edges));
		plan->nclasses = (uint32_t)n;
		return 0;
	}
	r = stkd_edges_optimal(h, k, spec->multiple_of, spec->max_length, plan->edges, &n);
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

static int rows_of(const struct stk_spec *spec, uint32_t edge, uint32_t *ret, struct stk_err *err)
{
	uint64_t rows = spec->rows;

	if (!rows) {
		rows = STK_MIN(spec->tokens / edge, (uint64_t)TOKENS_ROWS_MAX);
		if (!rows)
			return stk_err_set(err, -EINVAL,
					   "tokens: budget %" PRIu64
					   " is smaller than one row of bucket edge %" PRIu32,
					   spec->tokens, edge);
	}
	*ret = (uint32_t)rows;
	return 0;
}

uint32_t stkd_plan_width(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest)
{
	uint64_t width = stk_round_up(STK_MAX(longest, 1u), plan->spec->multiple_of);

	if (plan->spec->pad_to == STK_PAD_EDGE)
		return plan->edges[bucket];
	return (uint32_t)STK_MIN(width, (uint64_t)plan->edges[bucket]);
}

static int make_classes(struct stkd_plan *plan, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	uint64_t parts = (uint64_t)plan->world * spec->accumulate;

	plan->outline.nbuckets = plan->nclasses;
	plan->outline.parts = parts;
	plan->outline.tail = spec->tail;
	/* From the largest on, so that a budget which is too small is told how much it takes. */
	for (uint32_t b = plan->nclasses; b-- > 0;) {
		uint32_t rows = 0;
		uint64_t global;
		int r = rows_of(spec, plan->edges[b], &rows, err);

		if (r < 0)
			return r;
		if (stk_mul_overflow(parts, (uint64_t)rows, &global) || global > UINT32_MAX)
			return stk_err_set(err, -EINVAL,
					   "rows: %" PRIu32 " rows x world %" PRIu32
					   " x accumulate %" PRIu32
					   " are more than 4294967295 rows of one step",
					   rows, plan->world, spec->accumulate);
		plan->outline.rows[b] = rows;
		plan->classes[b] = (struct stkd_class){
			.edge = plan->edges[b],
			.rows = rows,
			.width_min = stkd_plan_width(plan, b, plan->counts.shortest),
			.width_max = plan->edges[b],
			.width_multiple = spec->multiple_of,
		};
	}
	return 0;
}

/* Samples of each bucket, and their tokens. */
static int count_arrivals(struct stkd_plan *plan, const struct stkd_histogram *h,
			  struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t most, last = plan->edges[plan->nclasses - 1];

	/* Real and padded tokens, masked rows included, stay below this. */
	if (stk_mul_overflow(counts->delivered + UINT32_MAX, last, &most))
		return stk_err_set(err, -EINVAL,
				   "lengths: %" PRIu64 " rows padded to %" PRIu64
				   " are more than 2^64 tokens",
				   counts->delivered, last);
	for (size_t i = 0; i < h->n; i++) {
		plan->outline.arrivals[stkd_plan_bucket(plan, h->length[i])] += h->count[i];
		counts->real_tokens += h->count[i] * h->length[i];
	}
	return 0;
}

static int refuse_empty_epoch(const struct stkd_plan *plan, struct stk_err *err)
{
	const struct stkd_outline *o = &plan->outline;

	if (o->tail == STK_TAIL_DROP)
		return stk_err_set(err, -EINVAL,
				   "an epoch would have no step: %" PRIu64
				   " samples, a step of the largest bucket has %" PRIu64
				   " rows (rows %" PRIu32 " x world %" PRIu32
				   " x accumulate %" PRIu32 ") and tail is drop",
				   plan->counts.delivered, stkd_outline_global(o, o->top),
				   o->rows[o->top], plan->world, plan->spec->accumulate);
	return stk_err_set(err, -EINVAL,
			   "an epoch would have no step: %" PRIu64 " samples for world %" PRIu32
			   " x accumulate %" PRIu32
			   "; with tail: pad, ranks without a sample get masked rows",
			   plan->counts.delivered, plan->world, plan->spec->accumulate);
}

static int count_epoch(struct stkd_plan *plan, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	struct stkd_outline *o = &plan->outline;
	uint64_t rows;

	stkd_outline_fill(o);
	rows = o->rest;
	if (!o->steps || (o->tail == STK_TAIL_SHORT && counts->delivered < o->parts))
		return refuse_empty_epoch(plan, err);
	counts->steps = o->steps;
	counts->promoted = o->promoted;
	if (o->tail == STK_TAIL_DROP) {
		counts->tail_dropped = o->rest;
		counts->delivered -= o->rest;
		rows = 0;
	}
	if (rows && o->tail == STK_TAIL_PAD)
		rows = stkd_outline_global(o, o->top);
	if (rows)
		rows = STK_MAX(rows, o->parts);
	counts->masked = rows ? rows - o->rest : 0;
	if (rows)
		counts->padded_tokens = rows * plan->edges[o->top];
	for (uint32_t b = 0; b < o->nbuckets; b++)
		counts->padded_tokens += o->full[b] * stkd_outline_global(o, b) * plan->edges[b];
	if (o->lender < o->nbuckets)
		counts->padded_tokens -= o->lend * plan->edges[o->lender];
	return 0;
}

static int fill(struct stkd_plan *plan, struct stkd_histogram *h, struct stk_err *err)
{
	int r;

	r = stkd_histogram_new(plan->lengths.len, plan->lengths.count, h);
	if (r < 0)
		return stk_err_set(err, r, "no memory for the histogram of %" PRIu64 " lengths",
				   plan->lengths.count);
	plan->counts.samples = plan->lengths.count;
	plan->counts.shortest = h->length[0];
	plan->counts.longest = h->length[h->n - 1];
	r = apply_limit(plan, h, err);
	if (r < 0)
		return r;
	r = stkd_is_packed(plan->spec) ? stkd_packing_row(plan, h, err)
				       : choose_edges(plan, h, err);
	if (r < 0)
		return r;
	r = make_classes(plan, err);
	if (r < 0)
		return r;
	if (stkd_is_packed(plan->spec))
		return stkd_packing_count(plan, h, err);
	r = count_arrivals(plan, h, err);
	if (r < 0)
		return r;
	return count_epoch(plan, err);
}

int stkd_plan_new(const struct stk_spec *spec, const struct stkd_lengths *lengths, uint32_t world,
		  struct stkd_plan **ret, struct stk_err *err)
{
	_cleanup_(stkd_plan_freep) struct stkd_plan *plan = NULL;
	struct stkd_histogram histogram = {0};
	int r;

	r = check_spec(spec, world, err);
	if (r < 0)
		return r;
	if (!lengths->count)
		return stk_err_set(err, -EINVAL, "no samples");
	plan = calloc(1, sizeof(*plan));
	if (!plan)
		return stk_err_set(err, -ENOMEM, "no memory for a plan");
	plan->spec = spec;
	plan->lengths = *lengths;
	plan->world = world;
	r = fill(plan, &histogram, err);
	stkd_histogram_deinit(&histogram);
	if (r < 0)
		return r;
	*ret = STK_STEAL(plan);
	return 0;
}

struct stkd_plan *stkd_plan_free(struct stkd_plan *plan)
{
	free(plan);
	return NULL;
}

const struct stkd_class *stkd_plan_classes(const struct stkd_plan *plan, uint32_t *ret_n)
{
	*ret_n = plan->nclasses;
	return plan->classes;
}

const struct stkd_plan_counts *stkd_plan_counts(const struct stkd_plan *plan)
{
	return &plan->counts;
}

uint32_t stkd_plan_length(const struct stkd_plan *plan, uint64_t sample)
{
	return STK_MIN(plan->lengths.len[sample], plan->limit);
}

void stkd_step_part(const struct stkd_plan *plan, const struct stkd_step *step, uint32_t rank,
		    uint32_t micro, struct stkd_part *ret)
{
	uint64_t part = (uint64_t)rank * plan->spec->accumulate + micro;
	uint64_t each = step->nids / plan->outline.parts, more = step->nids % plan->outline.parts;

	/* Spread evenly: the first parts get one more. A full step has the same number everywhere. */
	*ret = (struct stkd_part){.segments = step->segments};
	if (step->segments)
		ret->row_first = step->row_first + part * each + STK_MIN(part, more);
	else
		ret->ids = step->ids + part * each + STK_MIN(part, more);
	ret->rows_real = (uint32_t)(each + (part < more));
	ret->rows = step->rows_part ? step->rows_part : ret->rows_real;
}
