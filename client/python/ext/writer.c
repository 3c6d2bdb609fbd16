/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker._stoker.Writer: rows of bytes to a set of shards, by the writer that `stoker write` uses.
 * One thread at a time, with the GIL; memory is bounded by that writer.
 */
#include "client/python/ext/ext.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "tools/stoker/shardwriter.h"

struct writer {
	PyObject_HEAD struct shardwriter *writer; /* NULL: finished or abandoned */
	struct shardwriter_opts opts;
	struct field *fields;
	size_t nfields;
	PyObject *dir; /* bytes */
};

static PyTypeObject *type;

static PyObject *raise_err(int r, const struct stk_err *err)
{
	return ext_raise(r, err->text);
}

static int parse_shape(struct field *field, PyObject *shape)
{
	Py_ssize_t n = PySequence_Size(shape);

	if (n < 0)
		return -1;
	if (n > STKD_FIELD_DIMS_MAX) {
		PyErr_Format(PyExc_ValueError, "field \"%s\": %zd dimensions, at most %d",
			     field->name, n, STKD_FIELD_DIMS_MAX);
		return -1;
	}
	field->ndims = (uint32_t)n;
	field->count = 1;
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *item = PySequence_GetItem(shape, i);
		unsigned long long size = item ? PyLong_AsUnsignedLongLong(item) : 0;

		Py_XDECREF(item);
		if (PyErr_Occurred())
			return -1;
		field->shape[i] = size;
		if (stk_mul_overflow(field->count, (uint64_t)size, &field->count)) {
			PyErr_Format(PyExc_ValueError, "field \"%s\": shape is too large",
				     field->name);
			return -1;
		}
	}
	return 0;
}

/* (name, dtype, ragged, text, shape of a sample or of one ragged element) */
static int parse_field(struct writer *w, PyObject *item)
{
	struct field *field = &w->fields[w->nfields];
	const char *name, *dtype;
	int ragged, text;
	PyObject *shape;
	struct stk_err err = {0};

	if (!PyArg_ParseTuple(item, "ssppO:field", &name, &dtype, &ragged, &text, &shape))
		return -1;
	if (!*name) {
		PyErr_SetString(PyExc_ValueError, "a field has an empty name");
		return -1;
	}
	if (field_dtype(dtype, &field->dtype, &err) < 0) {
		ext_raise(-EINVAL, err.text);
		return -1;
	}
	field->kind = text ? FIELD_TEXT : ragged ? FIELD_RAGGED : FIELD_FIXED;
	field->name = strdup(name);
	if (!field->name) {
		PyErr_NoMemory();
		return -1;
	}
	w->nfields++;
	return parse_shape(field, shape);
}

static int parse_fields(struct writer *w, PyObject *list)
{
	Py_ssize_t n = PyList_Size(list);

	if (n < 1 || n > STKD_SHARD_FIELDS_MAX) {
		PyErr_Format(PyExc_ValueError, "%zd fields, 1 to %d are possible", n,
			     STKD_SHARD_FIELDS_MAX);
		return -1;
	}
	w->fields = calloc((size_t)n, sizeof(*w->fields));
	if (!w->fields) {
		PyErr_NoMemory();
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		if (parse_field(w, PyList_GetItem(list, i)) < 0)
			return -1;
	return 0;
}

static PyObject *writer_new(PyTypeObject *subtype, PyObject *args, PyObject *kwargs)
{
	static char *names[] = {"dir", "fields", "force", "samples_max", "bytes_max", NULL};
	struct writer *w = (struct writer *)PyType_GenericAlloc(subtype, 0);
	unsigned long long samples_max, bytes_max;
	struct stk_err err = {0};
	PyObject *list;
	int force, r;

	if (!w)
		return NULL;
	if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O!pKK:Writer", names,
					 PyUnicode_FSConverter, &w->dir, &PyList_Type, &list,
					 &force, &samples_max, &bytes_max) ||
	    parse_fields(w, list) < 0) {
		Py_DECREF(w);
		return NULL;
	}
	w->opts = (struct shardwriter_opts){
		.dir = PyBytes_AsString(w->dir),
		.force = force,
		.stop_fd = -1,
		.samples_max = samples_max,
		.bytes_max = bytes_max,
	};
	r = shardwriter_open(&w->opts, w->fields, w->nfields, &w->writer, &err);
	if (r < 0) {
		raise_err(r, &err);
		Py_CLEAR(w);
	}
	return (PyObject *)w;
}

static void writer_dealloc(PyObject *self)
{
	struct writer *w = (struct writer *)self;

	shardwriter_free(w->writer);
	for (size_t i = 0; i < w->nfields; i++)
		free(w->fields[i].name);
	free(w->fields);
	Py_XDECREF(w->dir);
	ext_free(self);
}

static bool is_open(const struct writer *w)
{
	if (!w->writer)
		PyErr_SetString(PyExc_ValueError, "this writer is finished");
	return w->writer;
}

