/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the list and map values of the plan's keys, their JSON forms and their rules. No state, any
 * thread.
 */
#include "proto/spec_plan.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec_field.h"

#define COST_MAX   UINT64_C(1000000000000) /* of a and b, in millionths */
#define RATIO_MAX  UINT64_C(1000000000000) /* in millionths */
#define BUDGET_MAX (UINT64_C(1) << 53)

static json_t *append(json_t *list, json_t *item)
{
	if (list && json_array_append_new(list, item) == 0)
		return list;
	json_decref(list);
	return NULL;
}

/* A name of a field, from a scalar of a list or the key itself. */
static int parse_name(const struct stk_tree *node, const char *key, char **ret, struct stk_err *err)
{
	struct stk_tree item = *node;

	item.key = (char *)key;
	if (node->type != STK_TREE_SCALAR || !node->text[0] ||
	    strlen(node->text) > STK_SPEC_NAME_MAX)
		return stk_tree_refuse(&item, err, "the name of a field, 1 to %d bytes",
				       STK_SPEC_NAME_MAX);
	return stk_tree_string(node, ret, err);
}

int stk__spec_length_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;
	int r;

	free(spec->length);
	free(spec->length2);
	spec->length = spec->length2 = NULL;
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST)
		return parse_name(node, node->key, &spec->length, err);
	if (node->nchildren < 1 || node->nchildren > 2)
		return stk_tree_refuse(node, err, "the name of a field, or a list of two");
	r = parse_name(node->children[0], node->key, &spec->length, err);
	if (r == 0 && node->nchildren == 2)
		r = parse_name(node->children[1], node->key, &spec->length2, err);
	if (r == 0 && spec->length2 && !strcmp(spec->length, spec->length2))
		return stk_tree_refuse(node, err, "two fields that differ");
	return r;
}

json_t *stk__spec_length_to_json(const void *object)
{
	const struct stk_spec *spec = object;

	if (spec->length2)
		return json_pack("[s, s]", spec->length, spec->length2);
	return spec->length ? json_string(spec->length) : json_null();
}

/* Edges: [64, 128], [[400, [20, 40]], [800, [40, 80]]], or the name of a file. */

void stk__spec_edges_clear(struct stk_spec *spec)
{
	spec->nedges = 0;
	memset(spec->edges, 0, sizeof(spec->edges));
	memset(spec->edges2, 0, sizeof(spec->edges2));
	free(spec->edges_file);
	spec->edges_file = NULL;
}

static int parse_edge(const struct stk_tree *node, const char *key, uint64_t above, uint64_t *ret,
		      struct stk_err *err)
{
	struct stk_tree item = *node;

	item.key = (char *)key; /* a message about an item names the list */
	if (stk_tree_u64(&item, above + 1, STK__EDGE_MAX, ret, NULL) < 0)
		return stk_tree_refuse(&item, err,
				       "ascending whole numbers from 1 to %u, here above %" PRIu64,
				       STK__EDGE_MAX, above);
	return 0;
}

/* [400, [20, 40]]: the edges of the second length below one of the first. */
static int parse_pair(struct stk_spec *spec, const struct stk_tree *node, const char *key,
		      uint64_t above, uint64_t *ret, struct stk_err *err)
{
	const struct stk_tree *seconds;
	uint64_t last = 0;
	int r;

	if (node->nchildren != 2 || node->children[1]->type != STK_TREE_LIST ||
	    !node->children[1]->nchildren)
		return stk_tree_refuse(
			node, err, "an edge and the edges of the second length, [400, [20, 40]]");
	r = parse_edge(node->children[0], key, above, ret, err);
	seconds = node->children[1];
	for (size_t i = 0; r == 0 && i < seconds->nchildren; i++) {
		if (spec->nedges == STK_SPEC_EDGES_MAX)
			return stk_tree_refuse(node, err, "at most %d buckets in all",
					       STK_SPEC_EDGES_MAX);
		r = parse_edge(seconds->children[i], key, last, &last, err);
		if (r < 0)
			break;
		spec->edges[spec->nedges] = (uint32_t)*ret;
		spec->edges2[spec->nedges++] = (uint32_t)last;
	}
	return r;
}

static int parse_list(struct stk_spec *spec, const struct stk_tree *node, const char *key,
		      struct stk_err *err)
{
	uint64_t last = 0;
	int r = 0;

