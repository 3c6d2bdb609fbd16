/* SPDX-License-Identifier: Apache-2.0 */
#include "client/cuda/runtime.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Newest first: an older driver refuses it by its own word, and the next one is tried. */
static const char *const libraries[] = {"libcudart.so.13", "libcudart.so.12"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct stk__cuda_runtime runtime;
static bool loaded;

/* False when a function is missing: then this is no CUDA runtime of 12 or newer. */
static bool resolve(void *library, struct stk__cuda_runtime *rt)
{
#define RESOLVE(name, parameters)                                                                  \
	rt->name = (__typeof__(rt->name))dlsym(library, "cuda" #name);                             \
	if (!rt->name)                                                                             \
		return false;
	STK__CUDA_FUNCTIONS(RESOLVE)
#undef RESOLVE
	rt->GetErrorName = (__typeof__(rt->GetErrorName))dlsym(library, "cudaGetErrorName");
	rt->GetErrorString = (__typeof__(rt->GetErrorString))dlsym(library, "cudaGetErrorString");
	return rt->GetErrorName && rt->GetErrorString;
}

/* Does this runtime work? Anything but a refusal by the driver is its last word. */
static int try_runtime(struct stk__cuda_runtime *rt, const char *where, bool *ret_old,
		       struct stk_err *err)
{
	int n = 0, code = rt->GetDeviceCount(&n);

	*ret_old = code == STK__CUDA_OLD_DRIVER;
	if (code == STK__CUDA_SUCCESS && n > 0) {
		if (rt->RuntimeGetVersion(&rt->version) != STK__CUDA_SUCCESS)
			rt->version = 0;
		return 0;
	}
	rt->GetLastError();
	if (code == STK__CUDA_SUCCESS)
		return stk_err_set(err, -ENODEV, "CUDA: %s: there is no device", where);
	return stk_err_set(err, -ENODEV, "CUDA: %s: there is no device: %s (%s)", where,
			   rt->GetErrorName(code), rt->GetErrorString(code));
}

/* Handle of a libcudart that is loaded under whatever name, as wheels rename theirs. */
static int find_loaded(struct dl_phdr_info *info, size_t size, void *data)
{
	const char *slash = strrchr(info->dlpi_name, '/');
	const char *name = slash ? slash + 1 : info->dlpi_name;

	(void)size;
	if (strncmp(name, "libcudart", strlen("libcudart")))
		return 0;
	*(const char **)data = info->dlpi_name;
	return 1;
}

/* Handles are kept for ever: a runtime that was used is not unloaded. */
static void *loaded_library(void)
{
	const char *path = NULL;
	void *library;

	for (size_t i = 0; i < STK_ARRAY_SIZE(libraries); i++) {
		library = dlopen(libraries[i], RTLD_NOW | RTLD_NOLOAD);
		if (library)
			return library;
	}
	dl_iterate_phdr(find_loaded, &path);
	return path ? dlopen(path, RTLD_NOW | RTLD_NOLOAD) : NULL;
}

static int load_new(struct stk__cuda_runtime *rt, struct stk_err *err)
{
	int r = stk_err_set(err, -ENODEV,
			    "CUDA: there is no runtime in this process, and neither %s nor %s is "
			    "installed",
			    libraries[0], libraries[1]);

	for (size_t i = 0; i < STK_ARRAY_SIZE(libraries); i++) {
		void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
		bool old;

		if (!library || !resolve(library, rt))
			continue;
		r = try_runtime(rt, libraries[i], &old, err);
		if (r == 0 || !old)
			return r;
	}
	return r;
}

static int load(struct stk__cuda_runtime *rt, struct stk_err *err)
{
	void *library;
	bool old;

	if (resolve(RTLD_DEFAULT, rt))
		return try_runtime(rt, "the runtime of this process", &old, err);
	library = loaded_library();
	if (library && resolve(library, rt))
		return try_runtime(rt, "the runtime of this process", &old, err);
	return load_new(rt, err);
}

int stk__cuda_runtime(const struct stk__cuda_runtime **ret, struct stk_err *err)
{
	int r = 0;

	pthread_mutex_lock(&lock);
	if (!loaded) {
		struct stk__cuda_runtime rt = {.version = 0};

		r = load(&rt, err);
		if (r == 0) {
			runtime = rt;
			loaded = true;
		}
	}
	pthread_mutex_unlock(&lock);
	if (r == 0)
		*ret = &runtime;
	return r;
}

static int to_errno(int code)
{
	switch (code) {
	case STK__CUDA_NO_MEMORY:
		return -ENOMEM;
	case STK__CUDA_OLD_DRIVER:
	case STK__CUDA_NO_DEVICE:
	case STK__CUDA_INVALID_DEVICE:
		return -ENODEV;
	default:
		return -EIO;
	}
}

int stk__cuda_error(const struct stk__cuda_runtime *rt, int code, const char *function,
		    struct stk_err *err, const char *what, ...)
{
	char text[256];
	va_list args;

	rt->GetLastError();
	va_start(args, what);
	vsnprintf(text, sizeof(text), what, args);
	va_end(args);
	stk_err_set(err, code, "%s: %s (%s): %s", function, rt->GetErrorName(code),
		    rt->GetErrorString(code), text);
	return to_errno(code);
}

int stk__cuda_event_done(const struct stk__cuda_runtime *rt, void *event, struct stk_err *err)
{
	int code = rt->EventQuery(event);

	if (code == STK__CUDA_SUCCESS)
		return 1;
	if (code != STK__CUDA_NOT_READY && code != STK__CUDA_CAPTURED_EVENT)
		return stk__cuda_error(rt, code, "cudaEventQuery", err,
				       "looking whether work on the device is done");
	rt->GetLastError(); /* "not ready" counts as an error there */
	return code == STK__CUDA_NOT_READY ? 0 : STK__CUDA_EVENT_TAKEN;
}
