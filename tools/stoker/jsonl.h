/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One line of JSON as one row of the columns. No state, one thread.
 */
#ifndef STOKER_JSONL_H
#define STOKER_JSONL_H

#include "tools/stoker/column.h"

/* Nothing but spaces, tabs and carriage returns? */
bool jsonl_blank(const char *line, size_t size);

/**
 * jsonl_row() - read a line
 * @line:    one JSON object, not zero-terminated
 * @columns: each gets its row, which column_keep() keeps; after an error they hold parts of a row
 *
 * Return: 0, or a negative errno with column or key, index, value and what is allowed.
 */
int jsonl_row(const char *line, size_t size, struct column *columns, size_t ncolumns,
	      struct stk_err *err);

#endif