	if (node->type != STK_TREE_LIST || !node->nchildren || node->nchildren > STK_SPEC_EDGES_MAX)
		return stk_tree_refuse(node, err,
				       "a list of 1 to %d whole numbers such as [64, 128]",
				       STK_SPEC_EDGES_MAX);
	for (size_t i = 0; r == 0 && i < node->nchildren; i++) {
		const struct stk_tree *item = node->children[i];

		if (i && (item->type == STK_TREE_LIST) != (spec->edges2[0] > 0))
			return stk_tree_refuse(node, err,
					       "either numbers or pairs such as [400, [20, 40]]");
		if (item->type == STK_TREE_LIST) {
			r = parse_pair(spec, item, key, last, &last, err);
			continue;
		}
		r = parse_edge(item, key, last, &last, err);
		if (r == 0)
			spec->edges[spec->nedges++] = (uint32_t)last;
	}
	return r;
}

int stk__spec_edges_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;

	stk__spec_edges_clear(spec);
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type == STK_TREE_SCALAR && (node->quoted || strpbrk(node->text, "./"))) {
		if (!node->text[0] || strlen(node->text) >= PATH_MAX)
			return stk_tree_refuse(node, err, "a list of edges or the name of a file");
		return stk_tree_string(node, &spec->edges_file, err);
	}
	return parse_list(spec, node, node->key, err);
}

static json_t *pairs_to_json(const struct stk_spec *spec)
{
	json_t *list = json_array();

	for (size_t i = 0; list && i < spec->nedges;) {
		uint32_t edge = spec->edges[i];
		json_t *seconds = json_array();

		for (; seconds && i < spec->nedges && spec->edges[i] == edge; i++)
			seconds = append(seconds, json_integer(spec->edges2[i]));
		list = append(list, json_pack("[I, o]", (json_int_t)edge, seconds));
	}
	return list;
}

json_t *stk__spec_edges_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	json_t *list;

	if (spec->edges_file)
		return json_string(spec->edges_file);
	if (!spec->nedges)
		return json_null();
	if (spec->edges2[0])
		return pairs_to_json(spec);
	list = json_array();
	for (size_t i = 0; list && i < spec->nedges; i++)
		list = append(list, json_integer(spec->edges[i]));
	return list;
}

json_t *stk_spec_edges_json(const struct stk_spec *spec)
{
	return stk__spec_edges_to_json(spec);
}

int stk_spec_read_edges(struct stk_spec *spec, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	_cleanup_(stk_freep) char *path = NULL;
	const struct stk_tree *list;
	int r;

	if (!spec->edges_file)
		return 0;
	r = stk_tree_from_yaml_file(spec->edges_file, &tree, err);
	if (r < 0)
		return stk_err_prefix(err, "edges: ");
	list = tree->type == STK_TREE_MAP ? stk_tree_get(tree, "edges") : tree;
	if (!list)
		return stk_err_set(err, -EINVAL,
				   "edges: %s: neither a list nor a map with the key \"edges\"",
				   spec->edges_file);
	path = STK_STEAL(spec->edges_file);
	stk__spec_edges_clear(spec);
	r = parse_list(spec, list, "edges", err);
	return r < 0 ? r : stk__spec_plan_check(spec, list, err);
}

/* Rows: one number, or one for each bucket. */

static int parse_rows(const struct stk_tree *node, const char *key, uint32_t *ret,
		      struct stk_err *err)
{
	struct stk_tree item = *node;
	uint64_t rows;

	item.key = (char *)key;
	if (stk_tree_u64(&item, 1, STK__ROWS_MAX, &rows, NULL) < 0)
		return stk_tree_refuse(
			&item, err,
			"a whole number from 1 to %d (rows), or a list of one for each bucket",
			STK__ROWS_MAX);
	*ret = (uint32_t)rows;
	return 0;
}

int stk__spec_rows_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;

	spec->rows = 0;
	spec->nrows = 0;
	memset(spec->rows_list, 0, sizeof(spec->rows_list));
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST)
		return parse_rows(node, node->key, &spec->rows, err);
	if (!node->nchildren || node->nchildren > STK_SPEC_EDGES_MAX)
		return stk_tree_refuse(node, err, "a list of 1 to %d whole numbers",
				       STK_SPEC_EDGES_MAX);
	for (size_t i = 0; i < node->nchildren; i++) {
		int r = parse_rows(node->children[i], node->key, &spec->rows_list[i], err);

		if (r < 0)
			return r;
	}
	spec->nrows = node->nchildren;
	return 0;
}

