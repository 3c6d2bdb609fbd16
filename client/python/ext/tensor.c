/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/tensor.h"

#include <errno.h>
#include <string.h>

struct tensor {
	PyObject_HEAD struct view view;
	Py_ssize_t shape[STK_DIMS_MAX], strides[STK_DIMS_MAX];
};

static PyTypeObject *type;

/* Names as in the stream keys, and formats of the struct module; NULL: bytes that Python has no word for. */
static const struct {
	const char *name, *format;
} elements[] = {
	[STK_BOOL] = {"bool", "?"},       [STK_U8] = {"u8", "B"},
	[STK_I8] = {"i8", "b"},           [STK_U16] = {"u16", "H"},
	[STK_I16] = {"i16", "h"},         [STK_U32] = {"u32", "I"},
	[STK_I32] = {"i32", "i"},         [STK_U64] = {"u64", "Q"},
	[STK_I64] = {"i64", "q"},         [STK_F16] = {"f16", "e"},
	[STK_BF16] = {"bf16", "H"},       [STK_F32] = {"f32", "f"},
	[STK_F64] = {"f64", "d"},         [STK_F8_E4M3] = {"f8_e4m3", "B"},
	[STK_F8_E5M2] = {"f8_e5m2", "B"}, [STK_C64] = {"c64", "Zf"},
};

PyObject *tensor_new(const struct view *view)
{
	struct tensor *t = (struct tensor *)PyType_GenericAlloc(type, 0);
	Py_ssize_t stride = (Py_ssize_t)view_item_size(view);

	if (!t)
		return NULL;
	t->view = *view;
	lease_ref(view->lease);
	for (uint32_t d = view->ndim; d-- > 0;) {
		t->shape[d] = (Py_ssize_t)view->shape[d];
		t->strides[d] = stride;
		stride *= t->shape[d];
	}
	return (PyObject *)t;
}

static void tensor_dealloc(PyObject *self)
{
	lease_unref(((struct tensor *)self)->view.lease);
	ext_free(self);
}

/* A capsule that a consumer took has another name; only one that nobody took ends here. */
static void drop_plain(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor")) {
		struct dlpack_managed *m = PyCapsule_GetPointer(capsule, "dltensor");

		m->deleter(m);
	}
}

static void drop_versioned(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
		struct dlpack_managed_versioned *m =
			PyCapsule_GetPointer(capsule, "dltensor_versioned");

		m->deleter(m);
	}
}

PyObject *tensor_capsule(const struct view *view, bool bool_as_u8)
{
	struct dlpack_managed *m = lease_export(view, bool_as_u8);
	PyObject *capsule;

	if (!m)
		return PyErr_NoMemory();
	capsule = PyCapsule_New(m, "dltensor", drop_plain);
	if (!capsule)
		m->deleter(m);
	return capsule;
}

static PyObject *versioned_capsule(const struct view *view)
{
	struct dlpack_managed_versioned *m = lease_export_versioned(view);
	PyObject *capsule;

	if (!m)
		return PyErr_NoMemory();
	capsule = PyCapsule_New(m, "dltensor_versioned", drop_versioned);
	if (!capsule)
		m->deleter(m);
	return capsule;
}

/* Has the consumer said that it knows DLPack 1? */
static int wants_versioned(PyObject *max_version)
{
	PyObject *major;
	long n;

	if (!max_version || max_version == Py_None)
		return 0;
	major = PySequence_GetItem(max_version, 0);
	n = major ? PyLong_AsLong(major) : -1;
	Py_XDECREF(major);
	return PyErr_Occurred() ? -1 : n >= DLPACK_MAJOR;
}

PyObject *tensor_use(struct lease *lease, void *stream)
{
	char text[1024];
	int r = lease_use(lease, stream);

	if (r >= 0)
		return PyBool_FromLong(r == 0);
	if (r == -ECHILD)
		return ext_raise(r, "this batch belongs to the process that forked");
	cuda_calls->last_error(lease->taken.cuda, text, sizeof(text));
	return ext_raise(-ENODEV, text);
}

/* The consumer's stream as DLPack numbers them. 0, or -1: raised. */
static int order(const struct view *view, PyObject *stream)
{
	long long n = 1; /* None: the legacy default stream */
	PyObject *used;

	if (view->device < 0)
		return 0;
	if (stream && stream != Py_None)
		n = PyLong_AsLongLong(stream);
	if (PyErr_Occurred())
		return -1;
	if (n < -1 || n == 0) {
		PyErr_Format(PyExc_BufferError,
			     "stoker.Tensor: stream=%lld; 1 is the legacy default stream, 2 the "
			     "per-thread one, -1 none, and above 2 are handles",
			     n);
		return -1;
	}
	used = tensor_use(view->lease, n == -1 ? STK_CUDA_NO_STREAM : (void *)(uintptr_t)n);
	Py_XDECREF(used);
	return used ? 0 : -1;
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *unused)
{
	const struct view *view = &((struct tensor *)self)->view;

	(void)unused;
	return view->device < 0 ? Py_BuildValue("(ii)", DLPACK_CPU, 0)
				: Py_BuildValue("(ii)", DLPACK_CUDA, view->device);
}

