/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the arithmetic of packed epochs. Everything follows from the histogram of lengths, but for the
 * number of rows that several windows need: the order decides that. Any thread.
 */
#include "daemon/plan/packing.h"

#include <errno.h>
#include <inttypes.h>

static bool is_endless(const struct stkd_plan *plan)
{
	return plan->mix.draws == UINT64_MAX;
}

/* Tokens of a segment in its row. */
static uint64_t aligned(const struct stk_spec *spec, uint64_t length)
{
	return stk_round_up(length, spec->align);
}

void stkd_packing_limits(const struct stkd_plan *plan, struct stkd_pack_limits *ret)
{
	*ret = (struct stkd_pack_limits){
		.capacity = plan->edges[0],
		.align = plan->spec->align,
		.segments_max = plan->spec->segments_max,
	};
}

/* What the samples of one length become. */
struct pieces {
	uint64_t each;  /* pieces of one sample */
	uint32_t whole; /* length of all but the last */
	uint32_t last;
};

static struct pieces cut(const struct stk_spec *spec, uint32_t length, uint32_t row)
{
	uint32_t whole = stkd_packing_piece(spec) ? stkd_packing_piece(spec) : row;
	struct pieces p = {.each = 1, .whole = whole, .last = length};

	if (spec->group == STK_GROUP_PACK && length > whole) {
		p.each = ((uint64_t)length + whole - 1) / whole;
		p.last = length - (uint32_t)(p.each - 1) * whole;
	}
	return p;
}

/* A row of a stream may begin and end within a sample. */
static uint32_t bound_segments(const struct stkd_plan *plan, const struct stkd_histogram *h)
{
	const struct stk_spec *spec = plan->spec;
	uint64_t row = plan->edges[0], most;
	uint32_t shortest = UINT32_MAX;

	for (size_t i = 0; i < h->n; i++)
		if (h->length[i])
			shortest = STK_MIN(shortest, cut(spec, h->length[i], plan->edges[0]).last);
	most = row / aligned(spec, (uint64_t)shortest + spec->separator);
	if (spec->group == STK_GROUP_CONCAT)
		most = STK_MIN(most + 2, row);
	if (spec->segments_max)
		most = STK_MIN(most, spec->segments_max);
	return (uint32_t)STK_MAX(most, 1);
}

int stkd_packing_row(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	uint64_t row = spec->flat ? spec->tokens : spec->max_length;

	if (!row)
		row = stk_round_up(aligned(spec, h->length[h->n - 1]), spec->align);
	row += spec->overlap;
	if (!h->length[h->n - 1])
		return stk_err_set(err, -EINVAL, "no tokens: all %" PRIu64 " samples are empty",
				   plan->counts.delivered);
	if (row > STKD_FIT_MAX + spec->overlap)
		return stk_err_set(err, -EINVAL,
				   "%s: a packed row of %" PRIu64 " tokens, at most %" PRIu32
				   " are possible",
				   spec->flat ? "tokens" : "max_length", row, STKD_FIT_MAX);
	if (row % spec->align)
		return stk_err_set(err, -EINVAL,
				   "align: %" PRIu32 " does not divide the %" PRIu64
				   " tokens of a row",
				   spec->align, row);
	if (is_endless(plan) && spec->group == STK_GROUP_PACK && !spec->window)
		return stk_err_set(err, -EINVAL,
				   "window: 0 packs a whole epoch, which never ends (stop: never)");
	plan->edges[0] = (uint32_t)row;
	plan->nclasses = 1;
	plan->counts.row_segments = bound_segments(plan, h);
	return 0;
}

/* Sums over all samples of an epoch. */
struct sums {
	uint64_t tokens; /* separators included */
	uint64_t need;   /* the same with alignment */
};

static bool add(uint64_t *sum, uint64_t n, uint64_t each)
{
	uint64_t more;

	return stk_mul_overflow(n, each, &more) || stk_add_overflow(*sum, more, sum);
}

