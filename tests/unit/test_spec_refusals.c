/* SPDX-License-Identifier: Apache-2.0 */
/* Specs that are refused: the place, the value and what is allowed, in these words. One thread. */
#include <errno.h>
#include <stdio.h>

#include "tests/unit/spec_fixture.h"

static void refuse(const char *yaml, const char *want)
{
	struct stk_err err = {0};
	struct stk_spec *spec;

	assert_int_equal(parse(NULL, yaml, &spec, &err), -EINVAL);
	assert_null(spec);
	if (!strstr(err.text, want))
		fail_msg("%s: \"%s\" lacks \"%s\"", yaml, err.text, want);
}

static void words_and_json_name_their_places(void **state)
{
	char *const words[] = {(char *)"rows=0"};
	json_t *json = json_loads("{\"fields\":[{\"name\":\"x\",\"dtype\":\"i33\"}]}", 0, NULL);
	struct stk_tree *tree = NULL;
	struct stk_err err = {0};
	struct stk_spec *s = NULL;

	(void)state;
	assert_int_equal(stk_tree_from_words(words, 1, &tree, &err), 0);
	assert_int_equal(stk_spec_parse(NULL, tree, &s, &err), -EINVAL);
	assert_string_equal(err.text, "word 'rows=0': rows must be a whole number from 1 to 65536 "
				      "(rows), or a list of one for each "
				      "bucket, not \"0\"");
	tree = stk_tree_free(tree);
	assert_int_equal(stk_tree_from_json("spec", json, &tree, &err), 0);
	assert_int_equal(stk_spec_parse(NULL, tree, &s, &err), -EINVAL);
	assert_non_null(strstr(err.text, "spec.fields[0].dtype: dtype must be one of bool, u8"));
	assert_non_null(strstr(err.text, "not the text \"i33\""));
	stk_tree_free(tree);
	json_decref(json);
}

static void bad_values_are_refused_with_what_is_allowed(void **state)
{
	(void)state;
	refuse("rows: 0", "s.yaml:1: rows must be a whole number from 1 to 65536 (rows), or a list "
			  "of one for each "
			  "bucket, not \"0\"");
	refuse("rows: 65537", "rows must be");
	refuse("rows: [1, 0]", "rows must be a whole number from 1 to 65536 (rows), or a list");
	refuse("tokens: 2147483649", "from 1 to 2147483648 (tokens)");
	refuse("buckets: 257", "from 1 to 256");
	refuse("buckets: 0", "from 1 to 256");
	refuse("accumulate: 0", "from 1 to 1024");
	refuse("multiple_of: 0", "from 1 to 65536");
	refuse("prefetch: 1", "from 2 to 1024");
	refuse("weight: 0", "weight must be a whole number from 1 to 1000, not \"0\"");
	refuse("weight: 1001", "from 1 to 1000");
	refuse("weight: 0.5", "from 1 to 1000");
	refuse("max_length: 16777217", "from 0 to 16777216");
	refuse("seed: -1", "seed must be");
	refuse("seed: 18446744073709551616", "not \"18446744073709551616\"");
	refuse("order: shuffled", "order must be none, full or block, not \"shuffled\"");
	refuse("order: true", "not \"true\"");
	refuse("overlong: cut", "truncate, drop, error or split");
	refuse("tail: wrap", "short, pad or drop");
	refuse("lock: always", "try or require");
	refuse("name: \"\"", "name must be a text of 1 to 127 bytes");
	refuse("name: \"a\\tb\"", "without control characters");
	refuse("length: {a: b}", "length must be the name of a field");
	refuse("name: \"a\\0b\"", "NUL");
	refuse("- rows", "expected a map of stream keys");
	refuse("a: \t{", "s.yaml:2: ");
}

