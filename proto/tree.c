/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees: how nodes are made, freed, found and turned from and into JSON. YAML and words are in
 * tree_yaml.c. No state, any thread.
 */
#include "proto/tree_build.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_SIZE_MAX 256 /* places repeat keys: a long one would be paid for in each node below */

static int no_memory(const char *place, struct stk_err *err)
{
	return stk_err_set(err, -ENOMEM, "%s: no memory", place);
}

static int charge(struct stk_tree_build *build, const char *place, size_t bytes,
		  struct stk_err *err)
{
	if (bytes > STK_TREE_BYTES_MAX - build->bytes)
		return stk_err_set(err, -E2BIG, "%s: too large, more than %u bytes of text", place,
				   STK_TREE_BYTES_MAX);
	build->bytes += bytes;
	return 0;
}

int stk__tree_node(struct stk_tree_build *build, enum stk_tree_type type, const char *place,
		   struct stk_tree **ret, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *node = NULL;
	int r;

	if (build->nodes >= STK_TREE_NODES_MAX)
		return stk_err_set(err, -E2BIG, "%s: too large, more than %u values", place,
				   STK_TREE_NODES_MAX);
	build->nodes++;
	r = charge(build, place, strlen(place) + 1, err);
	if (r < 0)
		return r;
	node = calloc(1, sizeof(*node));
	if (!node)
		return no_memory(place, err);
	node->type = type;
	node->place = strdup(place);
	if (!node->place)
		return no_memory(place, err);
	*ret = STK_STEAL(node);
	return 0;
}

int stk__tree_scalar(struct stk_tree_build *build, const char *place, const char *text, size_t size,
		     struct stk_tree **ret, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *node = NULL;
	int r;

	if (memchr(text, '\0', size))
		return stk_err_set(err, -EINVAL, "%s: a text must not contain a NUL character",
				   place);
	r = stk__tree_node(build, STK_TREE_SCALAR, place, &node, err);
	if (r < 0)
		return r;
	r = charge(build, place, size + 1, err);
	if (r < 0)
		return r;
	node->text = strndup(text, size);
	if (!node->text)
		return no_memory(place, err);
	*ret = STK_STEAL(node);
	return 0;
}

int stk__tree_check_key(const struct stk_tree *map, const char *place, const char *key, size_t size,
			struct stk_err *err)
{
	if (memchr(key, '\0', size))
		return stk_err_set(err, -EINVAL, "%s: a key must not contain a NUL character",
				   place);
	if (size > KEY_SIZE_MAX)
		return stk_err_set(err, -EINVAL,
				   "%s: key \"%.32s...\" has %zu bytes, at most %d are allowed",
				   place, key, size, KEY_SIZE_MAX);
	if (map->nchildren >= STK_TREE_KEYS_MAX)
		return stk_err_set(err, -E2BIG, "%s: more than %d keys in one map", place,
				   STK_TREE_KEYS_MAX);
	if (stk_tree_get(map, key))
		return stk_err_set(err, -EINVAL, "%s: duplicate key \"%s\", first at %s", place,
				   key, stk_tree_get(map, key)->place);
	return 0;
}

/* Room for one more: arrays have the size of the power of two at or above their count. */
static int grow(struct stk_tree *parent)
{
	size_t n = parent->nchildren;
	struct stk_tree **children;

	if (n & (n - 1))
		return 0;
	children = reallocarray(parent->children, n ? 2 * n : 1, sizeof(struct stk_tree *));
	if (!children)
		return -ENOMEM;
	parent->children = children;
	return 0;
}

int stk__tree_add(struct stk_tree_build *build, struct stk_tree *parent, const char *key,
		  struct stk_tree *child, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *owned = child;
	int r;

	if (grow(parent) < 0)
		return no_memory(child->place, err);
	if (key) {
		r = charge(build, child->place, strlen(key) + 1, err);
		if (r < 0)
			return r;
		child->key = strdup(key);
		if (!child->key)
			return no_memory(child->place, err);
	}
	parent->children[parent->nchildren++] = STK_STEAL(owned);
	return 0;
}

struct stk_tree *stk_tree_free(struct stk_tree *tree)
{
	if (!tree)
		return NULL;
	for (size_t i = 0; i < tree->nchildren; i++)
		stk_tree_free(tree->children[i]); /* at most STK_TREE_DEPTH_MAX deep */
	free(tree->children);
	free(tree->text);
	free(tree->key);
	free(tree->place);
	free(tree);
	return NULL;
}

const struct stk_tree *stk_tree_get(const struct stk_tree *map, const char *key)
{
	if (map->type != STK_TREE_MAP)
		return NULL;
	for (size_t i = 0; i < map->nchildren; i++)
		if (!strcmp(map->children[i]->key, key))
			return map->children[i];
	return NULL;
}

int stk_tree_refuse(const struct stk_tree *node, struct stk_err *err, const char *wanted, ...)
{
	const char *key = node->key ? node->key : "each item";
	char text[512], value[96];
	va_list ap;

	va_start(ap, wanted);
	if (vsnprintf(text, sizeof(text), wanted, ap) < 0)
		text[0] = '\0';
	va_end(ap);
	if (node->type == STK_TREE_NULL)
		snprintf(value, sizeof(value), "empty");
	else if (node->type == STK_TREE_LIST)
		snprintf(value, sizeof(value), "a list");
	else if (node->type == STK_TREE_MAP)
		snprintf(value, sizeof(value), "a map");
	else
		snprintf(value, sizeof(value), "%s\"%.60s%s\"", node->quoted ? "the text " : "",
			 node->text, strlen(node->text) > 60 ? "..." : "");
	return stk_err_set(err, -EINVAL, "%s: %s must be %s, not %s", node->place, key, text,
			   value);
}

