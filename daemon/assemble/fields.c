/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compiles the fields of a spec against the fields of a dataset, and refuses what cannot be done
 * before anything is allocated for a feed. One thread, once per stream.
 */
#include "daemon/assemble/fields.h"
#include "daemon/assemble/transform.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A list of words for an error text; cut at its end when there are too many. */
struct words {
	char text[512];
	size_t size;
};

static void words_add(struct words *words, const char *word)
{
	size_t room = sizeof(words->text) - words->size;
	int n = snprintf(words->text + words->size, room, "%s%s", words->size ? ", " : "", word);

	words->size += n < 0 ? 0 : STK_MIN((size_t)n, room - 1);
}

static int refuse_unknown(const struct stkd_dataset *dataset, const char *name, const char *from,
			  struct stk_err *err)
{
	const char *names[STKD_SHARD_FIELDS_MAX + 1] = {NULL};
	struct words words = {.size = 0};
	const char *nearest;

	for (uint32_t i = 0; i < dataset->nfields; i++) {
		if (i < STKD_SHARD_FIELDS_MAX)
			names[i] = dataset->fields[i].name;
		words_add(&words, dataset->fields[i].name);
	}
	nearest = stk_nearest(from, names);
	return stk_err_set(err, -EINVAL, "field \"%s\": %s has no field \"%s\"%s%s%s; it has %s",
			   name, dataset->path, from, nearest ? ", did you mean \"" : "",
			   nearest ? nearest : "", nearest ? "\"?" : "", words.text);
}

/* Types of a made field; the first is the default. */
static int made_dtype(const struct stk_spec_field *field, const enum stk_dtype *allowed, size_t n,
		      enum stk_dtype *ret, struct stk_err *err)
{
	struct words words = {.size = 0};

	for (size_t i = 0; i < n; i++) {
		if (field->dtype == allowed[i] || field->dtype == STK_DTYPE_NONE) {
			*ret = allowed[i];
			return 0;
		}
		words_add(&words, stk_dtype_name(allowed[i]));
	}
	return stk_err_set(err, -EINVAL, "field \"%s\": dtype %s; possible for a made field: %s",
			   field->name, stk_dtype_name(field->dtype), words.text);
}

static int find_stored(const struct stkd_assembly *assembly, const char *name, const char *from,
		       uint32_t *ret, struct stk_err *err)
{
	for (uint32_t i = 0; i < assembly->dataset->nfields; i++) {
		if (!strcmp(assembly->dataset->fields[i].name, from)) {
			*ret = i;
			return 0;
		}
	}
	return refuse_unknown(assembly->dataset, name, from, err);
}

/* Column of a stored field's extents. There are no more columns than ops. */
static uint32_t add_column(struct stkd_assembly *assembly, uint32_t stored, uint64_t element_size)
{
	uint32_t i = 0;

	while (i < assembly->ncolumns && assembly->columns[i] != stored)
		i++;
	if (i == assembly->ncolumns)
		assembly->ncolumns++;
	assembly->columns[i] = (uint16_t)stored;
	assembly->element_size[i] = element_size;
	return i;
}

/* Bytes of one stored element; types below a byte have no address of their own. */
static int element_size(const char *name, const struct stkd_field *stored, uint64_t *ret,
			struct stk_err *err)
{
	size_t size = stk_dtype_size(stored->dtype);

	if (!size)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": stored %s has %u bits, not whole bytes", name,
				   stk_dtype_name(stored->dtype), stk_dtype_bits(stored->dtype));
	if (stk_mul_overflow(stored->inner_count, (uint64_t)size, ret))
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": %" PRIu64 " values in one element of \"%s\"",
				   name, stored->inner_count, stored->name);
	return 0;
}

/* Gives the op the width of a ragged field: one of the batch's, or the longest sample's of its own. */
static int set_width(struct stkd_assembly *assembly, struct stkd_op *op, uint32_t stored,
		     uint32_t multiple_of, struct stk_err *err)
{
	const struct stkd_dataset *dataset = assembly->dataset;
	uint64_t longest = dataset->longest[stored], width, size = 0;
	int r;

	op->ragged = true;
	op->aligned = dataset->aligned[stored] || stored == dataset->length_field;
	if (op->aligned)
		return 0;
	if (stk_add_overflow(longest, (uint64_t)STK_MAX(multiple_of, 1) - 1, &width) ||
	    stk_round_up(longest, STK_MAX(multiple_of, 1)) > UINT32_MAX)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": longest sample has %" PRIu64
				   " elements, at most %" PRIu32,
				   op->name, longest, UINT32_MAX);
	/* Group bucket alone plans a second width. */
	op->aligned2 = dataset->aligned2[stored] && !assembly->packed;
	op->width = op->aligned2 ? 0 : (uint32_t)stk_round_up(longest, STK_MAX(multiple_of, 1));
	r = element_size(op->name, &dataset->fields[stored], &size, err);
	if (r < 0)
		return r;
	op->column = add_column(assembly, stored, size);
	return 0;
}

