/* SPDX-License-Identifier: Apache-2.0 */
#include "client/schema.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "proto/dtype.h"

struct stk__schema *stk__schema_ref(struct stk__schema *schema)
{
	/* Relaxed: whoever refs holds a reference already. */
	atomic_fetch_add_explicit(&schema->refs, 1, memory_order_relaxed);
	return schema;
}

struct stk__schema *stk__schema_unref(struct stk__schema *schema)
{
	/* Acquire-release: every use by other holders precedes the free. */
	while (schema && atomic_fetch_sub_explicit(&schema->refs, 1, memory_order_acq_rel) == 1) {
		struct stk__schema *older = schema->older;

		free(schema->text);
		free(schema->shapes);
		json_decref(schema->root);
		free(schema);
		schema = older;
	}
	return NULL;
}

static int parse_shape(struct stk__field *field, const json_t *shape, struct stk_err *err)
{
	size_t ndim = json_array_size(shape);

	if ((shape && !json_is_array(shape)) || ndim > STK__INNER_DIMS)
		return stk_err_set(err, -EPROTO,
				   "schema: field \"%s\": shape with %zu dimensions, at most %d",
				   field->name, ndim, STK__INNER_DIMS);
	field->ndim = (uint32_t)ndim;
	for (size_t i = 0; i < ndim; i++) {
		json_int_t n = json_integer_value(json_array_get(shape, i));

		if (n < 0 || stk_mul_overflow(field->inner_bytes, (uint64_t)n, &field->inner_bytes))
			return stk_err_set(err, -EPROTO,
					   "schema: field \"%s\": dimension %zu is too large",
					   field->name, i);
		field->shape[i] = (uint64_t)n;
	}
	return 0;
}

static int parse_field(struct stk__field *field, const json_t *json, struct stk_err *err)
{
	const char *dtype = json_string_value(json_object_get(json, "dtype"));
	enum stk_dtype code;

	field->name = json_string_value(json_object_get(json, "name"));
	if (!field->name || !dtype)
		return stk_err_set(err, -EPROTO, "schema: a field without name or dtype");
	code = stk_dtype_from_safetensors(dtype, strlen(dtype));
	field->element = (uint32_t)code;
	field->inner_bytes = stk_dtype_size(code);
	if (!field->inner_bytes || code > STK_DTYPE_C64)
		return stk_err_set(
			err, -EPROTO,
			"schema: field \"%s\": element type %s is unknown to this libstoker",
			field->name, dtype);
	return parse_shape(field, json_object_get(json, "shape"), err);
}

static int parse_fields(struct stk__schema *schema, uint32_t nfields, struct stk_err *err)
{
	const json_t *list = json_object_get(schema->root, "fields");

	if (json_array_size(list) != nfields)
		return stk_err_set(err, -EPROTO,
				   "schema: %zu fields, the control file has %" PRIu32,
				   json_array_size(list), nfields);
	for (uint32_t i = 0; i < nfields; i++) {
		int r = parse_field(&schema->fields[i], json_array_get(list, i), err);

		if (r < 0)
			return r;
	}
	schema->nfields = nfields;
	return 0;
}

static uint32_t number32(const json_t *object, const char *name)
{
	json_int_t n = json_integer_value(json_object_get(object, name));

	return n < 0 || n > UINT32_MAX ? 0 : (uint32_t)n;
}

static int parse_shapes(struct stk__schema *schema, uint32_t nclasses, struct stk_err *err)
{
	const json_t *list = json_object_get(schema->root, "classes");

	if (json_array_size(list) != nclasses)
		return stk_err_set(err, -EPROTO,
				   "schema: %zu classes, the control file has %" PRIu32,
				   json_array_size(list), nclasses);
	schema->shapes = calloc(nclasses + 1, sizeof(*schema->shapes));
	if (!schema->shapes)
		return stk_err_set(err, -ENOMEM, "schema: no memory for %" PRIu32 " classes",
				   nclasses);
	for (uint32_t i = 0; i < nclasses; i++) {
		const json_t *c = json_array_get(list, i);

		schema->shapes[i] = (struct stk_shape_info){
			.size = sizeof(struct stk_shape_info),
			.edge = number32(c, "edge"),
			.rows = number32(c, "rows"),
			.width_min = number32(c, "width_min"),
			.width_max = number32(c, "width_max"),
			.width_multiple = number32(c, "width_multiple"),
			.edge2 = number32(c, "edge2"),
			.width2_min = number32(c, "width2_min"),
			.width2_max = number32(c, "width2_max"),
		};
	}
	schema->nshapes = nclasses;
	return 0;
}

static const char *string_or_empty(const json_t *root, const char *name)
{
	const char *s = json_string_value(json_object_get(root, name));

	return s ? s : "";
}

int stk__schema_new(const char *text, size_t size, uint32_t nfields, uint32_t nclasses,
		    struct stk__schema **ret, struct stk_err *err)
{
	_cleanup_(stk__schema_unrefp) struct stk__schema *schema = calloc(1, sizeof(*schema));
	json_error_t error;
	int r;

	if (!schema)
		return stk_err_set(err, -ENOMEM, "schema: no memory");
	schema->refs = 1;
	/* Not strndup(): the text may end with its page, and nothing ends the text. */
	schema->text = malloc(size + 1);
	if (!schema->text)
		return stk_err_set(err, -ENOMEM, "schema: no memory for %zu bytes", size);
	memcpy(schema->text, text, size);
	schema->text[size] = '\0';
	schema->root = json_loads(schema->text, JSON_REJECT_DUPLICATES, &error);
	if (!json_is_object(schema->root))
		return stk_err_set(err, -EPROTO, "schema: not a JSON object: %s",
				   schema->root ? "another type" : error.text);
	schema->stream = string_or_empty(schema->root, "stream");
	schema->job = string_or_empty(schema->root, "job");
	r = parse_fields(schema, nfields, err);
	if (r == 0)
		r = parse_shapes(schema, nclasses, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(schema);
	return 0;
}

uint64_t stk__schema_count(const struct stk__schema *schema, const char *name)
{
	json_int_t n =
		json_integer_value(json_object_get(json_object_get(schema->root, "counts"), name));

	return n < 0 ? 0 : (uint64_t)n;
}
