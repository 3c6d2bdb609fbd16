/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scalars of a tree as numbers, booleans and texts; declared in keys.h. Strict: what reads
 * differently elsewhere (octal, hexadecimal, yes/no) is refused. No state, any thread.
 */
#include "proto/keys.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Decimal digits without leading zeros that fit. */
static bool whole(const char *text, uint64_t *ret)
{
	uint64_t v = 0;

	if (!*text || (*text == '0' && text[1]))
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9' || stk_mul_overflow(v, 10u, &v) ||
		    stk_add_overflow(v, (uint64_t)(*text - '0'), &v))
			return false;
	}
	*ret = v;
	return true;
}

int stk_tree_u64(const struct stk_tree *node, uint64_t min, uint64_t max, uint64_t *ret,
		 struct stk_err *err)
{
	uint64_t v;

	if (node->type != STK_TREE_SCALAR || !whole(node->text, &v) || v < min || v > max ||
	    (node->quoted && v <= INT64_MAX))
		return stk_tree_refuse(node, err, "a whole number from %" PRIu64 " to %" PRIu64,
				       min, max);
	*ret = v;
	return 0;
}

int stk_tree_i64(const struct stk_tree *node, int64_t *ret, struct stk_err *err)
{
	const char *text = node->type == STK_TREE_SCALAR && !node->quoted ? node->text : "";
	bool minus = *text == '-';
	uint64_t v;

	if (!whole(text + minus, &v) || v > (uint64_t)INT64_MAX + minus)
		return stk_tree_refuse(node, err, "a whole number from %" PRId64 " to %" PRId64,
				       INT64_MIN, INT64_MAX);
	*ret = minus ? (int64_t)(0 - v) : (int64_t)v;
	return 0;
}

bool stk_tree_number(const struct stk_tree *node, double *ret)
{
	json_t *json = NULL;
	bool ok;

	/* jansson's reader: JSON's grammar, and no surprise from the locale. */
	if (node->type == STK_TREE_SCALAR && !node->quoted)
		json = json_loads(node->text, JSON_DECODE_ANY, NULL);
	ok = json_is_number(json);
	if (ok)
		*ret = json_number_value(json);
	json_decref(json);
	return ok;
}

int stk_tree_ppm(const struct stk_tree *node, uint64_t min, uint64_t max, uint64_t *ret,
		 struct stk_err *err)
{
	double v;

	if (!stk_tree_number(node, &v) || v < 0 || v > 1e9 || llround(v * 1e6) < (int64_t)min ||
	    llround(v * 1e6) > (int64_t)max)
		return stk_tree_refuse(node, err, "a number from %.10g to %.10g", (double)min / 1e6,
				       (double)max / 1e6);
	*ret = (uint64_t)llround(v * 1e6);
	return 0;
}

int stk_tree_bool(const struct stk_tree *node, bool *ret, struct stk_err *err)
{
	const char *text = node->type == STK_TREE_SCALAR && !node->quoted ? node->text : "";

	if (strcmp(text, "true") && strcmp(text, "false"))
		return stk_tree_refuse(node, err, "true or false");
	*ret = *text == 't';
	return 0;
}

int stk_tree_string(const struct stk_tree *node, char **ret, struct stk_err *err)
{
	char *copy;

	if (node->type != STK_TREE_SCALAR)
		return stk_tree_refuse(node, err, "a text");
	copy = strdup(node->text);
	if (!copy)
		return stk_err_set(err, -ENOMEM, "%s: no memory", node->place);
	*ret = copy;
	return 0;
}
