/* SPDX-License-Identifier: Apache-2.0 */
/* Lengths from a NumPy file: one dimension of whole numbers. One thread. */
#ifndef STOKER_NPY_H
#define STOKER_NPY_H

#include "proto/err.h"

/* @ret: for free(). Return: 0 or a negative errno with the reason. */
int npy_read_lengths(const char *path, uint32_t **ret, uint64_t *ret_n, struct stk_err *err);

#endif
