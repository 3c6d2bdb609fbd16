/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the design takes for granted about page-locked shared memory, looked at on a device: which
 * mappings can be registered, what that costs, who sees what, and which copies are asynchronous.
 */
#include "gpu.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static int device;
static void *dst;  /* a buffer there, for the largest copy */
static size_t big; /* 1 GiB */

static __global__ void sum_words(const uint32_t *p, size_t n, unsigned long long *ret)
{
	unsigned long long sum = 0;

	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		sum += p[i];
	atomicAdd(ret, sum);
}

static unsigned long long device_sum(const void *p, size_t size)
{
	unsigned long long *sum, ret;

	CUDA(cudaMalloc(&sum, sizeof(*sum)));
	CUDA(cudaMemset(sum, 0, sizeof(*sum)));
	LAUNCH(sum_words, 512, 256, 0, (const uint32_t *)p, size / 4, sum);
	CUDA(cudaGetLastError());
	CUDA(cudaMemcpy(&ret, sum, sizeof(ret), cudaMemcpyDeviceToHost));
	CUDA(cudaFree(sum));
	return ret;
}

struct memory {
	int fd;
	uint8_t *map;
	size_t size;
};

enum pages { SMALL, THP, HUGETLB };

/* False: this machine has no such pages. */
static bool make(struct memory *m, size_t size, enum pages pages)
{
	m->size = size;
	m->fd = memfd_create("gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING |
					    (pages == HUGETLB ? MFD_HUGETLB : 0));
	if (m->fd < 0)
		return false;
	if (ftruncate(m->fd, size) < 0 || (pages == HUGETLB && fallocate(m->fd, 0, 0, size) < 0)) {
		close(m->fd);
		return false;
	}
	m->map = (uint8_t *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	NEED(m->map != MAP_FAILED);
	if (pages == THP)
		madvise(m->map, size, MADV_HUGEPAGE);
	for (size_t i = 0; i < size / 4; i += 1024 / 4)
		((uint32_t *)m->map)[i] = (uint32_t)i;
	return true;
}

static void drop(struct memory *m)
{
	munmap(m->map, m->size);
	close(m->fd);
}

static unsigned long long host_sum(const struct memory *m)
{
	unsigned long long sum = 0;

	for (size_t i = 0; i < m->size / 4; i++)
		sum += ((uint32_t *)m->map)[i];
	return sum;
}

static double copy_gbs(void *to, const void *src, size_t size, int rounds)
{
	cudaStream_t stream;
	double start;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMemcpyAsync(to, src, size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	start = now_s();
	for (int i = 0; i < rounds; i++)
		CUDA(cudaMemcpyAsync(to, src, size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	start = now_s() - start;
	CUDA(cudaStreamDestroy(stream));
	return size * (double)rounds / start * 1e-9;
}

static void attributes()
{
	static const int which[] = {88, 99, 100, 113, 134};
	char text[128] = "", bdf[32] = "", path[128], node[16] = "?\n";
	int value = -1, host_node = -1;
	FILE *f;

	for (int a : which) {
		if (cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)a, device) != cudaSuccess) {
			cudaGetLastError();
			value = -99;
		}
		host_node = value;
		snprintf(path, sizeof(path), "attribute_%d", a);
		figure(path, value);
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "%d=%d ", a, value);
	}
	row("1  attributes 88 99 100 113 134", true, "%s", text);
	CUDA(cudaDeviceGetPCIBusId(bdf, sizeof(bdf), device));
	for (char *p = bdf; *p; p++)
		*p = *p >= 'A' && *p <= 'F' ? *p + 32 : *p;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/numa_node", bdf);
	f = fopen(path, "r");
	if (f && !fgets(node, sizeof(node), f))
		node[0] = '\0';
	if (f)
		fclose(f);
	node[strcspn(node, "\n")] = '\0';
	row("10 node of the device: sysfs, CUDA", true, "%s: %s, %d", bdf, node, host_node);
}

/* 2: register, protect, copy, unregister, for each kind of page. 9: sealed afterwards. */
static void registration(enum pages pages, const char *name)
{
	struct memory m;
	double t0, t1, t2, gbs;
	char what[64];
	bool same, sealed;

	snprintf(what, sizeof(what), "2  register %zu MiB, %s", (size_t)(big / MIB), name);
	if (!make(&m, big, pages)) {
		row(what, true, "no such pages here");
		return;
	}
	t0 = now_s();
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	t0 = now_s() - t0;
	NEED(mprotect(m.map, m.size, PROT_READ) == 0);
	/* Older kernels, and those that only look like one, may not have the last. */
	sealed = fcntl(m.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 /* FUTURE_WRITE */) ==
		 0;
	gbs = copy_gbs(dst, m.map, m.size, 4);
	same = device_sum(dst, m.size) == host_sum(&m);
	t1 = now_s();
	CUDA(cudaHostUnregister(m.map));
	t2 = now_s() - t1;
	figure("register_ms", t0 * 1e3);
	figure("gbs", gbs);
	figure("unregister_ms", t2 * 1e3);
	row(what, same, "%.0f ms, read-only and %s: %.1f GB/s, %s, unregister %.0f ms", t0 * 1e3,
	    sealed ? "sealed (9)" : "NOT sealed (9)", gbs, same ? "right" : "WRONG", t2 * 1e3);
	drop(&m);
}

static void registrations()
{
	registration(SMALL, "4 KiB pages");
	registration(THP, "transparent huge pages");
	registration(HUGETLB, "hugetlb");
}

static void read_only()
{
	struct memory m;
	uint8_t *map;
	int plain, flag;

	NEED(make(&m, big / 64, SMALL));
	map = (uint8_t *)mmap(NULL, m.size, PROT_READ, MAP_SHARED, m.fd, 0);
	NEED(map != MAP_FAILED);
	plain = cudaHostRegister(map, m.size, 0);
	if (!plain)
		cudaHostUnregister(map);
	cudaGetLastError();
	flag = cudaHostRegister(map, m.size, cudaHostRegisterReadOnly);
	if (!flag)
		cudaHostUnregister(map);
	cudaGetLastError();
	row("3  read-only mapping: plain, with the flag", true, "%d, %d (1 and 801 are expected)",
	    plain, flag);
	munmap(map, m.size);
	drop(&m);
}

static void asynchrony()
{
	struct memory m;
	cudaStream_t copies, work;
	double start, returned, both, alone;
	const double us = 20000;

	NEED(make(&m, big, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	CUDA(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
	/* What is loaded and made at a first use comes first. */
	LAUNCH(busy, 1, 1, work, 1000);
	CUDA(cudaMemcpyAsync(dst, m.map, 4096, cudaMemcpyHostToDevice, copies));
	CUDA(cudaDeviceSynchronize());
	start = now_s();
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, copies));
	returned = now_s() - start;
	CUDA(cudaStreamSynchronize(copies));
	alone = now_s() - start;
	start = now_s();
	LAUNCH(busy, 1, 1, work, (unsigned long long)(us * 1e3));
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, copies));
	CUDA(cudaStreamSynchronize(copies));
	CUDA(cudaStreamSynchronize(work));
	both = now_s() - start;
	figure("returned_us", returned * 1e6);
	figure("alone_ms", alone * 1e3);
	figure("with_kernel_ms", both * 1e3);
	row("4  large copy: call returns, with a kernel", in_time(returned < alone / 10),
	    "%.0f us of %.1f ms; with a kernel of %.0f ms %.1f ms", returned * 1e6, alone * 1e3,
	    us * 1e-3, both * 1e3);
	CUDA(cudaHostUnregister(m.map));
	CUDA(cudaStreamDestroy(copies));
	CUDA(cudaStreamDestroy(work));
	drop(&m);
}

