/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>

#include "tests/cuda/standin_private.h"

struct call {
	struct call *next;
	char name[48];
	uint64_t n;
	unsigned fail_in, fail_times;
	int fail_code;
};

pthread_mutex_t standin_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t standin_changed = PTHREAD_COND_INITIALIZER;
bool standin_capturing;
bool standin_lax;
int standin_broken;
_Atomic unsigned standin_delay;
__thread int standin_current;
__thread int standin_capture_mode;

static struct call *calls;
static bool contexts[DEVICES_MAX];
static int ndevices = 2;
static pid_t process; /* that it was loaded into */
static __thread int last_error;

/* Every call. */

static struct call *find_call(const char *name)
{
	struct call *c;

	for (c = calls; c; c = c->next)
		if (!strcmp(c->name, name))
			return c;
	c = calloc(1, sizeof(*c));
	snprintf(c->name, sizeof(c->name), "%s", name);
	c->next = calls;
	return calls = c;
}

static int finish(int code)
{
	if (code)
		last_error = code;
	return code;
}

int standin_enter(const char *name, bool touches)
{
	struct call *c;

	if (getpid() != process)
		DIE("%s is called in a forked child", name);
	pthread_mutex_lock(&standin_lock);
	if (touches)
		contexts[standin_current] = true;
	c = find_call(name);
	c->n++;
	if (!c->fail_times)
		return 0;
	if (c->fail_in > 1) {
		c->fail_in--;
		return 0;
	}
	c->fail_times--;
	return c->fail_code;
}

int standin_leave(int code)
{
	pthread_mutex_unlock(&standin_lock);
	return finish(code);
}

/* Devices. */

API int cudaRuntimeGetVersion(int *ret)
{
	ENTER(false);
	*ret = STANDIN_VERSION;
	return standin_leave(0);
}

API int cudaGetDeviceCount(int *ret)
{
	ENTER(false);
	*ret = ndevices;
	return standin_leave(ndevices ? 0 : STK__CUDA_NO_DEVICE);
}

API int cudaGetDevice(int *ret)
{
	ENTER(false);
	BROKEN();
	*ret = standin_current;
	return standin_leave(0);
}

API int cudaSetDevice(int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return standin_leave(STK__CUDA_INVALID_DEVICE);
	BROKEN();
	standin_current = device;
	contexts[device] = true; /* as CUDA 12 does it */
	return standin_leave(0);
}

API int cudaDeviceGetAttribute(int *ret, int attribute, int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return standin_leave(STK__CUDA_INVALID_DEVICE);
	if (attribute == STK__CUDA_ATTR_HOST_NUMA_ID && STANDIN_VERSION < 13000)
		return standin_leave(STK__CUDA_INVALID_VALUE);
	*ret = attribute == STK__CUDA_ATTR_HOST_NUMA_ID         ? 0
	       : attribute == STK__CUDA_ATTR_REGISTER_SUPPORTED ? 1
								: 0;
	return standin_leave(0);
}

API int cudaDeviceGetPCIBusId(char *ret, int size, int device)
{
	ENTER(false);
	if (device < 0 || device >= ndevices)
		return standin_leave(STK__CUDA_INVALID_DEVICE);
	snprintf(ret, (size_t)size, "0000:%02X:00.0", 0x41 + device);
	return standin_leave(0);
}

API int cudaThreadExchangeStreamCaptureMode(int *mode)
{
	int old = standin_capture_mode;

	ENTER(true);
	BROKEN();
	standin_capture_mode = *mode;
	*mode = old;
	return standin_leave(0);
}

API int cudaGetLastError(void)
{
	int code = last_error;

	last_error = 0;
	return code;
}

