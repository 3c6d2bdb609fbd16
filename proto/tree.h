/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One tree for YAML files, JSON messages and KEY=VALUE words, so that one key table walks them
 * all. Every node knows its place for error messages. Owned by whoever parsed it; immutable after.
 */
#ifndef STK_PROTO_TREE_H
#define STK_PROTO_TREE_H

#include <jansson.h>

#include "proto/base.h"
#include "proto/err.h"

enum stk_tree_type { STK_TREE_NULL, STK_TREE_SCALAR, STK_TREE_LIST, STK_TREE_MAP };

struct stk_tree {
	enum stk_tree_type type;
	bool quoted;                /* scalar: a string by its syntax ("17" is not the number 17) */
	char *text;                 /* scalar: its text, UTF-8; numbers as written */
	char *key;                  /* when the parent is a map; else NULL */
	char *place;                /* "stokerd.yaml:12", "spec.fields[2].dtype", "word 'rows=x'" */
	struct stk_tree **children; /* list and map, in source order */
	size_t nchildren;
};

/* A tree that needs more is refused: what a stranger sends must not cost more than this. */
#define STK_TREE_DEPTH_MAX 32
#define STK_TREE_NODES_MAX (1u << 20)
#define STK_TREE_KEYS_MAX  256         /* of one map */
#define STK_TREE_BYTES_MAX (64u << 20) /* texts, keys and places together */
#define STK_TREE_FILE_MAX  (16u << 20) /* bytes of a YAML file */

/* Each returns 0 and a tree for stk_tree_free(), or a negative errno with place and reason. Duplicate
 * keys of one map, YAML anchors/aliases/tags and several documents are refused. @name goes into places. */
int stk_tree_from_yaml(const char *name, const char *text, size_t size, struct stk_tree **ret,
		       struct stk_err *err);
int stk_tree_from_yaml_file(const char *path, struct stk_tree **ret, struct stk_err *err);
/* Copies; @root names the place of the root ("spec"). */
int stk_tree_from_json(const char *root, const json_t *json, struct stk_tree **ret,
		       struct stk_err *err);
/* A map from words "key=value"; a value is parsed as a flow-style YAML value ("[1, 2]", "{a: b}", "17"). */
int stk_tree_from_words(char *const *words, size_t nwords, struct stk_tree **ret,
			struct stk_err *err);
struct stk_tree *stk_tree_free(struct stk_tree *tree);
STK_DEFINE_CLEANUP(struct stk_tree *, stk_tree_free)

/* Child of a map by key, or NULL. */
const struct stk_tree *stk_tree_get(const struct stk_tree *map, const char *key);

/**
 * stk_tree_refuse() - the error of a value that is not what it must be
 * @wanted: printf format of what is allowed: "a whole number from 1 to 8"
 *
 * Return: -EINVAL, with the text "PLACE: KEY must be WANTED, not VALUE".
 */
int stk_tree_refuse(const struct stk_tree *node, struct stk_err *err, const char *wanted, ...)
	_printf_(3, 4);

/* As JSON: unquoted scalars become null, booleans or numbers where they read as such. New reference; NULL: no memory. */
json_t *stk_tree_to_json(const struct stk_tree *tree);

#endif
