/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What to write: one field of the samples, from which keys of a line, as which type and shape. As
 * given on the command line. Plain data, owned by write.c.
 */
#ifndef STOKER_FIELD_H
#define STOKER_FIELD_H

#include "daemon/shard/shard.h"

enum field_kind {
	FIELD_TEXT, /* strings, joined by one newline; their UTF-8 bytes are the elements. Ragged */
	FIELD_RAGGED, /* an array of any length */
	FIELD_FIXED,  /* a number, or nested arrays of one shape */
};

struct field {
	char *name;
	enum field_kind kind;
	char *keys; /* nkeys strings, one behind the other, each with its zero byte */
	size_t nkeys;
	enum stk_dtype dtype;
	uint32_t ndims;                      /* of shape */
	uint64_t shape[STKD_FIELD_DIMS_MAX]; /* fixed: of a sample; ragged: of one element */
	uint64_t count;                      /* product of shape; 1 for none */
};

/**
 * field_parse() - a field from the word NAME=KEY:DTYPE[:SHAPE]
 * @kind: FIELD_RAGGED or FIELD_FIXED
 *
 * SHAPE is "4" or "4x2". A KEY may hold colons. Return: 0 or -EINVAL with what is allowed.
 */
int field_parse(const char *word, enum field_kind kind, struct field *ret, struct stk_err *err);

/* The token ids: keys of text are separated by commas; dtype must be an integer type. */
int field_ids(const char *name, enum field_kind kind, const char *keys, enum stk_dtype dtype,
	      struct field *ret, struct stk_err *err);
void field_deinit(struct field *field);

/* A type by its lower-case name; the error lists them. */
int field_dtype(const char *name, enum stk_dtype *ret, struct stk_err *err);

static inline bool field_is_ragged(const struct field *field)
{
	return field->kind != FIELD_FIXED;
}

#endif
