/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The directory that a set of shards is written to. All files keep temporary names until the set is
 * complete; then they take the places of an older set, dataset.json last. What a run that was killed
 * left is removed by the next one. One writer at a time, by a lock. One thread.
 */
#ifndef STOKER_OUTDIR_H
#define STOKER_OUTDIR_H

#include "proto/err.h"

#define OUTDIR_NAME_MAX 96
#define OUTDIR_MANIFEST "dataset.json"

struct outdir {
	const char *path; /* borrowed */
	int fd;
	bool created;      /* by us: removed again when nothing comes of it */
	uint64_t nshards;  /* temporary names in use */
	uint64_t nrenamed; /* of them already under their final names */
	bool complete;
};

/* Creates or opens the directory. Another set in it is refused, unless force; other files of the
 * suffix .safetensors always. */
int outdir_open(struct outdir *outdir, const char *path, bool force, struct stk_err *err);

/* "shard-00000.safetensors"; temporary: ".shard-00000.safetensors.tmp-PID". */
void outdir_shard_name(uint64_t shard, bool temporary, char name[OUTDIR_NAME_MAX]);
void outdir_manifest_name(char name[OUTDIR_NAME_MAX]); /* the temporary one */

/* Puts nshards shards and the manifest, all on disk under their temporary names, in place. */
int outdir_commit(struct outdir *outdir, struct stk_err *err);

/* Removes whatever was not committed. */
void outdir_close(struct outdir *outdir);

#endif
