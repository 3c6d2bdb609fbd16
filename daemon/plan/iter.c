/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the choice of the walk: each group has one, behind a table. An iterator belongs to one
 * thread at a time.
 */
#include <errno.h>

#include "daemon/plan/cursor.h"
#include "daemon/plan/iter.h"

static const struct stkd_iter_ops *const walks[] = {
	[STK_GROUP_FIXED] = &stkd_bucket_ops,
	[STK_GROUP_BUCKET] = &stkd_bucket_ops,
	[STK_GROUP_PACK] = &stkd_packed_ops,
	[STK_GROUP_CONCAT] = &stkd_packed_ops,
};

int stkd_iter_new(const struct stkd_plan *plan, const void *cursor, size_t size,
		  struct stkd_iter **ret, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	int r = walks[plan->spec->group]->create(plan, &iter, err);

	if (r == 0 && size)
		r = iter->ops->resume(iter, cursor, size, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(iter);
	return 0;
}

int stkd_iter_new_from_world(const struct stkd_plan *plan, uint32_t world, const void *cursor,
			     size_t size, struct stkd_iter **ret, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	_cleanup_(stkd_plan_freep) struct stkd_plan *other = NULL;
	_cleanup_(stkd_iter_freep) struct stkd_iter *from = NULL; /* ends before its plan does */
	int r;

	if (world == plan->world || stk_spec_is_global(plan->spec) ||
	    !walks[plan->spec->group]->adopt)
		return stkd_iter_new(plan, cursor, size, ret, err);
	r = stkd_plan_new(plan->spec, &plan->lengths, world, &other, err);
	if (r == 0)
		r = stkd_iter_new(other, cursor, size, &from, err);
	if (r < 0) {
		stk_err_prefix(err, "in the world of the state: ");
		return r;
	}
	r = walks[plan->spec->group]->create(plan, &iter, err);
	if (r == 0)
		r = iter->ops->adopt(iter, from, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(iter);
	return 0;
}

int stkd_iter_cursor_epoch(const void *cursor, size_t size, uint64_t *ret_epoch,
			   struct stk_err *err)
{
	struct stkd_packed_cursor packed;
	struct stkd_cursor plain;

	*ret_epoch = 0;
	if (!size)
		return 0;
	if (stkd_packed_cursor_decode(cursor, size, &packed, NULL) == 0) {
		*ret_epoch = packed.epoch;
		return 0;
	}
	if (stkd_cursor_decode(cursor, size, &plain, err) < 0)
		return -EINVAL;
	*ret_epoch = plain.epoch;
	return 0;
}

struct stkd_iter *stkd_iter_free(struct stkd_iter *iter)
{
	if (iter)
		iter->ops->destroy(iter);
	return NULL;
}

uint64_t stkd_iter_epoch(const struct stkd_iter *iter)
{
	uint64_t epoch, step;

	iter->ops->where(iter, &epoch, &step);
	return epoch;
}

uint64_t stkd_iter_step(const struct stkd_iter *iter)
{
	uint64_t epoch, step;

	iter->ops->where(iter, &epoch, &step);
	return step;
}

int stkd_iter_next(struct stkd_iter *iter, struct stkd_step *ret)
{
	return iter->ops->next(iter, ret);
}

int stkd_iter_seek(struct stkd_iter *iter, uint64_t epoch, uint64_t step, struct stk_err *err)
{
	return iter->ops->seek(iter, epoch, step, err);
}

size_t stkd_iter_cursor(const struct stkd_iter *iter, uint8_t out[STK_SHM_CURSOR_MAX])
{
	return iter->ops->cursor(iter, out);
}
