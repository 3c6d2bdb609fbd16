/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fields of a spec: the table of their keys, and what must hold between the keys of one field
 * (element type for what is made, pad value within it). No state, any thread.
 */
#include "proto/spec_field.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const make_names[] = {
	"copy",        "mask",         "lengths",    "sample_ids",
	"segment_ids", "position_ids", "cu_seqlens", "cu_seqlens_padded",
	"max_seqlen",  "random_key",   NULL};
static const char *const side_names[] = {"right", "left", NULL};
static const char *const channel_names[] = {"last", "first", NULL};
static const char *const range_names[] = {"refuse", "error", "saturate", "wrap", NULL};
static const char *const crop_names[] = {"centre", "random", NULL};
static const char *const flip_names[] = {"none", "random", NULL};
static const char *const positions_names[] = {"restart", "sample", "row", NULL};

#define DTYPES                                                                                     \
	"bool, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64, f8_e4m3, f8_e5m2, c64"

static int parse_dtype(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_field *field = object;
	enum stk_dtype dtype = STK_DTYPE_NONE;

	if (node->type == STK_TREE_SCALAR)
		dtype = stk_dtype_from_spec(node->text);
	/* Codes above C64 are known to the shard reader only. */
	if (node->type != STK_TREE_NULL && (dtype == STK_DTYPE_NONE || dtype > STK_DTYPE_C64))
		return stk_tree_refuse(node, err, "one of " DTYPES);
	field->dtype = dtype;
	return 0;
}

static json_t *dtype_to_json(const void *object)
{
	const struct stk_spec_field *field = object;
	char name[16] = "";

	if (field->dtype == STK_DTYPE_NONE)
		return json_null();
	for (size_t i = 0; i < sizeof(name) - 1 && stk_dtype_name(field->dtype)[i]; i++) {
		char c = stk_dtype_name(field->dtype)[i];

		name[i] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
	}
	return json_string(name);
}

/* "nan", "inf", "-inf", as YAML (".nan") and JSON messages (strings) write them. */
static bool special(const char *text, double *ret)
{
	double sign = *text == '-' ? -1.0 : 1.0;

	if (*text == '-')
		text++;
	if (*text == '.')
		text++;
	if (!strcasecmp(text, "inf"))
		*ret = sign * (double)INFINITY;
	else if (!strcasecmp(text, "nan"))
		*ret = (double)NAN;
	else
		return false;
	return true;
}

/* A whole number is in both forms; other numbers leave pad at 0, so that pad != pad_float tells. */
static bool is_whole(const struct stk_spec_field *field)
{
	return (double)field->pad == field->pad_float;
}

static int parse_pad(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_field *field = object;
	int64_t i = 0;
	double d = 0.0;

	if (node->type == STK_TREE_NULL) {
		field->pad_set = false;
		field->pad = 0;
		field->pad_float = 0.0;
		return 0;
	}
	if (!stk_tree_i64(node, &i, NULL)) {
		d = (double)i;
	} else if (node->type != STK_TREE_SCALAR ||
		   (!stk_tree_number(node, &d) && !special(node->text, &d))) {
		return stk_tree_refuse(
			node, err, "a whole number of 64 bits, a decimal number, nan, inf or -inf");
	} else if (fabs(d) < 0x1p53 && d == (double)(int64_t)d) {
		i = (int64_t)d; /* "0.0" pads integers too */
	}
	field->pad_set = true;
	field->pad = i;
	field->pad_float = d;
	return 0;
}

static json_t *pad_to_json(const void *object)
{
	const struct stk_spec_field *field = object;
	double d = field->pad_float;

	if (!field->pad_set)
		return json_null();
	if (is_whole(field) && !(d == 0.0 && signbit(d)))
		return json_integer(field->pad);
	if (isnan(d))
		return json_string("nan");
	if (isinf(d))
		return json_string(d < 0 ? "-inf" : "inf");
	return json_real(d);
}

static int parse_separator(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_field *field = object;

	field->separator_set = node->type != STK_TREE_NULL;
	field->separator = 0;
	return field->separator_set ? stk_tree_i64(node, &field->separator, err) : 0;
}

