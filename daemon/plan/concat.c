/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the place in the stream of tokens. The iterator's thread.
 */
#include "daemon/plan/concat.h"

#include <errno.h>

void stkd_concat_init(struct stkd_concat *c, struct stkd_source *source)
{
	const struct stk_spec *spec = source->plan->spec;

	*c = (struct stkd_concat){
		.source = source,
		.row = spec->max_length,
		.overlap = spec->overlap,
		.separator = spec->separator,
		.partial = spec->tail != STK_TAIL_DROP,
	};
}

void stkd_concat_begin(struct stkd_concat *c)
{
	c->offset = c->size = c->position = c->dropped = 0;
}

/* The next sample that has a token. */
static bool next_sample(struct stkd_concat *c)
{
	struct stkd_arrival arrival;

	do {
		if (!stkd_source_next(c->source, &arrival))
			return false;
	} while (!arrival.delivered || !arrival.length);
	c->id = arrival.id;
	c->position = c->source->position - 1;
	c->offset = 0;
	c->size = (uint64_t)arrival.length + c->separator;
	return true;
}

int stkd_concat_seek(struct stkd_concat *c, uint64_t position, uint64_t offset)
{
	if (position >= c->source->end)
		return -EINVAL;
	stkd_concat_begin(c);
	stkd_source_seek(c->source, position);
	if (!next_sample(c) || c->position != position || offset >= c->size)
		return -EINVAL;
	c->offset = offset;
	return 0;
}

/* Appends up to @n tokens as segments; @joins: the last segment of the row may go on. */
static int append(struct stkd_concat *c, uint64_t n, bool joins, struct stkd_rows *to,
		  uint64_t *ret_done)
{
	uint64_t left = n;

	while (left) {
		struct stk_segment *last = joins ? &to->segments[to->nsegments - 1] : NULL;
		uint64_t take;

		if (c->offset == c->size && !next_sample(c))
			break;
		take = STK_MIN(left, c->size - c->offset);
		if (last && last->position == c->position) {
			last->length += (uint32_t)take;
		} else {
			if (stkd_rows_reserve(to, 1, 1) < 0)
				return -ENOMEM;
			stkd_rows_push(to, &(struct stk_segment){
						   .id = c->id,
						   .position = c->position,
						   .from = (uint32_t)c->offset,
						   .length = (uint32_t)take,
					   });
		}
		joins = true;
		c->offset += take;
		left -= take;
	}
	*ret_done = n - left;
	return 0;
}

int stkd_concat_row(struct stkd_concat *c, struct stkd_rows *to)
{
	size_t start = to->nsegments;
	struct stkd_concat next;
	uint64_t tokens, more = 0, at, in;
	int r;

	if (c->offset == c->size && !next_sample(c))
		return 0;
	at = c->position;
	in = c->offset;
	r = append(c, c->row, false, to, &tokens);
	if (r < 0)
		return r;
	next = *c;
	if (tokens == c->row)
		r = append(c, c->overlap, true, to, &more);
	if (r < 0)
		return r;
	/* Tokens that the row before had as its overlap are no row of their own. */
	if (tokens + more <= c->overlap || (!c->partial && tokens + more < c->row + c->overlap)) {
		c->dropped = tokens + more;
		c->offset = c->size;
		to->nsegments = start;
		return 0;
	}
	stkd_rows_close(to, at, in);
	if (next.position != c->position)
		stkd_source_seek(c->source, next.position + 1);
	next.source = c->source;
	*c = next;
	return 1;
}
