/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A dataset: shards in a stated order, samples numbered from 0 over all of them. Immutable once
 * open; any thread may read. Counted references are the caller's (serve/).
 */
#ifndef STKD_DATASET_H
#define STKD_DATASET_H

#include "daemon/progress.h"
#include "daemon/shard/shard.h"

struct stkd_dataset {
	char *path;                 /* as given */
	struct stkd_shard **shards; /* those with samples and those without */
	size_t nshards;
	uint64_t *first; /* nshards + 1: first sample id of each shard; last is count */
	uint64_t count;
	struct stkd_field *fields; /* of all shards with samples; names borrowed from one of them */
	uint32_t nfields;
	uint16_t *field_of; /* [nshards * nfields] field index in each shard */
	/* Per shard in order: count, hash of lengths, payload size, content hash from dataset.json. */
	struct stk_hash fingerprint;
	uint32_t length_field; /* index into fields; UINT32_MAX: none (only from open_any) */
	uint32_t *lengths;     /* count entries of the length field; own mapping; NULL: none */
	bool *aligned; /* per field: ragged with the lengths of the length field in every sample */
	uint64_t *longest; /* per ragged field: largest length; 0 for fixed */
	/* Of several datasets in one: first sample of each, and the number of all. */
	uint64_t *starts;
	uint32_t ndatasets;
	/* The second length field, where one was asked for; else UINT32_MAX and NULLs. */
	uint32_t length2_field;
	uint32_t *lengths2;
	bool *aligned2;
};

/**
 * stkd_dataset_open() - find, open and check all shards
 * @path:   a file, a directory (its dataset.json, else all *.safetensors in name order), or a glob
 * @length: length field; NULL: the only ragged one, else "input_ids", else an error that lists them
 *
 * Opens every shard before it fails: up to 20 bad ones are listed in the error. A directory with
 * dataset.json must match it: a missing, additional or changed (size, count) shard is an error.
 *
 * Return: 0; -ENOENT no shards matched; -EBADMSG bad shards; -EINVAL no samples, missing length
 * field, fields that disagree between shards (names, dtypes, shapes), more than
 * STKD_SHARD_FIELDS_MAX fields; -ECANCELED; -ENOMEM and the like at the first shard that meets it.
 */
int stkd_dataset_open(const char *path, const char *length, const struct stkd_shard_limits *limits,
		      struct stkd_progress *progress, struct stkd_dataset **ret,
		      struct stk_err *err);

/**
 * stkd_dataset_open_list() - several datasets as one, in this order
 * @length2: second length field; NULL: none
 *
 * As above. Fields agree over all of them; the fingerprint covers where each begins.
 */
int stkd_dataset_open_list(const char *const *paths, uint32_t npaths, const char *length,
			   const char *length2, const struct stkd_shard_limits *limits,
			   struct stkd_progress *progress, struct stkd_dataset **ret,
			   struct stk_err *err);

/* As above for tools that only look: the first ragged field where the choice is open, and no length
 * field at all where nothing is ragged. */
int stkd_dataset_open_any(const char *path, const char *length,
			  const struct stkd_shard_limits *limits, struct stkd_progress *progress,
			  struct stkd_dataset **ret, struct stk_err *err);

struct stkd_dataset *stkd_dataset_free(struct stkd_dataset *dataset);
STK_DEFINE_CLEANUP(struct stkd_dataset *, stkd_dataset_free)

int stkd_dataset_field(const struct stkd_dataset *dataset, const char *name);
/* Shard and row of a sample id < count. */
void stkd_dataset_locate(const struct stkd_dataset *dataset, uint64_t sample, size_t *ret_shard,
			 uint64_t *ret_row);

#endif
