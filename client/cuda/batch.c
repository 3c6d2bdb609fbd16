/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device batch tells about itself: copies, made when its copy to the device was started, for
 * the host slot goes back long before. Read by any thread that holds the batch.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/cuda/pipeline.h"

/* Sample ids and lengths lie behind what is copied to the device. */
static int copy_ids(struct stk_cuda_batch *slot, struct stk_err *err)
{
	struct stk_batch_info *info = &slot->info;
	size_t ids = info->nids * sizeof(*info->sample_ids);
	size_t lengths = info->nids * sizeof(*info->lengths);

	if (ids + lengths > slot->ids_room) {
		void *room = realloc(slot->ids, 2 * (ids + lengths));

		if (!room)
			return stk_err_set(err, -ENOMEM, "batch: no memory for %u sample ids",
					   info->nids);
		slot->ids = room;
		slot->ids_room = 2 * (ids + lengths);
	}
	if (info->nids) {
		memcpy(slot->ids, info->sample_ids, ids);
		memcpy((uint8_t *)slot->ids + ids, info->lengths, lengths);
	}
	info->sample_ids = slot->ids;
	info->lengths = (const uint32_t *)((const uint8_t *)slot->ids + ids);
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
		r = copy_ids(slot, err);
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
