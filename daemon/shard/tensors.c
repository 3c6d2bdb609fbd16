/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parses a safetensors header. The outer objects are walked here and jansson sees one name or value
 * at a time: memory stays near the size of the header, and each error knows its place.
 */
#include "daemon/shard/tensors.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* A key of __metadata__; only its hash is kept, to find a duplicate. */
struct key {
	XXH128_hash_t hash;
	size_t at;
};

struct parse {
	struct stkd_tensors *tensors;
	size_t allocated;
	bool metadata_seen;
	struct key *keys;
	size_t nkeys, keys_allocated;
};

int stkd_pread(int fd, void *buffer, size_t size, uint64_t offset, struct stk_err *err)
{
	uint8_t *at = buffer;

	while (size) {
		ssize_t n = pread(fd, at, STK_MIN(size, (size_t)1 << 30), (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return stk_err_set(err, -errno, "read at byte %" PRIu64 ": %m", offset);
		if (!n)
			return stk_err_set(
				err, -EBADMSG,
				"the file was cut while it was read: it ends at byte %" PRIu64,
				offset);
		at += n;
		size -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

static int no_memory(struct stkd_scan *scan)
{
	return stk_err_set(scan->err, -ENOMEM, "header: no memory");
}

/* Makes room for one more element. */
static int grow(struct stkd_scan *scan, void *array, size_t n, size_t *allocated, size_t size)
{
	void **p = array;
	size_t want = *allocated ? *allocated * 2 : 8;
	void *larger;

	if (n < *allocated)
		return 0;
	larger = reallocarray(*p, want, size);
	if (!larger)
		return no_memory(scan);
	*p = larger;
	*allocated = want;
	return 0;
}

static int metadata_member(struct stkd_scan *scan, const char *name, void *arg)
{
	struct parse *parse = arg;
	struct stkd_tensors *tensors = parse->tensors;
	struct key key = {XXH3_128bits(name, strlen(name)), scan->at};
	char label[STKD_LABEL_SIZE];
	char **keep = NULL;
	json_t *value;
	int r;

	r = grow(scan, &parse->keys, parse->nkeys, &parse->keys_allocated, sizeof(key));
	if (r >= 0)
		r = stkd_scan_value(scan, &value);
	if (r < 0)
		return r;
	parse->keys[parse->nkeys++] = key;
	if (!json_is_string(value))
		r = stk_err_set(scan->err, -EBADMSG,
				"header: byte %zu: __metadata__: %s is not a string", key.at,
				stkd_label(name, label));
	else if (!strcmp(name, "stoker"))
		keep = &tensors->stoker;
	else if (!strcmp(name, "stoker.text"))
		keep = &tensors->stoker_text;
	if (keep && !*keep) {
		*keep = strdup(json_string_value(value));
		if (!*keep)
			r = no_memory(scan);
	}
	json_decref(value);
	return r;
}

static int compare_keys(const void *a, const void *b)
{
	const struct key *x = a, *y = b;
	int r = XXH128_cmp(&x->hash, &y->hash);

	return r ? r : (x->at > y->at) - (x->at < y->at);
}

static int parse_metadata(struct stkd_scan *scan, struct parse *parse)
{
	json_t *value;
	int r;

	if (parse->metadata_seen)
		return stkd_scan_broken(scan, scan->at, "duplicate key __metadata__");
	parse->metadata_seen = true;
	if (stkd_scan_look(scan) == '{') {
		r = stkd_scan_object(scan, metadata_member, parse);
		if (r < 0)
			return r;
		if (parse->nkeys)
			qsort(parse->keys, parse->nkeys, sizeof(*parse->keys), compare_keys);
		for (size_t i = 1; i < parse->nkeys; i++)
			if (XXH128_isEqual(parse->keys[i - 1].hash, parse->keys[i].hash))
				return stkd_scan_broken(scan, parse->keys[i].at,
							"duplicate key in __metadata__");
		return 0;
	}
	r = stkd_scan_value(scan, &value);
	if (r < 0)
		return r;
	/* The reference reads null as no metadata. */
	r = json_is_null(value) ? 0
				: stkd_scan_broken(scan, scan->at, "__metadata__ is not an object");
	json_decref(value);
	return r;
}

/* An array of whole numbers from 0. @where: "shape", "data_offsets". */
static int parse_numbers(struct stkd_scan *scan, const struct stkd_tensor *tensor,
			 const char *where, const json_t *array, uint64_t *out)
{
	char label[STKD_LABEL_SIZE], shown[STKD_LABEL_SIZE];
	json_t *value;
	size_t i;

	json_array_foreach (array, i, value) {
		_cleanup_(stk_freep) char *text = NULL;

		if (json_is_integer(value) && json_integer_value(value) >= 0) {
			out[i] = (uint64_t)json_integer_value(value);
			continue;
		}
		text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: %s[%zu] is %s; allowed are whole numbers from 0 on",
				   stkd_label(tensor->name, label), where, i,
				   text ? stkd_label(text, shown) : "not a number");
	}
	return 0;
}

/* The bytes that shape and dtype ask for must be those of data_offsets. */
static int check_size(struct stkd_scan *scan, const struct stkd_tensor *tensor)
{
	uint64_t values = 1, bits = stk_dtype_bits(tensor->dtype);
	uint64_t given = tensor->end - tensor->begin;
	char label[STKD_LABEL_SIZE];
	bool overflow = false;

	stkd_label(tensor->name, label);
	for (uint32_t i = 0; i < tensor->ndims; i++)
		overflow = overflow || stk_mul_overflow(values, tensor->shape[i], &values);
	if (overflow || stk_mul_overflow(values, bits, &bits))
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: the shape overflows 64 bits, %" PRIu64
				   " bytes in data_offsets",
				   label, given);
	if (bits % 8)
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: %" PRIu64 " values of %s are %" PRIu64
				   " bits, not whole bytes",
				   label, values, stk_dtype_name(tensor->dtype), bits);
	if (bits / 8 != given)
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: %" PRIu64 " bytes expected from shape, %" PRIu64
				   " in data_offsets",
				   label, bits / 8, given);
	return 0;
}

