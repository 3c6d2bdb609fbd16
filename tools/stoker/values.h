/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of a field as people read them: numbers, or text where the elements are bytes of text.
 * No state; any thread.
 */
#ifndef STOKER_VALUES_H
#define STOKER_VALUES_H

#include <jansson.h>
#include <stdio.h>

#include "proto/dtype.h"

/* @n elements at @data (unaligned) as a JSON array. Types without whole bytes or a number in C come
 * as hexadecimal strings; so do numbers that JSON has not. NULL: no memory. */
json_t *values_json(enum stk_dtype dtype, const void *data, uint64_t n);

/* "[1, 2, 3, ... (N more)]" with at most @shown elements. */
void values_print(FILE *out, enum stk_dtype dtype, const void *data, uint64_t n, uint64_t shown);

/* Elements that are bytes of text, in quotes and escaped; ids over 255 as <256>. */
void values_print_text(FILE *out, enum stk_dtype dtype, const void *data, uint64_t n,
		       uint64_t shown);

/* The same for JSON; NULL when it is not valid UTF-8 or has other ids. */
json_t *values_json_text(enum stk_dtype dtype, const void *data, uint64_t n);

#endif
