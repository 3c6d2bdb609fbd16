/* SPDX-License-Identifier: Apache-2.0 */
#include "client/launch.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>

#include "client/socket.h"
#include "client/spawn.h"

#define PATH_SIZE     4096
#define SOCKET_MAX    (sizeof(((struct sockaddr_un *)0)->sun_path) - 1)
#define NAME_MAX_SAFE 64
#define LINGER        "5s"

static bool is_file_name(const char *job)
{
	static const char allowed[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	size_t n = strlen(job);

	return n && n <= NAME_MAX_SAFE && job[0] != '.' && strspn(job, allowed) == n;
}

int stk__launch_socket(const char *folder, const char *job, char *path, size_t size,
		       struct stk_err *err)
{
	XXH64_hash_t hash = XXH3_64bits(job, strlen(job));
	int n = -1;

	if (is_file_name(job))
		n = snprintf(path, size, "%s/%s.sock", folder, job);
	if (n < 0 || (size_t)n > SOCKET_MAX)
		n = snprintf(path, size, "%s/job-%016llx.sock", folder, (unsigned long long)hash);
	if ((size_t)n > SOCKET_MAX || (size_t)n >= size)
		return stk_err_set(err, -ENAMETOOLONG,
				   "private socket in %s: a path of %d bytes, at most %zu; set "
				   "XDG_RUNTIME_DIR to "
				   "a shorter one",
				   folder, n, SOCKET_MAX);
	return 0;
}

/* The folder has to be a real one, ours, and closed to others. */
static int make_folder(const char *path, struct stk_err *err)
{
	_cleanup_(stk_closep) int fd = -1;
	struct stat st;

	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return stk_err_set(err, -errno, "%s: cannot make the folder: %m", path);
	fd = open(path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return stk_err_set(err, -EPERM, "%s: has to be a folder, no symlink: %m", path);
	if (st.st_uid != geteuid() || (st.st_mode & 077))
		return stk_err_set(
			err, -EPERM,
			"%s: has to belong to user %u with mode 0700, is of user %u with mode %04o",
			path, (unsigned)geteuid(), (unsigned)st.st_uid, st.st_mode & 07777);
	return 0;
}

static int find_folder(char *path, size_t size, struct stk_err *err)
{
	int last = -ENOENT;

	for (unsigned i = 0;; i++) {
		int r = stk__socket_folder(i, path, size);

		if (r == -ERANGE)
			return last;
		if (r == 0)
			r = make_folder(path, err);
		if (r == 0)
			return 0;
		if (r != -ENOENT)
			last = r;
	}
}

/* Path of a file beside this library: build trees and packages are used where they lie. */
static bool beside_library(const char *relative, char *path, size_t size)
{
	_cleanup_(stk_freep) char *copy = NULL;
	Dl_info info;

	if (!dladdr((void *)stk__launch, &info) || !info.dli_fname)
		return false;
	copy = realpath(info.dli_fname, NULL);
	if (!copy)
		return false;
	return snprintf(path, size, "%s/%s", dirname(copy), relative) < (int)size;
}

static bool is_program(const char *path)
{
	struct stat st;

	return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static bool on_path(char *path, size_t size)
{
	const char *p = getenv("PATH");

	while (p && *p) {
		size_t n = strcspn(p, ":");

		if (*p == '/' && snprintf(path, size, "%.*s/stokerd", (int)n, p) < (int)size &&
		    is_program(path))
			return true;
		p += n + (p[n] == ':');
	}
	return false;
}

static int find_stokerd(char *path, size_t size, struct stk_err *err)
{
	const char *given = getenv("STOKERD");

	if (given && *given) {
		if (!is_program(given) || given[0] != '/' || strlen(given) >= size)
			return stk_err_set(err, -ENOENT,
					   "STOKERD=%s: not the absolute path of a program", given);
		strcpy(path, given);
		return 0;
	}
	if (beside_library("../daemon/serve/stokerd", path, size) && is_program(path))
		return 0;
	if (beside_library("../bin/stokerd", path, size) && is_program(path))
		return 0;
	snprintf(path, size, "%s/stokerd", STK_BINDIR);
	if (is_program(path) || on_path(path, size))
		return 0;
	return stk_err_set(err, -ENOENT,
			   "no stokerd to start: not in %s nor on PATH, and STOKERD is not set",
			   STK_BINDIR);
}

/*
 * Takes the lock file. Its holder removes it at the end, so one that was waited for may be gone
 * from the folder: then another try is due.
 */
static int take_lock(const char *path, int64_t deadline_ns, int *ret_fd, struct stk_err *err)
{
	for (;;) {
		_cleanup_(stk_closep) int fd =
			open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
		struct stat ours, there;

		if (fd < 0)
			return stk_err_set(err, -errno, "%s: %m", path);
		while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
			if (errno != EWOULDBLOCK && errno != EINTR)
				return stk_err_set(err, -errno, "%s: %m", path);
			if (!stk__left_ms(deadline_ns))
				return stk_err_set(err, -ETIMEDOUT,
						   "%s: another process has been starting stokerd "
						   "for too long",
						   path);
			poll(NULL, 0, 10);
		}
		if (fstat(fd, &ours) == 0 && lstat(path, &there) == 0 &&
		    ours.st_ino == there.st_ino && ours.st_dev == there.st_dev) {
			*ret_fd = fd;
			fd = -1;
			return 0;
		}
	}
}

/* Reads "ok\n" or "error: text\n", up to the end. */
static int read_ready(int fd, int64_t deadline_ns, const char *program, const char *log,
		      struct stk_err *err)
{
	char text[sizeof(err->text)];
	size_t used = 0;

	while (used < sizeof(text) - 1 && !memchr(text, '\n', used)) {
		struct pollfd p = {.fd = fd, .events = POLLIN};
		int r = poll(&p, 1, stk__left_ms(deadline_ns));
		ssize_t n;

		if (r == 0)
			return stk_err_set(err, -ETIMEDOUT, "%s did not get ready in time; see %s",
					   program, log);
		n = r < 0 ? 0 : read(fd, text + used, sizeof(text) - 1 - used);
		if (r > 0 && n <= 0)
			break;
		used += (size_t)n;
	}
	text[used] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (!strcmp(text, "ok"))
		return 0;
	if (!strncmp(text, "error: ", 7))
		return stk_err_set(err, -ECONNREFUSED, "stokerd did not start: %s", text + 7);
	return stk_err_set(err, -ECONNREFUSED, "%s ended before it was ready; see %s", program,
			   log);
}

static int start(const char *socket, const char *log, int64_t deadline_ns, struct stk_err *err)
{
	char program[PATH_SIZE];
	_cleanup_(stk_closep) int ready = -1;
	const char *argv[] = {
		program,    "--private",  "--socket",
		socket,     "--ready-fd", STK__SPAWN_READY_FD_TEXT,
		"--linger", LINGER,       "--drop-log",
		log,        NULL,
	};
	int r;

	r = find_stokerd(program, sizeof(program), err);
	if (r < 0)
		return r;
	r = stk__spawn(argv, log, &ready, err);
	if (r < 0)
		return r;
	return read_ready(ready, deadline_ns, program, log, err);
}

/* Under the lock: whoever had it before us may have started the daemon. */
static int connect_or_start(const char *socket, const char *log, int64_t deadline_ns, int *ret_fd,
			    struct stk_err *err)
{
	int r = stk__connect(socket, deadline_ns, ret_fd, err);

	if (r != -ENOENT && r != -ECONNREFUSED)
		return r;
	r = start(socket, log, deadline_ns, err);
	return r < 0 ? r : stk__connect(socket, deadline_ns, ret_fd, err);
}

int stk__launch(const char *job, int64_t deadline_ns, int *ret_fd, char **ret_socket,
		struct stk_err *err)
{
	char folder[PATH_SIZE], socket[SOCKET_MAX + 1], lock[SOCKET_MAX + 8], log[SOCKET_MAX + 8];
	_cleanup_(stk_freep) char *copy = NULL;
	_cleanup_(stk_closep) int lock_fd = -1;
	int stem, r;

	r = find_folder(folder, sizeof(folder), err);
	if (r < 0)
		return r;
	r = stk__launch_socket(folder, job, socket, sizeof(socket), err);
	if (r < 0)
		return r;
	stem = (int)(strlen(socket) - strlen(".sock"));
	snprintf(lock, sizeof(lock), "%.*s.lock", stem, socket);
	snprintf(log, sizeof(log), "%.*s.log", stem, socket);
	copy = strdup(socket);
	if (!copy)
		return stk_err_set(err, -ENOMEM, "socket: no memory");
	r = stk__connect(socket, deadline_ns, ret_fd, err);
	if (r == -ENOENT || r == -ECONNREFUSED) {
		r = take_lock(lock, deadline_ns, &lock_fd, err);
		if (r < 0)
			return r;
		r = connect_or_start(socket, log, deadline_ns, ret_fd, err);
		unlink(lock);
	}
	if (r < 0)
		return r;
	*ret_socket = STK_STEAL(copy);
	return 0;
}
