/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `stoker verify`: every rule, on every file, one line for each bad one. One file is open at a
 * time, beside the first of its set. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "daemon/shard/files.h"
#include "tools/stoker/commands.h"
#include "tools/stoker/progress.h"
#include "tools/stoker/shardargs.h"

#define READ_SIZE (1u << 20)
#define ROWS      4096 /* lengths looked at in one go */

static const char help[] =
	"usage: stoker verify [OPTIONS] PATH...\n"
	"\n"
	"Checks shards: every rule of the format, every offset of ragged fields, and dataset.json\n"
	"against its directory, with the hash of each file. Lists all bad files. PATH is a file, "
	"a\n"
	"directory or a glob.\n"
	"\n"
	"  --json              print the result as JSON\n"
	"  --header-max BYTES  largest header of a shard (100000000)\n"
	"\n"
	"Exit status: 0 all are good, 1 some are bad, 2 wrong usage.\n";

struct job {
	struct shardargs args;
	struct progress progress;
	json_t *bad_files; /* --json: list of {path, reason} */
	uint64_t files, bad, samples, empty;
	uint64_t bytes;  /* read for hashes, of this path */
	uint8_t *buffer; /* READ_SIZE */
};

/* One bad file. @text is "path: reason", or a reason alone. */
static void report(struct job *job, const char *path, const char *text)
{
	const char *reason = text;
	struct stk_err shown;
	size_t n;

	/* Through an error for its care with unprintable bytes: a path may have any. */
	stk_err_set(&shown, 0, "%s", path);
	n = strlen(shown.text);
	if (!strncmp(text, shown.text, n) && !strncmp(text + n, ": ", 2))
		reason = text + n + 2;
	job->bad++;
	progress_end(&job->progress);
	if (job->args.json)
		json_array_append_new(job->bad_files,
				      json_pack("{ss ss}", "path", shown.text, "reason", reason));
	else
		printf("%s: %s\n", shown.text, reason);
}

/* XXH3-128 of a whole file, in constant memory. */
static int hash_file(struct job *job, const char *path, struct stk_hash *ret, struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t canonical;
	ssize_t n = 0;

	if (!state)
		return stk_err_set(err, -ENOMEM, "no memory");
	XXH3_128bits_reset(state);
	do {
		n = fd < 0 ? -1 : read(fd, job->buffer, READ_SIZE);
		if (n > 0) {
			XXH3_128bits_update(state, job->buffer, (size_t)n);
			job->bytes += (uint64_t)n;
			progress_update(&job->progress, job->files, job->bytes);
		}
	} while (n > 0 || (n < 0 && errno == EINTR));
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	if (n < 0)
		return stk_err_set(err, -errno, "%m");
	memcpy(ret->bytes, canonical.digest, sizeof(ret->bytes));
	return 0;
}

static int check_hash(struct job *job, const struct stkd_manifest *manifest, size_t i,
		      const char *path, struct stk_err *err)
{
	const struct stk_hash *listed = &manifest->shards[i].hash;
	char found_text[33], listed_text[33];
	struct stk_hash found;
	int r = hash_file(job, path, &found, err);

	if (r < 0)
		return r;
	if (!memcmp(&found, listed, sizeof(found)))
		return 0;
	stk_hex_encode(found.bytes, sizeof(found.bytes), found_text);
	stk_hex_encode(listed->bytes, sizeof(listed->bytes), listed_text);
	return stk_err_set(err, -EBADMSG, "xxh3_128 is %s, " STKD_MANIFEST_NAME " says %s",
			   found_text, listed_text);
}

/* Opening checked all offsets; this finds rows longer than a plan can count. */
static int check_lengths(const struct stkd_shard *shard, struct stk_err *err)
{
	uint32_t out[ROWS];

	for (uint32_t f = 0; f < shard->nfields; f++)
		for (uint64_t row = 0; shard->fields[f].ragged && row < shard->count; row += ROWS) {
			uint64_t n = STK_MIN(shard->count - row, (uint64_t)ROWS);
			int r = stkd_shard_lengths(shard, f, row, n, out, err);

			if (r < 0)
				return r;
		}
	return 0;
}

