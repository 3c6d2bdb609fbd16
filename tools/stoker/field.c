/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/field.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "tools/stoker/number.h"

static bool ends_with(const char *text, const char *end)
{
	size_t n = strlen(text), m = strlen(end);

	return n >= m && !strcmp(text + n - m, end);
}

/* Names become tensor names: x.values and x.offsets are those of a ragged field x. */
static int check_name(const char *name, struct stk_err *err)
{
	json_t *string = json_string(name);

	json_decref(string);
	if (!string)
		return stk_err_set(err, -EINVAL, "a field name is not UTF-8");
	if (!*name)
		return stk_err_set(err, -EINVAL, "a field name is empty");
	if (!strcmp(name, "__metadata__") || ends_with(name, ".values") ||
	    ends_with(name, ".offsets"))
		return stk_err_set(err, -EINVAL,
				   "\"%s\" cannot be a field name: __metadata__, *.values and "
				   "*.offsets have a meaning in a shard",
				   name);
	return 0;
}

int field_dtype(const char *name, enum stk_dtype *ret, struct stk_err *err)
{
	enum stk_dtype dtype = stk_dtype_from_spec(name);

	if (!number_dtype_known(dtype))
		return stk_err_set(err, -EINVAL, "\"%s\" is no type to write; allowed: %s", name,
				   NUMBER_DTYPES);
	*ret = dtype;
	return 0;
}

static int parse_shape(const char *text, struct field *field, struct stk_err *err)
{
	uint64_t bytes;
	char *end;

	for (;;) {
		if (field->ndims == STKD_FIELD_DIMS_MAX)
			return stk_err_set(err, -EINVAL, "more than %d dimensions",
					   STKD_FIELD_DIMS_MAX);
		if (*text < '1' || *text > '9')
			return stk_err_set(err, -EINVAL,
					   "\"%s\" is no size; a shape is written as 4 or 4x2",
					   text);
		errno = 0;
		field->shape[field->ndims] = strtoull(text, &end, 10);
		if (errno ||
		    stk_mul_overflow(field->count, field->shape[field->ndims++], &field->count) ||
		    stk_mul_overflow(field->count, stk_dtype_size(field->dtype), &bytes) ||
		    bytes > INT64_MAX)
			return stk_err_set(err, -EINVAL, "the shape is too large");
		if (!*end)
			return 0;
		if (*end != 'x')
			return stk_err_set(err, -EINVAL,
					   "\"%s\" is no size; a shape is written as 4 or 4x2",
					   text);
		text = end + 1;
	}
}

/* Cuts ":DTYPE[:SHAPE]" off the end of rest and leaves the key. */
static int parse_type(char *rest, struct field *field, struct stk_err *err)
{
	char *last = strrchr(rest, ':'), *shape = NULL;

	if (!last)
		return stk_err_set(err, -EINVAL, "no type; write NAME=KEY:DTYPE[:SHAPE]");
	*last++ = '\0';
	if (*last >= '0' && *last <= '9' && strrchr(rest, ':')) {
		shape = last;
		last = strrchr(rest, ':');
		*last++ = '\0';
	}
	if (field_dtype(last, &field->dtype, err) < 0)
		return err ? err->code : -EINVAL;
	return shape ? parse_shape(shape, field, err) : 0;
}

static int parse_word(const char *word, struct field *field, struct stk_err *err)
{
	char *rest;
	int r;

	field->name = strdup(word);
	rest = field->name ? strchr(field->name, '=') : NULL;
	if (!rest)
		return stk_err_set(err, -EINVAL, "no \"=\"; write NAME=KEY:DTYPE[:SHAPE]");
	*rest++ = '\0';
	r = check_name(field->name, err);
	if (r == 0)
		r = parse_type(rest, field, err);
	if (r < 0)
		return r;
	field->nkeys = 1;
	field->keys = strdup(rest);
	return field->keys ? 0 : stk_err_set(err, -ENOMEM, "no memory");
}

int field_parse(const char *word, enum field_kind kind, struct field *ret, struct stk_err *err)
{
	struct field field = {.kind = kind, .count = 1};
	int r = parse_word(word, &field, err);

	if (r < 0) {
		field_deinit(&field);
		stk_err_prefix(err, "%s: ", word);
		return r;
	}
	*ret = field;
	return 0;
}

static int split_keys(struct field *field, struct stk_err *err)
{
	char *start = field->keys;

	field->nkeys = 1;
	for (char *p = field->keys; *start; p++) {
		if (*p && *p != ',')
			continue;
		if (p == start)
			break;
		if (!*p)
			return 0;
		*p = '\0';
		field->nkeys++;
		start = p + 1;
	}
	return stk_err_set(err, -EINVAL, "--text: an empty key; write KEY or KEY,KEY");
}

int field_ids(const char *name, enum field_kind kind, const char *keys, enum stk_dtype dtype,
	      struct field *ret, struct stk_err *err)
{
	struct field field = {.kind = kind, .dtype = dtype, .nkeys = 1, .count = 1};
	int r = check_name(name, err);

	if (r < 0)
		return r;
	if (stk_dtype_class(dtype) != STK_DTYPE_IS_INT)
		return stk_err_set(err, -EINVAL,
				   "--dtype: %s is no integer type; ids are u8, i8, u16, i16, u32, "
				   "i32, u64 or i64",
				   stk_dtype_name(dtype));
	field.name = strdup(name);
	field.keys = strdup(keys);
	if (!field.name || !field.keys)
		r = stk_err_set(err, -ENOMEM, "no memory");
	else if (kind == FIELD_TEXT)
		r = split_keys(&field, err);
	if (r < 0) {
		field_deinit(&field);
		return r;
	}
	*ret = field;
	return 0;
}

void field_deinit(struct field *field)
{
	free(field->name);
	free(field->keys);
	*field = (struct field){0};
}