json_t *stk__spec_rows_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	json_t *list;

	if (!spec->nrows)
		return spec->rows ? json_integer(spec->rows) : json_null();
	list = json_array();
	for (size_t i = 0; list && i < spec->nrows; i++)
		list = append(list, json_integer(spec->rows_list[i]));
	return list;
}

/* Cost: {a, b, budget}. */

static int parse_a(void *object, const struct stk_tree *node, struct stk_err *err)
{
	return stk_tree_ppm(node, 0, COST_MAX, &((struct stk_spec_cost *)object)->a, err);
}

static int parse_b(void *object, const struct stk_tree *node, struct stk_err *err)
{
	return stk_tree_ppm(node, 0, COST_MAX, &((struct stk_spec_cost *)object)->b, err);
}

static json_t *millionths(uint64_t ppm)
{
	return json_real((double)ppm / 1e6);
}

static json_t *a_to_json(const void *object)
{
	return millionths(((const struct stk_spec_cost *)object)->a);
}

static json_t *b_to_json(const void *object)
{
	return millionths(((const struct stk_spec_cost *)object)->b);
}

static const struct stk_key cost_keys[] = {
	{"a", STK_KEY_CUSTOM, offsetof(struct stk_spec_cost, a), "1.0", 0, 0, NULL, NULL, 0,
	 "cost of a token", parse_a, a_to_json},
	{"b", STK_KEY_CUSTOM, offsetof(struct stk_spec_cost, b), "0.0", 0, 0, NULL, NULL, 0,
	 "cost of a pair of tokens", parse_b, b_to_json},
	{"budget", STK_KEY_U64, offsetof(struct stk_spec_cost, budget), NULL, 1, BUDGET_MAX, NULL,
	 NULL, STK_KEY_REQUIRED, "of a batch", NULL, NULL},
};
static const struct stk_key_table cost_table = {
	.keys = cost_keys,
	.nkeys = STK_ARRAY_SIZE(cost_keys),
	.what = "cost key",
};

int stk__spec_cost_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;
	int r;

	spec->cost = (struct stk_spec_cost){0};
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_MAP)
		return stk_tree_refuse(node, err, "a map such as {a: 1, b: 0.001, budget: 40000}");
	r = stk_keys_defaults(&cost_table, &spec->cost, err);
	if (r == 0)
		r = stk_keys_walk(&cost_table, &spec->cost, node, NULL, err);
	if (r == 0 && !spec->cost.a && !spec->cost.b)
		return stk_tree_refuse(node, err, "a map in which a or b is above 0");
	return r;
}

json_t *stk__spec_cost_to_json(const void *object)
{
	const struct stk_spec *spec = object;

	return spec->cost.budget ? stk_keys_to_json(&cost_table, &spec->cost) : json_null();
}

/* Keep: {min_length, max_length, ratio: [feats, tokens, min, max]}. */

static int parse_ratio(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_keep *keep = object;
	int r;

	free(keep->over);
	free(keep->under);
	keep->over = keep->under = NULL;
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST || node->nchildren != 4)
		return stk_tree_refuse(
			node, err, "two field names and two numbers, [feats, tokens, min, max]");
	r = parse_name(node->children[0], node->key, &keep->over, err);
	if (r == 0)
		r = parse_name(node->children[1], node->key, &keep->under, err);
	if (r == 0)
		r = stk_tree_ppm(node->children[2], 0, RATIO_MAX, &keep->ratio_min, err);
	if (r == 0)
		r = stk_tree_ppm(node->children[3], keep->ratio_min, RATIO_MAX, &keep->ratio_max,
				 err);
	return r;
}

static json_t *ratio_to_json(const void *object)
{
	const struct stk_spec_keep *keep = object;

	if (!keep->over)
		return json_null();
	return json_pack("[s, s, o, o]", keep->over, keep->under, millionths(keep->ratio_min),
			 millionths(keep->ratio_max));
}

static const struct stk_key keep_keys[] = {
	{"min_length", STK_KEY_U32, offsetof(struct stk_spec_keep, min_length), "0", 0, UINT32_MAX,
	 NULL, "tokens", 0, "shorter samples are left out", NULL, NULL},
	{"max_length", STK_KEY_U32, offsetof(struct stk_spec_keep, max_length), "0", 0, UINT32_MAX,
	 NULL, "tokens", 0, "longer samples are left out, 0: none are", NULL, NULL},
	{"ratio", STK_KEY_CUSTOM, 0, NULL, 0, 0, NULL, NULL, 0, "bounds of a quotient of lengths",
	 parse_ratio, ratio_to_json},
};
static const struct stk_key_table keep_table = {
	.keys = keep_keys,
	.nkeys = STK_ARRAY_SIZE(keep_keys),
	.what = "keep key",
};

