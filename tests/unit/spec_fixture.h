/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of specs share: a spec from the text of its keys. One thread. */
#ifndef SPEC_FIXTURE_H
#define SPEC_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/spec.h"

static inline int parse(const struct stk_spec *base, const char *yaml, struct stk_spec **ret,
			struct stk_err *err)
{
	struct stk_tree *tree = NULL;
	int r = stk_tree_from_yaml("s.yaml", yaml, strlen(yaml), &tree, err);

	*ret = NULL;
	if (!r)
		r = stk_spec_parse(base, tree, ret, err);
	stk_tree_free(tree);
	return r;
}

static inline struct stk_spec *over(const struct stk_spec *base, const char *yaml)
{
	struct stk_err err = {0};
	struct stk_spec *spec;

	if (parse(base, yaml, &spec, &err) < 0)
		fail_msg("refused: %s", err.text);
	return spec;
}

static inline struct stk_spec *good(const char *yaml)
{
	return over(NULL, yaml);
}

#endif
