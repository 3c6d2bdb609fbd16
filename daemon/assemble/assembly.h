/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly: recipe and rows -> slot, one pass. An assembly is compiled once per stream from the
 * spec's fields and the dataset's; immutable after, any worker may use it.
 */
#ifndef STKD_ASSEMBLY_H
#define STKD_ASSEMBLY_H

#include "daemon/shard/dataset.h"
#include "daemon/storage/fetch.h"
#include "proto/segment.h"
#include "proto/shm.h"
#include "proto/spec.h"

struct stkd_assembly;

/* What a batch is made of: sample ids per row and padded sizes; no data. ids are owned by it. */
struct stkd_recipe {
	uint64_t epoch, step;
	uint32_t micro, shape_class;
	uint32_t rows, rows_real, width, width2;
	uint64_t *ids; /* rows_real; room for the largest class */
	/*
	 * Groups pack and concat instead of ids: real row r holds segments [row_first[r],
	 * row_first[r + 1]), the first one at its beginning, the others at the next multiple of align.
	 */
	struct stk_segment *segments; /* nsegments */
	uint32_t *row_first;          /* rows_real + 1, from 0 */
	uint32_t nsegments;
};

/* Where everything lies in a slot, for one (rows, width, width2). */
struct stkd_layout {
	struct stk_shm_field fields[STK_SHM_MAX_FIELDS];
	uint64_t extent_size;             /* fields and the zeroed gaps between them */
	uint64_t ids_off, lengths_off;    /* behind the extent */
	uint64_t from_off, row_first_off; /* packed: u32[nsegments], u32[rows + 1]; else 0 */
	uint64_t size;                    /* of all; at most the slot */
};

/* What the rows turned out to be; summed by the caller over ranges. */
struct stkd_rows_result {
	uint64_t real_tokens;
	uint32_t max_length; /* of a row; packed: of a segment */
	uint32_t rows_bad;   /* masked, as their sample is bad; packed: segments */
};

/**
 * stkd_assembly_new() - compile the fields
 * @dataset:    outlives the assembly
 * @max_length: as the plan has it: rows of aligned ragged fields are cut to it; 0: only to the width
 *
 * No fields in the spec: every stored field as it is, and attention_mask (BOOL) of the length field.
 * Allowed casts: same type; BOOL to any integer; an integer to a wider one that holds all its values.
 * A ragged field is as wide as the batch where its lengths are those of the length field, and as wide
 * as the batch's second width where they are those of the second one. Others have a width of their
 * own: their longest sample, rounded up to multiple_of. Packed rows take none of these, nor padding on the left; there
 * a field of one value for each sample has one for each segment.
 *
 * Return: 0 or -EINVAL naming the field, what was asked and what is possible.
 */
int stkd_assembly_new(const struct stk_spec *spec, const struct stkd_dataset *dataset,
		      uint32_t max_length, struct stkd_assembly **ret, struct stk_err *err);
struct stkd_assembly *stkd_assembly_free(struct stkd_assembly *assembly);
STK_DEFINE_CLEANUP(struct stkd_assembly *, stkd_assembly_free)

uint32_t stkd_assembly_nfields(const struct stkd_assembly *assembly);

/* JSON array of {"name", "dtype", "kind": "ragged" | "fixed" | "row" | "segment" | "sums" |
 * "batch", "shape": [inner]}; new reference. */
json_t *stkd_assembly_schema(const struct stkd_assembly *assembly);

/*
 * Bad samples that were masked so far: {"rows", "more", "samples": [{"sample", "shard", "row", "field",
 * "reason", "offset"}]}, at most so many, the lowest ids; new reference. Any thread.
 */
json_t *stkd_assembly_quarantined(const struct stkd_assembly *assembly, uint32_t most);

/* width2: of the second length, 0 where there is one. -EOVERFLOW when it does not fit 64 bits; *ret is then of no use. */
int stkd_assembly_layout(const struct stkd_assembly *assembly, uint32_t rows, uint32_t width,
			 uint32_t width2, struct stkd_layout *ret);
/* The same for packed rows; -EOVERFLOW also when sums of lengths do not fit 31 bits. */
int stkd_assembly_layout_packed(const struct stkd_assembly *assembly, uint32_t rows, uint32_t width,
				uint32_t nsegments, struct stkd_layout *ret);
/* Does the spec pack rows? */
bool stkd_assembly_is_packed(const struct stkd_assembly *assembly);

/**
 * stkd_assembly_rows() - write rows [first, first + n) of a batch, every byte of them, once
 * @slot: start of the slot
 *
 * Row 0's caller also zeroes the gaps between fields (part of range 0). Runs the copy under the
 * SIGBUS guard. Return: 0; -EBADMSG with shard, sample and reason; -EFAULT: the slot itself faulted.
 */
int stkd_assembly_rows(const struct stkd_assembly *assembly, const struct stkd_layout *layout,
		       const struct stkd_recipe *recipe, uint8_t *slot, uint32_t first, uint32_t n,
		       struct stkd_rows_result *ret, struct stk_err *err);

#endif
