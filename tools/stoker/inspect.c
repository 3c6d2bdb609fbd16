/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `stoker inspect`: what is in shards, and one sample of them. One thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/shard/guard.h"
#include "daemon/shard/scan.h"
#include "daemon/storage/fetch.h"
#include "tools/stoker/commands.h"
#include "tools/stoker/progress.h"
#include "tools/stoker/shardargs.h"
#include "tools/stoker/values.h"

#define SHARDS_SHOWN 8
#define VALUES_SHOWN 32
#define TEXT_SHOWN   400 /* bytes */

static const char help[] =
	"usage: stoker inspect [OPTIONS] PATH...\n"
	"\n"
	"Shows what is in shards. PATH is a file, a directory or a glob; each is a dataset.\n"
	"\n"
	"  --sample ID         show this sample: its shard, row, place in the file, and fields\n"
	"  --length FIELD      field whose lengths are shown (the only ragged one, or input_ids)\n"
	"  --json              print one JSON object for each PATH\n"
	"  --header-max BYTES  largest header of a shard (100000000)\n"
	"\n"
	"Exit status: 0 fine, 1 the data is bad or there is no such sample, 2 wrong usage.\n";

/* Lengths of all samples in a few numbers. Percentiles are of samples that exist (nearest rank). */
struct lengths {
	uint32_t min, p50, p90, p99, max;
	uint64_t total;
};

/* One sample, copied out of the mapping. */
struct sample {
	const struct stkd_dataset *dataset;
	uint64_t id;
	struct stkd_extent extents[STKD_SHARD_FIELDS_MAX];
	uint8_t *data[STKD_SHARD_FIELDS_MAX];
	struct stk_err *err;
};

/* The k-th smallest of n lengths, counted in two halves of 16 bits: any n, no copy. */
static uint32_t nth(const uint32_t *lengths, uint64_t n, uint64_t k, uint64_t counts[65536])
{
	uint32_t found = 0;

	for (unsigned shift = 16;; shift = 0) {
		uint32_t bucket = 0;

		memset(counts, 0, 65536 * sizeof(*counts));
		for (uint64_t i = 0; i < n; i++)
			if (shift || lengths[i] >> 16 == found >> 16)
				counts[lengths[i] >> shift & 0xffff]++;
		while (k >= counts[bucket])
			k -= counts[bucket++];
		found |= bucket << shift;
		if (!shift)
			return found;
	}
}

static int measure(const struct stkd_dataset *dataset, struct lengths *ret)
{
	_cleanup_(stk_freep) uint64_t *counts = calloc(65536, sizeof(*counts));
	const uint32_t *lengths = dataset->lengths;
	uint64_t n = dataset->count;

	if (!counts)
		return -ENOMEM;
	*ret = (struct lengths){.min = UINT32_MAX};
	for (uint64_t i = 0; i < n; i++) {
		ret->min = STK_MIN(ret->min, lengths[i]);
		ret->max = STK_MAX(ret->max, lengths[i]);
		ret->total += lengths[i];
	}
	ret->p50 = nth(lengths, n, (n - 1) / 2, counts);
	ret->p90 = nth(lengths, n, n - 1 - n / 10, counts);
	ret->p99 = nth(lengths, n, n - 1 - n / 100, counts);
	return 0;
}

static bool all_equal(const struct stkd_dataset *dataset, const struct lengths *lengths)
{
	return dataset->count > 1 && lengths->min == lengths->max;
}

static uint64_t total_bytes(const struct stkd_dataset *dataset)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < dataset->nshards; i++)
		bytes += dataset->shards[i]->file_size;
	return bytes;
}

static void print_fields(const struct stkd_dataset *dataset)
{
	printf("fields:\n");
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		const struct stkd_field *field = &dataset->fields[f];
		char text[STKD_FIELD_TEXT_SIZE];

		printf("  %s", stkd_field_text(field, text));
		if (field->text)
			printf(", text");
		if (!field->ragged)
			printf(", fixed");
		else if (dataset->lengths)
			printf(", longest %" PRIu64, dataset->longest[f]);
		if (f == dataset->length_field)
			printf(", gives the length");
		else if (dataset->aligned[f])
			printf(", same lengths");
		putchar('\n');
	}
}

