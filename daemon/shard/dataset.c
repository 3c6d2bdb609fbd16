/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens all shards of a dataset and builds its index of lengths. Runs in one thread, which may be
 * asked to stop through the progress; the result is immutable.
 */
#include "daemon/shard/dataset.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

#include "daemon/shard/files.h"
#include "daemon/shard/scan.h"

#define BAD_LISTED_MAX 20
#define CHUNK          4096 /* lengths compared at a time, on the stack */

/* The bad shards of one open, as far as they fit into one error. */
struct bad {
	size_t n, listed, used;
	char text[900];
};

static void progress_start(struct stkd_progress *progress, const char *stage, uint64_t total)
{
	if (!progress)
		return;
	/* Relaxed: numbers for people, nothing is read through them. */
	atomic_store_explicit(&progress->done, 0, memory_order_relaxed);
	atomic_store_explicit(&progress->total, total, memory_order_relaxed);
	atomic_store_explicit(&progress->stage, stage, memory_order_relaxed);
}

/* One more shard is done. Return: 0 or -ECANCELED. */
static int progress_step(struct stkd_progress *progress, struct stk_err *err)
{
	if (!progress)
		return 0;
	atomic_fetch_add_explicit(&progress->done, 1, memory_order_relaxed);
	if (atomic_load_explicit(&progress->cancel, memory_order_relaxed))
		return stk_err_set(err, -ECANCELED, "opening was cancelled");
	return 0;
}

static void bad_add(struct bad *bad, const char *reason)
{
	size_t n = strlen(reason) + (bad->used ? 2 : 0);

	bad->n++;
	if (bad->n > BAD_LISTED_MAX || bad->listed + 1 < bad->n)
		return;
	/* The first is kept even where it has to be cut. */
	if (bad->used && n >= sizeof(bad->text) - bad->used)
		return;
	snprintf(bad->text + bad->used, sizeof(bad->text) - bad->used, "%s%s",
		 bad->used ? "; " : "", reason);
	bad->used = strlen(bad->text);
	bad->listed++;
}

static int bad_result(const struct bad *bad, const char *path, size_t nshards, struct stk_err *err)
{
	if (bad->n == bad->listed)
		return stk_err_set(err, -EBADMSG, "%s: %zu of %zu shards are bad: %s", path, bad->n,
				   nshards, bad->text);
	return stk_err_set(err, -EBADMSG, "%s: %zu of %zu shards are bad: %s; and %zu more", path,
			   bad->n, nshards, bad->text, bad->n - bad->listed);
}

/* Errors that the next shard would meet again, and that say nothing about the file. */
static bool is_exhausted(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE;
}

/* The shards of one dataset; @base: number of its first one. */
static int open_shards(struct stkd_dataset *dataset, const char *path, size_t base,
		       const struct stkd_files *files, const struct stkd_shard_limits *limits,
		       struct stkd_progress *progress, struct stk_err *err)
{
	struct stk_err reason = {0};
	struct bad bad = {0};

	progress_start(progress, "opening shards", files->n);
	for (size_t i = 0; i < files->n; i++) {
		struct stkd_shard **shard = &dataset->shards[base + i];
		int r = stkd_shard_open(files->paths[i], limits, shard, &reason);

		if (r >= 0 && files->manifest)
			r = stkd_manifest_check(files->manifest, i, *shard, &reason);
		if (r < 0 && (is_exhausted(r) || files->n + files->nstrangers == 1))
			return stk_err_set(err, r, "%s", reason.text);
		if (r < 0)
			bad_add(&bad, reason.text);
		r = progress_step(progress, err);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < files->nstrangers; i++) {
		stk_err_set(&reason, -EBADMSG, "%s: not listed in " STKD_MANIFEST_NAME,
			    files->strangers[i]);
		bad_add(&bad, reason.text);
	}
	return bad.n ? bad_result(&bad, path, files->n + files->nstrangers, err) : 0;
}

