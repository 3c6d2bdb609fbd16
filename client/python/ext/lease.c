/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/lease.h"

#include <stdlib.h>
#include <string.h>

/* How an element type is named in DLPack. */
static const struct dlpack_dtype dtypes[] = {
	[STK_BOOL] = {DLPACK_BOOL, 8, 1},
	[STK_U8] = {DLPACK_UINT, 8, 1},
	[STK_I8] = {DLPACK_INT, 8, 1},
	[STK_U16] = {DLPACK_UINT, 16, 1},
	[STK_I16] = {DLPACK_INT, 16, 1},
	[STK_U32] = {DLPACK_UINT, 32, 1},
	[STK_I32] = {DLPACK_INT, 32, 1},
	[STK_U64] = {DLPACK_UINT, 64, 1},
	[STK_I64] = {DLPACK_INT, 64, 1},
	[STK_F16] = {DLPACK_FLOAT, 16, 1},
	[STK_BF16] = {DLPACK_BFLOAT, 16, 1},
	[STK_F32] = {DLPACK_FLOAT, 32, 1},
	[STK_F64] = {DLPACK_FLOAT, 64, 1},
	[STK_F8_E4M3] = {DLPACK_FLOAT8_E4M3FN, 8, 1},
	[STK_F8_E5M2] = {DLPACK_FLOAT8_E5M2, 8, 1},
	[STK_C64] = {DLPACK_COMPLEX, 64, 1},
};

struct lease_count *lease_count_new(void)
{
	struct lease_count *count = calloc(1, sizeof(*count));

	if (count)
		count->refs = 1;
	return count;
}

static void count_ref(struct lease_count *count)
{
	/* Relaxed: whoever refs holds a reference already. */
	atomic_fetch_add_explicit(&count->refs, 1, memory_order_relaxed);
}

void lease_count_unref(struct lease_count *count)
{
	/* Acquire-release: every use by other holders precedes the free. */
	if (count && atomic_fetch_sub_explicit(&count->refs, 1, memory_order_acq_rel) == 1)
		free(count);
}

static void give_back(struct lease *lease)
{
	if (!lease->batch)
		return;
	/* Relaxed: a figure; the slot itself is handed over by the library. */
	atomic_fetch_sub_explicit(&lease->count->held, 1, memory_order_relaxed);
	stk_batch_release(lease->batch);
	lease->batch = NULL;
}

const char *lease_numbers_name(enum lease_numbers which)
{
	static const char *const names[] = {
		[LEASE_SAMPLE_IDS] = "sample_ids",
		[LEASE_LENGTHS] = "lengths",
		[LEASE_ROW_FIRST] = "row_first",
		[LEASE_SEGMENT_FROM] = "segment_from",
	};

	return names[which];
}

/* Where they are and how many; NULL: none. */
static const void *find_numbers(const struct stk_batch_info *info, enum lease_numbers which,
				uint32_t *ret_n)
{
	*ret_n = which == LEASE_ROW_FIRST ? info->rows + 1 : info->nids;
	switch (which) {
	case LEASE_SAMPLE_IDS:
		return info->sample_ids;
	case LEASE_LENGTHS:
		return info->lengths;
	case LEASE_ROW_FIRST:
		return info->row_first;
	default:
		return info->segment_from;
	}
}

static size_t number_size(enum lease_numbers which)
{
	return which == LEASE_SAMPLE_IDS ? sizeof(uint64_t) : sizeof(uint32_t);
}

/* The numbers lie behind the tensors. */
static size_t size_with_numbers(const struct stk_batch_info *info)
{
	size_t size = info->data_size;

	for (int i = 0; i < LEASE_NUMBERS; i++) {
		uint32_t n;
		const char *at = find_numbers(info, (enum lease_numbers)i, &n);
		const char *end = at ? at + n * number_size((enum lease_numbers)i) : NULL;

		if (end && (size_t)(end - (const char *)info->data) > size)
			size = (size_t)(end - (const char *)info->data);
	}
	return size;
}

static bool copy_out(struct lease *lease)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	size_t size;

	stk_batch_info(lease->batch, &info);
	size = size_with_numbers(&info);
	lease->copy = aligned_alloc(256, (size + 255) & ~(size_t)255);
	if (!lease->copy)
		return false;
	memcpy(lease->copy, info.data, size);
	return true;
}

struct lease *lease_new(struct stk_batch *batch, struct lease_count *count, bool copy)
{
	struct lease *lease = malloc(sizeof(*lease));
	struct stk_batch_info info = {.size = sizeof(info)};