static int fill_shape(struct stkd_scan *scan, struct stkd_tensor *tensor, const json_t *shape)
{
	char label[STKD_LABEL_SIZE];

	if (!json_is_array(shape))
		return stk_err_set(scan->err, -EBADMSG, "%s: shape is missing or not a list",
				   stkd_label(tensor->name, label));
	tensor->ndims = (uint32_t)json_array_size(shape); /* at most DESCRIPTION_MAX */
	if (!tensor->ndims)
		return 0;
	tensor->shape = calloc(tensor->ndims, sizeof(*tensor->shape));
	if (!tensor->shape)
		return no_memory(scan);
	return parse_numbers(scan, tensor, "shape", shape, tensor->shape);
}

static int fill_offsets(struct stkd_scan *scan, struct stkd_tensor *tensor, const json_t *offsets)
{
	char label[STKD_LABEL_SIZE];
	uint64_t pair[2];
	int r;

	stkd_label(tensor->name, label);
	if (!json_is_array(offsets))
		return stk_err_set(scan->err, -EBADMSG, "%s: data_offsets is missing or not a list",
				   label);
	if (json_array_size(offsets) != 2)
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: data_offsets has %zu numbers, needed are 2", label,
				   json_array_size(offsets));
	r = parse_numbers(scan, tensor, "data_offsets", offsets, pair);
	if (r < 0)
		return r;
	tensor->begin = pair[0];
	tensor->end = pair[1];
	if (tensor->end < tensor->begin)
		return stk_err_set(scan->err, -EBADMSG,
				   "%s: data_offsets [%" PRIu64 ", %" PRIu64
				   "] end before they begin",
				   label, tensor->begin, tensor->end);
	return 0;
}

