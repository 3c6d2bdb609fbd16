/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/batch.h"

#include <stddef.h>
#include <string.h>

struct batch {
	PyObject_HEAD PyObject *tensors; /* dict */
	bool plain;                      /* made from a dict: there are no figures */
	struct stk_batch_info info;
	struct lease *lease; /* NULL: what is below is there or never will be */
	struct maker *maker;
	PyObject *numbers[LEASE_NUMBERS]; /* by enum lease_numbers; NULL: not asked for yet */
	PyObject *state;                  /* NULL: not asked for yet */
};

static PyTypeObject *type;

struct maker *maker_ref(struct maker *maker)
{
	maker->refs++;
	return maker;
}

struct maker *maker_unref(struct maker *maker)
{
	if (!maker || --maker->refs)
		return NULL;
	Py_XDECREF(maker->from_capsule);
	Py_XDECREF(maker->from_tensor);
	Py_XDECREF(maker->as_bool);
	free(maker);
	return NULL;
}

static PyObject *make(const struct maker *maker, const struct view *view)
{
	PyObject *made;

	if (!maker->from_capsule) {
		made = tensor_new(view);
		return maker->from_tensor ? ext_call(maker->from_tensor, made) : made;
	}
	made = ext_call(maker->from_capsule, tensor_capsule(view, !!maker->as_bool));
	return view->element == STK_BOOL && maker->as_bool ? ext_call(maker->as_bool, made) : made;
}

static struct batch *new_batch(void)
{
	struct batch *b = (struct batch *)PyType_GenericAlloc(type, 0);

	if (b)
		b->tensors = PyDict_New();
	if (b && !b->tensors)
		Py_CLEAR(b);
	return b;
}

static int make_tensors(struct batch *b, PyObject *const *names, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct view view;
		PyObject *tensor;
		int r;

		if (!lease_view(b->lease, i, b->maker->read_only, &view))
			return 0; /* fewer than the client was told: those that are there */
		tensor = make(b->maker, &view);
		if (!tensor)
			return -1;
		r = PyDict_SetItem(b->tensors, names[i], tensor);
		Py_DECREF(tensor);
		if (r < 0)
			return r;
	}
	return 0;
}

static PyObject *state_of(const struct taken *taken)
{
	char state[STK_STATE_MAX];
	int n = taken_state(taken, state, sizeof(state));

	return n < 0 ? ext_raise(n, "state") : PyBytes_FromStringAndSize(state, n);
}

PyObject *batch_new(const struct taken *taken, struct lease_count *count, struct maker *maker,
		    PyObject *const *names, uint32_t n)
{
	struct lease *lease = lease_new(taken, count, maker->copy);
	struct batch *b;

	if (!lease)
		return PyErr_NoMemory();
	b = new_batch();
	if (!b) {
		lease_unref(lease);
		return NULL;
	}
	b->lease = lease;
	b->maker = maker_ref(maker);
	b->info.size = sizeof(b->info);
	taken_info(taken, &b->info);
	if (make_tensors(b, names, n) < 0) {
		Py_DECREF(b);
		return NULL;
	}
	if (maker->copy) {
		b->state = state_of(taken); /* the descriptor is the next batch's after this */
		lease_settle(lease);
		if (!b->state)
			Py_CLEAR(b);
	}
	return (PyObject *)b;
}

static int batch_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct batch *)self)->tensors);
	for (int i = 0; i < LEASE_NUMBERS; i++)
		Py_VISIT(((struct batch *)self)->numbers[i]);
	return 0;
}

static int batch_clear(PyObject *self)
{
	struct batch *b = (struct batch *)self;

	Py_CLEAR(b->tensors);
	for (int i = 0; i < LEASE_NUMBERS; i++)
		Py_CLEAR(b->numbers[i]);
	Py_CLEAR(b->state);
	return 0;
}

static void batch_dealloc(PyObject *self)
{
	struct batch *b = (struct batch *)self;

	PyObject_GC_UnTrack(self);
	batch_clear(self);
	lease_unref(b->lease);
	maker_unref(b->maker);
	ext_free(self);
}

