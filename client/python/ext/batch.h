/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker.Batch: a read-only mapping from field name to tensor, with the batch's figures as
 * attributes. Made by the client for each batch, or by anybody from a dict (a plain one). With the GIL.
 */
#ifndef STK_PYTHON_BATCH_H
#define STK_PYTHON_BATCH_H

#include "client/python/ext/tensor.h"

/* How tensors are made for the user's framework. Counted, under the GIL. */
struct maker {
	unsigned refs;
	PyObject *from_capsule; /* called with a capsule; NULL: from_tensor */
	PyObject *from_tensor;  /* called with a stoker.Tensor; NULL: that is the tensor */
	PyObject *as_bool; /* for a from_capsule that takes no bool: from the same bytes as u8 */
	bool read_only, copy;
};

struct maker *maker_ref(struct maker *maker);
struct maker *maker_unref(struct maker *maker);

/* Takes over the batch, also when it fails. names: of its tensors, in order. NULL: raised. */
PyObject *batch_new(const struct taken *taken, struct lease_count *count, struct maker *maker,
		    PyObject *const *names, uint32_t n);

/* Of a batch that batch_new() made. */
const struct stk_batch_info *batch_info(PyObject *batch);
/* The state after it, as bytes written to `state`; a negative errno. Its slot is still held. */
int batch_copy_state(PyObject *batch, void *state, size_t room);

/* The state after a batch that came from a client, or NULL: raised. */
PyObject *batch_state(PyObject *batch);

#endif
