/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a borrowed batch tells about itself. Reads the private copy of its descriptor, which was
 * checked when the batch was lent; any thread.
 */
#include "client/session.h"

#include <errno.h>
#include <string.h>

int stk_batch_info(const struct stk_batch *batch, struct stk_batch_info *ret)
{
	const struct stk_shm_desc *d = &batch->desc;
	struct stk_batch_info i = {
		.size = STK_MIN(ret->size, sizeof(i)),
		.epoch = d->epoch,
		.step = d->step,
		.micro = d->micro,
		.last_micro = !!(d->flags & STK_SHM_DESC_LAST_MICRO),
		.ends_epoch = !!(d->flags & STK_SHM_DESC_ENDS_EPOCH),
		.shape_class = d->shape_class,
		.edge = batch->session->schema->shapes[d->shape_class].edge,
		.rows = d->rows,
		.rows_real = d->rows_real,
		.rows_bad = d->rows_bad,
		.width = d->width,
		.max_length = d->max_length,
		.era = d->era,
		.real_tokens = d->real_tokens,
		.padded_tokens = d->padded_tokens,
		.global_tokens = d->global_tokens,
		.data = batch->data,
		.data_size = d->extent_size,
		.sample_ids = (const uint64_t *)(batch->data + d->ids_off),
		.lengths = (const uint32_t *)(batch->data + d->lengths_off),
		.nids = d->nids,
		.slot = d->slot,
		.ready_ns = d->ready_ns,
	};

	if (d->row_first_off) {
		i.row_first = (const uint32_t *)(batch->data + d->row_first_off);
		i.segment_from = (const uint32_t *)(batch->data + d->from_off);
	}
	if (ret->size < sizeof(ret->size))
		return -EINVAL;
	memcpy(ret, &i, i.size);
	return 0;
}

uint32_t stk_batch_ntensors(const struct stk_batch *batch)
{
	return batch->session->schema->nfields;
}

int stk_batch_tensor_at(const struct stk_batch *batch, uint32_t i, struct stk_tensor *ret)
{
	const struct stk__schema *schema = batch->session->schema;
	const struct stk_shm_field *lies;
	const struct stk__field *field;

	if (i >= schema->nfields)
		return -ERANGE;
	lies = &batch->fields[i];
	field = &schema->fields[i];
	*ret = (struct stk_tensor){
		.name = field->name,
		.data = batch->data + lies->offset,
		.size = lies->size,
		.element = field->element,
	};
	for (uint32_t d = 0; d < lies->nlead; d++)
		ret->shape[ret->ndim++] = lies->lead[d];
	for (uint32_t d = 0; d < field->ndim; d++)
		ret->shape[ret->ndim++] = field->shape[d];
	return 0;
}

int stk_batch_tensor(const struct stk_batch *batch, const char *name, struct stk_tensor *ret)
{
	const struct stk__schema *schema = batch->session->schema;

	for (uint32_t i = 0; i < schema->nfields; i++)
		if (!strcmp(schema->fields[i].name, name))
			return stk_batch_tensor_at(batch, i, ret);
	return -ENOENT;
}

int stk_batch_state(const struct stk_batch *batch, void *state, size_t room)
{
	struct stk_state_header header = batch->session->state;
	size_t cursor_size = batch->desc.cursor_size;

	if (sizeof(header) + cursor_size > room)
		return -ENOSPC;
	header.cursor_size = (uint32_t)cursor_size;
	memcpy(state, &header, sizeof(header));
	memcpy((uint8_t *)state + sizeof(header), batch->desc.cursor, cursor_size);
	return (int)(sizeof(header) + cursor_size);
}