static void print_lengths(const struct stkd_dataset *dataset, const struct lengths *l)
{
	char label[STKD_LABEL_SIZE];

	printf("lengths of %s: min %" PRIu32 ", p50 %" PRIu32 ", mean %.1f, p90 %" PRIu32
	       ", p99 %" PRIu32 ", max %" PRIu32 "; sum %" PRIu64 "\n",
	       stkd_label(dataset->fields[dataset->length_field].name, label), l->min, l->p50,
	       (double)l->total / (double)dataset->count, l->p90, l->p99, l->max, l->total);
	if (all_equal(dataset, l))
		printf("warning: all lengths are %" PRIu32
		       "; were the rows padded before they were written?\n",
		       l->min);
}

static void print_shards(const struct stkd_dataset *dataset)
{
	size_t shown = STK_MIN(dataset->nshards, (size_t)SHARDS_SHOWN);
	char size[PROGRESS_SIZE_MAX];

	printf("shards:\n");
	for (size_t i = 0; i < shown; i++)
		printf("  %s: %" PRIu64 " sample%s, %s\n", dataset->shards[i]->path,
		       dataset->shards[i]->count, dataset->shards[i]->count == 1 ? "" : "s",
		       progress_size(dataset->shards[i]->file_size, size));
	if (dataset->nshards > shown)
		printf("  ... (%zu more)\n", dataset->nshards - shown);
}

static void print_dataset(const struct stkd_dataset *dataset, const struct lengths *lengths)
{
	char size[PROGRESS_SIZE_MAX], print[33];

	stk_hex_encode(dataset->fingerprint.bytes, sizeof(dataset->fingerprint.bytes), print);
	printf("%s: %zu shard%s, %" PRIu64 " sample%s, %s\n", dataset->path, dataset->nshards,
	       dataset->nshards == 1 ? "" : "s", dataset->count, dataset->count == 1 ? "" : "s",
	       progress_size(total_bytes(dataset), size));
	print_fields(dataset);
	if (dataset->lengths)
		print_lengths(dataset, lengths);
	print_shards(dataset);
	printf("fingerprint: %s\n", print);
}

static json_t *shape_json(const struct stkd_field *field)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; i < field->ndims; i++)
		json_array_append_new(shape, json_integer((json_int_t)field->inner[i]));
	return shape;
}

static json_t *field_json(const struct stkd_dataset *dataset, uint32_t f)
{
	const struct stkd_field *field = &dataset->fields[f];
	json_t *json = json_pack("{ss ss sb so sb}", "name", field->name, "dtype",
				 stk_dtype_name(field->dtype), "ragged", field->ragged, "shape",
				 shape_json(field), "text", field->text);

	if (field->ragged && dataset->lengths)
		json_object_set_new(json, "longest", json_integer((json_int_t)dataset->longest[f]));
	return json;
}

static json_t *lengths_json(const struct stkd_dataset *dataset, const struct lengths *l)
{
	return json_pack("{ss sI sI sf sI sI sI sI sb}", "field",
			 dataset->fields[dataset->length_field].name, "min", (json_int_t)l->min,
			 "p50", (json_int_t)l->p50, "mean",
			 (double)l->total / (double)dataset->count, "p90", (json_int_t)l->p90,
			 "p99", (json_int_t)l->p99, "max", (json_int_t)l->max, "sum",
			 (json_int_t)l->total, "all_equal", all_equal(dataset, l));
}

/* A path as JSON can hold it: unprintable bytes are escaped. */
static json_t *path_json(const char *path)
{
	struct stk_err shown;

	stk_err_set(&shown, 0, "%s", path);
	return json_string(shown.text);
}

