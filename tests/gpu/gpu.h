/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What both programs of the GPU run share: their parts, each with a time limit, errors that end the
 * program with their place, rows of the table. Single-threaded but for the watchdog.
 *
 *   PROGRAM --parts            the names of its parts
 *   PROGRAM DEVICE ... PART..  runs these; each row also goes, as JSON, to the file $GPU_RESULTS
 */
#ifndef GPU_H
#define GPU_H

#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#ifdef GPU_STANDIN
#include "on_standin.h"
#else
#include <cuda_runtime.h>
#define LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)

static __device__ inline unsigned long long device_ns()
{
	unsigned long long t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}
#endif

#define MIB (1ul << 20)
#define GIB (1ul << 30)

#define TIMED_OUT 124 /* exit status, as timeout(1) has it */

static int failures;
static const char *part_name = "";
static std::string figures; /* of the next row */

/* Not with what stdio holds: a child process has it too. */
static inline void put_line(const std::string &line)
{
	const char *path = getenv("GPU_RESULTS");
	FILE *f = path ? fopen(path, "a") : NULL;

	if (!f)
		return;
	fprintf(f, "%s\n", line.c_str());
	fclose(f);
}

static inline std::string quoted(const char *text)
{
	std::string s = "\"";

	for (; *text; text++) {
		if (*text == '"' || *text == '\\')
			s += '\\';
		s += (unsigned char)*text < ' ' ? ' ' : *text;
	}
	return s + '"';
}

/* A number that the next row tells to programs. */
static inline void figure(const char *name, double value)
{
	char number[64];

	snprintf(number, sizeof(number), "%.6g", value);
	figures += (figures.empty() ? "" : ", ") + quoted(name) + ": " + number;
}

/* One line of the table; a row that is not ok makes the run fail. */
__attribute__((format(printf, 3, 4))) static inline void row(const char *what, bool ok,
							     const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	printf("%-44s  %s%s\n", what, text, ok ? "" : "   <-- FAIL");
	fflush(stdout);
	put_line("{\"part\": " + quoted(part_name) + ", \"row\": " + quoted(what) +
		 ", \"ok\": " + (ok ? "true" : "false") + ", \"text\": " + quoted(text) +
		 ", \"figures\": {" + figures + "}}");
	figures.clear();
	failures += !ok;
}

/* The part cannot go on; the run goes on with the next one, in a new process. */
__attribute__((format(printf, 1, 2), noreturn)) static inline void give_up(const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	row(part_name, false, "%s", text);
	_exit(3);
}

#define CUDA(call)                                                                                 \
	do {                                                                                       \
		cudaError_t code_ = (call);                                                        \
		if (code_ != cudaSuccess)                                                          \
			give_up("%s:%d: %s: %s", __FILE__, __LINE__, #call,                        \
				cudaGetErrorName(code_));                                          \
	} while (0)

#define NEED(what)                                                                                 \
	do {                                                                                       \
		if (!(what))                                                                       \
			give_up("%s:%d: %s: %m", __FILE__, __LINE__, #what);                       \
	} while (0)

static inline double now_s()
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec + ts.tv_nsec * 1e-9;
}

static inline double at(std::vector<double> v, double share)
{
	if (v.empty())
		return 0;
	std::sort(v.begin(), v.end());
	return v[std::min(v.size() - 1, (size_t)(share * v.size()))];
}

/* Sizes and counts divided by this: the programs themselves are looked at, not the device. */
static inline unsigned quick()
{
	const char *text = getenv("GPU_QUICK");

	return text ? std::max(atoi(text), 1) : 1;
}

/* Whether a time is as it should be: looked at on a device only. */
static inline bool in_time(bool ok)
{
	return ok || quick() > 1;
}

static inline void need_device(int device)
{
	int n = 0;

	if (cudaGetDeviceCount(&n) != cudaSuccess || n <= device) {
		printf("SKIP: no CUDA device\n");
		exit(77);
	}
}

/* Spins for so long, whatever the clock rate is meanwhile. */
static __global__ void busy(unsigned long long ns)
{
	unsigned long long start = device_ns();

	while (device_ns() - start < ns)
		;
}

/* Parts. */

struct part {
	const char *name;
	unsigned limit_s;
	void (*run)();
};

static std::atomic<double> part_ends;

/* A call that hangs takes its part with it, and nothing else. */
static inline void watch()
{
	for (;;) {
		usleep(100000);
		if (now_s() < part_ends)
			continue;
		row(part_name, false, "timed out: this part, and what it measures, is missing");
		_exit(TIMED_OUT);
	}
}

static inline void run_part(const struct part *p)
{
	const char *most = getenv("GPU_LIMIT_S"); /* of each */
	double start = now_s();
	char time[32];

	part_name = p->name;
	part_ends = start + (most ? std::min(p->limit_s, (unsigned)atoi(most)) : p->limit_s);
	put_line("{\"begin\": " + quoted(p->name) + "}");
	p->run();
	snprintf(time, sizeof(time), "%.3f", now_s() - start);
	put_line("{\"end\": " + quoted(p->name) + ", \"seconds\": " + time + "}");
}

/* Those named, or all; @begin comes first, and has a limit as well. */
static inline int run_parts(void (*begin)(), const struct part *parts, size_t n, char **names)
{
	part_ends = now_s() + 30;
	part_name = "start";
	std::thread(watch).detach();
	begin();
	for (size_t i = 0; i < n; i++) {
		bool wanted = !*names;

		for (char **name = names; *name; name++)
			wanted |= !strcmp(*name, parts[i].name);
		if (wanted)
			run_part(&parts[i]);
	}
	part_name = "end";
	part_ends = now_s() + 10; /* for the end of the runtime */
	return failures ? 1 : 0;
}

static inline int list_parts(const struct part *parts, size_t n)
{
	for (size_t i = 0; i < n; i++)
		printf("%s\n", parts[i].name);
	return 0;
}

#endif
