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

#define STK_MSG_INTERFACE    "io.stoker"
#define STK_MSG_PROTOCOL     1           /* of this release; an attach names its range */
#define STK_MSG_SIZE_MAX     (4u << 20)  /* bytes of one message; more ends the connection */
#define STK_MSG_FDS_MAX      8           /* descriptors of one message; more are closed and refused */
#define STK_MSG_DEPTH_MAX    64

/* Growing input of one connection. Zero-initialised is empty. */
struct stk_msg_in {
	char *bytes;
	size_t size, room, scanned;
	int fds[STK_MSG_FDS_MAX];
	size_t nfds;
};
void stk_msg_in_deinit(struct stk_msg_in *in); /* closes descriptors that nobody took */

/**
 * stk_msg_recv() - one recvmsg() into the buffer, descriptors with O_CLOEXEC
 *
 * Return: bytes read; 0 at the end of the stream; -EAGAIN; -EMFILE when the kernel dropped
 * descriptors (MSG_CTRUNC: none is kept); -EMSGSIZE; other negative errno.
 */
int stk_msg_recv(int fd, struct stk_msg_in *in, struct stk_err *err);

/* Takes the next whole message out of the buffer. 1: *ret_json is a new reference; 0: not complete yet;
 * -EBADMSG: not a JSON object, with position. */
int stk_msg_next(struct stk_msg_in *in, json_t **ret_json, struct stk_err *err);

/**
 * stk_msg_send() - one message, whole, with descriptors on its first byte
 * @json: not taken over
 * @fds, @nfds: stay the caller's
 *
 * Blocks in poll() for up to @timeout_ms when the socket is full (0: -EAGAIN at once if nothing
 * could be sent; a partial send always continues until the timeout). Never raises SIGPIPE.
 */
int stk_msg_send(int fd, const json_t *json, const int *fds, size_t nfds, int timeout_ms,
		 struct stk_err *err);

/* Builders. Each takes over the reference @parameters (may be NULL: {}). NULL: no memory. */
json_t *stk_msg_call(const char *method, json_t *parameters, bool more);
json_t *stk_msg_reply(json_t *parameters, bool continues);
/* error "io.stoker.Refused" {reason, code: errno} or another name of the interface. */
json_t *stk_msg_error(const char *name, const struct stk_err *err);

/* The text of io.stoker.varlink, compiled in. */
extern const char stk_msg_varlink_text[];

#endif
