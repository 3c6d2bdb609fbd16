/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the memory of waiting rows. Rows that were taken stay in place until the next step, so that
 * a step can lend them to its reader without a copy. The iterator's thread.
 */
#include "daemon/plan/rows.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MIN ((size_t)64)

void stkd_rows_deinit(struct stkd_rows *rows)
{
	free(rows->segments);
	free(rows->first);
	free(rows->marks);
	*rows = (struct stkd_rows){0};
}

static int grow(void **array, size_t room, size_t size)
{
	void *grown = reallocarray(*array, room, size);

	if (!grown)
		return -ENOMEM;
	*array = grown;
	return 0;
}

static int reserve_rows(struct stkd_rows *rows, size_t n)
{
	size_t room = STK_MAX(STK_MAX(2 * rows->room, ROOM_MIN), rows->n + n);
	bool fresh = !rows->first;

	if (!fresh && rows->n + n <= rows->room)
		return 0;
	if (grow((void **)&rows->first, room + 1, sizeof(*rows->first)) < 0 ||
	    grow((void **)&rows->marks, room, sizeof(*rows->marks)) < 0)
		return -ENOMEM;
	if (fresh)
		rows->first[0] = 0;
	rows->room = room;
	return 0;
}

int stkd_rows_reserve(struct stkd_rows *rows, size_t nrows, size_t nsegments)
{
	size_t need = rows->nsegments + nsegments;
	size_t room = STK_MAX(STK_MAX(2 * rows->segments_room, ROOM_MIN), need);

	if (need > UINT32_MAX || reserve_rows(rows, nrows) < 0)
		return -ENOMEM;
	if (need <= rows->segments_room)
		return 0;
	if (grow((void **)&rows->segments, room, sizeof(*rows->segments)) < 0)
		return -ENOMEM;
	rows->segments_room = room;
	return 0;
}

void stkd_rows_settle(struct stkd_rows *rows)
{
	size_t waiting = stkd_rows_waiting(rows), gone;

	/* Half of them at once: a window may be many steps long. */
	if (!rows->head || rows->head < waiting)
		return;
	gone = rows->first[rows->head];
	rows->nsegments -= gone;
	memmove(rows->segments, rows->segments + gone, rows->nsegments * sizeof(*rows->segments));
	memmove(rows->marks, rows->marks + rows->head, waiting * sizeof(*rows->marks));
	for (size_t i = 0; i <= waiting; i++)
		rows->first[i] = rows->first[rows->head + i] - (uint32_t)gone;
	rows->head = 0;
	rows->n = waiting;
}

void stkd_rows_clear(struct stkd_rows *rows)
{
	rows->n = rows->head = rows->nsegments = 0;
}
