/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the next batch is taken and waited for: a ready one with the GIL held and without a system
 * call, else in slices without the GIL between which signals are looked at.
 */
#include "client/python/ext/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define SLICE_MS 100
#define FULL_MS  5 /* while the user holds every slot: some may be let go in Python */
#define OVER     (STK_STREAM_END + 1) /* another thread saw the end; no outcome of the library */
#define LOG_MS   10000                /* then it is logged who is waited for */

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static int find_names(struct client *c, const struct taken *taken)
{
	uint32_t n = taken_ntensors(taken);

	c->names = calloc(n + 1, sizeof(PyObject *));
	if (!c->names) {
		PyErr_NoMemory();
		return -1;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct stk_tensor tensor;

		if (taken_tensor_at(taken, i, &tensor) < 0)
			break;
		if (tensor.element == STK_BOOL && c->maker->as_bool)
			c->ahead.room = 0; /* which is Python: others may run meanwhile */
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
	c->stats.rows_bad += info->rows_bad;
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

/* A batch goes to the caller. */
static PyObject *hand_out(struct client *c, PyObject *batch)
{
	struct ahead *a = &c->ahead;
	int n;

	if (a->n) {
		n = batch_copy_state(batch, a->state, sizeof(a->state));
		a->state_size = n < 0 ? 0 : (size_t)n;
	}
	count(c, batch_info(batch));
	if (remember(c, batch) < 0)
		Py_CLEAR(batch);
	return batch;
}

/* Behind it, what is ready of the same epoch. -1: raised. */
static int make_ahead(struct client *c, PyObject *last)
{
	struct taken taken = {.stream = NULL};
	int r = 0;

	while (c->ahead.n < c->ahead.room && !batch_info(last)->ends_epoch && r == 0) {
		if (pthread_mutex_trylock(&c->lock))
			return 0;
		/* Relaxed here and below: the lock orders it. */
		r = c->client && !(atomic_load_explicit(&c->ends, memory_order_relaxed) & 1)
			    ? stk_client_take(c->client, &taken.batch)
			    : STK_TIMEOUT;
		if (r == STK_EPOCH_END)
			atomic_fetch_or_explicit(&c->ends, 1, memory_order_relaxed);
		pthread_mutex_unlock(&c->lock);
		/* Other outcomes are final, and come again. */
		if (r)
			break;
		last = batch_new(&taken, c->count, c->maker, c->names, c->nnames);
		if (!last)
			return -1;
		ahead_push(&c->ahead, last);
	}
	return 0;
}

static PyObject *deliver(struct client *c, const struct taken *taken)
{
	PyObject *made;

	if (!c->names && find_names(c, taken) < 0) {
		taken_drop(taken);
		return NULL;
	}
	made = batch_new(taken, c->count, c->maker, c->names, c->nnames);
	if (!made)
		return NULL;
	if (make_ahead(c, made) < 0) {
		Py_DECREF(made);
		return NULL;
	}
	return hand_out(c, made);
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

/* What next() said; the text is copied under the lock, as another thread may close the client. */
struct said {
	int r;
	struct taken taken; /* its stream is given */
	char error[1024];
};

uint64_t client_ends(const struct client *c)
{
	/* Relaxed: with the GIL it does not change. */
	return atomic_load_explicit(&c->ends, memory_order_relaxed) >> 1;
}

/* What another thread made ahead comes before the end, which one thread returns. */
static PyObject *epoch_ended(struct client *c, uint64_t ends)
{
	uint64_t taken = 2 * ends + 1;

	if (client_ends(c) != ends)
		return NULL;
	if (c->ahead.n)
		return hand_out(c, ahead_pop(&c->ahead));
	/* Relaxed: whoever looks without the GIL takes the library's word, under the lock. */
	if (!atomic_compare_exchange_strong_explicit(&c->ends, &taken, taken + 1,
						     memory_order_relaxed, memory_order_relaxed))
		return NULL;
	return ended(c);
}

/* What that is in Python; *ret_again: nothing came yet. */
static PyObject *outcome(struct client *c, uint64_t ends, const struct said *said, bool *ret_again)
{
	*ret_again = said->r == STK_TIMEOUT;
	if (said->r == 0)
		return deliver(c, &said->taken);
	if (said->r == STK_EPOCH_END)
		return epoch_ended(c, ends);
	if (said->r == STK_STREAM_END)
		return ended(c);
	if (said->r < 0)
		return ext_raise(said->r, said->error);
	return NULL;
}

uint32_t client_held(const struct client *c)
{
	/* Relaxed: a figure. */
	return atomic_load_explicit(&c->count->held, memory_order_relaxed) - c->ahead.n;
}

static bool is_full(const struct client *c)
{
	return client_held(c) >= c->slots;
}

/* Tells Python how long it has been waiting, now and at the last look; it may raise. */
static int tell(struct client *c, uint64_t before_ms, uint64_t waited_ms)
{
	PyObject *r = PyObject_CallFunction(c->on_wait, "KKO", (unsigned long long)before_ms,
					    (unsigned long long)waited_ms,
					    is_full(c) ? Py_True : Py_False);

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
	if (after_ms >= c->timeout_ms || passed(before_ms, after_ms, LOG_MS) || is_full(c))
		return tell(c, before_ms, after_ms);
	return 0;
}

static int take_one(struct client *c, int timeout_ms, struct said *said)
{
	int r;

	if (c->pipeline.cuda)
		return pipeline_next(&c->pipeline, timeout_ms ? timeout_ms : PIPELINE_TAKE,
				     &said->taken, said->error, sizeof(said->error));
	r = timeout_ms ? stk_client_next(c->client, timeout_ms, &said->taken.batch)
		       : stk_client_take(c->client, &said->taken.batch);
	if (r < 0)
		snprintf(said->error, sizeof(said->error), "%s", stk_client_error(c->client));
	return r;
}

/*
 * Several threads may share an epoch, and only one of them sees its end: a batch behind it is none of
 * theirs. Under the lock.
 */
static void take(struct client *c, uint64_t ends, int timeout_ms, struct said *said)
{
	uint64_t now = atomic_load_explicit(&c->ends, memory_order_relaxed);

	said->error[0] = '\0';
	said->r = OVER;
	if (!c->client) {
		said->r = -EBADF;
		strcpy(said->error, "this loader is closed");
	} else if (now >> 1 == ends) {
		said->r = now & 1 ? STK_EPOCH_END : take_one(c, timeout_ms, said);
		if (said->r == STK_EPOCH_END)
			atomic_fetch_or_explicit(&c->ends, 1, memory_order_relaxed);
	}
}

static PyObject *wait_next(struct client *c, uint64_t ends, void *stream)
{
	uint64_t start = now_ns(), waited_ms = 0;
	PyObject *made = NULL;
	bool again = true;

	c->stats.waits++;
	while (again) {
		uint64_t before_ms = waited_ms;
		struct said said = {.taken.stream = stream};

		client_enter(c);
		take(c, ends, is_full(c) ? FULL_MS : SLICE_MS, &said);
		client_leave(c);
		made = outcome(c, ends, &said, &again);
		waited_ms = (now_ns() - start) / 1000000;
		if (again && look(c, before_ms, waited_ms) < 0)
			return NULL;
	}
	c->stats.wait_ns += now_ns() - start;
	return made;
}

PyObject *client_next(struct client *c, uint64_t ends)
{
	struct said said = {.taken.stream = NULL};
	PyObject *made;
	bool again = true;

	if (!client_usable(c) || client_ready(c, &said.taken.stream) < 0)
		return NULL;
	/* Relaxed: with the GIL it does not change. */
	if (c->ahead.n && client_ends(c) == ends)
		return hand_out(c, ahead_pop(&c->ahead));
	if (pthread_mutex_trylock(&c->lock))
		return wait_next(c, ends, said.taken.stream);
	take(c, ends, 0, &said);
	pthread_mutex_unlock(&c->lock);
	made = outcome(c, ends, &said, &again);
	return again ? wait_next(c, ends, said.taken.stream) : made;
}
