/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs as YAML text and as JSON: what is taken comes back the same from its own JSON. The first byte
 * chooses the form.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/spec.h"
#include "tests/fuzz/fuzz.h"

static int tree_of(const uint8_t *data, size_t size, struct stk_tree **ret, struct stk_err *err)
{
	json_t *json;
	int r;

	if (data[0] != '{')
		return stk_tree_from_yaml("fuzz", (const char *)data, size, ret, err);
	json = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
	if (!json)
		return -1;
	r = stk_tree_from_json("spec", json, ret, err);
	json_decref(json);
	return r;
}

/* A spec that was taken says all that it is. */
static void check_round(const struct stk_spec *spec)
{
	_cleanup_(stk_spec_freep) struct stk_spec *again = NULL;
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	_cleanup_(stk_freep) char *a = NULL, *b = NULL;
	json_t *json = stk_spec_to_json(spec);
	struct stk_hash first, second;
	struct stk_err err;

	if (!json || stk_tree_from_json("spec", json, &tree, &err) < 0 ||
	    stk_spec_parse(NULL, tree, &again, &err) < 0)
		abort();
	json_decref(json);
	if (stk_spec_difference(spec, again, &a, &b) || stk_spec_digest(spec, &first) < 0 ||
	    stk_spec_digest(again, &second) < 0 || memcmp(&first, &second, sizeof(first)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	struct stk_err err = {0};
	json_t *json;

	if (!size || tree_of(data, size, &tree, &err) < 0)
		return 0;
	json = stk_tree_to_json(tree);
	json_decref(json);
	if (stk_spec_parse(NULL, tree, &spec, &err) == 0)
		check_round(spec);
	else if (!err.text[0] || !err.code)
		abort();
	return 0;
}
