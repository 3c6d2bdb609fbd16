/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/shardwriter.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "tools/stoker/outdir.h"

/* A tensor of the shard, in file order. */
struct tensor {
	char *name;
	enum stk_dtype dtype;
	struct column *column;
	struct spool *spool; /* its bytes: the column's values or offsets */
};

struct shardwriter {
	const struct shardwriter_opts *opts;
	struct outdir outdir;
	size_t ncolumns, ntensors;
	struct column *columns;
	struct tensor *tensors;
	uint64_t header_max; /* bytes before the data of any shard */
	uint64_t samples;    /* in the shard that is being filled */
	struct shardwriter_totals totals;
	json_t *shards; /* of dataset.json */
};

/* Wide types first, so that all tensors are aligned to their own size; then by name. */
static int compare_tensors(const void *a, const void *b)
{
	const struct tensor *x = a, *y = b;
	size_t sx = stk_dtype_size(x->dtype), sy = stk_dtype_size(y->dtype);

	return sx != sy ? (sx < sy) - (sx > sy) : strcmp(x->name, y->name);
}

static bool add_tensor(struct shardwriter *w, struct column *column, bool offsets)
{
	const struct field *field = column->field;
	const char *end = offsets ? ".offsets" : field_is_ragged(field) ? ".values" : "";
	struct tensor *tensor = &w->tensors[w->ntensors];

	if (asprintf(&tensor->name, "%s%s", field->name, end) < 0) {
		tensor->name = NULL;
		return false;
	}
	tensor->dtype = offsets ? STK_DTYPE_I64 : field->dtype;
	tensor->column = column;
	tensor->spool = offsets ? &column->offsets : &column->values;
	w->ntensors++;
	return true;
}

/* The first dimension of a tensor as it stands. */
static uint64_t tensor_rows(const struct shardwriter *w, const struct tensor *tensor)
{
	if (tensor->spool == &tensor->column->offsets)
		return w->samples + 1;
	return field_is_ragged(tensor->column->field) ? tensor->column->elements : w->samples;
}

static json_t *shape_json(const struct field *field, bool inner)
{
	json_t *shape = json_array();

	for (uint32_t i = 0; inner && i < field->ndims; i++)
		json_array_append_new(shape, json_integer((json_int_t)field->shape[i]));
	return shape;
}

static json_t *metadata_json(const struct shardwriter *w)
{
	json_t *metadata = json_pack("{ss}", "stoker", "ragged=values+offsets;version=1");

	for (size_t i = 0; i < w->ncolumns; i++)
		if (w->columns[i].field->kind == FIELD_TEXT)
			json_object_set_new(metadata, "stoker.text",
					    json_string(w->columns[i].field->name));
	return metadata;
}

static json_t *tensor_json(const struct shardwriter *w, const struct tensor *t, uint64_t begin,
			   bool largest)
{
	json_int_t first = (json_int_t)begin, end = (json_int_t)(begin + spool_bytes(t->spool));
	json_int_t rows = (json_int_t)tensor_rows(w, t);
	json_t *shape = shape_json(t->column->field, t->spool == &t->column->values);

	if (largest)
		rows = first = end = INT64_MAX;
	json_array_insert_new(shape, 0, json_integer(rows));
	return json_pack("{sssos[II]}", "dtype", stk_dtype_name(t->dtype), "shape", shape,
			 "data_offsets", first, end);
}

/* The JSON text of a header; largest: with the widest numbers that any shard can need. */
static char *header_text(const struct shardwriter *w, bool largest)
{
	json_t *header = json_object();
	int r = json_object_set_new(header, "__metadata__", metadata_json(w));
	uint64_t begin = 0;
	char *text;

	for (size_t i = 0; i < w->ntensors && r == 0; i++) {
		r = json_object_set_new(header, w->tensors[i].name,
					tensor_json(w, &w->tensors[i], begin, largest));
		begin += spool_bytes(w->tensors[i].spool);
	}
	text = r == 0 ? json_dumps(header, JSON_COMPACT) : NULL;
	json_decref(header);
	return text;
}

