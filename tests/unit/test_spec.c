/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs: defaults, every key, keys against each other, JSON there and back, digest and difference.
 * One thread.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "proto/spec.h"

static int parse(const struct stk_spec *base, const char *yaml, struct stk_spec **ret,
		 struct stk_err *err)
{
	struct stk_tree *tree = NULL;
	int r = stk_tree_from_yaml("s.yaml", yaml, strlen(yaml), &tree, err);

	*ret = NULL;
	if (!r)
		r = stk_spec_parse(base, tree, ret, err);
	stk_tree_free(tree);
	return r;
}

static struct stk_spec *over(const struct stk_spec *base, const char *yaml)
{
	struct stk_err err = {0};
	struct stk_spec *spec;

	if (parse(base, yaml, &spec, &err) < 0)
		fail_msg("refused: %s", err.text);
	return spec;
}

static struct stk_spec *good(const char *yaml)
{
	return over(NULL, yaml);
}

static void refuse(const char *yaml, const char *want)
{
	struct stk_err err = {0};
	struct stk_spec *spec;

	assert_int_equal(parse(NULL, yaml, &spec, &err), -EINVAL);
	assert_null(spec);
	if (!strstr(err.text, want))
		fail_msg("%s: \"%s\" lacks \"%s\"", yaml, err.text, want);
}

static void defaults_are_complete(void **state)
{
	struct stk_spec *s = NULL;

	(void)state;
	assert_int_equal(stk_spec_parse(NULL, NULL, &s, NULL), 0);
	assert_null(s->name);
	assert_int_equal(s->ndata, 0);
	assert_int_equal(s->seed, 0);
	assert_int_equal(s->epochs, 0);
	assert_int_equal(s->order, STK_ORDER_FULL);
	assert_null(s->length);
	assert_int_equal(s->max_length, 0);
	assert_int_equal(s->overlong, STK_OVERLONG_TRUNCATE);
	assert_int_equal(s->group, STK_GROUP_BUCKET);
	assert_int_equal(s->buckets, 8);
	assert_int_equal(s->bucket_method, STK_BUCKET_OPTIMAL);
	assert_int_equal(s->nedges, 0);
	assert_int_equal(s->rows, 32);
	assert_int_equal(s->tokens, 0);
	assert_int_equal(s->accumulate, 1);
	assert_int_equal(s->multiple_of, 8);
	assert_int_equal(s->pad_to, STK_PAD_LONGEST);
	assert_int_equal(s->tail, STK_TAIL_SHORT);
	assert_int_equal(s->prefetch, 8);
	assert_int_equal(s->weight, 1);
	assert_int_equal(s->lock, -1);
	assert_int_equal(s->numa, -1);
	assert_null(s->fields);
	stk_spec_free(s);
}

static const char everything[] =
	"name: gsm8k\n"
	"data: [{path: /a, weight: 0.333333}, {path: '/b/*.safetensors'}, /c]\n"
	"seed: 18446744073709551615\nepochs: 3\norder: none\nlength: input_ids\nmax_length: 512\n"
	"overlong: drop\ngroup: fixed\nbuckets: 256\nedges: [64, 128, 512]\ntokens: "
	"2147483648\naccumulate: 1024\n"
	"multiple_of: 1\npad_to: edge\ntail: pad\nprefetch: 2\nweight: 1000\nlock: try\nnuma: "
	"require\n"
	"fields:\n"
	"  - {name: input_ids, dtype: i32, pad: 0}\n"
	"  - {name: labels, from: input_ids, dtype: i64, pad: -100, side: left}\n"
	"  - {name: mask, make: mask, dtype: u8}\n"
	"  - {name: len, make: lengths}\n"
	"  - {name: ids, make: sample_ids, dtype: i64}\n"
	"  - {name: feats, dtype: bf16, pad: -1.5}\n"
	"  - {name: any, pad: nan}\n"
	"  - {name: low, dtype: f32, pad: -.inf}\n"
	"  - {name: zero, dtype: f32, pad: -0.0}\n"
	"  - {name: edge, dtype: i64, pad: -9223372036854775808}\n"
	"  - {name: \"\xc3\xa9\"}\n";

