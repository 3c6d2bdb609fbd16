/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed rows -> slot: the segments of a row one after the other, then the padding behind them; each
 * byte is written once, in ascending order. What has one value for each segment goes to the place of
 * that segment in the batch. A worker's, under its guard.
 */
#include <assert.h>
#include <string.h>

#include "daemon/assemble/transform.h"

/* A segment on its way into a row. */
struct piece {
	const struct stk_segment *segment;
	const struct stkd_extent *extents; /* by column */
	uint32_t number;                   /* in the batch */
	uint32_t row, in_row;              /* of which row, and its number there */
	uint32_t at;                       /* first token in the row */
	uint32_t gap;                      /* tokens behind it that are none, up to the next one */
	uint32_t sum;                      /* tokens of the batch before it */
	uint32_t sample_length;            /* as delivered, without a separator */
};

static uint8_t *place(const struct stkd_run *run, uint32_t op, uint64_t element)
{
	return run->slot + run->layout->fields[op].offset + element * run->assembly->ops[op].size;
}

/* First token of a row in a ragged field, counted over the batch. */
static uint64_t token_of(const struct stkd_run *run, uint32_t row, uint32_t at)
{
	return (uint64_t)row * run->recipe->width + at;
}

/* Elements [from, from + n) of the sample, its separator behind them, and padding behind that. */
static void write_copy(const struct stkd_run *run, uint32_t i, const struct piece *p)
{
	const struct stkd_op *op = &run->assembly->ops[i];
	uint64_t from = (uint64_t)p->segment->from + op->shift, n = 0, rest = p->segment->length;
	uint8_t *dst = place(run, i, token_of(run, p->row, p->at));

	if (from < p->sample_length)
		n = STK_MIN(rest, p->sample_length - from);
	if (n)
		stkd_run_values(run, op, dst, p->extents, from, n, p->segment->id);
	dst += n * op->size;
	rest -= n;
	if (rest && run->assembly->separator && from + n == p->sample_length) {
		op->fill(dst, op->separator, op->inner_count);
		dst += op->size;
		rest--;
	}
	op->fill(dst, op->pad, (rest + p->gap) * op->inner_count);
}

static void write_mask(const struct stkd_run *run, uint32_t i, const struct piece *p)
{
	const struct stkd_op *op = &run->assembly->ops[i];
	uint8_t *dst = place(run, i, token_of(run, p->row, p->at));

	op->fill(dst, 1, p->segment->length);
	op->fill(dst + p->segment->length * op->size, 0, p->gap);
}

static void write_segment_ids(const struct stkd_run *run, uint32_t i, const struct piece *p)
{
	const struct stkd_op *op = &run->assembly->ops[i];
	uint8_t *dst = place(run, i, token_of(run, p->row, p->at));

	op->fill(dst, p->in_row + 1, p->segment->length);
	op->fill(dst + p->segment->length * op->size, 0, p->gap);
}

/* Padding goes on from the segment before it: it looks like no segment of its own. */
static void write_position_ids(const struct stkd_run *run, uint32_t i, const struct piece *p)
{
	const struct stkd_op *op = &run->assembly->ops[i];
	const uint64_t first[] = {
		[STK_POSITIONS_RESTART] = 0,
		[STK_POSITIONS_SAMPLE] = p->segment->from,
		[STK_POSITIONS_ROW] = p->at,
	};

	op->count(place(run, i, token_of(run, p->row, p->at)), op->start + first[op->positions],
		  (size_t)p->segment->length + p->gap);
}

static void write_fixed(const struct stkd_run *run, uint32_t i, const struct piece *p)
{
	stkd_run_values(run, &run->assembly->ops[i], place(run, i, p->number), p->extents, 0, 1,
			p->segment->id);
}

static void write_value(const struct stkd_run *run, uint32_t i, uint32_t number, uint64_t value)
{
	run->assembly->ops[i].fill(place(run, i, number), value, 1);
}

