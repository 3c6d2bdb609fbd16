/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiled fields: what each field of a batch is copied or made from. Private to assemble/. Built
 * once per stream by one thread, immutable after.
 */
#ifndef STKD_FIELDS_H
#define STKD_FIELDS_H

#include "daemon/assemble/assembly.h"
#include "daemon/assemble/kernels.h"
#include "daemon/assemble/quarantine.h"
#include "daemon/assemble/rows.h"

#define STKD_NO_COLUMN UINT32_MAX

struct stkd_transform;

struct stkd_op {
	char *name;
	enum stk_make make;
	enum stk_dtype from, to; /* from: of a copy */
	bool ragged;             /* [rows, width, inner...]; else [rows, inner...] */
	bool aligned;            /* ragged as the length field: its width is the batch's */
	bool aligned2;   /* ragged as the second length field: its width is the second one */
	bool left;       /* padding comes first */
	uint32_t width;  /* of a ragged field that is aligned with neither */
	uint32_t column; /* of its extents; STKD_NO_COLUMN: made without the shard */
	uint32_t ndims;
	uint64_t inner[STKD_FIELD_DIMS_MAX];
	uint64_t inner_count;             /* values of one element */
	uint64_t size;                    /* bytes of one element in the batch */
	stkd_copy_fn copy;                /* NULL: none of the plain ones */
	struct stkd_transform *transform; /* NULL: copy does it all; owned */
	stkd_row_fn row;                  /* a row with its padding in one; NULL: in pieces */
	uint32_t twin;                    /* an op behind it with the same values; 0: none */
	stkd_twins_fn twins;              /* writes both */
	bool by_twin;                     /* is written with the one before it */
	stkd_fill_fn fill;
	uint64_t pad; /* as fill takes it */
	/* Packed rows. */
	uint32_t extra;     /* values besides one for each segment, of a field that is not ragged */
	bool once;          /* one value for the batch */
	uint64_t separator; /* of a copy, as fill takes it */
	bool shift;         /* each element is the next one of its sample */
	enum stk_positions positions;
	uint32_t start;
	stkd_count_fn count;
};

/* Stored fields whose extents the ops use, each once. */
struct stkd_assembly {
	const struct stkd_dataset *dataset; /* the caller's; outlives this */
	uint32_t max_length;
	uint64_t seed;                      /* of keys */
	struct stkd_quarantine *quarantine; /* where bad samples are noted; NULL: they are errors */
	bool packed;
	bool separator; /* a place behind each sample */
	uint32_t align;
	struct stkd_op ops[STK_SHM_MAX_FIELDS];
	uint32_t nops;
	uint16_t columns[STK_SHM_MAX_FIELDS];
	uint64_t element_size[STK_SHM_MAX_FIELDS]; /* stored bytes of one element, per column */
	uint32_t ncolumns;
};

/* Fills ops and columns. Return: 0, -EINVAL with the field and what is possible, -ENOMEM. */
int stkd_fields_compile(struct stkd_assembly *assembly, const struct stk_spec *spec,
			struct stk_err *err);

#endif