/* Batch({...}): what default converters make of a mapping. */
static PyObject *batch_tp_new(PyTypeObject *subtype, PyObject *args, PyObject *kwargs)
{
	PyObject *mapping = NULL;
	struct batch *b;

	(void)subtype;
	if (kwargs && PyDict_Size(kwargs)) {
		PyErr_SetString(PyExc_TypeError, "stoker.Batch() takes one mapping");
		return NULL;
	}
	if (!PyArg_ParseTuple(args, "|O:Batch", &mapping))
		return NULL;
	b = new_batch();
	if (!b)
		return NULL;
	b->plain = true;
	if (mapping && PyDict_Update(b->tensors, mapping) < 0)
		Py_CLEAR(b);
	return (PyObject *)b;
}

/* Number attributes. */
struct figure {
	size_t offset, size;
};
#define FIGURE(name)                                                                               \
	&(struct figure)                                                                           \
	{                                                                                          \
		offsetof(struct stk_batch_info, name), sizeof(((struct stk_batch_info *)0)->name)  \
	}

static bool has_figures(const struct batch *b, const char *name)
{
	if (!b->plain)
		return true;
	PyErr_Format(PyExc_AttributeError,
		     "%s: this batch was made from a dict, not by a stoker.Loader", name);
	return false;
}

static PyObject *get_figure(PyObject *self, void *closure)
{
	const struct batch *b = (const struct batch *)self;
	const struct figure *f = closure;
	const char *at = (const char *)&b->info + f->offset;

	if (!has_figures(b, "figures"))
		return NULL;
	if (f->size == sizeof(uint32_t))
		return PyLong_FromUnsignedLong(*(const uint32_t *)at);
	return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
}

static PyObject *get_ends_epoch(PyObject *self, void *unused)
{
	const struct batch *b = (const struct batch *)self;

	(void)unused;
	return has_figures(b, "ends_epoch") ? PyBool_FromLong(b->info.ends_epoch) : NULL;
}

static PyObject *get_last_micro(PyObject *self, void *unused)
{
	const struct batch *b = (const struct batch *)self;

	(void)unused;
	return has_figures(b, "last_micro") ? PyBool_FromLong(b->info.last_micro) : NULL;
}

/* closure: of enum lease_numbers. None: only packed rows have it. */
static PyObject *get_numbers(PyObject *self, void *closure)
{
	struct batch *b = (struct batch *)self;
	intptr_t which = (intptr_t)closure;
	struct view view;

	if (!has_figures(b, lease_numbers_name((enum lease_numbers)which)))
		return NULL;
	if (!b->numbers[which] && b->lease &&
	    lease_view_numbers(b->lease, &b->info, (enum lease_numbers)which, b->maker->read_only,
			       &view)) {
		b->numbers[which] = make(b->maker, &view);
		lease_unref(view.lease);
		if (!b->numbers[which])
			return NULL;
	}
	return Py_NewRef(b->numbers[which] ? b->numbers[which] : Py_None);
}

static PyObject *get_state(PyObject *self, void *unused)
{
	struct batch *b = (struct batch *)self;

	(void)unused;
	if (!has_figures(b, "state"))
		return NULL;
	if (!b->state && !b->lease) {
		PyErr_SetString(PyExc_AttributeError, "state: this batch is an example");
		return NULL;
	}
	if (!b->state)
		b->state = state_of(&b->lease->taken);
	return Py_XNewRef(b->state);
}

const struct stk_batch_info *batch_info(PyObject *self)
{
	return &((struct batch *)self)->info;
}

int batch_copy_state(PyObject *self, void *state, size_t room)
{
	return taken_state(&((struct batch *)self)->lease->taken, state, room);
}

PyObject *batch_state(PyObject *self)
{
	if (!PyObject_TypeCheck(self, type)) {
		PyErr_Format(PyExc_TypeError, "a batch of a stoker.Loader is needed, not %R",
			     (PyObject *)Py_TYPE(self));
		return NULL;
	}
	return get_state(self, NULL);
}

static PyObject *getitem(PyObject *self, PyObject *key)
{
	PyObject *value = PyDict_GetItemWithError(((struct batch *)self)->tensors, key);

	if (!value && !PyErr_Occurred())
		PyErr_SetObject(PyExc_KeyError, key);
	Py_XINCREF(value);
	return value;
}

