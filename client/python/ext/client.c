/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/client.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

static PyTypeObject *client_type, *epoch_type;
static _Atomic unsigned forks;

static void forked(void)
{
	/* Relaxed: single-threaded here. */
	atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
}

bool client_usable(const struct client *c)
{
	if (c->generation != atomic_load_explicit(&forks, memory_order_relaxed)) {
		ext_raise(-ECHILD, "this loader belongs to the process that forked; make one here");
		return false;
	}
	if (!c->client) {
		ext_raise(-EBADF, "this loader is closed");
		return false;
	}
	return true;
}

void client_enter(struct client *c)
{
	PyThreadState *thread = PyEval_SaveThread();

	pthread_mutex_lock(&c->lock);
	c->released = thread;
}

void client_leave(struct client *c)
{
	PyThreadState *thread = c->released;

	c->released = NULL;
	pthread_mutex_unlock(&c->lock);
	PyEval_RestoreThread(thread);
}

/* Called by the library now and then while it waits. */
static int interrupted(void *data)
{
	struct client *c = data;
	int r;

	PyEval_RestoreThread(c->released);
	r = PyErr_Occurred() ? -1 : PyErr_CheckSignals();
	c->released = PyEval_SaveThread();
	return r < 0;
}

static void progress(void *data, const char *stage, uint64_t done, uint64_t total)
{
	struct client *c = data;

	PyEval_RestoreThread(c->released);
	if (c->progress && c->progress != Py_None && !PyErr_Occurred())
		Py_XDECREF(PyObject_CallFunction(c->progress, "sKK", stage,
						 (unsigned long long)done,
						 (unsigned long long)total));
	c->released = PyEval_SaveThread();
}

static int make_maker(struct client *c, PyObject *given)
{
	PyObject *from_capsule, *from_tensor, *as_bool;
	int read_only, copy;

	if (!PyArg_ParseTuple(given, "OOOpp:maker", &from_capsule, &from_tensor, &as_bool,
			      &read_only, &copy))
		return -1;
	c->maker = calloc(1, sizeof(*c->maker));
	c->count = lease_count_new();
	if (!c->maker || !c->count) {
		PyErr_NoMemory();
		return -1;
	}
	*c->maker = (struct maker){
		.refs = 1,
		.from_capsule = from_capsule == Py_None ? NULL : Py_NewRef(from_capsule),
		.from_tensor = from_tensor == Py_None ? NULL : Py_NewRef(from_tensor),
		.as_bool = as_bool == Py_None ? NULL : Py_NewRef(as_bool),
		.read_only = read_only,
		.copy = copy,
	};
	return 0;
}

static PyObject *state_bytes(struct client *c)
{
	char state[STK_STATE_MAX];
	int n = -EBADF;

	if (c->ahead.n)
		return PyBytes_FromStringAndSize(c->ahead.state, (Py_ssize_t)c->ahead.state_size);
	client_enter(c);
	if (c->pipeline.cuda)
		n = cuda_calls->state(c->pipeline.cuda, state, sizeof(state));
	else if (c->client)
		n = stk_client_state(c->client, state, sizeof(state));
	client_leave(c);
	return n < 0 ? ext_raise(n, "state") : PyBytes_FromStringAndSize(state, n);
}

/* Nothing was fetched ahead: the only state to go back to is the present one. */
static int restart_recent(struct client *c)
{
	PyObject *where;

	if (!c->lookahead)
		return 0;
	where = client_where(c, state_bytes(c));
	Py_XDECREF(c->recent);
	c->recent = where ? PyList_New(0) : NULL;
	if (c->recent && PyList_Append(c->recent, where) < 0)
		Py_CLEAR(c->recent);
	Py_XDECREF(where);
	return c->recent ? 0 : -1;
}

static int open_pipeline(struct client *c)
{
	struct stk_cuda_info info = {.size = sizeof(info)};
	char error[1024] = "this loader is closed";
	int r = -EBADF;

	client_enter(c);
	if (c->client)
		r = pipeline_open(&c->pipeline, c->client, error, sizeof(error));
	if (r == 0)
		cuda_calls->info(c->pipeline.cuda, &info);
	client_leave(c);
	if (r < 0) {
		ext_raise(r, error);
		return -1;
	}
	if (c->pipeline.kind == PIPELINE_DEVICE)
		c->slots = info.depth; /* what callers hold are those */
	c->pipeline_ready = true;
	return 0;
}