int stk__spec_keep_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;
	struct stk_spec_keep *keep = &spec->keep;
	int r = stk_keys_defaults(&keep_table, keep, err);

	if (r < 0 || node->type == STK_TREE_NULL)
		return r;
	if (node->type != STK_TREE_MAP)
		return stk_tree_refuse(node, err, "a map such as {min_length: 1, max_length: 512}");
	r = stk_keys_walk(&keep_table, keep, node, NULL, err);
	if (r == 0 && keep->max_length && keep->max_length < keep->min_length)
		return stk_tree_refuse(
			node, err, "a map with min_length %" PRIu32 " at most max_length %" PRIu32,
			keep->min_length, keep->max_length);
	return r;
}

json_t *stk__spec_keep_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	const struct stk_spec_keep *keep = &spec->keep;

	if (!keep->min_length && !keep->max_length && !keep->over)
		return json_null();
	return stk_keys_to_json(&keep_table, keep);
}

void stk__spec_plan_free(struct stk_spec *spec)
{
	free(spec->length);
	free(spec->length2);
	free(spec->edges_file);
	free(spec->keep.over);
	free(spec->keep.under);
}

/* The place of a key's value, or of the whole. */
static const char *place_of(const struct stk_tree *map, const char *key)
{
	const struct stk_tree *node = map->type == STK_TREE_MAP ? stk_tree_get(map, key) : map;

	return node && node->type != STK_TREE_NULL ? node->place : map->place;
}

static int check_lengths(const struct stk_spec *spec, const struct stk_tree *map,
			 struct stk_err *err)
{
	size_t last = spec->nedges ? spec->nedges - 1 : 0;

	if (!spec->edges2[0] && spec->length2 && spec->nedges)
		return stk_err_set(err, -EINVAL,
				   "%s: edges of one length, but length names two fields (%s, %s); "
				   "pairs such as [400, [20, 40]] are needed",
				   place_of(map, "edges"), spec->length, spec->length2);
	if (spec->edges2[0] && !spec->length2)
		return stk_err_set(err, -EINVAL,
				   "%s: edges of two lengths, but length names one field",
				   place_of(map, "edges"));
	for (size_t i = 0; i < last; i++)
		if (spec->edges2[i] > spec->edges2[last])
			return stk_err_set(err, -EINVAL,
					   "%s: bucket [%" PRIu32 ", %" PRIu32
					   "] has a larger second edge than the last one, [%" PRIu32
					   ", %" PRIu32
					   "], which must hold every sample of the others",
					   place_of(map, "edges"), spec->edges[i], spec->edges2[i],
					   spec->edges[last], spec->edges2[last]);
	return 0;
}

int stk__spec_plan_check(const struct stk_spec *spec, const struct stk_tree *map,
			 struct stk_err *err)
{
	uint32_t last = spec->nedges ? spec->edges[spec->nedges - 1] : 0;
	const char *first = spec->length ? spec->length : "the length field";
	const struct stk_spec_keep *keep = &spec->keep;
	int r = check_lengths(spec, map, err);

	if (r < 0)
		return r;
	if (last && spec->max_length && last != spec->max_length)
		return stk_err_set(
			err, -EINVAL,
			"%s: edges end at %" PRIu32 " but max_length is %" PRIu32
			", the last edge must be max_length",
			place_of(map, map->type == STK_TREE_MAP && stk_tree_get(map, "edges")
					      ? "edges"
					      : "max_length"),
			last, spec->max_length);
	if (keep->over &&
	    (!spec->length2 ||
	     !((!strcmp(keep->over, spec->length) && !strcmp(keep->under, spec->length2)) ||
	       (!strcmp(keep->over, spec->length2) && !strcmp(keep->under, spec->length)))))
		return stk_err_set(err, -EINVAL,
				   "%s: ratio of %s and %s, but the lengths are %s%s%s; a ratio is "
				   "of the two fields that length names",
				   place_of(map, "keep"), keep->over, keep->under, first,
				   spec->length2 ? " and " : "",
				   spec->length2 ? spec->length2 : "");
	return 0;
}
