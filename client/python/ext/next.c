/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the next batch is taken and waited for: a ready one with the GIL held and without a system
 * call, else in slices without the GIL between which signals are looked at.
 */
#include "client/python/ext/client.h"

#include <errno.h>
#include <time.h>

#define SLICE_MS 100
#define HELD_MS  1000  /* then a user who holds every slot is told */
#define LOG_MS   10000 /* then it is logged who is waited for */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static int find_names(struct client *c, const struct stk_batch *batch)
{
	uint32_t n = stk_batch_ntensors(batch);

	c->names = calloc(n + 1, sizeof(PyObject *));
	if (!c->names) {
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct stk_tensor tensor;

		if (stk_batch_tensor_at(batch, i, &tensor) < 0)
			break;
		c->names[i] = PyUnicode_InternFromString(tensor.name);
		if (!c->names[i])
			return -1;
		c->nnames = i + 1;
	}
	return 0;
}

static void count(struct client *c, const struct stk_batch_info *info)
{
	c->any = true;
	c->epoch = info->epoch;
	c->step = info->step;
	c->last_micro = info->last_micro;
	c->ended = c->end_due = info->ends_epoch;
	c->stats.batches++;
	c->stats.rows += info->rows_real;
	c->stats.real_tokens += info->real_tokens;
	c->stats.padded_tokens += info->padded_tokens;
}

/* Keeps the states of the batches that a consumer may have fetched and not yet trained on. */
static int remember(struct client *c, PyObject *batch)
{
	PyObject *where;
	int r;

	if (!c->recent)
		return 0;
	where = client_where(c, batch_state(batch));
	if (!where)
		return -1;
	r = PyList_Append(c->recent, where);
	Py_DECREF(where);
	if (r == 0 && PyList_Size(c->recent) > (Py_ssize_t)c->lookahead + 1)
		r = PyList_SetSlice(c->recent, 0, 1, NULL);
	return r;
}

static PyObject *deliver(struct client *c, struct stk_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	PyObject *made;

	if (!c->names && find_names(c, batch) < 0) {
		stk_batch_release(batch);
		return NULL;
	}
	stk_batch_info(batch, &info);
	made = batch_new(batch, c->count, c->maker, c->names, c->nnames);
	if (!made)
		return NULL;
	count(c, &info);
	if (remember(c, made) < 0)
		Py_CLEAR(made);
	return made;
}

static PyObject *ended(struct client *c)
{
	Py_ssize_t n = c->recent ? PyList_Size(c->recent) : 0;

	c->ended = true;
	c->end_due = false;
	if (n > 1)
		PyList_SetSlice(c->recent, 0, n - 1, NULL);
	return NULL;
}

/* What the library's outcome is in Python; *ret_again: nothing came yet. */
static PyObject *outcome(struct client *c, int r, struct stk_batch *batch, bool *ret_again)
{
	*ret_again = r == STK_TIMEOUT;
	if (r == 0)
		return deliver(c, batch);
	if (r == STK_EPOCH_END || r == STK_STREAM_END)
		return ended(c);
	if (r < 0)
		return ext_raise(r, c->client ? stk_client_error(c->client) : "");
	return NULL;
}

static uint32_t held(const struct client *c)
{
	/* Relaxed: a figure. */
	return atomic_load_explicit(&c->count->held, memory_order_relaxed);
}

/* Tells Python how long it has been waiting; it may raise. */
static int tell(struct client *c, uint64_t waited_ms)
{
	PyObject *r = PyObject_CallFunction(c->on_wait, "KII", (unsigned long long)waited_ms,
					    held(c), c->slots);

	Py_XDECREF(r);
	return r ? 0 : -1;
}

/* Whether a threshold lies between two looks at the clock. */
static bool passed(uint64_t before, uint64_t after, uint64_t threshold)
{
	return before < threshold && after >= threshold;
}

static int look(struct client *c, uint64_t before_ms, uint64_t after_ms)
{
	if (PyErr_CheckSignals() < 0)
		return -1;
	if (after_ms >= c->timeout_ms || passed(before_ms, after_ms, LOG_MS) ||
	    (passed(before_ms, after_ms, HELD_MS) && held(c) >= c->slots))
		return tell(c, after_ms);
	return 0;
}

static PyObject *wait_next(struct client *c)
{
	uint64_t start = now_ns(), waited_ms = 0;
	PyObject *made = NULL;
	bool again = true;

	c->stats.waits++;
	while (again) {
		struct stk_batch *batch = NULL;
		uint64_t before_ms = waited_ms;
		int r = -EBADF;

		client_enter(c);
		if (c->client)
			r = stk_client_next(c->client, SLICE_MS, &batch);
		client_leave(c);
		if (r == -EBADF && !c->client) {
			client_usable(c);
			return NULL;
		}
		made = outcome(c, r, batch, &again);
		waited_ms = (now_ns() - start) / 1000000;
		if (again && look(c, before_ms, waited_ms) < 0)
			return NULL;
	}
	c->stats.wait_ns += now_ns() - start;
	return made;
}

PyObject *client_next(struct client *c)
{
	struct stk_batch *batch = NULL;
	PyObject *made;
	bool again = true;
	int r;

	if (!client_usable(c))
		return NULL;
	if (pthread_mutex_trylock(&c->lock))
		return wait_next(c);
	r = stk_client_take(c->client, &batch);
	pthread_mutex_unlock(&c->lock);
	made = outcome(c, r, batch, &again);
	return again ? wait_next(c) : made;
}
