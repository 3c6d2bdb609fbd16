/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From tensors to fields: which tensors are one ragged field (x.values with x.offsets), which are
 * fixed ones, and where the bytes of a row are. Built once at open, then immutable.
 */
#ifndef STKD_RAGGED_H
#define STKD_RAGGED_H

#include "daemon/shard/shard.h"
#include "daemon/shard/tensors.h"

#define STKD_RAGGED_CONVENTION "ragged=values+offsets" /* in __metadata__ "stoker" */

/* Where a field lies; bytes from the start of the file. */
struct stkd_column {
	uint64_t values;  /* position of the first element */
	uint64_t stride;  /* bytes of a row (fixed) or of an element (ragged) */
	uint64_t total;   /* ragged: elements */
	uint64_t offsets; /* ragged: position of count + 1 I64 offsets; unaligned */
};

struct stkd_columns {
	struct stkd_field *fields; /* sorted by name */
	struct stkd_column *list;  /* as fields */
	uint32_t n;
	uint64_t count; /* samples: all fields agree */
};

/**
 * stkd_columns_read() - pair the tensors and check every offset
 * @fd: read with pread(), so that a cut cannot fault
 *
 * Where the file states the convention, a pair that breaks a rule is an error. Where it does not,
 * a pair is ragged when all rules hold, else two plain tensors.
 *
 * Return: 0, -EBADMSG with field, index and numbers, -ENOMEM, an error of pread().
 */
int stkd_columns_read(int fd, const struct stkd_tensors *tensors, struct stkd_columns *ret,
		      struct stk_err *err);
void stkd_columns_deinit(struct stkd_columns *columns);

#endif
