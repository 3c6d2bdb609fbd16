/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>

#define LIBRARY "libstoker-cuda.so.0"

const struct cuda_calls *cuda_calls;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_calls calls;

/* The first name that is missing, or NULL. */
static const char *resolve(void *library)
{
#define RESOLVE(name)                                                                              \
	calls.name = (__typeof__(calls.name))dlsym(library, "stk_cuda_" #name);                    \
	if (!calls.name)                                                                           \
		return "stk_cuda_" #name;
	CUDA_FUNCTIONS(RESOLVE)
#undef RESOLVE
	return NULL;
}

static int load(char *error, size_t size)
{
	/* By the run path of this extension, then by the system's rules. */
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	const char *missing;

	if (!library) {
		snprintf(error, size, "libstoker-cuda cannot be loaded: %s", dlerror());
		return -ENODEV;
	}
	missing = resolve(library);
	if (!missing) {
		cuda_calls = &calls;
		return 0;
	}
	snprintf(error, size, LIBRARY " is of another release: it has no %s", missing);
	dlclose(library);
	return -ENODEV;
}

int cuda_load(char *error, size_t size)
{
	int r;

	pthread_mutex_lock(&lock);
	r = cuda_calls ? 0 : load(error, size);
	pthread_mutex_unlock(&lock);
	return r;
}
