/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Varlink framing over a Unix stream socket: bytes in, JSON objects and their descriptors out, and
 * the way back. Owns the input buffer and descriptors nobody took; runs on the connection's thread.
 */
#include "proto/msg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CHUNK   65536u
#define SCM_MAX 253 /* the most descriptors that the kernel puts on one message, unix(7) */

static void close_all(int *fds, size_t *n)
{
	for (size_t i = 0; i < *n; i++)
		stk_close(fds[i]);
	*n = 0;
}

void stk_msg_in_deinit(struct stk_msg_in *in)
{
	close_all(in->fds, &in->nfds);
	close_all(in->pending, &in->npending);
	free(in->bytes);
	*in = (struct stk_msg_in){0};
}

/* Room for at least one more chunk, never more than one whole message and a chunk. */
static int make_room(struct stk_msg_in *in, struct stk_err *err)
{
	size_t used = in->size - in->start;
	size_t room;
	char *bytes;

	if (used > STK_MSG_SIZE_MAX)
		return stk_err_set(err, -EMSGSIZE, "message: longer than %u bytes",
				   STK_MSG_SIZE_MAX);
	if (in->start) {
		memmove(in->bytes, in->bytes + in->start, used);
		in->scanned -= in->start;
		for (size_t i = 0; i < in->npending; i++)
			in->pending_at[i] -= in->start;
		in->size = used;
		in->start = 0;
	}
	if (in->room - in->size >= CHUNK)
		return 0;
	room = STK_MAX(2 * in->room, used + CHUNK);
	room = STK_MIN(room, (size_t)STK_MSG_SIZE_MAX + 2 * CHUNK);
	bytes = realloc(in->bytes, room);
	if (!bytes)
		return stk_err_set(err, -ENOMEM, "message: no memory for %zu bytes", room);
	in->bytes = bytes;
	in->room = room;
	return 0;
}

static int descriptor_limit(struct stk_err *err)
{
	struct rlimit limit = {0};

	getrlimit(RLIMIT_NOFILE, &limit);
	return stk_err_set(
		err, -EMFILE,
		"descriptor limit %llu reached: a message's descriptors were lost; raise "
		"RLIMIT_NOFILE (ulimit -n)",
		(unsigned long long)limit.rlim_cur);
}

/*
 * The kernel ends a read after the part that carries descriptors, and they ride on a message's first
 * byte: so they belong to the last message that begins in this read.
 */
static size_t last_message(const struct stk_msg_in *in, size_t before)
{
	size_t end = in->size;

	if (end > before && !in->bytes[end - 1])
		end--;
	while (end > in->start && in->bytes[end - 1])
		end--;
	return end;
}

/* Descriptors that the message starting there has so far. */
static size_t held_by(const struct stk_msg_in *in, size_t at)
{
	size_t n = 0;

	for (size_t i = 0; i < in->npending; i++)
		n += in->pending_at[i] == at;
	return n;
}

static int keep_fds(struct stk_msg_in *in, const struct msghdr *hdr, size_t before,
		    struct stk_err *err)
{
	int got[SCM_MAX];
	size_t n = 0;
	size_t at;

	for (struct cmsghdr *c = CMSG_FIRSTHDR(hdr); c; c = CMSG_NXTHDR((struct msghdr *)hdr, c)) {
		size_t bytes;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		bytes = STK_MIN(c->cmsg_len - CMSG_LEN(0), sizeof(got) - n * sizeof(int));
		memcpy(got + n, CMSG_DATA(c), bytes);
		n += bytes / sizeof(int);
	}
	if (hdr->msg_flags & MSG_CTRUNC) {
		close_all(got, &n);
		close_all(in->pending, &in->npending);
		return descriptor_limit(err);
	}
	if (!n)
		return 0;
	at = last_message(in, before);
	if (n + held_by(in, at) > STK_MSG_FDS_MAX ||
	    n + in->npending > STK_ARRAY_SIZE(in->pending)) {
		size_t count = n + held_by(in, at);

		close_all(got, &n);
		return stk_err_set(err, -EPROTO, "message: %zu descriptors, at most %d are allowed",
				   count, STK_MSG_FDS_MAX);
	}
	for (size_t i = 0; i < n; i++) {
		in->pending_at[in->npending] = at;
		in->pending[in->npending++] = got[i];
	}
	return 0;
}

