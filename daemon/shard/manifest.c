/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads dataset.json and compares it with shards. Runs in the thread that opens the dataset.
 */
#include "daemon/shard/manifest.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/shard/tensors.h"

#define MANIFEST_MAX 100000000 /* bytes: room for some 700 000 shards */

static int load_json(struct stkd_manifest *manifest, json_t **ret, struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = -1;
	_cleanup_(stk_freep) char *text = NULL;
	json_error_t e;
	struct stat st;
	int r;

	fd = open(manifest->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0 || fstat(fd, &st) < 0)
		return stk_err_set(err, -errno, "%m");
	if (!S_ISREG(st.st_mode))
		return stk_err_set(err, -EBADMSG, "not a regular file");
	if (!st.st_size)
		return stk_err_set(err, -EBADMSG, "empty file");
	if (st.st_size > MANIFEST_MAX)
		return stk_err_set(err, -EBADMSG, "%" PRIu64 " bytes, allowed are %d",
				   (uint64_t)st.st_size, MANIFEST_MAX);
	text = malloc((size_t)st.st_size);
	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory");
	r = stkd_pread(fd, text, (size_t)st.st_size, 0, err);
	if (r < 0)
		return r;
	*ret = json_loadb(text, (size_t)st.st_size, JSON_REJECT_DUPLICATES, &e);
	if (!*ret)
		return stk_err_set(err, -EBADMSG, "line %d, column %d: %s", e.line, e.column,
				   e.text);
	return 0;
}

static int parse_count(const json_t *map, const char *key, uint64_t *ret, struct stk_err *err)
{
	const json_t *value = json_object_get(map, key);

	if (!json_is_integer(value) || json_integer_value(value) < 0)
		return stk_err_set(err, -EBADMSG, "\"%s\" must be a whole number from 0 on", key);
	*ret = (uint64_t)json_integer_value(value);
	return 0;
}

static int parse_field(const json_t *map, struct stkd_field *field, struct stk_err *err)
{
	const json_t *name = json_object_get(map, "name"), *dtype = json_object_get(map, "dtype");
	const json_t *ragged = json_object_get(map, "ragged"),
		     *shape = json_object_get(map, "shape");
	json_t *value;
	size_t i;

	if (!json_is_string(name))
		return stk_err_set(err, -EBADMSG, "\"name\" must be a string");
	field->name = strdup(json_string_value(name));
	if (!field->name)
		return stk_err_set(err, -ENOMEM, "no memory");
	if (json_is_string(dtype))
		field->dtype = stk_dtype_from_safetensors(json_string_value(dtype),
							  json_string_length(dtype));
	if (field->dtype == STK_DTYPE_NONE)
		return stk_err_set(err, -EBADMSG, "\"dtype\" must be a type such as \"I32\"");
	if (!json_is_boolean(ragged))
		return stk_err_set(err, -EBADMSG, "\"ragged\" must be true or false");
	field->ragged = json_is_true(ragged);
	if (!json_is_array(shape) || json_array_size(shape) > STKD_FIELD_DIMS_MAX)
		return stk_err_set(err, -EBADMSG, "\"shape\" must be a list of at most %d numbers",
				   STKD_FIELD_DIMS_MAX);
	field->ndims = (uint32_t)json_array_size(shape);
	json_array_foreach (shape, i, value) {
		if (!json_is_integer(value) || json_integer_value(value) < 0)
			return stk_err_set(err, -EBADMSG,
					   "\"shape\" must have whole numbers from 0 on");
		field->inner[i] = (uint64_t)json_integer_value(value);
	}
	return 0;
}

static int compare_fields(const void *a, const void *b)
{
	return strcmp(((const struct stkd_field *)a)->name, ((const struct stkd_field *)b)->name);
}

static int parse_fields(struct stkd_manifest *manifest, const json_t *list, struct stk_err *err)
{
	if (!json_is_array(list) || json_array_size(list) > STKD_SHARD_FIELDS_MAX)
		return stk_err_set(err, -EBADMSG, "\"fields\" must be a list of at most %d fields",
				   STKD_SHARD_FIELDS_MAX);
	manifest->fields = calloc(json_array_size(list) + 1, sizeof(*manifest->fields));
	if (!manifest->fields)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (size_t i = 0; i < json_array_size(list); i++) {
		int r = parse_field(json_array_get(list, i), &manifest->fields[manifest->nfields++],
				    err);

		if (r < 0) {
			stk_err_prefix(err, "fields[%zu]: ", i);
			return r;
		}
	}
	qsort(manifest->fields, manifest->nfields, sizeof(*manifest->fields), compare_fields);
	return 0;
}

