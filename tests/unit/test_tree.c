/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trees: YAML, JSON and words become the same nodes with their places, and whatever is not plain
 * or not small is refused with its place. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "proto/tree_build.h"

static struct stk_tree *yaml(const char *text)
{
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};

	if (stk_tree_from_yaml("a.yaml", text, strlen(text), &tree, &err) < 0)
		fail_msg("refused: %s", err.text);
	return tree;
}

static void assert_json(const struct stk_tree *tree, const char *want)
{
	json_t *json = stk_tree_to_json(tree);
	char *text = json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY);

	assert_string_equal(text, want);
	free(text);
	json_decref(json);
}

static void refuse_bytes(const char *text, size_t size, const char *want)
{
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};

	assert_true(stk_tree_from_yaml("a.yaml", text, size, &tree, &err) < 0);
	assert_null(tree);
	if (!strstr(err.text, want))
		fail_msg("\"%s\" lacks \"%s\"", err.text, want);
}

static void refuse(const char *text, const char *want)
{
	refuse_bytes(text, strlen(text), want);
}

static void yaml_values_keep_type_text_and_line(void **state)
{
	struct stk_tree *tree =
		yaml("a: 17\nb: \"17\"\n\nc: [x, {d: 1.5}]\ne:\n  f: true\n  g: ~\n");
	const struct stk_tree *c = stk_tree_get(tree, "c");

	(void)state;
	assert_int_equal(tree->type, STK_TREE_MAP);
	assert_int_equal(tree->nchildren, 4);
	assert_string_equal(stk_tree_get(tree, "a")->text, "17");
	assert_false(stk_tree_get(tree, "a")->quoted);
	assert_true(stk_tree_get(tree, "b")->quoted);
	assert_string_equal(stk_tree_get(tree, "b")->place, "a.yaml:2");
	assert_int_equal(c->type, STK_TREE_LIST);
	assert_null(c->children[0]->key);
	assert_string_equal(c->children[1]->place, "a.yaml:4");
	/* A map that starts on the next line is still where its key is. */
	assert_string_equal(stk_tree_get(tree, "e")->place, "a.yaml:5");
	assert_string_equal(stk_tree_get(stk_tree_get(tree, "e"), "g")->place, "a.yaml:7");
	assert_null(stk_tree_get(tree, "z"));
	assert_null(stk_tree_get(c, "d"));
	assert_json(
		tree,
		"{\"a\":17,\"b\":\"17\",\"c\":[\"x\",{\"d\":1.5}],\"e\":{\"f\":true,\"g\":null}}");
	stk_tree_free(tree);
}

static void empty_text_and_comments_are_null(void **state)
{
	static const char *const texts[] = {"",      "\n",      "# nothing\n",
					    "---\n", "--- ~\n", "\xef\xbb\xbf# bom\n"};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(texts); i++) {
		struct stk_tree *tree = yaml(texts[i]);

		assert_int_equal(tree->type, STK_TREE_NULL);
		assert_ptr_equal(strstr(tree->place, "a.yaml:"), tree->place);
		stk_tree_free(tree);
	}
}

static void yaml_that_is_not_plain_is_refused_with_its_line(void **state)
{
	(void)state;
	refuse("a: 1\nb: &x 2\n", "a.yaml:2: anchors");
	refuse("a: 1\nb: &x [2]\n", "a.yaml:2: anchors");
	refuse("a: 1\nb: &x {c: 2}\n", "a.yaml:2: anchors");
	refuse("a: *x\n", "a.yaml:1: aliases");
	refuse("*x : 1\n", "a.yaml:1: aliases");
	refuse("&x a: 1\n", "a.yaml:1: anchors");
	refuse("\n\na: !!str 1\n", "a.yaml:3: tags");
	refuse("a: ! 1\n", "a.yaml:1: tags");
	refuse("a: !x [1]\n", "a.yaml:1: tags");
	refuse("%TAG ! tag:x,2000:\n---\na: 1\n", "tags");
	refuse("a: 1\n---\nb: 1\n", "a.yaml:2: only one document");
	refuse("? [a]\n: 1\n", "a.yaml:1: a key must be a text");
}

