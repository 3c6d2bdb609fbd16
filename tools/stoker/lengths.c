/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns where lengths come from. Every number of a JSON file is checked before it is used.
 * One thread.
 */
#include "tools/stoker/lengths.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "tools/stoker/npy.h"

static void add_up(struct lengths *lengths)
{
	for (uint64_t i = 0; i < lengths->count; i++)
		lengths->tokens += lengths->len[i];
}

int lengths_from_dataset(const char *path, const struct stk_spec *spec, struct lengths *ret,
			 struct stk_err *err)
{
	struct lengths lengths = {0};
	int r = stkd_dataset_open_list(&path, 1, spec->length, spec->length2, NULL, NULL,
				       &lengths.dataset, err);

	if (r < 0)
		return r;
	lengths.len = lengths.dataset->lengths;
	lengths.count = lengths.dataset->count;
	add_up(&lengths);
	*ret = lengths;
	return 0;
}

int lengths_from_spec(const struct stk_spec *spec, struct lengths *ret, struct stk_err *err)
{
	const char *paths[STK_SPEC_DATA_MAX];
	struct lengths lengths = {0};
	int r;

	for (size_t i = 0; i < spec->ndata; i++)
		paths[i] = spec->data[i].path;
	r = stkd_dataset_open_list(paths, (uint32_t)spec->ndata, spec->length, spec->length2, NULL,
				   NULL, &lengths.dataset, err);
	if (r < 0)
		return r;
	lengths.len = lengths.dataset->lengths;
	lengths.count = lengths.dataset->count;
	add_up(&lengths);
	*ret = lengths;
	return 0;
}

struct stkd_lengths lengths_for_plan(const struct lengths *lengths)
{
	struct stkd_lengths all = {.len = lengths->len, .count = lengths->count};

	if (lengths->dataset) {
		all.second = lengths->dataset->lengths2;
		all.first = lengths->dataset->starts;
		all.ndatasets = lengths->dataset->ndatasets;
	}
	return all;
}

/* Which of the elements is no length, and why. */
static int refuse_element(const char *path, size_t i, const json_t *item, struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = json_dumps(item, JSON_ENCODE_ANY | JSON_COMPACT);

	return stk_err_set(err, -EINVAL, "%s: element %zu is %.80s, not a whole number 0..%u", path,
			   i, text ? text : "?", UINT32_MAX);
}

static int take_array(const char *path, const json_t *array, struct lengths *lengths,
		      struct stk_err *err)
{
	size_t n = json_array_size(array);

	if (!json_is_array(array))
		return stk_err_set(err, -EINVAL,
				   "%s: neither an array of lengths nor {\"lengths\": [...]}",
				   path);
	lengths->own = calloc(n + 1, sizeof(*lengths->own));
	if (!lengths->own)
		return stk_err_set(err, -ENOMEM, "%s: no memory for %zu lengths", path, n);
	for (size_t i = 0; i < n; i++) {
		const json_t *item = json_array_get(array, i);
		json_int_t value = json_integer_value(item);

		if (!json_is_integer(item) || value < 0 || value > UINT32_MAX)
			return refuse_element(path, i, item, err);
		lengths->own[i] = (uint32_t)value;
	}
	lengths->len = lengths->own;
	lengths->count = n;
	return 0;
}

static int from_npy(const char *path, struct lengths *ret, struct stk_err *err)
{
	struct lengths lengths = {0};
	int r = npy_read_lengths(path, &lengths.own, &lengths.count, err);

	if (r < 0)
		return r;
	lengths.len = lengths.own;
	add_up(&lengths);
	*ret = lengths;
	return 0;
}

int lengths_from_file(const char *path, struct lengths *ret, struct stk_err *err)
{
	const char *dot = strrchr(path, '.');

	return dot && !strcmp(dot, ".npy") ? from_npy(path, ret, err)
					   : lengths_from_json(path, ret, err);
}

int lengths_from_json(const char *path, struct lengths *ret, struct stk_err *err)
{
	struct lengths lengths = {0};
	json_error_t error;
	json_t *json =
		strcmp(path, "-") ? json_load_file(path, 0, &error) : json_loadf(stdin, 0, &error);
	int r;

	if (!json && error.line < 0)
		return stk_err_set(err, -EINVAL, "%s", error.text);
	if (!json)
		return stk_err_set(err, -EINVAL, "%s:%d: %s", path, error.line, error.text);
	r = take_array(path, json_is_object(json) ? json_object_get(json, "lengths") : json,
		       &lengths, err);
	json_decref(json);
	if (r < 0) {
		lengths_deinit(&lengths);
		return r;
	}
	add_up(&lengths);
	*ret = lengths;
	return 0;
}

void lengths_deinit(struct lengths *lengths)
{
	free(lengths->own);
	stkd_dataset_free(lengths->dataset);
	*lengths = (struct lengths){0};
}
