/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lease: the memory of one batch, counted over everything that points into it. The last reference
 * gives the slot back, from whichever thread and without the GIL: plain C and atomics, no Python.
 */
#ifndef STK_PYTHON_LEASE_H
#define STK_PYTHON_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "client/python/ext/dlpack.h"
#include "client/stoker.h"

/* Slots that a client has lent out and that are still alive; outlives the client. */
struct lease_count {
	_Atomic uint32_t refs, held;
};

struct lease {
	_Atomic uint32_t refs;
	struct stk_batch *batch; /* NULL: the bytes were copied and the slot is back */
	struct lease_count *count;
	char *copy;
	const char *base; /* of the batch; copied bytes lie at the same distances from copy */
};

/* A tensor within a lease; plain data. */
struct view {
	struct lease *lease; /* borrowed */
	void *data;
	uint64_t size;
	uint32_t element, ndim;
	bool read_only;
	int64_t shape[STK_DIMS_MAX];
};

struct lease_count *lease_count_new(void);
void lease_count_unref(struct lease_count *count);

/* Takes over the batch, also when it fails. NULL: no memory. */
struct lease *lease_new(struct stk_batch *batch, struct lease_count *count, bool copy);
/* After the views were made: a copied batch's slot goes back at once. */
void lease_settle(struct lease *lease);
void lease_ref(struct lease *lease);
void lease_unref(struct lease *lease); /* NULL is fine */

/* The tensor at a position; false when there is none. */
bool lease_view(struct lease *lease, uint32_t i, bool read_only, struct view *ret);
/* What comes with a batch beside its tensors, as signed numbers. */
enum lease_numbers {
	LEASE_SAMPLE_IDS,
	LEASE_LENGTHS,
	LEASE_ROW_FIRST,
	LEASE_SEGMENT_FROM,
	LEASE_NUMBERS,
};
const char *lease_numbers_name(enum lease_numbers which);
/* False: this batch has none, as its rows are not packed. */
bool lease_view_numbers(struct lease *lease, const struct stk_batch_info *info,
			enum lease_numbers which, bool read_only, struct view *ret);

/* New references to the lease, for a capsule. NULL: no memory. */
struct dlpack_managed *lease_export(const struct view *view, bool bool_as_u8);
struct dlpack_managed_versioned *lease_export_versioned(const struct view *view);

size_t view_item_size(const struct view *view);

#endif