static int write_header(const struct shardwriter *w, struct sink *sink, struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = header_text(w, false);
	uint64_t size, padded;
	int r;

	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory for a shard's header");
	size = strlen(text);
	padded = stk_align_up(size, 8); /* the data begins at a multiple of 8 */
	r = sink_write(sink, &padded, sizeof(padded), err);
	if (r == 0)
		r = sink_write(sink, text, size, err);
	if (r == 0)
		r = sink_write(sink, "        ", padded - size, err);
	return r;
}

static int write_tensors(struct shardwriter *w, struct sink *sink, struct stk_err *err)
{
	int r = write_header(w, sink, err);

	for (size_t i = 0; i < w->ntensors && r == 0; i++)
		r = spool_drain(w->tensors[i].spool, sink, err);
	return r;
}

static int record_shard(struct shardwriter *w, uint64_t bytes, const struct stk_hash *hash,
			struct stk_err *err)
{
	char name[OUTDIR_NAME_MAX], hex[2 * sizeof(hash->bytes) + 1];

	outdir_shard_name(w->totals.shards, false, name);
	stk_hex_encode(hash->bytes, sizeof(hash->bytes), hex);
	if (json_array_append_new(w->shards, json_pack("{sssIsIss}", "file", name, "samples",
						       (json_int_t)w->samples, "bytes",
						       (json_int_t)bytes, "xxh3_128", hex)) < 0)
		return stk_err_set(err, -ENOMEM, "no memory for the list of shards");
	w->totals.shards++;
	w->totals.samples += w->samples;
	w->totals.bytes += bytes;
	w->totals.elements += w->columns[0].elements;
	w->samples = 0;
	return 0;
}

static int write_shard(struct shardwriter *w, struct stk_err *err)
{
	char name[OUTDIR_NAME_MAX];
	struct stk_hash hash;
	struct sink sink;
	int r;

	outdir_shard_name(w->totals.shards, true, name);
	r = sink_open(&sink, w->outdir.fd, w->opts->dir, name, w->opts->stop_fd, err);
	if (r == 0) {
		w->outdir.nshards++; /* from here on the file is the directory's to remove */
		r = write_tensors(w, &sink, err);
	}
	if (r == 0)
		r = sink_finish(&sink, &hash, err);
	if (r == 0)
		r = record_shard(w, sink.bytes, &hash, err);
	sink_deinit(&sink);
	for (size_t i = 0; i < w->ncolumns && r == 0; i++)
		r = column_restart(&w->columns[i], err);
	return r;
}

static json_t *manifest_json(const struct shardwriter *w)
{
	json_t *fields = json_array();

	for (size_t i = 0; i < w->ncolumns; i++) {
		const struct field *f = w->columns[i].field;

		json_array_append_new(fields,
				      json_pack("{sssssbso}", "name", f->name, "dtype",
						stk_dtype_name(f->dtype), "ragged",
						field_is_ragged(f), "shape", shape_json(f, true)));
	}
	return json_pack("{sssisIsosO}", "format", "stoker-dataset", "version", 1, "samples",
			 (json_int_t)w->totals.samples, "fields", fields, "shards", w->shards);
}

static int write_manifest(struct shardwriter *w, struct stk_err *err)
{
	json_t *manifest = manifest_json(w);
	_cleanup_(stk_freep) char *text = manifest ? json_dumps(manifest, JSON_INDENT(1)) : NULL;
	char name[OUTDIR_NAME_MAX];
	struct stk_hash hash;
	struct sink sink;
	int r;

	json_decref(manifest);
	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory for " OUTDIR_MANIFEST);
	outdir_manifest_name(name);
	r = sink_open(&sink, w->outdir.fd, w->opts->dir, name, w->opts->stop_fd, err);
	if (r == 0)
		r = sink_write(&sink, text, strlen(text), err);
	if (r == 0)
		r = sink_write(&sink, "\n", 1, err);
	if (r == 0)
		r = sink_finish(&sink, &hash, err);
	sink_deinit(&sink);
	return r;
}

