/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/assemble/transform.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Lists of scale and bias have one number for each channel of the stored sample. */
static int check_channels(const struct stkd_op *op, const struct stk_spec_ops *ops,
			  struct stk_err *err)
{
	uint32_t n = STK_MAX(ops->nscale, ops->nbias);
	uint64_t channels;

	if (n <= 1)
		return 0;
	if (!op->ndims)
		return stk_err_set(err, -EINVAL,
				   "%s is a list of %" PRIu32 ", and its elements have no channels",
				   ops->nscale > 1 ? "scale" : "bias", n);
	channels = op->inner[ops->channel == STK_CHANNEL_FIRST ? 0 : op->ndims - 1];
	if (n != channels)
		return stk_err_set(err, -EINVAL,
				   "%s is a list of %" PRIu32 ", the %s dimension has %" PRIu64
				   " channels",
				   ops->nscale > 1 ? "scale" : "bias", n,
				   ops->channel == STK_CHANNEL_FIRST ? "first" : "last", channels);
	return 0;
}

static bool has_geometry(const struct stkd_op *op, const struct stk_spec_ops *ops)
{
	/* Channels that do not take turns value by value are walked over too. */
	bool apart = STK_MAX(ops->nscale, ops->nbias) > 1 && ops->channel == STK_CHANNEL_FIRST &&
		     op->ndims > 1;

	return ops->crop[0] || ops->flip != STK_FLIP_NONE || ops->ntranspose || apart;
}

static int set_image(struct stkd_transform *t, struct stkd_op *op, const struct stk_spec_ops *ops,
		     struct stk_err *err)
{
	int r;

	if (!has_geometry(op, ops))
		return 0;
	if (op->ragged)
		return stk_err_set(err, -EINVAL,
				   "crop, flip, transpose and channel: first are for samples of "
				   "one shape");
	r = stkd_image_init(&t->image, ops, op->inner, op->ndims, stk_dtype_size(op->from),
			    stk_dtype_size(op->to), STK_MAX(ops->nscale, ops->nbias) > 1, err);
	if (r < 0)
		return r;
	t->has_image = true;
	op->inner_count = 1;
	for (uint32_t i = 0; i < op->ndims; i++)
		op->inner_count *= op->inner[i];
	op->size = op->inner_count * stk_dtype_size(op->to);
	return 0;
}

static int set_where(struct stkd_transform *t, const struct stkd_op *op, uint32_t where,
		     size_t where_size, struct stk_err *err)
{
	t->where = where;
	t->where_size = where_size;
	if (where != STKD_NO_COLUMN && op->inner_count > STKD_BLOCK)
		return stk_err_set(err, -EINVAL,
				   "where: an element has %" PRIu64 " values, possible are %d",
				   op->inner_count, STKD_BLOCK);
	return 0;
}

int stkd_transform_new(struct stkd_op *op, const struct stk_spec_ops *ops, uint32_t where,
		       size_t where_size, struct stkd_transform **ret, struct stk_err *err)
{
	_cleanup_(stk_freep) struct stkd_transform *t = NULL;
	bool values = ops->nscale || ops->nbias || ops->clamp_set || ops->modulo;
	int r;

	*ret = NULL;
	if (op->copy && !values && where == STKD_NO_COLUMN && !has_geometry(op, ops))
		return 0;
	t = calloc(1, sizeof(*t));
	if (!t)
		return stk_err_set(err, -ENOMEM, "no memory");
	t->has_chain = values || !op->copy;
	r = check_channels(op, ops, err);
	if (r == 0 && t->has_chain)
		r = stkd_chain_init(&t->chain, op->from, op->to, ops, err);
	if (r == 0)
		r = set_image(t, op, ops, err);
	if (r == 0)
		r = set_where(t, op, where, where_size, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(t);
	return 0;
}

uint64_t stkd_run_key(const struct stkd_run *run, uint64_t sample)
{
	return stkd_key(run->assembly->seed, run->recipe->epoch, sample);
}

/* Values one after the other, as they lie. */
static bool plain(const struct stkd_op *op, uint8_t *dst, const uint8_t *src, size_t n)
{
	if (!op->transform->has_chain) {
		op->copy(dst, src, n);
		return true;
	}
	return stkd_chain_run(&op->transform->chain, dst, src, n, STKD_ANY_CHANNEL);
}

/* Does the mask's element say yes? Any byte of it that is not 0 does. */
static bool is_set(const uint8_t *mask, size_t size)
{
	uint8_t any = 0;

	for (size_t i = 0; i < size; i++)
		any |= mask[i];
	return any;
}

#define DEFINE_SELECT(type)                                                                        \
	static void select_##type(void *restrict dst, const void *restrict src,                    \
				  const uint8_t *restrict mask, uint64_t pad, size_t n)            \
	{                                                                                          \
		const type *s = src;                                                               \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = mask[i] ? s[i] : (type)pad;                                         \
	}

