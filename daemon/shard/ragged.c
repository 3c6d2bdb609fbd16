/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds fields in a table of tensors, and checks all offsets of ragged ones. Runs in the thread
 * that opens the shard; nothing here outlives the call but its result.
 */
#include "daemon/shard/ragged.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OFFSETS ".offsets"
#define VALUES  ".values"

/* A field under construction. */
struct made {
	struct stkd_field field;
	struct stkd_column column;
	uint64_t count; /* samples */
};

struct builder {
	int fd;
	const struct stkd_tensors *tensors;
	struct stk_err *err;
	bool stated; /* the file names the convention */
	bool *taken; /* per tensor: part of a pair */
	struct made *made;
	size_t n;
};

static bool ends_with(const char *name, const char *suffix)
{
	size_t n = strlen(name), m = strlen(suffix);

	return n >= m && !strcmp(name + n - m, suffix);
}

static bool word_is(const char *text, size_t size, const char *word)
{
	return strlen(word) == size && !memcmp(text, word, size);
}

/* Words "key=value" joined by ';'. Unknown keys may come later and mean nothing here. */
static int read_convention(const char *text, bool *ret_stated, struct stk_err *err)
{
	char label[STKD_LABEL_SIZE];

	*ret_stated = false;
	while (text && *text) {
		size_t n = strcspn(text, ";");

		if (word_is(text, n, STKD_RAGGED_CONVENTION))
			*ret_stated = true;
		else if (!strncmp(text, "ragged=", 7) ||
			 (!strncmp(text, "version=", 8) && !word_is(text, n, "version=1")))
			return stk_err_set(
				err, -EBADMSG,
				"__metadata__: stoker: \"%s\"; known is \"%s;version=1\"",
				stkd_label(text, label), STKD_RAGGED_CONVENTION);
		text += n + (text[n] == ';');
	}
	return 0;
}

/* All n + 1 offsets start at 0, never fall, and end at the number of values. */
static int check_offsets(const struct builder *b, const struct stkd_tensor *offsets,
			 const struct stkd_tensor *values)
{
	uint64_t at = b->tensors->data_start + offsets->begin, entries = offsets->shape[0];
	char label[STKD_LABEL_SIZE], other[STKD_LABEL_SIZE];
	int64_t chunk[4096], last = 0;
	size_t n;

	stkd_label(offsets->name, label);
	for (uint64_t i = 0; i < entries; i += n) {
		int r;

		n = STK_MIN(entries - i, STK_ARRAY_SIZE(chunk));
		r = stkd_pread(b->fd, chunk, n * sizeof(*chunk), at + i * sizeof(*chunk), b->err);
		if (r < 0)
			return r;
		for (size_t k = 0; k < n; k++) {
			int64_t offset = (int64_t)le64toh((uint64_t)chunk[k]);

			if (i + k == 0 && offset != 0)
				return stk_err_set(b->err, -EBADMSG,
						   "%s[0] is %" PRId64 ", must be 0", label,
						   offset);
			if (offset < last)
				return stk_err_set(b->err, -EBADMSG,
						   "%s[%" PRIu64 "] is %" PRId64
						   ", less than %" PRId64 " before it",
						   label, i + k, offset, last);
			last = offset;
		}
	}
	if ((uint64_t)last != values->shape[0])
		return stk_err_set(b->err, -EBADMSG,
				   "%s[%" PRIu64 "] is %" PRId64 ", but %s has %" PRIu64, label,
				   entries - 1, last, stkd_label(values->name, other),
				   values->shape[0]);
	return 0;
}

static int check_pair(const struct builder *b, const struct stkd_tensor *offsets,
		      const struct stkd_tensor *values)
{
	char label[STKD_LABEL_SIZE];

	stkd_label(offsets->name, label);
	if (offsets->dtype != STK_DTYPE_I64)
		return stk_err_set(b->err, -EBADMSG, "%s is %s, must be I64", label,
				   stk_dtype_name(offsets->dtype));
	if (offsets->ndims != 1)
		return stk_err_set(b->err, -EBADMSG, "%s has %" PRIu32 " dimensions, must have 1",
				   label, offsets->ndims);
	if (offsets->shape[0] < 1)
		return stk_err_set(b->err, -EBADMSG,
				   "%s has 0 entries, must have one more than samples", label);
	if (values->ndims < 1)
		return stk_err_set(b->err, -EBADMSG,
				   "%s is a scalar, must have a dimension of values",
				   stkd_label(values->name, label));
	return check_offsets(b, offsets, values);
}

