/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The control socket's place in the file system: who may hold it, and that nobody is robbed of it.
 * A lock file beside the socket is held for life, so a socket without a holder is known to be stale.
 */
#ifndef STKD_LISTENER_H
#define STKD_LISTENER_H

#include "proto/err.h"

/**
 * stkd_listener_open() - bind and listen
 * @path: at most 107 bytes; a stale socket is replaced, anything else in its place is refused
 * @mode: permissions of the socket
 *
 * Return: 0; -EADDRINUSE with the pid of the instance that runs there; ...
 */
int stkd_listener_open(const char *path, unsigned mode, int *ret_fd, int *ret_lock_fd,
		       struct stk_err *err);
/* Removes socket and lock file. */
void stkd_listener_remove(const char *path);

#endif