static json_t *separator_to_json(const void *object)
{
	const struct stk_spec_field *field = object;

	return field->separator_set ? json_integer(field->separator) : json_null();
}

#define FIELD(member) offsetof(struct stk_spec_field, member)

static const struct stk_key field_keys[] = {
	{"name", STK_KEY_STRING, FIELD(name), NULL, 1, STK_SPEC_NAME_MAX, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_REQUIRED, "name of the tensor in the batch", NULL, NULL},
	{"from", STK_KEY_STRING, FIELD(from), NULL, 1, STK_SPEC_NAME_MAX, NULL, NULL,
	 STK_KEY_DIGEST,
	 "stored field it is made from; left out: the same name (copy) or the length field (mask, "
	 "lengths)",
	 NULL, NULL},
	{"make", STK_KEY_ENUM, FIELD(make), "copy", 0, 0, make_names, NULL, STK_KEY_DIGEST,
	 "what it holds: a stored field, 1 for real tokens and 0 for padding, the real lengths, "
	 "the sample ids; of packed rows: 1, 2, ... for their segments and 0 for padding, "
	 "positions, sums of lengths (padding left out, or counted with the segment before it), "
	 "the longest segment; a number drawn from seed, epoch and sample id",
	 NULL, NULL},
	{"dtype", STK_KEY_CUSTOM, FIELD(dtype), NULL, 0, 0, NULL, NULL, STK_KEY_DIGEST,
	 "element type, one of " DTYPES
	 "; left out: as stored (copy), bool (mask), i64 (sample_ids), else i32",
	 parse_dtype, dtype_to_json},
	{"pad", STK_KEY_CUSTOM, FIELD(pad), NULL, 0, 0, NULL, NULL, STK_KEY_DIGEST,
	 "value of padding (copy only), a number that fits dtype; left out: 0", parse_pad,
	 pad_to_json},
	{"side", STK_KEY_ENUM, FIELD(side), "right", 0, 0, side_names, NULL, STK_KEY_DIGEST,
	 "side of a row on which the padding is", NULL, NULL},
	{"positions", STK_KEY_ENUM, FIELD(positions), "restart", 0, 0, positions_names, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "where position_ids begin again: at each segment, at each sample (the second piece of a "
	 "split one goes on), or at each row; padding goes on in each case",
	 NULL, NULL},
	{"start", STK_KEY_U32, FIELD(start), "0", 0, 65535, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER, "first number of position_ids", NULL, NULL},
	{"separator", STK_KEY_CUSTOM, FIELD(separator), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "value behind each sample (copy, in streams with separator: true), a whole number that "
	 "fits dtype; left out: pad",
	 parse_separator, separator_to_json},
	{"shift", STK_KEY_BOOL, FIELD(shift), "false", 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "labels (copy): each place holds the next token of its sample, and the last place pad, so "
	 "that none crosses into another sample",
	 NULL, NULL},
	{"scale", STK_KEY_CUSTOM, FIELD(ops.scale), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "each value times this (copy), a number, or a list with one for each channel; before bias",
	 stk__ops_parse_scale, stk__ops_scale_to_json},
	{"bias", STK_KEY_CUSTOM, FIELD(ops.bias), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "each value plus this (copy), a number, or a list with one for each channel",
	 stk__ops_parse_bias, stk__ops_bias_to_json},
	{"channel", STK_KEY_ENUM, FIELD(ops.channel), "last", 0, 0, channel_names, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "dimension of the stored sample, or of a stored element, that lists of scale and bias are "
	 "of",
	 NULL, NULL},
	{"clamp", STK_KEY_CUSTOM, FIELD(ops.clamp), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "smallest and largest value (copy), such as [0, 1]; after scale and bias",
	 stk__ops_parse_clamp, stk__ops_clamp_to_json},
	{"modulo", STK_KEY_U64, FIELD(ops.modulo), "0", 0, INT64_MAX, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "whole numbers become their rest by this, from 0 on (copy); 0: not", NULL, NULL},
	{"range", STK_KEY_ENUM, FIELD(ops.range), "refuse", 0, 0, range_names, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "what a cast does that may lose range (copy): is refused (from one float to another it "
	 "becomes infinite); a value out of range makes a bad sample, or becomes the nearest one, "
	 "or keeps the bits that fit",
	 NULL, NULL},
	{"where", STK_KEY_STRING, FIELD(ops.where), NULL, 1, STK_SPEC_NAME_MAX, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "stored field of the same lengths (copy); values become pad where it is 0, whether they "
	 "fit or not",
	 NULL, NULL},
	{"crop", STK_KEY_CUSTOM, FIELD(ops.crop), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "height and width of what is cut out of each image (copy): the first two dimensions of a "
	 "sample, or the two behind the channels with channel: first",
	 stk__ops_parse_crop, stk__ops_crop_to_json},
	{"crop_at", STK_KEY_ENUM, FIELD(ops.crop_at), "centre", 0, 0, crop_names, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "where it is cut out; random: by seed, epoch and sample id alone, alike for all fields of "
	 "the same size",
	 NULL, NULL},
	{"flip", STK_KEY_ENUM, FIELD(ops.flip), "none", 0, 0, flip_names, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "random: every other image is mirrored, left to right (copy); by seed, epoch and sample "
	 "id alone, alike for all fields",
	 NULL, NULL},
	{"transpose", STK_KEY_CUSTOM, FIELD(ops.transpose), NULL, 0, 0, NULL, NULL,
	 STK_KEY_DIGEST | STK_KEY_LATER,
	 "order in which the axes of a sample lie in the batch (copy), such as [2, 0, 1] for HWC "
	 "to CHW",
	 stk__ops_parse_transpose, stk__ops_transpose_to_json},
};
static_assert(sizeof(enum stk_make) == sizeof(int) && sizeof(enum stk_side) == sizeof(int) &&
		      sizeof(enum stk_positions) == sizeof(int),
	      "STK_KEY_ENUM stores an int");

