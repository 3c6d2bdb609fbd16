/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The safetensors format behind the shard's interface. State is the place of each field; rows are
 * found without a lock, on any thread.
 */
#include <endian.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/shard/ragged.h"

static bool safetensors_probe(const uint8_t *head, size_t size, uint64_t file_size)
{
	uint64_t header;
	size_t i = sizeof(header);

	if (size < sizeof(header))
		return false;
	memcpy(&header, head, sizeof(header));
	if (le64toh(header) > file_size - sizeof(header))
		return false;
	/* An empty header is one too: it is refused for what it is. */
	while (i < size && head[i] && strchr(" \t\r\n", head[i]))
		i++;
	return i == size || head[i] == '{' || !header;
}

static int safetensors_open(struct stkd_shard *shard, const struct stkd_shard_limits *limits,
			    struct stk_err *err)
{
	_cleanup_(stkd_tensors_freep) struct stkd_tensors *tensors = NULL;
	struct stkd_columns columns;
	int r;

	r = stkd_tensors_read(shard->fd, shard->file_size, limits ? limits->header_max : 0,
			      &tensors, err);
	if (r < 0)
		return r;
	r = stkd_columns_read(shard->fd, tensors, &columns, err);
	if (r < 0)
		return r;
	shard->payload_size = shard->file_size - tensors->data_start;
	shard->count = columns.count;
	shard->fields = columns.fields;
	shard->nfields = columns.n;
	shard->state = columns.list;
	return 0;
}

static void safetensors_prefetch(const struct stkd_shard *shard, uint32_t field, uint64_t row)
{
	const struct stkd_column *column = (const struct stkd_column *)shard->state + field;

	if (shard->fields[field].ragged)
		__builtin_prefetch(shard->map + column->offsets + row * sizeof(uint64_t));
}

static int safetensors_row(const struct stkd_shard *shard, uint32_t field, uint64_t row,
			   struct stkd_extent *ret)
{
	const struct stkd_column *column = (const struct stkd_column *)shard->state + field;
	uint64_t pair[2];

	if (!shard->fields[field].ragged) {
		ret->data = shard->map + column->values + row * column->stride;
		ret->count = 1;
		ret->size = column->stride;
		return 0;
	}
	/* Checked at open, but the file may have been written to since: only this copy is used. */
	ret->data = shard->map + column->offsets + row * sizeof(uint64_t);
	memcpy(pair, ret->data, sizeof(pair));
	pair[0] = le64toh(pair[0]);
	pair[1] = le64toh(pair[1]);
	if (pair[0] > pair[1] || pair[1] > column->total)
		return -EBADMSG;
	ret->data = shard->map + column->values + pair[0] * column->stride;
	ret->count = pair[1] - pair[0];
	ret->size = ret->count * column->stride;
	return 0;
}

static void safetensors_close(struct stkd_shard *shard)
{
	free(shard->state);
}

const struct stkd_format stkd_format_safetensors = {
	.name = "safetensors",
	.probe = safetensors_probe,
	.open = safetensors_open,
	.row = safetensors_row,
	.prefetch = safetensors_prefetch,
	.close = safetensors_close,
};
