/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How tree.c and tree_yaml.c make nodes: each node and byte is counted, so that no input grows a
 * tree beyond its caps. On the parser's stack, one thread.
 */
#ifndef STK_PROTO_TREE_BUILD_H
#define STK_PROTO_TREE_BUILD_H

#include "proto/tree.h"

struct stk_tree_build {
	size_t nodes, bytes;
};

/* A node without children; @place is copied. */
int stk__tree_node(struct stk_tree_build *build, enum stk_tree_type type, const char *place,
		   struct stk_tree **ret, struct stk_err *err);
/* A scalar; its text is copied and must not hold a NUL. */
int stk__tree_scalar(struct stk_tree_build *build, const char *place, const char *text, size_t size,
		     struct stk_tree **ret, struct stk_err *err);
/* Refuses a NUL, an overlong key, one key too many and a duplicate. */
int stk__tree_check_key(const struct stk_tree *map, const char *place, const char *key, size_t size,
			struct stk_err *err);
/* Hands @child to @parent, under a checked @key when that is a map; the child is freed on error. */
int stk__tree_add(struct stk_tree_build *build, struct stk_tree *parent, const char *key,
		  struct stk_tree *child, struct stk_err *err);

#endif