	if (!lease) {
		stk_batch_release(batch);
		return NULL;
	}
	stk_batch_info(batch, &info);
	*lease = (struct lease){.refs = 1, .batch = batch, .count = count, .base = info.data};
	count_ref(count);
	atomic_fetch_add_explicit(&count->held, 1, memory_order_relaxed);
	if (copy && !copy_out(lease)) {
		lease_unref(lease);
		return NULL;
	}
	return lease;
}

void lease_settle(struct lease *lease)
{
	if (lease->copy)
		give_back(lease);
}

void lease_ref(struct lease *lease)
{
	/* Relaxed: whoever refs holds a reference already. */
	atomic_fetch_add_explicit(&lease->refs, 1, memory_order_relaxed);
}

void lease_unref(struct lease *lease)
{
	/* Acquire-release: the last read of every other holder precedes the slot's reuse. */
	if (!lease || atomic_fetch_sub_explicit(&lease->refs, 1, memory_order_acq_rel) != 1)
		return;
	give_back(lease);
	lease_count_unref(lease->count);
	free(lease->copy);
	free(lease);
}

static void *moved(const struct lease *lease, const void *data)
{
	return lease->copy ? lease->copy + ((const char *)data - lease->base) : (void *)data;
}

bool lease_view(struct lease *lease, uint32_t i, bool read_only, struct view *ret)
{
	struct stk_tensor tensor;

	if (stk_batch_tensor_at(lease->batch, i, &tensor) < 0)
		return false;
	*ret = (struct view){
		.lease = lease,
		.data = moved(lease, tensor.data),
		.size = tensor.size,
		.element = tensor.element,
		.ndim = tensor.ndim,
		.read_only = read_only,
	};
	for (uint32_t d = 0; d < tensor.ndim; d++)
		ret->shape[d] = (int64_t)tensor.shape[d];
	return true;
}

bool lease_view_numbers(struct lease *lease, const struct stk_batch_info *info,
			enum lease_numbers which, bool read_only, struct view *ret)
{
	uint32_t n;
	const void *data = find_numbers(info, which, &n);

	if (!data)
		return false;
	*ret = (struct view){
		.lease = lease,
		.data = moved(lease, data),
		.size = n * number_size(which),
		.element = which == LEASE_SAMPLE_IDS ? STK_I64 : STK_I32,
		.ndim = 1,
		.read_only = read_only,
		.shape = {n},
	};
	return true;
}

size_t view_item_size(const struct view *view)
{
	return dtypes[view->element].bits / 8;
}

/* What a capsule points to: the managed tensor of either kind, and what it points to itself. */
struct export
{
	union {
		struct dlpack_managed plain;
		struct dlpack_managed_versioned versioned;
	};
	struct lease *lease;
	int64_t shape[STK_DIMS_MAX], strides[STK_DIMS_MAX];
};

static void export_init(struct export *e, const struct view *view, bool bool_as_u8,
			struct dlpack_tensor *tensor)
{
	int64_t stride = 1;

	e->lease = view->lease;
	lease_ref(view->lease);
	*tensor = (struct dlpack_tensor){
		.data = view->data,
		.device = {.type = DLPACK_CPU},
		.ndim = (int32_t)view->ndim,
		.dtype = dtypes[view->element],
		.shape = e->shape,
		.strides = e->strides,
	};
	if (view->element == STK_BOOL && bool_as_u8)
		tensor->dtype.code = DLPACK_UINT;
	for (uint32_t d = view->ndim; d-- > 0;) {
		e->shape[d] = view->shape[d];
		e->strides[d] = stride;
		stride *= view->shape[d];
	}
}

static void delete_plain(struct dlpack_managed *self)
{
	struct export *e = self->context;

	lease_unref(e->lease);
	free(e);
}

static void delete_versioned(struct dlpack_managed_versioned *self)
{
	struct export *e = self->context;

	lease_unref(e->lease);
	free(e);
}

struct dlpack_managed *lease_export(const struct view *view, bool bool_as_u8)
{
	struct export *e = malloc(sizeof(*e));

	if (!e)
		return NULL;
	export_init(e, view, bool_as_u8, &e->plain.tensor);
	e->plain.context = e;
	e->plain.deleter = delete_plain;
	return &e->plain;
}

struct dlpack_managed_versioned *lease_export_versioned(const struct view *view)
{
	struct export *e = malloc(sizeof(*e));

	if (!e)
		return NULL;
	export_init(e, view, false, &e->versioned.tensor);
	e->versioned.major = DLPACK_MAJOR;
	e->versioned.minor = DLPACK_MINOR;
	e->versioned.context = e;
	e->versioned.deleter = delete_versioned;
	e->versioned.flags = view->read_only ? DLPACK_FLAG_READ_ONLY : 0;
	return &e->versioned;
}