static int set_pad(struct stkd_op *op, const struct stk_spec_field *field, struct stk_err *err)
{
	bool whole;
	int r;

	if (!field->pad_set)
		return 0;
	/* The spec has a whole number in both forms; of others the integer form is 0. */
	whole = (double)field->pad == field->pad_float;
	r = stkd_value_encode(op->to, field->pad, field->pad_float, &op->pad);
	if (r == 0 && (whole || stk_dtype_class(op->to) == STK_DTYPE_IS_FLOAT))
		return 0;
	if (stk_dtype_class(op->to) == STK_DTYPE_IS_FLOAT)
		return stk_err_set(err, -EINVAL, "field \"%s\": pad %g does not fit %s", op->name,
				   field->pad_float, stk_dtype_name(op->to));
	if (stk_dtype_class(op->to) == STK_DTYPE_IS_OTHER)
		return stk_err_set(err, -EINVAL, "field \"%s\": pad of %s can only be 0", op->name,
				   stk_dtype_name(op->to));
	return stk_err_set(err, -EINVAL,
			   "field \"%s\": pad %.17g does not fit %s, whole numbers from %" PRIi64
			   " to %" PRIi64,
			   op->name, field->pad_float, stk_dtype_name(op->to),
			   stk_dtype_min(op->to), stk_dtype_max(op->to));
}

/* A separator that is not given is padding. */
static int set_separator(struct stkd_op *op, const struct stk_spec_field *field,
			 struct stk_err *err)
{
	op->separator = op->pad;
	if (!field->separator_set ||
	    stkd_value_encode(op->to, field->separator, (double)field->separator, &op->separator) ==
		    0)
		return 0;
	return stk_err_set(err, -EINVAL, "field \"%s\": separator %" PRIi64 " does not fit %s",
			   op->name, field->separator, stk_dtype_name(op->to));
}

/* The mask must say something of each element: as long, and one whole number for each. */
static int find_where(struct stkd_assembly *assembly, const struct stkd_op *op, const char *name,
		      uint32_t *ret_column, size_t *ret_size, struct stk_err *err)
{
	const struct stkd_field *stored;
	uint32_t index = 0;
	int r = find_stored(assembly, op->name, name, &index, err);

	if (r < 0)
		return r;
	stored = &assembly->dataset->fields[index];
	if (!op->aligned || !stored->ragged ||
	    !(assembly->dataset->aligned[index] || index == assembly->dataset->length_field))
		return stk_err_set(
			err, -EINVAL,
			"field \"%s\": where: \"%s\": both need the lengths of the length "
			"field \"%s\"",
			op->name, name,
			assembly->dataset->fields[assembly->dataset->length_field].name);
	if (stored->inner_count != 1 || (stk_dtype_class(stored->dtype) != STK_DTYPE_IS_INT &&
					 stk_dtype_class(stored->dtype) != STK_DTYPE_IS_BOOL))
		return stk_err_set(
			err, -EINVAL,
			"field \"%s\": where: \"%s\" has %" PRIu64
			" values of %s in an element; one BOOL or whole number is needed",
			op->name, name, stored->inner_count, stk_dtype_name(stored->dtype));
	*ret_size = stk_dtype_size(stored->dtype);
	*ret_column = add_column(assembly, index, *ret_size);
	return 0;
}

static int set_transform(struct stkd_assembly *assembly, struct stkd_op *op,
			 const struct stk_spec_field *field, struct stk_err *err)
{
	uint32_t where = STKD_NO_COLUMN;
	size_t where_size = 0;
	int r;

	if (op->shift && !op->ragged)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": shift; it has one value for each sample",
				   op->name);
	if (field->ops.where) {
		r = find_where(assembly, op, field->ops.where, &where, &where_size, err);
		if (r < 0)
			return r;
	}
	r = stkd_transform_new(op, &field->ops, where, where_size, &op->transform, err);
	if (r < 0)
		return stk_err_prefix(err, "field \"%s\": ", op->name);
	if (op->ragged && !op->transform && !op->shift && !op->left)
		op->row = stkd_row_find(op->from, op->to);
	return 0;
}