static void duplicate_keys_are_refused_with_both_lines(void **state)
{
	(void)state;
	refuse("a: 1\nb: 2\na: 3\n", "a.yaml:3: duplicate key \"a\", first at a.yaml:1");
	refuse("x: {a: 1,\n  a: 2}\n", "a.yaml:2: duplicate key \"a\"");
}

static void broken_yaml_is_refused_with_its_line(void **state)
{
	(void)state;
	refuse("a: 1\n\tb: 2\n", "a.yaml:2: tabs cannot indent YAML");
	refuse("a:\n  \t- b\n", "a.yaml:2: tabs cannot indent YAML");
	refuse("a: [1, 2\n", "a.yaml:2: ");
	refuse("a: \"x\n", "a.yaml:2: ");
	refuse("a: 1\n b: 2\n", "a.yaml:2: ");
	refuse("a: b: c\n", "a.yaml:1: ");
	refuse("a: 1\nb: @x\n", "a.yaml:2: ");
}

static void bytes_that_are_not_text_are_refused(void **state)
{
	(void)state;
	refuse("a: 1\nb: \xff\xfe\n", "a.yaml:2: byte 8: ");
	refuse("a: \xc3\n", "a.yaml:1: byte 4: ");
	refuse("a: \xed\xa0\x80\n", "a.yaml:1: ");
	refuse("a: \x01\n", "a.yaml:1: ");
	refuse_bytes("a: 1\nb\0: 2\n", 11, "a.yaml:2: ");
	refuse("a: 1\nb: \"x\\0y\"\n", "a.yaml:2: a text must not contain a NUL");
	refuse("\"x\\0y\": 1\n", "a.yaml:1: a key must not contain a NUL");
}

static void depth_and_size_are_capped(void **state)
{
	char *text = malloc(4u << 20), *p = text;

	(void)state;
	memset(text, '[', 40);
	memset(text + 40, ']', 40);
	refuse_bytes(text, 80, "a.yaml:1: nested more than 32 deep");
	memset(text, '[', 100000);
	refuse_bytes(text, 100000, "nested more than 32 deep");

	for (int i = 0; i < 300; i++)
		p += sprintf(p, "k%d: 1\n", i);
	refuse_bytes(text, (size_t)(p - text), "a.yaml:257: more than 256 keys in one map");

	memset(text, 'k', 300);
	memcpy(text + 300, ": 1\n", 5);
	refuse(text, "key \"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk...\" has 300 bytes, at most 256");
	free(text);
}

static void nodes_and_bytes_of_a_tree_are_counted(void **state)
{
	struct stk_tree_build full = {.nodes = STK_TREE_NODES_MAX};
	struct stk_tree_build heavy = {.bytes = STK_TREE_BYTES_MAX - 8};
	struct stk_tree *node = NULL;
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(stk__tree_node(&full, STK_TREE_NULL, "p", &node, &err), -E2BIG);
	assert_string_equal(err.text, "p: too large, more than 1048576 values");
	assert_int_equal(stk__tree_scalar(&heavy, "p", "123456", 6, &node, &err), -E2BIG);
	assert_string_equal(err.text, "p: too large, more than 67108864 bytes of text");
	assert_null(node);
}

static void exactly_32_levels_are_allowed(void **state)
{
	char text[65] = "";

	(void)state;
	memset(text, '[', 32);
	memset(text + 32, ']', 32);
	stk_tree_free(yaml(text));
}

static void json_has_paths_as_places(void **state)
{
	json_t *json = json_loads(
		"{\"a\":[1,{\"b\":\"x\"}],\"c\":2.5,\"d\":true,\"e\":null,\"f\":\"1\"}", 0, NULL);
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};
	const struct stk_tree *b;

	(void)state;
	assert_int_equal(stk_tree_from_json("spec", json, &tree, &err), 0);
	b = stk_tree_get(stk_tree_get(tree, "a")->children[1], "b");
	assert_string_equal(b->place, "spec.a[1].b");
	assert_true(b->quoted);
	assert_false(stk_tree_get(tree, "c")->quoted);
	assert_string_equal(stk_tree_get(tree, "c")->text, "2.5");
	assert_int_equal(stk_tree_get(tree, "e")->type, STK_TREE_NULL);
	assert_json(tree, "{\"a\":[1,{\"b\":\"x\"}],\"c\":2.5,\"d\":true,\"e\":null,\"f\":\"1\"}");
	stk_tree_free(tree);
	json_decref(json);
}