static int fill_tensor(struct stkd_scan *scan, struct stkd_tensor *tensor, const json_t *value)
{
	const json_t *dtype = json_object_get(value, "dtype");
	char label[STKD_LABEL_SIZE], shown[STKD_LABEL_SIZE];
	int r;

	stkd_label(tensor->name, label);
	if (!json_is_object(value))
		return stk_err_set(scan->err, -EBADMSG, "%s: its description is not an object",
				   label);
	r = fill_offsets(scan, tensor, json_object_get(value, "data_offsets"));
	if (r < 0)
		return r;
	if (!json_is_string(dtype))
		return stk_err_set(scan->err, -EBADMSG, "%s: dtype is missing or not a string",
				   label);
	tensor->dtype =
		stk_dtype_from_safetensors(json_string_value(dtype), json_string_length(dtype));
	if (tensor->dtype == STK_DTYPE_NONE)
		return stk_err_set(scan->err, -EBADMSG, "%s: unknown dtype %s", label,
				   stkd_label(json_string_value(dtype), shown));
	r = fill_shape(scan, tensor, json_object_get(value, "shape"));
	return r < 0 ? r : check_size(scan, tensor);
}

static int tensor_member(struct stkd_scan *scan, const char *name, void *arg)
{
	struct parse *parse = arg;
	struct stkd_tensors *tensors = parse->tensors;
	char label[STKD_LABEL_SIZE];
	struct stkd_tensor *tensor;
	json_t *value;
	int r;

	if (!strcmp(name, "__metadata__"))
		return parse_metadata(scan, parse);
	r = grow(scan, &tensors->list, tensors->n, &parse->allocated, sizeof(*tensor));
	if (r < 0)
		return r;
	tensor = &tensors->list[tensors->n];
	*tensor = (struct stkd_tensor){.name = strdup(name)};
	if (!tensor->name)
		return no_memory(scan);
	tensors->n++;
	r = stkd_scan_value(scan, &value);
	if (r < 0) {
		stk_err_prefix(scan->err, "%s: ", stkd_label(name, label));
		return r;
	}
	r = fill_tensor(scan, tensor, value);
	json_decref(value);
	return r;
}

