/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new file in a directory, under a temporary name: every byte is counted and hashed. Belongs to
 * the writer that opened it, which also removes or renames the file. One thread.
 *
 * It is written in large aligned pieces: the kernel then keeps it in large pages, which a daemon that
 * maps the new file gathers rows from a fifth faster than from small ones, and with few page faults.
 */
#ifndef STOKER_SINK_H
#define STOKER_SINK_H

#include <xxhash.h>

#include "proto/err.h"
#include "proto/state.h"

struct sink {
	int fd, stop_fd;
	const char *dir, *name; /* for errors; borrowed */
	XXH3_state_t *hash;
	uint64_t bytes;
	uint8_t *piece; /* what is not written yet: `kept` bytes */
	size_t kept;
};

/* Creates dir/name, which must not exist. A signal at stop_fd ends sink_write() with -EINTR. An error
 * of sink_write() may be of bytes that were given to it earlier. */
int sink_open(struct sink *sink, int dirfd, const char *dir, const char *name, int stop_fd,
	      struct stk_err *err);
int sink_write(struct sink *sink, const void *data, size_t size, struct stk_err *err);
/* Puts all of the file on the disk and closes it. */
int sink_finish(struct sink *sink, struct stk_hash *ret_hash, struct stk_err *err);
/* Closes what is open; leaves the file where it is. */
void sink_deinit(struct sink *sink);

/* write() until all is written. Return: 0 or -errno. */
int sink_write_all(int fd, const void *data, size_t size);

#endif
