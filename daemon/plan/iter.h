/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the walks through an epoch have in common, one for each way of grouping: the head of every
 * iterator, and the functions behind it. An iterator belongs to one thread at a time.
 */
#ifndef STKD_ITER_H
#define STKD_ITER_H

#include "daemon/plan/plan_private.h"

struct stkd_iter_ops {
	int (*create)(const struct stkd_plan *plan, struct stkd_iter **ret, struct stk_err *err);
	void (*destroy)(struct stkd_iter *iter);
	int (*resume)(struct stkd_iter *iter, const void *cursor, size_t size, struct stk_err *err);
	int (*next)(struct stkd_iter *iter, struct stkd_step *ret);
	int (*seek)(struct stkd_iter *iter, uint64_t epoch, uint64_t step, struct stk_err *err);
	size_t (*cursor)(const struct stkd_iter *iter, uint8_t out[STK_SHM_CURSOR_MAX]);
	/* Goes on in this world where an iterator of another world stopped. NULL: a cursor says all. */
	int (*adopt)(struct stkd_iter *iter, const struct stkd_iter *other, struct stk_err *err);
	/* Of the next step. */
	void (*where)(const struct stkd_iter *iter, uint64_t *ret_epoch, uint64_t *ret_step);
};

struct stkd_iter {
	const struct stkd_iter_ops *ops;
};

extern const struct stkd_iter_ops stkd_bucket_ops; /* group fixed and bucket */
extern const struct stkd_iter_ops stkd_packed_ops; /* group pack and concat */

#endif
