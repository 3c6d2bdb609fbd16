/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/lease.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define STREAM_PER_THREAD ((void *)2) /* cudaStreamPerThread */

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

/* Leases that could not be given back yet: a stack without a lock, as a fork may come any time. */
static struct lease *_Atomic parked;

static void park(struct lease *lease)
{
	lease->next = atomic_load_explicit(&parked, memory_order_relaxed);
	/* Release: pairs with lease_retry(). */
	while (!atomic_compare_exchange_weak_explicit(&parked, &lease->next, lease,
						      memory_order_release, memory_order_relaxed))
		;
}

/* The streams to be waited for. */
static uint32_t readers(const struct lease *lease, void *streams[LEASE_USES])
{
	uint32_t n = lease->nuses;

	for (uint32_t i = 0; i < n; i++) {
		streams[i] = lease->uses[i].stream;
		if (streams[i] == STREAM_PER_THREAD &&
		    !pthread_equal(lease->uses[i].thread, pthread_self()))
			streams[i] = STK_CUDA_ANY_STREAM; /* it has no name here */
	}
	if (lease->too_many || (!n && lease->unordered)) {
		streams[0] = STK_CUDA_ANY_STREAM;
		n = 1;
	}
	return n;
}

/* 0, or a negative errno: not now. */
static int release(const struct taken *taken, void *const *streams, uint32_t n)
{
	int r = 0;

	if (taken->on_device) {
		r = cuda_calls->release_after(taken->on_device, streams, n);
		return r == -EAGAIN ? r : 0;
	}
	if (taken->cuda) {
		r = cuda_calls->release_host(taken->cuda, taken->batch, streams, n);
		return r == -EAGAIN || r == -ENOMEM ? r : 0;
	}
	stk_batch_release(taken->batch);
	return 0;
}

void taken_drop(const struct taken *taken)
{
	release(taken, NULL, 0);
}

static bool has_batch(const struct lease *lease)
{
	return lease->taken.batch || lease->taken.on_device;
}

/* False: not now. */
static bool give_back(struct lease *lease)
{
	void *streams[LEASE_USES];

	if (!has_batch(lease))
		return true;
	if (release(&lease->taken, streams, readers(lease, streams)) < 0)
		return false;
	lease->taken.batch = NULL;
	lease->taken.on_device = NULL;
	/* Relaxed: a figure; the slot itself is handed over by the library. */
	atomic_fetch_sub_explicit(&lease->count->held, 1, memory_order_relaxed);
	return true;
}

static void end(struct lease *lease)
{
	if (!give_back(lease)) {
		park(lease);
		return;
	}
	lease_count_unref(lease->count);
	free(lease->copy);
	free(lease);
}

void lease_retry(void)
{
	struct lease *lease;

	/* Relaxed: what is missed now is found by the next call. */
	if (!atomic_load_explicit(&parked, memory_order_relaxed))
		return;
	lease = atomic_exchange_explicit(&parked, NULL, memory_order_acquire);
	while (lease) {
		struct lease *next = lease->next;

		end(lease);
		lease = next;
	}
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

	taken_info(&lease->taken, &info);
	size = size_with_numbers(&info);
	lease->copy = aligned_alloc(256, (size + 255) & ~(size_t)255);
	if (!lease->copy)
		return false;
	memcpy(lease->copy, info.data, size);
	return true;
}

void taken_info(const struct taken *taken, struct stk_batch_info *info)
{
	if (!taken->on_device) {
		stk_batch_info(taken->batch, info);
		return;
	}
	cuda_calls->batch_info(taken->on_device, info);
	info->slot = cuda_calls->batch_slot(taken->on_device);
}

int taken_state(const struct taken *taken, void *state, size_t room)
{
	return taken->on_device ? cuda_calls->batch_state(taken->on_device, state, room)
				: stk_batch_state(taken->batch, state, room);
}

uint32_t taken_ntensors(const struct taken *taken)
{
	return taken->on_device ? cuda_calls->batch_ntensors(taken->on_device)
				: stk_batch_ntensors(taken->batch);
}

int taken_tensor_at(const struct taken *taken, uint32_t i, struct stk_tensor *ret)
{
	return taken->on_device ? cuda_calls->batch_tensor_at(taken->on_device, i, ret)
				: stk_batch_tensor_at(taken->batch, i, ret);
}

