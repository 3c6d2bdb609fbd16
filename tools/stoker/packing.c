/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the sums over packed steps. One thread.
 */
#include "tools/stoker/packing.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

static uint32_t row_length(const struct stkd_plan *plan)
{
	uint32_t n;

	return stkd_plan_classes(plan, &n)->edge;
}

/* Rows, masked rows and the cost of one rank in a step. */
static double add_rank(struct packing *p, const struct stkd_plan *plan, const struct stk_spec *spec,
		       uint32_t rank, const struct stkd_step *step)
{
	double cost = 0;

	for (uint32_t micro = 0; micro < spec->accumulate; micro++) {
		struct stkd_part part;

		stkd_step_part(plan, step, rank, micro, &part);
		p->rows += part.rows;
		p->masked += part.rows - part.rows_real;
		for (uint32_t s = part.row_first[0]; s < part.row_first[part.rows_real]; s++)
			cost += (double)part.segments[s].length * (double)part.segments[s].length;
	}
	return cost;
}

void packing_add(struct packing *p, const struct stkd_plan *plan, const struct stk_spec *spec,
		 uint32_t world, const struct stkd_step *step)
{
	double least = INFINITY, most = 0;

	for (uint32_t rank = 0; rank < world; rank++) {
		double cost = add_rank(p, plan, spec, rank, step);

		least = fmin(least, cost);
		most = fmax(most, cost);
	}
	p->lag_sum += most - least;
	p->lag_max = fmax(p->lag_max, sqrt(most - least));
	for (uint32_t row = 0; row < step->nids; row++)
		p->row_segments =
			STK_MAX(p->row_segments, step->row_first[row + 1] - step->row_first[row]);
	p->steps++;
	p->segments += step->row_first[step->nids] - step->row_first[0];
	p->tokens += step->real_tokens;
	p->dropped_rows += step->dropped_rows;
	p->dropped_tokens += step->dropped_tokens;
}

double packing_efficiency(const struct packing *p, const struct stkd_plan *plan)
{
	return p->rows ? (double)p->tokens / ((double)p->rows * row_length(plan)) : 0;
}

static double lag_mean(const struct packing *p)
{
	return p->steps ? sqrt(p->lag_sum / (double)p->steps) : 0;
}

json_t *packing_json(const struct packing *p, const struct stkd_plan *plan)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(plan);

	return json_pack(
		"{s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:f, s:f}}",
		"row_length", (json_int_t)row_length(plan), "rows", (json_int_t)p->rows,
		"rows_least", (json_int_t)c->rows_least, "efficiency", packing_efficiency(p, plan),
		"segments", (json_int_t)p->segments, "row_segments", (json_int_t)p->row_segments,
		"masked", (json_int_t)p->masked, "split", (json_int_t)c->split, "empty",
		(json_int_t)c->empty, "dropped_rows", (json_int_t)p->dropped_rows, "dropped_tokens",
		(json_int_t)p->dropped_tokens, "cost_lag", "mean", lag_mean(p), "max", p->lag_max);
}

void packing_print(FILE *out, const struct packing *p, const struct stkd_plan *plan, uint32_t world)
{
	const struct stkd_plan_counts *c = stkd_plan_counts(plan);

	fprintf(out,
		"  %" PRIu64 " rows of %" PRIu32 ", no packing takes fewer than %" PRIu64
		"; %.2f %% of them is real tokens\n",
		p->rows, row_length(plan), c->rows_least, 100 * packing_efficiency(p, plan));
	fprintf(out, "  %" PRIu64 " segments, up to %" PRIu32 " in a row\n", p->segments,
		p->row_segments);
	if (c->split)
		fprintf(out, "  %" PRIu64 " samples in pieces\n", c->split);
	if (c->empty)
		fprintf(out, "  %" PRIu64 " samples without a token, left out\n", c->empty);
	if (p->dropped_tokens)
		fprintf(out,
			"  %" PRIu64 " tokens dropped at the end of this epoch, %" PRIu64 " rows\n",
			p->dropped_tokens, p->dropped_rows);
	if (world > 1)
		fprintf(out,
			"  ranks of a step are %.0f apart in the mean, %.0f at most (root of the "
			"sum of "
			"squared lengths)\n",
			lag_mean(p), p->lag_max);
}

json_t *packing_rows_json(const struct stk_segment *segments, const uint32_t *row_first,
			  uint32_t nrows)
{
	json_t *rows = json_array();

	for (uint32_t row = 0; row < nrows; row++) {
		json_t *list = json_array();

		for (uint32_t s = row_first[row]; s < row_first[row + 1]; s++)
			json_array_append_new(list,
					      json_pack("[I, I, I]", (json_int_t)segments[s].id,
							(json_int_t)segments[s].from,
							(json_int_t)segments[s].length));
		json_array_append_new(rows, list);
	}
	return rows;
}

static int walk(const struct stkd_plan *plan, struct policy *ret)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	struct stkd_step step = {0};
	int r = stkd_iter_new(plan, NULL, 0, &iter, NULL);

	for (; r == 0 && !step.last_of_epoch; ret->steps++) {
		r = stkd_iter_next(iter, &step);
		if (r < 0)
			break;
		ret->real += step.real_tokens;
		/* Rows that are masked under tail: pad are not the packing's. */
		ret->padded += (uint64_t)step.nids * step.width;
	}
	return r;
}

int packing_measure(const struct stk_spec *spec, const struct stkd_lengths *lengths, uint32_t world,
		    struct policy *ret)
{
	_cleanup_(stkd_plan_freep) struct stkd_plan *plan = NULL;
	struct stk_spec packed = *spec;
	int r;

	packed.group = STK_GROUP_PACK;
	packed.nedges = 0;
	if (spec->nedges && !spec->max_length)
		packed.max_length = spec->edges[spec->nedges - 1];
	*ret = (struct policy){.name = "packed"};
	r = stkd_plan_new(&packed, lengths, world, &plan, NULL);
	if (r < 0)
		return r;
	ret->edges[ret->nedges++] = row_length(plan);
	return walk(plan, ret);
}
