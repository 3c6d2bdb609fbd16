/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An error that travels up: a negative errno and one sentence that names the place, the value
 * and what is allowed. Lives on the caller's stack; any thread, one at a time.
 */
#ifndef STK_ERR_H
#define STK_ERR_H

#include "proto/base.h"

struct stk_err {
	int code;        /* negative errno; 0 while nothing went wrong */
	char text[1020]; /* UTF-8, no newline at the end, always terminated */
};

/**
 * stk_err_set() - say what went wrong
 * @err:  may be NULL; overwritten
 * @code: negative errno
 * @fmt:  printf format; %m is the errno at the call
 *
 * Bytes that are not printable UTF-8 (from names in files, messages, paths) become \xNN.
 *
 * Return: @code, so that "return stk_err_set(err, -EINVAL, ...)" reads well.
 */
int stk_err_set(struct stk_err *err, int code, const char *fmt, ...) _printf_(3, 4);

/* Puts "prefix" (no colon is added) before a text that was set further down. Returns err->code. */
int stk_err_prefix(struct stk_err *err, const char *fmt, ...) _printf_(2, 3);

/* The name in @names (NULL-terminated) closest to @word, or NULL when none is near enough. */
const char *stk_nearest(const char *word, const char *const *names);

#endif