static void write_piece(const struct stkd_run *run, const struct piece *p)
{
	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		const struct stkd_op *op = &run->assembly->ops[i];

		switch (op->make) {
		case STK_MAKE_COPY:
			if (op->ragged)
				write_copy(run, i, p);
			else
				write_fixed(run, i, p);
			break;
		case STK_MAKE_MASK:
			write_mask(run, i, p);
			break;
		case STK_MAKE_LENGTHS:
			write_value(run, i, p->number, p->segment->length);
			break;
		case STK_MAKE_SAMPLE_IDS:
			write_value(run, i, p->number, p->segment->id);
			break;
		case STK_MAKE_SEGMENT_IDS:
			write_segment_ids(run, i, p);
			break;
		case STK_MAKE_POSITION_IDS:
			write_position_ids(run, i, p);
			break;
		case STK_MAKE_CU_SEQLENS:
			write_value(run, i, p->number, p->sum);
			break;
		case STK_MAKE_CU_SEQLENS_PADDED:
			write_value(run, i, p->number, token_of(run, p->row, p->at));
			break;
		case STK_MAKE_MAX_SEQLEN:
			break; /* of the batch */
		case STK_MAKE_RANDOM_KEY:
			write_value(run, i, p->number, stkd_run_key(run, p->segment->id));
			break;
		}
	}
}

/* A row without a segment. */
static void write_masked(const struct stkd_run *run, uint32_t row)
{
	uint32_t width = run->recipe->width;

	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		const struct stkd_op *op = &run->assembly->ops[i];
		uint8_t *dst = place(run, i, token_of(run, row, 0));

		if (!op->ragged)
			continue;
		if (op->make == STK_MAKE_POSITION_IDS)
			op->count(dst, op->start, width);
		else
			op->fill(dst, op->pad, width * op->inner_count);
	}
}

static void put_u32(const struct stkd_run *run, uint64_t offset, uint32_t i, uint32_t value)
{
	memcpy(run->slot + offset + i * sizeof(value), &value, sizeof(value));
}

/* The lists behind the extent. */
static void write_lists(const struct stkd_run *run, const struct piece *p)
{
	const struct stkd_layout *layout = run->layout;

	memcpy(run->slot + layout->ids_off + p->number * sizeof(uint64_t), &p->segment->id,
	       sizeof(uint64_t));
	put_u32(run, layout->lengths_off, p->number, p->segment->length);
	put_u32(run, layout->from_off, p->number, p->segment->from);
}

/* The segment of a bad sample keeps its place, so that the row stays what was planned. */
static void mask_piece(struct stkd_run *run, const struct piece *p)
{
	const uint64_t none = STKD_NO_SAMPLE;

	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		const struct stkd_op *op = &run->assembly->ops[i];

		if (op->make == STK_MAKE_SAMPLE_IDS)
			write_value(run, i, p->number, none);
		else if (op->make == STK_MAKE_RANDOM_KEY)
			write_value(run, i, p->number, 0);
		else if (op->make == STK_MAKE_MASK)
			op->fill(place(run, i, token_of(run, p->row, p->at)), 0,
				 p->segment->length);
		else if (op->make == STK_MAKE_COPY && op->ragged)
			op->fill(place(run, i, token_of(run, p->row, p->at)), op->pad,
				 (p->segment->length + (uint64_t)p->gap) * op->inner_count);
		else if (op->make == STK_MAKE_COPY)
			op->fill(place(run, i, p->number), op->pad, op->inner_count);
	}
	memcpy(run->slot + run->layout->ids_off + p->number * sizeof(none), &none, sizeof(none));
}

static int copy_piece(struct stkd_run *run, struct piece *p)
{
	const struct stkd_assembly *assembly = run->assembly;
	const struct stk_segment *segment = p->segment;
	uint32_t length = assembly->dataset->lengths[segment->id];

	for (uint32_t c = 0; c < assembly->ncolumns; c++) {
		int r = stkd_run_check_extent(run, segment->id, c, &p->extents[c]);

		if (r < 0)
			return r;
	}
	p->sample_length = STK_MIN(length, assembly->max_length);
	assert((uint64_t)segment->from + segment->length <=
	       (uint64_t)p->sample_length + assembly->separator);
	run->sample = segment->id;
	write_piece(run, p);
	write_lists(run, p);
	if (*run->bad) {
		int r = stkd_run_bad_sample(run, segment->id, p->extents);

		if (r == 0)
			mask_piece(run, p);
		return r;
	}
	run->result.real_tokens += segment->length;
	run->result.max_length = STK_MAX(run->result.max_length, segment->length);
	return 0;
}

/* Extents of the segments from number @first on, as many as there is room for. */
static int look_up(struct stkd_run *run, uint32_t first, uint32_t n)
{
	const struct stkd_assembly *assembly = run->assembly;
	uint64_t ids[STKD_EXTENTS_MAX];
	struct stkd_want want = {
		.ids = ids,
		.nrows = n,
		.fields = assembly->columns,
		.nfields = assembly->ncolumns,
	};

	run->sample = STKD_NO_SAMPLE;
	for (uint32_t i = 0; i < n; i++)
		ids[i] = run->recipe->segments[first + i].id;
	return assembly->ncolumns ? stkd_fetch(assembly->dataset, &want, run->extents, run->err)
				  : 0;
}