static void every_key_is_read(void **state)
{
	struct stk_spec *s = good(everything);

	(void)state;
	assert_string_equal(s->name, "gsm8k");
	assert_int_equal(s->ndata, 3);
	assert_string_equal(s->data[1].path, "/b/*.safetensors");
	assert_int_equal(s->data[0].weight, 333333);
	assert_int_equal(s->data[2].weight, 1000000);
	assert_true(s->seed == UINT64_MAX);
	assert_int_equal(s->order, STK_ORDER_NONE);
	assert_int_equal(s->max_length, 512);
	assert_int_equal(s->overlong, STK_OVERLONG_DROP);
	assert_int_equal(s->group, STK_GROUP_FIXED);
	assert_int_equal(s->nedges, 3);
	assert_int_equal(s->edges[2], 512);
	assert_int_equal(s->edges[3], 0);
	assert_int_equal(s->rows, 0);
	assert_int_equal(s->tokens, UINT64_C(1) << 31);
	assert_int_equal(s->lock, STK_NEED_TRY);
	assert_int_equal(s->numa, STK_NEED_REQUIRE);
	assert_int_equal(s->nfields, 11);
	assert_int_equal(s->fields[1].pad, -100);
	assert_int_equal(s->fields[1].side, STK_SIDE_LEFT);
	assert_string_equal(s->fields[1].from, "input_ids");
	assert_int_equal(s->fields[2].make, STK_MAKE_MASK);
	assert_int_equal(s->fields[3].dtype, STK_DTYPE_NONE);
	assert_false(s->fields[3].pad_set);
	assert_true(s->fields[5].pad_float == -1.5);
	assert_true(isnan(s->fields[6].pad_float));
	assert_true(s->fields[7].pad_float == -INFINITY);
	assert_true(signbit(s->fields[8].pad_float));
	assert_true(s->fields[9].pad == INT64_MIN);
	stk_spec_free(s);
}

static void data_may_be_one_path(void **state)
{
	struct stk_spec *s = good("data: /x/y");

	(void)state;
	assert_int_equal(s->ndata, 1);
	assert_string_equal(s->data[0].path, "/x/y");
	assert_int_equal(s->data[0].weight, 1000000);
	stk_spec_free(s);
	s = good("data: {path: /x, weight: 3}");
	assert_int_equal(s->data[0].weight, 3000000);
	stk_spec_free(s);
}

static void json_there_and_back_is_exact(void **state)
{
	static const char *const specs[] = {
		everything,
		"",
		"{edges: [1, 16777216], rows: 1}",
		"{data: /x, tokens: 1}",
		"{length: [a, b], edges: [[4, [1, 3]], [8, [2, 5]]], rows: [4, 3, 2, 1], stop: "
		"never, keep: {ratio: [b, a, 0.25, 4]}}",
		"{cost: {a: 0.5, b: 0.001, budget: 99}, order: block}",
		"{global_tokens: 65536, edges: a.json}"};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(specs); i++) {
		struct stk_spec *a = good(specs[i]), *b = NULL, *c = NULL;
		json_t *json = stk_spec_to_json(a), *parsed, *again, *based;
		char *text = json_dumps(json, JSON_REAL_PRECISION(17));
		struct stk_tree *tree = NULL;
		struct stk_hash da, db;

		/* Through text, as a message goes; and as a base under an empty map. */
		parsed = json_loads(text, 0, NULL);
		assert_int_equal(stk_tree_from_json("spec", parsed, &tree, NULL), 0);
		assert_int_equal(stk_spec_parse(NULL, tree, &b, NULL), 0);
		assert_int_equal(stk_spec_parse(a, NULL, &c, NULL), 0);
		again = stk_spec_to_json(b);
		based = stk_spec_to_json(c);
		assert_true(json_equal(json, again));
		assert_true(json_equal(json, based));
		assert_int_equal(a->rows, b->rows);
		assert_true(a->tokens == b->tokens && a->seed == b->seed);
		assert_memory_equal(a->edges, b->edges, sizeof(a->edges));
		assert_int_equal(stk_spec_digest(a, &da), 0);
		assert_int_equal(stk_spec_digest(b, &db), 0);
		assert_memory_equal(&da, &db, sizeof(da));
		json_decref(json);
		json_decref(parsed);
		json_decref(again);
		json_decref(based);
		free(text);
		stk_tree_free(tree);
		stk_spec_free(a);
		stk_spec_free(b);
		stk_spec_free(c);
	}
}