static int parse_shard(const json_t *map, struct stkd_manifest_shard *shard, struct stk_err *err)
{
	const char *file = json_string_value(json_object_get(map, "file"));
	const char *hash = json_string_value(json_object_get(map, "xxh3_128"));
	int r;

	/* jansson refuses NUL; a leading dot covers ".." and what a listing does not see. */
	if (!file || !*file || *file == '.' || strchr(file, '/'))
		return stk_err_set(err, -EBADMSG, "\"file\" must be the plain name of a file");
	shard->file = strdup(file);
	if (!shard->file)
		return stk_err_set(err, -ENOMEM, "no memory");
	r = parse_count(map, "samples", &shard->samples, err);
	if (r >= 0)
		r = parse_count(map, "bytes", &shard->bytes, err);
	if (r < 0)
		return r;
	if (!hash || strlen(hash) != 2 * sizeof(shard->hash) ||
	    stk_hex_decode(hash, shard->hash.bytes, sizeof(shard->hash)) != sizeof(shard->hash))
		return stk_err_set(err, -EBADMSG, "\"xxh3_128\" must be 32 hexadecimal digits");
	return 0;
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static int check_names(const struct stkd_manifest *manifest, struct stk_err *err)
{
	_cleanup_(stk_freep) char **names = calloc(manifest->nshards + 1, sizeof(*names));
	char label[STKD_LABEL_SIZE];

	if (!names)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (size_t i = 0; i < manifest->nshards; i++)
		names[i] = manifest->shards[i].file;
	qsort(names, manifest->nshards, sizeof(*names), compare_names);
	for (size_t i = 1; i < manifest->nshards; i++)
		if (!strcmp(names[i - 1], names[i]))
			return stk_err_set(err, -EBADMSG, "shards: %s is listed twice",
					   stkd_label(names[i], label));
	return 0;
}

static int parse_shards(struct stkd_manifest *manifest, const json_t *list, struct stk_err *err)
{
	uint64_t sum = 0;

	if (!json_is_array(list))
		return stk_err_set(err, -EBADMSG, "\"shards\" must be a list");
	manifest->shards = calloc(json_array_size(list) + 1, sizeof(*manifest->shards));
	if (!manifest->shards)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (size_t i = 0; i < json_array_size(list); i++) {
		struct stkd_manifest_shard *shard = &manifest->shards[manifest->nshards++];
		int r = parse_shard(json_array_get(list, i), shard, err);

		if (r >= 0 && stk_add_overflow(sum, shard->samples, &sum))
			r = stk_err_set(err, -EBADMSG, "the sum of \"samples\" overflows");
		if (r < 0) {
			stk_err_prefix(err, "shards[%zu]: ", i);
			return r;
		}
	}
	if (sum != manifest->samples)
		return stk_err_set(err, -EBADMSG,
				   "\"samples\" is %" PRIu64 ", but the shards have %" PRIu64,
				   manifest->samples, sum);
	return check_names(manifest, err);
}

static int parse_manifest(struct stkd_manifest *manifest, const json_t *json, struct stk_err *err)
{
	const char *format = json_string_value(json_object_get(json, "format"));
	const json_t *version = json_object_get(json, "version");
	int r;

	if (!format || strcmp(format, "stoker-dataset"))
		return stk_err_set(err, -EBADMSG, "\"format\" must be \"stoker-dataset\"");
	if (!json_is_integer(version) || json_integer_value(version) != 1)
		return stk_err_set(err, -EBADMSG, "\"version\" must be 1");
	r = parse_count(json, "samples", &manifest->samples, err);
	if (r >= 0)
		r = parse_fields(manifest, json_object_get(json, "fields"), err);
	return r < 0 ? r : parse_shards(manifest, json_object_get(json, "shards"), err);
}

int stkd_manifest_read(const char *folder, struct stkd_manifest **ret, struct stk_err *err)
{
	_cleanup_(stkd_manifest_freep) struct stkd_manifest *manifest = NULL;
	json_t *json = NULL;
	int r;

	manifest = calloc(1, sizeof(*manifest));
	if (!manifest || asprintf(&manifest->path, "%s/" STKD_MANIFEST_NAME, folder) < 0) {
		if (manifest)
			manifest->path = NULL;
		return stk_err_set(err, -ENOMEM, "%s: no memory", folder);
	}
	r = load_json(manifest, &json, err);
	if (r == -ENOENT)
		return r;
	if (r >= 0)
		r = parse_manifest(manifest, json, err);
	json_decref(json);
	if (r < 0) {
		stk_err_prefix(err, "%s: ", manifest->path);
		return r;
	}
	*ret = STK_STEAL(manifest);
	return 0;
}

struct stkd_manifest *stkd_manifest_free(struct stkd_manifest *manifest)
{
	if (!manifest)
		return NULL;
	for (uint32_t i = 0; i < manifest->nfields; i++)
		free(manifest->fields[i].name);
	for (size_t i = 0; i < manifest->nshards; i++)
		free(manifest->shards[i].file);
	free(manifest->fields);
	free(manifest->shards);
	free(manifest->path);
	free(manifest);
	return NULL;
}

int stkd_manifest_check(const struct stkd_manifest *manifest, size_t i,
			const struct stkd_shard *shard, struct stk_err *err)
{
	const struct stkd_manifest_shard *listed = &manifest->shards[i];

	if (shard->file_size != listed->bytes)
		return stk_err_set(err, -EBADMSG,
				   "%s: %" PRIu64 " bytes, " STKD_MANIFEST_NAME " says %" PRIu64,
				   shard->path, shard->file_size, listed->bytes);
	if (shard->count != listed->samples)
		return stk_err_set(err, -EBADMSG,
				   "%s: %" PRIu64 " samples, " STKD_MANIFEST_NAME " says %" PRIu64,
				   shard->path, shard->count, listed->samples);
	return 0;
}

int stkd_manifest_check_fields(const struct stkd_manifest *manifest,
			       const struct stkd_field *fields, uint32_t nfields,
			       struct stk_err *err)
{
	char text[STKD_FIELD_TEXT_SIZE], listed[STKD_FIELD_TEXT_SIZE];

	if (manifest->nfields != nfields)
		return stk_err_set(err, -EBADMSG,
				   "%s: lists %" PRIu32 " fields, the shards have %" PRIu32,
				   manifest->path, manifest->nfields, nfields);
	for (uint32_t i = 0; i < nfields; i++)
		if (!stkd_field_equal(&manifest->fields[i], &fields[i]))
			return stk_err_set(err, -EBADMSG, "%s: lists field %s, the shards have %s",
					   manifest->path,
					   stkd_field_text(&manifest->fields[i], listed),
					   stkd_field_text(&fields[i], text));
	return 0;
}