/* The stream that is current on the device, as the framework says. */
static int find_stream(struct client *c, void **ret_stream)
{
	PyObject *handle;

	*ret_stream = STK_CUDA_NO_STREAM;
	if (c->current_stream == Py_None)
		return 0;
	handle = PyObject_CallFunction(c->current_stream, "i", (int)c->pipeline.device);
	*ret_stream = handle ? PyLong_AsVoidPtr(handle) : NULL;
	Py_XDECREF(handle);
	return PyErr_Occurred() ? -1 : 0;
}

int client_ready(struct client *c, void **ret_stream)
{
	char *warning;
	int r = 0;

	if (!c->pipeline.kind)
		return 0;
	if (!c->pipeline_ready && open_pipeline(c) < 0)
		return -1;
	lease_retry();
	warning = atomic_exchange(&c->pipeline.warning, NULL);
	if (warning)
		r = PyErr_WarnEx(PyExc_RuntimeWarning, warning, 1);
	free(warning);
	return r < 0 ? r : find_stream(c, ret_stream);
}

/*
 * Half of the slots stay with the ring. Not where making a batch copies it, waits for a device, or runs
 * Python, in which other threads may take batches.
 */
static void set_ahead(struct client *c)
{
	const struct maker *m = c->maker;
	bool in_c = !m->from_tensor || PyCFunction_Check(m->from_tensor);

	if (!m->copy && c->pipeline.kind == PIPELINE_NONE && in_c && c->slots >= 2)
		c->ahead.room = c->slots / 2 - 1 < AHEAD_MAX ? c->slots / 2 - 1 : AHEAD_MAX;
}

static int open_client(struct client *c, struct stk_client_opts *opts)
{
	struct stk_client_info info = {.size = sizeof(info)};
	char error[2048] = "";
	int r;

	opts->size = sizeof(*opts);
	opts->progress = progress;
	opts->progress_data = c;
	opts->interrupted = interrupted;
	opts->interrupt_data = c;
	client_enter(c);
	r = c->pipeline.kind ? pipeline_place(&c->pipeline, opts, error, sizeof(error)) : 0;
	if (r == 0)
		r = stk_client_open(opts, &c->client, error, sizeof(error));
	client_leave(c);
	if (r < 0) {
		ext_raise(r, error);
		return -1;
	}
	if (PyErr_Occurred())
		return -1;
	stk_client_info(c->client, &info);
	c->slots = info.slots;
	set_ahead(c);
	/* One that is named is used from the start; else it is the one that is current later. */
	if (c->pipeline.kind && c->pipeline.wanted >= 0 && open_pipeline(c) < 0)
		return -1;
	return restart_recent(c);
}

static int parse_opts(struct client *c, PyObject *args, PyObject *kwargs, struct stk_client_opts *o)
{
	static char *names[] = {"stream",       "path",       "spec",           "job",
				"private_name", "socket",     "daemon",         "rank",
				"world",        "replica",    "replicas",       "attach_timeout_ms",
				"reconnect_ms", "state",      "progress",       "on_wait",
				"maker",        "timeout_ms", "lookahead",      "pipeline",
				"device",       "depth",      "current_stream", NULL};
	PyObject *maker;
	Py_ssize_t state_size = 0;
	const char *state = NULL;

	if (!PyArg_ParseTupleAndKeywords(
		    args, kwargs, "$zzzzzzIIIIIiiz#OOO!IIIiIO:Client", names, &o->stream, &o->path,
		    &o->spec, &o->job, &o->private_name, &o->socket, &o->daemon, &o->rank,
		    &o->world, &o->replica, &o->replicas, &o->attach_timeout_ms, &o->reconnect_ms,
		    &state, &state_size, &c->progress, &c->on_wait, &PyTuple_Type, &maker,
		    &c->timeout_ms, &c->lookahead, &c->pipeline.kind, &c->pipeline.wanted,
		    &c->pipeline.depth, &c->current_stream)) {
		c->progress = c->on_wait = c->current_stream = NULL; /* borrowed so far */
		return -1;
	}
	Py_INCREF(c->progress);
	Py_INCREF(c->on_wait);
	Py_INCREF(c->current_stream);
	o->state = state;
	o->state_size = (size_t)state_size;
	return make_maker(c, maker);
}

