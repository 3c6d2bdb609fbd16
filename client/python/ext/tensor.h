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

/* lease_use() for Python: True, or False when there is no pipeline. NULL: raised. */
PyObject *tensor_use(struct lease *lease, void *stream);

/* A capsule "dltensor" that holds the view's lease. NULL: raised. */
PyObject *tensor_capsule(const struct view *view, bool bool_as_u8);

#endif
