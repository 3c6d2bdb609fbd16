/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is done with a whole spec: JSON, digest, comparison. All three follow the key table of
 * spec_parse.c. No state, any thread.
 */
#include "proto/spec.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* One text for one value, on every machine; part of the digest. */
#define CANONICAL (JSON_COMPACT | JSON_SORT_KEYS | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17))

json_t *stk_spec_to_json(const struct stk_spec *spec)
{
	return stk_keys_to_json(&stk_spec_table, spec);
}

/* Of several datasets the shares count, never the paths. */
static json_t *weights_json(const struct stk_spec *spec)
{
	json_t *list;

	if (spec->ndata < 2)
		return json_null();
	list = json_array();
	for (size_t i = 0; i < spec->ndata; i++) {
		json_t *weight = json_integer((json_int_t)spec->data[i].weight);

		if (json_array_append_new(list, weight) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

/* What of a key changes plan or bytes: null for nothing. */
static json_t *digest_json(const struct stk_key *key, const struct stk_spec *spec)
{
	if (key->offset == offsetof(struct stk_spec, data))
		return weights_json(spec);
	if (!(key->flags & STK_KEY_DIGEST) ||
	    (key->flags & STK_KEY_LATER && stk_key_is_default(key, spec)))
		return json_null();
	/* A global batch is cut into micro-batches as the world asks for; its steps stay. */
	if (key->offset == offsetof(struct stk_spec, accumulate) && stk_spec_is_global(spec))
		return json_null();
	return stk_key_to_json(key, spec);
}

/* The digest keys as canonical text for free(); NULL: no memory. */
static char *canonical(const struct stk_spec *spec)
{
	json_t *json = json_object();
	char *text = NULL;

	for (size_t i = 0; i < stk_spec_table.nkeys; i++) {
		const struct stk_key *key = &stk_spec_table.keys[i];
		json_t *value = digest_json(key, spec);

		if (json_is_null(value) &&
		    (!(key->flags & STK_KEY_DIGEST) || key->flags & STK_KEY_LATER))
			continue;
		if (json_object_set_new(json, key->name, value) < 0)
			goto out;
	}
	text = json_dumps(json, CANONICAL);
out:
	json_decref(json);
	return text;
}

int stk_spec_digest(const struct stk_spec *spec, struct stk_hash *ret)
{
	_cleanup_(stk_freep) char *text = canonical(spec);
	XXH128_canonical_t bytes;

	if (!text)
		return -ENOMEM;
	XXH128_canonicalFromHash(&bytes, XXH3_128bits(text, strlen(text)));
	static_assert(sizeof(bytes.digest) == sizeof(ret->bytes), "both are 128 bits");
	memcpy(ret->bytes, bytes.digest, sizeof(ret->bytes));
	return 0;
}

static char *key_text(const struct stk_key *key, const struct stk_spec *spec)
{
	json_t *json = digest_json(key, spec);
	char *text = json ? json_dumps(json, CANONICAL) : NULL;

	json_decref(json);
	return text;
}

const char *stk_spec_difference(const struct stk_spec *a, const struct stk_spec *b, char **ret_a,
				char **ret_b)
{
	for (size_t i = 0; i < stk_spec_table.nkeys; i++) {
		const struct stk_key *key = &stk_spec_table.keys[i];
		_cleanup_(stk_freep) char *text_a = NULL;
		_cleanup_(stk_freep) char *text_b = NULL;

		text_a = key_text(key, a);
		text_b = key_text(key, b);
		/* Without memory for the values the key is still reported: never "no difference". */
		if (text_a && text_b && !strcmp(text_a, text_b))
			continue;
		*ret_a = STK_STEAL(text_a);
		*ret_b = STK_STEAL(text_b);
		return key->name;
	}
	return NULL;
}

bool stk_spec_print_key(const struct stk_spec *spec, size_t i, struct stk_spec_print *ret)
{
	const struct stk_key *key = &stk_spec_table.keys[i];
	_cleanup_(stk_freep) char *text = key_text(key, spec);

	*ret = (struct stk_spec_print){.name = (uint16_t)XXH32(key->name, strlen(key->name), 0)};
	if (!text || !strcmp(text, "null"))
		return false;
	ret->value = (uint16_t)XXH32(text, strlen(text), 0);
	return true;
}

size_t stk_spec_prints(const struct stk_spec *spec, struct stk_spec_print ret[64])
{
	size_t n = 0;

	for (size_t i = 0; i < stk_spec_table.nkeys && n < 64; i++)
		n += stk_spec_print_key(spec, i, &ret[n]);
	return n;
}

/* Gives the text out if the value is its hash; a second one with that hash takes it back. */
static void add_choice(const char *text, int32_t value, unsigned *n, char **found)
{
	if ((uint16_t)XXH32(text, strlen(text), 0) != value)
		return;
	free(*found);
	*found = (*n)++ ? NULL : strdup(text);
}

char *stk_spec_print_value(size_t i, int32_t value)
{
	const struct stk_key *key = &stk_spec_table.keys[i];
	char text[64], *found = NULL;
	unsigned n = 0;

	if (value < 0)
		return strdup(key->default_text ? key->default_text : "unset");
	if (key->type == STK_KEY_BOOL) {
		add_choice("true", value, &n, &found);
		add_choice("false", value, &n, &found);
	}
	for (size_t c = 0; key->type == STK_KEY_ENUM && key->names[c]; c++) {
		snprintf(text, sizeof(text), "\"%s\"", key->names[c]);
		add_choice(text, value, &n, &found);
	}
	return found;
}

char *stk_spec_value(const struct stk_spec *spec, const char *key)
{
	for (size_t i = 0; i < stk_spec_table.nkeys; i++)
		if (!strcmp(stk_spec_table.keys[i].name, key))
			return key_text(&stk_spec_table.keys[i], spec);
	return NULL;
}
