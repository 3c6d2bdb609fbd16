/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inner loops of assembly: copy, widen and fill runs of values. Sources may lie at any address;
 * targets are aligned to their type. No state, any thread.
 */
#ifndef STKD_KERNELS_H
#define STKD_KERNELS_H

#include "proto/dtype.h"

/* n values, n > 0; the two ranges do not overlap. */
typedef void (*stkd_copy_fn)(void *restrict dst, const void *restrict src, size_t n);
/* The low bytes of `bits`, n times. */
typedef void (*stkd_fill_fn)(void *dst, uint64_t bits, size_t n);

/*
 * How values of one type become another without loss: the same type, BOOL to any integer, an
 * integer to a wider one that holds all its values. NULL: not possible.
 */
stkd_copy_fn stkd_copy_find(enum stk_dtype from, enum stk_dtype to);

/* first, first + 1, ...: n integers of a type. */
typedef void (*stkd_count_fn)(void *dst, uint64_t first, size_t n);
/* For values of 4 or 8 bytes; NULL for another size. */
stkd_count_fn stkd_count_find(size_t size);

/* For values of 1, 2, 4 or 8 bytes; NULL for another size. */
stkd_fill_fn stkd_fill_find(size_t size);

/**
 * stkd_value_encode() - the bits of a pad value
 * @integer: for BOOL and integer types
 * @real:    for F16, BF16, F32, F64: rounded once, to nearest, ties to even
 *
 * Other types have only the pad value 0.
 *
 * Return: 0, or -ERANGE when the type cannot hold the value.
 */
int stkd_value_encode(enum stk_dtype dtype, int64_t integer, double real, uint64_t *ret_bits);

#endif