static int compile_copy(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	const struct stkd_field *stored;
	uint64_t source_size = 0;
	uint32_t index = 0;
	int r;

	r = find_stored(assembly, field->name, field->from ? field->from : field->name, &index,
			err);
	if (r < 0)
		return r;
	stored = &assembly->dataset->fields[index];
	r = element_size(field->name, stored, &source_size, err);
	if (r < 0)
		return r;
	op->from = stored->dtype;
	op->to = field->dtype == STK_DTYPE_NONE ? stored->dtype : field->dtype;
	op->copy = stkd_copy_find(op->from, op->to);
	if (op->to > STK_DTYPE_C64)
		return stk_err_set(err, -EINVAL, "field \"%s\": %s has no place in a batch",
				   field->name, stk_dtype_name(op->to));
	op->ndims = stored->ndims;
	memcpy(op->inner, stored->inner, sizeof(op->inner));
	op->inner_count = stored->inner_count;
	if (stk_mul_overflow(op->inner_count, (uint64_t)stk_dtype_size(op->to), &op->size))
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": %" PRIu64 " values of %s in one element",
				   field->name, op->inner_count, stk_dtype_name(op->to));
	op->column = add_column(assembly, index, source_size);
	op->shift = field->shift;
	r = set_pad(op, field, err);
	if (r == 0)
		r = set_separator(op, field, err);
	if (r == 0 && stored->ragged)
		r = set_width(assembly, op, index, spec->multiple_of, err);
	return r < 0 ? r : set_transform(assembly, op, field, err);
}

/* The ragged field that a mask or lengths are of. */
static int find_ragged(const struct stkd_assembly *assembly, const struct stk_spec_field *field,
		       uint32_t *ret, struct stk_err *err)
{
	const struct stkd_dataset *dataset = assembly->dataset;
	int r;

	*ret = dataset->length_field;
	if (field->from) {
		r = find_stored(assembly, field->name, field->from, ret, err);
		if (r < 0)
			return r;
	}
	if (!dataset->fields[*ret].ragged)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": from: \"%s\" has one shape for all samples; a "
				   "ragged field is "
				   "needed",
				   field->name, dataset->fields[*ret].name);
	return 0;
}

static int compile_mask(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_BOOL, STK_DTYPE_U8, STK_DTYPE_I32,
						 STK_DTYPE_I64};
	uint32_t index = 0;
	int r;

	r = made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);
	if (r == 0)
		r = find_ragged(assembly, field, &index, err);
	if (r == 0 && !op->left)
		op->row = stkd_row_ones(op->to);
	return r < 0 ? r : set_width(assembly, op, index, spec->multiple_of, err);
}

static int compile_lengths(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			   const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_I32, STK_DTYPE_I64};
	uint32_t index = 0;
	int r;

	r = made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);
	if (r == 0)
		r = find_ragged(assembly, field, &index, err);
	if (r == 0)
		r = set_width(assembly, op, index, spec->multiple_of, err);
	op->ragged = false; /* one value a row, that is counted with the width */
	return r;
}

static int compile_sample_ids(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			      const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_I64};

	(void)assembly;
	(void)spec;
	if (field->from)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": from: sample_ids are not made of a field",
				   field->name);
	return made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);
}

static int compile_segment_ids(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			       const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_I32, STK_DTYPE_I64};
	int r = made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);

	(void)assembly;
	(void)spec;
	op->ragged = op->aligned = true;
	op->positions = field->positions;
	op->start = field->start;
	return r;
}

/* Sums have one value more than there are segments; the longest segment is one value. */
static int compile_seqlens(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			   const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_I32};

	(void)assembly;
	(void)spec;
	op->once = field->make == STK_MAKE_MAX_SEQLEN;
	op->extra = op->once ? 0 : 1;
	return made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);
}

static int compile_random_key(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			      const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err)
{
	static const enum stk_dtype allowed[] = {STK_DTYPE_I64, STK_DTYPE_U64};

	(void)assembly;
	(void)spec;
	return made_dtype(field, allowed, STK_ARRAY_SIZE(allowed), &op->to, err);
}

typedef int (*compile_fn)(struct stkd_assembly *assembly, const struct stk_spec_field *field,
			  const struct stk_spec *spec, struct stkd_op *op, struct stk_err *err);

