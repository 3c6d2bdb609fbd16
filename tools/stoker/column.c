/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/column.h"

#include <errno.h>
#include <string.h>

static int put_offset(struct column *column, uint64_t elements, struct stk_err *err)
{
	int64_t offset = (int64_t)elements;
	uint8_t *p = spool_extend(&column->offsets, sizeof(offset));

	if (!p)
		return stk_err_set(err, -ENOMEM, "no memory");
	memcpy(p, &offset, sizeof(offset));
	return spool_keep(&column->offsets, err);
}

int column_restart(struct column *column, struct stk_err *err)
{
	column->elements = 0;
	return field_is_ragged(column->field) ? put_offset(column, 0, err) : 0;
}

int column_init(struct column *column, const struct field *field, int dirfd, const char *dir,
		struct stk_err *err)
{
	*column = (struct column){.field = field};
	spool_init(&column->values, dirfd, dir);
	spool_init(&column->offsets, dirfd, dir);
	return column_restart(column, err);
}

void column_deinit(struct column *column)
{
	spool_deinit(&column->values);
	spool_deinit(&column->offsets);
}

uint64_t column_row_bytes(const struct column *column)
{
	return spool_row(&column->values) + (field_is_ragged(column->field) ? sizeof(int64_t) : 0);
}

int column_keep(struct column *column, struct stk_err *err)
{
	int r = spool_keep(&column->values, err);

	column->elements += column->row_elements;
	column->row_elements = 0;
	if (r == 0 && field_is_ragged(column->field))
		r = put_offset(column, column->elements, err);
	return r;
}
