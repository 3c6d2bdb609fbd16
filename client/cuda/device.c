/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/device.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int choose(const struct stk__cuda_runtime *rt, int *ordinal, struct stk_err *err)
{
	int n = 0, code;

	if (*ordinal == -1) {
		code = rt->GetDevice(ordinal);
		if (code != STK__CUDA_SUCCESS)
			return stk__cuda_error(rt, code, "cudaGetDevice", err,
					       "asking for the current device");
	}
	code = rt->GetDeviceCount(&n);
	if (code != STK__CUDA_SUCCESS)
		return stk__cuda_error(rt, code, "cudaGetDeviceCount", err, "counting devices");
	if (*ordinal < 0 || *ordinal >= n)
		return stk_err_set(err, -ENODEV,
				   "device %d: there are %d, counted from 0; -1 is the current one",
				   *ordinal, n);
	return 0;
}

int stk__cuda_device_new(int ordinal, struct stk__cuda_device **ret, struct stk_err *err)
{
	const struct stk__cuda_runtime *rt;
	struct stk__cuda_device *device;
	int r;

	if ((r = stk__cuda_runtime(&rt, err)) < 0 || (r = choose(rt, &ordinal, err)) < 0)
		return r;
	device = calloc(1, sizeof(*device));
	if (!device)
		return stk_err_set(err, -ENOMEM, "device: no memory");
	device->refs = 1;
	device->rt = rt;
	device->ordinal = ordinal;
	pthread_mutex_init(&device->callers, NULL);
	pthread_mutex_init(&device->lock, NULL);
	pthread_cond_init(&device->changed, NULL);
	*ret = device;
	return 0;
}

struct stk__cuda_device *stk__cuda_device_ref(struct stk__cuda_device *device)
{
	/* Relaxed: whoever refs holds a reference already. */
	atomic_fetch_add_explicit(&device->refs, 1, memory_order_relaxed);
	return device;
}

struct stk__cuda_device *stk__cuda_device_unref(struct stk__cuda_device *device)
{
	/* Acquire-release: every use by other holders precedes the free. */
	if (!device || atomic_fetch_sub_explicit(&device->refs, 1, memory_order_acq_rel) != 1)
		return NULL;
	if (device->started) {
		pthread_mutex_lock(&device->lock);
		device->stop = true;
		pthread_cond_broadcast(&device->changed);
		pthread_mutex_unlock(&device->lock);
		pthread_join(device->thread, NULL);
	}
	pthread_cond_destroy(&device->changed);
	pthread_mutex_destroy(&device->lock);
	pthread_mutex_destroy(&device->callers);
	free(device);
	return NULL;
}

bool stk__cuda_is_current(const struct stk__cuda_device *device)
{
	int current = -1;

	if (device->rt->GetDevice(&current) == STK__CUDA_SUCCESS)
		return current == device->ordinal;
	/* Broken, or unloaded at the process's end: what is called here fails, and makes nothing. */
	device->rt->GetLastError();
	return true;
}

static int call(struct stk__cuda_device *device, int (*fn)(void *arg), void *arg)
{
	const struct stk__cuda_runtime *rt = device->rt;
	int mode = STK__CUDA_CAPTURE_RELAXED, r;
	bool exchanged = rt->ThreadExchangeStreamCaptureMode(&mode) == STK__CUDA_SUCCESS;

	if (!exchanged)
		rt->GetLastError();
	r = fn(arg);
	if (exchanged && rt->ThreadExchangeStreamCaptureMode(&mode) != STK__CUDA_SUCCESS)
		rt->GetLastError();
	return r;
}

static void *work(void *data)
{
	struct stk__cuda_device *device = data;

	pthread_mutex_lock(&device->lock);
	device->failed = device->rt->SetDevice(device->ordinal);
	while (!device->stop) {
		if (device->pending) {
			if (!device->failed)
				device->result = call(device, device->fn, device->arg);
			device->pending = false;
			pthread_cond_broadcast(&device->changed);
		}
		pthread_cond_wait(&device->changed, &device->lock);
	}
	pthread_mutex_unlock(&device->lock);
	return NULL;
}

