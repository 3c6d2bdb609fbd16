/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Key tables: each type of key is set, unset, printed and refused with place, key, value and what
 * is allowed. The tables of the product are checked for sense too. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "proto/spec.h"

struct object {
	uint32_t count, wait_ms;
	uint64_t big, size;
	bool flag;
	int kind, free_kind;
	char *text;
	uint64_t share;
};

static int parse_share(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct object *o = object;

	return stk_tree_ppm(node, 1, 1000000, &o->share, err);
}

static json_t *share_to_json(const void *object)
{
	return json_real((double)((const struct object *)object)->share / 1e6);
}

static const char *const kinds[] = {"red", "green", "blue", NULL};

#define AT(member) offsetof(struct object, member)
static const struct stk_key keys[] = {
	{"count", STK_KEY_U32, AT(count), "3", 1, 100, NULL, "rows", STK_KEY_REQUIRED, "how many",
	 NULL, NULL},
	{"wait", STK_KEY_DURATION, AT(wait_ms), "2s", 10, 3600000, NULL, NULL, 0, "how long", NULL,
	 NULL},
	{"big", STK_KEY_U64, AT(big), NULL, 0, UINT64_MAX, NULL, NULL, 0, "a number", NULL, NULL},
	{"size", STK_KEY_SIZE, AT(size), "64KiB", 1, UINT64_C(1) << 40, NULL, NULL, 0, "how large",
	 NULL, NULL},
	{"flag", STK_KEY_BOOL, AT(flag), "true", 0, 0, NULL, NULL, 0, "whether", NULL, NULL},
	{"kind", STK_KEY_ENUM, AT(kind), "green", 0, 0, kinds, NULL, 0, "which_kind*", NULL, NULL},
	{"free_kind", STK_KEY_ENUM, AT(free_kind), NULL, 0, 0, kinds, NULL, 0, "which", NULL, NULL},
	{"text", STK_KEY_STRING, AT(text), NULL, 1, 5, NULL, NULL, 0, "a word", NULL, NULL},
	{"share", STK_KEY_CUSTOM, AT(share), "0.5", 0, 0, NULL, NULL, 0, "a share", parse_share,
	 share_to_json},
};
static const struct stk_key_hint hints[] = {{"batch_size", "use count"},
					    {"shuffle", "use kind: red"}};
static const struct stk_key_table table = {keys, STK_ARRAY_SIZE(keys), hints, STK_ARRAY_SIZE(hints),
					   "test key"};

static int walk(struct object *object, const char *text, uint64_t *ret_set, struct stk_err *err)
{
	struct stk_tree *tree = NULL;
	int r = stk_tree_from_yaml("a.yaml", text, strlen(text), &tree, err);

	if (!r)
		r = stk_keys_walk(&table, object, tree, ret_set, err);
	stk_tree_free(tree);
	return r;
}

static void defaults(struct object *object)
{
	memset(object, 0, sizeof(*object));
	assert_int_equal(stk_keys_defaults(&table, object, NULL), 0);
}

static void defaults_are_those_of_the_table_or_unset(void **state)
{
	struct object o;

	(void)state;
	defaults(&o);
	assert_int_equal(o.count, 3);
	assert_int_equal(o.wait_ms, 2000);
	assert_int_equal(o.big, 0);
	assert_int_equal(o.size, 65536);
	assert_true(o.flag);
	assert_int_equal(o.kind, 1);
	assert_int_equal(o.free_kind, -1);
	assert_null(o.text);
	assert_int_equal(o.share, 500000);
}

static void walk_sets_what_is_there_and_says_so(void **state)
{
	struct object o;
	uint64_t set = 0;

	(void)state;
	defaults(&o);
	assert_int_equal(
		walk(&o,
		     "{count: 7, wait: 250ms, big: 18446744073709551615, size: 1GB, flag: false,"
		     " free_kind: blue, text: 17, share: 1e-6}",
		     &set, NULL),
		0);
	assert_int_equal(o.count, 7);
	assert_int_equal(o.wait_ms, 250);
	assert_true(o.big == UINT64_MAX);
	assert_int_equal(o.size, 1000000000);
	assert_false(o.flag);
	assert_int_equal(o.kind, 1);
	assert_int_equal(o.free_kind, 2);
	assert_string_equal(o.text, "17");
	assert_int_equal(o.share, 1);
	assert_int_equal(set, 0x1df);
	free(o.text);
}

