/* SPDX-License-Identifier: Apache-2.0 */
#include "client/socket.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t stk__now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int64_t stk__deadline(int timeout_ms)
{
	return timeout_ms < 0 ? STK__FOREVER : stk__now_ns() + (int64_t)timeout_ms * 1000000;
}

int stk__left_ms(int64_t deadline_ns)
{
	int64_t left;

	if (deadline_ns == STK__FOREVER)
		return -1;
	left = deadline_ns - stk__now_ns();
	return left <= 0 ? 0 : (int)STK_MIN((left + 999999) / 1000000, (int64_t)INT_MAX);
}

const char *stk__socket_system(void)
{
	const char *path = getenv("STOKER_SOCKET");

	return path && *path ? path : STK__SOCKET_SYSTEM;
}

/* connect() on a Unix socket says EAGAIN while the listener's queue is full. */
static int connect_until(int fd, const struct sockaddr_un *addr, int64_t deadline_ns)
{
	while (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (!stk__left_ms(deadline_ns))
			return -ETIMEDOUT;
		poll(NULL, 0, 10);
	}
	return 0;
}

static int no_socket(const char *path, struct stk_err *err)
{
	struct rlimit limit = {0};
	int code = -errno;

	if (code != -EMFILE)
		return stk_err_set(err, code, "socket %s: %m", path);
	getrlimit(RLIMIT_NOFILE, &limit);
	return stk_err_set(err, code,
			   "socket %s: descriptor limit %llu reached; raise RLIMIT_NOFILE "
			   "(ulimit -n)",
			   path, (unsigned long long)limit.rlim_cur);
}

int stk__connect(const char *path, int64_t deadline_ns, int *ret_fd, struct stk_err *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	_cleanup_(stk_closep) int fd = -1;
	int r;

	if (strlen(path) >= sizeof(addr.sun_path))
		return stk_err_set(err, -ENAMETOOLONG, "socket %s: %zu bytes, at most %zu", path,
				   strlen(path), sizeof(addr.sun_path) - 1);
	strcpy(addr.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return no_socket(path, err);
	r = connect_until(fd, &addr, deadline_ns);
	errno = -r;
	if (r == -ENOENT || r == -ECONNREFUSED)
		return stk_err_set(err, r, "no stokerd at %s: %m", path);
	if (r < 0)
		return stk_err_set(err, r, "socket %s: %m", path);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* 0 for an ordinary message, else the negative errno that it brings. */
static int as_error(const json_t *message, struct stk_err *err)
{
	const char *name = json_string_value(json_object_get(message, "error"));
	const json_t *parameters = json_object_get(message, "parameters");
	const char *reason = json_string_value(json_object_get(parameters, "reason"));
	json_int_t code = json_integer_value(json_object_get(parameters, "code"));
	_cleanup_(stk_freep) char *text = NULL;

	if (!json_object_get(message, "error"))
		return 0;
	if (code < 0 && code >= -4095 && reason)
		return stk_err_set(err, (int)code, "%s", reason);
	text = json_dumps(parameters, JSON_COMPACT);
	return stk_err_set(err, -EPROTO, "stokerd replied with error %s %s",
			   name ? name : "without a name", text ? text : "");
}

static int wait_readable(int fd, int64_t deadline_ns, struct stk_err *err)
{
	struct pollfd p = {.fd = fd, .events = POLLIN};
	int r = poll(&p, 1, stk__left_ms(deadline_ns));

	if (r < 0 && errno != EINTR)
		return stk_err_set(err, -errno, "poll: %m");
	if (r == 0 && !stk__left_ms(deadline_ns))
		return stk_err_set(err, -ETIMEDOUT, "stokerd did not answer in time");
	return 0;
}

int stk__receive(int fd, struct stk_msg_in *in, int64_t deadline_ns, json_t **ret_message,
		 struct stk_err *err)
{
	json_t *message;
	int r;

	while ((r = stk_msg_next(in, &message, err)) == 0) {
		r = stk_msg_recv(fd, in, err);
		if (r == -EAGAIN)
			r = wait_readable(fd, deadline_ns, err);
		else if (r == 0 || r == -ECONNRESET)
			return stk_err_set(err, -EPIPE, "stokerd closed the connection%s",
					   in->size > in->start ? " within a message" : "");
		if (r < 0)
			return r;
	}
	if (r < 0)
		return r;
	r = as_error(message, err);
	if (r < 0)
		json_decref(message);
	else
		*ret_message = message;
	return r;
}

bool stk__hung_up(int fd)
{
	struct pollfd p = {.fd = fd, .events = POLLRDHUP};

	return fd < 0 || (poll(&p, 1, 0) > 0 && p.revents);
}

/* A folder that belongs to us and to nobody else may hold ours. */
static bool is_own_folder(const char *path)
{
	struct stat st;

	return path && path[0] == '/' && stat(path, &st) == 0 && S_ISDIR(st.st_mode) &&
	       st.st_uid == geteuid();
}

int stk__socket_folder(unsigned i, char *path, size_t size)
{
	const char *dir = NULL;
	char run[64];
	int n;

	switch (i) {
	case 0:
		dir = getenv("XDG_RUNTIME_DIR");
		break;
	case 1:
		snprintf(run, sizeof(run), "/run/user/%u", (unsigned)geteuid());
		dir = run;
		break;
	case 2:
		dir = getenv("TMPDIR");
		dir = dir && dir[0] == '/' ? dir : "/tmp";
		n = snprintf(path, size, "%s/stoker-%u", dir, (unsigned)geteuid());
		return n < (int)size ? 0 : -ENAMETOOLONG;
	default:
		return -ERANGE;
	}
	if (!is_own_folder(dir))
		return -ENOENT;
	n = snprintf(path, size, "%s/stoker", dir);
	return n < (int)size ? 0 : -ENAMETOOLONG;
}