static Py_ssize_t length(PyObject *self)
{
	return PyDict_Size(((struct batch *)self)->tensors);
}

static int contains(PyObject *self, PyObject *key)
{
	return PyDict_Contains(((struct batch *)self)->tensors, key);
}

static PyObject *iter(PyObject *self)
{
	return PyObject_GetIter(((struct batch *)self)->tensors);
}

static PyObject *keys(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyObject_CallMethod(((struct batch *)self)->tensors, "keys", NULL);
}

static PyObject *values(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyObject_CallMethod(((struct batch *)self)->tensors, "values", NULL);
}

static PyObject *items(PyObject *self, PyObject *unused)
{
	(void)unused;
	return PyObject_CallMethod(((struct batch *)self)->tensors, "items", NULL);
}

static PyObject *get(PyObject *self, PyObject *args)
{
	PyObject *key, *fallback = Py_None, *value;

	if (!PyArg_ParseTuple(args, "O|O:get", &key, &fallback))
		return NULL;
	value = PyDict_GetItemWithError(((struct batch *)self)->tensors, key);
	if (!value && PyErr_Occurred())
		return NULL;
	return Py_NewRef(value ? value : fallback);
}

static PyObject *repr(PyObject *self)
{
	struct batch *b = (struct batch *)self;
	PyObject *names = PyDict_Keys(b->tensors), *text;

	if (!names)
		return NULL;
	if (b->plain)
		text = PyUnicode_FromFormat("stoker.Batch(%R)", names);
	else
		text = PyUnicode_FromFormat("stoker.Batch(%R, epoch=%llu, step=%llu, rows=%u)",
					    names, (unsigned long long)b->info.epoch,
					    (unsigned long long)b->info.step, b->info.rows);
	Py_DECREF(names);
	return text;
}

/* Elsewhere it is a plain one. */
static PyObject *reduce(PyObject *self, PyObject *unused)
{
	(void)unused;
	return Py_BuildValue("(O(O))", (PyObject *)type, ((struct batch *)self)->tensors);
}

/* to() and pin() need the framework: they are Python, and rare. */
static PyObject *delegate(const char *name, PyObject *self, PyObject *args, PyObject *kwargs)
{
	PyObject *module = PyImport_ImportModule("stoker._device"), *function = NULL;
	PyObject *head = NULL, *all = NULL, *result = NULL;

	if (module)
		function = PyObject_GetAttrString(module, name);
	if (function)
		head = PyTuple_Pack(1, self);
	if (head)
		all = PySequence_Concat(head, args);
	if (all)
		result = PyObject_Call(function, all, kwargs);
	Py_XDECREF(module);
	Py_XDECREF(function);
	Py_XDECREF(head);
	Py_XDECREF(all);
	return result;
}

static PyObject *to(PyObject *self, PyObject *args, PyObject *kwargs)
{
	return delegate("to", self, args, kwargs);
}

static PyObject *pin(PyObject *self, PyObject *args, PyObject *kwargs)
{
	return delegate("pin", self, args, kwargs);
}

/* The optional arguments of _moved() and _example(), from the one after `first` on. */
static void take_numbers(struct batch *b, PyObject *args, Py_ssize_t first)
{
	for (Py_ssize_t i = 0; i < LEASE_NUMBERS && first + i < PyTuple_Size(args); i++)
		b->numbers[i] = Py_NewRef(PyTuple_GetItem(args, first + i));
}

static PyObject *record_stream(PyObject *self, PyObject *args, PyObject *kwargs)
{
	return delegate("record_stream", self, args, kwargs);
}

/* _use_on(stream, device): see lease_use(). False: there is no pipeline, or to another device. */
static PyObject *use_on(PyObject *self, PyObject *args)
{
	const struct batch *b = (const struct batch *)self;
	PyObject *stream;
	void *handle;
	int device;

	if (!PyArg_ParseTuple(args, "Oi:_use_on", &stream, &device))
		return NULL;
	handle = PyLong_AsVoidPtr(stream);
	if (PyErr_Occurred())
		return NULL;
	if (!b->lease || (device >= 0 && device != b->lease->taken.device))
		Py_RETURN_FALSE;
	return tensor_use(b->lease, handle);
}