static PyObject *client_tp_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
	struct client *c = (struct client *)PyType_GenericAlloc(type, 0);
	struct stk_client_opts opts = {0};

	if (!c)
		return NULL;
	pthread_mutex_init(&c->lock, NULL);
	c->generation = atomic_load_explicit(&forks, memory_order_relaxed);
	if (parse_opts(c, args, kwargs, &opts) < 0 || open_client(c, &opts) < 0)
		Py_CLEAR(c);
	return (PyObject *)c;
}

static int client_traverse(PyObject *self, visitproc visit, void *arg)
{
	struct client *c = (struct client *)self;

	Py_VISIT(Py_TYPE(self));
	Py_VISIT(c->progress);
	Py_VISIT(c->on_wait);
	Py_VISIT(c->current_stream);
	Py_VISIT(c->recent);
	return ahead_traverse(&c->ahead, visit, arg);
}

static int client_clear(PyObject *self)
{
	struct client *c = (struct client *)self;

	Py_CLEAR(c->progress);
	Py_CLEAR(c->on_wait);
	Py_CLEAR(c->current_stream);
	Py_CLEAR(c->recent);
	ahead_drop(&c->ahead);
	return 0;
}

static void client_dealloc(PyObject *self)
{
	struct client *c = (struct client *)self;

	PyObject_GC_UnTrack(self);
	client_clear(self);
	pipeline_deinit(&c->pipeline);
	c->client = stk_client_close(c->client);
	for (uint32_t i = 0; i < c->nnames; i++)
		Py_DECREF(c->names[i]);
	free(c->names);
	maker_unref(c->maker);
	lease_count_unref(c->count);
	ext_free(self);
}

static PyObject *client_close(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;

	(void)unused;
	/* In a forked child the lock may be held by a thread that is not there. */
	if (c->generation != atomic_load_explicit(&forks, memory_order_relaxed))
		Py_RETURN_NONE;
	client_enter(c);
	pipeline_close(&c->pipeline);
	c->client = stk_client_close(c->client);
	client_leave(c);
	ahead_drop(&c->ahead);
	Py_RETURN_NONE;
}

static PyObject *client_epoch(PyObject *self, PyObject *unused);

/* (state, epoch, step) of what comes after a batch; of the beginning: (state, None, None). */
PyObject *client_where(const struct client *c, PyObject *state)
{
	uint64_t epoch = c->ended ? c->epoch + 1 : c->epoch;
	uint64_t step = c->ended ? 0 : c->last_micro ? c->step + 1 : c->step;

	if (!state)
		return NULL;
	if (!c->any)
		return Py_BuildValue("(NOO)", state, Py_None, Py_None);
	return Py_BuildValue("(NKK)", state, (unsigned long long)epoch, (unsigned long long)step);
}

static PyObject *client_state(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;

	(void)unused;
	if (!client_usable(c))
		return NULL;
	if (c->recent)
		return Py_XNewRef(PyList_GetItem(c->recent, 0));
	return client_where(c, state_bytes(c));
}

static PyObject *client_state_after(PyObject *self, PyObject *batch)
{
	(void)self;
	return batch_state(batch);
}

static PyObject *client_seek(PyObject *self, PyObject *args)
{
	struct client *c = (struct client *)self;
	char error[1024];
	const char *state;
	Py_ssize_t size;
	int r = -EBADF;

	if (!PyArg_ParseTuple(args, "z#:seek", &state, &size) || !client_usable(c))
		return NULL;
	client_enter(c);
	strcpy(error, "this loader is closed");
	if (c->pipeline.cuda)
		r = pipeline_seek(&c->pipeline, state, (size_t)size, error, sizeof(error));
	else if (c->client) {
		r = stk_client_seek(c->client, state, (size_t)size);
		snprintf(error, sizeof(error), "%s", stk_client_error(c->client));
	}
	if (r == 0) /* relaxed: the lock orders it */
		atomic_fetch_and_explicit(&c->ends, ~UINT64_C(1), memory_order_relaxed);
	client_leave(c);
	if (r < 0)
		return ext_raise(r, error);
	ahead_drop(&c->ahead);
	c->any = c->ended = c->end_due = false;
	if (restart_recent(c) < 0)
		return NULL;
	Py_RETURN_NONE;
}

static PyObject *client_shapes(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	struct stk_shape_info s = {.size = sizeof(s)};
	PyObject *list;

	(void)unused;
	if (!client_usable(c))
		return NULL;
	list = PyList_New(0);
	for (uint32_t i = 0; list && stk_client_shape(c->client, i, &s) == 0; i++) {
		PyObject *item =
			Py_BuildValue("(IIIIIIII)", s.edge, s.rows, s.width_min, s.width_max,
				      s.width_multiple, s.edge2, s.width2_min, s.width2_max);

		if (!item || PyList_Append(list, item) < 0)
			Py_CLEAR(list);
		Py_XDECREF(item);
	}
	return list;
}

