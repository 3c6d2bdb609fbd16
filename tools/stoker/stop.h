/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wish to stop (SIGINT, SIGTERM, SIGHUP) as a readable descriptor, so that long commands end at a
 * place of their choice and take back what is half-made. Process-wide; one thread.
 */
#ifndef STOKER_STOP_H
#define STOKER_STOP_H

#include "proto/err.h"

/* Blocks the signals and returns a descriptor that becomes readable when one arrives; or -errno.
 * A signal that was ignored before (nohup) stays ignored. */
int stop_open(struct stk_err *err);

/* True when a signal has arrived; false for fd -1. Never takes the signal off. */
bool stop_wanted(int fd);

/* Waits until fd is readable. Return: 0, or -EINTR with a text when a signal came first. */
int stop_or_readable(int stop_fd, int fd, struct stk_err *err);

#endif
