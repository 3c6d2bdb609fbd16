/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keys of the plan whose values are lists or maps: length, edges, rows, cost and keep. Used by
 * spec_parse.c only. No state, any thread.
 */
#ifndef STK_PROTO_SPEC_PLAN_H
#define STK_PROTO_SPEC_PLAN_H

#include "proto/spec.h"

#define STK__EDGE_MAX (1u << 24) /* of max_length too: rows * edge * 8 bytes stays far below 2^64 */
#define STK__ROWS_MAX 65536

/* Callbacks of keys; the object is a struct stk_spec. */
int stk__spec_length_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_length_to_json(const void *spec);
int stk__spec_edges_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_edges_to_json(const void *spec);
int stk__spec_rows_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_rows_to_json(const void *spec);
int stk__spec_cost_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_cost_to_json(const void *spec);
int stk__spec_keep_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_keep_to_json(const void *spec);

void stk__spec_plan_free(struct stk_spec *spec);

/* Forgets edges and their file. */
void stk__spec_edges_clear(struct stk_spec *spec);

/* Edges against max_length and the number of length fields; keep.ratio against the length fields. */
int stk__spec_plan_check(const struct stk_spec *spec, const struct stk_tree *map,
			 struct stk_err *err);

#endif
