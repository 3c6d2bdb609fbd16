/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The private daemon of a job: finds its socket, starts it under a lock when nobody listens. The
 * daemon is nobody's child: the process that started it may end before it. Any thread.
 */
#ifndef STK_CLIENT_LAUNCH_H
#define STK_CLIENT_LAUNCH_H

#include "proto/err.h"

/**
 * stk__launch() - connect to the job's private daemon, starting it if need be
 * @job:         its name, usually the job's; becomes a file name, hashed when it cannot be one
 * @deadline_ns: CLOCK_MONOTONIC
 * @ret_socket:  its path, for free()
 *
 * Return: 0; -ENOENT no stokerd to start; -EPERM the folder is not ours alone; what stokerd said
 * when it did not start; -ETIMEDOUT.
 */
int stk__launch(const char *job, int64_t deadline_ns, int *ret_fd, char **ret_socket,
		struct stk_err *err);

/* "FOLDER/JOB.sock", with a hash for the job where needed. 0 or -ENAMETOOLONG. */
int stk__launch_socket(const char *folder, const char *job, char *path, size_t size,
		       struct stk_err *err);

#endif
