/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/ahead.h"

void ahead_push(struct ahead *a, PyObject *batch)
{
	a->batch[(a->first + a->n++) % AHEAD_MAX] = batch;
}

PyObject *ahead_pop(struct ahead *a)
{
	PyObject *batch = a->batch[a->first];

	a->first = (a->first + 1) % AHEAD_MAX;
	a->n--;
	return batch;
}

void ahead_drop(struct ahead *a)
{
	while (a->n)
		Py_DECREF(ahead_pop(a));
}

int ahead_traverse(const struct ahead *a, visitproc visit, void *arg)
{
	for (uint32_t i = 0; i < a->n; i++)
		Py_VISIT(a->batch[(a->first + i) % AHEAD_MAX]);
	return 0;
}