static void add_use(struct lease *lease, void *stream)
{
	lease->too_many |= lease->nuses == LEASE_USES;
	if (!lease->too_many)
		lease->uses[lease->nuses++] =
			(struct lease_use){.stream = stream, .thread = pthread_self()};
}

struct lease *lease_new(const struct taken *taken, struct lease_count *count, bool copy)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	struct lease *lease = malloc(sizeof(*lease));

	if (!lease) {
		taken_drop(taken);
		return NULL;
	}
	taken_info(taken, &info);
	*lease = (struct lease){.refs = 1, .taken = *taken, .count = count, .base = info.data};
	count_ref(count);
	atomic_fetch_add_explicit(&count->held, 1, memory_order_relaxed);
	if (copy && !copy_out(lease)) {
		lease_unref(lease);
		return NULL;
	}
	/* next() made it wait already. */
	if (!copy && taken->cuda && taken->stream != STK_CUDA_NO_STREAM)
		add_use(lease, taken->stream);
	return lease;
}

void lease_settle(struct lease *lease)
{
	if (lease->copy)
		give_back(lease); /* if not now, then with the lease */
}

static bool is_used_by(const struct lease *lease, const void *stream)
{
	for (uint32_t i = 0; i < lease->nuses; i++)
		if (lease->uses[i].stream == stream &&
		    (stream != STREAM_PER_THREAD ||
		     pthread_equal(lease->uses[i].thread, pthread_self())))
			return true;
	return false;
}

int lease_use(struct lease *lease, void *stream)
{
	int r;

	if (!lease->taken.cuda || !has_batch(lease))
		return 1;
	if (is_used_by(lease, stream))
		return 0;
	if (stream == STK_CUDA_NO_STREAM) {
		lease->unordered = true;
		return 0;
	}
	r = lease->taken.on_device ? cuda_calls->wait(lease->taken.on_device, stream) : 0;
	if (r < 0)
		return r;
	add_use(lease, stream);
	return 0;
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
	end(lease);
}

static void *moved(const struct lease *lease, const void *data)
{
	return lease->copy ? lease->copy + ((const char *)data - lease->base) : (void *)data;
}

bool lease_view(struct lease *lease, uint32_t i, bool read_only, struct view *ret)
{
	struct stk_tensor tensor;

	if (taken_tensor_at(&lease->taken, i, &tensor) < 0)
		return false;
	*ret = (struct view){
		.lease = lease,
		.data = moved(lease, tensor.data),
		.size = tensor.size,
		.element = tensor.element,
		.ndim = tensor.ndim,
		.read_only = read_only && !lease->taken.on_device,
		.device = lease->taken.on_device ? lease->taken.device : -1,
	};
	for (uint32_t d = 0; d < tensor.ndim; d++)
		ret->shape[d] = (int64_t)tensor.shape[d];
	return true;
}

/* Memory of its own, of no batch. NULL: none. */
static struct lease *copy_of(const struct lease *lease, const void *data, size_t size)
{
	struct lease *own = calloc(1, sizeof(*own));

	if (!own)
		return NULL;
	own->copy = malloc(size + 1);
	if (!own->copy) {
		free(own);
		return NULL;
	}
	memcpy(own->copy, data, size);
	own->refs = 1;
	own->base = data;
	own->count = lease->count;
	count_ref(own->count);
	return own;
}

bool lease_view_numbers(struct lease *lease, const struct stk_batch_info *info,
			enum lease_numbers which, bool read_only, struct view *ret)
{
	uint32_t n;
	const void *data = find_numbers(info, which, &n);
	struct lease *own = NULL;

	if (!data)
		return false;
	if (lease->taken.on_device)
		own = copy_of(lease, data, n * number_size(which));
	if (own)
		lease = own;
	else
		lease_ref(lease);
	*ret = (struct view){
		.lease = lease,
		.data = moved(lease, data),
		.size = n * number_size(which),
		.element = which == LEASE_SAMPLE_IDS ? STK_I64 : STK_I32,
		.ndim = 1,
		.read_only = read_only,
		.device = -1,
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
		.device = {view->device < 0 ? DLPACK_CPU : DLPACK_CUDA,
			   view->device < 0 ? 0 : view->device},
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
