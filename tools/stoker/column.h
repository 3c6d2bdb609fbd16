/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The values of one field over the samples of the shard that is being filled, and for a ragged field
 * its offsets. Owned by the shard writer; one thread.
 */
#ifndef STOKER_COLUMN_H
#define STOKER_COLUMN_H

#include "tools/stoker/field.h"
#include "tools/stoker/spool.h"

struct column {
	const struct field *field; /* borrowed */
	struct spool values, offsets;
	uint64_t elements;     /* kept, along the ragged dimension; fixed: samples */
	uint64_t row_elements; /* of the row that is being built */
};

int column_init(struct column *column, const struct field *field, int dirfd, const char *dir,
		struct stk_err *err);
void column_deinit(struct column *column);

/* Bytes that keeping the row adds to the shard. */
uint64_t column_row_bytes(const struct column *column);
int column_keep(struct column *column, struct stk_err *err);
/* After both spools were drained: the next shard's offsets start at 0 again. */
int column_restart(struct column *column, struct stk_err *err);

#endif
