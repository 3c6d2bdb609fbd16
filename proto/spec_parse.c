/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of stream keys, the keys whose values are lists, and the checks of keys against
 * each other. No state, any thread.
 */
#include "proto/spec_field.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define EDGE_MAX     (1u << 24) /* of max_length too: rows * edge * 8 bytes stays far below 2^64 */
#define DATA_MAX     4096       /* datasets of one stream */
#define WEIGHT_MIN   1u         /* in millionths */
#define WEIGHT_MAX   UINT64_C(1000000000000)
#define ROWS_DEFAULT 32

static const char *const order_names[] = {"none", "full", NULL};
static const char *const overlong_names[] = {"truncate", "drop", "error", "split", NULL};
static const char *const group_names[] = {"fixed", "bucket", "pack", "concat", NULL};
static const char *const method_names[] = {"optimal", NULL};
static const char *const balance_names[] = {"none", "tokens", "cost", NULL};
static const char *const pad_to_names[] = {"longest", "edge", NULL};
static const char *const tail_names[] = {"short", "pad", "drop", NULL};
static const char *const need_names[] = {"try", "require", NULL};

const char *stk_need_name(int need)
{
	return need < 0 ? "by kind of daemon" : need_names[need];
}

static void data_free(struct stk_spec *spec)
{
	for (size_t i = 0; i < spec->ndata; i++)
		free(spec->data[i].path);
	free(spec->data);
	spec->data = NULL;
	spec->ndata = 0;
}

static int parse_weight(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_data *data = object;

	return stk_tree_ppm(node, WEIGHT_MIN, WEIGHT_MAX, &data->weight, err);
}

static json_t *weight_to_json(const void *object)
{
	const struct stk_spec_data *data = object;

	return json_real((double)data->weight / 1e6);
}

static const struct stk_key data_keys[] = {
	{"path", STK_KEY_STRING, offsetof(struct stk_spec_data, path), NULL, 1, PATH_MAX - 1, NULL,
	 NULL, STK_KEY_REQUIRED, "directory, file or glob of shards", NULL, NULL},
	{"weight", STK_KEY_CUSTOM, offsetof(struct stk_spec_data, weight), "1.0", 0, 0, NULL, NULL,
	 0, "share of this dataset", parse_weight, weight_to_json},
};
static const struct stk_key_table data_table = {
	.keys = data_keys,
	.nkeys = STK_ARRAY_SIZE(data_keys),
	.what = "data key",
};

/* One dataset: a path, or a map with path and weight. */
static int parse_dataset(struct stk_spec *spec, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_data *data = &spec->data[spec->ndata];
	struct stk_tree path = *node, *children[] = {&path};
	const struct stk_tree map = {
		.type = STK_TREE_MAP, .place = node->place, .children = children, .nchildren = 1};
	int r;

	spec->ndata++; /* from here on freed with the spec */
	path.key = (char *)"path";
	r = stk_keys_defaults(&data_table, data, err);
	if (r < 0)
		return r;
	return stk_keys_walk(&data_table, data, node->type == STK_TREE_MAP ? node : &map, NULL,
			     err);
}

static int parse_data(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;
	bool list = node->type == STK_TREE_LIST;
	size_t n = list ? node->nchildren : 1;

	data_free(spec);
	if (node->type == STK_TREE_NULL)
		return 0;
	if (!n || n > DATA_MAX)
		return stk_tree_refuse(node, err,
				       "a path, or a list of 1 to %d {path: PATH, weight: 1.0}",
				       DATA_MAX);
	spec->data = calloc(n, sizeof(*spec->data));
	if (!spec->data)
		return stk_err_set(err, -ENOMEM, "%s: no memory", node->place);
	for (size_t i = 0; i < n; i++) {
		int r = parse_dataset(spec, list ? node->children[i] : node, err);

		if (r < 0)
			return r;
	}
	return 0;
}