static void keys_of_one_group_are_refused_with_another(void **state)
{
	(void)state;
	refuse("overlong: split", "overlong split is for group: pack");
	refuse("{group: concat, max_length: 8, overlong: split}", "split is for group: pack");
	refuse("segments_max: 3", "segments_max is for group: pack");
	refuse("align: 8", "align is for group: pack");
	refuse("flat: true", "flat is for group: pack");
	refuse("balance: cost", "balance is for group: pack or concat");
	refuse("{group: pack, overlap: 1}", "overlap is for group: concat");
	refuse("{group: pack, separator: true}", "separator is for group: concat");
	refuse("{group: concat, max_length: 8, overlap: 2}", "overlap must be");
	refuse("group: concat", "max_length is needed with group: concat");
	refuse("{group: pack, flat: true, rows: 2}", "flat needs tokens");
	refuse("{group: pack, flat: true, tokens: 8, max_length: 9}", "must not be above tokens");
	refuse("{group: pack, max_length: 12, align: 8}", "align must divide");
	refuse("{group: pack, flat: true, tokens: 12, align: 8}", "align must divide");
	stk_spec_free(good("{group: pack, max_length: 16, align: 8, segments_max: 3, "
			   "overlong: split, balance: cost, window: 0}"));
	stk_spec_free(good("{group: pack, flat: true, tokens: 64, max_length: 12, align: 8}"));
	stk_spec_free(good("{group: concat, max_length: 8, overlap: 1, separator: true}"));
}

static void bad_edges_are_refused(void **state)
{
	char text[2048] = "edges: [", *p = text + 8;

	(void)state;
	refuse("edges: [64, 32]",
	       "s.yaml:1: edges must be ascending whole numbers from 1 to 16777216, here above 64, "
	       "not \"32\"");
	refuse("edges: [64, 64]", "here above 64, not \"64\"");
	refuse("edges: [0]", "not \"0\"");
	refuse("edges: [16777217]", "not \"16777217\"");
	refuse("edges: [16777216, 1]", "not \"1\"");
	refuse("edges: [1.5]", "not \"1.5\"");
	refuse("edges: [[400, 20]]", "not a list");
	refuse("edges: []", "edges must be a list of 1 to 256 whole numbers");
	refuse("edges: 64", "edges must be a list of 1 to 256 whole numbers");
	for (int i = 1; i <= 257; i++)
		p += sprintf(p, "%d,", i);
	strcpy(p, "]");
	refuse(text, "edges must be a list of 1 to 256 whole numbers");
	refuse("edges: [64, 128]\nmax_length: 100",
	       "s.yaml:1: edges end at 128 but max_length is 100");
	refuse("max_length: 256\nedges: [64, 128]",
	       "s.yaml:2: edges end at 128 but max_length is 256");
}

static void bad_data_is_refused(void **state)
{
	(void)state;
	refuse("data: []", "data must be a path, or a list of 1 to 256");
	refuse("data: ''", "path must be a text of 1 to 4095 bytes");
	refuse("data: [[a]]", "path must be a text");
	refuse("data: [{weight: 1}]", "missing data key \"path\"");
	refuse("data:\n- /a\n- {path: /a, weight: 1e-7}",
	       "s.yaml:3: weight must be 0, or a number from 1e-06 to 1e+06, not \"1e-7\"");
	refuse("data: [{path: /a, weight: -1}]", "not \"-1\"");
	refuse("data: [{path: /a, weight: nan}]", "not \"nan\"");
	refuse("data: [{path: /a, weight: .nan}]", "not \".nan\"");
	refuse("data: [{path: /a, weight: 1e999}]", "not \"1e999\"");
	refuse("data: [{path: /a, weight: '1'}]", "not the text \"1\"");
	refuse("data: [{path: /a, wieght: 1}]",
	       "unknown data key \"wieght\"; did you mean \"weight\"?");
	refuse("data: [{path: /a, path: /b}]", "duplicate key \"path\"");
}

