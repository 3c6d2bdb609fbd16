/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/pipeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAUSE_NS 2000000 /* between looks whether the caller let go of a device slot */

int pipeline_place(struct pipeline *p, struct stk_client_opts *opts, char *error, size_t size)
{
	struct stk_cuda_device device = {.size = sizeof(device)};

	if (cuda_load(error, size) < 0 || cuda_calls->device(p->wanted, &device, error, size) < 0)
		return -ENODEV;
	memcpy(p->pci, device.pci, sizeof(p->pci));
	opts->pci = p->pci[0] ? p->pci : NULL;
	opts->host_node = device.host_node;
	return 0;
}

static void keep_warning(void *data, const char *text)
{
	struct pipeline *p = data;

	free(atomic_exchange(&p->warning, strdup(text)));
}

int pipeline_open(struct pipeline *p, struct stk_client *client, char *error, size_t size)
{
	struct stk_cuda_opts opts = {
		.size = sizeof(opts),
		.device = p->wanted,
		.depth = p->depth,
		.flags = p->kind == PIPELINE_HOST ? STK_CUDA_HOST : 0,
		.warn = keep_warning,
		.warn_data = p,
	};
	struct stk_cuda_info info = {.size = sizeof(info)};
	int r;

	if (p->cuda)
		return 0;
	r = cuda_calls->open(client, &opts, &p->cuda, error, size);
	if (r < 0)
		return r == -EINVAL || r == -ECHILD ? r : -ENODEV;
	cuda_calls->info(p->cuda, &info);
	p->device = info.device;
	return 0;
}

/* An error of CUDA is one of the device, whatever its errno is. */
static int told(struct pipeline *p, int r, char *error, size_t size)
{
	int code;

	if (r >= 0)
		return r;
	code = cuda_calls->last_error(p->cuda, error, size);
	return code ? -ENODEV : r;
}

static int next(struct pipeline *p, int timeout_ms, struct taken *ret)
{
	if (p->kind == PIPELINE_HOST)
		return timeout_ms == PIPELINE_TAKE
			       ? cuda_calls->take_host(p->cuda, &ret->batch)
			       : cuda_calls->next_host(p->cuda, timeout_ms, &ret->batch);
	return timeout_ms == PIPELINE_TAKE
		       ? cuda_calls->take(p->cuda, ret->stream, &ret->on_device)
		       : cuda_calls->next(p->cuda, timeout_ms, ret->stream, &ret->on_device);
}

int pipeline_next(struct pipeline *p, int timeout_ms, struct taken *ret, char *error, size_t size)
{
	const struct timespec pause = {.tv_nsec = PAUSE_NS};
	int r = next(p, timeout_ms, ret);

	if (r == 0) {
		ret->cuda = p->cuda;
		ret->device = p->device;
		return 0;
	}
	if (r != -EBUSY)
		return told(p, r, error, size);
	if (timeout_ms != PIPELINE_TAKE)
		nanosleep(&pause, NULL);
	return STK_TIMEOUT;
}

int pipeline_seek(struct pipeline *p, const void *state, size_t state_size, char *error,
		  size_t size)
{
	return told(p, cuda_calls->seek(p->cuda, state, state_size), error, size);
}

void pipeline_close(struct pipeline *p)
{
	if (p->cuda)
		p->cuda = cuda_calls->close(p->cuda);
}

void pipeline_deinit(struct pipeline *p)
{
	pipeline_close(p);
	free(atomic_exchange(&p->warning, NULL));
}