static json_t *data_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	json_t *list;

	if (!spec->ndata)
		return json_null();
	list = json_array();
	for (size_t i = 0; i < spec->ndata; i++) {
		if (json_array_append_new(list, stk_keys_to_json(&data_table, &spec->data[i])) <
		    0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static int parse_edges(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;
	uint64_t last = 0;

	spec->nedges = 0;
	memset(spec->edges, 0, sizeof(spec->edges));
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST || !node->nchildren || node->nchildren > STK_SPEC_EDGES_MAX)
		return stk_tree_refuse(node, err,
				       "a list of 1 to %d whole numbers such as [64, 128]",
				       STK_SPEC_EDGES_MAX);
	for (size_t i = 0; i < node->nchildren; i++) {
		struct stk_tree item = *node->children[i];
		uint64_t edge;

		item.key = node->key; /* a message about an item names the list */
		if (stk_tree_u64(&item, last + 1, EDGE_MAX, &edge, NULL) < 0)
			return stk_tree_refuse(
				&item, err,
				"ascending whole numbers from 1 to %u, here above %" PRIu64,
				EDGE_MAX, last);
		spec->edges[i] = (uint32_t)edge;
		last = edge;
	}
	spec->nedges = node->nchildren;
	return 0;
}

static json_t *edges_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	json_t *list;

	if (!spec->nedges)
		return json_null();
	list = json_array();
	for (size_t i = 0; i < spec->nedges; i++) {
		if (json_array_append_new(list, json_integer(spec->edges[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

#define SPEC(member) offsetof(struct stk_spec, member)
#define NUMBER(name, type, text, min, max, unit, flags, help)                                      \
	{                                                                                          \
#name, type, SPEC(name), text, min, max, NULL, unit, flags, help, NULL, NULL       \
	}
#define CHOICE(name, text, names, flags, help)                                                     \
	{                                                                                          \
#name, STK_KEY_ENUM, SPEC(name), text, 0, 0, names, NULL, flags, help, NULL, NULL  \
	}
#define NAME(name, flags, help)                                                                    \
	{                                                                                          \
#name, STK_KEY_STRING, SPEC(name), NULL, 1, STK_SPEC_NAME_MAX, NULL, NULL, flags,  \
			help, NULL, NULL                                                           \
	}
#define CUSTOM(name, flags, help, parse, to_json)                                                  \
	{                                                                                          \
#name, STK_KEY_CUSTOM, SPEC(name), NULL, 0, 0, NULL, NULL, flags, help, parse,     \
			to_json                                                                    \
	}

/* clang-format off */
static const struct stk_key keys[] = {
	NAME(name, 0, "name of a configured stream"),
	CUSTOM(data, 0, "directory, file or glob of shards; or several as a list of {path: PATH, weight: 1.0}",
	       parse_data, data_to_json),
	NUMBER(seed, STK_KEY_U64, "0", 0, UINT64_MAX, NULL, STK_KEY_DIGEST,
	       "seed of the order"),
	NUMBER(epochs, STK_KEY_U64, "0", 0, UINT64_MAX, "epochs", 0,
	       "end of the stream after this many epochs, 0: as many as asked for"),
	CHOICE(order, "full", order_names, STK_KEY_DIGEST,
	       "order of the samples, as stored or shuffled anew in each epoch"),
	NAME(length, STK_KEY_DIGEST,
	     "ragged field whose size is a sample's length; left out: the only ragged field, else input_ids"),
	NUMBER(max_length, STK_KEY_U32, "0", 0, EDGE_MAX, "tokens", STK_KEY_DIGEST,
	       "longest sample that is delivered whole, 0: the longest there is"),
	CHOICE(overlong, "truncate", overlong_names, STK_KEY_DIGEST,
	       "what happens to a longer sample: cut and dropped ones are counted, split ones (pack) are delivered in pieces; concat does not ask, its samples run on from row to row"),
	CHOICE(group, "bucket", group_names, STK_KEY_DIGEST,
	       "batches of samples as they come (fixed) or of similar length (bucket), rows of max_length filled with whole samples (pack), or cut from one stream of all tokens (concat)"),
	NUMBER(buckets, STK_KEY_U32, "8", 1, STK_SPEC_EDGES_MAX, "buckets", STK_KEY_DIGEST,
	       "number of edges to choose from the lengths, unless edges are given"),
	CHOICE(bucket_method, "optimal", method_names, STK_KEY_DIGEST,
	       "how edges are chosen: the least padding for that many"),
	CUSTOM(edges, STK_KEY_DIGEST,
	       "bucket edges, ascending whole numbers from 1 to 16777216, the last one is max_length if that is given",
	       parse_edges, edges_to_json),
	NUMBER(rows, STK_KEY_U32, NULL, 1, 65536, "rows", STK_KEY_DIGEST,
	       "rows of a batch, for each rank and micro-batch; left out: 32, unless tokens is given"),
	NUMBER(tokens, STK_KEY_U64, NULL, 1, UINT64_C(1) << 31, "tokens", STK_KEY_DIGEST,
	       "instead of rows: budget of padded tokens of a batch, for each rank and micro-batch"),
	NUMBER(accumulate, STK_KEY_U32, "1", 1, 1024, "micro-batches", STK_KEY_DIGEST,
	       "micro-batches of one step and rank (gradient accumulation)"),
	NUMBER(multiple_of, STK_KEY_U32, "8", 1, 65536, "tokens", STK_KEY_DIGEST,
	       "padded lengths are multiples of this"),
	CHOICE(pad_to, "longest", pad_to_names, STK_KEY_DIGEST,
	       "padded length: of the longest row of the step, or the edge of its bucket"),
	CHOICE(tail, "short", tail_names, STK_KEY_DIGEST,
	       "last step of an epoch: fewer rows, masked rows, or dropped and counted"),
	NUMBER(window, STK_KEY_U32, "4096", 0, UINT64_C(1) << 30, "samples", STK_KEY_DIGEST | STK_KEY_LATER,
	       "pack: so many samples, as they come, are packed together, 0: a whole epoch"),
	NUMBER(segments_max, STK_KEY_U32, "0", 0, EDGE_MAX, "segments", STK_KEY_DIGEST | STK_KEY_LATER,
	       "pack: most samples of a row, 0: no limit"),
	NUMBER(align, STK_KEY_U32, "1", 1, 65536, "tokens", STK_KEY_DIGEST | STK_KEY_LATER,
	       "pack: samples begin in their row at multiples of this"),
	CHOICE(balance, "none", balance_names, STK_KEY_DIGEST | STK_KEY_LATER,
	       "pack and concat: what is made even over the ranks of a step, tokens or the cost of attention (the sum of squared lengths)"),
	NUMBER(flat, STK_KEY_BOOL, "false", 0, 0, NULL, STK_KEY_DIGEST | STK_KEY_LATER,
	       "pack: a batch is one row of up to `tokens` tokens, for kernels that take cu_seqlens"),
	NUMBER(overlap, STK_KEY_U32, "0", 0, 1, "tokens", STK_KEY_DIGEST | STK_KEY_LATER,
	       "concat: rows have so many tokens more, which the next row begins with; 1 for labels that are the tokens moved by one"),
	NUMBER(separator, STK_KEY_BOOL, "false", 0, 0, NULL, STK_KEY_DIGEST | STK_KEY_LATER,
	       "concat: one place behind each sample, with the separator of each field"),
	NUMBER(prefetch, STK_KEY_U32, "8", 2, 1024, "batches", 0,
	       "batches made ahead for each rank"),
	CHOICE(lock, NULL, need_names, 0,
	       "lock batch memory in RAM; left out: the daemon's"),
	CHOICE(numa, NULL, need_names, 0,
	       "place batch memory on the trainer's NUMA node; left out: the daemon's"),
	CUSTOM(fields, STK_KEY_DIGEST,
	       "tensors of a batch, a list of maps of the field keys; left out: every field as stored, and attention_mask",
	       stk__spec_fields_parse, stk__spec_fields_to_json),
};
/* clang-format on */

static const struct stk_key_hint hints[] = {
	{"batch_size", "use rows"},
	{"batch_sizes", "use rows (one number for all buckets) or tokens (a budget)"},
	{"bucket_batch_limit", "use rows (one number for all buckets) or tokens (a budget)"},
	{"bucket_batch_sizes", "use rows (one number for all buckets) or tokens (a budget)"},
	{"micro_batch_size", "use rows"},
	{"gradient_accumulation_steps", "use accumulate"},
	{"max_tokens", "use tokens"},
	{"max_token_count", "use tokens"},
	{"max_duration", "use tokens"},
	{"batch_tokens", "use tokens"},
	{"shuffle", "use order: full or order: none"},
	{"shuffle_seed", "use seed"},
	{"drop_last", "use tail: drop"},
	{"drop_remainder", "use tail: drop"},
	{"num_workers", "use the daemon's workers (configuration key workers)"},
	{"prefetch_factor", "use prefetch"},
	{"buffer_size", "use prefetch"},
	{"pin_memory",
	 "not needed, batches are always in page-locked memory (lock: require insists on it)"},
	{"persistent_workers", "not needed, the daemon's workers always persist"},
	{"bucket_boundaries", "use edges"},
	{"bucket_boundaries_sec", "use edges"},
	{"bucket_duration_bins", "use edges"},
	{"num_buckets", "use buckets"},
	{"pad_to_multiple_of", "use multiple_of"},
	{"pad_to_bucket_boundary", "use pad_to: edge"},
	{"sampler", "use order, group and seed: the daemon plans the batches"},
	{"batch_sampler", "use order, group and seed: the daemon plans the batches"},
	{"collate_fn", "use fields: the daemon pads and casts"},
	{"max_seq_length", "use max_length"},
	{"max_seq_len", "use max_length"},
	{"seq_length", "use max_length"},
	{"seq_len", "use max_length"},
	{"truncation", "use overlong: truncate"},
	{"epoch", "use epochs"},
	{"num_epochs", "use epochs"},
	{"pad_token_id", "use pad of a field (fields: [{name: input_ids, pad: 0}])"},
	{"padding_side", "use side of a field (fields: [{name: input_ids, side: left}])"},
	{"dataset", "use data"},
	{"path", "use data"},
	{"shards", "use data"},
	{"length_field", "use length"},
};

const struct stk_key_table stk_spec_table = {
	.keys = keys,
	.nkeys = STK_ARRAY_SIZE(keys),
	.hints = hints,
	.nhints = STK_ARRAY_SIZE(hints),
	.what = "stream key",
};

/* The node of a key that has a value in this map, or NULL. */
static const struct stk_tree *given(const struct stk_tree *map, const char *key)
{
	const struct stk_tree *node = stk_tree_get(map, key);

	return node && node->type != STK_TREE_NULL ? node : NULL;
}

/* Keys that say the same thing in two ways: the newer word wins, both in one map is an error. */
static int settle(struct stk_spec *spec, const struct stk_tree *map, struct stk_err *err)
{
	const struct stk_tree *rows = given(map, "rows"), *tokens = given(map, "tokens");

	if (rows && tokens)
		return stk_err_set(
			err, -EINVAL,
			"%s: both rows (%s) and tokens (%s) are given, only one of them is allowed",
			tokens->place, rows->text, tokens->text);
	if (rows)
		spec->tokens = 0;
	else if (spec->tokens)
		spec->rows = 0;
	if (!spec->rows && !spec->tokens)
		spec->rows = ROWS_DEFAULT;
	if (given(map, "buckets") && !given(map, "edges")) {
		spec->nedges = 0;
		memset(spec->edges, 0, sizeof(spec->edges));
	}
	return 0;
}

/* Keys of one way of grouping, given to another; and what packing needs to be told. */
static int check_grouping(const struct stk_spec *spec, const struct stk_tree *map,
			  struct stk_err *err)
{
	bool pack = spec->group == STK_GROUP_PACK, concat = spec->group == STK_GROUP_CONCAT;
	uint64_t row = spec->flat ? spec->tokens : spec->max_length;
	const struct {
		const char *key, *rule;
		bool broken;
	} rules[] = {
		{"overlong", "split is for group: pack",
		 spec->overlong == STK_OVERLONG_SPLIT && !pack},
		{"segments_max", "is for group: pack", spec->segments_max && !pack},
		{"align", "is for group: pack", spec->align > 1 && !pack},
		{"flat", "is for group: pack", spec->flat && !pack},
		{"balance", "is for group: pack or concat",
		 spec->balance != STK_BALANCE_NONE && !pack && !concat},
		{"overlap", "is for group: concat", spec->overlap && !concat},
		{"separator", "is for group: concat", spec->separator && !concat},
		{"max_length", "is needed with group: concat, as the length of its rows",
		 concat && !spec->max_length},
		{"flat", "needs tokens, the budget of a batch, not rows",
		 spec->flat && !spec->tokens},
		{"max_length", "must not be above tokens with flat: true",
		 spec->flat && spec->tokens && spec->max_length > spec->tokens},
		{"align", "must divide the length of a row (max_length, or tokens with flat: true)",
		 pack && row % spec->align != 0},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(rules); i++) {
		const struct stk_tree *node = given(map, rules[i].key);

		if (rules[i].broken)
			return stk_err_set(err, -EINVAL, "%s: %s %s",
					   node ? node->place : map->place, rules[i].key,
					   rules[i].rule);
	}
	return 0;
}

static int check_edges_end(const struct stk_spec *spec, const struct stk_tree *map,
			   struct stk_err *err)
{
	uint32_t last = spec->nedges ? spec->edges[spec->nedges - 1] : 0;
	const struct stk_tree *node = given(map, "edges");

	if (!last || !spec->max_length || last == spec->max_length)
		return 0;
	if (!node)
		node = given(map, "max_length");
	return stk_err_set(err, -EINVAL,
			   "%s: edges end at %" PRIu32 " but max_length is %" PRIu32
			   ", the last edge must be max_length",
			   node ? node->place : map->place, last, spec->max_length);
}

static int apply(struct stk_spec *spec, const struct stk_tree *map, struct stk_err *err)
{
	int r = stk_keys_walk(&stk_spec_table, spec, map, NULL, err);

	return r < 0 ? r : settle(spec, map, err);
}

/* A copy, by way of the form that reads back exactly. */
static int apply_base(struct stk_spec *spec, const struct stk_spec *base, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	json_t *json = stk_spec_to_json(base);
	int r;

	if (!json)
		return stk_err_set(err, -ENOMEM, "spec: no memory");
	r = stk_tree_from_json("spec", json, &tree, err);
	json_decref(json);
	return r < 0 ? r : apply(spec, tree, err);
}

int stk_spec_parse(const struct stk_spec *base, const struct stk_tree *map, struct stk_spec **ret,
		   struct stk_err *err)
{
	const struct stk_tree empty = {.type = STK_TREE_MAP, .place = (char *)"spec"};
	_cleanup_(stk_spec_freep) struct stk_spec *spec = calloc(1, sizeof(*spec));
	int r;

	if (!spec)
		return stk_err_set(err, -ENOMEM, "spec: no memory");
	r = stk_keys_defaults(&stk_spec_table, spec, err);
	if (r < 0)
		return r;
	if (base) {
		r = apply_base(spec, base, err);
		if (r < 0)
			return r;
	}
	if (!map)
		map = &empty;
	r = apply(spec, map, err);
	if (r < 0)
		return r;
	r = check_edges_end(spec, map, err);
	if (r == 0)
		r = check_grouping(spec, map, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(spec);
	return 0;
}

struct stk_spec *stk_spec_free(struct stk_spec *spec)
{
	if (!spec)
		return NULL;
	data_free(spec);
	stk__spec_fields_free(spec);
	free(spec->name);
	free(spec->length);
	free(spec);
	return NULL;
}
