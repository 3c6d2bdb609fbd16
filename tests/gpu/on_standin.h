/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programs of the GPU run without a GPU: compiled by a C++ compiler, with tests/cuda/standin.c as
 * the runtime. A kernel is a function that the stand-in calls once, in the order of its stream; a
 * graph is a list of those. What the stand-in lacks is here. Shows that the programs do what they
 * say, and nothing of a device.
 */
#ifndef ON_STANDIN_H
#define ON_STANDIN_H

#include <functional>

#include <cuda_runtime_api.h>

extern "C" void standin_launch(void *stream, void (*fn)(void *), void *arg);

static const struct {
	unsigned x;
} blockIdx = {0}, threadIdx = {0}, blockDim = {1}, gridDim = {1};

static inline unsigned long long device_ns()
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static inline void atomicAdd(unsigned long long *p, unsigned long long n)
{
	*p += n;
}

typedef std::vector<std::function<void()>> standin_graph;

static standin_graph *standin_captured; /* by this, the only, thread */

static inline void standin_call(void *arg)
{
	std::function<void()> *fn = (std::function<void()> *)arg;

	(*fn)();
	delete fn;
}

static inline void standin_kernel(cudaStream_t stream, std::function<void()> fn)
{
	if (standin_captured)
		standin_captured->push_back(fn);
	else
		standin_launch(stream, standin_call, new std::function<void()>(fn));
}

#define LAUNCH(kernel, grid, block, stream, ...)                                                   \
	standin_kernel(stream, [=] { kernel(__VA_ARGS__); })

static inline cudaError_t standin_begin(cudaStream_t, cudaStreamCaptureMode)
{
	standin_captured = new standin_graph;
	return cudaSuccess;
}

static inline cudaError_t standin_end(cudaStream_t, cudaGraph_t *graph)
{
	*graph = (cudaGraph_t)standin_captured;
	standin_captured = NULL;
	return cudaSuccess;
}

static inline cudaError_t standin_instantiate(cudaGraphExec_t *exec, cudaGraph_t graph)
{
	*exec = (cudaGraphExec_t) new standin_graph(*(standin_graph *)graph);
	return cudaSuccess;
}

static inline cudaError_t standin_replay(cudaGraphExec_t exec, cudaStream_t stream)
{
	for (const std::function<void()> &fn : *(standin_graph *)exec)
		standin_kernel(stream, fn);
	return cudaSuccess;
}

static inline cudaError_t standin_forget(void *graph)
{
	delete (standin_graph *)graph;
	return cudaSuccess;
}

/* These two are synchronous, and come after all work of the legacy stream. */

static inline cudaError_t standin_set(void *p, int byte, size_t size)
{
	cudaStreamSynchronize(NULL);
	memset(p, byte, size);
	return cudaSuccess;
}

static inline cudaError_t standin_fetch(void *dst, const void *src, size_t size)
{
	cudaStreamSynchronize(NULL);
	memcpy(dst, src, size);
	return cudaSuccess;
}

static inline cudaError_t standin_wait(cudaEvent_t event)
{
	cudaError_t code;

	while ((code = cudaEventQuery(event)) == cudaErrorNotReady) {
		cudaGetLastError();
		usleep(20);
	}
	return code;
}

#define cudaStreamBeginCapture(stream, mode)     standin_begin(stream, mode)
#define cudaStreamEndCapture(stream, graph)      standin_end(stream, graph)
#define cudaGraphInstantiate(exec, graph, flags) standin_instantiate(exec, graph)
#define cudaGraphLaunch(exec, stream)            standin_replay(exec, stream)
#define cudaGraphDestroy(graph)                  standin_forget(graph)
#define cudaGraphExecDestroy(exec)               standin_forget(exec)
#define cudaMemset(p, byte, size)                standin_set(p, byte, size)
#define cudaMemcpy(dst, src, size, kind)         standin_fetch(dst, src, size)
#define cudaEventSynchronize(event)              standin_wait(event)
#define cudaMalloc(p, size)                      cudaMalloc((void **)(p), size)

#endif
