/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs: defaults, every key, a map over a base, JSON there and back, digest and difference. One
 * thread.
 */
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "tests/unit/spec_fixture.h"

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
		cmocka_unit_test(later_keys_are_in_the_digest_once_they_are_given),
		cmocka_unit_test(plans_of_two_lengths_mixtures_and_global_batches_are_read),
		cmocka_unit_test(edges_come_from_a_file),
		cmocka_unit_test(
			shares_are_in_the_digest_and_micro_batches_of_a_global_batch_are_not),
		cmocka_unit_test(digest_covers_plan_and_bytes_and_nothing_else),
		cmocka_unit_test(digest_is_the_same_on_every_machine_and_release),
		cmocka_unit_test(difference_names_the_first_key_with_both_values),
		cmocka_unit_test(names_of_needs_are_words),
	};

	return cmocka_run_group_tests_name("spec", tests, NULL, NULL);
}
