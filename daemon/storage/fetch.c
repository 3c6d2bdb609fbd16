/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents of rows, straight from the mappings. Keeps nothing; runs on a worker, the first half
 * under its SIGBUS guard: so it takes no lock and allocates nothing.
 */
#include "daemon/storage/fetch.h"

#include <errno.h>
#include <inttypes.h>

#include "daemon/shard/scan.h"

#define PAGE_MAX UINT64_C(65536) /* no smaller than any page of the kernels that we run on */

static int refuse_row(const struct stkd_dataset *dataset, const struct stkd_shard *shard,
		      uint64_t sample, uint64_t row, uint32_t field, const void *place,
		      struct stk_err *err)
{
	char label[STKD_LABEL_SIZE];

	return stk_err_set(err, -EBADMSG,
			   "%s: byte %tu, sample %" PRIu64 " (row %" PRIu64
			   "): the offsets of field %s were changed since the file was opened",
			   shard->path, (const uint8_t *)place - shard->map, sample, row,
			   stkd_label(dataset->fields[field].name, label));
}

/* Lengths and places of rows lie anywhere: all are asked for before the first one is waited for. */
static void prefetch(const struct stkd_dataset *dataset, const struct stkd_want *want)
{
	for (uint32_t i = 0; i < want->nrows; i++) {
		const struct stkd_shard *shard;
		uint64_t row;
		size_t s;

		if (want->ids[i] >= dataset->count)
			return;
		if (dataset->lengths)
			__builtin_prefetch(&dataset->lengths[want->ids[i]]);
		stkd_dataset_locate(dataset, want->ids[i], &s, &row);
		shard = dataset->shards[s];
		if (!shard->format->prefetch)
			continue;
		for (uint32_t f = 0; f < want->nfields; f++)
			shard->format->prefetch(
				shard, dataset->field_of[s * dataset->nfields + want->fields[f]],
				row);
	}
}

int stkd_fetch(const struct stkd_dataset *dataset, const struct stkd_want *want,
	       struct stkd_extent *out, struct stk_err *err)
{
	prefetch(dataset, want);
	for (uint32_t i = 0; i < want->nrows; i++) {
		const struct stkd_shard *shard;
		const uint16_t *field_of;
		uint64_t row;
		size_t s;

		if (want->ids[i] >= dataset->count)
			return stk_err_set(err, -EBADMSG, "%s: sample %" PRIu64 " of %" PRIu64,
					   dataset->path, want->ids[i], dataset->count);
		stkd_dataset_locate(dataset, want->ids[i], &s, &row);
		shard = dataset->shards[s];
		field_of = dataset->field_of + s * dataset->nfields;
		for (uint32_t f = 0; f < want->nfields; f++, out++) {
			uint16_t field = want->fields[f];
			int r = shard->format->row(shard, field_of[field], row, out);

			if (r < 0)
				return refuse_row(dataset, shard, want->ids[i], row, field,
						  out->data, err);
		}
	}
	return 0;
}

bool stkd_fetch_probe(const struct stkd_dataset *dataset, const struct stkd_want *want,
		      const struct stkd_extent *extents)
{
	const struct stkd_shard *last = NULL;
	bool ends = false;

	for (uint32_t i = 0; i < want->nrows; i++) {
		const struct stkd_shard *shard;
		uintptr_t end;
		uint64_t row;
		size_t s;

		stkd_dataset_locate(dataset, want->ids[i], &s, &row);
		shard = dataset->shards[s];
		if (shard != last)
			(void)*(const volatile uint8_t *)(shard->map + shard->file_size - 1);
		last = shard;
		end = (uintptr_t)shard->map + ((shard->file_size - 1) & ~(PAGE_MAX - 1));
		for (uint32_t f = 0; f < want->nfields; f++, extents++)
			ends |= (uintptr_t)extents->data + extents->size > end;
	}
	return ends;
}

int stkd_fetch_done(const struct stkd_dataset *dataset, const struct stkd_want *want,
		    struct stk_err *err)
{
	size_t last = SIZE_MAX;

	for (uint32_t i = 0; i < want->nrows; i++) {
		uint64_t row;
		size_t s;
		int r;

		stkd_dataset_locate(dataset, want->ids[i], &s, &row);
		if (s == last)
			continue;
		last = s;
		r = stkd_shard_unchanged(dataset->shards[s], err);
		if (r < 0)
			return r;
	}
	return 0;
}