/* _moved(tensors, sample_ids, lengths, ...): the same batch with other tensors and no slot. */
static PyObject *moved(PyObject *self, PyObject *args)
{
	const struct batch *from = (const struct batch *)self;
	PyObject *tensors = PyTuple_Size(args) ? PyTuple_GetItem(args, 0) : NULL;
	struct batch *b;

	if (!tensors || !PyDict_Check(tensors)) {
		PyErr_SetString(PyExc_TypeError, "_moved: a dict is needed");
		return NULL;
	}
	b = new_batch();
	if (!b)
		return NULL;
	b->plain = from->plain;
	b->info = from->info;
	if (!b->plain) {
		take_numbers(b, args, 1);
		b->state = from->lease || from->state ? get_state(self, NULL) : NULL;
	}
	if (PyDict_Update(b->tensors, tensors) < 0 || PyErr_Occurred())
		Py_CLEAR(b);
	return (PyObject *)b;
}

static PyObject *example(PyObject *unused, PyObject *args);

#define WITH_KEYWORDS(function) (PyCFunction)(void (*)(void))(function)

static PyMethodDef methods[] = {
	{"keys", keys, METH_NOARGS, "keys($self, /)\n--\n\nNames of the tensors."},
	{"values", values, METH_NOARGS, "values($self, /)\n--\n\nThe tensors."},
	{"items", items, METH_NOARGS, "items($self, /)\n--\n\nNames and tensors."},
	{"get", get, METH_VARARGS,
	 "get($self, key, default=None, /)\n--\n\nA tensor, or the default."},
	{"to", WITH_KEYWORDS(to), METH_VARARGS | METH_KEYWORDS,
	 "to($self, device, non_blocking=False)\n--\n\n"
	 "The batch with its tensors on another device; on the same device the batch itself."},
	{"pin", WITH_KEYWORDS(pin), METH_VARARGS | METH_KEYWORDS,
	 "pin($self, /)\n--\n\nThe batch with its tensors in page-locked memory; without CUDA the "
	 "batch "
	 "itself."},
	{"pin_memory", WITH_KEYWORDS(pin), METH_VARARGS | METH_KEYWORDS,
	 "pin_memory($self, /)\n--\n\nThe same as pin()."},
	{"record_stream", WITH_KEYWORDS(record_stream), METH_VARARGS | METH_KEYWORDS,
	 "record_stream($self, stream)\n--\n\n"
	 "Another stream reads the batch: it waits for the copy, and the memory is kept until the "
	 "work "
	 "is done that is on it when the last tensor goes."},
	{"_use_on", use_on, METH_VARARGS, NULL},
	{"_moved", moved, METH_VARARGS, NULL},
	{"_example", example, METH_VARARGS | METH_STATIC, NULL},
	{"__reduce__", reduce, METH_NOARGS, NULL},
	{0},
};

#define NUMBER(name, member, doc)                                                                  \
	{                                                                                          \
		name, get_figure, NULL, doc, FIGURE(member)                                        \
	}