/* Elements along the ragged dimension, 1 for a fixed field; -1: raised. */
static int64_t count_elements(const struct field *f, Py_ssize_t size)
{
	uint64_t element;

	if (stk_mul_overflow(f->count, (uint64_t)stk_dtype_size(f->dtype), &element))
		element = 0;
	if (!field_is_ragged(f) && (uint64_t)size == element)
		return 1;
	if (field_is_ragged(f) && element && (uint64_t)size % element == 0)
		return (int64_t)((uint64_t)size / element);
	PyErr_Format(PyExc_ValueError,
		     "field \"%s\": %zd bytes, %s %llu are needed (shape and dtype of the first "
		     "sample hold for all)",
		     f->name, size, field_is_ragged(f) ? "multiples of" : "",
		     (unsigned long long)element);
	return -1;
}

static int put(struct writer *w, size_t i, const Py_buffer *buffer)
{
	struct column *column = &shardwriter_columns(w->writer)[i];
	uint8_t *to = spool_extend(&column->values, (size_t)buffer->len);

	if (!to && buffer->len) {
		PyErr_NoMemory();
		return -1;
	}
	if (buffer->len)
		memcpy(to, buffer->buf, (size_t)buffer->len);
	column->row_elements = (uint64_t)count_elements(&w->fields[i], buffer->len);
	return 0;
}

/* The row is complete and checked before any of it is put. */
static int put_row(struct writer *w, const Py_buffer *buffers)
{
	struct stk_err err = {0};
	int r;

	for (size_t i = 0; i < w->nfields; i++)
		if (count_elements(&w->fields[i], buffers[i].len) < 0)
			return -1;
	for (size_t i = 0; i < w->nfields; i++)
		if (put(w, i, &buffers[i]) < 0)
			return -1;
	r = shardwriter_row(w->writer, &err);
	if (r < 0)
		raise_err(r, &err);
	return r;
}

/* Whatever failed: what was half put makes the set useless, so it ends here. */
static PyObject *writer_row(PyObject *self, PyObject *row)
{
	struct writer *w = (struct writer *)self;
	Py_buffer buffers[STKD_SHARD_FIELDS_MAX];
	size_t n = 0;
	int r = 0;

	if (!is_open(w))
		return NULL;
	if (!PyList_Check(row) || PyList_Size(row) != (Py_ssize_t)w->nfields) {
		PyErr_Format(PyExc_ValueError, "a list of %zu buffers is needed", w->nfields);
		return NULL;
	}
	for (; n < w->nfields && r == 0; n++) {
		r = PyObject_GetBuffer(PyList_GetItem(row, (Py_ssize_t)n), &buffers[n],
				       PyBUF_C_CONTIGUOUS);
		if (r < 0)
			break;
	}
	if (r == 0)
		r = put_row(w, buffers);
	while (n-- > 0)
		PyBuffer_Release(&buffers[n]);
	if (r < 0) {
		w->writer = shardwriter_free(w->writer);
		return NULL;
	}
	Py_RETURN_NONE;
}

static PyObject *writer_finish(PyObject *self, PyObject *unused)
{
	struct writer *w = (struct writer *)self;
	struct shardwriter_totals totals;
	struct stk_err err = {0};
	int r;

	(void)unused;
	if (!is_open(w))
		return NULL;
	r = shardwriter_finish(w->writer, &err);
	totals = shardwriter_totals(w->writer);
	w->writer = shardwriter_free(w->writer);
	if (r < 0)
		return raise_err(r, &err);
	return Py_BuildValue("{sKsKsKsK}", "samples", (unsigned long long)totals.samples,
			     "elements", (unsigned long long)totals.elements, "shards",
			     (unsigned long long)totals.shards, "bytes",
			     (unsigned long long)totals.bytes);
}

static PyObject *writer_abort(PyObject *self, PyObject *unused)
{
	struct writer *w = (struct writer *)self;

	(void)unused;
	w->writer = shardwriter_free(w->writer);
	Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
	{"row", writer_row, METH_O,
	 "row($self, buffers, /)\n--\n\nOne sample: a buffer for each field."},
	{"finish", writer_finish, METH_NOARGS,
	 "finish($self, /)\n--\n\nPuts the set in place; its totals."},
	{"abort", writer_abort, METH_NOARGS,
	 "abort($self, /)\n--\n\nRemoves everything that was written."},
	{0},
};

static PyType_Slot slots[] = {
	{Py_tp_new, writer_new},
	{Py_tp_dealloc, writer_dealloc},
	{Py_tp_methods, methods},
	{Py_tp_doc, "Writes a set of shards; stoker.write is what to use."},
	{0},
};

static PyType_Spec spec = {
	.name = "stoker._stoker.Writer",
	.basicsize = sizeof(struct writer),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};

int ext_add_writer(PyObject *module)
{
	type = ext_add_type(module, &spec);
	return type ? 0 : -1;
}
