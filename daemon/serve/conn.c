/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/conn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/serve/feed.h"
#include "daemon/serve/job.h"
#include "daemon/serve/methods.h"

#define USER_CONNS_MAX UINT64_C(4096)
#define DESCRIPTORS    8                    /* of a connection with a seat */
#define STALL_NS       UINT64_C(5000000000) /* who takes nothing of its replies for so long is ended */

void stkd_conn_hold(struct stkd_conn *conn)
{
	conn->holders++;
}

void stkd_conn_drop(struct stkd_conn *conn)
{
	if (--conn->holders)
		return;
	/* Only now may the descriptors' numbers be used again. */
	stk_close(conn->fd);
	stk_close(conn->pidfd);
	stk_msg_in_deinit(&conn->in);
	stkd_outbox_deinit(&conn->out);
	free(conn->state);
	free(conn);
}

static void handle_closed(uv_handle_t *handle)
{
	stkd_conn_drop(handle->data);
}

void stkd_conn_close(struct stkd_conn *conn, const char *reason)
{
	struct stkd_server *server = conn->server;

	if (conn->closing)
		return;
	conn->closing = true;
	if (reason)
		log_warn("client pid %d of user %u ended: %s", (int)conn->peer.pid,
			 (unsigned)conn->peer.uid, reason);
	if (conn->kick_watched)
		uv_poll_stop(&conn->kick_poll);
	/* The peer learns at once, even if a forked child still holds the other end. */
	shutdown(conn->fd, SHUT_RDWR);
	stkd_job_detach(conn);
	*conn->link = conn->next;
	if (conn->next)
		conn->next->link = conn->link;
	server->nconns--;
	uv_close((uv_handle_t *)&conn->poll, handle_closed);
	if (conn->pid_watched)
		uv_close((uv_handle_t *)&conn->pid_poll, handle_closed);
	if (conn->kick_watched)
		uv_close((uv_handle_t *)&conn->kick_poll, handle_closed);
	stkd_server_count(server);
}

/* Sending. */

static void on_event(uv_poll_t *poll, int status, int events);

/* What is for the peer goes first, then it is listened to again. */
static void watch_socket(struct stkd_conn *conn)
{
	bool writing = conn->out.bytes;

	if (writing == conn->writing)
		return;
	conn->writing = writing;
	uv_poll_start(&conn->poll, writing ? UV_WRITABLE : UV_READABLE, on_event);
	if (writing)
		stkd_server_want_tick(conn->server);
}

static bool end_if_failed(struct stkd_conn *conn, int r, const struct stk_err *err)
{
	if (r < 0)
		stkd_conn_close(conn, r == -EPIPE || r == -ECONNRESET ? NULL : err->text);
	return r >= 0;
}

/* Descriptors ride on a first byte, so they cannot wait in the outbox. */
static bool send_message(struct stkd_conn *conn, json_t *message, const int *fds, size_t nfds)
{
	struct stk_err err = {0};
	int r;

	if (conn->closing || !message) {
		json_decref(message);
		return false;
	}
	if (!nfds)
		r = stkd_outbox_put(&conn->out, conn->fd, message, &err);
	else if (conn->out.bytes)
		r = stk_err_set(&err, -EMSGSIZE, "it does not read its replies");
	else
		r = stk_msg_send(conn->fd, message, fds, nfds, 0, &err);
	json_decref(message);
	if (r == 0)
		watch_socket(conn);
	return end_if_failed(conn, r, &err);
}

bool stkd_conn_tick(struct stkd_conn *conn)
{
	if (conn->out.bytes && stkd_now_ns() - conn->out.since_ns > STALL_NS)
		stkd_conn_close(conn, "it does not read its replies");
	return !conn->closing && conn->out.bytes;
}

bool stkd_conn_reply(struct stkd_conn *conn, json_t *parameters)
{
	return send_message(conn, stk_msg_reply(parameters, false), NULL, 0);
}

bool stkd_conn_reply_fds(struct stkd_conn *conn, json_t *parameters, const int *fds, size_t nfds)
{
	return send_message(conn, stk_msg_reply(parameters, false), fds, nfds);
}

bool stkd_conn_progress(struct stkd_conn *conn, json_t *parameters)
{
	if (conn->out.bytes) {
		json_decref(parameters); /* the next one tells more */
		return true;
	}
	return send_message(conn, stk_msg_reply(parameters, true), NULL, 0);
}

bool stkd_conn_refuse(struct stkd_conn *conn, const struct stk_err *err)
{
	return send_message(conn, stk_msg_error("io.stoker.Refused", err), NULL, 0);
}

bool stkd_conn_error(struct stkd_conn *conn, const char *name, json_t *parameters)
{
	return send_message(conn, json_pack("{s:s, s:o}", "error", name, "parameters", parameters),
			    NULL, 0);
}

