/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts a program that outlives us: its own session, no terminal, none of our descriptors, signals
 * as at login. The process that calls it gets no child to wait for. Any thread.
 */
#ifndef STK_CLIENT_SPAWN_H
#define STK_CLIENT_SPAWN_H

#include "proto/err.h"

#define STK__SPAWN_READY_FD      3
#define STK__SPAWN_READY_FD_TEXT "3"

/**
 * stk__spawn() - start argv[0]
 * @argv:      NULL-terminated; argv[0] is an absolute path
 * @log:       file for its stderr, emptied first
 * @ret_ready: end of a pipe; the program writes to descriptor STK__SPAWN_READY_FD
 *
 * A program that cannot be run writes "error: ..." to the pipe, as if it were the program.
 */
int stk__spawn(const char *const *argv, const char *log, int *ret_ready, struct stk_err *err);

#endif