static int sum_up(struct stkd_plan *plan, const struct stkd_histogram *h, struct sums *ret,
		  struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	struct stkd_plan_counts *counts = &plan->counts;

	*ret = (struct sums){0};
	for (size_t i = 0; i < h->n; i++) {
		uint64_t n = h->count[i], length = h->length[i] + (uint64_t)spec->separator;
		struct pieces p = cut(spec, h->length[i], plan->edges[0]);

		if (!h->length[i]) {
			counts->empty = n;
			counts->delivered -= n;
			continue;
		}
		if (add(&ret->tokens, n, length) || add(&counts->segments, n, p.each) ||
		    add(&ret->need, n, (p.each - 1) * aligned(spec, p.whole)) ||
		    add(&ret->need, n, aligned(spec, p.last)))
			return stk_err_set(err, -EINVAL,
					   "lengths: more than 2^64 tokens in an epoch");
		counts->split += p.each > 1 ? n : 0;
	}
	counts->real_tokens = ret->tokens;
	return 0;
}

/* Numbers of 32 bits count the segments of a batch. */
static int check_segments(struct stkd_plan *plan, struct stk_err *err)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint32_t rows = plan->outline.rows[0];

	if (plan->mix.whole)
		counts->row_segments =
			(uint32_t)STK_MIN(counts->row_segments, STK_MAX(counts->segments, 1u));
	if ((uint64_t)counts->row_segments * rows <= UINT32_MAX)
		return 0;
	return stk_err_set(err, -EINVAL,
			   "rows: %" PRIu32 " rows of up to %" PRIu32
			   " segments are more than 4294967295 segments of a batch; "
			   "segments_max limits those of a row",
			   rows, counts->row_segments);
}

static int add_pieces(struct stkd_packer *packer, const struct pieces *p)
{
	struct stk_segment segment = {.length = p->whole};

	for (uint64_t i = 1; i <= p->each; i++) {
		if (i == p->each)
			segment.length = p->last;
		if (stkd_packer_add(packer, &segment) < 0)
			return -ENOMEM;
	}
	return 0;
}

/* Rows of an epoch that is one window: they do not depend on the order. */
static int pack_all(struct stkd_plan *plan, const struct stkd_histogram *h)
{
	_cleanup_(stkd_packer_freep) struct stkd_packer *packer = NULL;
	bool fills = plan->spec->flat && plan->spec->tail == STK_TAIL_SHORT;
	struct stkd_pack_limits limits;
	uint32_t rows = 0;
	int r;

	stkd_packing_limits(plan, &limits);
	r = stkd_packer_new(&limits, &packer);
	for (size_t i = 0; r == 0 && i < h->n; i++) {
		struct pieces p = cut(plan->spec, h->length[i], plan->edges[0]);

		for (uint64_t k = 0; h->length[i] && r == 0 && k < h->count[i]; k++)
			r = add_pieces(packer, &p);
	}
	if (r == 0)
		r = stkd_packer_rows(packer, stkd_packing_spread(plan->spec, fills), 0,
				     fills ? plan->outline.parts : 1, &rows);
	plan->counts.rows = rows;
	return r;
}

static uint64_t divide_up(uint64_t n, uint64_t by)
{
	return n / by + (n % by != 0);
}

static int count_rows(struct stkd_plan *plan, const struct stkd_histogram *h,
		      const struct sums *sums, struct stk_err *err)
{
	const struct stk_spec *spec = plan->spec;
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t tokens = sums->tokens - spec->overlap; /* each begins or goes on with one */

	if (spec->group == STK_GROUP_CONCAT) {
		counts->rows_least = spec->tail == STK_TAIL_DROP
					     ? tokens / spec->max_length
					     : divide_up(tokens, spec->max_length);
		counts->rows = plan->mix.whole ? counts->rows_least : 0;
		return 0;
	}
	counts->rows_least = divide_up(sums->need, plan->edges[0]);
	if (spec->segments_max)
		counts->rows_least = STK_MAX(counts->rows_least,
					     divide_up(counts->segments, spec->segments_max));
	if (!plan->mix.whole || (spec->window && plan->mix.draws > spec->window))
		return 0;
	if (pack_all(plan, h) < 0)
		return stk_err_set(err, -ENOMEM, "no memory to pack %" PRIu64 " samples",
				   counts->samples);
	return 0;
}

