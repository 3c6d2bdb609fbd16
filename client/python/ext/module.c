/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module stoker._stoker: its types, and libstoker's errors as Python's exceptions. One
 * interpreter for each process; everything here runs with the GIL.
 */
#include "client/python/ext/cuda.h"
#include "client/python/ext/ext.h"

#include <errno.h>
#include <string.h>

static PyObject *errors; /* dict: positive errno -> exception; 0: any other */

PyObject *ext_raise(int r, const char *text)
{
	PyObject *number, *exception;

	if (r == -EINTR && PyErr_Occurred())
		return NULL;
	if (r == -ENOMEM && !*text)
		return PyErr_NoMemory();
	number = PyLong_FromLong(-r);
	exception = errors && number ? PyDict_GetItemWithError(errors, number) : NULL;
	Py_XDECREF(number);
	if (!exception && errors) {
		number = PyLong_FromLong(0);
		exception = number ? PyDict_GetItemWithError(errors, number) : NULL;
		Py_XDECREF(number);
	}
	PyErr_SetString(exception ? exception : PyExc_RuntimeError, *text ? text : strerror(-r));
	return NULL;
}

PyTypeObject *ext_add_type(PyObject *module, PyType_Spec *spec)
{
	PyObject *type = PyType_FromSpec(spec);

	if (type && PyModule_AddType(module, (PyTypeObject *)type) < 0)
		Py_CLEAR(type);
	return (PyTypeObject *)type; /* for as long as the process lives */
}

PyObject *ext_call(PyObject *callable, PyObject *argument)
{
	PyObject *result;

	if (!argument)
		return NULL;
	result = PyObject_CallFunctionObjArgs(callable, argument, NULL);
	Py_DECREF(argument);
	return result;
}

static PyObject *set_errors(PyObject *module, PyObject *dict)
{
	(void)module;
	if (!PyDict_Check(dict)) {
		PyErr_SetString(PyExc_TypeError, "set_errors: a dict of errno to exception");
		return NULL;
	}
	Py_XDECREF(errors);
	errors = Py_NewRef(dict);
	Py_RETURN_NONE;
}

static PyObject *control(PyObject *module, PyObject *args)
{
	const char *socket, *method, *parameters;
	char error[1024] = "", *reply = NULL;
	PyObject *text;
	int timeout_ms, r;

	(void)module;
	if (!PyArg_ParseTuple(args, "sssi:control", &socket, &method, &parameters, &timeout_ms))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	r = stk_control_call(socket, method, parameters, timeout_ms, &reply, error, sizeof(error));
	Py_END_ALLOW_THREADS;
	if (r < 0)
		return ext_raise(r, error);
	text = PyUnicode_FromString(reply);
	free(reply);
	return text;
}

static PyObject *cuda_device(PyObject *module, PyObject *args)
{
	struct stk_cuda_device device = {.size = sizeof(device)};
	char error[1024] = "";
	int ordinal;

	(void)module;
	if (!PyArg_ParseTuple(args, "i:cuda_device", &ordinal))
		return NULL;
	if (cuda_load(error, sizeof(error)) < 0 ||
	    cuda_calls->device(ordinal, &device, error, sizeof(error)) < 0)
		return ext_raise(-ENODEV, error);
	return Py_BuildValue("{sisssisi}", "device", (int)device.device, "pci", device.pci,
			     "host_node", (int)device.host_node, "runtime", (int)device.runtime);
}

static PyMethodDef functions[] = {
	{"cuda_device", cuda_device, METH_VARARGS,
	 "cuda_device(device)\n--\n\nWhat CUDA says of a device, -1 the current one; makes no "
	 "context."},
	{"control", control, METH_VARARGS,
	 "control(socket, method, parameters, timeout_ms)\n--\n\nOne call to a daemon, JSON to "
	 "JSON."},
	{"set_errors", set_errors, METH_O, "set_errors(errors)\n--\n\nExceptions by errno."},
	{0},
};

static struct PyModuleDef definition = {
	PyModuleDef_HEAD_INIT,
	.m_name = "_stoker",
	.m_doc = "libstoker for Python; use the package stoker.",
	.m_size = -1,
	.m_methods = functions,
};

PyMODINIT_FUNC PyInit__stoker(void);
PyMODINIT_FUNC PyInit__stoker(void)
{
	PyObject *module = PyModule_Create(&definition);

	if (!module)
		return NULL;
	if (ext_add_tensor(module) < 0 || ext_add_batch(module) < 0 || ext_add_client(module) < 0 ||
	    ext_add_writer(module) < 0 ||
	    PyModule_AddStringConstant(module, "__version__", STK_RELEASE) < 0) {
		Py_DECREF(module);
		return NULL;
	}
	return module;
}