static const struct stk_key_hint field_hints[] = {
	{"pad_value", "use pad"},      {"padding_value", "use pad"},
	{"pad_token_id", "use pad"},   {"label_pad_token_id", "use pad"},
	{"padding_side", "use side"},  {"pad_side", "use side"},
	{"source", "use from"},        {"type", "use dtype"},
	{"kind", "use make"},          {"mean", "use bias: -mean / std"},
	{"std", "use scale: 1 / std"}, {"normalize", "use scale and bias"},
};

const struct stk_key_table stk_spec_field_table = {
	.keys = field_keys,
	.nkeys = STK_ARRAY_SIZE(field_keys),
	.hints = field_hints,
	.nhints = STK_ARRAY_SIZE(field_hints),
	.what = "field key",
};

static void field_deinit(struct stk_spec_field *field)
{
	free(field->name);
	free(field->from);
	free(field->ops.where);
}

void stk__spec_fields_free(struct stk_spec *spec)
{
	for (size_t i = 0; i < spec->nfields; i++)
		field_deinit(&spec->fields[i]);
	free(spec->fields);
	spec->fields = NULL;
	spec->nfields = 0;
}

/* The child that a message should name, else the whole field. */
static const char *place_of(const struct stk_tree *node, const char *key)
{
	const struct stk_tree *child = stk_tree_get(node, key);

	return child ? child->place : node->place;
}