static void null_gives_the_default_back_and_counts_as_absent(void **state)
{
	struct object o;
	uint64_t set = 0;

	(void)state;
	defaults(&o);
	assert_int_equal(walk(&o, "{count: 7, wait: 1h, big: 9, free_kind: red, text: a, share: 1}",
			      NULL, NULL),
			 0);
	assert_int_equal(walk(&o, "{count: 8, wait: , big: ~, free_kind: null, text: , share: }",
			      &set, NULL),
			 0);
	assert_int_equal(set, 1);
	assert_int_equal(o.count, 8);
	assert_int_equal(o.wait_ms, 2000);
	assert_int_equal(o.big, 0);
	assert_int_equal(o.free_kind, -1);
	assert_null(o.text);
	assert_int_equal(o.share, 500000);
}

static void sizes_and_durations_have_one_documented_rule(void **state)
{
	static const struct {
		const char *text;
		uint64_t size; /* 0: refused */
	} sizes[] = {
		{"4096", 4096},
		{"1B", 1},
		{"64KiB", 65536},
		{"64MiB", 64u << 20},
		{"16GiB", UINT64_C(16) << 30},
		{"1TiB", UINT64_C(1) << 40},
		{"2kB", 2000},
		{"2KB", 2000},
		{"3MB", 3000000},
		{"1GB", 1000000000},
		{"\"16GiB\"", UINT64_C(16) << 30},
		{"64M", 0},
		{"64mb", 0},
		{"1.5GiB", 0},
		{"-1", 0},
		{"64 MiB", 0},
		{"18446744073709551616", 0},
		{"16EiB", 0},
		{"2TiB", 0},
		{"KiB", 0},
		{"0", 0},
		{"0x10", 0},
		{"1e3", 0},
		{"[1]", 0},
		{"{a: 1}", 0},
		{"true", 0},
	};
	static const struct {
		const char *text;
		uint32_t ms;
	} durations[] = {
		{"10ms", 10},
		{"300s", 300000},
		{"2min", 120000},
		{"1h", 3600000},
		{"\"5s\"", 5000},
		{"300", 0},
		{"0", 0},
		{"9ms", 0},
		{"2h", 0},
		{"1.5s", 0},
		{"5 s", 0},
		{"5S", 0},
		{"5m", 0},
		{"1d", 0},
		{"99999999999999999999s", 0},
		{"18446744073709551s", 0},
	};
	struct object o;
	char text[64];

	(void)state;
	defaults(&o);
	for (size_t i = 0; i < STK_ARRAY_SIZE(sizes); i++) {
		snprintf(text, sizeof(text), "{count: 1, size: %s}", sizes[i].text);
		o.size = 0;
		assert_int_equal(walk(&o, text, NULL, NULL), sizes[i].size ? 0 : -EINVAL);
		assert_true(o.size == sizes[i].size);
	}
	for (size_t i = 0; i < STK_ARRAY_SIZE(durations); i++) {
		snprintf(text, sizeof(text), "{count: 1, wait: %s}", durations[i].text);
		o.wait_ms = 0;
		assert_int_equal(walk(&o, text, NULL, NULL), durations[i].ms ? 0 : -EINVAL);
		assert_int_equal(o.wait_ms, durations[i].ms);
	}
}

