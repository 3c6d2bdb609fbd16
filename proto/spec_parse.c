/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The one table of stream keys, the keys whose values are lists, and the checks of keys against
 * each other. No state, any thread.
 */
#include "proto/spec_field.h"
#include "proto/spec_plan.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define EDGE_MAX     STK__EDGE_MAX
#define DATA_MAX     STK_SPEC_DATA_MAX
#define WEIGHT_MAX   UINT64_C(1000000000000)
#define ROWS_DEFAULT 32

static const char *const order_names[] = {"none", "full", "block", NULL};
static const char *const overlong_names[] = {"truncate", "drop", "error", "split", NULL};
static const char *const group_names[] = {"fixed", "bucket", "pack", "concat", NULL};
static const char *const method_names[] = {"optimal", "kmeans", "quantile", "uniform", NULL};
static const char *const balance_names[] = {"none", "tokens", "cost", NULL};
static const char *const pad_to_names[] = {"longest", "edge", NULL};
static const char *const on_bad_names[] = {"error", "quarantine", NULL};
static const char *const tail_names[] = {"short", "pad", "drop", NULL};
static const char *const block_unit_names[] = {"samples", "tokens", NULL};
static const char *const stop_names[] = {"first_exhausted", "all_exhausted", "never", NULL};
static const char *const default_fields_names[] = {"stored", "torch", NULL};
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
	int r = stk_tree_ppm(node, 0, WEIGHT_MAX, &data->weight, err);
	double v;

	/* Only a nought means that a dataset is not used. */
	if (r == 0 && !data->weight && stk_tree_number(node, &v) && v > 0)
		return stk_tree_refuse(node, err, "0, or a number from 1e-06 to 1e+06");
	return r;
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
	 0, "share of this dataset in the samples", parse_weight, weight_to_json},
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
	uint64_t total = 0;

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
		total += spec->data[i].weight;
	}
	if (!total)
		return stk_tree_refuse(node, err, "datasets of which one has a weight above 0");
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
	CHOICE(stop, "first_exhausted", stop_names, STK_KEY_DIGEST | STK_KEY_LATER,
	       "when an epoch of several datasets ends: with the first one that is read to its end, with the last one (the others repeat), or never"),
	CHOICE(order, "full", order_names, STK_KEY_DIGEST,
	       "order of the samples, as stored, or shuffled anew in each epoch: each for itself or in blocks of neighbours"),
	NUMBER(block, STK_KEY_U32, "4096", 16, UINT64_C(1) << 30, NULL, STK_KEY_DIGEST | STK_KEY_LATER,
	       "order block: size of a block of neighbouring samples, in units of block_unit"),
	CHOICE(block_unit, "samples", block_unit_names, STK_KEY_DIGEST | STK_KEY_LATER,
	       "order block: what block counts, samples or elements of the length field"),
	NUMBER(block_window, STK_KEY_U32, "16", 1, 1024, "blocks", STK_KEY_DIGEST | STK_KEY_LATER,
	       "order block: so many shuffled blocks are mixed with each other"),
	CUSTOM(length, STK_KEY_DIGEST,
	       "ragged field whose size is a sample's length, or two of them: [feats, tokens]; left out: the only ragged field, else input_ids",
	       stk__spec_length_parse, stk__spec_length_to_json),
	NUMBER(max_length, STK_KEY_U32, "0", 0, EDGE_MAX, "tokens", STK_KEY_DIGEST,
	       "longest sample that is delivered whole, 0: the longest there is; with pack and concat the length of a row"),
	CHOICE(overlong, "truncate", overlong_names, STK_KEY_DIGEST,
	       "what happens to a longer sample: cut and dropped ones are counted, split ones (pack) are delivered in pieces; concat does not ask, its samples run on from row to row"),
	CUSTOM(keep, STK_KEY_DIGEST | STK_KEY_LATER,
	       "samples that are not left out: {min_length: 1, max_length: 512, ratio: [feats, tokens, min, max]}, by their lengths as stored",
	       stk__spec_keep_parse, stk__spec_keep_to_json),
	CHOICE(group, "bucket", group_names, STK_KEY_DIGEST,
	       "batches of samples as they come (fixed) or of similar length (bucket), rows of max_length filled with whole samples (pack), or cut from one stream of all tokens (concat)"),
	NUMBER(buckets, STK_KEY_U32, "8", 1, STK_SPEC_EDGES_MAX, "buckets", STK_KEY_DIGEST,
	       "number of edges to choose from the lengths, of pairs of edges where there are two, unless edges are given"),
	CHOICE(bucket_method, "optimal", method_names, STK_KEY_DIGEST,
	       "how edges are chosen: the least padding for that many, by clusters, as many samples in each bucket, or equal distances"),
	CUSTOM(edges, STK_KEY_DIGEST,
	       "bucket edges, ascending whole numbers from 1 to 16777216, the last one is max_length if that is given; of two lengths: [[400, [20, 40]], [800, [40, 80]]]; or a file of them, edges.json",
	       stk__spec_edges_parse, stk__spec_edges_to_json),
	CUSTOM(rows, STK_KEY_DIGEST,
	       "rows of a batch, for each rank and micro-batch: a whole number from 1 to 65536, or a list of one for each bucket; left out: 32, unless tokens, cost or a global batch is given",
	       stk__spec_rows_parse, stk__spec_rows_to_json),
	NUMBER(tokens, STK_KEY_U64, NULL, 1, UINT64_C(1) << 31, "tokens", STK_KEY_DIGEST,
	       "instead of rows: budget of padded tokens of a batch, for each rank and micro-batch"),
	CUSTOM(cost, STK_KEY_DIGEST | STK_KEY_LATER,
	       "instead of rows: {a: 1.0, b: 0.0, budget: 40000}, so many rows that rows * (a * edge + b * edge^2) is at most the budget",
	       stk__spec_cost_parse, stk__spec_cost_to_json),
	NUMBER(global_rows, STK_KEY_U32, NULL, 1, UINT64_C(1) << 30, "rows", STK_KEY_DIGEST | STK_KEY_LATER,
	       "instead of rows: rows of a step, divided among all ranks and micro-batches; the step is the same for every world that divides it"),
	NUMBER(global_tokens, STK_KEY_U64, NULL, 1, UINT64_C(1) << 48, "tokens", STK_KEY_DIGEST | STK_KEY_LATER,
	       "instead of rows: budget of padded tokens of a step, divided among all ranks and micro-batches"),
	NUMBER(world_multiple, STK_KEY_U32, "8", 1, 65536, "rows", STK_KEY_DIGEST | STK_KEY_LATER,
	       "with global_tokens: rows of a step are a multiple of this, and world * accumulate must divide it; with both global keys the last step of an epoch has at least so many rows"),
	NUMBER(row_multiple, STK_KEY_U32, "1", 1, 65536, "rows", STK_KEY_DIGEST | STK_KEY_LATER,
	       "rows of a full batch are a multiple of this"),
	NUMBER(largest_first, STK_KEY_BOOL, "false", 0, 0, NULL, STK_KEY_DIGEST | STK_KEY_LATER,
	       "each epoch begins with a step of its largest shape class, so that memory that does not suffice shows at once"),
	NUMBER(accumulate, STK_KEY_U32, "1", 1, 1024, "micro-batches", STK_KEY_DIGEST,
	       "micro-batches of one step and rank (gradient accumulation)"),
	NUMBER(multiple_of, STK_KEY_U32, "8", 1, 65536, "tokens", STK_KEY_DIGEST,
	       "padded lengths are multiples of this"),
	CHOICE(pad_to, "longest", pad_to_names, STK_KEY_DIGEST,
	       "padded length: of the longest row of the step, or the edge of its bucket"),
	CHOICE(tail, "short", tail_names, STK_KEY_DIGEST,
	       "last step of an epoch: fewer rows, masked rows, or dropped and counted"),
	CHOICE(on_bad_sample, "error", on_bad_names, STK_KEY_DIGEST | STK_KEY_LATER,
	       "a sample with a value out of range (fields with range: error) ends the stream, or becomes a "
	       "masked row that is counted and listed (stokerctl quarantine), the same on each replay"),
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
	NUMBER(allow_changed, STK_KEY_BOOL, "false", 0, 0, NULL, 0,
	       "take a state of other data or another spec: go on where it fits, else begin its epoch again"),
	NUMBER(prefetch, STK_KEY_U32, "8", 2, 1024, "batches", 0,
	       "batches made ahead for each rank"),
	NUMBER(weight, STK_KEY_U32, "1", 1, 1000, NULL, 0,
	       "share of each rank in the workers while several want them: one of weight 3 gets three times the bytes of one of weight 1; an attach to the system daemon may lower what is configured (1 for a path), not raise it"),
	CHOICE(lock, NULL, need_names, 0,
	       "lock batch memory in RAM; left out: the daemon's"),
	CHOICE(numa, NULL, need_names, 0,
	       "place batch memory on the trainer's NUMA node; left out: the daemon's"),
	CUSTOM(fields, STK_KEY_DIGEST,
	       "tensors of a batch, a list of maps of the field keys; left out: see default_fields",
	       stk__spec_fields_parse, stk__spec_fields_to_json),
	CHOICE(default_fields, "stored", default_fields_names, STK_KEY_DIGEST | STK_KEY_LATER,
	       "tensors without fields: every field as stored and attention_mask (bool), or as torch has them: integers but fixed bytes as i64, labels of the length field padded with -100, attention_mask (i64)"),
};
/* clang-format on */