static int take_fields(struct stkd_dataset *dataset, const struct stkd_shard *model,
		       struct stk_err *err)
{
	if (model->nfields > STKD_SHARD_FIELDS_MAX)
		return stk_err_set(err, -EINVAL, "%s: %" PRIu32 " fields, allowed are %d",
				   dataset->path, model->nfields, STKD_SHARD_FIELDS_MAX);
	dataset->nfields = model->nfields;
	dataset->fields = calloc(dataset->nfields, sizeof(*dataset->fields));
	dataset->field_of = calloc(dataset->nshards * dataset->nfields, sizeof(*dataset->field_of));
	dataset->aligned = calloc(dataset->nfields, sizeof(*dataset->aligned));
	dataset->aligned2 = calloc(dataset->nfields, sizeof(*dataset->aligned2));
	dataset->longest = calloc(dataset->nfields, sizeof(*dataset->longest));
	if (!dataset->fields || !dataset->field_of || !dataset->aligned || !dataset->aligned2 ||
	    !dataset->longest)
		return stk_err_set(err, -ENOMEM, "%s: no memory", dataset->path);
	memcpy(dataset->fields, model->fields, dataset->nfields * sizeof(*dataset->fields));
	/* Both lists are sorted and equal: an index means the same field in every shard. */
	for (size_t i = 0; i < dataset->nshards; i++)
		for (uint32_t f = 0; f < dataset->nfields; f++)
			dataset->field_of[i * dataset->nfields + f] = (uint16_t)f;
	return 0;
}

/* Numbers the samples, and takes the fields of the first shard that has samples for all. */
static int agree(struct stkd_dataset *dataset, struct stk_err *err)
{
	const struct stkd_shard *model = NULL;

	for (size_t i = 0; i < dataset->nshards; i++) {
		const struct stkd_shard *shard = dataset->shards[i];
		int r;

		dataset->first[i] = dataset->count;
		if (stk_add_overflow(dataset->count, shard->count, &dataset->count))
			return stk_err_set(err, -EINVAL, "%s: the count of samples overflows",
					   dataset->path);
		if (!shard->count)
			continue;
		if (!model)
			model = shard;
		r = stkd_shard_agree(model, shard, err);
		if (r < 0) {
			stk_err_prefix(err, "%s: ", dataset->path);
			return r;
		}
	}
	dataset->first[dataset->nshards] = dataset->count;
	if (!model)
		return stk_err_set(err, -EINVAL, "%s: no samples in %zu shard%s", dataset->path,
				   dataset->nshards, dataset->nshards == 1 ? "" : "s");
	return take_fields(dataset, model, err);
}

/* "a, b, c" of the ragged fields, or "none"; cut where it gets long. */
static const char *list_ragged(const struct stkd_dataset *dataset, char *out, size_t size)
{
	char label[STKD_LABEL_SIZE];
	size_t used = 0;

	snprintf(out, size, "none");
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		if (!dataset->fields[f].ragged || used + sizeof(label) >= size)
			continue;
		used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
					 stkd_label(dataset->fields[f].name, label));
	}
	return out;
}

/* @any: where the choice is open take the first ragged field, or none. */
static int choose_length(struct stkd_dataset *dataset, const char *length, bool any,
			 struct stk_err *err)
{
	char text[400], label[STKD_LABEL_SIZE];
	uint32_t nragged = 0, first = UINT32_MAX;
	int f = stkd_dataset_field(dataset, length ? length : "input_ids");

	for (uint32_t i = dataset->nfields; i-- > 0;)
		if (dataset->fields[i].ragged) {
			nragged++;
			first = i;
		}
	dataset->length_field = first;
	if (!length && (nragged == 1 || (any && nragged == 0)))
		return 0;
	if (f >= 0 && dataset->fields[f].ragged) {
		dataset->length_field = (uint32_t)f;
		return 0;
	}
	if (!length && any)
		return 0;
	list_ragged(dataset, text, sizeof(text));
	if (length)
		return stk_err_set(err, -EINVAL, "%s: length field %s %s; ragged fields: %s",
				   dataset->path, stkd_label(length, label),
				   f < 0 ? "is missing" : "is not ragged", text);
	if (!nragged)
		return stk_err_set(err, -EINVAL, "%s: no length field: no field is ragged",
				   dataset->path);
	return stk_err_set(err, -EINVAL, "%s: no length field is given; ragged fields: %s",
			   dataset->path, text);
}

static int map_lengths(const struct stkd_dataset *dataset, uint32_t **ret, struct stk_err *err)
{
	uint64_t size;
	void *map;

	if (stk_mul_overflow(dataset->count, (uint64_t)sizeof(uint32_t), &size) || size > SIZE_MAX)
		return stk_err_set(err, -ENOMEM, "%s: %" PRIu64 " samples do not fit an index",
				   dataset->path, dataset->count);
	map = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return stk_err_set(err, -ENOMEM,
				   "%s: no memory for the lengths of %" PRIu64 " samples: %" PRIu64
				   " bytes",
				   dataset->path, dataset->count, size);
	*ret = map;
	return 0;
}