static PyGetSetDef getset[] = {
	NUMBER("epoch", epoch, "epoch, from 0"),
	NUMBER("step", step, "step of the epoch, from 0"),
	NUMBER("micro", micro, "micro-batch of the step, from 0"),
	{"ends_epoch", get_ends_epoch, NULL, "whether the epoch has no batch behind it", NULL},
	{"last_micro", get_last_micro, NULL, "whether it is the step's last micro-batch", NULL},
	NUMBER("shape_class", shape_class, "index into Loader.shapes()"),
	NUMBER("edge", edge, "bucket edge of the shape class"),
	NUMBER("rows", rows, "rows, masked ones included"),
	NUMBER("rows_real", rows_real, "rows that hold a sample"),
	NUMBER("rows_bad", rows_bad, "rows that were masked because of their bytes"),
	NUMBER("width", width, "padded length"),
	NUMBER("max_seqlen", max_length, "length of the longest row"),
	NUMBER("real_tokens", real_tokens, "tokens without padding"),
	NUMBER("padded_tokens", padded_tokens, "tokens with padding"),
	NUMBER("slot", slot,
	       "where it lies: batches of one slot and shape have the same addresses"),
	NUMBER("global_tokens", global_tokens,
	       "label tokens of all ranks in this optimiser step: divide a summed loss by it"),
	NUMBER("ready_ns", ready_ns, "when it was published, by CLOCK_MONOTONIC"),
	{"sample_ids", get_numbers, NULL,
	 "[rows] ids of the samples, -1 for a masked row; packed: of the segments",
	 (void *)LEASE_SAMPLE_IDS},
	{"lengths", get_numbers, NULL, "[rows] lengths without padding; packed: of the segments",
	 (void *)LEASE_LENGTHS},
	{"row_first", get_numbers, NULL,
	 "[rows + 1] packed: row r has segments row_first[r] to row_first[r + 1] - 1; else None",
	 (void *)LEASE_ROW_FIRST},
	{"segment_from", get_numbers, NULL,
	 "[segments] packed: element of its sample at which each begins; else None",
	 (void *)LEASE_SEGMENT_FROM},
	{"state", get_state, NULL, "bytes: where to continue after this batch", NULL},
	{0},
};

static int set_figure(struct batch *b, const char *name, PyObject *value)
{
	unsigned long long number = PyLong_AsUnsignedLongLong(value);

	if (PyErr_Occurred())
		return -1;
	for (const PyGetSetDef *g = getset; g->name; g++) {
		const struct figure *f = g->closure;

		if (g->get != get_figure || strcmp(g->name, name))
			continue;
		if (f->size == sizeof(uint32_t))
			*(uint32_t *)((char *)&b->info + f->offset) = (uint32_t)number;
		else
			*(uint64_t *)((char *)&b->info + f->offset) = number;
		return 0;
	}
	PyErr_Format(PyExc_AttributeError, "a batch has no figure %s", name);
	return -1;
}

/* _example(tensors, figures, sample_ids, ...): a batch that no loader gave, for compilers and tests. */
static PyObject *example(PyObject *unused, PyObject *args)
{
	PyObject *tensors, *figures, *name, *value, *rest[LEASE_NUMBERS];
	Py_ssize_t at = 0;
	struct batch *b;
	int r;

	(void)unused;
	if (!PyArg_ParseTuple(args, "O!O!OOOO:_example", &PyDict_Type, &tensors, &PyDict_Type,
			      &figures, &rest[0], &rest[1], &rest[2], &rest[3]))
		return NULL;
	b = new_batch();
	if (!b)
		return NULL;
	b->info.last_micro = 1;
	take_numbers(b, args, 2);
	r = PyDict_Update(b->tensors, tensors);
	while (r == 0 && PyDict_Next(figures, &at, &name, &value)) {
		PyObject *bytes = PyUnicode_AsASCIIString(name);

		r = bytes ? set_figure(b, PyBytes_AsString(bytes), value) : -1;
		Py_XDECREF(bytes);
	}
	if (r < 0)
		Py_CLEAR(b);
	return (PyObject *)b;
}

static PyType_Slot slots[] = {
	{Py_tp_new, batch_tp_new},
	{Py_tp_dealloc, batch_dealloc},
	{Py_tp_traverse, batch_traverse},
	{Py_tp_clear, batch_clear},
	{Py_tp_repr, repr},
	{Py_tp_iter, iter},
	{Py_tp_methods, methods},
	{Py_tp_getset, getset},
	{Py_mp_subscript, getitem},
	{Py_mp_length, length},
	{Py_sq_contains, contains},
	{Py_tp_doc,
	 "Batch(mapping)\n--\n\n"
	 "A read-only mapping from field name to tensor. The memory of a Loader's batch is "
	 "given back when the batch and all its tensors are gone; clone() what you keep."},
	{0},
};

static PyType_Spec spec = {
	.name = "stoker._stoker.Batch",
	.basicsize = sizeof(struct batch),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = slots,
};

int ext_add_batch(PyObject *module)
{
	type = ext_add_type(module, &spec);
	return type ? 0 : -1;
}