/* Fills dtype, inner shape and the bytes of one row or element. */
static int describe(const struct builder *b, const struct stkd_tensor *t, struct made *made)
{
	struct stkd_field *field = &made->field;
	char label[STKD_LABEL_SIZE];
	uint64_t bits;

	stkd_label(t->name, label);
	if (!t->ndims)
		return stk_err_set(b->err, -EBADMSG,
				   "%s is a scalar: a field needs a sample dimension", label);
	if (t->ndims - 1 > STKD_FIELD_DIMS_MAX)
		return stk_err_set(b->err, -EBADMSG,
				   "%s has %" PRIu32 " dimensions, allowed are %d", label, t->ndims,
				   STKD_FIELD_DIMS_MAX + 1);
	field->dtype = t->dtype;
	field->ndims = t->ndims - 1;
	field->inner_count = 1;
	for (uint32_t i = 0; i < field->ndims; i++) {
		field->inner[i] = t->shape[i + 1];
		if (stk_mul_overflow(field->inner_count, field->inner[i], &field->inner_count))
			return stk_err_set(b->err, -EBADMSG, "%s: the shape overflows 64 bits",
					   label);
	}
	if (stk_mul_overflow(field->inner_count, (uint64_t)stk_dtype_bits(t->dtype), &bits))
		return stk_err_set(b->err, -EBADMSG, "%s: the shape overflows 64 bits", label);
	if (bits % 8)
		return stk_err_set(b->err, -EBADMSG,
				   "%s: one row of %s is %" PRIu64 " bits, not whole bytes", label,
				   stk_dtype_name(t->dtype), bits);
	made->column.stride = bits / 8;
	made->column.values = b->tensors->data_start + t->begin;
	return 0;
}

static int add(struct builder *b, const struct stkd_tensor *t, size_t name_size, struct made *made)
{
	int r = describe(b, t, made);

	if (r < 0)
		return r;
	made->field.name = strndup(t->name, name_size);
	if (!made->field.name)
		return stk_err_set(b->err, -ENOMEM, "no memory for fields");
	b->made[b->n++] = *made;
	return 0;
}

/* @offsets: a tensor whose name ends in ".offsets". */
static int add_pair(struct builder *b, const struct stkd_tensor *offsets)
{
	size_t size = strlen(offsets->name) - strlen(OFFSETS);
	_cleanup_(stk_freep) char *name = NULL;
	const struct stkd_tensor *values;
	char label[STKD_LABEL_SIZE], other[STKD_LABEL_SIZE];
	struct made made = {0};
	int r;

	if (asprintf(&name, "%.*s" VALUES, (int)size, offsets->name) < 0)
		return stk_err_set(b->err, -ENOMEM, "no memory for fields");
	values = stkd_tensors_find(b->tensors, name);
	if (!values)
		return b->stated ? stk_err_set(b->err, -EBADMSG, "%s has no %s",
					       stkd_label(offsets->name, label),
					       stkd_label(name, other))
				 : 0;
	r = check_pair(b, offsets, values);
	if (r == -EBADMSG && !b->stated)
		return 0;
	if (r < 0)
		return r;
	made.field.ragged = true;
	made.count = offsets->shape[0] - 1;
	made.column.total = values->shape[0];
	made.column.offsets = b->tensors->data_start + offsets->begin;
	b->taken[offsets - b->tensors->list] = true;
	b->taken[values - b->tensors->list] = true;
	return add(b, values, size, &made);
}

