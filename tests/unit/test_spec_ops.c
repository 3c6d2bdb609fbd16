/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/spec.h"

static int parse(const char *field, struct stk_spec **ret, struct stk_err *err)
{
	struct stk_tree *tree = NULL;
	char text[512];
	int r;

	snprintf(text, sizeof(text), "fields: [{name: x, %s}]", field);
	r = stk_tree_from_yaml("spec", text, strlen(text), &tree, err);
	if (r == 0)
		r = stk_spec_parse(NULL, tree, ret, err);
	stk_tree_free(tree);
	return r;
}

static void every_op_survives_a_round_trip_as_json(void **state)
{
	static const char *const fields[] = {
		"scale: 0.0039215686274509803, bias: [-0.5, 0.25]",
		"scale: [1, 2.5, -3e-7], channel: first, clamp: [-1, 1.5]",
		"dtype: u16, modulo: 1000, where: loss_mask, range: error",
		"range: saturate, crop: [224, 192], crop_at: random, transpose: [2, 0, 1]",
		"flip: random",
		"make: random_key, dtype: u64",
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(fields); i++) {
		struct stk_spec *a = NULL, *b = NULL;
		struct stk_tree *tree = NULL;
		struct stk_err err;
		json_t *json;
		char *text_a, *text_b;

		if (parse(fields[i], &a, &err) < 0)
			fail_msg("%s", err.text);
		json = stk_spec_to_json(a);
		text_a = json_dumps(json, JSON_COMPACT);
		assert_int_equal(stk_tree_from_json("spec", json, &tree, &err), 0);
		json_decref(json);
		if (stk_spec_parse(NULL, tree, &b, &err) < 0)
			fail_msg("%s", err.text);
		json = stk_spec_to_json(b);
		text_b = json_dumps(json, JSON_COMPACT);
		assert_string_equal(text_a, text_b);
		assert_memory_equal(a->fields[0].ops.scale, b->fields[0].ops.scale,
				    sizeof(a->fields[0].ops.scale));
		free(text_a);
		free(text_b);
		json_decref(json);
		stk_tree_free(tree);
		stk_spec_free(a);
		stk_spec_free(b);
	}
}

static void refused(const char *field, const char *text)
{
	struct stk_spec *spec = NULL;
	struct stk_err err = {.text = ""};

	assert_int_equal(parse(field, &spec, &err), -EINVAL);
	if (!strstr(err.text, text))
		fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void a_bad_op_is_refused_with_place_and_range(void **state)
{
	(void)state;
	refused("scale: .nan", "scale must be a finite number");
	refused("scale: []", "a number or a list of 1 to 128");
	refused("bias: [1, x]", "a finite number");
	refused("clamp: [1, 0]", "two numbers such as [0, 1], the smaller one first");
	refused("clamp: 3", "two numbers");
	refused("crop: [0, 5]", "a height and a width such as [224, 224]");
	refused("crop: [5]", "a height and a width");
	refused("transpose: [0, 0]", "each axis of the sample once");
	refused("transpose: [0, 2]", "each axis of the sample once");
	refused("transpose: [0, 1, 2, 3, 4, 5, 6, 7, 8]", "each axis of the sample once");
	refused("range: clip", "refuse, error, saturate or wrap");
	refused("modulo: -1", "modulo");
	refused("mean: 3", "use bias: -mean / std");
	refused("rotate: 3", "unknown field key \"rotate\"");
	refused("make: mask, scale: 2", "scale, which is for copy");
	refused("make: random_key, dtype: i32", "allowed: i64 or u64");
}

static void ops_are_in_the_digest_and_their_defaults_are_not(void **state)
{
	struct stk_spec *plain = NULL, *same = NULL, *other = NULL;
	struct stk_hash a, b, c;
	struct stk_err err;

	(void)state;
	assert_int_equal(parse("pad: 0", &plain, &err), 0);
	assert_int_equal(parse("pad: 0, flip: none, modulo: 0, range: refuse", &same, &err), 0);
	assert_int_equal(parse("pad: 0, scale: 2", &other, &err), 0);
	assert_int_equal(stk_spec_digest(plain, &a), 0);
	assert_int_equal(stk_spec_digest(same, &b), 0);
	assert_int_equal(stk_spec_digest(other, &c), 0);
	assert_memory_equal(&a, &b, sizeof(a));
	assert_memory_not_equal(&a, &c, sizeof(a));
	stk_spec_free(plain);
	stk_spec_free(same);
	stk_spec_free(other);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_op_survives_a_round_trip_as_json),
		cmocka_unit_test(a_bad_op_is_refused_with_place_and_range),
		cmocka_unit_test(ops_are_in_the_digest_and_their_defaults_are_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
