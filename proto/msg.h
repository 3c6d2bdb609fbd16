/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages: Varlink (one JSON object, then a NUL) over a Unix stream socket, descriptors
 * by SCM_RIGHTS on the message they belong to. The buffers here do no I/O of their own event
 * loop: the daemon feeds them from libuv's poll, the client from blocking calls. One thread each.
 */
#ifndef STK_PROTO_MSG_H
#define STK_PROTO_MSG_H

#include <jansson.h>

#include "proto/base.h"
#include "proto/err.h"

#define STK_MSG_INTERFACE "io.stoker"
#define STK_MSG_PROTOCOL  1          /* of this release; an attach names its range */
#define STK_MSG_SIZE_MAX  (4u << 20) /* bytes of one message; more ends the connection */
#define STK_MSG_FDS_MAX   8          /* descriptors of one message; more are closed and refused */
#define STK_MSG_DEPTH_MAX 64

/* Growing input of one connection: what came in and was not taken is bytes[start..size).
 * Zero-initialised is empty. */
struct stk_msg_in {
	char *bytes;
	size_t size, room, scanned;
	/* Descriptors of the message that stk_msg_next() returned last; take one: set it to -1. */
	int fds[STK_MSG_FDS_MAX];
	size_t nfds;
	size_t start;
	/* Descriptors of messages that are still in bytes (one cut short and the one after it), and
	 * where each one's message starts. */
	int pending[2 * STK_MSG_FDS_MAX];
	size_t pending_at[2 * STK_MSG_FDS_MAX];
	size_t npending;
};
void stk_msg_in_deinit(struct stk_msg_in *in); /* closes descriptors that nobody took */

/**
 * stk_msg_recv() - one recvmsg() into the buffer, descriptors with O_CLOEXEC
 *
 * Return: bytes read; 0 at the end of the stream; -EAGAIN; -EMFILE when the kernel dropped
 * descriptors (MSG_CTRUNC: none is kept); -EMSGSIZE; -EPROTO too many descriptors; other negative
 * errno. After an error other than -EAGAIN the connection is of no use. Take all whole messages
 * before the next call.
 */
int stk_msg_recv(int fd, struct stk_msg_in *in, struct stk_err *err);

/* Takes the next whole message out of the buffer, its descriptors into in->fds; closes those of the
 * message before that nobody took. 1: *ret_json is a new reference; 0: not complete yet; -EBADMSG: not
 * a JSON object, with position. */
int stk_msg_next(struct stk_msg_in *in, json_t **ret_json, struct stk_err *err);

/**
 * stk_msg_send() - one message, whole, with descriptors on its first byte
 * @json: not taken over
 * @fds, @nfds: stay the caller's
 *
 * Blocks in poll() for up to @timeout_ms when the socket is full (0: -EAGAIN at once if nothing
 * could be sent; a partial send continues until the timeout, then -ETIMEDOUT: the connection is torn
 * and has to be closed). Never raises SIGPIPE.
 */
int stk_msg_send(int fd, const json_t *json, const int *fds, size_t nfds, int timeout_ms,
		 struct stk_err *err);

/* Builders. Each takes over the reference @parameters (may be NULL: {}). NULL: no memory. */
json_t *stk_msg_call(const char *method, json_t *parameters, bool more);
json_t *stk_msg_reply(json_t *parameters, bool continues);
/* {reason, code: errno} under a name: NULL is "io.stoker.Refused"; without a dot it is of io.stoker. */
json_t *stk_msg_error(const char *name, const struct stk_err *err);

/* The text of io.stoker.varlink, compiled in. */
extern const char stk_msg_varlink_text[];

#endif