static void json_has_every_key_in_table_order(void **state)
{
	struct stk_spec *s = good("");
	json_t *json = stk_spec_to_json(s);
	size_t i = 0;

	(void)state;
	for (void *it = json_object_iter(json); it; it = json_object_iter_next(json, it))
		assert_string_equal(json_object_iter_key(it), stk_spec_table.keys[i++].name);
	assert_int_equal(i, stk_spec_table.nkeys);
	json_decref(json);
	stk_spec_free(s);
}

static void a_map_over_a_base_replaces_only_what_it_names(void **state)
{
	struct stk_spec *base = good(everything), *s = over(base, "{rows: 4, prefetch: 3}");

	(void)state;
	assert_int_equal(s->rows, 4);
	assert_int_equal(s->tokens, 0); /* the other way to say it is gone */
	assert_int_equal(s->prefetch, 3);
	assert_int_equal(s->nedges, 3);
	assert_int_equal(s->nfields, 11);
	assert_string_equal(s->name, "gsm8k");
	assert_ptr_not_equal(s->name, base->name);
	assert_int_equal(base->tokens, UINT64_C(1) << 31);
	stk_spec_free(base);
	base = s;

	s = over(base, "{tokens: 100, buckets: 4, fields: , lock: ~}");
	assert_int_equal(s->rows, 0);
	assert_int_equal(s->tokens, 100);
	assert_int_equal(s->nedges, 0); /* edges to choose instead of the given ones */
	assert_int_equal(s->buckets, 4);
	assert_null(s->fields);
	assert_int_equal(s->lock, -1);
	stk_spec_free(base);
	base = s;

	s = over(base, "{tokens: null}");
	assert_int_equal(s->rows, 32);
	assert_int_equal(s->tokens, 0);
	stk_spec_free(base);
	stk_spec_free(s);
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

static void later_keys_are_in_the_digest_once_they_are_given(void **state)
{
	static const char *const pairs[][2] = {
		{"", "window: 4096"},
		{"", "{align: 1, overlap: 0, flat: false, balance: none}"},
		{"fields: [{name: x}]", "fields: [{name: x, shift: false, start: 0}]"},
		{"group: pack", "{group: pack, window: 0}"},
		{"group: pack", "{group: pack, balance: cost}"},
		{"fields: [{name: x}]", "fields: [{name: x, shift: true}]"},
		{"fields: [{name: x}]", "fields: [{name: x, separator: 0}]"},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(pairs); i++) {
		struct stk_spec *a = good(pairs[i][0]), *b = good(pairs[i][1]);
		struct stk_hash ha, hb;

		assert_int_equal(stk_spec_digest(a, &ha), 0);
		assert_int_equal(stk_spec_digest(b, &hb), 0);
		if (!memcmp(&ha, &hb, sizeof(ha)) != (i < 3))
			fail_msg("%s changes the digest wrongly", pairs[i][1]);
		stk_spec_free(a);
		stk_spec_free(b);
	}
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

static void plans_of_two_lengths_mixtures_and_global_batches_are_read(void **state)
{
	struct stk_spec *s =
		good("{data: [{path: /a, weight: 0}, /b], stop: all_exhausted, "
		     "order: block, block: 65536, block_unit: tokens, block_window: 4, "
		     "length: [feats, tokens], edges: [[400, [20, 40]], [800, [30, 80]]], "
		     "rows: [8, 4, 2, 1], row_multiple: 1, largest_first: true, "
		     "keep: {min_length: 3, ratio: [feats, tokens, 0.5, 40]}}");

	(void)state;
	assert_int_equal(s->data[0].weight, 0);
	assert_int_equal(s->stop, STK_STOP_ALL);
	assert_int_equal(s->order, STK_ORDER_BLOCK);
	assert_int_equal(s->block, 65536);
	assert_int_equal(s->block_unit, STK_BLOCK_TOKENS);
	assert_int_equal(s->block_window, 4);
	assert_string_equal(s->length, "feats");
	assert_string_equal(s->length2, "tokens");
	assert_int_equal(s->nedges, 4);
	assert_int_equal(s->edges[1], 400);
	assert_int_equal(s->edges2[1], 40);
	assert_int_equal(s->edges2[2], 30);
	assert_int_equal(s->rows, 0);
	assert_int_equal(s->nrows, 4);
	assert_int_equal(s->rows_list[3], 1);
	assert_true(s->largest_first);
	assert_int_equal(s->keep.min_length, 3);
	assert_int_equal(s->keep.max_length, 0);
	assert_string_equal(s->keep.under, "tokens");
	assert_int_equal(s->keep.ratio_min, 500000);
	assert_int_equal(s->keep.ratio_max, 40000000);
	stk_spec_free(s);

	s = good("{cost: {b: 0.001, budget: 40000}}");
	assert_int_equal(s->rows, 0);
	assert_int_equal(s->cost.a, 1000000);
	assert_int_equal(s->cost.b, 1000);
	assert_int_equal(s->cost.budget, 40000);
	stk_spec_free(s);
	s = good("{global_tokens: 1000000, world_multiple: 24, edges: some/edges.json}");
	assert_true(stk_spec_is_global(s));
	assert_int_equal(s->rows, 0);
	assert_int_equal(s->world_multiple, 24);
	assert_string_equal(s->edges_file, "some/edges.json");
	stk_spec_free(s);
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

static void edges_come_from_a_file(void **state)
{
	static const char *const texts[] = {"[8, 16]",
					    "{\"method\": \"optimal\", \"edges\": [8, 16]}",
					    "{\"other\": 1}", "[16, 8]"};
	static const char *const refusals[] = {NULL, NULL, "neither a list nor a map with the key",
					       "here above 16"};
	char path[] = "/tmp/stoker-edges-XXXXXX";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	close(fd);
	for (size_t i = 0; i < STK_ARRAY_SIZE(texts); i++) {
		FILE *file = fopen(path, "w");
		struct stk_err err = {0};
		struct stk_spec *s = good("edges: ./x");

		assert_non_null(file);
		fputs(texts[i], file);
		fclose(file);
		free(s->edges_file);
		s->edges_file = strdup(path);
		if (refusals[i]) {
			assert_true(stk_spec_read_edges(s, &err) < 0);
			assert_non_null(strstr(err.text, refusals[i]));
		} else {
			assert_int_equal(stk_spec_read_edges(s, &err), 0);
			assert_null(s->edges_file);
			assert_int_equal(s->nedges, 2);
			assert_int_equal(s->edges[1], 16);
		}
		stk_spec_free(s);
	}
	unlink(path);
}

static void shares_are_in_the_digest_and_micro_batches_of_a_global_batch_are_not(void **state)
{
	static const struct {
		const char *a, *b;
		bool same;
	} cases[] = {
		{"data: [/a, /b]", "data: [/c, /d]", true},
		{"data: [/a, /b]", "data: [/a, {path: /b, weight: 2}]", false},
		{"data: [/a, /b]", "data: /a", false},
		{"data: [{path: /a, weight: 2}]", "data: /a", true},
		{"{global_rows: 8, accumulate: 2}", "{global_rows: 8}", true},
		{"{rows: 8, accumulate: 2}", "{rows: 8}", false},
		{"{global_rows: 8}", "{global_rows: 16}", false},
		{"{stop: never}", "{}", false},
	};

	(void)state;
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_spec *a = good(cases[i].a), *b = good(cases[i].b);
		char *va = NULL, *vb = NULL;
		struct stk_hash da, db;

		assert_int_equal(stk_spec_digest(a, &da), 0);
		assert_int_equal(stk_spec_digest(b, &db), 0);
		assert_int_equal(!memcmp(&da, &db, sizeof(da)), cases[i].same);
		assert_int_equal(!stk_spec_difference(a, b, &va, &vb), cases[i].same);
		free(va);
		free(vb);
		stk_spec_free(a);
		stk_spec_free(b);
	}
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

static void digest_covers_plan_and_bytes_and_nothing_else(void **state)
{
	static const struct {
		const char *yaml;
		bool same;
	} cases[] = {
		{"name: x", true},        {"data: /x", true},        {"epochs: 9", true},
		{"prefetch: 9", true},    {"weight: 9", true},       {"lock: try", true},
		{"numa: try", true},      {"rows: 32", true},        {"seed: 0", true},
		{"seed: 1", false},       {"order: none", false},    {"length: x", false},
		{"max_length: 9", false}, {"overlong: drop", false}, {"group: fixed", false},
		{"buckets: 9", false},    {"edges: [8]", false},     {"rows: 33", false},
		{"tokens: 32", false},    {"accumulate: 2", false},  {"multiple_of: 1", false},
		{"pad_to: edge", false},  {"tail: drop", false},     {"fields: [{name: x}]", false},
	};
	struct stk_spec *base = good("");
	struct stk_hash want, got;

	(void)state;
	assert_int_equal(stk_spec_digest(base, &want), 0);
	for (size_t i = 0; i < STK_ARRAY_SIZE(cases); i++) {
		struct stk_spec *s = good(cases[i].yaml);

		assert_int_equal(stk_spec_digest(s, &got), 0);
		if (!memcmp(&want, &got, sizeof(got)) != cases[i].same)
			fail_msg("%s changes the digest wrongly", cases[i].yaml);
		stk_spec_free(s);
	}
	stk_spec_free(base);
}

static void digest_is_the_same_on_every_machine_and_release(void **state)
{
	struct stk_spec *a = good(""), *b = good(everything);
	struct stk_hash hash;
	char text[33];

	(void)state;
	/* Saved states hold these: a change here makes every one of them unusable. */
	assert_int_equal(stk_spec_digest(a, &hash), 0);
	stk_hex_encode(&hash, sizeof(hash), text);
	assert_string_equal(text, "57c6b6fe3665bdd008e44af49e37f108");
	assert_int_equal(stk_spec_digest(b, &hash), 0);
	stk_hex_encode(&hash, sizeof(hash), text);
	assert_string_equal(text, "78edd824d1cf68459ffd38bc499c3715");
	stk_spec_free(a);
	stk_spec_free(b);
}

static void difference_names_the_first_key_with_both_values(void **state)
{
	struct stk_spec *a = good("{seed: 1, edges: [8, 16], name: a, prefetch: 4}");
	struct stk_spec *b = good("{seed: 1, edges: [8, 32], name: b, prefetch: 5, tail: drop}");
	char *va = NULL, *vb = NULL;

	(void)state;
	assert_string_equal(stk_spec_difference(a, b, &va, &vb), "edges");
	assert_string_equal(va, "[8,16]");
	assert_string_equal(vb, "[8,32]");
	free(va);
	free(vb);
	assert_null(stk_spec_difference(a, a, &va, &vb));
	stk_spec_free(a);
	stk_spec_free(b);
}

static void names_of_needs_are_words(void **state)
{
	(void)state;
	assert_string_equal(stk_need_name(STK_NEED_TRY), "try");
	assert_string_equal(stk_need_name(STK_NEED_REQUIRE), "require");
	assert_string_equal(stk_need_name(-1), "by kind of daemon");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(defaults_are_complete),
		cmocka_unit_test(every_key_is_read),
		cmocka_unit_test(data_may_be_one_path),
		cmocka_unit_test(json_there_and_back_is_exact),
		cmocka_unit_test(json_has_every_key_in_table_order),
		cmocka_unit_test(a_map_over_a_base_replaces_only_what_it_names),
		cmocka_unit_test(words_and_json_name_their_places),
		cmocka_unit_test(bad_values_are_refused_with_what_is_allowed),
		cmocka_unit_test(keys_of_one_group_are_refused_with_another),
		cmocka_unit_test(later_keys_are_in_the_digest_once_they_are_given),
		cmocka_unit_test(bad_edges_are_refused),
		cmocka_unit_test(bad_data_is_refused),
		cmocka_unit_test(bad_fields_are_refused),
		cmocka_unit_test(rows_and_tokens_exclude_one_another),
		cmocka_unit_test(plans_of_two_lengths_mixtures_and_global_batches_are_read),
		cmocka_unit_test(bad_plans_are_refused),
		cmocka_unit_test(edges_come_from_a_file),
		cmocka_unit_test(
			shares_are_in_the_digest_and_micro_batches_of_a_global_batch_are_not),
		cmocka_unit_test(keys_of_other_loaders_get_a_hint),
		cmocka_unit_test(digest_covers_plan_and_bytes_and_nothing_else),
		cmocka_unit_test(digest_is_the_same_on_every_machine_and_release),
		cmocka_unit_test(difference_names_the_first_key_with_both_values),
		cmocka_unit_test(names_of_needs_are_words),
	};

	return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