static void each_refusal_names_place_key_value_and_what_is_allowed(void **state)
{
	static const struct {
		const char *yaml, *want;
	} cases[] = {
		{"count: 0",
		 "a.yaml:1: count must be a whole number from 1 to 100 (rows), not \"0\""},
		{"\ncount: 101",
		 "a.yaml:2: count must be a whole number from 1 to 100 (rows), not \"101\""},
		{"count: -1", "not \"-1\""},
		{"count: 1.0", "not \"1.0\""},
		{"count: 0x10", "not \"0x10\""},
		{"count: 010", "not \"010\""},
		{"count: 1_0", "not \"1_0\""},
		{"count: nan", "not \"nan\""},
		{"count: \"7\"", "not the text \"7\""},
		{"count: [7]", "not a list"},
		{"count: {a: 7}", "not a map"},
		{"count: 4294967297", "not \"4294967297\""},
		{"big: 18446744073709551616",
		 "from 0 to 18446744073709551615, not \"18446744073709551616\""},
		{"big: 99999999999999999999999", "not \"99999999999999999999999\""},
		{"big: \"5\"", "not the text \"5\""},
		{"wait: 5", "wait must be a time from 10ms to 1h (in ms, s, min or h), not \"5\""},
		{"size: 0", "size must be a size from 1 to 1TiB (in B, KiB, MiB, GiB, TiB or kB, "
			    "MB, GB, TB), not \"0\""},
		{"flag: yes", "flag must be true or false, not \"yes\""},
		{"flag: \"true\"", "not the text \"true\""},
		{"kind: gren", "kind must be red, green or blue, not \"gren\""},
		{"kind: [red]", "kind must be red, green or blue, not a list"},
		{"text: \"\"", "text must be a text of 1 to 5 bytes without control characters, "
			       "not the text \"\""},
		{"text: abcdef", "not \"abcdef\""},
		{"text: \"a\\nb\"", "not the text \"a\\x0ab\""},
		{"text: [a]", "not a list"},
		{"share: 0", "share must be a number from 1e-06 to 1, not \"0\""},
		{"share: -0.5", "not \"-0.5\""},
		{"share: nan", "not \"nan\""},
		{"share: .inf", "not \".inf\""},
		{"share: 1.1", "not \"1.1\""},
		{"share: 1e300", "not \"1e300\""},
		{"share: 1e-9", "not \"1e-9\""},
		{"batch_size: 3", "a.yaml:1: unknown test key \"batch_size\"; use count"},
		{"shuffle: true", "unknown test key \"shuffle\"; use kind: red"},
		{"cuont: 3", "unknown test key \"cuont\"; did you mean \"count\"?"},
		{"zebra_crossing: 3",
		 "unknown test key \"zebra_crossing\"; allowed are count, wait, big,"},
		{"<<: {a: 1}", "unknown test key \"<<\""},
		{"{kind: red}", "a.yaml:1: missing test key \"count\""},
		{"count:", "missing test key \"count\""},
		{"", "missing test key \"count\""},
		{"[count]", "a.yaml:1: expected a map of test keys (KEY: VALUE), not a list"},
		{"count", "a.yaml:1: expected a map of test keys (KEY: VALUE), not a single value"},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_err err = {0};
		struct object o;

		defaults(&o);
		assert_int_equal(walk(&o, cases[i].yaml, NULL, &err), -EINVAL);
		assert_int_equal(err.code, -EINVAL);
		if (!strstr(err.text, cases[i].want))
			fail_msg("%s: \"%s\" lacks \"%s\"", cases[i].yaml, err.text, cases[i].want);
		assert_int_equal(walk(&o, cases[i].yaml, NULL, NULL), -EINVAL);
		free(o.text);
	}
}

static void scalars_are_strict(void **state)
{
	static const struct {
		const char *text;
		int r;
		int64_t value;
	} cases[] = {
		{"-100", 0, -100},
		{"0", 0, 0},
		{"-0", 0, 0},
		{"9223372036854775807", 0, INT64_MAX},
		{"-9223372036854775808", 0, INT64_MIN},
		{"9223372036854775808", -EINVAL, 0},
		{"-9223372036854775809", -EINVAL, 0},
		{"+1", -EINVAL, 0},
		{"--1", -EINVAL, 0},
		{"-", -EINVAL, 0},
		{"1.0", -EINVAL, 0},
		{"\"1\"", -EINVAL, 0},
		{"[1]", -EINVAL, 0},
		{"01", -EINVAL, 0},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_tree *tree = NULL;
		int64_t v = 0;

		assert_int_equal(
			stk_tree_from_yaml("a", cases[i].text, strlen(cases[i].text), &tree, NULL),
			0);
		assert_int_equal(stk_tree_i64(tree, &v, NULL), cases[i].r);
		assert_true(v == cases[i].value);
		stk_tree_free(tree);
	}
}