int stk_msg_recv(int fd, struct stk_msg_in *in, struct stk_err *err)
{
	union {
		char bytes[CMSG_SPACE(SCM_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov;
	struct msghdr hdr = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	size_t before;
	ssize_t n;
	int r;

	r = make_room(in, err);
	if (r < 0)
		return r;
	iov = (struct iovec){in->bytes + in->size, CHUNK};
	do
		n = recvmsg(fd, &hdr, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		return -EAGAIN;
	if (n < 0)
		return stk_err_set(err, -errno, "socket: %m");
	before = in->size;
	in->size += (size_t)n;
	r = keep_fds(in, &hdr, before, err);
	return r < 0 ? r : (int)n;
}

/* jansson recurses, and so does who walks its result. */
static bool too_deep(const char *text, size_t size)
{
	bool quoted = false;
	int depth = 0;

	for (size_t i = 0; i < size; i++) {
		char c = text[i];

		if (quoted && c == '\\')
			i++;
		else if (c == '"')
			quoted = !quoted;
		else if (!quoted && (c == '{' || c == '['))
			depth++;
		else if (!quoted && (c == '}' || c == ']'))
			depth--;
		if (depth > STK_MSG_DEPTH_MAX)
			return true;
	}
	return false;
}

static int parse(const char *text, size_t size, json_t **ret_json, struct stk_err *err)
{
	json_error_t error;
	json_t *json;

	if (size > STK_MSG_SIZE_MAX)
		return stk_err_set(err, -EMSGSIZE, "message: longer than %u bytes",
				   STK_MSG_SIZE_MAX);
	if (too_deep(text, size))
		return stk_err_set(err, -EBADMSG, "message: nested deeper than %d",
				   STK_MSG_DEPTH_MAX);
	json = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
	if (!json)
		return stk_err_set(err, -EBADMSG, "message: byte %d: %s", error.position,
				   error.text);
	if (!json_is_object(json)) {
		json_decref(json);
		return stk_err_set(err, -EBADMSG, "message: byte 0: an object is needed");
	}
	*ret_json = json;
	return 1;
}

/* Moves the descriptors of the message that started at begin to in->fds. */
static void take_fds(struct stk_msg_in *in, size_t begin)
{
	size_t n = held_by(in, begin);

	memcpy(in->fds, in->pending, n * sizeof(int));
	in->nfds = n;
	in->npending -= n;
	memmove(in->pending, in->pending + n, in->npending * sizeof(int));
	memmove(in->pending_at, in->pending_at + n, in->npending * sizeof(size_t));
}

int stk_msg_next(struct stk_msg_in *in, json_t **ret_json, struct stk_err *err)
{
	size_t begin = in->start;
	char *end;

	in->scanned = STK_MAX(in->scanned, in->start);
	end = in->size > in->scanned ? memchr(in->bytes + in->scanned, 0, in->size - in->scanned)
				     : NULL;
	if (!end) {
		in->scanned = in->size;
		return 0;
	}
	in->start = in->scanned = (size_t)(end - in->bytes) + 1;
	close_all(in->fds, &in->nfds);
	take_fds(in, begin);
	return parse(in->bytes + begin, in->start - 1 - begin, ret_json, err);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static ssize_t send_some(int fd, const char *bytes, size_t size, const int *fds, size_t nfds)
{
	union {
		char bytes[CMSG_SPACE(STK_MSG_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)bytes, size};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (nfds) {
		hdr.msg_control = &control;
		hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, nfds * sizeof(int));
	}
	do
		n = sendmsg(fd, &hdr, MSG_NOSIGNAL | MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n;
}

/* Waits until the socket takes more. 0, or -ETIMEDOUT. */
static int wait_writable(int fd, int64_t deadline)
{
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	int64_t left = deadline - now_ms();

	if (left <= 0)
		return -ETIMEDOUT;
	if (poll(&p, 1, (int)left) < 0 && errno != EINTR)
		return -errno;
	return 0;
}

static int send_all(int fd, const char *text, size_t size, const int *fds, size_t nfds,
		    int timeout_ms, struct stk_err *err)
{
	int64_t deadline = now_ms() + timeout_ms;
	size_t sent = 0;

	while (sent < size) {
		ssize_t n = send_some(fd, text + sent, size - sent, fds, sent ? 0 : nfds);
		int r;

		if (n >= 0) {
			sent += (size_t)n;
			continue;
		}
		if (errno != EAGAIN && errno != EWOULDBLOCK)
			return stk_err_set(err, -errno, "socket: %m");
		if (!sent && !timeout_ms)
			return stk_err_set(err, -EAGAIN, "socket: full");
		r = wait_writable(fd, deadline);
		if (r < 0)
			return stk_err_set(err, r,
					   "socket: peer took %zu of %zu bytes within %d ms", sent,
					   size, timeout_ms);
	}
	return 0;
}

int stk_msg_send(int fd, const json_t *json, const int *fds, size_t nfds, int timeout_ms,
		 struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = NULL;
	size_t size;

	if (nfds > STK_MSG_FDS_MAX)
		return stk_err_set(err, -EINVAL, "message: %zu descriptors, at most %d are allowed",
				   nfds, STK_MSG_FDS_MAX);
	text = json_dumps(json, JSON_COMPACT);
	if (!text)
		return stk_err_set(err, -ENOMEM, "message: no memory for its text");
	size = strlen(text) + 1;
	if (size - 1 > STK_MSG_SIZE_MAX)
		return stk_err_set(err, -EMSGSIZE, "message: %zu bytes, at most %u are allowed",
				   size - 1, STK_MSG_SIZE_MAX);
	return send_all(fd, text, size, fds, nfds, timeout_ms, err);
}

/* {key: value, "parameters": parameters, flag: true}; key and flag may be NULL. */
static json_t *build(const char *key, const char *value, json_t *parameters, const char *flag)
{
	json_t *message = json_object();
	bool failed = !message;

	if (!parameters)
		parameters = json_object();
	failed |= key && json_object_set_new(message, key, json_string(value)) < 0;
	failed |= json_object_set_new(message, "parameters", parameters) < 0;
	failed |= flag && json_object_set_new(message, flag, json_true()) < 0;
	if (failed) {
		json_decref(message);
		return NULL;
	}
	return message;
}

json_t *stk_msg_call(const char *method, json_t *parameters, bool more)
{
	return build("method", method, parameters, more ? "more" : NULL);
}

json_t *stk_msg_reply(json_t *parameters, bool continues)
{
	return build(NULL, NULL, parameters, continues ? "continues" : NULL);
}

json_t *stk_msg_error(const char *name, const struct stk_err *err)
{
	char full[128];

	if (!name)
		name = "Refused";
	snprintf(full, sizeof(full), "%s%s", strchr(name, '.') ? "" : STK_MSG_INTERFACE ".", name);
	return build("error", full, json_pack("{s:s, s:i}", "reason", err->text, "code", err->code),
		     NULL);
}