static json_t *dataset_json(const struct stkd_dataset *dataset, const struct lengths *lengths)
{
	json_t *fields = json_array(), *shards = json_array();
	char print[33];

	stk_hex_encode(dataset->fingerprint.bytes, sizeof(dataset->fingerprint.bytes), print);
	for (uint32_t f = 0; f < dataset->nfields; f++)
		json_array_append_new(fields, field_json(dataset, f));
	for (size_t i = 0; i < dataset->nshards; i++)
		json_array_append_new(
			shards, json_pack("{so sI sI}", "path", path_json(dataset->shards[i]->path),
					  "samples", (json_int_t)dataset->shards[i]->count, "bytes",
					  (json_int_t)dataset->shards[i]->file_size));
	return json_pack("{so sI sI so so* ss so}", "path", path_json(dataset->path), "samples",
			 (json_int_t)dataset->count, "bytes", (json_int_t)total_bytes(dataset),
			 "fields", fields, "lengths",
			 dataset->lengths ? lengths_json(dataset, lengths) : NULL, "fingerprint",
			 print, "shards", shards);
}

/* Runs under the guard: finds the extents. */
static int find_sample(void *arg)
{
	struct sample *sample = arg;
	uint16_t fields[STKD_SHARD_FIELDS_MAX];
	const struct stkd_want want = {&sample->id, 1, fields, sample->dataset->nfields};

	for (uint32_t f = 0; f < sample->dataset->nfields; f++)
		fields[f] = (uint16_t)f;
	return stkd_fetch(sample->dataset, &want, sample->extents, sample->err);
}

/* Runs under the guard: copies what was found. */
static int copy_sample(void *arg)
{
	struct sample *sample = arg;

	for (uint32_t f = 0; f < sample->dataset->nfields; f++)
		memcpy(sample->data[f], sample->extents[f].data, sample->extents[f].size);
	return 0;
}

static int read_sample(struct sample *sample)
{
	const struct stkd_want want = {&sample->id, 1, NULL, 0};
	int r = stkd_guard_install();

	if (r >= 0)
		r = stkd_guard_run(find_sample, sample, NULL);
	for (uint32_t f = 0; r >= 0 && f < sample->dataset->nfields; f++) {
		sample->data[f] = malloc(sample->extents[f].size + 1);
		if (!sample->data[f])
			r = stk_err_set(sample->err, -ENOMEM, "no memory for %" PRIu64 " bytes",
					sample->extents[f].size);
	}
	if (r >= 0)
		r = stkd_guard_run(copy_sample, sample, NULL);
	if (r == -EFAULT)
		r = stk_err_set(sample->err, -EBADMSG, "%s: a shard was cut while it was read",
				sample->dataset->path);
	return r < 0 ? r : stkd_fetch_done(sample->dataset, &want, sample->err);
}

/* Elements of the field in this sample; for types without whole bytes, bytes. */
static uint64_t element_count(const struct sample *sample, uint32_t f)
{
	size_t size = stk_dtype_size(sample->dataset->fields[f].dtype);

	return sample->extents[f].size / (size ? size : 1);
}

static bool is_text(const struct stkd_field *field)
{
	return stk_dtype_class(field->dtype) == STK_DTYPE_IS_INT &&
	       (field->text || (field->ragged && field->dtype == STK_DTYPE_U8 && !field->ndims));
}

static uint64_t file_offset(const struct sample *sample, const struct stkd_shard *shard, uint32_t f)
{
	return (uint64_t)((const uint8_t *)sample->extents[f].data - shard->map);
}

static void print_sample(const struct sample *sample, const struct stkd_shard *shard, uint64_t row)
{
	const struct stkd_dataset *dataset = sample->dataset;

	printf("sample %" PRIu64 ": %s, row %" PRIu64 "\n", sample->id, shard->path, row);
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		const struct stkd_field *field = &dataset->fields[f];
		uint64_t n = element_count(sample, f);
		char text[STKD_FIELD_TEXT_SIZE];

		printf("  %s", stkd_field_text(field, text));
		if (field->ragged)
			printf(", length %" PRIu64, sample->extents[f].count);
		printf(", %" PRIu64 " bytes at %" PRIu64 "\n    ", sample->extents[f].size,
		       file_offset(sample, shard, f));
		if (is_text(field))
			values_print_text(stdout, field->dtype, sample->data[f], n, TEXT_SHOWN);
		else
			values_print(stdout, field->dtype, sample->data[f], n, VALUES_SHOWN);
		putchar('\n');
	}
}