DEFINE_SELECT(uint8_t)
DEFINE_SELECT(uint16_t)
DEFINE_SELECT(uint32_t)
DEFINE_SELECT(uint64_t)

static void choose(const struct stkd_op *op, uint8_t *dst, const void *src, const uint8_t *mask,
		   size_t n)
{
	switch (stk_dtype_size(op->to)) {
	case 1:
		select_uint8_t(dst, src, mask, op->pad, n);
		return;
	case 2:
		select_uint16_t(dst, src, mask, op->pad, n);
		return;
	case 4:
		select_uint32_t(dst, src, mask, op->pad, n);
		return;
	default:
		select_uint64_t(dst, src, mask, op->pad, n);
	}
}

/* A value that the mask hides does not reach the batch, so it may be what it likes. */
static bool shown_fit(const struct stkd_op *op, uint8_t *block, const uint8_t *src,
		      const uint8_t *mask, size_t n)
{
	size_t inner = op->inner_count, in = inner * stk_dtype_size(op->from);
	bool ok = true;

	for (size_t i = 0, end; i < n; i = end + 1) {
		for (end = i; end < n && mask[end * inner]; end++)
			;
		if (end > i)
			ok &= plain(op, block + i * op->size, src + i * in, (end - i) * inner);
	}
	return ok;
}

/* Values go into a block first, so that each byte of the slot is written once. */
static bool masked(const struct stkd_op *op, uint8_t *dst, const uint8_t *src, const uint8_t *where,
		   size_t n)
{
	const struct stkd_transform *t = op->transform;
	size_t inner = op->inner_count, at_once = STKD_BLOCK / inner;
	size_t in = inner * stk_dtype_size(op->from);
	uint64_t block[STKD_BLOCK];
	uint8_t mask[STKD_BLOCK];
	bool ok = true;

	for (size_t i = 0; i < n; i += at_once) {
		size_t some = STK_MIN(n - i, at_once);

		for (size_t k = 0; k < some; k++)
			memset(mask + k * inner,
			       is_set(where + (i + k) * t->where_size, t->where_size), inner);
		if (!plain(op, (uint8_t *)block, src + i * in, some * inner))
			ok &= shown_fit(op, (uint8_t *)block, src + i * in, mask, some);
		choose(op, dst + i * op->size, block, mask, some * inner);
	}
	return ok;
}

void stkd_run_values(const struct stkd_run *run, const struct stkd_op *op, uint8_t *dst,
		     const struct stkd_extent *extents, uint64_t from, uint64_t n, uint64_t sample)
{
	const struct stkd_transform *t = op->transform;
	const uint8_t *src = extents[op->column].data;
	bool ok;

	if (!op->size)
		return;
	src += from * run->assembly->element_size[op->column];
	if (!t) {
		op->copy(dst, src, n * op->inner_count);
		return;
	}
	if (t->has_image)
		ok = stkd_image_run(&t->image, t->has_chain ? &t->chain : NULL, op->copy, dst, src,
				    stkd_run_key(run, sample));
	else if (t->where != STKD_NO_COLUMN)
		ok = masked(op, dst, src,
			    (const uint8_t *)extents[t->where].data + from * t->where_size, n);
	else
		ok = plain(op, dst, src, n * op->inner_count);
	if (!ok && !*run->bad)
		*run->bad = op;
}