static PyObject *client_info(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	struct stk_client_info i = {.size = sizeof(i)};

	(void)unused;
	if (!client_usable(c))
		return NULL;
	stk_client_info(c->client, &i);
#define U64(name) #name, (unsigned long long)i.name
	return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsIsIsIsIsIsIsssssssisIsssz}", U64(samples),
			     U64(steps_per_epoch), U64(overlong_dropped), U64(truncated),
			     U64(promoted), U64(tail_dropped), U64(masked), U64(epochs),
			     U64(slot_size), "rank", i.rank, "world", i.world, "replica", i.replica,
			     "replicas", i.replicas, "slots", i.slots, "micros", i.micros, "stream",
			     i.stream, "job", i.job, "socket", i.socket, "daemon_pid",
			     (int)i.daemon_pid, "private_daemon", i.private_daemon, "schema",
			     i.schema, "notice", i.notice);
#undef U64
}

/* (any, epoch, step, last_micro, ended) of the last batch. */
static PyObject *client_position(PyObject *self, PyObject *unused)
{
	const struct client *c = (const struct client *)self;

	(void)unused;
	return Py_BuildValue("(iKKii)", c->any, (unsigned long long)c->epoch,
			     (unsigned long long)c->step, c->last_micro, c->ended);
}

static PyObject *client_stats(PyObject *self, PyObject *unused)
{
	const struct client *c = (const struct client *)self;
	const struct client_stats *s = &c->stats;

	(void)unused;
	return Py_BuildValue("{sdsdsdsdsdsdsdsdsd}", "batches", (double)s->batches, "samples",
			     (double)s->rows, "rows_bad", (double)s->rows_bad, "real_tokens",
			     (double)s->real_tokens, "padded_tokens", (double)s->padded_tokens,
			     "waits", (double)s->waits, "wait_seconds", (double)s->wait_ns / 1e9,
			     "slots", (double)c->slots, "slots_held", (double)client_held(c));
}

/* Of the pipeline, or None: there is none, or not yet. */
static PyObject *client_cuda(PyObject *self, PyObject *unused)
{
	static const char *const memory[] = {"", "registered", "bounce", "pageable"};
	struct client *c = (struct client *)self;
	struct stk_cuda_info i = {.size = sizeof(i)};
	char reason[1024] = "";
	bool open;

	(void)unused;
	if (!c->pipeline_ready ||
	    c->generation != atomic_load_explicit(&forks, memory_order_relaxed))
		Py_RETURN_NONE;
	client_enter(c);
	open = c->pipeline.cuda;
	if (open) {
		cuda_calls->info(c->pipeline.cuda, &i);
		snprintf(reason, sizeof(reason), "%s", i.reason);
	}
	client_leave(c);
	if (!open)
		Py_RETURN_NONE;
	return Py_BuildValue("{sisIsssssIsKsKsK}", "device", (int)i.device, "depth", i.depth,
			     "memory", memory[i.memory], "reason", reason, "in_flight", i.in_flight,
			     "batches", (unsigned long long)i.batches, "ahead",
			     (unsigned long long)i.ahead, "lagging", (unsigned long long)i.lagging);
}

static PyObject *client_why(PyObject *self, PyObject *unused)
{
	struct client *c = (struct client *)self;
	char text[512] = "";

	(void)unused;
	if (!client_usable(c))
		return NULL;
	client_enter(c);
	if (c->client)
		stk_client_why(c->client, text, sizeof(text));
	client_leave(c);
	return PyUnicode_FromString(text);
}

