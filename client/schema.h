/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a feed's batches look like: names, element types and inner shapes of the fields, the shape
 * classes, the counts of an epoch. Parsed once from the control file; immutable, any thread.
 */
#ifndef STK_CLIENT_SCHEMA_H
#define STK_CLIENT_SCHEMA_H

#include <jansson.h>

#include "client/stoker.h"
#include "proto/shm.h"

#define STK__INNER_DIMS (STK_DIMS_MAX - 2) /* a batch puts at most two dimensions before them */

struct stk__field {
	const char *name; /* in root */
	uint32_t element; /* enum stk_element */
	uint32_t ndim;
	uint64_t shape[STK__INNER_DIMS];
	uint64_t inner_bytes; /* of one element of the leading dimensions */
};

/* Counted, and owns everything it points to. */
struct stk__schema {
	_Atomic uint32_t refs;
	struct stk__schema
		*older; /* of a session before this one, kept because names in it are in use */
	char *text;     /* as it came, terminated */
	json_t *root;
	uint32_t nfields, nshapes;
	struct stk__field fields[STK_SHM_MAX_FIELDS];
	struct stk_shape_info *shapes;
	const char *stream, *job; /* in root; "" when missing */
};

/* 0; -EPROTO when it is not a schema for that many fields and classes; -ENOMEM. */
int stk__schema_new(const char *text, size_t size, uint32_t nfields, uint32_t nclasses,
		    struct stk__schema **ret, struct stk_err *err);
/* Both exported for libstoker-cuda. */
STK_PUBLIC struct stk__schema *stk__schema_ref(struct stk__schema *schema);
STK_PUBLIC struct stk__schema *stk__schema_unref(struct stk__schema *schema);
STK_DEFINE_CLEANUP(struct stk__schema *, stk__schema_unref)

/* A number of "counts", or 0. */
uint64_t stk__schema_count(const struct stk__schema *schema, const char *name);

#endif