static int from_json_text(const char *text, size_t flags, struct stk_err *err)
{
	json_t *json = json_loads(text, flags, NULL);
	struct stk_tree *tree = NULL;
	int r;

	assert_non_null(json);
	r = stk_tree_from_json("spec", json, &tree, err);
	if (r < 0)
		assert_null(tree);
	stk_tree_free(tree);
	json_decref(json);
	return r;
}

static void hostile_json_is_refused_with_its_path(void **state)
{
	struct stk_err err = {0};
	char deep[256] = "", *big = malloc(3u << 20), *p = big;

	(void)state;
	assert_int_equal(from_json_text("{\"a\":[\"x\\u0000y\"]}", JSON_ALLOW_NUL, &err), -EINVAL);
	assert_string_equal(err.text, "spec.a[0]: a text must not contain a NUL character");
	memset(deep, '[', 40);
	memset(deep + 40, ']', 40);
	assert_int_equal(from_json_text(deep, 0, &err), -E2BIG);
	assert_non_null(strstr(err.text, "nested more than 32 deep"));

	/* Long keys above a long list: each item repeats them in its place. */
	for (int i = 0; i < 20; i++)
		p += sprintf(p, "{\"%0250d\":", i);
	*p++ = '[';
	for (int i = 0; i < 50000; i++)
		p += sprintf(p, "1,");
	p += sprintf(p - 1, "]") - 1;
	for (int i = 0; i < 20; i++)
		*p++ = '}';
	*p = '\0';
	assert_int_equal(from_json_text(big, 0, &err), -E2BIG);
	assert_non_null(strstr(err.text, "spec.000"));
	free(big);
}

static int words(const char *const *list, size_t n, struct stk_tree **ret, struct stk_err *err)
{
	*ret = NULL;
	return stk_tree_from_words((char *const *)list, n, ret, err);
}

static void words_are_flow_values_with_the_word_as_place(void **state)
{
	const char *const list[] = {"rows=32",       "edges=[64, 128]",
				    "name=a b",      "data=/x/{a,b}/[0-9]*.st",
				    "length=",       "fields=[{name: x, pad: -1}]",
				    "s=\"17\"",      "eq=a=b",
				    "url=http://x#y"};
	struct stk_tree *tree;
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(words(list, STK_ARRAY_SIZE(list), &tree, &err), 0);
	assert_string_equal(stk_tree_get(tree, "rows")->place, "word 'rows=32'");
	assert_string_equal(stk_tree_get(tree, "edges")->children[1]->place,
			    "word 'edges=[64, 128]'");
	assert_json(
		tree,
		"{\"rows\":32,\"edges\":[64,128],\"name\":\"a b\",\"data\":\"/x/{a,b}/[0-9]*.st\","
		"\"length\":null,\"fields\":[{\"name\":\"x\",\"pad\":-1}],\"s\":\"17\",\"eq\":\"a="
		"b\","
		"\"url\":\"http://x#y\"}");
	stk_tree_free(tree);
}

static void words_that_are_not_one_value_are_refused(void **state)
{
	static const struct {
		const char *word, *want;
	} cases[] = {
		{"rows", "word 'rows': expected KEY=VALUE"},
		{"=1", "expected KEY=VALUE"},
		{"", "expected KEY=VALUE"},
		{"a=b: c", "word 'a=b: c': write a list as [a, b]"},
		{"a=- b", "write a list as [a, b]"},
		{"a=[1, 2", "word 'a=[1, 2': "},
		{"a=x #y", "starts a comment"},
		{"a=x\ny", "one line"},
		{"a=|", "block text"},
		{"a=*.safetensors", "a text that starts with * needs quotes"},
		{"a=&x", "anchors"},
		{"a=1\n---\n2", "one line"},
		{"a=\xff", "word 'a=\\xff': byte 0: "},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		const char *const list[] = {cases[i].word};
		struct stk_tree *tree;
		struct stk_err err = {0};

		assert_int_equal(words(list, 1, &tree, &err), -EINVAL);
		assert_null(tree);
		if (!strstr(err.text, cases[i].want))
			fail_msg("\"%s\" lacks \"%s\"", err.text, cases[i].want);
	}
}

