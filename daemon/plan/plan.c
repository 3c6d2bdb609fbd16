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
#include "daemon/plan/shapes.h"
#include "daemon/plan/tally.h"

#define WORLD_MAX 65536

static int check_spec(const struct stk_spec *spec, uint32_t world, struct stk_err *err)
{
	if (world < 1 || world > WORLD_MAX)
		return stk_err_set(err, -EINVAL, "world: %" PRIu32 " is out of range, 1..%d", world,
				   WORLD_MAX);
	if (spec->accumulate < 1)
		return stk_err_set(err, -EINVAL, "accumulate: 0 is out of range, at least 1");
	if (spec->multiple_of < 1)
		return stk_err_set(err, -EINVAL, "multiple_of: 0 is out of range, at least 1");
	return stkd_shapes_check(spec, world, err);
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

static int refuse_overlong(const struct stkd_plan *plan, uint64_t overlong, const char *key,
			   struct stk_err *err)
{
	uint64_t id = plan->counts.first_overlong;
	bool second = plan->lengths.len[id] <= plan->limit;

	if (second)
		return stk_err_set(err, -EINVAL,
				   "overlong: sample %" PRIu64 " has second length %" PRIu32
				   ", more than the last edge %" PRIu32
				   "; truncate and drop are the other choices",
				   id, plan->lengths.second[id], plan->limit2);
	return stk_err_set(err, -EINVAL,
			   "overlong: sample %" PRIu64 " has length %" PRIu32
			   ", more than %s %" PRIu32 " (%" PRIu64
			   " such samples); truncate%s and drop are the other choices",
			   id, plan->lengths.len[id], key, plan->limit, overlong,
			   plan->spec->group == STK_GROUP_PACK ? ", split" : "");
}

/* Cuts the histogram to the lengths as delivered and counts what was cut. */
static int apply_limit(struct stkd_plan *plan, struct stkd_histogram *h, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t overlong;
	const char *key;

	plan->limit = length_limit(plan->spec, counts->longest, &key);
	if (plan->lengths.second && edges_given(plan->spec))
		plan->limit2 = plan->spec->edges2[plan->spec->nedges - 1];
	counts->max_length = plan->limit;
	overlong = stkd_histogram_cut(h, plan->limit, !plan->drops);
	counts->first_overlong =
		overlong || plan->lengths.second ? stkd_tally_overlong(plan) : UINT64_MAX;
	if (counts->first_overlong == UINT64_MAX)
		return 0;
	if (plan->spec->overlong == STK_OVERLONG_ERROR)
		return refuse_overlong(plan, overlong, key, err);
	if (!plan->drops) {
		counts->truncated = overlong;
		return 0;
	}
	counts->overlong_dropped = overlong;
	counts->delivered -= overlong;
	if (!h->n)
		return stk_err_set(err, -EINVAL,
				   "no samples left: all %" PRIu64 " are longer than %s %" PRIu32
				   " (overlong: drop)",
				   overlong, key, plan->limit);
	return 0;
}

uint32_t stkd_plan_width(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest)
{
	uint64_t width = stk_round_up(STK_MAX(longest, 1u), plan->spec->multiple_of);

	if (plan->spec->pad_to == STK_PAD_EDGE)
		return plan->edges[bucket];
	return (uint32_t)STK_MIN(width, (uint64_t)plan->edges[bucket]);
}

uint32_t stkd_plan_width2(const struct stkd_plan *plan, uint32_t bucket, uint32_t longest)
{
	uint64_t width = stk_round_up(STK_MAX(longest, 1u), plan->spec->multiple_of);

	if (plan->spec->pad_to == STK_PAD_EDGE)
		return plan->edges2[bucket];
	return (uint32_t)STK_MIN(width, (uint64_t)plan->edges2[bucket]);
}

uint32_t stkd_plan_bucket2(const struct stkd_plan *plan, uint32_t length, uint32_t second)
{
	uint32_t b = stkd_plan_bucket(plan, length);

	while (plan->edges2[b] < second)
		b++;
	return b;
}

bool stkd_plan_passes(const struct stkd_plan *plan, uint64_t id)
{
	const struct stk_spec_keep *keep = &plan->spec->keep;
	uint32_t length = plan->lengths.len[id];
	uint64_t over, under;

	if (length < keep->min_length || (keep->max_length && length > keep->max_length))
		return false;
	if (!keep->over)
		return true;
	over = (uint64_t)(plan->ratio_inverted ? plan->lengths.second[id] : length) * 1000000;
	under = plan->ratio_inverted ? length : plan->lengths.second[id];
	return (unsigned __int128)under * keep->ratio_min <= over &&
	       over <= (unsigned __int128)under * keep->ratio_max;
}

bool stkd_plan_keeps(const struct stkd_plan *plan, uint64_t id)
{
	if (plan->drops && plan->lengths.second && plan->lengths.second[id] > plan->limit2)
		return false;
	return stkd_plan_passes(plan, id);
}

/* What the histogram does not say: of two lengths, and of an epoch that draws some of the samples. */
static int count_outcome(struct stkd_plan *plan, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	struct stkd_outcome outcome;
	int r = 0;

	if (plan->mix.draws != UINT64_MAX && !plan->mix.whole)
		r = stkd_tally_epoch(plan, 0, &outcome);
	else
		stkd_tally_stored(plan, &outcome);
	if (r < 0)
		return stk_err_set(err, r, "no memory to count an epoch");
	counts->filtered = outcome.filtered;
	counts->overlong_dropped = plan->drops ? outcome.overlong : 0;
	counts->truncated = plan->drops ? 0 : outcome.overlong;
	counts->delivered = outcome.delivered;
	counts->real_tokens = outcome.real_tokens;
	memcpy(plan->outline.arrivals, outcome.arrivals, sizeof(outcome.arrivals));
	return 0;
}

/* Samples of each bucket, and their tokens. */
static int count_arrivals(struct stkd_plan *plan, const struct stkd_histogram *h,
			  struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t most, last = plan->edges[plan->nclasses - 1];
	uint64_t draws = plan->mix.draws == UINT64_MAX ? counts->delivered : plan->mix.draws;

	/* Real and padded tokens, masked rows included, stay below this. */
	if (stk_mul_overflow(STK_MAX(draws, counts->delivered) + UINT32_MAX, last, &most))
		return stk_err_set(err, -EINVAL,
				   "lengths: %" PRIu64 " rows padded to %" PRIu64
				   " are more than 2^64 tokens",
				   counts->delivered, last);
	if (plan->lengths.second || !plan->mix.whole)
		return count_outcome(plan, err);
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

/* Rows of the last, incomplete step, masked ones included; 0: there is none. */
static uint64_t rest_rows(const struct stkd_outline *o)
{
	if (!o->rest || o->tail == STK_TAIL_DROP)
		return 0;
	if (o->tail == STK_TAIL_PAD)
		return stkd_outline_global(o, o->top);
	return STK_MAX(o->rest, o->parts);
}

/* The most padded tokens, then the longest row, of the classes that have a step for it. */
void stkd_plan_choose_first(const struct stkd_plan *plan, struct stkd_outline *o)
{
	bool endless = plan->mix.draws == UINT64_MAX;
	uint64_t most = 0;

	o->first = o->nbuckets;
	for (uint32_t b = 0; plan->spec->largest_first && b < o->nbuckets; b++) {
		uint64_t tokens =
			(uint64_t)o->rows[b] * ((uint64_t)plan->edges[b] + plan->edges2[b]);

		if (tokens < most || o->arrivals[b] < (endless ? 1 : stkd_outline_global(o, b)))
			continue;
		most = tokens;
		o->first = b;
	}
}

static int count_epoch(struct stkd_plan *plan, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	struct stkd_outline *o = &plan->outline;
	uint64_t rows, lent;

	if (plan->mix.draws == UINT64_MAX) {
		stkd_outline_endless(o);
		stkd_plan_choose_first(plan, o);
		return 0;
	}
	stkd_outline_fill(o);
	stkd_plan_choose_first(plan, o);
	if (!o->steps || (o->tail == STK_TAIL_SHORT && counts->delivered < o->parts))
		return refuse_empty_epoch(plan, err);
	counts->steps = o->steps;
	counts->promoted = o->promoted;
	rows = rest_rows(o);
	counts->masked = rows ? rows - o->rest : 0;
	if (o->tail == STK_TAIL_DROP) {
		counts->tail_dropped = o->rest;
		counts->delivered -= o->rest;
	}
	if (rows)
		counts->padded_tokens = rows * plan->edges[o->top];
	for (uint32_t b = 0; b < o->nbuckets; b++)
		counts->padded_tokens += o->full[b] * stkd_outline_global(o, b) * plan->edges[b];
	if (o->lender == o->nbuckets)
		return 0;
	/* In a world larger than the unit the step that lends may have masked rows, too. */
	lent = stkd_outline_global(o, o->lender) - o->lend;
	counts->masked += lent < o->parts ? o->parts - lent : 0;
	lent = STK_MAX(lent, o->parts);
	counts->padded_tokens -=
		(stkd_outline_global(o, o->lender) - lent) * plan->edges[o->lender];
	return 0;
}

/* Draws that are no sample's first in this epoch, and samples that are not drawn. */
static void count_draws(struct stkd_plan *plan)
{
	struct stkd_plan_counts *counts = &plan->counts;

	counts->varies = !plan->mix.whole;
	for (uint32_t d = 0; plan->mix.draws != UINT64_MAX && d < plan->mix.n; d++) {
		const struct stkd_mix_dataset *of = &plan->mix.datasets[d];

		counts->repeated += of->drawn > of->count ? of->drawn - of->count : 0;
		counts->unused += of->drawn < of->count ? of->count - of->drawn : 0;
	}
}

static int read_lengths(struct stkd_plan *plan, struct stkd_histogram *h, uint32_t *ret_shortest2,
			struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	struct stkd_tally tally;
	int r = stkd_tally_lengths(plan, false, h, &tally);

	if (r < 0)
		return stk_err_set(err, r, "no memory for the histogram of %" PRIu64 " lengths",
				   plan->lengths.count);
	if (!h->n)
		return stk_err_set(err, -EINVAL, "no samples left: none of %" PRIu64 " passes keep",
				   tally.filtered);
	counts->samples = plan->lengths.count;
	counts->delivered = tally.kept;
	counts->filtered = tally.filtered;
	counts->shortest = h->length[0];
	counts->longest = h->length[h->n - 1];
	*ret_shortest2 = tally.shortest2;
	if (plan->lengths.second)
		plan->limit2 = tally.longest2;
	return 0;
}

/* Packed rows are counted from the lengths of epoch 0 where epochs differ. */
static int count_packed(struct stkd_plan *plan, struct stkd_histogram *h, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	struct stkd_tally tally;
	uint64_t overlong;
	int r;

	if (plan->mix.whole)
		return stkd_packing_count(plan, h, err);
	stkd_histogram_deinit(h);
	r = stkd_tally_lengths(plan, true, h, &tally);
	if (r < 0)
		return stk_err_set(err, r, "no memory for a histogram of lengths");
	overlong = stkd_histogram_cut(h, plan->limit, !plan->drops);
	counts->filtered = tally.filtered;
	counts->overlong_dropped = plan->drops ? overlong : 0;
	counts->truncated = plan->drops ? 0 : overlong;
	counts->delivered = tally.kept - counts->overlong_dropped;
	return stkd_packing_count(plan, h, err);
}

static int fill(struct stkd_plan *plan, struct stkd_histogram *h, struct stk_err *err)
{
	uint32_t shortest2 = 0;
	int r;

	r = read_lengths(plan, h, &shortest2, err);
	if (r < 0)
		return r;
	count_draws(plan);
	r = apply_limit(plan, h, err);
	if (r < 0)
		return r;
	r = stkd_is_packed(plan->spec) ? stkd_packing_row(plan, h, err)
				       : stkd_shapes_edges(plan, h, err);
	if (r < 0)
		return r;
	r = stkd_shapes_rows(plan, STK_MIN(plan->counts.shortest, plan->limit), shortest2, err);
	if (r < 0)
		return r;
	if (stkd_is_packed(plan->spec))
		return count_packed(plan, h, err);
	r = count_arrivals(plan, h, err);
	if (r < 0)
		return r;
	return count_epoch(plan, err);
}

/* Datasets and their shares. */
static int make_mix(struct stkd_plan *plan, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	const uint64_t one[] = {0, plan->lengths.count}, weight = 1;
	uint32_t n = plan->lengths.first ? plan->lengths.ndatasets : 1;
	uint64_t weights[STK_SPEC_DATA_MAX];

	if (n < 2)
		return stkd_mix_init(&plan->mix, one, &weight, 1, spec->stop, err);
	if (n > STK_SPEC_DATA_MAX || n != spec->ndata)
		return stk_err_set(err, -EINVAL,
				   "data: %" PRIu32
				   " datasets, %zu of them in the spec, at most %d",
				   n, spec->ndata, STK_SPEC_DATA_MAX);
	for (uint32_t d = 0; d < n; d++)
		weights[d] = spec->data[d].weight;
	return stkd_mix_init(&plan->mix, plan->lengths.first, weights, n, spec->stop, err);
}

static int make_blocks(struct stkd_plan *plan, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	int r = 0;

	if (spec->order != STK_ORDER_BLOCK)
		return 0;
	plan->blocks = calloc(plan->mix.n, sizeof(*plan->blocks));
	if (!plan->blocks)
		return stk_err_set(err, -ENOMEM, "no memory for a plan");
	for (uint32_t d = 0; r == 0 && d < plan->mix.n; d++) {
		const struct stkd_mix_dataset *of = &plan->mix.datasets[d];
		const uint32_t *len = plan->lengths.len + of->first;

		if (of->count)
			r = stkd_blocks_init(&plan->blocks[d],
					     spec->block_unit == STK_BLOCK_TOKENS ? len : NULL,
					     of->count, spec->block, spec->block_window, err);
	}
	return r;
}

static int prepare(struct stkd_plan *plan, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	const struct stk_spec_keep *keep = &spec->keep;
	int r;

	if (!plan->lengths.second != !spec->length2)
		return stk_err_set(err, -EINVAL, "length: %s",
				   spec->length2 ? "the lengths of its second field are missing"
						 : "one field, but lengths of two");
	plan->limit = plan->limit2 = UINT32_MAX;
	plan->drops = spec->overlong == STK_OVERLONG_DROP;
	plan->picks = keep->min_length || keep->max_length || keep->over ||
		      (plan->lengths.second && plan->drops);
	plan->ratio_inverted = keep->over && strcmp(keep->over, spec->length) != 0;
	r = make_mix(plan, err);
	return r < 0 ? r : make_blocks(plan, err);
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
	r = prepare(plan, err);
	if (r == 0)
		r = fill(plan, &histogram, err);
	stkd_histogram_deinit(&histogram);
	if (r < 0)
		return r;
	*ret = STK_STEAL(plan);
	return 0;
}

struct stkd_plan *stkd_plan_free(struct stkd_plan *plan)
{
	if (!plan)
		return NULL;
	for (uint32_t d = 0; plan->blocks && d < plan->mix.n; d++)
		stkd_blocks_deinit(&plan->blocks[d]);
	free(plan->blocks);
	stkd_mix_deinit(&plan->mix);
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
