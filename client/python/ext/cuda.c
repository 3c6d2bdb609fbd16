/* SPDX-License-Identifier: Apache-2.0 */
#include "client/python/ext/cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

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

/* Beside libstoker, where both are installed; else by the run path and the system's rules. */
static void *open_library(void)
{
	void *library = NULL;
	char path[PATH_MAX];
	const char *slash;
	Dl_info info;

	if (dladdr((void *)stk_client_open, &info) && (slash = strrchr(info.dli_fname, '/'))) {
		snprintf(path, sizeof(path), "%.*s/" LIBRARY, (int)(slash - info.dli_fname),
			 info.dli_fname);
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	}
	return library ? library : dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
}

static int load(char *error, size_t size)
{
	void *library = open_library();
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