static void a_word_given_twice_is_refused(void **state)
{
	const char *const list[] = {"rows=1", "rows=2"};
	struct stk_tree *tree;
	struct stk_err err = {0};

	(void)state;
	assert_int_equal(words(list, 2, &tree, &err), -EINVAL);
	assert_string_equal(err.text,
			    "word 'rows=2': duplicate key \"rows\", first at word 'rows=1'");
}

static void numbers_that_json_cannot_hold_stay_texts(void **state)
{
	struct stk_tree *tree =
		yaml("[9223372036854775807, 18446744073709551615, 1e999, 007, .5, -0.0, yes]");

	(void)state;
	assert_json(tree, "[9223372036854775807,\"18446744073709551615\",\"1e999\",\"007\",\".5\",-"
			  "0.0,\"yes\"]");
	stk_tree_free(tree);
}

static void files_are_read_and_their_errors_name_the_path(void **state)
{
	char path[] = "/tmp/stk-test-tree-XXXXXX";
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};
	int fd = mkstemp(path);
	char want[64];

	(void)state;
	assert_int_equal(write(fd, "a: 1\nb: [\n", 10), 10);
	close(fd);
	assert_int_equal(stk_tree_from_yaml_file(path, &tree, &err), -EINVAL);
	snprintf(want, sizeof(want), "%s:3: ", path);
	assert_non_null(strstr(err.text, want));
	assert_int_equal(truncate(path, 5), 0);
	assert_int_equal(stk_tree_from_yaml_file(path, &tree, &err), 0);
	assert_json(tree, "{\"a\":1}");
	tree = stk_tree_free(tree);
	assert_int_equal(truncate(path, STK_TREE_FILE_MAX + 1), 0);
	assert_int_equal(stk_tree_from_yaml_file(path, &tree, &err), -E2BIG);
	unlink(path);
	assert_int_equal(stk_tree_from_yaml_file(path, &tree, &err), -ENOENT);
	assert_non_null(strstr(err.text, path));
	assert_int_equal(stk_tree_from_yaml_file("/", &tree, &err), -EISDIR);
	assert_null(tree);
}

static void refusing_names_place_key_wanted_and_value(void **state)
{
	struct stk_tree *tree =
		yaml("a: 1\nb: \"1\"\nc: [1]\nd: {}\ne:\n"
		     "f: 0123456789012345678901234567890123456789012345678901234567890123456789\n");
	static const char *const values[] = {
		"not \"1\"",
		"not the text \"1\"",
		"not a list",
		"not a map",
		"not empty",
		"not \"012345678901234567890123456789012345678901234567890123456789...\""};
	struct stk_err err = {0};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(values); i++) {
		char want[160];

		assert_int_equal(stk_tree_refuse(tree->children[i], &err, "in %d", 7), -EINVAL);
		snprintf(want, sizeof(want), "a.yaml:%zu: %c must be in 7, %s", i + 1,
			 (char)('a' + i), values[i]);
		assert_string_equal(err.text, want);
	}
	stk_tree_free(tree);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(yaml_values_keep_type_text_and_line),
		cmocka_unit_test(empty_text_and_comments_are_null),
		cmocka_unit_test(yaml_that_is_not_plain_is_refused_with_its_line),
		cmocka_unit_test(duplicate_keys_are_refused_with_both_lines),
		cmocka_unit_test(broken_yaml_is_refused_with_its_line),
		cmocka_unit_test(bytes_that_are_not_text_are_refused),
		cmocka_unit_test(depth_and_size_are_capped),
		cmocka_unit_test(nodes_and_bytes_of_a_tree_are_counted),
		cmocka_unit_test(exactly_32_levels_are_allowed),
		cmocka_unit_test(json_has_paths_as_places),
		cmocka_unit_test(hostile_json_is_refused_with_its_path),
		cmocka_unit_test(words_are_flow_values_with_the_word_as_place),
		cmocka_unit_test(words_that_are_not_one_value_are_refused),
		cmocka_unit_test(a_word_given_twice_is_refused),
		cmocka_unit_test(numbers_that_json_cannot_hold_stay_texts),
		cmocka_unit_test(files_are_read_and_their_errors_name_the_path),
		cmocka_unit_test(refusing_names_place_key_wanted_and_value),
	};

	return cmocka_run_group_tests_name("tree", tests, NULL, NULL);
}
