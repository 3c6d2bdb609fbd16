/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device batch tells about itself: copies, made when its copy to the device was started, for
 * the host slot goes back long before. Read by any thread that holds the batch.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/pipeline.h"

static_assert(sizeof(struct stk_batch_info) == 160,
	      "a list that is new here is to be copied below");

/* Copies a list that may be missing behind those before it. Returns where it lies. */
static const void *put(uint8_t **end, const void *list, size_t size)
{
	void *at = *end;

	if (!list)
		return NULL;
	memcpy(at, list, size);
	*end += size;
	return at;
}

/* Lists of samples and segments lie in the slot, behind what is copied to the device. */
static int copy_lists(struct stk_cuda_batch *slot, struct stk_err *err)
{
	struct stk_batch_info *info = &slot->info;
	size_t n = info->nids, rows = (size_t)info->rows + 1;
	size_t size = n * (sizeof(uint64_t) + 2 * sizeof(uint32_t)) + rows * sizeof(uint32_t);
	uint8_t *end;

	if (size > slot->lists_room) {
		void *room = realloc(slot->lists, 2 * size);

		if (!room)
			return stk_err_set(err, -ENOMEM, "batch: no memory for %zu sample ids", n);
		slot->lists = room;
		slot->lists_room = 2 * size;
	}
	end = slot->lists;
	info->sample_ids = put(&end, info->sample_ids, n * sizeof(uint64_t));
	info->lengths = put(&end, info->lengths, n * sizeof(uint32_t));
	info->segment_from = put(&end, info->segment_from, n * sizeof(uint32_t));
	info->row_first = put(&end, info->row_first, rows * sizeof(uint32_t));
	return 0;
}

static void copy_tensors(struct stk_cuda_batch *slot, const struct stk_batch *batch)
{
	const uint8_t *base = batch->data;

	slot->ntensors = stk_batch_ntensors(batch);
	for (uint32_t i = 0; i < slot->ntensors; i++) {
		struct stk_tensor *t = &slot->tensors[i];

		stk_batch_tensor_at(batch, i, t);
		t->data = slot->data + ((const uint8_t *)t->data - base);
	}
	if (slot->schema == batch->session->schema)
		return;
	stk__schema_unref(slot->schema);
	slot->schema = stk__schema_ref(batch->session->schema);
}

int stk__cuda_describe(struct stk_cuda_batch *slot, const struct stk_batch *batch,
		       struct stk_err *err)
{
	int r;

	slot->info.size = sizeof(slot->info);
	r = stk_batch_info(batch, &slot->info);
	if (r == 0)
		r = copy_lists(slot, err);
	if (r < 0)
		return r;
	copy_tensors(slot, batch);
	r = stk_batch_state(batch, slot->state, sizeof(slot->state));
	if (r < 0)
		return stk_err_set(err, r, "batch: its state does not fit");
	slot->state_size = (size_t)r;
	return 0;
}

STK_PUBLIC int stk_cuda_batch_info(const struct stk_cuda_batch *batch, struct stk_batch_info *ret)
{
	struct stk_batch_info i = batch->info;

	if (ret->size < sizeof(ret->size))
		return -EINVAL;
	i.size = STK_MIN(ret->size, sizeof(i));
	i.data = batch->data;
	memcpy(ret, &i, i.size);
	return 0;
}

STK_PUBLIC uint32_t stk_cuda_batch_slot(const struct stk_cuda_batch *batch)
{
	return batch->number;
}

STK_PUBLIC uint32_t stk_cuda_batch_ntensors(const struct stk_cuda_batch *batch)
{
	return batch->ntensors;
}

STK_PUBLIC int stk_cuda_batch_tensor_at(const struct stk_cuda_batch *batch, uint32_t i,
					struct stk_tensor *ret)
{
	if (i >= batch->ntensors)
		return -ERANGE;
	*ret = batch->tensors[i];
	return 0;
}

STK_PUBLIC int stk_cuda_batch_tensor(const struct stk_cuda_batch *batch, const char *name,
				     struct stk_tensor *ret)
{
	for (uint32_t i = 0; i < batch->ntensors; i++)
		if (!strcmp(batch->tensors[i].name, name))
			return stk_cuda_batch_tensor_at(batch, i, ret);
	return -ENOENT;
}

STK_PUBLIC int stk_cuda_batch_state(const struct stk_cuda_batch *batch, void *state, size_t room)
{
	if (batch->state_size > room)
		return -ENOSPC;
	memcpy(state, batch->state, batch->state_size);
	return (int)batch->state_size;
}
