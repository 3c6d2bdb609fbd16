/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A consumer of DLPack for tests, with the stand-in as its CUDA runtime: takes capsules as a framework
 * does, reads what they point to on a stream in its order, and lets go of them without the GIL. With it
 * come the stand-in's own functions. Python calls it with the GIL; kernels run on streams' threads.
 */
#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/python/ext/dlpack.h"
#include "tests/cuda/standin.h"

int cudaSetDevice(int device);
int cudaStreamCreateWithFlags(void **ret, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);

static PyTypeObject *taken_type, *read_type;
static sem_t gate; /* reads that wait to be let go */

/* What a kernel reads. Half of it belongs to the stream. */
struct work {
	_Atomic unsigned refs, done;
	const uint8_t *from;
	size_t size;
	unsigned usec;
	bool gated;
	uint8_t bytes[];
};

static void work_unref(struct work *work)
{
	if (atomic_fetch_sub(&work->refs, 1) == 1)
		free(work);
}

static void kernel(void *arg)
{
	struct work *work = arg;

	if (work->gated)
		while (sem_wait(&gate) < 0 && errno == EINTR)
			;
	if (work->usec)
		usleep(work->usec);
	if (work->size)
		memcpy(work->bytes, work->from, work->size);
	work->done = 1;
	work_unref(work);
}

struct read {
	PyObject_HEAD struct work *work;
};

static PyObject *launch(const void *from, size_t size, PyObject *args)
{
	unsigned long long stream;
	unsigned usec = 0;
	struct work *work;
	struct read *read;
	int gated = 0;

	if (!PyArg_ParseTuple(args, "K|Ip", &stream, &usec, &gated))
		return NULL;
	work = calloc(1, sizeof(*work) + size);
	read = (struct read *)PyType_GenericAlloc(read_type, 0);
	if (!read || !work) {
		free(work);
		Py_XDECREF((PyObject *)read);
		return PyErr_NoMemory();
	}
	*work = (struct work){.refs = 2, .from = from, .size = size, .usec = usec, .gated = gated};
	read->work = work;
	standin_launch((void *)(uintptr_t)stream, kernel, work);
	return (PyObject *)read;
}

static void dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);

	release(self);
	Py_DECREF(type);
}

static void read_dealloc(PyObject *self)
{
	if (((struct read *)self)->work)
		work_unref(((struct read *)self)->work);
	dealloc(self);
}

static PyObject *read_done(PyObject *self, void *unused)
{
	(void)unused;
	return PyBool_FromLong(((struct read *)self)->work->done);
}

static PyObject *read_bytes(PyObject *self, void *unused)
{
	struct work *work = ((struct read *)self)->work;

	(void)unused;
	if (!work->done)
		Py_RETURN_NONE;
	return PyBytes_FromStringAndSize((char *)work->bytes, (Py_ssize_t)work->size);
}

static PyGetSetDef read_getset[] = {
	{"done", read_done, NULL, "whether the kernel ran", NULL},
	{"bytes", read_bytes, NULL, "what it read; None before", NULL},
	{0},
};
static PyType_Slot read_slots[] = {{Py_tp_dealloc, read_dealloc}, {Py_tp_getset, read_getset}, {0}};
static PyType_Spec read_spec = {.name = "reader.Read",
				.basicsize = sizeof(struct read),
				.flags = Py_TPFLAGS_DEFAULT,
				.slots = read_slots};

/* A tensor that was taken from its capsule. */
struct taken {
	PyObject_HEAD struct dlpack_managed *plain;
	struct dlpack_managed_versioned *versioned;
	struct dlpack_tensor tensor;
	uint64_t size;
};

static void *drop(void *arg)
{
	struct taken *t = arg;

	if (t->plain)
		t->plain->deleter(t->plain);
	if (t->versioned)
		t->versioned->deleter(t->versioned);
	t->plain = NULL;
	t->versioned = NULL;
	return NULL;
}

