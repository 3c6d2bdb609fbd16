/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define SUFFIX ".safetensors"

enum kind { KIND_OTHER, KIND_OURS, KIND_SHARD, KIND_STALE };

void outdir_shard_name(uint64_t shard, bool temporary, char name[OUTDIR_NAME_MAX])
{
	if (temporary)
		snprintf(name, OUTDIR_NAME_MAX, ".shard-%05" PRIu64 SUFFIX ".tmp-%ld", shard,
			 (long)getpid());
	else
		snprintf(name, OUTDIR_NAME_MAX, "shard-%05" PRIu64 SUFFIX, shard);
}

void outdir_manifest_name(char name[OUTDIR_NAME_MAX])
{
	snprintf(name, OUTDIR_NAME_MAX, "." OUTDIR_MANIFEST ".tmp-%ld", (long)getpid());
}

/* The number in "shard-00017.safetensors" exactly as we would write it, or -1. */
static int64_t shard_number(const char *name)
{
	char same[OUTDIR_NAME_MAX];
	uint64_t n;

	if (strncmp(name, "shard-", 6) || name[6] < '0' || name[6] > '9')
		return -1;
	n = strtoull(name + 6, NULL, 10);
	outdir_shard_name(n, false, same);
	return n <= INT64_MAX && !strcmp(same, name) ? (int64_t)n : -1;
}

static enum kind kind_of(const char *name)
{
	size_t n = strlen(name);

	if (!strcmp(name, OUTDIR_MANIFEST) || shard_number(name) >= 0)
		return KIND_OURS;
	if (strstr(name, ".tmp-") &&
	    (!strncmp(name, ".shard-", 7) || !strncmp(name, "." OUTDIR_MANIFEST, 13) ||
	     !strncmp(name, ".spool", 6)))
		return KIND_STALE;
	return n >= strlen(SUFFIX) && !strcmp(name + n - strlen(SUFFIX), SUFFIX) ? KIND_SHARD
										 : KIND_OTHER;
}

/* Calls fn for each name until one returns an error. */
static int each_name(struct outdir *outdir, int (*fn)(struct outdir *, const char *, void *),
		     void *arg, struct stk_err *err)
{
	int fd = openat(outdir->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), r = 0;
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!dir) {
		r = stk_err_set(err, -errno, "cannot list %s: %m", outdir->path);
		stk_close(fd);
		return r;
	}
	while (r == 0 && (errno = 0, entry = readdir(dir)))
		r = fn(outdir, entry->d_name, arg);
	if (r == 0 && errno)
		r = stk_err_set(err, -errno, "cannot list %s: %m", outdir->path);
	closedir(dir);
	return r;
}

struct look {
	bool force;
	struct stk_err *err;
};

static int look_at(struct outdir *outdir, const char *name, void *arg)
{
	struct look *look = arg;

	switch (kind_of(name)) {
	case KIND_OURS:
		if (look->force)
			return 0;
		return stk_err_set(look->err, -EEXIST,
				   "%s already holds %s; --force replaces the set in it",
				   outdir->path, name);
	case KIND_SHARD:
		return stk_err_set(look->err, -EEXIST,
				   "%s holds %s, which is not a shard of an older set; write to "
				   "another directory",
				   outdir->path, name);
	default:
		return 0;
	}
}

static int remove_stale(struct outdir *outdir, const char *name, void *arg)
{
	(void)arg;
	if (kind_of(name) == KIND_STALE)
		unlinkat(outdir->fd, name, 0);
	return 0;
}

/* Shards of an older, longer set. */
static int remove_surplus(struct outdir *outdir, const char *name, void *arg)
{
	int64_t number = shard_number(name);

	if (number < 0 || (uint64_t)number < outdir->nshards || !unlinkat(outdir->fd, name, 0))
		return 0;
	return stk_err_set(arg, -errno, "cannot remove %s/%s: %m", outdir->path, name);
}

static int take(struct outdir *outdir, bool force, struct stk_err *err)
{
	struct look look = {force, err};
	int r;

	if (flock(outdir->fd, LOCK_EX | LOCK_NB) == 0) {
		/* We hold the lock, so whoever made such files is gone. */
		r = each_name(outdir, remove_stale, NULL, err);
		if (r < 0)
			return r;
	} else if (errno == EWOULDBLOCK) {
		return stk_err_set(err, -EBUSY, "another stoker write is at work in %s",
				   outdir->path);
	}
	return each_name(outdir, look_at, &look, err);
}

int outdir_open(struct outdir *outdir, const char *path, bool force, struct stk_err *err)
{
	int r;

	*outdir = (struct outdir){.path = path, .fd = -1};
	if (mkdir(path, 0777) == 0)
		outdir->created = true;
	else if (errno != EEXIST)
		return stk_err_set(err, -errno, "cannot create the directory %s: %m", path);
	outdir->fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	r = outdir->fd < 0 ? stk_err_set(err, -errno, "cannot open the directory %s: %m", path)
			   : take(outdir, force, err);
	if (r < 0)
		outdir_close(outdir);
	return r;
}

static int sync_dir(struct outdir *outdir, struct stk_err *err)
{
	/* Some file systems have no fsync() for directories and say EINVAL. */
	if (fsync(outdir->fd) < 0 && errno != EINVAL)
		return stk_err_set(err, -errno, "cannot write the directory %s: %m", outdir->path);
	return 0;
}

static int rename_to(struct outdir *outdir, const char *from, const char *to, struct stk_err *err)
{
	if (renameat(outdir->fd, from, outdir->fd, to) < 0)
		return stk_err_set(err, -errno, "cannot rename %s/%s to %s: %m", outdir->path, from,
				   to);
	return 0;
}

/* Without dataset.json the directory is no set while the shards of two runs are mixed in it. */
int outdir_commit(struct outdir *outdir, struct stk_err *err)
{
	char from[OUTDIR_NAME_MAX], to[OUTDIR_NAME_MAX];
	int r = 0;

	if (unlinkat(outdir->fd, OUTDIR_MANIFEST, 0) < 0 && errno != ENOENT)
		return stk_err_set(err, -errno, "cannot remove %s/%s: %m", outdir->path,
				   OUTDIR_MANIFEST);
	for (; r == 0 && outdir->nrenamed < outdir->nshards; outdir->nrenamed += r == 0) {
		outdir_shard_name(outdir->nrenamed, true, from);
		outdir_shard_name(outdir->nrenamed, false, to);
		r = rename_to(outdir, from, to, err);
	}
	if (r == 0)
		r = each_name(outdir, remove_surplus, err, err);
	if (r == 0)
		r = sync_dir(outdir, err);
	outdir_manifest_name(from);
	if (r == 0)
		r = rename_to(outdir, from, OUTDIR_MANIFEST, err);
	if (r < 0)
		return r;
	outdir->complete = true;
	return sync_dir(outdir, err);
}

void outdir_close(struct outdir *outdir)
{
	char name[OUTDIR_NAME_MAX];

	if (outdir->fd >= 0 && !outdir->complete) {
		outdir_manifest_name(name);
		unlinkat(outdir->fd, name, 0);
		for (uint64_t i = 0; i < outdir->nshards; i++) {
			outdir_shard_name(i, i >= outdir->nrenamed, name);
			unlinkat(outdir->fd, name, 0);
		}
	}
	if (outdir->created && !outdir->complete)
		rmdir(outdir->path);
	outdir->fd = stk_close(outdir->fd);
	outdir->created = false;
}