/* @model: the first good shard with samples, which the others must be like; set when NULL. */
static int check_file(struct job *job, const struct stkd_files *files, size_t i,
		      struct stkd_shard **model, struct stk_err *err)
{
	_cleanup_(stkd_shard_freep) struct stkd_shard *shard = NULL;
	int r = stkd_shard_open(files->paths[i], &job->args.limits, &shard, err);

	if (r >= 0 && files->manifest)
		r = stkd_manifest_check(files->manifest, i, shard, err);
	if (r >= 0)
		r = check_lengths(shard, err);
	if (r >= 0 && shard->count && *model)
		r = stkd_shard_agree(*model, shard, err);
	if (r >= 0 && files->manifest)
		r = check_hash(job, files->manifest, i, files->paths[i], err);
	if (r < 0)
		return r;
	job->samples += shard->count;
	job->empty += !shard->count;
	if (shard->count && !*model)
		*model = STK_STEAL(shard);
	return 0;
}

static void check_all(struct job *job, const struct stkd_files *files)
{
	_cleanup_(stkd_shard_freep) struct stkd_shard *model = NULL;
	const struct stkd_manifest *manifest = files->manifest;
	struct stk_err err;

	for (size_t i = 0; i < files->n; i++) {
		job->files++;
		progress_update(&job->progress, job->files, job->bytes);
		if (check_file(job, files, i, &model, &err) < 0)
			report(job, files->paths[i], err.text);
	}
	for (size_t i = 0; i < files->nstrangers; i++) {
		job->files++;
		report(job, files->strangers[i], "not listed in " STKD_MANIFEST_NAME);
	}
	job->files += manifest != NULL;
	if (manifest && model &&
	    stkd_manifest_check_fields(manifest, model->fields, model->nfields, &err) < 0)
		report(job, manifest->path, err.text);
}

static void check_path(struct job *job, const char *path)
{
	_cleanup_(stkd_files_freep) struct stkd_files *files = NULL;
	struct stk_err err;
	uint64_t total = 0;

	if (stkd_files_find(path, &files, &err) < 0) {
		job->files++;
		report(job, path, err.text);
		return;
	}
	/* Only for the bar, where a sum that wraps does no harm. */
	for (size_t i = 0; files->manifest && i < files->n; i++)
		total += files->manifest->shards[i].bytes;
	job->bytes = 0;
	progress_begin(&job->progress, "files", total);
	check_all(job, files);
	progress_end(&job->progress);
}

static void summarize(const struct job *job)
{
	if (job->args.json) {
		json_t *json = json_pack("{sI sI sI sI sO}", "files", (json_int_t)job->files, "bad",
					 (json_int_t)job->bad, "samples", (json_int_t)job->samples,
					 "shards_without_samples", (json_int_t)job->empty,
					 "bad_files", job->bad_files);

		json_dumpf(json, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(json);
		return;
	}
	printf("%" PRIu64 " file%s, %" PRIu64 " bad; %" PRIu64 " samples", job->files,
	       job->files == 1 ? "" : "s", job->bad, job->samples);
	if (job->empty)
		printf(", %" PRIu64 " shard%s without samples", job->empty,
		       job->empty == 1 ? "" : "s");
	putchar('\n');
}

int stoker_verify(int argc, char **argv)
{
	struct job job = {0};
	int status = shardargs_parse(argc, argv, help, false, &job.args);

	if (status >= 0)
		return status;
	job.buffer = malloc(READ_SIZE);
	job.bad_files = json_array();
	if (!job.buffer || !job.bad_files) {
		fprintf(stderr, "stoker verify: no memory\n");
		status = 1;
	} else {
		for (size_t i = 0; i < job.args.npaths; i++)
			check_path(&job, job.args.paths[i]);
		summarize(&job);
		status = job.bad > 0;
	}
	free(job.buffer);
	json_decref(job.bad_files);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "stoker verify: standard output: %m\n");
		status = 1;
	}
	return status;
}
