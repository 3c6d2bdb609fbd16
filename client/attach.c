/* SPDX-License-Identifier: Apache-2.0 */
#include "client/attach.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "client/launch.h"
#include "client/socket.h"

#define INTERRUPT_MS 100
#define LAUNCH_TRIES 3 /* a private daemon may end between our connect and our call */

/* NULL: no device. */
static json_t *device(const struct stk__request *q)
{
	return q->pci ? json_pack("{s:s, s:i}", "pci", q->pci, "host_node", (int)q->host_node)
		      : NULL;
}

static json_t *attach_call(const struct stk__request *q)
{
	char state[2 * STK_STATE_SIZE_MAX + 1];

	stk_hex_encode(q->state, q->state_size, state);
	return stk_msg_call(
		STK_MSG_INTERFACE ".Attach",
		json_pack("{s:s, s:O, s:s, s:I, s:I, s:I, s:I, s:s, s:b, s:i, s:i, s:i, s:s, s:o*}",
			  "stream", q->stream ? q->stream : "", "spec", q->spec, "job", q->job,
			  "rank", (json_int_t)q->rank, "world", (json_int_t)q->world, "replica",
			  (json_int_t)q->replica, "replicas", (json_int_t)q->replicas, "state",
			  state, "rejoin", q->rejoin, "protocol_min", STK_MSG_PROTOCOL,
			  "protocol_max", STK_MSG_PROTOCOL, "layout", STK_SHM_MAJOR, "release",
			  STK_RELEASE, "device", device(q)),
		true);
}

static uint64_t number(const json_t *object, const char *name)
{
	json_int_t n = json_integer_value(json_object_get(object, name));

	return n < 0 ? 0 : (uint64_t)n;
}

static void report(const struct stk__request *q, const json_t *reply)
{
	const json_t *p = json_object_get(json_object_get(reply, "parameters"), "progress");
	const char *stage = json_string_value(json_object_get(p, "stage"));

	if (q->progress && stage)
		q->progress(q->progress_data, stage, number(p, "done"), number(p, "total"));
}

bool stk__is_interrupted(const struct stk__request *q)
{
	return q->interrupted && q->interrupted(q->interrupt_data);
}

int stk__await(const struct stk__request *q, int fd, struct stk_msg_in *in, int timeout_ms,
	       json_t **ret, struct stk_err *err)
{
	int64_t deadline = stk__deadline(timeout_ms);
	int r;

	do {
		int64_t slice = stk__deadline(INTERRUPT_MS);

		if (stk__is_interrupted(q))
			return stk_err_set(err, -EINTR, "interrupted");
		r = stk__receive(fd, in, STK_MIN(slice, deadline), ret, err);
	} while (r == -ETIMEDOUT && stk__left_ms(deadline));
	return r;
}

/* Progress replies, each of which proves that the daemon works on it, up to the last one. */
static int await_reply(int fd, struct stk_msg_in *in, const struct stk__request *q, json_t **ret,
		       bool *ret_reached, struct stk_err *err)
{
	for (;;) {
		json_t *reply;
		int r = stk__await(q, fd, in, q->attach_timeout_ms, &reply, err);

		*ret_reached |= r != -EPIPE && r != -ETIMEDOUT && r != -EINTR;
		if (r == -ETIMEDOUT)
			return stk_err_set(err, r, "attach: stokerd said nothing for %d ms",
					   q->attach_timeout_ms);
		if (r < 0)
			return r;
		if (!json_is_true(json_object_get(reply, "continues"))) {
			*ret = reply;
			return 0;
		}
		report(q, reply);
		json_decref(reply);
	}
}

static int check_versions(const json_t *p, struct stk_err *err)
{
	const char *release = json_string_value(json_object_get(p, "release"));
	uint64_t protocol = number(p, "protocol"), layout = number(p, "layout");

	if (protocol == STK_MSG_PROTOCOL && layout == STK_SHM_MAJOR)
		return 0;
	return stk_err_set(err, -EPROTO,
			   "versions do not fit: stokerd %s has protocol %" PRIu64
			   " and layout %" PRIu64 ", libstoker " STK_RELEASE
			   " has protocol %d and layout %d",
			   release ? release : "without a release", protocol, layout,
			   STK_MSG_PROTOCOL, STK_SHM_MAJOR);
}

