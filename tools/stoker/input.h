/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines of a text file: plain, gzip or zstd (known by content), or standard input. Memory is bound
 * by the line limit, whatever the file's size. Owned by its opener; one thread.
 */
#ifndef STOKER_INPUT_H
#define STOKER_INPUT_H

#include "proto/err.h"

#define INPUT_LINE_MAX (64ull << 20)

struct input;

/**
 * input_open() - open a file of lines
 * @path:     "-" is standard input
 * @line_max: longest line in bytes, without its end
 * @stop_fd:  of stop_open(): ends a wait for data with -EINTR; -1 for none
 *
 * Return: 0, or a negative errno with the path; -EBADMSG names another kind of file for what it is.
 */
int input_open(const char *path, size_t line_max, int stop_fd, struct input **ret,
	       struct stk_err *err);
struct input *input_free(struct input *input);
STK_DEFINE_CLEANUP(struct input *, input_free)

/**
 * input_line() - the next line
 * @ret_line: without its "\n" or "\r\n"; valid until the next call
 *
 * Return: 1; 0 at the end; -EBADMSG with file and line: too long, damaged or truncated data.
 */
int input_line(struct input *input, const char **ret_line, size_t *ret_size, struct stk_err *err);

/* The path as given, "standard input" for "-". */
const char *input_name(const struct input *input);
/* Number of the line that input_line() returned last, from 1. */
uint64_t input_line_number(const struct input *input);
/* Bytes taken from the file so far, before decompression. */
uint64_t input_bytes(const struct input *input);

#endif