static void bad_fields_are_refused(void **state)
{
	(void)state;
	refuse("fields: []", "fields must be a list of 1 to 60 fields");
	refuse("fields: {name: x}", "fields must be a list of 1 to 60 fields, not a map");
	refuse("fields: [x]", "each item must be a map such as");
	refuse("fields: [{dtype: i32}]", "missing field key \"name\"");
	refuse("fields: [{name: x}, {name: y}, {name: x}]", "field \"x\" is already defined");
	refuse("fields: [{name: x, make: mask, shift: true}]", "shift, which is for copy");
	refuse("fields: [{name: x, make: mask, separator: 2}]", "separator, which is for copy");
	refuse("fields: [{name: x, start: 2}]", "start, which is for position_ids");
	refuse("fields: [{name: x, make: mask, positions: row}]", "is for position_ids");
	refuse("fields: [{name: x, make: cu_seqlens, from: y}]", "from, which is for copy");
	refuse("fields: [{name: x, make: cu_seqlens, dtype: i64}]", "allowed: i32");
	refuse("fields: [{name: x, make: segment_ids, pad: -1}]", "pad, which is for make: copy");
	refuse("fields: [{name: x, make: labels}]", "copy, mask, lengths, sample_ids, segment_ids");
	refuse("fields: [{name: x, dtype: f4}]", "dtype must be one of");
	refuse("fields: [{name: x, dtype: int32}]", "dtype must be one of");
	refuse("fields: [{name: x, pad_value: 1}]", "unknown field key \"pad_value\"; use pad");
	refuse("fields: [{name: x, padd: 1}]", "did you mean \"pad\"?");
	refuse("fields: [{name: x, side: top}]", "right or left");
	refuse("fields: [{name: m, make: mask, dtype: f32}]",
	       "make: mask has dtype F32, allowed: bool, u8, i32 or i64");
	refuse("fields: [{name: m, make: lengths, dtype: u8}]", "allowed: i32 or i64");
	refuse("fields: [{name: m, make: sample_ids, dtype: i32}]", "allowed: i64");
	refuse("fields: [{name: m, make: sample_ids, from: x}]", "make: sample_ids does not use");
	refuse("fields: [{name: m, make: mask, pad: 1}]",
	       "has a pad, which is for make: copy, not mask");
	refuse("fields: [{name: \"a\\x1b\"}]", "without control characters");
	refuse("fields:\n- name: x\n  dtype: u8\n  pad: 256",
	       "s.yaml:4: pad 256 of field \"x\" does not fit dtype U8, "
	       "allowed: whole numbers from 0 to 255");
	refuse("fields: [{name: x, dtype: u8, pad: -1}]", "does not fit");
	refuse("fields: [{name: x, dtype: i32, pad: 0.5}]", "does not fit");
	refuse("fields: [{name: x, dtype: i32, pad: nan}]", "does not fit");
	refuse("fields: [{name: x, dtype: i64, pad: inf}]", "does not fit");
	refuse("fields: [{name: x, dtype: bool, pad: 2}]", "does not fit");
	refuse("fields: [{name: x, dtype: f16, pad: 65505}]", "does not fit dtype F16");
	refuse("fields: [{name: x, dtype: f8_e4m3, pad: 1}]", "allowed: 0");
	refuse("fields: [{name: x, pad: zero}]",
	       "pad must be a whole number of 64 bits, a decimal number, nan");
	refuse("fields: [{name: x, pad: 99999999999999999999}]", "pad must be");
	refuse("fields: [{name: x, pad: [0]}]", "pad must be");
}

static void rows_and_tokens_exclude_one_another(void **state)
{
	struct stk_err err = {0};
	struct stk_spec *s;

	(void)state;
	assert_int_equal(parse(NULL, "rows: 8\ntokens: 4096", &s, &err), -EINVAL);
	assert_string_equal(
		err.text,
		"s.yaml:2: both rows (8) and tokens (4096) are given, only one of them is allowed");
}