/* In a process of its own: CUDA cannot be used after a fork. argv: --child, what, descriptor, bytes, device. */
static pid_t spawn(const char *what, int fd, size_t size)
{
	char a[16], b[32], d[16];
	pid_t pid;

	snprintf(a, sizeof(a), "%d", fd);
	snprintf(b, sizeof(b), "%zu", size);
	snprintf(d, sizeof(d), "%d", device);
	pid = fork();
	NEED(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	fcntl(fd, F_SETFD, 0);
	execl("/proc/self/exe", "facts", "--child", what, a, b, d, (char *)NULL);
	_exit(127);
}

static int wait_for(pid_t pid)
{
	int status;

	NEED(waitpid(pid, &status, 0) == pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* The other process registers the same file and writes it; our copy has to see what it wrote. */
static int child_shares(int fd, size_t size)
{
	uint8_t *map = (uint8_t *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	int same;

	NEED(map != MAP_FAILED);
	CUDA(cudaHostRegister(map, size, cudaHostRegisterPortable));
	CUDA(cudaMalloc(&dst, size));
	for (size_t i = 0; i < size / 4; i++)
		((uint32_t *)map)[i] = 3;
	copy_gbs(dst, map, size, 1);
	same = device_sum(dst, size) == 3ull * (size / 4);
	CUDA(cudaHostUnregister(map));
	return same ? 0 : 9;
}

static void sharing()
{
	struct memory m;
	bool same;
	int rc;

	NEED(make(&m, big / 16, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	rc = wait_for(spawn("shares", m.fd, m.size));
	copy_gbs(dst, m.map, m.size, 1);
	same = device_sum(dst, m.size) == 3ull * (m.size / 4);
	row("5  two processes register one file", !rc && same, "child %d, its stores seen here: %s",
	    rc, same ? "yes" : "NO");
	CUDA(cudaHostUnregister(m.map));
	drop(&m);
}

/* A writer that dies while the device reads what it wrote. */
static int child_writes(int fd, size_t size)
{
	uint8_t *map = (uint8_t *)mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	NEED(map != MAP_FAILED);
	for (;;)
		memset(map, 5, size);
}

static void ends_of_writers()
{
	struct memory m;
	cudaStream_t stream;
	cudaError_t code;
	pid_t pid;
	int cut;

	NEED(make(&m, big / 2, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	pid = spawn("writes", m.fd, m.size);
	usleep(300000);
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, stream));
	kill(pid, SIGKILL);
	wait_for(pid);
	code = cudaStreamSynchronize(stream);
	row("6  the writer is killed during a copy", code == cudaSuccess, "%s",
	    cudaGetErrorName(code));
	cut = ftruncate(m.fd, m.size / 2);
	row("6  ftruncate while registered", true, "%s (a seal forbids it)",
	    cut ? "refused" : "allowed");
	code = cudaHostUnregister(m.map);
	cudaGetLastError();
	row("6  unregister of a file that was cut", true, "%s", cudaGetErrorName(code));
	CUDA(cudaStreamDestroy(stream));
	drop(&m);
	NEED(make(&m, big / 16, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	munmap(m.map, m.size);
	code = cudaHostUnregister(m.map);
	cudaGetLastError();
	row("6  munmap before unregister", true, "unregister says %s", cudaGetErrorName(code));
	close(m.fd);
}

/* A slot that is filled again as soon as the copy was started, and one that waits for the event. */
static void early_release()
{
	struct memory m;
	cudaStream_t stream;
	cudaEvent_t event;
	unsigned long long want, early, guarded;

	NEED(make(&m, big / 4, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	memset(m.map, 1, m.size);
	want = host_sum(&m);
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, stream));
	memset(m.map + m.size / 2, 2, m.size / 2);
	CUDA(cudaStreamSynchronize(stream));
	early = device_sum(dst, m.size);
	memset(m.map, 1, m.size);
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaEventRecord(event, stream));
	while (cudaEventQuery(event) == cudaErrorNotReady)
		cudaGetLastError();
	memset(m.map + m.size / 2, 2, m.size / 2);
	CUDA(cudaStreamSynchronize(stream));
	guarded = device_sum(dst, m.size);
	row("7  slot filled again: at once, after event", guarded == want, "%s, %s",
	    early == want ? "right by luck" : "corrupt", guarded == want ? "right" : "CORRUPT");
	CUDA(cudaEventDestroy(event));
	CUDA(cudaStreamDestroy(stream));
	CUDA(cudaHostUnregister(m.map));
	drop(&m);
}

/* Registers so many bytes in pieces; says by the file's first word when it begins, and ends. */
static int child_registers(int fd, size_t piece)
{
	std::atomic<uint64_t> *said;
	struct memory m;
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	NEED(p != MAP_FAILED);
	said = (std::atomic<uint64_t> *)p;
	NEED(make(&m, said[1], SMALL));
	CUDA(cudaFree(0)); /* the context */
	said[0] = 1;
	for (size_t i = 0; i < m.size; i += piece)
		CUDA(cudaHostRegister(m.map + i, piece, cudaHostRegisterPortable));
	said[0] = 2;
	for (size_t i = 0; i < m.size; i += piece)
		CUDA(cudaHostUnregister(m.map + i));
	return 0;
}

/* The longest of our short calls while another process registers. */
static void stall(size_t size, size_t piece, const char *name)
{
	double worst = 0, t, began = 0, took = 0;
	std::atomic<uint64_t> *said;
	char what[64];
	struct memory m;
	void *p;
	int status = 0;
	pid_t pid;

	NEED(make(&m, 4096, SMALL));
	said = (std::atomic<uint64_t> *)m.map;
	said[0] = 0;
	said[1] = size;
	pid = spawn("registers", m.fd, piece);
	while (waitpid(pid, &status, WNOHANG) == 0) {
		if (said[0] != 1) {
			usleep(200);
			continue;
		}
		t = now_s();
		began = began ? began : t;
		CUDA(cudaHostAlloc(&p, 4096, 0));
		CUDA(cudaFreeHost(p));
		took = now_s() - began;
		worst = std::max(worst, now_s() - t);
	}
	snprintf(what, sizeof(what), "8  %zu MiB registered elsewhere, %s", (size_t)(size / MIB),
		 name);
	figure("worst_ms", worst * 1e3);
	figure("took_s", took);
	row(what, status == 0, "our worst cudaHostAlloc %.1f ms, in %.1f s", worst * 1e3, took);
	drop(&m);
}

/* As much as the memory that is there allows. */
static void stalls()
{
	size_t memory = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
	size_t size = memory > 24 * GIB ? 8 * GIB : memory > 6 * GIB ? 2 * GIB : 0;

	size /= quick();
	if (!size) {
		row("8  registered elsewhere", true, "not run: less than 6 GiB of memory");
		return;
	}
	stall(size, size, "at once");
	stall(size, size / 8, "by eighths");
}

static void begin()
{
	need_device(device);
	CUDA(cudaSetDevice(device));
	big = GIB / quick();
	CUDA(cudaMalloc(&dst, big));
}

/* The last one may leave a range registered. */
static const struct part parts[] = {
	{"attributes", 10, attributes}, {"registration", 30, registrations},
	{"read-only", 10, read_only},   {"asynchrony", 15, asynchrony},
	{"sharing", 20, sharing},       {"early-release", 15, early_release},
	{"stalls", 45, stalls},         {"ends-of-writers", 20, ends_of_writers},
};

static int child(char **argv)
{
	int fd = atoi(argv[1]);
	size_t size = strtoull(argv[2], NULL, 10);

	part_name = argv[0];
	device = atoi(argv[3]);
	CUDA(cudaSetDevice(device));
	return !strcmp(argv[0], "shares")   ? child_shares(fd, size)
	       : !strcmp(argv[0], "writes") ? child_writes(fd, size)
					    : child_registers(fd, size);
}

int main(int argc, char **argv)
{
	const size_t n = sizeof(parts) / sizeof(parts[0]);

	if (argc == 6 && !strcmp(argv[1], "--child"))
		return child(argv + 2);
	if (argc == 2 && !strcmp(argv[1], "--parts"))
		return list_parts(parts, n);
	if (argc < 2)
		return 2;
	device = atoi(argv[1]);
	return run_parts(begin, parts, n, argv + 2);
}
