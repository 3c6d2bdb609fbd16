/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker.Tensor: one tensor of a batch for libraries that speak DLPack or the buffer protocol, and
 * the capsules that torch takes directly. Called with the GIL.
 */
#ifndef STK_PYTHON_TENSOR_H
#define STK_PYTHON_TENSOR_H

#include "client/python/ext/ext.h"
#include "client/python/ext/lease.h"

/* A new object that holds the view's lease. NULL: raised. */
PyObject *tensor_new(const struct view *view);

/* A capsule "dltensor" that holds the view's lease. NULL: raised. */
PyObject *tensor_capsule(const struct view *view, bool bool_as_u8);

#endif
