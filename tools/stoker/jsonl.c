/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/jsonl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tools/stoker/number.h"

bool jsonl_blank(const char *line, size_t size)
{
	for (size_t i = 0; i < size; i++)
		if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
			return false;
	return true;
}

static const char *type_name(const json_t *value)
{
	static const char *const names[] = {
		[JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
		[JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
		[JSON_FALSE] = "false",      [JSON_NULL] = "null",
	};

	return names[json_typeof(value)];
}

/* Lists the first keys that the line does have. */
static int missing(const json_t *object, const char *key, struct stk_err *err)
{
	char list[512] = "";
	size_t used = 0;
	const char *name;
	json_t *value;

	json_object_foreach ((json_t *)object, name, value) {
		int n = snprintf(list + used, sizeof(list) - used, "%s\"%.40s\"", used ? ", " : "",
				 name);

		if ((size_t)n >= sizeof(list) - used - 4) {
			strcpy(list + used, " ...");
			break;
		}
		used += (size_t)n;
	}
	return stk_err_set(err, -EINVAL, "no key \"%s\"; the line has %s", key,
			   *list ? list : "no keys");
}

static int put_number(struct column *column, const json_t *value, struct stk_err *err)
{
	enum stk_dtype dtype = column->field->dtype;
	uint8_t *out = spool_extend(&column->values, stk_dtype_size(dtype));
	int r;

	if (!out)
		return stk_err_set(err, -ENOMEM, ": no memory");
	r = number_put(value, dtype, out, err);
	if (r < 0)
		stk_err_prefix(err, ": ");
	return r;
}

/* A number, or nested arrays of exactly the field's shape from dimension dim on. */
static int put_shape(struct column *column, const json_t *value, uint32_t dim, struct stk_err *err)
{
	const struct field *field = column->field;
	int r;

	if (dim == field->ndims)
		return put_number(column, value, err);
	if (!json_is_array(value))
		return stk_err_set(err, -EINVAL, ": %s, not an array of %" PRIu64, type_name(value),
				   field->shape[dim]);
	if (json_array_size(value) != field->shape[dim])
		return stk_err_set(err, -EINVAL, ": %zu elements, the shape has %" PRIu64,
				   json_array_size(value), field->shape[dim]);
	for (size_t i = 0; i < json_array_size(value); i++) {
		r = put_shape(column, json_array_get(value, i), dim + 1, err);
		if (r < 0) {
			stk_err_prefix(err, "[%zu]", i);
			return r;
		}
	}
	return 0;
}

static int put_fixed(struct column *column, const json_t *value, struct stk_err *err)
{
	column->row_elements = 1;
	return put_shape(column, value, 0, err);
}

static int put_ragged(struct column *column, const json_t *value, struct stk_err *err)
{
	if (!json_is_array(value))
		return stk_err_set(err, -EINVAL, ": %s, not an array of numbers", type_name(value));
	for (size_t i = 0; i < json_array_size(value); i++) {
		int r = put_shape(column, json_array_get(value, i), 0, err);

		if (r < 0) {
			stk_err_prefix(err, "[%zu]", i);
			return r;
		}
	}
	column->row_elements = json_array_size(value);
	return 0;
}

static int put_bytes(struct column *column, const char *bytes, size_t size, struct stk_err *err)
{
	enum stk_dtype dtype = column->field->dtype;
	size_t width = stk_dtype_size(dtype);
	uint8_t *out = spool_extend(&column->values, size * width);

	if (!out)
		return stk_err_set(err, -ENOMEM, ": no memory for %zu bytes", size);
	column->row_elements += size;
	if (dtype == STK_DTYPE_U8) {
		memcpy(out, bytes, size);
		return 0;
	}
	for (size_t i = 0; i < size; i++) {
		int64_t id = (uint8_t)bytes[i];

		if (id > stk_dtype_max(dtype))
			return stk_err_set(err, -ERANGE,
					   ": byte %zu is %" PRIi64 "; %s holds up to %" PRIi64, i,
					   id, stk_dtype_name(dtype), stk_dtype_max(dtype));
		memcpy(out + i * width, &id, width);
	}
	return 0;
}

static int put_text(struct column *column, const json_t *value, struct stk_err *err)
{
	if (!json_is_string(value))
		return stk_err_set(err, -EINVAL, ": %s, not a string", type_name(value));
	return put_bytes(column, json_string_value(value), json_string_length(value), err);
}

static int put_field(struct column *column, const json_t *object, struct stk_err *err)
{
	static int (*const put[])(struct column *, const json_t *, struct stk_err *) = {
		[FIELD_TEXT] = put_text, [FIELD_RAGGED] = put_ragged, [FIELD_FIXED] = put_fixed};
	const struct field *field = column->field;
	const char *key = field->keys;
	int r;

	column->row_elements = 0;
	for (size_t i = 0; i < field->nkeys; i++, key += strlen(key) + 1) {
		const json_t *value = json_object_get(object, key);

		if (!value)
			return missing(object, key, err);
		r = i ? put_bytes(column, "\n", 1, err) : 0;
		if (r == 0)
			r = put[field->kind](column, value, err);
		if (r < 0) {
			stk_err_prefix(err, "\"%s\"", key);
			return r;
		}
	}
	return 0;
}

int jsonl_row(const char *line, size_t size, struct column *columns, size_t ncolumns,
	      struct stk_err *err)
{
	json_error_t where;
	json_t *object = json_loadb(line, size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &where);
	int r = 0;

	if (!object)
		return stk_err_set(err, -EINVAL, "%s: column %d", where.text, where.column);
	if (!json_is_object(object))
		r = stk_err_set(err, -EINVAL, "%s; each line is one object", type_name(object));
	for (size_t i = 0; i < ncolumns && r == 0; i++)
		r = put_field(&columns[i], object, err);
	json_decref(object);
	return r;
}