static uint32_t chunk_of(const struct stkd_assembly *assembly)
{
	return STKD_EXTENTS_MAX / STK_MAX(assembly->ncolumns, 1u);
}

/* Where the segments of a range begin and end in the batch; rows without any have none. */
static uint32_t segment_of_row(const struct stkd_recipe *recipe, uint32_t row)
{
	return recipe->row_first[STK_MIN(row, recipe->rows_real)];
}

static int copy_row(struct stkd_run *run, uint32_t row, uint32_t *sum)
{
	const struct stkd_recipe *recipe = run->recipe;
	uint32_t begin = segment_of_row(recipe, row), end = segment_of_row(recipe, row + 1);
	uint32_t chunk = chunk_of(run->assembly), align = run->assembly->align;
	struct piece p = {.row = row};

	if (begin == end)
		write_masked(run, row);
	for (uint32_t s = begin; s < end; s++) {
		uint32_t in_chunk = (s - begin) % chunk, next;
		int r = in_chunk ? 0 : look_up(run, s, STK_MIN(chunk, end - s));

		if (r < 0)
			return r;
		p.segment = &recipe->segments[s];
		p.extents = &run->extents[in_chunk * run->assembly->ncolumns];
		p.number = s;
		p.in_row = s - begin;
		p.sum = *sum;
		next = p.at + p.segment->length;
		if (s + 1 < end)
			next = (uint32_t)stk_round_up(next, align);
		else
			next = recipe->width;
		assert(next <= recipe->width && next - p.at >= p.segment->length);
		p.gap = next - p.at - p.segment->length;
		r = copy_piece(run, &p);
		if (r < 0)
			return r;
		p.at = next;
		*sum += p.segment->length;
	}
	put_u32(run, run->layout->row_first_off, row, begin);
	return 0;
}

/* Values that no segment writes: the last sums, the longest segment. */
static void write_ends(const struct stkd_run *run)
{
	const struct stkd_recipe *recipe = run->recipe;
	uint32_t n = recipe->nsegments, longest = 0;
	uint64_t sum = 0;

	for (uint32_t s = 0; s < n; s++) {
		sum += recipe->segments[s].length;
		longest = STK_MAX(longest, recipe->segments[s].length);
	}
	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		if (run->assembly->ops[i].make == STK_MAKE_CU_SEQLENS)
			write_value(run, i, n, sum);
		else if (run->assembly->ops[i].make == STK_MAKE_CU_SEQLENS_PADDED)
			write_value(run, i, n, n ? token_of(run, recipe->rows, 0) : 0);
		else if (run->assembly->ops[i].make == STK_MAKE_MAX_SEQLEN)
			write_value(run, i, 0, longest);
	}
	put_u32(run, run->layout->row_first_off, recipe->rows, n);
}

int stkd_run_packed(void *arg)
{
	struct stkd_run *run = arg;
	uint32_t sum = 0;

	for (uint32_t s = 0; s < segment_of_row(run->recipe, run->first); s++)
		sum += run->recipe->segments[s].length;
	if (run->first == 0) {
		stkd_run_zero_gaps(run);
		write_ends(run);
	}
	for (uint32_t i = 0; i < run->n; i++) {
		int r = copy_row(run, run->first + i, &sum);

		if (r < 0)
			return r;
	}
	return 0;
}

int stkd_run_packed_done(const struct stkd_run *run)
{
	const struct stkd_assembly *assembly = run->assembly;
	uint32_t end = segment_of_row(run->recipe, run->first + run->n);
	uint64_t ids[STKD_EXTENTS_MAX];
	struct stkd_want want = {
		.ids = ids, .fields = assembly->columns, .nfields = assembly->ncolumns};

	for (uint32_t s = segment_of_row(run->recipe, run->first); assembly->ncolumns && s < end;) {
		int r;

		for (want.nrows = 0; want.nrows < STKD_EXTENTS_MAX && s < end; want.nrows++)
			ids[want.nrows] = run->recipe->segments[s++].id;
		r = stkd_fetch_done(assembly->dataset, &want, run->err);
		if (r < 0)
			return r;
	}
	return 0;
}
