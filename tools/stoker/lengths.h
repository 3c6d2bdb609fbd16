/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The lengths that `stoker plan` plans: of a dataset's length field, or from a JSON file. Owned by
 * the command; one thread.
 */
#ifndef STOKER_LENGTHS_H
#define STOKER_LENGTHS_H

#include "daemon/plan/plan.h"
#include "daemon/shard/dataset.h"

struct lengths {
	const uint32_t *len;
	uint64_t count;
	uint64_t tokens;
	uint32_t *own;                /* from JSON */
	struct stkd_dataset *dataset; /* or this lends them */
};

/* Of both length fields of the spec. */
int lengths_from_dataset(const char *path, const struct stk_spec *spec, struct lengths *ret,
			 struct stk_err *err);
/* Of all datasets of a spec, and both its length fields. */
int lengths_from_spec(const struct stk_spec *spec, struct lengths *ret, struct stk_err *err);
/* As a plan takes them. */
struct stkd_lengths lengths_for_plan(const struct lengths *lengths);
/* An array of whole numbers, or {"lengths": [...]}; "-" is standard input. */
int lengths_from_json(const char *path, struct lengths *ret, struct stk_err *err);
/* Of a file by its name: .npy, else JSON. */
int lengths_from_file(const char *path, struct lengths *ret, struct stk_err *err);
void lengths_deinit(struct lengths *lengths);

#endif
