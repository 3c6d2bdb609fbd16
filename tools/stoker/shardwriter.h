/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rows to a set of shards with its dataset.json. A shard is a plain safetensors file: a ragged field
 * x is x.values and x.offsets, a fixed field one tensor. Nothing stays in the directory unless
 * shardwriter_finish() succeeded. Owned by whoever opened it; one thread.
 */
#ifndef STOKER_SHARDWRITER_H
#define STOKER_SHARDWRITER_H

#include "tools/stoker/column.h"

struct shardwriter_opts {
	const char *dir;
	bool force;           /* replace an older set */
	int stop_fd;          /* of stop_open(), or -1 */
	uint64_t samples_max; /* per shard; 0: no limit */
	uint64_t bytes_max;   /* of a shard file that holds more than one sample; 0: no limit */
};

struct shardwriter_totals {
	uint64_t samples, elements; /* elements: of the first field */
	uint64_t shards, bytes;
};

struct shardwriter;

/* Opens the directory; opts and fields are borrowed until the end. */
int shardwriter_open(const struct shardwriter_opts *opts, const struct field *fields,
		     size_t nfields, struct shardwriter **ret, struct stk_err *err);

/* One per field, in their order, to put a row into. */
struct column *shardwriter_columns(struct shardwriter *writer);

/* Keeps the row that the columns hold, in the next shard if it no longer fits into this one. */
int shardwriter_row(struct shardwriter *writer, struct stk_err *err);

/* Writes the last shard and dataset.json, and puts all in place. At least one row was kept. */
int shardwriter_finish(struct shardwriter *writer, struct stk_err *err);

struct shardwriter_totals shardwriter_totals(const struct shardwriter *writer);

/* Removes everything that was not finished. */
struct shardwriter *shardwriter_free(struct shardwriter *writer);
STK_DEFINE_CLEANUP(struct shardwriter *, shardwriter_free)

#endif