static int from_json(struct stk_tree_build *build, const char *place, const json_t *json,
		     unsigned depth, struct stk_tree **ret, struct stk_err *err);

static int scalar_from_json(struct stk_tree_build *build, const char *place, const json_t *json,
			    struct stk_tree **ret, struct stk_err *err)
{
	_cleanup_(stk_freep) char *number = NULL;
	int r;

	switch (json_typeof(json)) {
	case JSON_STRING:
		r = stk__tree_scalar(build, place, json_string_value(json),
				     json_string_length(json), ret, err);
		if (!r)
			(*ret)->quoted = true;
		return r;
	case JSON_TRUE:
		return stk__tree_scalar(build, place, "true", 4, ret, err);
	case JSON_FALSE:
		return stk__tree_scalar(build, place, "false", 5, ret, err);
	case JSON_NULL:
		return stk__tree_node(build, STK_TREE_NULL, place, ret, err);
	default:
		number = json_dumps(json, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
		if (!number)
			return no_memory(place, err);
		return stk__tree_scalar(build, place, number, strlen(number), ret, err);
	}
}

static int list_from_json(struct stk_tree_build *build, const char *place, const json_t *json,
			  unsigned depth, struct stk_tree *list, struct stk_err *err)
{
	for (size_t i = 0; i < json_array_size(json); i++) {
		_cleanup_(stk_freep) char *at = NULL;
		struct stk_tree *child;
		int r;

		if (asprintf(&at, "%s[%zu]", place, i) < 0) {
			at = NULL;
			return no_memory(place, err);
		}
		r = from_json(build, at, json_array_get(json, i), depth, &child, err);
		if (r < 0)
			return r;
		r = stk__tree_add(build, list, NULL, child, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int map_from_json(struct stk_tree_build *build, const char *place, const json_t *json,
			 unsigned depth, struct stk_tree *map, struct stk_err *err)
{
	/* Iterating changes nothing, but jansson's iterators want a pointer that is not const. */
	json_t *object = (json_t *)json;

	for (void *i = json_object_iter(object); i; i = json_object_iter_next(object, i)) {
		const char *key = json_object_iter_key(i);
		_cleanup_(stk_freep) char *at = NULL;
		struct stk_tree *child;
		int r;

		r = stk__tree_check_key(map, place, key, strlen(key), err);
		if (r < 0)
			return r;
		if (asprintf(&at, "%s.%s", place, key) < 0) {
			at = NULL;
			return no_memory(place, err);
		}
		r = from_json(build, at, json_object_iter_value(i), depth, &child, err);
		if (r < 0)
			return r;
		r = stk__tree_add(build, map, key, child, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int from_json(struct stk_tree_build *build, const char *place, const json_t *json,
		     unsigned depth, struct stk_tree **ret, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *node = NULL;
	bool list = json_is_array(json);
	int r;

	if (!list && !json_is_object(json))
		return scalar_from_json(build, place, json, ret, err);
	if (depth >= STK_TREE_DEPTH_MAX)
		return stk_err_set(err, -E2BIG, "%s: nested more than %d deep", place,
				   STK_TREE_DEPTH_MAX);
	r = stk__tree_node(build, list ? STK_TREE_LIST : STK_TREE_MAP, place, &node, err);
	if (r < 0)
		return r;
	r = (list ? list_from_json : map_from_json)(build, place, json, depth + 1, node, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(node);
	return 0;
}

int stk_tree_from_json(const char *root, const json_t *json, struct stk_tree **ret,
		       struct stk_err *err)
{
	struct stk_tree_build build = {0};

	return from_json(&build, root, json, 0, ret, err);
}

/* What reads as a JSON number or boolean is one; a number that JSON cannot hold stays a text. */
static json_t *scalar_to_json(const struct stk_tree *tree)
{
	json_t *json = NULL;

	if (!tree->quoted)
		json = json_loads(tree->text, JSON_DECODE_ANY, NULL);
	return json ? json : json_string(tree->text);
}

static json_t *list_to_json(const struct stk_tree *tree)
{
	json_t *list = json_array();

	for (size_t i = 0; i < tree->nchildren; i++) {
		if (json_array_append_new(list, stk_tree_to_json(tree->children[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *map_to_json(const struct stk_tree *tree)
{
	json_t *map = json_object();

	for (size_t i = 0; i < tree->nchildren; i++) {
		const struct stk_tree *child = tree->children[i];

		if (json_object_set_new(map, child->key, stk_tree_to_json(child)) < 0) {
			json_decref(map);
			return NULL;
		}
	}
	return map;
}

json_t *stk_tree_to_json(const struct stk_tree *tree)
{
	switch (tree->type) {
	case STK_TREE_SCALAR:
		return scalar_to_json(tree);
	case STK_TREE_LIST:
		return list_to_json(tree);
	case STK_TREE_MAP:
		return map_to_json(tree);
	default:
		return json_null();
	}
}
