/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/spool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MEMORY_MAX ((size_t)1 << 20)

void spool_init(struct spool *spool, int dirfd, const char *dir)
{
	*spool = (struct spool){.dirfd = dirfd, .dir = dir, .fd = -1};
}

void spool_deinit(struct spool *spool)
{
	spool->fd = stk_close(spool->fd);
	free(spool->data);
	spool->data = NULL;
}

uint8_t *spool_extend(struct spool *spool, size_t size)
{
	size_t need, capacity = spool->capacity;
	uint8_t *data;

	if (stk_add_overflow(spool->size, size, &need) || need > SIZE_MAX / 2)
		return NULL;
	if (need > capacity) {
		capacity = STK_MAX(STK_MAX(need, capacity * 2), (size_t)4096);
		data = realloc(spool->data, capacity);
		if (!data)
			return NULL;
		spool->data = data;
		spool->capacity = capacity;
	}
	data = spool->data + spool->size;
	spool->size = need;
	return data;
}

size_t spool_row(const struct spool *spool)
{
	return spool->size - spool->kept;
}

uint64_t spool_bytes(const struct spool *spool)
{
	return spool->on_disk + spool->kept;
}

static int failed(const struct spool *spool, int code, struct stk_err *err)
{
	errno = -code;
	return stk_err_set(err, code, "cannot write a temporary file in %s: %m", spool->dir);
}

/* A file without a name; where the file system has no O_TMPFILE, one whose name is taken off at once. */
static int open_file(struct spool *spool, struct stk_err *err)
{
	char name[64];

	spool->fd = openat(spool->dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (spool->fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
		snprintf(name, sizeof(name), ".spool.tmp-%ld", (long)getpid());
		spool->fd = openat(spool->dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		if (spool->fd >= 0)
			unlinkat(spool->dirfd, name, 0);
	}
	return spool->fd < 0 ? failed(spool, -errno, err) : 0;
}

/* Forgets the kept bytes in memory. */
static void shift(struct spool *spool)
{
	spool->size -= spool->kept;
	memmove(spool->data, spool->data + spool->kept, spool->size);
	spool->kept = 0;
}

int spool_keep(struct spool *spool, struct stk_err *err)
{
	int r = 0;

	spool->kept = spool->size;
	if (spool->kept <= MEMORY_MAX)
		return 0;
	if (spool->fd < 0)
		r = open_file(spool, err);
	if (r < 0)
		return r;
	r = sink_write_all(spool->fd, spool->data, spool->kept);
	if (r < 0)
		return failed(spool, r, err);
	spool->on_disk += spool->kept;
	shift(spool);
	return 0;
}

static int drain_file(struct spool *spool, struct sink *sink, struct stk_err *err)
{
	_cleanup_(stk_freep) char *piece = malloc(MEMORY_MAX);

	if (!piece)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (uint64_t at = 0; at < spool->on_disk;) {
		ssize_t n = pread(spool->fd, piece, STK_MIN(MEMORY_MAX, spool->on_disk - at),
				  (off_t)at);
		int r;

		if (n < 0)
			return stk_err_set(err, -errno,
					   "cannot read back a temporary file in %s: %m",
					   spool->dir);
		if (n == 0)
			return stk_err_set(err, -EIO,
					   "a temporary file in %s ends at byte %" PRIu64
					   " of %" PRIu64,
					   spool->dir, at, spool->on_disk);
		r = sink_write(sink, piece, (size_t)n, err);
		if (r < 0)
			return r;
		at += (uint64_t)n;
	}
	if (lseek(spool->fd, 0, SEEK_SET) < 0 || ftruncate(spool->fd, 0) < 0)
		return failed(spool, -errno, err);
	spool->on_disk = 0;
	return 0;
}

int spool_drain(struct spool *spool, struct sink *sink, struct stk_err *err)
{
	int r = spool->on_disk ? drain_file(spool, sink, err) : 0;

	if (r == 0)
		r = sink_write(sink, spool->data, spool->kept, err);
	if (r < 0)
		return r;
	if (spool->kept)
		shift(spool);
	return 0;
}