static void take_longest(struct stkd_dataset *dataset, uint32_t field, const uint32_t *lengths,
			 uint64_t n)
{
	uint32_t longest = 0;

	for (uint64_t i = 0; i < n; i++)
		longest = STK_MAX(longest, lengths[i]);
	dataset->longest[field] = STK_MAX(dataset->longest[field], longest);
}

/* Longest row of a ragged field in one shard; are its lengths those of the length field? */
static int compare_lengths(struct stkd_dataset *dataset, size_t shard, uint32_t field,
			   struct stk_err *err)
{
	const uint32_t *lengths = dataset->lengths + dataset->first[shard];
	uint64_t count = dataset->shards[shard]->count, n;
	uint32_t chunk[CHUNK];

	for (uint64_t i = 0; i < count; i += n) {
		int r;

		n = STK_MIN(count - i, (uint64_t)CHUNK);
		r = stkd_shard_lengths(dataset->shards[shard],
				       dataset->field_of[shard * dataset->nfields + field], i, n,
				       chunk, err);
		if (r < 0)
			return r;
		take_longest(dataset, field, chunk, n);
		if (dataset->aligned[field] && memcmp(chunk, lengths + i, n * sizeof(*chunk)) != 0)
			dataset->aligned[field] = false;
		if (dataset->aligned2[field] &&
		    memcmp(chunk, dataset->lengths2 + dataset->first[shard] + i,
			   n * sizeof(*chunk)) != 0)
			dataset->aligned2[field] = false;
	}
	return 0;
}