static int add_all(struct builder *b)
{
	for (size_t i = 0; i < b->tensors->n; i++) {
		int r = ends_with(b->tensors->list[i].name, OFFSETS)
				? add_pair(b, &b->tensors->list[i])
				: 0;

		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < b->tensors->n; i++) {
		const struct stkd_tensor *t = &b->tensors->list[i];
		char label[STKD_LABEL_SIZE];
		struct made made = {0};
		int r;

		if (b->taken[i])
			continue;
		if (b->stated && ends_with(t->name, VALUES))
			return stk_err_set(b->err, -EBADMSG, "%s has no offsets beside it",
					   stkd_label(t->name, label));
		made.count = t->ndims ? t->shape[0] : 0;
		r = add(b, t, strlen(t->name), &made);
		if (r < 0)
			return r;
	}
	return 0;
}

static int compare_made(const void *a, const void *b)
{
	const struct made *x = a, *y = b;

	return strcmp(x->field.name, y->field.name);
}

/* Sorts, and refuses two fields of one name and fields of different counts. */
static int check_made(struct builder *b)
{
	char label[STKD_LABEL_SIZE], other[STKD_LABEL_SIZE];

	if (b->n)
		qsort(b->made, b->n, sizeof(*b->made), compare_made);
	for (size_t i = 1; i < b->n; i++) {
		const struct made *first = &b->made[0], *m = &b->made[i];

		if (!strcmp(m[-1].field.name, m->field.name))
			return stk_err_set(b->err, -EBADMSG, "%s is a tensor and a ragged field",
					   stkd_label(m->field.name, label));
		if (m->count != first->count)
			return stk_err_set(b->err, -EBADMSG,
					   "field %s has %" PRIu64
					   " samples, field %s has %" PRIu64,
					   stkd_label(first->field.name, label), first->count,
					   stkd_label(m->field.name, other), m->count);
	}
	return 0;
}

/* "a,b" of __metadata__ "stoker.text" names fields whose elements are bytes of text. */
static bool in_list(const char *list, const char *name)
{
	while (list && *list) {
		size_t n = strcspn(list, ",");

		if (word_is(list, n, name))
			return true;
		list += n + (list[n] == ',');
	}
	return false;
}

static int finish(struct builder *b, struct stkd_columns *ret)
{
	ret->fields = calloc(b->n + 1, sizeof(*ret->fields));
	ret->list = calloc(b->n + 1, sizeof(*ret->list));
	if (!ret->fields || !ret->list) {
		stkd_columns_deinit(ret);
		return stk_err_set(b->err, -ENOMEM, "no memory for fields");
	}
	for (size_t i = 0; i < b->n; i++) {
		ret->fields[i] = b->made[i].field;
		ret->fields[i].text = in_list(b->tensors->stoker_text, ret->fields[i].name);
		ret->list[i] = b->made[i].column;
	}
	ret->n = (uint32_t)b->n;
	ret->count = b->n ? b->made[0].count : 0;
	b->n = 0; /* the names are handed on */
	return 0;
}

int stkd_columns_read(int fd, const struct stkd_tensors *tensors, struct stkd_columns *ret,
		      struct stk_err *err)
{
	struct builder b = {.fd = fd, .tensors = tensors, .err = err};
	int r;

	*ret = (struct stkd_columns){0};
	r = read_convention(tensors->stoker, &b.stated, err);
	if (r < 0)
		return r;
	if (tensors->n > UINT32_MAX)
		return stk_err_set(err, -EBADMSG, "%zu tensors, allowed are %u", tensors->n,
				   UINT32_MAX);
	b.taken = calloc(tensors->n + 1, sizeof(*b.taken));
	b.made = calloc(tensors->n + 1, sizeof(*b.made));
	r = b.taken && b.made ? add_all(&b) : stk_err_set(err, -ENOMEM, "no memory for fields");
	if (r >= 0)
		r = check_made(&b);
	if (r >= 0)
		r = finish(&b, ret);
	for (size_t i = 0; i < b.n; i++)
		free(b.made[i].field.name);
	free(b.made);
	free(b.taken);
	return r;
}

void stkd_columns_deinit(struct stkd_columns *columns)
{
	for (uint32_t i = 0; i < columns->n; i++)
		free(columns->fields[i].name);
	free(columns->fields);
	free(columns->list);
	*columns = (struct stkd_columns){0};
}
