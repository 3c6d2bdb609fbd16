/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists shard files. Runs in the thread that opens the dataset.
 */
#include "daemon/shard/files.h"

#include <dirent.h>
#include <errno.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define SUFFIX ".safetensors"

static int compare_paths(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Appends "folder/name", or name alone. The list has room for a power of two, from 8 on. */
static int append(char ***list, size_t *n, const char *folder, const char *name)
{
	char *path;

	if (*n == 0 || (*n >= 8 && !(*n & (*n - 1)))) {
		char **larger = reallocarray(*list, STK_MAX(*n * 2, (size_t)8), sizeof(*larger));

		if (!larger)
			return -ENOMEM;
		*list = larger;
	}
	if (!folder)
		path = strdup(name);
	else if (asprintf(&path, "%s/%s", folder, name) < 0)
		path = NULL;
	if (!path)
		return -ENOMEM;
	(*list)[(*n)++] = path;
	return 0;
}

static bool is_shard_name(const char *name)
{
	size_t n = strlen(name), m = strlen(SUFFIX);

	return *name != '.' && n > m && !strcmp(name + n - m, SUFFIX);
}

/* All *.safetensors of a folder, sorted, into paths. */
static int list_folder(const char *folder, struct stkd_files *files)
{
	struct dirent *entry;
	DIR *dir = opendir(folder);
	int r = 0;

	if (!dir)
		return -errno;
	do {
		errno = 0;
		entry = readdir(dir);
		if (!entry)
			r = -errno;
		else if (is_shard_name(entry->d_name))
			r = append(&files->paths, &files->n, folder, entry->d_name);
	} while (entry && r >= 0);
	closedir(dir);
	if (files->n)
		qsort(files->paths, files->n, sizeof(*files->paths), compare_paths);
	return r;
}

/* The manifest's list replaces that of the folder; what is only in the folder is a stranger. */
static int apply_manifest(const char *folder, struct stkd_files *files)
{
	const struct stkd_manifest *manifest = files->manifest;
	struct stkd_files listed = {0}, sorted = {0};
	int r = 0;

	for (size_t i = 0; i < manifest->nshards && r >= 0; i++) {
		r = append(&listed.paths, &listed.n, folder, manifest->shards[i].file);
		if (r >= 0)
			r = append(&sorted.paths, &sorted.n, NULL, listed.paths[i]);
	}
	if (sorted.n)
		qsort(sorted.paths, sorted.n, sizeof(*sorted.paths), compare_paths);
	for (size_t i = 0; i < files->n && r >= 0; i++)
		if (!sorted.n || !bsearch(&files->paths[i], sorted.paths, sorted.n,
					  sizeof(*sorted.paths), compare_paths))
			r = append(&files->strangers, &files->nstrangers, NULL, files->paths[i]);
	for (size_t i = 0; i < sorted.n; i++)
		free(sorted.paths[i]);
	free(sorted.paths);
	for (size_t i = 0; i < files->n; i++)
		free(files->paths[i]);
	free(files->paths);
	files->paths = listed.paths;
	files->n = listed.n;
	return r;
}

static int find_in_folder(const char *path, struct stkd_files *files, struct stk_err *err)
{
	_cleanup_(stk_freep) char *folder = strdup(path);
	int r;

	if (!folder)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	for (size_t n = strlen(folder); n > 1 && folder[n - 1] == '/'; n--)
		folder[n - 1] = '\0';
	r = stkd_manifest_read(folder, &files->manifest, err);
	if (r < 0 && r != -ENOENT)
		return r;
	r = list_folder(folder, files);
	if (r >= 0 && files->manifest)
		r = apply_manifest(folder, files);
	if (r < 0)
		return stk_err_set(err, r, "%s: %s", path, strerror(-r));
	if (!files->n && !files->nstrangers)
		return stk_err_set(err, -ENOENT,
				   "%s: no shards: the folder has no *" SUFFIX
				   " and no " STKD_MANIFEST_NAME " that lists any",
				   path);
	return 0;
}

static int find_by_glob(const char *pattern, struct stkd_files *files, struct stk_err *err)
{
	glob_t found = {0};
	/* Sorted by byte below: glob's own order depends on the locale. */
	int r = glob(pattern, GLOB_NOSORT | GLOB_ERR, NULL, &found);

	if (r) {
		globfree(&found);
		if (r == GLOB_NOMATCH)
			return stk_err_set(err, -ENOENT, "%s: no shards: nothing matches", pattern);
		r = r == GLOB_NOSPACE ? -ENOMEM : -EIO;
		return stk_err_set(err, r, "%s: cannot list: %s", pattern, strerror(-r));
	}
	for (size_t i = 0; i < found.gl_pathc && !r; i++)
		r = append(&files->paths, &files->n, NULL, found.gl_pathv[i]);
	globfree(&found);
	if (r < 0)
		return stk_err_set(err, r, "%s: no memory", pattern);
	qsort(files->paths, files->n, sizeof(*files->paths), compare_paths);
	return 0;
}

int stkd_files_find(const char *path, struct stkd_files **ret, struct stk_err *err)
{
	_cleanup_(stkd_files_freep) struct stkd_files *files = calloc(1, sizeof(*files));
	struct stat st;
	int r;

	if (!files)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	if (stat(path, &st) < 0) {
		if (errno != ENOENT || !strpbrk(path, "*?["))
			return stk_err_set(err, -errno, "%s: no shards: %m", path);
		r = find_by_glob(path, files, err);
	} else if (S_ISDIR(st.st_mode)) {
		r = find_in_folder(path, files, err);
	} else {
		r = append(&files->paths, &files->n, NULL, path);
		if (r < 0)
			stk_err_set(err, r, "%s: no memory", path);
	}
	if (r < 0)
		return r;
	*ret = STK_STEAL(files);
	return 0;
}

struct stkd_files *stkd_files_free(struct stkd_files *files)
{
	if (!files)
		return NULL;
	for (size_t i = 0; i < files->n; i++)
		free(files->paths[i]);
	for (size_t i = 0; i < files->nstrangers; i++)
		free(files->strangers[i]);
	free(files->paths);
	free(files->strangers);
	stkd_manifest_free(files->manifest);
	free(files);
	return NULL;
}