static int read_shard_lengths(struct stkd_dataset *dataset, size_t shard, struct stk_err *err)
{
	uint32_t *out = dataset->lengths + dataset->first[shard];
	uint64_t count = dataset->shards[shard]->count;
	uint32_t field = dataset->length_field;
	int r;

	r = stkd_shard_lengths(dataset->shards[shard],
			       dataset->field_of[shard * dataset->nfields + field], 0, count, out,
			       err);
	if (r < 0)
		return r;
	take_longest(dataset, field, out, count);
	if (dataset->lengths2) {
		r = stkd_shard_lengths(
			dataset->shards[shard],
			dataset->field_of[shard * dataset->nfields + dataset->length2_field], 0,
			count, dataset->lengths2 + dataset->first[shard], err);
		if (r < 0)
			return r;
		if (dataset->aligned2[field] &&
		    memcmp(out, dataset->lengths2 + dataset->first[shard], count * sizeof(*out)))
			dataset->aligned2[field] = false;
	}
	for (uint32_t f = 0; f < dataset->nfields; f++) {
		if (!dataset->fields[f].ragged || f == field)
			continue;
		r = compare_lengths(dataset, shard, f, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int read_lengths(struct stkd_dataset *dataset, struct stkd_progress *progress,
			struct stk_err *err)
{
	int r;

	if (dataset->length_field == UINT32_MAX)
		return 0;
	r = map_lengths(dataset, &dataset->lengths, err);
	if (r >= 0 && dataset->length2_field != UINT32_MAX)
		r = map_lengths(dataset, &dataset->lengths2, err);
	if (r < 0)
		return r;
	for (uint32_t f = 0; f < dataset->nfields; f++)
		dataset->aligned[f] = dataset->aligned2[f] = dataset->fields[f].ragged;
	for (uint32_t f = 0; !dataset->lengths2 && f < dataset->nfields; f++)
		dataset->aligned2[f] = false;
	progress_start(progress, "reading lengths", dataset->nshards);
	for (size_t i = 0; i < dataset->nshards; i++) {
		if (dataset->shards[i]->count)
			r = read_shard_lengths(dataset, i, err);
		if (r >= 0)
			r = progress_step(progress, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* What the fingerprint takes from one shard. No path, time or format enters. */
struct shard_print {
	uint64_t count, payload_size;
	XXH128_canonical_t lengths;
	struct stk_hash content; /* as dataset.json has it; zero where nothing is recorded */
};
static_assert(sizeof(struct shard_print) == 48, "hashed as bytes: no padding");

/* Datasets that are opened as one. */
struct parts {
	const char *const *paths;
	uint32_t n;
	struct stkd_files **files; /* of each */
	size_t *base;              /* its first shard; n + 1 */
};

static void print_shards(const struct stkd_dataset *dataset, const struct stkd_files *files,
			 size_t base, XXH3_state_t *state)
{
	for (size_t i = 0; i < files->n; i++) {
		const struct stkd_shard *shard = dataset->shards[base + i];
		struct shard_print print = {
			.count = htole64(shard->count),
			.payload_size = htole64(shard->payload_size),
		};
		size_t size = dataset->lengths ? shard->count * sizeof(uint32_t) : 0;

		XXH128_canonicalFromHash(
			&print.lengths,
			XXH3_128bits(size ? dataset->lengths + dataset->first[base + i] : NULL,
				     size));
		if (files->manifest)
			print.content = files->manifest->shards[i].hash;
		XXH3_128bits_update(state, &print, sizeof(print));
	}
}

static int take_fingerprint(struct stkd_dataset *dataset, const struct parts *parts,
			    struct stk_err *err)
{
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canonical;

	if (!state)
		return stk_err_set(err, -ENOMEM, "%s: no memory", dataset->path);
	XXH3_128bits_reset(state);
	for (uint32_t p = 0; p < parts->n; p++) {
		uint64_t start = htole64(dataset->starts[p]);

		print_shards(dataset, parts->files[p], parts->base[p], state);
		if (parts->n > 1)
			XXH3_128bits_update(state, &start, sizeof(start));
	}
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	memcpy(dataset->fingerprint.bytes, canonical.digest, sizeof(dataset->fingerprint.bytes));
	XXH3_freeState(state);
	return 0;
}

static int find_parts(struct stkd_dataset *dataset, struct parts *parts,
		      struct stkd_progress *progress, struct stk_err *err)
{
	progress_start(progress, "finding shards", 0);
	parts->files = calloc(parts->n, sizeof(*parts->files));
	parts->base = calloc(parts->n + 1, sizeof(*parts->base));
	dataset->starts = calloc(parts->n + 1, sizeof(*dataset->starts));
	if (!parts->files || !parts->base || !dataset->starts)
		return stk_err_set(err, -ENOMEM, "%s: no memory", dataset->path);
	dataset->ndatasets = parts->n;
	for (uint32_t p = 0; p < parts->n; p++) {
		int r = stkd_files_find(parts->paths[p], &parts->files[p], err);

		if (r < 0)
			return r;
		parts->base[p + 1] = parts->base[p] + parts->files[p]->n;
	}
	dataset->nshards = parts->base[parts->n];
	dataset->shards = calloc(dataset->nshards + 1, sizeof(struct stkd_shard *));
	dataset->first = calloc(dataset->nshards + 1, sizeof(*dataset->first));
	if (!dataset->shards || !dataset->first)
		return stk_err_set(err, -ENOMEM, "%s: no memory", dataset->path);
	return 0;
}

static void parts_deinit(struct parts *parts)
{
	for (uint32_t p = 0; parts->files && p < parts->n; p++)
		stkd_files_free(parts->files[p]);
	free(parts->files);
	free(parts->base);
}

static int open_parts(struct stkd_dataset *dataset, const struct parts *parts,
		      const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		      struct stk_err *err)
{
	int r = 0;

	for (uint32_t p = 0; r >= 0 && p < parts->n; p++)
		r = open_shards(dataset, parts->paths[p], parts->base[p], parts->files[p], limits,
				progress, err);
	if (r >= 0)
		r = agree(dataset, err);
	for (uint32_t p = 0; r >= 0 && p < parts->n; p++) {
		dataset->starts[p] = dataset->first[parts->base[p]];
		if (parts->files[p]->manifest)
			r = stkd_manifest_check_fields(parts->files[p]->manifest, dataset->fields,
						       dataset->nfields, err);
	}
	dataset->starts[parts->n] = dataset->count;
	return r;
}

/* What an opener asks for. */
struct wanted {
	const char *length, *length2;
	bool any;
};

static int choose_lengths(struct stkd_dataset *dataset, const struct wanted *wanted,
			  struct stk_err *err)
{
	int r;

	if (wanted->length2) {
		r = choose_length(dataset, wanted->length2, false, err);
		if (r < 0)
			return r;
		dataset->length2_field = dataset->length_field;
	}
	return choose_length(dataset, wanted->length, wanted->any, err);
}

static int fill(struct stkd_dataset *dataset, struct parts *parts, const struct wanted *wanted,
		const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		struct stk_err *err)
{
	int r = find_parts(dataset, parts, progress, err);

	if (r >= 0)
		r = open_parts(dataset, parts, limits, progress, err);
	if (r >= 0)
		r = choose_lengths(dataset, wanted, err);
	if (r >= 0)
		r = read_lengths(dataset, progress, err);
	return r < 0 ? r : take_fingerprint(dataset, parts, err);
}

/* For messages: the path, or all of them. */
static char *join_paths(const char *const *paths, uint32_t n)
{
	size_t size = 1;
	char *text;

	for (uint32_t p = 0; p < n; p++)
		size += strlen(paths[p]) + 2;
	text = calloc(1, size);
	for (uint32_t p = 0; text && p < n; p++) {
		strcat(text, p ? ", " : "");
		strcat(text, paths[p]);
	}
	return text;
}

static int open_all(const char *const *paths, uint32_t n, const struct wanted *wanted,
		    const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		    struct stkd_dataset **ret, struct stk_err *err)
{
	_cleanup_(stkd_dataset_freep) struct stkd_dataset *dataset = NULL;
	struct parts parts = {.paths = paths, .n = n};
	int r;

	dataset = calloc(1, sizeof(*dataset));
	if (!dataset)
		return stk_err_set(err, -ENOMEM, "%s: no memory", paths[0]);
	dataset->length2_field = UINT32_MAX;
	dataset->path = join_paths(paths, n);
	if (!dataset->path)
		return stk_err_set(err, -ENOMEM, "%s: no memory", paths[0]);
	r = fill(dataset, &parts, wanted, limits, progress, err);
	parts_deinit(&parts);
	if (r < 0)
		return r;
	*ret = STK_STEAL(dataset);
	return 0;
}

int stkd_dataset_open_list(const char *const *paths, uint32_t npaths, const char *length,
			   const char *length2, const struct stkd_shard_limits *limits,
			   struct stkd_progress *progress, struct stkd_dataset **ret,
			   struct stk_err *err)
{
	const struct wanted wanted = {.length = length, .length2 = length2};

	return open_all(paths, npaths, &wanted, limits, progress, ret, err);
}

int stkd_dataset_open(const char *path, const char *length, const struct stkd_shard_limits *limits,
		      struct stkd_progress *progress, struct stkd_dataset **ret,
		      struct stk_err *err)
{
	return stkd_dataset_open_list(&path, 1, length, NULL, limits, progress, ret, err);
}

int stkd_dataset_open_any(const char *path, const char *length,
			  const struct stkd_shard_limits *limits, struct stkd_progress *progress,
			  struct stkd_dataset **ret, struct stk_err *err)
{
	const struct wanted wanted = {.length = length, .any = true};

	return open_all(&path, 1, &wanted, limits, progress, ret, err);
}

struct stkd_dataset *stkd_dataset_free(struct stkd_dataset *dataset)
{
	if (!dataset)
		return NULL;
	if (dataset->lengths)
		munmap(dataset->lengths, dataset->count * sizeof(*dataset->lengths));
	if (dataset->lengths2)
		munmap(dataset->lengths2, dataset->count * sizeof(*dataset->lengths2));
	for (size_t i = 0; i < dataset->nshards; i++)
		stkd_shard_free(dataset->shards[i]);
	free(dataset->shards);
	free(dataset->first);
	free(dataset->fields); /* the names are a shard's */
	free(dataset->field_of);
	free(dataset->aligned);
	free(dataset->aligned2);
	free(dataset->starts);
	free(dataset->longest);
	free(dataset->path);
	free(dataset);
	return NULL;
}

int stkd_dataset_field(const struct stkd_dataset *dataset, const char *name)
{
	for (uint32_t i = 0; i < dataset->nfields; i++)
		if (!strcmp(dataset->fields[i].name, name))
			return (int)i;
	return -1;
}

void stkd_dataset_locate(const struct stkd_dataset *dataset, uint64_t sample, size_t *ret_shard,
			 uint64_t *ret_row)
{
	size_t low = 0, high = dataset->nshards;

	/* The last shard whose first sample is not after it; an empty one never is the last. */
	while (high - low > 1) {
		size_t middle = low + (high - low) / 2;

		if (dataset->first[middle] <= sample)
			low = middle;
		else
			high = middle;
	}
	*ret_shard = low;
	*ret_row = sample - dataset->first[low];
}
