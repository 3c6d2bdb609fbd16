/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both programs of the GPU run share: errors that end the program with their place, time, rows of
 * the table. Single-threaded but where said.
 */
#ifndef GPU_H
#define GPU_H

#include <algorithm>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include <cuda_runtime.h>

#define MIB (1ul << 20)
#define GIB (1ul << 30)

#define CUDA(call)                                                                                 \
	do {                                                                                       \
		cudaError_t code_ = (call);                                                        \
		if (code_ != cudaSuccess) {                                                        \
			printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #call,                       \
			       cudaGetErrorName(code_));                                           \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#define NEED(what)                                                                                 \
	do {                                                                                       \
		if (!(what)) {                                                                     \
			printf("%s:%d: %s: %m\n", __FILE__, __LINE__, #what);                      \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static int failures;

static inline double now_s()
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

/* One line of the table; a row that is not ok makes the run fail. */
__attribute__((format(printf, 3, 4))) static inline void row(const char *what, bool ok,
							     const char *fmt, ...)
{
	va_list args;

	printf("%-44s  ", what);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("%s\n", ok ? "" : "   <-- FAIL");
	fflush(stdout);
	failures += !ok;
}

static inline double at(std::vector<double> v, double share)
{
	if (v.empty())
		return 0;
	std::sort(v.begin(), v.end());
	return v[std::min(v.size() - 1, (size_t)(share * v.size()))];
}

static inline void need_device(int device)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n <= device) {
		printf("SKIP: no CUDA device\n");
		exit(77);
	}
}

/* Spins for about so many microseconds on one thread of the device. */
static __global__ void busy(long long cycles)
{
	long long start = clock64();

	while (clock64() - start < cycles)
		;
}

static inline long long cycles_of_us(int device, double us)
{
	int khz = 0;

	CUDA(cudaDeviceGetAttribute(&khz, cudaDevAttrClockRate, device));
	return (long long)(khz * 1e-3 * us);
}

#endif