static PyObject *taken_drop(PyObject *self, PyObject *args)
{
	pthread_t thread;
	int elsewhere = 0;

	if (!PyArg_ParseTuple(args, "|p", &elsewhere))
		return NULL;
	Py_BEGIN_ALLOW_THREADS;
	if (elsewhere && pthread_create(&thread, NULL, drop, self) == 0)
		pthread_join(thread, NULL);
	else
		drop(self);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static void taken_dealloc(PyObject *self)
{
	Py_BEGIN_ALLOW_THREADS;
	drop(self);
	Py_END_ALLOW_THREADS;
	dealloc(self);
}

static PyObject *take(PyObject *module, PyObject *capsule)
{
	bool versioned = PyCapsule_IsValid(capsule, "dltensor_versioned");
	void *m = PyCapsule_GetPointer(capsule, versioned ? "dltensor_versioned" : "dltensor");
	struct taken *t = m ? (struct taken *)PyType_GenericAlloc(taken_type, 0) : NULL;

	(void)module;
	if (!t)
		return NULL;
	if (versioned) {
		t->versioned = m;
		t->tensor = t->versioned->tensor;
	} else {
		t->plain = m;
		t->tensor = t->plain->tensor;
	}
	PyCapsule_SetName(capsule, versioned ? "used_dltensor_versioned" : "used_dltensor");
	t->size = t->tensor.dtype.bits / 8;
	for (int32_t d = 0; d < t->tensor.ndim; d++)
		t->size *= (uint64_t)t->tensor.shape[d];
	return (PyObject *)t;
}

static PyObject *taken_read(PyObject *self, PyObject *args)
{
	const struct taken *t = (const struct taken *)self;

	return launch(t->tensor.data, t->size, args);
}

/* For an importer that knows no booleans: the same bytes. */
static PyObject *taken_view(PyObject *self, PyObject *type)
{
	(void)type;
	return Py_NewRef(self);
}

static PyObject *taken_about(PyObject *self, void *unused)
{
	const struct taken *t = (const struct taken *)self;
	PyObject *shape = PyList_New(0);

	(void)unused;
	for (int32_t d = 0; shape && d < t->tensor.ndim; d++) {
		PyObject *n = PyLong_FromLongLong(t->tensor.shape[d]);

		PyList_Append(shape, n);
		Py_XDECREF(n);
	}
	return Py_BuildValue("{s(ii)s(ii)sNsKsi}", "device", t->tensor.device.type,
			     t->tensor.device.id, "dtype", t->tensor.dtype.code,
			     t->tensor.dtype.bits, "shape", shape, "address",
			     (unsigned long long)(uintptr_t)t->tensor.data, "read_only",
			     t->versioned && t->versioned->flags & DLPACK_FLAG_READ_ONLY);
}

static PyMethodDef taken_methods[] = {
	{"read", taken_read, METH_VARARGS, "read(stream, usec=0, gated=False): a Read"},
	{"drop", taken_drop, METH_VARARGS, "drop(elsewhere=False)"},
	{"view", taken_view, METH_O, NULL},
	{0},
};
static PyGetSetDef taken_getset[] = {{"about", taken_about, NULL, "a dict", NULL}, {0}};
static PyType_Slot taken_slots[] = {{Py_tp_dealloc, taken_dealloc},
				    {Py_tp_methods, taken_methods},
				    {Py_tp_getset, taken_getset},
				    {0}};
static PyType_Spec taken_spec = {.name = "reader.Taken",
				 .basicsize = sizeof(struct taken),
				 .flags = Py_TPFLAGS_DEFAULT,
				 .slots = taken_slots};

/* The stand-in. */

static PyObject *mark(PyObject *module, PyObject *args)
{
	(void)module;
	return launch(NULL, 0, args);
}

static PyObject *stream(PyObject *module, PyObject *unused)
{
	void *handle = NULL;

	(void)module;
	(void)unused;
	cudaStreamCreateWithFlags(&handle, 1);
	return PyLong_FromVoidPtr(handle);
}

static PyObject *synchronize(PyObject *module, PyObject *handle)
{
	void *s = PyLong_AsVoidPtr(handle);

	(void)module;
	Py_BEGIN_ALLOW_THREADS;
	cudaStreamSynchronize(s);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyObject *destroy(PyObject *module, PyObject *handle)
{
	void *s = PyLong_AsVoidPtr(handle);

	(void)module;
	Py_BEGIN_ALLOW_THREADS;
	cudaStreamSynchronize(s);
	cudaStreamDestroy(s);
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyObject *open_gate(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	sem_post(&gate);
	Py_RETURN_NONE;
}

static PyObject *set_device(PyObject *module, PyObject *n)
{
	(void)module;
	return PyLong_FromLong(cudaSetDevice((int)PyLong_AsLong(n)));
}

static PyObject *calls(PyObject *module, PyObject *args)
{
	const char *name;

	(void)module;
	if (!PyArg_ParseTuple(args, "s", &name))
		return NULL;
	return PyLong_FromUnsignedLongLong(standin_calls(name));
}

static PyObject *fail(PyObject *module, PyObject *args)
{
	const char *name;
	unsigned nth, times;
	int code;

	(void)module;
	if (!PyArg_ParseTuple(args, "sIIi", &name, &nth, &times, &code))
		return NULL;
	standin_fail(name, nth, times, code);
	Py_RETURN_NONE;
}

static PyObject *delay(PyObject *module, PyObject *usec)
{
	(void)module;
	standin_delay_us((unsigned)PyLong_AsUnsignedLong(usec));
	Py_RETURN_NONE;
}

static PyObject *has_context(PyObject *module, PyObject *n)
{
	(void)module;
	return PyBool_FromLong(standin_has_context((int)PyLong_AsLong(n)));
}

static PyObject *figures(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	return Py_BuildValue("{sKsKsi}", "registered",
			     (unsigned long long)standin_registered_bytes(), "pageable",
			     (unsigned long long)standin_pageable(), "last_error",
			     standin_last_error());
}

/* Ends the process unless all was given back. */
static PyObject *reset(PyObject *module, PyObject *unused)
{
	(void)module;
	(void)unused;
	Py_BEGIN_ALLOW_THREADS;
	standin_reset();
	Py_END_ALLOW_THREADS;
	Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
	{"take", take, METH_O, "take(capsule): a Taken"},
	{"mark", mark, METH_VARARGS, "mark(stream, usec=0, gated=False): a Read of nothing"},
	{"stream", stream, METH_NOARGS, NULL},
	{"sync", synchronize, METH_O, NULL},
	{"destroy", destroy, METH_O, NULL},
	{"open_gate", open_gate, METH_NOARGS, NULL},
	{"set_device", set_device, METH_O, NULL},
	{"calls", calls, METH_VARARGS, NULL},
	{"fail", fail, METH_VARARGS, "fail(name, nth, times, code)"},
	{"delay", delay, METH_O, NULL},
	{"has_context", has_context, METH_O, NULL},
	{"figures", figures, METH_NOARGS, NULL},
	{"reset", reset, METH_NOARGS, NULL},
	{0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "reader", .m_size = -1,
					.m_methods = functions};

PyMODINIT_FUNC PyInit_reader(void);
PyMODINIT_FUNC PyInit_reader(void)
{
	sem_init(&gate, 0, 0);
	taken_type = (PyTypeObject *)PyType_FromSpec(&taken_spec);
	read_type = (PyTypeObject *)PyType_FromSpec(&read_spec);
	return taken_type && read_type ? PyModule_Create(&definition) : NULL;
}
