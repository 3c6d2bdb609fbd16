/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One JSON number as an element: range checked, rounded to nearest even, little-endian. Nothing
 * wraps and nothing becomes infinite. No state.
 */
#ifndef STOKER_NUMBER_H
#define STOKER_NUMBER_H

#include <jansson.h>

#include "proto/dtype.h"
#include "proto/err.h"

#define NUMBER_DTYPES "bool, u8, i8, u16, i16, u32, i32, u64, i64, f16, bf16, f32, f64"

/* Can number_put() write this type? */
bool number_dtype_known(enum stk_dtype dtype);

/**
 * number_put() - write an element
 * @out: stk_dtype_size(dtype) bytes, unaligned
 *
 * Return: 0, or -ERANGE or -EINVAL with a text that begins with the value and says what is allowed.
 */
int number_put(const json_t *value, enum stk_dtype dtype, void *out, struct stk_err *err);

#endif