static json_t *sample_json(const struct sample *sample, const struct stkd_shard *shard,
			   uint64_t row)
{
	const struct stkd_dataset *dataset = sample->dataset;
	json_t *fields = json_array();

	for (uint32_t f = 0; f < dataset->nfields; f++) {
		const struct stkd_field *field = &dataset->fields[f];
		uint64_t n = element_count(sample, f);
		json_t *text =
			is_text(field) ? values_json_text(field->dtype, sample->data[f], n) : NULL;

		json_array_append_new(
			fields,
			json_pack("{ss ss sb so sI sI sI so so*}", "name", field->name, "dtype",
				  stk_dtype_name(field->dtype), "ragged", field->ragged, "shape",
				  shape_json(field), "count", (json_int_t)sample->extents[f].count,
				  "offset", (json_int_t)file_offset(sample, shard, f), "bytes",
				  (json_int_t)sample->extents[f].size, "values",
				  values_json(field->dtype, sample->data[f], n), "text", text));
	}
	return json_pack("{sI so sI so}", "sample", (json_int_t)sample->id, "shard",
			 path_json(shard->path), "row", (json_int_t)row, "fields", fields);
}

static int print_json(json_t *json, struct stk_err *err)
{
	int r = json ? json_dumpf(json, stdout, JSON_COMPACT) : -1;

	json_decref(json);
	if (r < 0)
		return stk_err_set(err, -ENOMEM, "no memory for the JSON");
	putchar('\n');
	return 0;
}

static int show_sample(const struct shardargs *args, const struct stkd_dataset *dataset,
		       struct stk_err *err)
{
	struct sample sample = {.dataset = dataset, .err = err};
	uint64_t row;
	size_t s;
	char *end;
	int r;

	errno = 0;
	sample.id = strtoull(args->sample, &end, 10);
	if (errno || *end || sample.id >= dataset->count)
		return stk_err_set(err, -EINVAL, "%s: no sample %s; samples are 0 to %" PRIu64,
				   dataset->path, args->sample, dataset->count - 1);
	r = read_sample(&sample);
	if (r >= 0) {
		stkd_dataset_locate(dataset, sample.id, &s, &row);
		if (args->json)
			r = print_json(sample_json(&sample, dataset->shards[s], row), err);
		else
			print_sample(&sample, dataset->shards[s], row);
	}
	for (uint32_t f = 0; f < dataset->nfields; f++)
		free(sample.data[f]);
	return r;
}

static int show(const struct shardargs *args, const char *path, struct stk_err *err)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct lengths lengths = {0};
	int r = stkd_dataset_open_any(path, args->length, &args->limits, NULL, &dataset, err);

	if (r < 0)
		return r;
	if (args->sample)
		return show_sample(args, dataset, err);
	if (dataset->lengths && measure(dataset, &lengths) < 0)
		return stk_err_set(err, -ENOMEM, "no memory");
	if (args->json)
		return print_json(dataset_json(dataset, &lengths), err);
	print_dataset(dataset, &lengths);
	return 0;
}

int stoker_inspect(int argc, char **argv)
{
	struct shardargs args;
	int status = shardargs_parse(argc, argv, help, true, &args);

	if (status >= 0)
		return status;
	if (args.sample && (args.npaths > 1 || *args.sample < '0' || *args.sample > '9')) {
		fprintf(stderr, "stoker inspect: --sample needs a number, and one PATH\n");
		return 2;
	}
	status = 0;
	for (size_t i = 0; i < args.npaths; i++) {
		struct stk_err err;

		if (show(&args, args.paths[i], &err) >= 0)
			continue;
		fprintf(stderr, "stoker inspect: %s\n", err.text);
		status = 1;
	}
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "stoker inspect: standard output: %m\n");
		status = 1;
	}
	return status;
}