static int prepare(struct shardwriter *w, const struct field *fields, size_t nfields,
		   struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = NULL;
	int r;

	w->shards = json_array();
	w->columns = calloc(nfields, sizeof(*w->columns));
	w->tensors = calloc(2 * nfields, sizeof(*w->tensors));
	if (!w->shards || !w->columns || !w->tensors)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (size_t i = 0; i < nfields; i++) {
		struct column *column = &w->columns[w->ncolumns++];

		r = column_init(column, &fields[i], w->outdir.fd, w->opts->dir, err);
		if (r < 0)
			return r;
		if (!add_tensor(w, column, false) ||
		    (field_is_ragged(&fields[i]) && !add_tensor(w, column, true)))
			return stk_err_set(err, -ENOMEM, "no memory");
	}
	qsort(w->tensors, w->ntensors, sizeof(*w->tensors), compare_tensors);
	text = header_text(w, true);
	if (!text)
		return stk_err_set(err, -ENOMEM, "no memory");
	w->header_max = 8 + stk_align_up(strlen(text), 8);
	return 0;
}

int shardwriter_open(const struct shardwriter_opts *opts, const struct field *fields,
		     size_t nfields, struct shardwriter **ret, struct stk_err *err)
{
	_cleanup_(shardwriter_freep) struct shardwriter *w = calloc(1, sizeof(*w));
	int r;

	if (!w)
		return stk_err_set(err, -ENOMEM, "no memory");
	w->opts = opts;
	w->outdir.fd = -1;
	r = outdir_open(&w->outdir, opts->dir, opts->force, err);
	if (r == 0)
		r = prepare(w, fields, nfields, err);
	if (r == 0)
		*ret = STK_STEAL(w);
	return r;
}

struct column *shardwriter_columns(struct shardwriter *w)
{
	return w->columns;
}

/* Does the pending row still belong into this shard? */
static bool has_room(const struct shardwriter *w)
{
	uint64_t bytes = w->header_max;

	if (!w->samples)
		return true; /* a shard holds at least one sample, however large */
	if (w->opts->samples_max && w->samples >= w->opts->samples_max)
		return false;
	for (size_t i = 0; i < w->ncolumns; i++)
		bytes += column_row_bytes(&w->columns[i]);
	for (size_t i = 0; i < w->ntensors; i++)
		bytes += spool_bytes(w->tensors[i].spool);
	return !w->opts->bytes_max || bytes <= w->opts->bytes_max;
}

int shardwriter_row(struct shardwriter *w, struct stk_err *err)
{
	int r = has_room(w) ? 0 : write_shard(w, err);

	for (size_t i = 0; i < w->ncolumns && r == 0; i++)
		r = column_keep(&w->columns[i], err);
	w->samples++;
	return r;
}

int shardwriter_finish(struct shardwriter *w, struct stk_err *err)
{
	int r = write_shard(w, err);

	if (r == 0)
		r = write_manifest(w, err);
	if (r == 0)
		r = outdir_commit(&w->outdir, err);
	return r;
}

struct shardwriter_totals shardwriter_totals(const struct shardwriter *w)
{
	return w->totals;
}

struct shardwriter *shardwriter_free(struct shardwriter *w)
{
	if (!w)
		return NULL;
	for (size_t i = 0; i < w->ncolumns; i++)
		column_deinit(&w->columns[i]);
	for (size_t i = 0; i < w->ntensors; i++)
		free(w->tensors[i].name);
	json_decref(w->shards);
	outdir_close(&w->outdir);
	free(w->columns);
	free(w->tensors);
	free(w);
	return NULL;
}
