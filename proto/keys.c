/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine of key tables: one setter and one JSON form for each type of key, and the walk that
 * finds unknown and missing keys. What is printed from a table is in keys_print.c. Any thread.
 */
#include "proto/keys_text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define NKEYS_MAX 64

static void *at(void *object, const struct stk_key *key)
{
	return (char *)object + key->offset;
}

static const void *const_at(const void *object, const struct stk_key *key)
{
	return (const char *)object + key->offset;
}

static int refuse_key(const struct stk_key *key, const struct stk_tree *node, struct stk_err *err)
{
	char allowed[STK_KEYS_TEXT];

	stk__keys_allowed(key, allowed);
	return stk_tree_refuse(node, err, "%s", allowed);
}

static int get_whole(const struct stk_key *key, const struct stk_tree *node, uint64_t *ret,
		     struct stk_err *err)
{
	if (stk_tree_u64(node, key->min, key->max, ret, NULL) < 0)
		return refuse_key(key, node, err);
	return 0;
}

static int set_u32(const struct stk_key *key, void *object, const struct stk_tree *node,
		   struct stk_err *err)
{
	uint64_t v;
	int r = get_whole(key, node, &v, err);

	if (!r)
		*(uint32_t *)at(object, key) =
			(uint32_t)v; /* max fits: see check_table() in the test */
	return r;
}

static int set_u64(const struct stk_key *key, void *object, const struct stk_tree *node,
		   struct stk_err *err)
{
	return get_whole(key, node, at(object, key), err);
}

static int set_size(const struct stk_key *key, void *object, const struct stk_tree *node,
		    struct stk_err *err)
{
	uint64_t v;

	if (node->type != STK_TREE_SCALAR || !stk__keys_size(node->text, &v) || v < key->min ||
	    v > key->max)
		return refuse_key(key, node, err);
	*(uint64_t *)at(object, key) = v;
	return 0;
}

static int set_duration(const struct stk_key *key, void *object, const struct stk_tree *node,
			struct stk_err *err)
{
	uint64_t v;

	if (node->type != STK_TREE_SCALAR || !stk__keys_duration(node->text, &v) || v < key->min ||
	    v > key->max)
		return refuse_key(key, node, err);
	*(uint32_t *)at(object, key) = (uint32_t)v;
	return 0;
}

static int set_bool(const struct stk_key *key, void *object, const struct stk_tree *node,
		    struct stk_err *err)
{
	return stk_tree_bool(node, at(object, key), err);
}

static int set_enum(const struct stk_key *key, void *object, const struct stk_tree *node,
		    struct stk_err *err)
{
	for (int i = 0; node->type == STK_TREE_SCALAR && key->names[i]; i++) {
		if (!strcmp(key->names[i], node->text)) {
			*(int *)at(object, key) = i;
			return 0;
		}
	}
	return refuse_key(key, node, err);
}

static int set_string(const struct stk_key *key, void *object, const struct stk_tree *node,
		      struct stk_err *err)
{
	char **to = at(object, key), *copy;
	int r;

	if (node->type != STK_TREE_SCALAR || strlen(node->text) < key->min ||
	    strlen(node->text) > key->max || !stk__keys_is_plain(node->text))
		return refuse_key(key, node, err);
	r = stk_tree_string(node, &copy, err);
	if (r < 0)
		return r;
	free(*to);
	*to = copy;
	return 0;
}

static int set_custom(const struct stk_key *key, void *object, const struct stk_tree *node,
		      struct stk_err *err)
{
	return key->parse(object, node, err);
}

static int (*const setters[])(const struct stk_key *, void *, const struct stk_tree *,
			      struct stk_err *) = {
	[STK_KEY_U32] = set_u32,           [STK_KEY_U64] = set_u64,       [STK_KEY_SIZE] = set_size,
	[STK_KEY_DURATION] = set_duration, [STK_KEY_BOOL] = set_bool,     [STK_KEY_ENUM] = set_enum,
	[STK_KEY_STRING] = set_string,     [STK_KEY_CUSTOM] = set_custom,
};

static int unset(const struct stk_key *key, void *object, struct stk_err *err)
{
	const struct stk_tree null = {.type = STK_TREE_NULL, .key = (char *)key->name};
	void *to = at(object, key);

	switch (key->type) {
	case STK_KEY_U32:
	case STK_KEY_DURATION:
		*(uint32_t *)to = 0;
		return 0;
	case STK_KEY_U64:
	case STK_KEY_SIZE:
		*(uint64_t *)to = 0;
		return 0;
	case STK_KEY_BOOL:
		*(bool *)to = false;
		return 0;
	case STK_KEY_ENUM:
		*(int *)to = -1;
		return 0;
	case STK_KEY_STRING:
		free(*(char **)to);
		*(char **)to = NULL;
		return 0;
	default:
		return key->parse(object, &null, err);
	}
}

static int set_default(const struct stk_key *key, void *object, struct stk_err *err)
{
	const struct stk_tree node = {
		.type = STK_TREE_SCALAR,
		.text = (char *)key->default_text,
		.key = (char *)key->name,
		.place = (char *)"default",
	};

	return key->default_text ? setters[key->type](key, object, &node, err)
				 : unset(key, object, err);
}