static const compile_fn compile[] = {
	[STK_MAKE_COPY] = compile_copy,
	[STK_MAKE_MASK] = compile_mask,
	[STK_MAKE_LENGTHS] = compile_lengths,
	[STK_MAKE_SAMPLE_IDS] = compile_sample_ids,
	[STK_MAKE_SEGMENT_IDS] = compile_segment_ids,
	[STK_MAKE_POSITION_IDS] = compile_segment_ids,
	[STK_MAKE_CU_SEQLENS] = compile_seqlens,
	[STK_MAKE_CU_SEQLENS_PADDED] = compile_seqlens,
	[STK_MAKE_MAX_SEQLEN] = compile_seqlens,
	[STK_MAKE_RANDOM_KEY] = compile_random_key,
};

/* What packed rows cannot hold, and what only they do. */
static int check_packed(const struct stkd_assembly *assembly, const struct stk_spec_field *field,
			const struct stkd_op *op, struct stk_err *err)
{
	bool segments = op->make >= STK_MAKE_SEGMENT_IDS && op->make <= STK_MAKE_MAX_SEQLEN;

	if (!assembly->packed && segments)
		return stk_err_set(
			err, -EINVAL,
			"field \"%s\": this make is of packed rows (group: pack or concat)",
			op->name);
	if (!assembly->packed)
		return 0;
	if (op->left)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": side: left; packed rows begin with a segment",
				   op->name);
	if (op->width || (op->ragged && !op->aligned))
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": the lengths of \"%s\" are not those of the "
				   "length field \"%s\": it has no place in packed rows",
				   op->name, field->from ? field->from : field->name,
				   assembly->dataset->fields[assembly->dataset->length_field].name);
	return 0;
}

static int add_field(struct stkd_assembly *assembly, const struct stk_spec_field *field,
		     const struct stk_spec *spec, struct stk_err *err)
{
	struct stkd_op *op;
	int r;

	if (assembly->nops == STK_SHM_MAX_FIELDS)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": a batch has at most %" PRIu32 " fields",
				   field->name, STK_SHM_MAX_FIELDS);
	if (field->make != STK_MAKE_COPY && field->pad_set)
		return stk_err_set(err, -EINVAL,
				   "field \"%s\": pad: the padding of a made field is fixed",
				   field->name);
	op = &assembly->ops[assembly->nops];
	*op = (struct stkd_op){
		.make = field->make,
		.left = field->side == STK_SIDE_LEFT,
		.column = STKD_NO_COLUMN,
		.inner_count = 1,
		.name = strdup(field->name),
	};
	if (!op->name)
		return stk_err_set(err, -ENOMEM, "field \"%s\": no memory", field->name);
	assembly->nops++;
	r = compile[field->make](assembly, field, spec, op, err);
	if (r < 0)
		return r;
	if (op->make != STK_MAKE_COPY)
		op->size = stk_dtype_size(op->to);
	op->fill = stkd_fill_find(stk_dtype_size(op->to));
	op->count = stkd_count_find(stk_dtype_size(op->to));
	return check_packed(assembly, field, op, err);
}

static bool has_field(const struct stkd_dataset *dataset, const char *name)
{
	for (uint32_t i = 0; i < dataset->nfields; i++)
		if (!strcmp(dataset->fields[i].name, name))
			return true;
	return false;
}

static bool is_integer(const struct stkd_field *stored)
{
	return stk_dtype_class(stored->dtype) == STK_DTYPE_IS_INT;
}

/* As torch wants it: indices of 64 bits, labels whose padding the loss ignores. Fixed bytes are pixels. */
static struct stk_spec_field torch_field(const struct stkd_field *stored)
{
	struct stk_spec_field copy = {.name = stored->name};
	bool labels = !strcmp(stored->name, "labels");

	if (!is_integer(stored) || (!stored->ragged && stored->dtype == STK_DTYPE_U8) ||
	    !stkd_copy_find(stored->dtype, STK_DTYPE_I64))
		return copy;
	copy.dtype = STK_DTYPE_I64;
	if (labels && stored->ragged) {
		copy.pad_set = true;
		copy.pad = -100;
		copy.pad_float = -100.0;
	}
	return copy;
}

