/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection to the control socket: messages in and out, the peer's credentials, and the one
 * seat that may hang on it. Ends by hang-up, by the peer's pidfd, or by us with a reason.
 */
#ifndef STKD_CONN_H
#define STKD_CONN_H

#include <sys/socket.h>

#include "daemon/serve/outbox.h"
#include "daemon/serve/server.h"
#include "proto/msg.h"

struct stkd_feed;

struct stkd_conn {
	struct stkd_conn *next, **link; /* in server->conns */
	struct stkd_server *server;
	int fd, pidfd;
	uv_poll_t poll, pid_poll, kick_poll;
	unsigned holders; /* libuv handles that are not closed yet, and work under way */
	bool pid_watched, kick_watched, closing;
	bool writing; /* the socket is polled for what is in `out` */
	struct ucred peer;
	struct stk_msg_in in;
	struct stkd_outbox out; /* while there is something in it, nothing more is read */
	/* The seat of this connection, or of its attach in progress. */
	struct stkd_job *job;
	struct stkd_feed *feed; /* a reference */
	uint32_t rank, replica, replicas;
	uint8_t *state; /* asked for at attach */
	size_t state_size;
	int node;          /* next to the client's device, index into the topology; -1: not known */
	bool attaching;    /* waits in its job for stream or feed */
	uint64_t since_ns; /* of the attach */
	bool rejoin;       /* continues its own position in a running job */
	bool weighed;      /* its feed does not start behind that position */
	bool seated;
	bool seeking; /* a work thread looks at the state it asked for */
};

/* Takes over @fd. */
void stkd_conn_new(struct stkd_server *server, int fd);
/* @reason NULL: the peer hung up. Idempotent; memory goes when libuv has closed the handles. */
void stkd_conn_close(struct stkd_conn *conn, const char *reason);

/* Keeps the memory, also behind the end of the connection, until drop(). */
void stkd_conn_hold(struct stkd_conn *conn);
void stkd_conn_drop(struct stkd_conn *conn);

/* Each returns false when the connection ended while sending. @parameters is taken over. */
bool stkd_conn_reply(struct stkd_conn *conn, json_t *parameters);
bool stkd_conn_reply_fds(struct stkd_conn *conn, json_t *parameters, const int *fds, size_t nfds);
bool stkd_conn_progress(struct stkd_conn *conn, json_t *parameters);
bool stkd_conn_refuse(struct stkd_conn *conn, const struct stk_err *err);
bool stkd_conn_error(struct stkd_conn *conn, const char *name, json_t *parameters);

/* Ends a peer that takes no replies. Returns true while there are some for it. */
bool stkd_conn_tick(struct stkd_conn *conn);

/* Watches the kick eventfd of the seat just taken. */
int stkd_conn_watch_kick(struct stkd_conn *conn, int kick_fd);

#endif