int stk_keys_defaults(const struct stk_key_table *table, void *object, struct stk_err *err)
{
	for (size_t i = 0; i < table->nkeys; i++) {
		int r = set_default(&table->keys[i], object, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static int unknown(const struct stk_key_table *table, const struct stk_tree *node,
		   struct stk_err *err)
{
	const char *names[NKEYS_MAX + 1] = {NULL}, *near;

	for (size_t i = 0; i < table->nhints; i++)
		if (!strcmp(table->hints[i].name, node->key))
			return stk_err_set(err, -EINVAL, "%s: unknown %s \"%s\"; %s", node->place,
					   table->what, node->key, table->hints[i].hint);
	for (size_t i = 0; i < table->nkeys; i++)
		names[i] = table->keys[i].name;
	near = stk_nearest(node->key, names);
	if (near)
		return stk_err_set(err, -EINVAL, "%s: unknown %s \"%.64s\"; did you mean \"%s\"?",
				   node->place, table->what, node->key, near);
	stk_err_set(err, -EINVAL, "%s: unknown %s \"%.64s\"; allowed are", node->place, table->what,
		    node->key);
	for (size_t i = 0; err && i < table->nkeys; i++) {
		size_t used = strlen(err->text);

		snprintf(err->text + used, sizeof(err->text) - used, "%s %s", i ? "," : "",
			 names[i]);
	}
	return -EINVAL;
}

static const struct stk_key *find(const struct stk_key_table *table, const char *name)
{
	for (size_t i = 0; i < table->nkeys; i++)
		if (!strcmp(table->keys[i].name, name))
			return &table->keys[i];
	return NULL;
}

static int check_required(const struct stk_key_table *table, const struct stk_tree *map,
			  uint64_t set, struct stk_err *err)
{
	for (size_t i = 0; i < table->nkeys; i++)
		if ((table->keys[i].flags & STK_KEY_REQUIRED) && !(set >> i & 1))
			return stk_err_set(err, -EINVAL, "%s: missing %s \"%s\"", map->place,
					   table->what, table->keys[i].name);
	return 0;
}

int stk_keys_walk(const struct stk_key_table *table, void *object, const struct stk_tree *map,
		  uint64_t *ret_set, struct stk_err *err)
{
	uint64_t set = 0;
	int r;

	if (map->type != STK_TREE_MAP && map->type != STK_TREE_NULL)
		return stk_err_set(err, -EINVAL, "%s: expected a map of %ss (KEY: VALUE), not a %s",
				   map->place, table->what,
				   map->type == STK_TREE_LIST ? "list" : "single value");
	for (size_t i = 0; i < map->nchildren; i++) {
		const struct stk_tree *node = map->children[i];
		const struct stk_key *key = find(table, node->key);

		if (!key)
			return unknown(table, node, err);
		if (node->type == STK_TREE_NULL) {
			r = set_default(key, object, err);
		} else {
			r = setters[key->type](key, object, node, err);
			set |= UINT64_C(1) << (key - table->keys);
		}
		if (r < 0)
			return r;
	}
	r = check_required(table, map, set, err);
	if (!r && ret_set)
		*ret_set = set;
	return r;
}

/* JSON's integers are signed here; a larger number travels as a string, see stk_tree_u64(). */
static json_t *whole_to_json(const struct stk_key *key, uint64_t v)
{
	if (!v && key->min)
		return json_null();
	if (v > INT64_MAX)
		return json_sprintf("%" PRIu64, v);
	return json_integer((json_int_t)v);
}

json_t *stk_key_to_json(const struct stk_key *key, const void *object)
{
	const void *from = const_at(object, key);

	switch (key->type) {
	case STK_KEY_U32:
		return whole_to_json(key, *(const uint32_t *)from);
	case STK_KEY_U64:
	case STK_KEY_SIZE:
		return whole_to_json(key, *(const uint64_t *)from);
	case STK_KEY_DURATION:
		return json_sprintf("%" PRIu32 "ms", *(const uint32_t *)from);
	case STK_KEY_BOOL:
		return json_boolean(*(const bool *)from);
	case STK_KEY_ENUM:
		if (*(const int *)from < 0)
			return json_null();
		return json_string(key->names[*(const int *)from]);
	case STK_KEY_STRING:
		return *(char *const *)from ? json_string(*(char *const *)from) : json_null();
	default:
		return key->to_json(object);
	}
}

/* As stk_key_to_json() gives it. */
static json_t *default_to_json(const struct stk_key *key)
{
	if (!key->default_text)
		return json_null();
	switch (key->type) {
	case STK_KEY_U32:
	case STK_KEY_U64:
		return json_integer((json_int_t)strtoull(key->default_text, NULL, 10));
	case STK_KEY_BOOL:
		return json_boolean(!strcmp(key->default_text, "true"));
	default:
		return json_string(key->default_text);
	}
}

bool stk_key_is_default(const struct stk_key *key, const void *object)
{
	json_t *value = stk_key_to_json(key, object), *plain = default_to_json(key);
	bool same = value && plain && json_equal(value, plain);

	json_decref(value);
	json_decref(plain);
	return same;
}

json_t *stk_keys_to_json(const struct stk_key_table *table, const void *object)
{
	json_t *json = json_object();

	for (size_t i = 0; i < table->nkeys; i++) {
		json_t *value = stk_key_to_json(&table->keys[i], object);

		if (json_object_set_new(json, table->keys[i].name, value) < 0) {
			json_decref(json);
			return NULL;
		}
	}
	return json;
}