/* Receiving. */

/* Whole messages that came, up to one whose reply the peer has yet to take. */
static void take_messages(struct stkd_conn *conn)
{
	struct stk_err err = {0};
	json_t *message;
	int r = 0;

	while (!conn->closing && !conn->out.bytes &&
	       (r = stk_msg_next(&conn->in, &message, &err)) == 1) {
		stkd_methods_call(conn, message);
		json_decref(message);
	}
	if (!conn->closing)
		end_if_failed(conn, r, &err);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	struct stkd_conn *conn = poll->data;
	struct stk_err err = {0};
	int r;

	(void)events;
	if (status < 0) {
		stkd_conn_close(conn, NULL);
		return;
	}
	if (conn->out.bytes) {
		r = stkd_outbox_flush(&conn->out, conn->fd, &err);
	} else {
		r = stk_msg_recv(conn->fd, &conn->in, &err);
		if (r == -EAGAIN || r == -EINTR)
			return;
		r = r == 0 ? -EPIPE : r;
	}
	if (!end_if_failed(conn, r, &err) || conn->out.bytes)
		return;
	take_messages(conn);
	if (!conn->closing)
		watch_socket(conn);
}

static void on_peer_exit(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	stkd_conn_close(poll->data, NULL);
}

/* RWF_NOWAIT: the peer shares the file's flags and could make a plain read sleep. */
static void on_kick(uv_poll_t *poll, int status, int events)
{
	struct stkd_conn *conn = poll->data;
	uint64_t count;
	struct iovec iov = {&count, sizeof(count)};

	(void)events;
	if (status < 0 || conn->closing)
		return;
	(void)!preadv2(conn->feed->seats[conn->replica].kick_fd, &iov, 1, -1, RWF_NOWAIT);
	stkd_feed_poke(conn->feed);
}

static int watch(struct stkd_conn *conn, uv_poll_t *poll, int fd, uv_poll_cb callback)
{
	int r = uv_poll_init(&conn->server->loop, poll, fd);

	if (r < 0)
		return r;
	poll->data = conn;
	stkd_conn_hold(conn);
	return uv_poll_start(poll, UV_READABLE, callback);
}

int stkd_conn_watch_kick(struct stkd_conn *conn, int kick_fd)
{
	int r = watch(conn, &conn->kick_poll, kick_fd, on_kick);

	conn->kick_watched = r == 0;
	return r;
}

/* A forked child may keep the socket open; the process itself is what holds the seat. */
static void watch_process(struct stkd_conn *conn)
{
	if (conn->peer.pid <= 0)
		return;
	conn->pidfd = (int)syscall(SYS_pidfd_open, conn->peer.pid, 0);
	if (conn->pidfd < 0)
		return;
	conn->pid_watched = watch(conn, &conn->pid_poll, conn->pidfd, on_peer_exit) == 0;
}

/* Others need descriptors too: a user gets connections for at most an eighth of them. */
static uint64_t user_limit(const struct stkd_server *server)
{
	return STK_MIN(STK_MAX(server->fd_limit / DESCRIPTORS / 8, 1), USER_CONNS_MAX);
}

static bool has_too_many(const struct stkd_conn *conn)
{
	uint64_t n = 0, most = user_limit(conn->server);

	if (conn->peer.uid == 0 || conn->peer.uid == geteuid())
		return false;
	for (const struct stkd_conn *c = conn->server->conns; c && n <= most; c = c->next)
		n += c->peer.uid == conn->peer.uid;
	return n > most;
}

static void refuse_user(struct stkd_conn *conn)
{
	struct stk_err err;

	stk_err_set(&err, -EMFILE,
		    "user %u has %" PRIu64
		    " connections, no more are allowed while RLIMIT_NOFILE of stokerd is %" PRIu64,
		    (unsigned)conn->peer.uid, user_limit(conn->server), conn->server->fd_limit);
	if (stkd_conn_refuse(conn, &err))
		stkd_conn_close(conn, err.text);
}

void stkd_conn_new(struct stkd_server *server, int fd)
{
	struct stkd_conn *conn = calloc(1, sizeof(*conn));
	socklen_t size = sizeof(conn->peer);

	if (!conn || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &conn->peer, &size) < 0) {
		stk_close(fd);
		free(conn);
		return;
	}
	conn->server = server;
	conn->fd = fd;
	conn->pidfd = -1;
	if (watch(conn, &conn->poll, fd, on_event) < 0) {
		stk_close(fd);
		free(conn);
		return;
	}
	watch_process(conn);
	conn->next = server->conns;
	conn->link = &server->conns;
	if (conn->next)
		conn->next->link = &conn->next;
	server->conns = conn;
	server->nconns++;
	stkd_server_count(server);
	if (has_too_many(conn))
		refuse_user(conn);
}