static int parse_header(struct stkd_scan *scan, struct parse *parse)
{
	int r;

	if (stkd_scan_look(scan) != '{')
		return stkd_scan_broken(scan, scan->at, "expected a JSON object");
	r = stkd_scan_object(scan, tensor_member, parse);
	if (r < 0)
		return r;
	stkd_scan_look(scan);
	if (scan->at < scan->size)
		return stkd_scan_broken(scan, scan->at, "more text after the JSON object");
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	const struct stkd_tensor *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static int sort_by_name(struct stkd_tensors *tensors, struct stk_err *err)
{
	char label[STKD_LABEL_SIZE];

	if (tensors->n)
		qsort(tensors->list, tensors->n, sizeof(*tensors->list), compare_names);
	for (size_t i = 1; i < tensors->n; i++)
		if (!strcmp(tensors->list[i - 1].name, tensors->list[i].name))
			return stk_err_set(err, -EBADMSG, "header: duplicate key %s",
					   stkd_label(tensors->list[i].name, label));
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct stkd_tensor *x = *(const struct stkd_tensor *const *)a;
	const struct stkd_tensor *y = *(const struct stkd_tensor *const *)b;

	if (x->begin != y->begin)
		return x->begin < y->begin ? -1 : 1;
	if (x->end != y->end)
		return x->end < y->end ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* In order of place each tensor begins where the one before ended, and the last ends the file. */
static int check_tiling(struct stkd_tensor *const *list, size_t n, uint64_t data_start,
			uint64_t file_size, struct stk_err *err)
{
	char label[STKD_LABEL_SIZE], before[STKD_LABEL_SIZE];
	uint64_t end = 0;

	for (size_t i = 0; i < n; i++) {
		const struct stkd_tensor *t = list[i];

		stkd_label(t->name, label);
		if (i)
			stkd_label(list[i - 1]->name, before);
		if (t->begin > end)
			return stk_err_set(err, -EBADMSG,
					   "%s: bytes %" PRIu64 " to %" PRIu64
					   " before it belong to no tensor",
					   label, end, t->begin);
		if (t->begin < end)
			return stk_err_set(err, -EBADMSG,
					   "%s: data_offsets [%" PRIu64 ", %" PRIu64
					   "] overlap %s [%" PRIu64 ", %" PRIu64 "]",
					   label, t->begin, t->end, before, list[i - 1]->begin,
					   list[i - 1]->end);
		end = t->end;
	}
	if (end == file_size - data_start)
		return 0;
	/* end is at most INT64_MAX and data_start at most the size of a file: the sum fits. */
	if (n && end > file_size - data_start)
		return stk_err_set(err, -EBADMSG,
				   "expected %" PRIu64 " bytes, file has %" PRIu64
				   ": cut before the end of %s, data_offsets [%" PRIu64 ", %" PRIu64
				   "]",
				   data_start + end, file_size, label, list[n - 1]->begin, end);
	return stk_err_set(err, -EBADMSG,
			   "expected %" PRIu64 " bytes, file has %" PRIu64
			   ": bytes after the last tensor%s%s",
			   data_start + end, file_size, n ? " " : "", n ? label : "");
}

static int check_places(struct stkd_tensors *tensors, uint64_t file_size, struct stk_err *err)
{
	_cleanup_(stk_freep) struct stkd_tensor **list = NULL;

	list = calloc(tensors->n + 1, sizeof(*list));
	if (!list)
		return stk_err_set(err, -ENOMEM, "header: no memory");
	for (size_t i = 0; i < tensors->n; i++)
		list[i] = &tensors->list[i];
	qsort(list, tensors->n, sizeof(*list), compare_places);
	return check_tiling(list, tensors->n, tensors->data_start, file_size, err);
}

static int read_header(int fd, uint64_t file_size, uint64_t header_max, char **ret_text,
		       size_t *ret_size, struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = NULL;
	uint64_t size;
	int r;

	if (file_size < sizeof(size))
		return stk_err_set(err, -EBADMSG,
				   "file has %" PRIu64 " bytes, a safetensors file has at least 8",
				   file_size);
	r = stkd_pread(fd, &size, sizeof(size), 0, err);
	if (r < 0)
		return r;
	size = le64toh(size);
	if (size > file_size - 8)
		return stk_err_set(err, -EBADMSG,
				   "header of %" PRIu64 " bytes, but the whole file has %" PRIu64
				   " bytes",
				   size, file_size);
	if (size > header_max)
		return stk_err_set(err, -EBADMSG,
				   "header of %" PRIu64 " bytes, allowed are %" PRIu64
				   "; the setting header_max raises that",
				   size, header_max);
	text = malloc(size + 1);
	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory for a header of %" PRIu64 " bytes",
				   size);
	r = stkd_pread(fd, text, size, 8, err);
	if (r < 0)
		return r;
	*ret_text = STK_STEAL(text);
	*ret_size = size;
	return 0;
}

int stkd_tensors_read(int fd, uint64_t file_size, uint64_t header_max, struct stkd_tensors **ret,
		      struct stk_err *err)
{
	_cleanup_(stkd_tensors_freep) struct stkd_tensors *tensors = NULL;
	_cleanup_(stk_freep) char *text = NULL;
	struct stkd_scan scan = {.err = err};
	struct parse parse = {0};
	int r;

	r = read_header(fd, file_size, header_max ? header_max : STKD_HEADER_MAX, &text, &scan.size,
			err);
	if (r < 0)
		return r;
	tensors = calloc(1, sizeof(*tensors));
	if (!tensors)
		return no_memory(&scan);
	tensors->data_start = 8 + scan.size;
	scan.text = text;
	parse.tensors = tensors;
	r = parse_header(&scan, &parse);
	free(parse.keys);
	if (r >= 0)
		r = sort_by_name(tensors, err);
	if (r >= 0)
		r = check_places(tensors, file_size, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(tensors);
	return 0;
}

struct stkd_tensors *stkd_tensors_free(struct stkd_tensors *tensors)
{
	if (!tensors)
		return NULL;
	for (size_t i = 0; i < tensors->n; i++) {
		free(tensors->list[i].name);
		free(tensors->list[i].shape);
	}
	free(tensors->list);
	free(tensors->stoker);
	free(tensors->stoker_text);
	free(tensors);
	return NULL;
}

const struct stkd_tensor *stkd_tensors_find(const struct stkd_tensors *tensors, const char *name)
{
	struct stkd_tensor key = {.name = (char *)name};

	if (!tensors->n)
		return NULL;
	return bsearch(&key, tensors->list, tensors->n, sizeof(key), compare_names);
}