static void bad_plans_are_refused(void **state)
{
	(void)state;
	refuse("data: [{path: /a, weight: -1}, /b]", "weight must be a number from 0 to");
	refuse("data: [{path: /a, weight: 0}, {path: /b, weight: 0}]", "a weight above 0");
	refuse("{stop: never, epochs: 2}", "epochs must be 0 with stop: never");
	refuse("{global_rows: 8, rows: 4}", "both rows (4) and global_rows (8) are given");
	refuse("{rows: [1, 2], group: fixed}", "rows is a list, which is for group: bucket");
	refuse("rows: []", "a list of 1 to 256");
	refuse("cost: 5", "a map such as {a: 1");
	refuse("cost: {a: 1}", "missing cost key \"budget\"");
	refuse("cost: {a: 0, budget: 5}", "in which a or b is above 0");
	refuse("cost: {a: -1, budget: 5}", "a must be a number from 0");
	refuse("keep: {min_length: 5, max_length: 4}", "min_length 5 at most max_length 4");
	refuse("keep: {longest: 5}", "unknown keep key");
	refuse("keep: {ratio: [a, b, 1]}", "two field names and two numbers");
	refuse("keep: {ratio: [a, b, 1, 2]}", "ratio of a and b, but the lengths are");
	refuse("{length: [a, b], edges: [[4, [1]]], keep: {ratio: [a, c, 1, 2]}}",
	       "ratio of a and c, but the lengths are a and b");
	refuse("{length: [a, b], edges: [[4, [1]]], keep: {ratio: [a, b, 2, 1]}}",
	       "must be a number from 2");
	refuse("length: [a]\nrows: [[1]]", "rows must be");
	refuse("length: [a, a]", "two fields that differ");
	refuse("length: [a, b, c]", "a list of two");
	refuse("length: [a, b]\ngroup: fixed",
	       "length names two fields, which is for group: bucket");
	refuse("{length: [a, b], edges: [4, 8]}", "pairs such as [400, [20, 40]] are needed");
	refuse("edges: [[4, [1, 2]], [8, [3]]]", "edges of two lengths, but length names one");
	refuse("{length: [a, b], edges: [[4, [1, 9]], [8, [3]]]}",
	       "bucket [4, 9] has a larger second edge than the last one, [8, 3]");
	refuse("{length: [a, b], edges: [[4, [1]], [4, [3]]]}", "here above 4");
	refuse("{length: [a, b], edges: [[4, [3, 3]]]}", "here above 3");
	refuse("{length: [a, b], edges: [[4, []]]}", "an edge and the edges of the second length");
	refuse("{length: [a, b], edges: [[4, [1]], 8]}", "either numbers or pairs");
	refuse("block: 15", "from 16 to");
	refuse("world_multiple: 0", "from 1 to 65536");
	refuse("row_multiple: 0", "from 1 to 65536");
	refuse("global_rows: 0", "from 1 to");
}

static void keys_of_other_loaders_get_a_hint(void **state)
{
	static const char *const foreign[] = {
		"batch_size",
		"shuffle",
		"drop_last",
		"num_workers",
		"prefetch_factor",
		"pin_memory",
		"persistent_workers",
		"max_tokens",
		"max_token_count",
		"max_duration",
		"bucket_boundaries",
		"bucket_boundaries_sec",
		"num_buckets",
		"pad_to_multiple_of",
		"batch_sizes",
		"bucket_batch_limit",
		"sampler",
		"collate_fn",
		"max_seq_length",
		"max_seq_len",
		"seq_length",
		"epoch",
		"num_epochs",
		"pad_token_id",
		"dataset",
		"path",
		"shards",
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(foreign); i++) {
		char yaml[64], want[64];

		snprintf(yaml, sizeof(yaml), "seed: 1\n%s: 1", foreign[i]);
		snprintf(want, sizeof(want), "s.yaml:2: unknown stream key \"%s\"; ", foreign[i]);
		refuse(yaml, want);
	}
	refuse("batch_size: 4", "s.yaml:1: unknown stream key \"batch_size\"; use rows");
	refuse("drop_last: true", "; use tail: drop");
	refuse("pin_memory: true", "; not needed, batches are always in page-locked memory");
	refuse("row: 4", "did you mean \"rows\"?");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_and_json_name_their_places),
		cmocka_unit_test(bad_values_are_refused_with_what_is_allowed),
		cmocka_unit_test(keys_of_one_group_are_refused_with_another),
		cmocka_unit_test(bad_edges_are_refused),
		cmocka_unit_test(bad_data_is_refused),
		cmocka_unit_test(bad_fields_are_refused),
		cmocka_unit_test(rows_and_tokens_exclude_one_another),
		cmocka_unit_test(bad_plans_are_refused),
		cmocka_unit_test(keys_of_other_loaders_get_a_hint),
	};

	return cmocka_run_group_tests_name("spec_refusals", tests, NULL, NULL);
}