static const struct stk_key_hint hints[] = {
	{"batch_size", "use rows"},
	{"batch_sizes",
	 "use rows (one number, or a list of one for each bucket) or tokens (a budget)"},
	{"bucket_batch_limit",
	 "use rows (one number, or a list of one for each bucket) or tokens (a budget)"},
	{"bucket_batch_sizes",
	 "use rows (one number, or a list of one for each bucket) or tokens (a budget)"},
	{"micro_batch_size", "use rows"},
	{"gradient_accumulation_steps", "use accumulate"},
	{"max_tokens", "use tokens"},
	{"max_token_count", "use tokens"},
	{"max_duration", "use tokens"},
	{"batch_tokens", "use tokens"},
	{"shuffle", "use order: full or order: none"},
	{"shuffle_seed", "use seed"},
	{"shuffle_block_size", "use order: block and block"},
	{"stopping_strategy", "use stop"},
	{"probabilities", "use data: [{path: PATH, weight: 1.0}]"},
	{"weights", "use data: [{path: PATH, weight: 1.0}]"},
	{"global_batch_size", "use global_rows"},
	{"batch_size_multiple", "use row_multiple"},
	{"required_batch_size_multiple", "use row_multiple"},
	{"min_length", "use keep: {min_length: 1}"},
	{"filter_by_length", "use keep: {min_length: 1, max_length: 512}"},
	{"drop_last", "use tail: drop"},
	{"drop_remainder", "use tail: drop"},
	{"num_workers", "use the daemon's workers (configuration key workers)"},
	{"prefetch_factor", "use prefetch"},
	{"buffer_size", "use prefetch"},
	{"pin_memory",
	 "not needed, batches are always in page-locked memory (lock: require insists on it); "
	 "for a GPU, Python has Loader(device=...) and Loader(pin=True)"},
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

/* The ways to say how many rows a batch has: the newer word wins, both in one map is an error. */
static const char *const sizes[] = {"rows", "tokens", "cost", "global_rows", "global_tokens"};

static void clear_size(struct stk_spec *spec, size_t i)
{
	switch (i) {
	case 0:
		spec->rows = 0;
		spec->nrows = 0;
		memset(spec->rows_list, 0, sizeof(spec->rows_list));
		break;
	case 1:
		spec->tokens = 0;
		break;
	case 2:
		spec->cost = (struct stk_spec_cost){0};
		break;
	case 3:
		spec->global_rows = 0;
		break;
	default:
		spec->global_tokens = 0;
	}
}

static bool has_size(const struct stk_spec *spec)
{
	return spec->rows || spec->nrows || spec->tokens || spec->cost.budget ||
	       stk_spec_is_global(spec);
}

static const char *text_of(const struct stk_tree *node)
{
	return node->type == STK_TREE_SCALAR ? node->text : "...";
}

static int settle(struct stk_spec *spec, const struct stk_tree *map, struct stk_err *err)
{
	size_t newest = STK_ARRAY_SIZE(sizes);

	for (size_t i = 0; i < STK_ARRAY_SIZE(sizes); i++) {
		const struct stk_tree *node = given(map, sizes[i]), *other;

		if (node && newest < STK_ARRAY_SIZE(sizes)) {
			other = given(map, sizes[newest]);
			return stk_err_set(err, -EINVAL,
					   "%s: both %s (%s) and %s (%s) are given, only one of "
					   "them is allowed",
					   node->place, sizes[newest], text_of(other), sizes[i],
					   text_of(node));
		}
		newest = node ? i : newest;
	}
	for (size_t i = 0; i < STK_ARRAY_SIZE(sizes); i++)
		if (newest < STK_ARRAY_SIZE(sizes) && i != newest)
			clear_size(spec, i);
	if (!has_size(spec))
		spec->rows = ROWS_DEFAULT;
	if (given(map, "buckets") && !given(map, "edges"))
		stk__spec_edges_clear(spec);
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
		{"length", "names two fields, which is for group: bucket",
		 spec->length2 && spec->group != STK_GROUP_BUCKET},
		{"rows", "is a list, which is for group: bucket",
		 spec->nrows && spec->group != STK_GROUP_BUCKET},
		{"largest_first", "is for group: bucket",
		 spec->largest_first && spec->group != STK_GROUP_BUCKET},
		{"epochs", "must be 0 with stop: never, which has none",
		 spec->epochs && spec->stop == STK_STOP_NEVER},

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
	r = stk__spec_plan_check(spec, map, err);
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
	stk__spec_plan_free(spec);
	free(spec);
	return NULL;
}