static void count_steps(struct stkd_plan *plan)
{
	struct stkd_plan_counts *counts = &plan->counts;
	uint64_t global = stkd_outline_global(&plan->outline, 0), parts = plan->outline.parts;
	uint64_t rest = counts->rows % global, rows = counts->rows;

	counts->steps = rows / global;
	if (rest && plan->spec->tail != STK_TAIL_DROP)
		counts->steps++;
	if (plan->spec->tail == STK_TAIL_PAD)
		counts->masked = rest ? global - rest : 0;
	/* None can be lent. Packed rows are taken apart instead. */
	else if (plan->spec->tail == STK_TAIL_SHORT && rest && rest < parts &&
		 (global < 2 * plan->outline.unit || rows < global))
		counts->masked = plan->spec->group == STK_GROUP_CONCAT ? parts - rest : 0;
	if (plan->spec->tail == STK_TAIL_DROP)
		rows -= rest;
	counts->padded_tokens = (rows + counts->masked) * plan->edges[0];
}

static int refuse(const struct stkd_plan *plan, uint64_t have, uint64_t need, const char *what,
		  struct stk_err *err)
{
	return stk_err_set(err, -EINVAL,
			   "an epoch would have no step: %" PRIu64 " tokens make %" PRIu64
			   " %s of up to %" PRIu32 ", and %" PRIu64 " are needed (world %" PRIu32
			   " x accumulate %" PRIu32
			   "%s); with tail: pad, ranks without a row get masked ones",
			   plan->counts.real_tokens, have, what, plan->edges[0], need, plan->world,
			   plan->spec->accumulate,
			   plan->spec->tail == STK_TAIL_DROP ? " x rows, tail: drop" : "");
}

/* Would an epoch, in whatever order, have a step and a row for each part? */
static int check_steps(const struct stkd_plan *plan, struct stk_err *err)
{
	const struct stkd_plan_counts *counts = &plan->counts;
	uint64_t rows = counts->rows ? counts->rows : counts->rows_least;
	uint64_t global = stkd_outline_global(&plan->outline, 0), parts = plan->outline.parts;
	bool concat = plan->spec->group == STK_GROUP_CONCAT;

	if (plan->spec->tail == STK_TAIL_DROP)
		return rows < global ? refuse(plan, rows, global, "rows", err) : 0;
	if (!rows)
		return stk_err_set(err, -EINVAL,
				   "fewer tokens than one row: %" PRIu64 ", and overlap %" PRIu32
				   " of them begin the next row",
				   counts->real_tokens, plan->spec->overlap);
	if (plan->spec->tail == STK_TAIL_PAD)
		return 0;
	if (concat)
		return rows < parts ? refuse(plan, rows, parts, "rows", err) : 0;
	return counts->segments < parts ? refuse(plan, counts->segments, parts, "segments", err)
					: 0;
}

int stkd_packing_count(struct stkd_plan *plan, const struct stkd_histogram *h, struct stk_err *err)
{
	struct stkd_class *class = &plan->classes[0];
	struct sums sums;
	uint64_t most;
	int r;

	class->width_min = class->width_max = plan->edges[0];
	r = sum_up(plan, h, &sums, err);
	if (r < 0)
		return r;
	/* Rows are at most as many as segments or tokens; their tokens stay below this. */
	if (stk_mul_overflow(STK_MIN(sums.tokens, plan->counts.segments) + UINT32_MAX,
			     (uint64_t)plan->edges[0], &most) ||
	    stk_add_overflow(most, sums.need, &most))
		return stk_err_set(err, -EINVAL,
				   "lengths: %" PRIu64 " tokens in rows of %" PRIu32
				   " are more than 2^64",
				   sums.tokens, plan->edges[0]);
	r = check_segments(plan, err);
	if (r == 0)
		r = count_rows(plan, h, &sums, err);
	if (r == 0 && !is_endless(plan))
		r = check_steps(plan, err);
	if (r == 0 && plan->counts.rows)
		count_steps(plan);
	return r;
}
