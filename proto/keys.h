/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of key tables: a table of keys fills a plain struct from a tree, and prints the man
 * page, the commented config and the errors. Used for stream specs (spec.c), fields and the
 * daemon's configuration (daemon/conf.c). No state, any thread.
 */
#ifndef STK_PROTO_KEYS_H
#define STK_PROTO_KEYS_H

#include <stdio.h>

#include "proto/tree.h"

enum stk_key_type {
	STK_KEY_U32,      /* uint32_t at offset */
	STK_KEY_U64,      /* uint64_t */
	STK_KEY_SIZE,     /* uint64_t bytes; "16GiB", "512MiB", "4096" */
	STK_KEY_DURATION, /* uint32_t milliseconds; "300s", "2min", "250ms" */
	STK_KEY_BOOL,     /* bool */
	STK_KEY_ENUM,     /* int: index into names; -1: unset */
	STK_KEY_STRING,   /* char *: owned by the struct */
	STK_KEY_CUSTOM,   /* parse() does it: lists, fields, edges, dtype, pad */
};

enum {
	STK_KEY_DIGEST = 1,   /* changes plan or bytes: part of the spec digest */
	STK_KEY_REQUIRED = 2, /* must be present */
	/* Came with a later release: in the digest unless at its default, so that saved states live. */
	STK_KEY_LATER = 4,
};

struct stk_key {
	const char *name;
	enum stk_key_type type;
	size_t offset;            /* in the struct that the table fills */
	const char *default_text; /* as a user would write it; NULL: none */
	uint64_t min, max;        /* U32, U64, SIZE, DURATION (in ms), STRING (in bytes) */
	const char *const *names; /* ENUM: NULL-terminated */
	const char *unit;         /* "rows", "tokens", "bytes", ...; NULL: none */
	unsigned flags;
	const char *help; /* one line for the man page */
	/* CUSTOM: fills the struct from the node, freeing what was there; a node of type NULL unsets. */
	int (*parse)(void *object, const struct stk_tree *node, struct stk_err *err);
	/* CUSTOM: the value as JSON that parse() reads back, null when unset. NULL: no memory. */
	json_t *(*to_json)(const void *object);
};

/* A name from another loader, and what to write instead. */
struct stk_key_hint {
	const char *name;
	const char *hint; /* the end of the message: "use rows", "not needed, ..." */
};

struct stk_key_table {
	const struct stk_key *keys;
	size_t nkeys;
	const struct stk_key_hint *hints; /* may be NULL */
	size_t nhints;
	const char *what; /* "stream key", "field key", "configuration key": for errors */
};

/* Sets every key to its default; a key without default_text is unset: 0, NULL, -1 for an enum. The
 * object was zeroed or filled by these functions before. */
int stk_keys_defaults(const struct stk_key_table *table, void *object, struct stk_err *err);

/**
 * stk_keys_walk() - fill an object from a map
 * @map:    keys found here overwrite, a null value gives the default back; keys not mentioned stay
 *          as they are. A null instead of a map is an empty map.
 * @ret_set: may be NULL; bit i is set when key i had a value (tables have at most 64 keys)
 *
 * Unknown keys, wrong types and values out of range are errors that name place, key, value and
 * what is allowed; an unknown key names the nearest known one or its hint.
 */
int stk_keys_walk(const struct stk_key_table *table, void *object, const struct stk_tree *map,
		  uint64_t *ret_set, struct stk_err *err);

/* Prints "name  type, default, range, help" entries: "scd" for man pages, "yaml" for the commented config:
 * "# help", "# what is allowed", "#name: default" and an empty line. */
void stk_keys_print(const struct stk_key_table *table, const char *format, FILE *out);

/* The value of one key, as stk_keys_walk() reads it back: null where it is unset. New reference; NULL: no memory. */
json_t *stk_key_to_json(const struct stk_key *key, const void *object);
/* Has the key the value that it would have if nobody gave it? For types with a default_text, and
 * those that are unset without one. */
bool stk_key_is_default(const struct stk_key *key, const void *object);
/* All keys in table order. New reference; NULL: no memory. */
json_t *stk_keys_to_json(const struct stk_key_table *table, const void *object);

/* Scalars, for CUSTOM parsers too. Each error names node->place. A whole number above INT64_MAX, which
 * JSON messages cannot hold, may be a string. */
int stk_tree_u64(const struct stk_tree *node, uint64_t min, uint64_t max, uint64_t *ret,
		 struct stk_err *err);
/* A share or weight in parts per million, rounded: "0.25" is 250000. Range and result in millionths. */
int stk_tree_ppm(const struct stk_tree *node, uint64_t min, uint64_t max, uint64_t *ret,
		 struct stk_err *err);
/* A JSON number ("-1.5e3"); false when the node is anything else. */
bool stk_tree_number(const struct stk_tree *node, double *ret);
int stk_tree_i64(const struct stk_tree *node, int64_t *ret, struct stk_err *err);
int stk_tree_bool(const struct stk_tree *node, bool *ret, struct stk_err *err);
int stk_tree_string(const struct stk_tree *node, char **ret, struct stk_err *err); /* strdup */

#endif