API const char *cudaGetErrorName(int code)
{
	static const struct {
		int code;
		const char *name;
	} names[] = {
		{0, "cudaSuccess"},
		{STK__CUDA_INVALID_VALUE, "cudaErrorInvalidValue"},
		{STK__CUDA_NO_MEMORY, "cudaErrorMemoryAllocation"},
		{STK__CUDA_OLD_DRIVER, "cudaErrorInsufficientDriver"},
		{STK__CUDA_NO_DEVICE, "cudaErrorNoDevice"},
		{STK__CUDA_INVALID_DEVICE, "cudaErrorInvalidDevice"},
		{INVALID_HANDLE, "cudaErrorInvalidResourceHandle"},
		{STK__CUDA_NOT_READY, "cudaErrorNotReady"},
		{700, "cudaErrorIllegalAddress"},
		{ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered"},
		{NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered"},
		{CAPTURE_UNSUPPORTED, "cudaErrorStreamCaptureUnsupported"},
		{CAPTURE_ISOLATION, "cudaErrorStreamCaptureIsolation"},
		{CAPTURED_EVENT, "cudaErrorCapturedEvent"},
		{STK__CUDA_NOT_SUPPORTED, "cudaErrorNotSupported"},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(names); i++)
		if (names[i].code == code)
			return names[i].name;
	return "unrecognized error code";
}

API const char *cudaGetErrorString(int code)
{
	return code ? "as the stand-in was told" : "no error";
}

/* What tests ask and tell. */

uint64_t standin_calls(const char *name)
{
	uint64_t n;

	pthread_mutex_lock(&standin_lock);
	n = find_call(name)->n;
	pthread_mutex_unlock(&standin_lock);
	return n;
}

void standin_fail(const char *name, unsigned nth, unsigned times, int code)
{
	struct call *c;

	pthread_mutex_lock(&standin_lock);
	c = find_call(name);
	c->fail_in = nth;
	c->fail_times = times;
	c->fail_code = code;
	pthread_mutex_unlock(&standin_lock);
}

void standin_devices(int n)
{
	pthread_mutex_lock(&standin_lock);
	ndevices = STK_MIN(n, DEVICES_MAX);
	pthread_mutex_unlock(&standin_lock);
}

void standin_delay_us(unsigned us)
{
	pthread_mutex_lock(&standin_lock);
	standin_delay = us;
	pthread_mutex_unlock(&standin_lock);
}

void standin_break(int code)
{
	pthread_mutex_lock(&standin_lock);
	standin_broken = code;
	pthread_mutex_unlock(&standin_lock);
}

void standin_capture(bool on)
{
	pthread_mutex_lock(&standin_lock);
	standin_capturing = on;
	pthread_mutex_unlock(&standin_lock);
}

bool standin_has_context(int device)
{
	bool has;

	pthread_mutex_lock(&standin_lock);
	has = contexts[device];
	pthread_mutex_unlock(&standin_lock);
	return has;
}

int standin_last_error(void)
{
	return last_error;
}

void standin_check_balance(void)
{
	pthread_mutex_lock(&standin_lock);
	standin_memory_balance();
	standin_stream_balance();
	standin_end_defaults();
	pthread_mutex_unlock(&standin_lock);
}

void standin_reset(void)
{
	standin_check_balance();
	pthread_mutex_lock(&standin_lock);
	for (struct call *c = calls; c; c = c->next)
		c->n = c->fail_times = 0;
	memset(contexts, 0, sizeof(contexts));
	standin_capturing = false;
	standin_broken = 0;
	ndevices = 2;
	standin_delay = 0;
	standin_stream_reset();
	standin_current = 0;
	last_error = 0;
	pthread_mutex_unlock(&standin_lock);
}

/*
 * For programs that find it by themselves: STANDIN_FAIL="NAME:NTH:TIMES:CODE", STANDIN_DELAY_US,
 * STANDIN_DEVICES, STANDIN_LAX.
 */
__attribute__((constructor)) static void from_environment(void)
{
	const char *fail = getenv("STANDIN_FAIL"), *delay = getenv("STANDIN_DELAY_US");
	const char *devices = getenv("STANDIN_DEVICES");
	unsigned nth, times;
	char name[48];
	int code;

	if (fail && sscanf(fail, "%47[^:]:%u:%u:%d", name, &nth, &times, &code) == 4)
		standin_fail(name, nth, times, code);
	process = getpid();
	standin_lax = getenv("STANDIN_LAX") != NULL;
	if (delay)
		standin_delay = (unsigned)atoi(delay);
	if (devices)
		standin_devices(atoi(devices));
}

__attribute__((destructor)) static void at_end(void)
{
	pthread_mutex_lock(&standin_lock);
	standin_end_defaults();
	pthread_mutex_unlock(&standin_lock);
}