static int check_made_dtype(const struct stk_spec_field *field, const struct stk_tree *node,
			    struct stk_err *err)
{
	/* Bits by dtype code. */
	static const uint32_t made[] = {
		[STK_MAKE_MASK] = 1u << STK_DTYPE_BOOL | 1u << STK_DTYPE_U8 | 1u << STK_DTYPE_I32 |
				  1u << STK_DTYPE_I64,
		[STK_MAKE_LENGTHS] = 1u << STK_DTYPE_I32 | 1u << STK_DTYPE_I64,
		[STK_MAKE_SAMPLE_IDS] = 1u << STK_DTYPE_I64,
		[STK_MAKE_SEGMENT_IDS] = 1u << STK_DTYPE_I32 | 1u << STK_DTYPE_I64,
		[STK_MAKE_POSITION_IDS] = 1u << STK_DTYPE_I32 | 1u << STK_DTYPE_I64,
		[STK_MAKE_CU_SEQLENS] = 1u << STK_DTYPE_I32,
		[STK_MAKE_CU_SEQLENS_PADDED] = 1u << STK_DTYPE_I32,
		[STK_MAKE_MAX_SEQLEN] = 1u << STK_DTYPE_I32,
		[STK_MAKE_RANDOM_KEY] = 1u << STK_DTYPE_I64 | 1u << STK_DTYPE_U64,
	};
	static const char *const allowed[] = {
		[STK_MAKE_MASK] = "bool, u8, i32 or i64",
		[STK_MAKE_LENGTHS] = "i32 or i64",
		[STK_MAKE_SAMPLE_IDS] = "i64",
		[STK_MAKE_SEGMENT_IDS] = "i32 or i64",
		[STK_MAKE_POSITION_IDS] = "i32 or i64",
		[STK_MAKE_CU_SEQLENS] = "i32",
		[STK_MAKE_CU_SEQLENS_PADDED] = "i32",
		[STK_MAKE_MAX_SEQLEN] = "i32",
		[STK_MAKE_RANDOM_KEY] = "i64 or u64",
	};

	if (field->make == STK_MAKE_COPY || field->dtype == STK_DTYPE_NONE ||
	    (made[field->make] >> field->dtype & 1))
		return 0;
	return stk_err_set(err, -EINVAL, "%s: field \"%s\" with make: %s has dtype %s, allowed: %s",
			   place_of(node, "dtype"), field->name, make_names[field->make],
			   stk_dtype_name(field->dtype), allowed[field->make]);
}

static int bad_pad(const struct stk_spec_field *field, const struct stk_tree *node,
		   const char *range, struct stk_err *err)
{
	const struct stk_tree *pad = stk_tree_get(node, "pad");

	return stk_err_set(err, -EINVAL,
			   "%s: pad %s of field \"%s\" does not fit dtype %s, allowed: %s",
			   place_of(node, "pad"), pad && pad->text ? pad->text : "", field->name,
			   stk_dtype_name(field->dtype), range);
}

/* Largest finite value of a float type. */
static double float_max(enum stk_dtype dtype)
{
	switch (dtype) {
	case STK_DTYPE_F16:
		return 65504.0;
	case STK_DTYPE_BF16:
		return 0x1.fep127;
	case STK_DTYPE_F32:
		return 0x1.fffffep127;
	default:
		return 0x1.fffffffffffffp1023;
	}
}

static int check_pad(const struct stk_spec_field *field, const struct stk_tree *node,
		     struct stk_err *err)
{
	int64_t min = stk_dtype_min(field->dtype), max = stk_dtype_max(field->dtype);
	char range[96];

	if (!field->pad_set)
		return 0;
	if (field->make != STK_MAKE_COPY)
		return stk_err_set(err, -EINVAL,
				   "%s: field \"%s\" has a pad, which is for make: copy, not %s",
				   place_of(node, "pad"), field->name, make_names[field->make]);
	if (field->dtype == STK_DTYPE_NONE)
		return 0; /* the stored type decides */
	switch (stk_dtype_class(field->dtype)) {
	case STK_DTYPE_IS_FLOAT:
		snprintf(range, sizeof(range), "-%.8g to %.8g, nan, inf and -inf",
			 float_max(field->dtype), float_max(field->dtype));
		return isfinite(field->pad_float) &&
				       fabs(field->pad_float) > float_max(field->dtype)
			       ? bad_pad(field, node, range, err)
			       : 0;
	case STK_DTYPE_IS_OTHER:
		return field->pad_float != 0.0 ? bad_pad(field, node, "0", err) : 0;
	default:
		snprintf(range, sizeof(range), "whole numbers from %" PRId64 " to %" PRId64, min,
			 max);
		return !is_whole(field) || field->pad < min || field->pad > max
			       ? bad_pad(field, node, range, err)
			       : 0;
	}
}

