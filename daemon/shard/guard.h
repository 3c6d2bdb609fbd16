/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Touching memory that may vanish (a shard file that is cut, a slots file in which its holder
 * punches holes): SIGBUS inside a guarded call becomes an error instead of the daemon's death.
 * One jump buffer per thread; the handler is process-wide and passes foreign faults on.
 */
#ifndef STKD_GUARD_H
#define STKD_GUARD_H

#include <stddef.h>

/* Installs the handler; needed before any guarded call. Again is harmless, and puts it back where a
 * library took SIGBUS for itself. Any thread. Return: 0 or -errno. */
int stkd_guard_install(void);

/**
 * stkd_guard_run() - run fn(arg) so that a SIGBUS in it returns
 * @fn: takes no lock and owns nothing that a jump out of it would lose
 * @ret_address: where it faulted; only set with -EFAULT
 *
 * Return: what fn returned, or -EFAULT. Does not nest.
 */
int stkd_guard_run(int (*fn)(void *arg), void *arg, const void **ret_address);

#endif
