/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done to the values of a copied field between shard and slot: a chain, the geometry of an
 * image, a mask of another field. Compiled once per field, immutable after, any thread.
 */
#ifndef STKD_TRANSFORM_H
#define STKD_TRANSFORM_H

#include "daemon/assemble/image.h"
#include "daemon/assemble/run.h"

struct stkd_transform {
	bool has_chain, has_image;
	struct stkd_chain chain;
	struct stkd_image image;
	uint32_t where; /* column of the mask; STKD_NO_COLUMN: none */
	size_t where_size;
};

/**
 * stkd_transform_new() - compile the ops of a field
 * @op:    from, to, copy (NULL where the cast is none of the plain ones) and inner shape, which
 *         becomes that of the batch
 * @where: column of the mask's extents; STKD_NO_COLUMN: none
 * @ret:   NULL when the plain copy does it all; else for free()
 *
 * Return: 0; -ENOMEM; -EINVAL with what is wrong in @err, without the field.
 */
int stkd_transform_new(struct stkd_op *op, const struct stk_spec_ops *ops, uint32_t where,
		       size_t where_size, struct stkd_transform **ret, struct stk_err *err);

/*
 * Writes elements [from, from + n) of a row, n > 0, through the op's transform or its plain copy.
 * A value out of range is noted in the run.
 */
void stkd_run_values(const struct stkd_run *run, const struct stkd_op *op, uint8_t *dst,
		     const struct stkd_extent *extents, uint64_t from, uint64_t n, uint64_t sample);

/* The key of a sample in the run's epoch. */
uint64_t stkd_run_key(const struct stkd_run *run, uint64_t sample);

#endif