/* The reply and its descriptors become a session. */
static int take_reply(int *fd, struct stk_msg_in *in, const json_t *reply,
		      struct stk__session **ret_session, struct stk__attached *ret,
		      struct stk_err *err)
{
	const json_t *p = json_object_get(reply, "parameters");
	const char *notice = json_string_value(json_object_get(p, "notice"));
	int r = check_versions(p, err);

	if (r < 0)
		return r;
	if (in->nfds != STK__FDS)
		return stk_err_set(err, -EPROTO, "attach: %zu descriptors came, %d are needed",
				   in->nfds, STK__FDS);
	r = stk__session_new(fd, in->fds, (uint32_t)number(p, "first"), ret_session, err);
	if (r < 0)
		return r;
	ret->daemon_pid = (int32_t)number(p, "pid");
	ret->era = (uint32_t)number(p, "era");
	if (notice)
		ret->notice = strdup(notice); /* no memory: it is in the daemon's log too */
	return 0;
}

static int exchange(int *fd, const struct stk__request *q, struct stk__session **ret_session,
		    struct stk__attached *ret, bool *ret_reached, struct stk_err *err)
{
	_cleanup_(stk_msg_in_deinit) struct stk_msg_in in = {0};
	json_t *message = attach_call(q), *reply;
	int r;

	if (!message)
		return stk_err_set(err, -EINVAL,
				   "attach: stream or job is not valid UTF-8, or no memory");
	r = stk_msg_send(*fd, message, NULL, 0,
			 q->attach_timeout_ms < 0 ? INT32_MAX : q->attach_timeout_ms, err);
	json_decref(message);
	/* A daemon that refuses us unheard may have said why: read on. */
	if (r < 0 && r != -EPIPE && r != -ECONNRESET)
		return r;
	r = await_reply(*fd, &in, q, &reply, ret_reached, err);
	if (r < 0)
		return r;
	r = take_reply(fd, &in, reply, ret_session, ret, err);
	json_decref(reply);
	return r;
}

static int reach(const struct stk__request *q, int *ret_fd, char **ret_socket, struct stk_err *err)
{
	int64_t deadline = stk__deadline(q->attach_timeout_ms);
	const char *path = q->socket ? q->socket : stk__socket_system();
	int r;

	if (q->private_daemon)
		return stk__launch(q->private_name, deadline, ret_fd, ret_socket, err);
	r = stk__connect(path, deadline, ret_fd, err);
	if (r < 0)
		return r == -ENOENT ? stk_err_set(err, -ECONNREFUSED,
						  "no stokerd at %s: no such socket", path)
				    : r;
	*ret_socket = strdup(path);
	if (!*ret_socket) {
		*ret_fd = stk_close(*ret_fd);
		return stk_err_set(err, -ENOMEM, "socket: no memory");
	}
	return 0;
}

int stk__attach(const struct stk__request *q, struct stk__session **ret_session,
		struct stk__attached *ret_attached, bool *ret_reached, struct stk_err *err)
{
	bool reached = false;
	int r = 0;

	for (int i = 0; i < (q->private_daemon ? LAUNCH_TRIES : 1); i++) {
		struct stk__attached attached = {0};
		_cleanup_(stk_freep) char *socket = NULL;
		_cleanup_(stk_closep) int fd = -1;

		r = reach(q, &fd, &socket, err);
		if (r < 0)
			break;
		r = exchange(&fd, q, ret_session, &attached, &reached, err);
		if (r == 0) {
			attached.socket = STK_STEAL(socket);
			*ret_attached = attached;
		}
		if (r != -EPIPE || reached)
			break;
	}
	if (ret_reached)
		*ret_reached = reached;
	return r;
}
