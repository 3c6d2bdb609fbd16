/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The structures of DLPack 1.0, as https://dmlc.github.io/dlpack describes them: how a tensor is
 * lent to another library of the same process. Declarations only; any thread.
 */
#ifndef STK_PYTHON_DLPACK_H
#define STK_PYTHON_DLPACK_H

#include <stdint.h>

#define DLPACK_MAJOR 1
#define DLPACK_MINOR 0

#define DLPACK_FLAG_READ_ONLY UINT64_C(1)

enum { DLPACK_CPU = 1, DLPACK_CUDA = 2 };

enum dlpack_code {
	DLPACK_INT = 0,
	DLPACK_UINT = 1,
	DLPACK_FLOAT = 2,
	DLPACK_BFLOAT = 4,
	DLPACK_COMPLEX = 5,
	DLPACK_BOOL = 6,
	DLPACK_FLOAT8_E4M3FN = 10,
	DLPACK_FLOAT8_E5M2 = 12,
};

struct dlpack_device {
	int32_t type, id;
};

struct dlpack_dtype {
	uint8_t code, bits;
	uint16_t lanes;
};

struct dlpack_tensor {
	void *data;
	struct dlpack_device device;
	int32_t ndim;
	struct dlpack_dtype dtype;
	int64_t *shape, *strides;
	uint64_t byte_offset;
};

/* Capsule "dltensor". The consumer calls deleter once, on any thread, without the GIL. */
struct dlpack_managed {
	struct dlpack_tensor tensor;
	void *context;
	void (*deleter)(struct dlpack_managed *self);
};

/* Capsule "dltensor_versioned". */
struct dlpack_managed_versioned {
	uint32_t major, minor;
	void *context;
	void (*deleter)(struct dlpack_managed_versioned *self);
	uint64_t flags;
	struct dlpack_tensor tensor;
};

#endif
