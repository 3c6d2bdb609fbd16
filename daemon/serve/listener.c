/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define BACKLOG 128

static int lock_path(const char *path, char *out, size_t size)
{
	return (size_t)snprintf(out, size, "%s.lock", path) < size ? 0 : -ENAMETOOLONG;
}

static int refuse_second(const char *path, int fd, struct stk_err *err)
{
	char text[32] = "";
	int n = (int)read(fd, text, sizeof(text) - 1);

	text[n < 0 ? 0 : n] = '\0';
	return stk_err_set(err, -EADDRINUSE, "socket %s: stokerd already runs there as pid %ld",
			   path, strtol(text, NULL, 10));
}

/* Its holder removes the file at the end: a lock on a file that is gone is nobody's. */
static bool still_there(const char *path, int fd)
{
	struct stat ours, there;

	return fstat(fd, &ours) == 0 && lstat(path, &there) == 0 && ours.st_ino == there.st_ino &&
	       ours.st_dev == there.st_dev;
}

/* The lock file names its holder for whoever comes second. */
static int take_lock(const char *path, int *ret_fd, struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = -1;
	char lock[256], text[32];
	int n;

	if (lock_path(path, lock, sizeof(lock)) < 0)
		return stk_err_set(err, -ENAMETOOLONG, "socket %s: path too long", path);
	do {
		fd = stk_close(fd);
		fd = open(lock, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0)
			return stk_err_set(err, -errno, "%s: %m", lock);
		if (flock(fd, LOCK_EX | LOCK_NB) < 0)
			return refuse_second(path, fd, err);
	} while (!still_there(lock, fd));
	n = snprintf(text, sizeof(text), "%d\n", (int)getpid());
	if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)n, 0) != n)
		return stk_err_set(err, -errno, "%s: %m", lock);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* While it is held. */
static void remove_lock(const char *path)
{
	char lock[256];

	if (lock_path(path, lock, sizeof(lock)) == 0)
		unlink(lock);
}

/* Only a socket is ever removed: a file of somebody else in its place is an error. */
static int clear_stale(const char *path, struct stk_err *err)
{
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : stk_err_set(err, -errno, "socket %s: %m", path);
	if (!S_ISSOCK(st.st_mode))
		return stk_err_set(err, -EEXIST, "socket %s: there is a file that is not a socket",
				   path);
	return unlink(path) < 0 ? stk_err_set(err, -errno, "socket %s: %m", path) : 0;
}

static int listen_at(const char *path, unsigned mode, int *ret_fd, struct stk_err *err)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd, r;

	if (strlen(path) >= sizeof(address.sun_path))
		return stk_err_set(err, -ENAMETOOLONG, "socket %s: %zu bytes, at most %zu allowed",
				   path, strlen(path), sizeof(address.sun_path) - 1);
	memcpy(address.sun_path, path, strlen(path) + 1);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return stk_err_set(err, -errno, "socket: %m");
	/* Mode before listen: nobody connects in between. */
	if (bind(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		r = stk_err_set(err, -errno, "socket %s: %m", address.sun_path);
		stk_close(fd);
		return r;
	}
	if (chmod(path, mode) < 0 || listen(fd, BACKLOG) < 0) {
		r = stk_err_set(err, -errno, "socket %s: %m", address.sun_path);
		unlink(path);
		stk_close(fd);
		return r;
	}
	*ret_fd = fd;
	return 0;
}

int stkd_listener_open(const char *path, unsigned mode, int *ret_fd, int *ret_lock_fd,
		       struct stk_err *err)
{
	int lock_fd, r;

	r = take_lock(path, &lock_fd, err);
	if (r < 0)
		return r;
	r = clear_stale(path, err);
	if (r == 0)
		r = listen_at(path, mode, ret_fd, err);
	if (r < 0) {
		remove_lock(path);
		stk_close(lock_fd);
		return r;
	}
	*ret_lock_fd = lock_fd;
	return 0;
}

void stkd_listener_remove(const char *path)
{
	unlink(path);
	remove_lock(path); /* last: whoever comes now finds neither */
}