/* Keys of one kind of field, given to another: place, key and kind. */
static int check_kind(const struct stk_spec_field *field, const struct stk_tree *node,
		      struct stk_err *err)
{
	bool copy = field->make == STK_MAKE_COPY, positions = field->make == STK_MAKE_POSITION_IDS;
	const char *op = stk_spec_ops_given(&field->ops);
	const struct {
		const char *key, *kind;
		bool wrong;
	} rules[] = {
		{"separator", "copy", field->separator_set && !copy},
		{"shift", "copy", field->shift && !copy},
		{"positions", "position_ids",
		 field->positions != STK_POSITIONS_RESTART && !positions},
		{"start", "position_ids", field->start && !positions},
		{"from", "copy, mask and lengths", field->from && field->make > STK_MAKE_LENGTHS},
		{op ? op : "scale", "copy", op && !copy},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(rules); i++)
		if (rules[i].wrong)
			return stk_err_set(err, -EINVAL,
					   "%s: field \"%s\" with make: %s has %s, which is for %s",
					   place_of(node, rules[i].key), field->name,
					   make_names[field->make], rules[i].key, rules[i].kind);
	return 0;
}

static int check_field(const struct stk_spec *spec, const struct stk_spec_field *field,
		       const struct stk_tree *node, struct stk_err *err)
{
	int r;

	for (size_t i = 0; &spec->fields[i] != field; i++)
		if (!strcmp(spec->fields[i].name, field->name))
			return stk_err_set(err, -EINVAL,
					   "%s: field \"%s\" is already defined, names must differ",
					   place_of(node, "name"), field->name);
	if (field->make == STK_MAKE_SAMPLE_IDS && field->from)
		return stk_err_set(
			err, -EINVAL,
			"%s: field \"%s\" has from: \"%s\", which make: sample_ids does not use",
			place_of(node, "from"), field->name, field->from);
	r = check_made_dtype(field, node, err);
	if (r == 0)
		r = check_kind(field, node, err);
	return r < 0 ? r : check_pad(field, node, err);
}

static int parse_field(struct stk_spec *spec, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec_field *field = &spec->fields[spec->nfields];
	int r;

	spec->nfields++; /* from here on freed with the spec */
	if (node->type != STK_TREE_MAP)
		return stk_tree_refuse(node, err,
				       "a map such as {name: input_ids, dtype: i32, pad: 0}");
	r = stk_keys_defaults(&stk_spec_field_table, field, err);
	if (r < 0)
		return r;
	r = stk_keys_walk(&stk_spec_field_table, field, node, NULL, err);
	return r < 0 ? r : check_field(spec, field, node, err);
}

int stk__spec_fields_parse(void *object, const struct stk_tree *node, struct stk_err *err)
{
	struct stk_spec *spec = object;

	stk__spec_fields_free(spec);
	if (node->type == STK_TREE_NULL)
		return 0;
	if (node->type != STK_TREE_LIST || !node->nchildren ||
	    node->nchildren > STK_SPEC_FIELDS_MAX)
		return stk_tree_refuse(node, err, "a list of 1 to %d fields", STK_SPEC_FIELDS_MAX);
	spec->fields = calloc(node->nchildren, sizeof(*spec->fields));
	if (!spec->fields)
		return stk_err_set(err, -ENOMEM, "%s: no memory", node->place);
	for (size_t i = 0; i < node->nchildren; i++) {
		int r = parse_field(spec, node->children[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

/* Without the keys of later releases that nobody gave: this text is part of the spec's digest. */
static json_t *field_to_json(const struct stk_spec_field *field)
{
	json_t *json = stk_keys_to_json(&stk_spec_field_table, field);

	for (size_t i = 0; i < STK_ARRAY_SIZE(field_keys); i++)
		if (field_keys[i].flags & STK_KEY_LATER &&
		    stk_key_is_default(&field_keys[i], field))
			json_object_del(json, field_keys[i].name);
	return json;
}

json_t *stk__spec_fields_to_json(const void *object)
{
	const struct stk_spec *spec = object;
	json_t *list;

	if (!spec->fields)
		return json_null();
	list = json_array();
	for (size_t i = 0; i < spec->nfields; i++) {
		json_t *field = field_to_json(&spec->fields[i]);

		if (json_array_append_new(list, field) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}