static PyMethodDef client_methods[] = {
	{"close", client_close, METH_NOARGS,
	 "close($self, /)\n--\n\nEnds the seat; batches stay readable."},
	{"epoch", client_epoch, METH_NOARGS,
	 "epoch($self, /)\n--\n\nIterator to the end of the epoch."},
	{"state", client_state, METH_NOARGS,
	 "state($self, /)\n--\n\n(state, epoch, step): where to continue; None, None before the "
	 "first "
	 "batch."},
	{"state_after", client_state_after, METH_O,
	 "state_after($self, batch, /)\n--\n\nBytes: where to continue after that batch."},
	{"seek", client_seek, METH_VARARGS,
	 "seek($self, state, /)\n--\n\nContinues after a state; None: anew."},
	{"shapes", client_shapes, METH_NOARGS,
	 "shapes($self, /)\n--\n\n[(edge, rows, width_min, width_max, width_multiple, edge2, "
	 "width2_min, width2_max)]"},
	{"info", client_info, METH_NOARGS, "info($self, /)\n--\n\nDict of what the library tells."},
	{"position", client_position, METH_NOARGS,
	 "position($self, /)\n--\n\n(any, epoch, step, last_micro, ended) of the last batch."},
	{"cuda", client_cuda, METH_NOARGS,
	 "cuda($self, /)\n--\n\nDict of what libstoker-cuda tells of the pipeline, or None."},
	{"stats", client_stats, METH_NOARGS, "stats($self, /)\n--\n\nDict of floats; no I/O."},
	{"why", client_why, METH_NOARGS,
	 "why($self, /)\n--\n\nWho is waited for, in one sentence."},
	{0},
};

static PyType_Slot client_slots[] = {
	{Py_tp_new, client_tp_new},
	{Py_tp_dealloc, client_dealloc},
	{Py_tp_traverse, client_traverse},
	{Py_tp_clear, client_clear},
	{Py_tp_methods, client_methods},
	{Py_tp_doc, "A seat at a feed; stoker.Loader is what to use."},
	{0},
};

static PyType_Spec client_spec = {
	.name = "stoker._stoker.Client",
	.basicsize = sizeof(struct client),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
	.slots = client_slots,
};

/* The iterator over the rest of an epoch. */
struct epoch {
	PyObject_HEAD struct client *client; /* NULL: it is over */
	uint64_t ends;                       /* of the client when it began */
	bool end_due; /* the epoch before is over, and its end was not asked for: it is passed over */
};

static PyObject *client_epoch(PyObject *self, PyObject *unused)
{
	struct epoch *e;

	(void)unused;
	if (!client_usable((struct client *)self))
		return NULL;
	e = (struct epoch *)PyType_GenericAlloc(epoch_type, 0);
	if (e)
		e->client = (struct client *)Py_NewRef(self);
	if (e) {
		e->end_due = e->client->end_due;
		e->ends = client_ends(e->client);
	}
	return (PyObject *)e;
}

static PyObject *epoch_next(PyObject *self)
{
	struct epoch *e = (struct epoch *)self;
	struct client *c = e->client;
	PyObject *batch;

	if (!c)
		return NULL;
	Py_INCREF((PyObject *)c); /* another thread may end this iterator while we wait */
	batch = client_next(c, e->ends);
	if (!batch && e->end_due && !PyErr_Occurred())
		batch = client_next(c, ++e->ends);
	e->end_due = false;
	if (!batch && !PyErr_Occurred())
		Py_CLEAR(e->client);
	Py_DECREF((PyObject *)c);
	return batch;
}

static int epoch_traverse(PyObject *self, visitproc visit, void *arg)
{
	Py_VISIT(Py_TYPE(self));
	Py_VISIT(((struct epoch *)self)->client);
	return 0;
}

static int epoch_clear(PyObject *self)
{
	Py_CLEAR(((struct epoch *)self)->client);
	return 0;
}

static void epoch_dealloc(PyObject *self)
{
	PyObject_GC_UnTrack(self);
	epoch_clear(self);
	ext_free(self);
}

static PyType_Slot epoch_slots[] = {
	{Py_tp_dealloc, epoch_dealloc},
	{Py_tp_traverse, epoch_traverse},
	{Py_tp_clear, epoch_clear},
	{Py_tp_iter, PyObject_SelfIter},
	{Py_tp_iternext, epoch_next},
	{Py_tp_doc, "Iterator over the batches to the end of the epoch."},
	{0},
};

static PyType_Spec epoch_spec = {
	.name = "stoker._stoker.Epoch",
	.basicsize = sizeof(struct epoch),
	.flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
		 Py_TPFLAGS_DISALLOW_INSTANTIATION,
	.slots = epoch_slots,
};

int ext_add_client(PyObject *module)
{
	client_type = ext_add_type(module, &client_spec);
	epoch_type = ext_add_type(module, &epoch_spec);
	if (!client_type || !epoch_type)
		return -1;
	if (pthread_atfork(NULL, NULL, forked)) {
		PyErr_NoMemory();
		return -1;
	}
	return 0;
}
