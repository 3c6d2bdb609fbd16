/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dataset.json: what `stoker write` says about a folder of shards, so that a gap or a stranger in
 * the set is seen. Read once, then immutable. Hostile when read.
 */
#ifndef STKD_MANIFEST_H
#define STKD_MANIFEST_H

#include "daemon/shard/shard.h"

#define STKD_MANIFEST_NAME "dataset.json"

struct stkd_manifest_shard {
	char *file; /* name in the folder: no '/', never hidden */
	uint64_t samples, bytes;
	struct stk_hash hash; /* XXH3-128 of the whole file, most significant half first */
};

struct stkd_manifest {
	char *path;
	uint64_t samples;
	struct stkd_field *fields; /* sorted by name */
	uint32_t nfields;
	struct stkd_manifest_shard *shards; /* in the dataset's order */
	size_t nshards;
};

/**
 * stkd_manifest_read() - read dataset.json of a folder
 *
 * Return: 0; -ENOENT there is none (err is untouched); -EBADMSG with path, place, value; -ENOMEM;
 * an error of open() or read().
 */
int stkd_manifest_read(const char *folder, struct stkd_manifest **ret, struct stk_err *err);
struct stkd_manifest *stkd_manifest_free(struct stkd_manifest *manifest);
STK_DEFINE_CLEANUP(struct stkd_manifest *, stkd_manifest_free)

/* Size and samples of an opened shard against entry i. Return: 0 or -EBADMSG with both numbers. */
int stkd_manifest_check(const struct stkd_manifest *manifest, size_t i,
			const struct stkd_shard *shard, struct stk_err *err);

/* The fields that the shards have against those that are listed. Return: 0 or -EBADMSG. */
int stkd_manifest_check_fields(const struct stkd_manifest *manifest,
			       const struct stkd_field *fields, uint32_t nfields,
			       struct stk_err *err);

#endif
