/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The `fields` key of a spec: its list, its JSON form and the rules of one field. Used by
 * spec_parse.c only. No state, any thread.
 */
#ifndef STK_PROTO_SPEC_FIELD_H
#define STK_PROTO_SPEC_FIELD_H

#include "proto/spec.h"

#define STK_SPEC_NAME_MAX 127 /* bytes of a field's or stream's name */

/* Callbacks of the key `fields`; the object is a struct stk_spec. */
int stk__spec_fields_parse(void *spec, const struct stk_tree *node, struct stk_err *err);
json_t *stk__spec_fields_to_json(const void *spec);

void stk__spec_fields_free(struct stk_spec *spec);

#endif