/* Labels of the length field, unless some are stored or it does not hold tokens. */
static int add_torch_labels(struct stkd_assembly *assembly, const struct stk_spec *spec,
			    struct stk_err *err)
{
	const struct stkd_field *tokens =
		&assembly->dataset->fields[assembly->dataset->length_field];
	struct stk_spec_field labels = {
		.name = (char[]){"labels"},
		.from = tokens->name,
		.dtype = STK_DTYPE_I64,
		.pad_set = true,
		.pad = -100,
		.pad_float = -100.0,
	};

	if (has_field(assembly->dataset, labels.name) || !is_integer(tokens) || tokens->ndims)
		return 0;
	return add_field(assembly, &labels, spec, err);
}

/* What packed rows are of no use without: where their samples are. */
static int add_packed_fields(struct stkd_assembly *assembly, const struct stk_spec *spec,
			     struct stk_err *err)
{
	enum stk_dtype wide =
		spec->default_fields == STK_FIELDS_TORCH ? STK_DTYPE_I64 : STK_DTYPE_NONE;
	struct stk_spec_field made[] = {
		{.name = (char[]){"segment_ids"}, .make = STK_MAKE_SEGMENT_IDS, .dtype = wide},
		{.name = (char[]){"position_ids"}, .make = STK_MAKE_POSITION_IDS, .dtype = wide},
		{.name = (char[]){"cu_seqlens"}, .make = STK_MAKE_CU_SEQLENS},
		{.name = (char[]){"max_seqlen"}, .make = STK_MAKE_MAX_SEQLEN},
	};
	int r = 0;

	for (size_t i = 0; r == 0 && i < STK_ARRAY_SIZE(made); i++)
		if (!has_field(assembly->dataset, made[i].name))
			r = add_field(assembly, &made[i], spec, err);
	return r;
}

/* Every stored field, and the mask of the length field unless one is stored. */
static int add_stored_fields(struct stkd_assembly *assembly, const struct stk_spec *spec,
			     struct stk_err *err)
{
	const struct stkd_dataset *dataset = assembly->dataset;
	struct stk_spec_field mask = {.name = (char[]){"attention_mask"}, .make = STK_MAKE_MASK};
	bool torch = spec->default_fields == STK_FIELDS_TORCH;
	int r;

	for (uint32_t i = 0; i < dataset->nfields; i++) {
		struct stk_spec_field copy = {.name = dataset->fields[i].name};

		if (torch)
			copy = torch_field(&dataset->fields[i]);
		r = add_field(assembly, &copy, spec, err);
		if (r < 0)
			return r;
	}
	if (torch) {
		mask.dtype = STK_DTYPE_I64;
		r = add_torch_labels(assembly, spec, err);
		if (r < 0)
			return r;
	}
	r = has_field(dataset, mask.name) ? 0 : add_field(assembly, &mask, spec, err);
	return r == 0 && assembly->packed ? add_packed_fields(assembly, spec, err) : r;
}

/* What is the same values with other padding, ids and labels say, is written together: read once. */
static void pair_twins(struct stkd_assembly *assembly)
{
	for (uint32_t i = 0; i < assembly->nops; i++) {
		struct stkd_op *op = &assembly->ops[i];

		for (uint32_t k = i + 1; k < assembly->nops && !op->twin; k++) {
			struct stkd_op *other = &assembly->ops[k];

			if (op->make != STK_MAKE_COPY || other->make != STK_MAKE_COPY || !op->row ||
			    !other->row || op->by_twin || other->by_twin ||
			    op->column != other->column || op->to != other->to)
				continue;
			op->twin = k;
			op->twins = stkd_twins_find(op->from, op->to);
			other->by_twin = true;
		}
	}
}

int stkd_fields_compile(struct stkd_assembly *assembly, const struct stk_spec *spec,
			struct stk_err *err)
{
	const struct stkd_dataset *dataset = assembly->dataset;
	int r = 0;

	if (dataset->length_field >= dataset->nfields)
		return stk_err_set(err, -EINVAL,
				   "%s: has no ragged field, so no lengths to batch by",
				   dataset->path);
	assembly->packed = spec->group == STK_GROUP_PACK || spec->group == STK_GROUP_CONCAT;
	assembly->separator = spec->separator;
	assembly->align = STK_MAX(spec->align, 1u);
	if (!spec->fields)
		r = add_stored_fields(assembly, spec, err);
	for (size_t i = 0; r == 0 && i < spec->nfields; i++)
		r = add_field(assembly, &spec->fields[i], spec, err);
	if (r == 0 && !assembly->packed)
		pair_twins(assembly);
	return r;
}