/* Under callers. Signals are the trainer's business, on its own threads. */
static int start(struct stk__cuda_device *device)
{
	sigset_t all, old;
	int r;

	if (device->started)
		return 0;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&device->thread, NULL, work, device);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r)
		return -EAGAIN;
	pthread_setname_np(device->thread, "stoker-cuda");
	device->started = true;
	return 0;
}

/* Under callers. */
static int hand_over(struct stk__cuda_device *device, int (*fn)(void *arg), void *arg,
		     struct stk_err *err)
{
	int r;

	if (start(device) < 0)
		return stk_err_set(err, -EAGAIN, "device %d: no thread for it could be started",
				   device->ordinal);
	pthread_mutex_lock(&device->lock);
	device->fn = fn;
	device->arg = arg;
	device->pending = true;
	pthread_cond_broadcast(&device->changed);
	while (device->pending)
		pthread_cond_wait(&device->changed, &device->lock);
	r = device->result;
	if (device->failed)
		r = stk__cuda_error(device->rt, device->failed, "cudaSetDevice", err,
				    "making device %d current on a thread of our own",
				    device->ordinal);
	pthread_mutex_unlock(&device->lock);
	return r;
}

int stk__cuda_run(struct stk__cuda_device *device, int (*fn)(void *arg), void *arg,
		  struct stk_err *err)
{
	int r;

	if (stk__cuda_is_current(device))
		return call(device, fn, arg);
	pthread_mutex_lock(&device->callers);
	r = hand_over(device, fn, arg, err);
	pthread_mutex_unlock(&device->callers);
	return r;
}

static void describe(const struct stk__cuda_device *device, struct stk_cuda_device *i)
{
	static const struct {
		int attribute, bit;
	} bits[] = {
		{STK__CUDA_ATTR_PAGEABLE_ACCESS, STK_CUDA_ATTR_PAGEABLE},
		{STK__CUDA_ATTR_REGISTER_SUPPORTED, STK_CUDA_ATTR_REGISTER},
		{STK__CUDA_ATTR_HOST_PAGE_TABLES, STK_CUDA_ATTR_HOST_TABLES},
		{STK__CUDA_ATTR_REGISTER_READ_ONLY, STK_CUDA_ATTR_REGISTER_READ},
	};
	const struct stk__cuda_runtime *rt = device->rt;
	int value;

	for (size_t b = 0; b < STK_ARRAY_SIZE(bits); b++) {
		if (rt->DeviceGetAttribute(&value, bits[b].attribute, device->ordinal))
			rt->GetLastError();
		else if (value)
			i->attributes |= bits[b].bit;
	}
	/* An older runtime does not know the attribute. */
	if (rt->DeviceGetAttribute(&value, STK__CUDA_ATTR_HOST_NUMA_ID, device->ordinal))
		rt->GetLastError();
	else
		i->host_node = value < 0 ? -1 : value;
	if (rt->DeviceGetPCIBusId(i->pci, sizeof(i->pci), device->ordinal)) {
		rt->GetLastError();
		i->pci[0] = '\0';
	}
}

STK_PUBLIC int stk_cuda_device(int ordinal, struct stk_cuda_device *ret, char *error,
			       size_t error_size)
{
	_cleanup_(stk__cuda_device_unrefp) struct stk__cuda_device *device = NULL;
	struct stk_cuda_device i = {.size = STK_MIN(ret->size, sizeof(i)), .host_node = -1};
	struct stk_err err;
	int r;

	if (ret->size < sizeof(ret->size))
		r = stk_err_set(&err, -EINVAL, "device: size %zu, set it to sizeof()", ret->size);
	else
		r = stk__cuda_device_new(ordinal, &device, &err);
	if (r < 0) {
		if (error && error_size)
			snprintf(error, error_size, "%s", err.text);
		return r;
	}
	i.device = device->ordinal;
	i.runtime = device->rt->version;
	describe(device, &i);
	memcpy(ret, &i, i.size);
	return 0;
}
