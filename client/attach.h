/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The attach: from a request to a session. Blocks; every wait has an end. Runs on the thread that
 * opens the client or, after a lost connection, in next().
 */
#ifndef STK_CLIENT_ATTACH_H
#define STK_CLIENT_ATTACH_H

#include "client/request.h"
#include "client/session.h"
#include "client/socket.h"

/* What a successful attach tells beside the session. Zeroed is empty. */
struct stk__attached {
	char *socket; /* path, for free() */
	char *notice; /* for free(); NULL: none */
	int32_t daemon_pid;
	uint32_t era;
};

/**
 * stk__attach() - connect, ask for the seat, map what comes
 * @ret_reached: may be NULL; whether a daemon answered at all (then the error is its last word)
 *
 * Return: as stk_client_open().
 */
int stk__attach(const struct stk__request *request, struct stk__session **ret_session,
		struct stk__attached *ret_attached, bool *ret_reached, struct stk_err *err);

/* Whether the caller wants out. */
bool stk__is_interrupted(const struct stk__request *request);

/*
 * One message, waited for in slices between which the caller may interrupt. -ETIMEDOUT after
 * timeout_ms (-1: never); -EINTR; else as stk__receive().
 */
int stk__await(const struct stk__request *request, int fd, struct stk_msg_in *in, int timeout_ms,
	       json_t **ret_message, struct stk_err *err);

#endif
