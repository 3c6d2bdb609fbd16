/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/stoker/stop.h"

/* Writes begin at a multiple of it, and between two of them there is a look for a signal. */
#define PIECE (4u << 20)

int sink_open(struct sink *sink, int dirfd, const char *dir, const char *name, int stop_fd,
	      struct stk_err *err)
{
	*sink = (struct sink){.fd = -1, .stop_fd = stop_fd, .dir = dir, .name = name};
	sink->hash = XXH3_createState();
	sink->piece = malloc(PIECE);
	if (!sink->hash || !sink->piece)
		return stk_err_set(err, -ENOMEM, "%s/%s: no memory", dir, name);
	XXH3_128bits_reset(sink->hash);
	sink->fd = openat(dirfd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (sink->fd < 0)
		return stk_err_set(err, -errno, "cannot create %s/%s: %m", dir, name);
	return 0;
}

int sink_write_all(int fd, const void *data, size_t size)
{
	const char *p = data;

	while (size > 0) {
		ssize_t n = write(fd, p, size);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		p += n;
		size -= (size_t)n;
	}
	return 0;
}

static int failed(const struct sink *sink, int r, struct stk_err *err)
{
	errno = -r;
	return stk_err_set(err, r, "cannot write %s/%s: %m", sink->dir, sink->name);
}

static int flush(struct sink *sink, struct stk_err *err)
{
	int r = sink_write_all(sink->fd, sink->piece, sink->kept);

	sink->kept = 0;
	return r < 0 ? failed(sink, r, err) : 0;
}

int sink_write(struct sink *sink, const void *data, size_t size, struct stk_err *err)
{
	const char *p = data;

	while (size > 0) {
		size_t n = STK_MIN(size, (size_t)PIECE - sink->kept);
		int r;

		if (stop_wanted(sink->stop_fd))
			return stk_err_set(err, -EINTR, "interrupted");
		memcpy(sink->piece + sink->kept, p, n);
		sink->kept += n;
		r = sink->kept == PIECE ? flush(sink, err) : 0;
		if (r < 0)
			return r;
		XXH3_128bits_update(sink->hash, p, n);
		sink->bytes += n;
		p += n;
		size -= n;
	}
	return 0;
}

int sink_finish(struct sink *sink, struct stk_hash *ret_hash, struct stk_err *err)
{
	XXH128_canonical_t canonical;
	int r = flush(sink, err), fd = sink->fd;

	if (r < 0)
		return r;
	r = fsync(fd) < 0 ? -errno : 0;
	sink->fd = -1;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0)
		return failed(sink, r, err);
	XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(sink->hash));
	static_assert(sizeof(canonical) == sizeof(*ret_hash), "both are 128 bits");
	memcpy(ret_hash->bytes, canonical.digest, sizeof(ret_hash->bytes));
	return 0;
}

void sink_deinit(struct sink *sink)
{
	sink->fd = stk_close(sink->fd);
	XXH3_freeState(sink->hash);
	sink->hash = NULL;
	free(sink->piece);
	sink->piece = NULL;
}
