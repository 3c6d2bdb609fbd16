/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines on stderr: "<6>" priorities when the journal reads it, plain text otherwise. Lower
 * case, cause first. Whoever decides what a failure means logs it, once. Any thread.
 */
#ifndef STKD_LOG_H
#define STKD_LOG_H

#include "proto/base.h"

enum stkd_log_level {
	STKD_LOG_ERROR = 3,
	STKD_LOG_WARN = 4,
	STKD_LOG_INFO = 6,
	STKD_LOG_DEBUG = 7
};

void stkd_log_init(enum stkd_log_level level);
void stkd_log(enum stkd_log_level level, const char *fmt, ...) _printf_(2, 3);

#define log_error(...) stkd_log(STKD_LOG_ERROR, __VA_ARGS__)
#define log_warn(...)  stkd_log(STKD_LOG_WARN, __VA_ARGS__)
#define log_info(...)  stkd_log(STKD_LOG_INFO, __VA_ARGS__)
#define log_debug(...) stkd_log(STKD_LOG_DEBUG, __VA_ARGS__)

/*
 * Warnings that are worth one line for each kind and process, kept for `stokerctl status`.
 * stkd_warn_once() has the signature of stkd_place.warn.
 */
void stkd_warn_once(void *unused, const char *kind, const char *text);
/* The i-th kept warning, or NULL behind the last. Stable for the life of the process. */
const char *stkd_warning_at(unsigned i);

#endif