static void json_of_an_object_reads_back_as_it_was(void **state)
{
	struct object a, b;
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};
	json_t *json, *again;

	(void)state;
	defaults(&a);
	defaults(&b);
	assert_int_equal(walk(&a,
			      "{count: 9, big: 18446744073709551615, wait: 1h, size: 3MB, text: x,"
			      " share: 0.333333, flag: false}",
			      NULL, NULL),
			 0);
	json = stk_keys_to_json(&table, &a);
	assert_string_equal(json_string_value(json_object_get(json, "big")),
			    "18446744073709551615");
	assert_true(json_is_null(json_object_get(json, "free_kind")));
	assert_int_equal(stk_tree_from_json("o", json, &tree, &err), 0);
	assert_int_equal(stk_keys_walk(&table, &b, tree, NULL, &err), 0);
	again = stk_keys_to_json(&table, &b);
	assert_true(json_equal(json, again));
	assert_int_equal(a.share, b.share);
	assert_true(b.big == UINT64_MAX);
	json_decref(json);
	json_decref(again);
	stk_tree_free(tree);
	free(a.text);
	free(b.text);
}

static char *print(const char *format)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);

	stk_keys_print(&table, format, out);
	fclose(out);
	return text;
}

static void yaml_print_is_a_commented_config(void **state)
{
	char *text = print("yaml");

	(void)state;
	assert_non_null(
		strstr(text, "# how many\n# a whole number from 1 to 100 (rows)\n#count: 3\n\n"));
	assert_non_null(strstr(text, "# which\n# red, green or blue\n#free_kind:\n\n"));
	assert_non_null(strstr(text, "# a share\n#share: 0.5\n\n"));
	free(text);
}

static void scd_print_escapes_markup(void **state)
{
	char *text = print("scd");

	(void)state;
	assert_non_null(strstr(text, "*free\\_kind*\n\twhich. Allowed: red, green or blue.\n\n"));
	assert_non_null(strstr(
		text,
		"*kind*\n\twhich\\_kind\\*. Allowed: red, green or blue. Default: green.\n\n"));
	assert_non_null(strstr(text, "Default: 3. Required.\n"));
	free(text);
}

static void check_table(const struct stk_key_table *t)
{
	assert_true(t->nkeys <= 64);
	for (size_t i = 0; i < t->nkeys; i++) {
		const struct stk_key *key = &t->keys[i];

		assert_true(key->help && *key->help);
		assert_true(key->min <= key->max);
		if (key->type == STK_KEY_U32 || key->type == STK_KEY_DURATION)
			assert_true(key->max <= UINT32_MAX);
		if (key->type == STK_KEY_CUSTOM)
			assert_true(key->parse && key->to_json);
		if (key->type == STK_KEY_ENUM)
			assert_non_null(key->names);
		for (size_t j = 0; j < i; j++)
			assert_string_not_equal(t->keys[j].name, key->name);
		for (size_t j = 0; j < t->nhints; j++)
			assert_string_not_equal(t->hints[j].name, key->name);
	}
}

static void the_tables_of_streams_and_fields_make_sense(void **state)
{
	(void)state;
	check_table(&stk_spec_table);
	check_table(&stk_spec_field_table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_those_of_the_table_or_unset),
		cmocka_unit_test(walk_sets_what_is_there_and_says_so),
		cmocka_unit_test(null_gives_the_default_back_and_counts_as_absent),
		cmocka_unit_test(sizes_and_durations_have_one_documented_rule),
		cmocka_unit_test(each_refusal_names_place_key_value_and_what_is_allowed),
		cmocka_unit_test(scalars_are_strict),
		cmocka_unit_test(json_of_an_object_reads_back_as_it_was),
		cmocka_unit_test(yaml_print_is_a_commented_config),
		cmocka_unit_test(scd_print_escapes_markup),
		cmocka_unit_test(the_tables_of_streams_and_fields_make_sense),
	};

	return cmocka_run_group_tests_name("keys", tests, NULL, NULL);
}
