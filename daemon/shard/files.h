/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shard files behind a path that a user gave: one file, a folder with or without dataset.json,
 * or a glob. Owned by whoever asked; immutable after.
 */
#ifndef STKD_FILES_H
#define STKD_FILES_H

#include "daemon/shard/manifest.h"

struct stkd_files {
	char **paths; /* in the dataset's order */
	size_t n;
	struct stkd_manifest *manifest; /* of a folder that has one: shards[i] describes paths[i] */
	char **strangers; /* shard files in the folder that the manifest does not list */
	size_t nstrangers;
};

/**
 * stkd_files_find() - list the shard files of a path
 * @path: a file, a folder (its dataset.json, else all *.safetensors in bytewise name order), a glob
 *
 * Looks at names only; a listed file may be missing.
 *
 * Return: 0; -ENOENT nothing is there; -EBADMSG a broken dataset.json; -ENOMEM; an error of the
 * folder.
 */
int stkd_files_find(const char *path, struct stkd_files **ret, struct stk_err *err);
struct stkd_files *stkd_files_free(struct stkd_files *files);
STK_DEFINE_CLEANUP(struct stkd_files *, stkd_files_free)

#endif
