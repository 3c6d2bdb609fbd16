/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds runtime.h against the CUDA headers of the machine that builds; no code.
 */
#include <assert.h>

#include <cuda_runtime_api.h>

#include "client/cuda/runtime.h"

static_assert(sizeof(cudaStream_t) == sizeof(void *) && sizeof(cudaEvent_t) == sizeof(void *) &&
		      sizeof(cudaError_t) == sizeof(int) &&
		      sizeof(enum cudaMemcpyKind) == sizeof(int) &&
		      sizeof(enum cudaStreamCaptureMode) == sizeof(int) &&
		      sizeof(enum cudaDeviceAttr) == sizeof(int),
	      "handles are pointers, enumerations ints");

#define SAME(ours, theirs) static_assert((int)(ours) == (int)(theirs), #theirs)
SAME(STK__CUDA_SUCCESS, cudaSuccess);
SAME(STK__CUDA_INVALID_VALUE, cudaErrorInvalidValue);
SAME(STK__CUDA_NO_MEMORY, cudaErrorMemoryAllocation);
SAME(STK__CUDA_UNLOADING, cudaErrorCudartUnloading);
SAME(STK__CUDA_OLD_DRIVER, cudaErrorInsufficientDriver);
SAME(STK__CUDA_NO_DEVICE, cudaErrorNoDevice);
SAME(STK__CUDA_INVALID_DEVICE, cudaErrorInvalidDevice);
SAME(STK__CUDA_NOT_READY, cudaErrorNotReady);
SAME(STK__CUDA_NOT_SUPPORTED, cudaErrorNotSupported);
SAME(STK__CUDA_CAPTURE_UNSUPPORTED, cudaErrorStreamCaptureUnsupported);
SAME(STK__CUDA_CAPTURED_EVENT, cudaErrorCapturedEvent);
SAME(STK__CUDA_CAPTURE_WRONG_THREAD, cudaErrorStreamCaptureWrongThread);
SAME(STK__CUDA_EVENT_DISABLE_TIMING, cudaEventDisableTiming);
SAME(STK__CUDA_STREAM_NON_BLOCKING, cudaStreamNonBlocking);
SAME(STK__CUDA_REGISTER_PORTABLE, cudaHostRegisterPortable);
SAME(STK__CUDA_HOST_ALLOC_PORTABLE, cudaHostAllocPortable);
SAME(STK__CUDA_COPY_HOST_TO_DEVICE, cudaMemcpyHostToDevice);
SAME(STK__CUDA_CAPTURE_RELAXED, cudaStreamCaptureModeRelaxed);
SAME(STK__CUDA_ATTR_PAGEABLE_ACCESS, cudaDevAttrPageableMemoryAccess);
SAME(STK__CUDA_ATTR_REGISTER_SUPPORTED, cudaDevAttrHostRegisterSupported);
SAME(STK__CUDA_ATTR_HOST_PAGE_TABLES, cudaDevAttrPageableMemoryAccessUsesHostPageTables);
SAME(STK__CUDA_ATTR_REGISTER_READ_ONLY, cudaDevAttrHostRegisterReadOnlySupported);
#if CUDART_VERSION >= 13000
SAME(STK__CUDA_ATTR_HOST_NUMA_ID, cudaDevAttrHostNumaId);
#endif

/* The prototypes, with our types in place of theirs. */
#define CHECK(name, ...)                                                                           \
	static_assert(                                                                             \
		__builtin_types_compatible_p(__typeof__(&cuda##name), cudaError_t(*) __VA_ARGS__), \
		#name);
CHECK(RuntimeGetVersion, (int *))
CHECK(GetDeviceCount, (int *))
CHECK(GetDevice, (int *))
CHECK(SetDevice, (int))
CHECK(DeviceGetAttribute, (int *, enum cudaDeviceAttr, int))
CHECK(DeviceGetPCIBusId, (char *, int, int))
CHECK(DeviceSynchronize, (void))
CHECK(ThreadExchangeStreamCaptureMode, (enum cudaStreamCaptureMode *))
CHECK(GetLastError, (void))
CHECK(HostRegister, (void *, size_t, unsigned))
CHECK(HostUnregister, (void *))
CHECK(HostAlloc, (void **, size_t, unsigned))
CHECK(FreeHost, (void *))
CHECK(Malloc, (void **, size_t))
CHECK(Free, (void *))
CHECK(MemcpyAsync, (void *, const void *, size_t, enum cudaMemcpyKind, cudaStream_t))
CHECK(StreamCreateWithFlags, (cudaStream_t *, unsigned))
CHECK(StreamDestroy, (cudaStream_t))
CHECK(StreamSynchronize, (cudaStream_t))
CHECK(StreamWaitEvent, (cudaStream_t, cudaEvent_t, unsigned))
CHECK(EventCreateWithFlags, (cudaEvent_t *, unsigned))
CHECK(EventDestroy, (cudaEvent_t))
CHECK(EventRecord, (cudaEvent_t, cudaStream_t))
CHECK(EventQuery, (cudaEvent_t))
