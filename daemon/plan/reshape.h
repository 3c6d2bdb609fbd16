/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of packed rows made even: rows go to other parts, segments of flat packs to other rows, and
 * a last step of too few rows is spread over more. The samples of the step stay the same. A member
 * of an iterator, used by its thread.
 */
#ifndef STKD_RESHAPE_H
#define STKD_RESHAPE_H

#include "daemon/plan/balance.h"
#include "daemon/plan/pack.h"

struct stkd_reshape {
	const struct stk_spec *spec; /* borrowed */
	uint32_t row, parts;         /* tokens of a row; parts of a step */
	struct stkd_rows rows;       /* of the step as it became */
	struct stkd_balancer *balancer;
	struct stkd_load *loads;
	uint32_t *part_of, *order;
	size_t room; /* of the three */
	struct stkd_capacity *capacity;
	size_t capacity_room;
};

/* Return: 0 or -ENOMEM; either way for deinit. */
int stkd_reshape_init(struct stkd_reshape *reshape, const struct stk_spec *spec, uint32_t row,
		      uint32_t parts);
void stkd_reshape_deinit(struct stkd_reshape *reshape);

/* Follows the spec's balance. The step then borrows from @reshape. Return: 0 or -ENOMEM. */
int stkd_reshape_balance(struct stkd_reshape *reshape, struct stkd_step *step);

/* Fewer rows than parts become as many, as far as there are segments. Return: 0 or -ENOMEM. */
int stkd_reshape_spread(struct stkd_reshape *reshape, struct stkd_packer *packer,
			struct stkd_step *step);

#endif