/* Does the consumer want it where it is? */
static bool is_here(PyObject *self, PyObject *device)
{
	PyObject *here;
	int same;

	if (!device || device == Py_None)
		return true;
	here = tensor_dlpack_device(self, NULL);
	same = here ? PyObject_RichCompareBool(here, device, Py_EQ) : -1;
	if (same == 0)
		PyErr_Format(PyExc_BufferError,
			     "stoker.Tensor: on device %R, and is not copied to %R", here, device);
	Py_XDECREF(here);
	return same > 0;
}

static PyObject *tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"stream", "max_version", "dl_device", "copy", NULL};
	const struct view *view = &((struct tensor *)self)->view;
	PyObject *stream = NULL, *max_version = NULL, *device = NULL, *copy = NULL;
	int versioned;

	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", names, &stream,
					 &max_version, &device, &copy))
		return NULL;
	if (copy == Py_True) {
		PyErr_SetString(PyExc_BufferError, "stoker.Tensor: __dlpack__ does not copy");
		return NULL;
	}
	versioned = wants_versioned(max_version);
	if (versioned < 0 || !is_here(self, device) || order(view, stream) < 0)
		return NULL;
	return versioned ? versioned_capsule(view) : tensor_capsule(view, false);
}

static int tensor_getbuffer(PyObject *self, Py_buffer *buffer, int flags)
{
	struct tensor *t = (struct tensor *)self;

	if (t->view.device >= 0) {
		PyErr_SetString(PyExc_BufferError, "stoker.Tensor: on a device; use __dlpack__()");
		return -1;
	}
	if ((flags & PyBUF_WRITABLE) && t->view.read_only) {
		PyErr_SetString(PyExc_BufferError, "stoker.Tensor: read-only");
		return -1;
	}
	*buffer = (Py_buffer){
		.buf = t->view.data,
		.len = (Py_ssize_t)t->view.size,
		.itemsize = (Py_ssize_t)view_item_size(&t->view),
		.readonly = t->view.read_only,
		.ndim = (int)t->view.ndim,
		.obj = Py_NewRef(self),
	};
	if (flags & PyBUF_FORMAT)
		buffer->format = (char *)elements[t->view.element].format;
	if (flags & PyBUF_ND)
		buffer->shape = t->shape;
	if ((flags & PyBUF_STRIDES) == PyBUF_STRIDES)
		buffer->strides = t->strides;
	return 0;
}

static PyObject *get_shape(PyObject *self, void *unused)
{
	const struct tensor *t = (const struct tensor *)self;
	PyObject *shape = PyTuple_New((Py_ssize_t)t->view.ndim);

	(void)unused;
	for (uint32_t d = 0; shape && d < t->view.ndim; d++)
		PyTuple_SetItem(shape, (Py_ssize_t)d, PyLong_FromSsize_t(t->shape[d]));
	return shape;
}

static PyObject *get_dtype(PyObject *self, void *unused)
{
	(void)unused;
	return PyUnicode_FromString(elements[((struct tensor *)self)->view.element].name);
}

static PyObject *get_nbytes(PyObject *self, void *unused)
{
	(void)unused;
	return PyLong_FromUnsignedLongLong(((struct tensor *)self)->view.size);
}

static PyObject *get_readonly(PyObject *self, void *unused)
{
	(void)unused;
	return PyBool_FromLong(((struct tensor *)self)->view.read_only);
}

static PyObject *tensor_repr(PyObject *self)
{
	PyObject *shape = get_shape(self, NULL), *text;

	if (!shape)
		return NULL;
	text = PyUnicode_FromFormat("stoker.Tensor(shape=%R, dtype='%s')", shape,
				    elements[((struct tensor *)self)->view.element].name);
	Py_DECREF(shape);
	return text;
}

static PyMethodDef methods[] = {
	{"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS,
	 "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
	 "The tensor as a DLPack capsule: nothing is copied, and the capsule's consumer keeps the "
	 "batch's memory until it lets go."},
	{"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
	 "__dlpack_device__($self, /)\n--\n\n(1, 0): memory of the host; (2, n): CUDA device n."},
	{0},
};

static PyGetSetDef getset[] = {
	{"shape", get_shape, NULL, "sizes of the dimensions; C order, contiguous", NULL},
	{"dtype", get_dtype, NULL, "element type by its name in stream keys", NULL},
	{"nbytes", get_nbytes, NULL, "bytes of all elements", NULL},
	{"readonly", get_readonly, NULL, "whether writing is refused", NULL},
	{0},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, tensor_dealloc},
	{Py_tp_repr, tensor_repr},
	{Py_tp_methods, methods},
	{Py_tp_getset, getset},
	{Py_bf_getbuffer, tensor_getbuffer},
	{Py_tp_doc, "One tensor of a batch: DLPack and the buffer protocol, without a copy."},
	{0},
};

static PyType_Spec spec = {
	.name = "stoker._stoker.Tensor",
	.basicsize = sizeof(struct tensor),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = slots,
};

int ext_add_tensor(PyObject *module)
{
	type = ext_add_type(module, &spec);
	return type ? 0 : -1;
}
