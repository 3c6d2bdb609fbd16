/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows of segments that wait to become steps, oldest first, each with the mark from which it can be
 * made again. A member of an iterator, used by its thread.
 */
#ifndef STKD_ROWS_H
#define STKD_ROWS_H

#include "daemon/plan/plan.h"

/* pack: window and row in it; concat: position and token in its sample. */
struct stkd_mark {
	uint64_t at, in;
};

struct stkd_rows {
	struct stk_segment *segments;
	uint32_t *first;         /* n + 1: row r has segments first[r] to first[r + 1] - 1 */
	struct stkd_mark *marks; /* n */
	size_t nsegments, segments_room;
	size_t n, room;
	size_t head; /* rows before it were taken and are still lent */
};

void stkd_rows_deinit(struct stkd_rows *rows);

static inline size_t stkd_rows_waiting(const struct stkd_rows *rows)
{
	return rows->n - rows->head;
}

/* Room for more. Return: 0, -ENOMEM (rows stay as they were); 2^32 segments are no memory, too. */
int stkd_rows_reserve(struct stkd_rows *rows, size_t nrows, size_t nsegments);

/* Into room that was made: appends to the row that is not closed yet. */
static inline void stkd_rows_push(struct stkd_rows *rows, const struct stk_segment *segment)
{
	rows->segments[rows->nsegments++] = *segment;
}

static inline void stkd_rows_close(struct stkd_rows *rows, uint64_t at, uint64_t in)
{
	rows->marks[rows->n] = (struct stkd_mark){at, in};
	rows->first[++rows->n] = (uint32_t)rows->nsegments;
}

/* Forgets the rows that were taken; clear forgets all. */
void stkd_rows_settle(struct stkd_rows *rows);
void stkd_rows_clear(struct stkd_rows *rows);

#endif
