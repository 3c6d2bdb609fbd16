/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every file of the extension includes: the limited API of Python 3.11, and errors of libstoker
 * as exceptions. Functions here are called with the GIL.
 */
#ifndef STK_PYTHON_EXT_H
#define STK_PYTHON_EXT_H

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

#include "client/stoker.h"

/* Raises the exception for a negative errno; returns NULL. -EINTR: it was raised already. */
PyObject *ext_raise(int r, const char *text);

/* A new type from a spec, added to the module. NULL: raised. */
PyTypeObject *ext_add_type(PyObject *module, PyType_Spec *spec);

/* Calls with one argument, which is taken over; NULL is passed on. */
PyObject *ext_call(PyObject *callable, PyObject *argument);

static inline void ext_free(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	Py_DECREF(type); /* instances of a type made at run time hold it */
}

int ext_add_tensor(PyObject *module);
int ext_add_batch(PyObject *module);
int ext_add_client(PyObject *module);
int ext_add_writer(PyObject *module);

#endif
