/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of daemons: where they are, connecting, and one Varlink exchange. All descriptors are
 * close-on-exec and non-blocking; every wait has a deadline of CLOCK_MONOTONIC. Any thread.
 */
#ifndef STK_CLIENT_SOCKET_H
#define STK_CLIENT_SOCKET_H

#include "proto/msg.h"

#define STK__SOCKET_SYSTEM "/run/stoker/stokerd.sock"

int64_t stk__now_ns(void);
#define STK__FOREVER INT64_MAX /* as a deadline */
/* Deadline that is timeout_ms from now; -1: STK__FOREVER. */
int64_t stk__deadline(int timeout_ms);
/* For poll(): milliseconds up to the deadline, rounded up; -1 for ever, 0 when it passed. */
int stk__left_ms(int64_t deadline_ns);

/* $STOKER_SOCKET, else the installed default. */
const char *stk__socket_system(void);

/* -ENOENT or -ECONNREFUSED: nobody listens there; -ETIMEDOUT; -ENAMETOOLONG. */
int stk__connect(const char *path, int64_t deadline_ns, int *ret_fd, struct stk_err *err);

/*
 * Receives one message. -ETIMEDOUT; -EPIPE: the daemon hung up; the daemon's code when the message
 * is an error, with its reason.
 */
int stk__receive(int fd, struct stk_msg_in *in, int64_t deadline_ns, json_t **ret_message,
		 struct stk_err *err);

/* True when the peer of a socket is gone. One system call. */
bool stk__hung_up(int fd);

/*
 * The folder of private sockets number i (0, 1, ...) in order of preference; -ERANGE after the
 * last; -ENOENT: does not apply here.
 */
int stk__socket_folder(unsigned i, char *path, size_t size);

#endif
