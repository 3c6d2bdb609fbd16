/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the design takes for granted about page-locked shared memory, looked at on a device: which
 * mappings can be registered, what that costs, who sees what, and which copies are asynchronous.
 */
#include "gpu.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static int device;

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
	sum_words<<<512, 256>>>((const uint32_t *)p, size / 4, sum);
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
	m->fd = memfd_create("gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING | (pages == HUGETLB ? MFD_HUGETLB : 0));
	if (m->fd < 0 || ftruncate(m->fd, size) < 0)
		return false;
	if (pages == HUGETLB && fallocate(m->fd, 0, 0, size) < 0) {
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

static double copy_gbs(void *dst, const void *src, size_t size, int rounds)
{
	cudaStream_t stream;
	double start;

	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMemcpyAsync(dst, src, size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	start = now_s();
	for (int i = 0; i < rounds; i++)
		CUDA(cudaMemcpyAsync(dst, src, size, cudaMemcpyHostToDevice, stream));
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
static void registration(void *dst, enum pages pages, const char *name)
{
	struct memory m;
	double t0, t1, t2, gbs;
	char what[64];
	bool same;

	snprintf(what, sizeof(what), "2  register 1 GiB, %s", name);
	if (!make(&m, GIB, pages)) {
		row(what, true, "no such pages here");
		return;
	}
	t0 = now_s();
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	t0 = now_s() - t0;
	NEED(mprotect(m.map, m.size, PROT_READ) == 0);
	NEED(fcntl(m.fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | 0x10 /* FUTURE_WRITE */) == 0);
	gbs = copy_gbs(dst, m.map, m.size, 4);
	same = device_sum(dst, m.size) == host_sum(&m);
	t1 = now_s();
	CUDA(cudaHostUnregister(m.map));
	t2 = now_s() - t1;
	row(what, same, "%.0f ms, read-only and sealed: %.1f GB/s, %s, unregister %.0f ms", t0 * 1e3,
	    gbs, same ? "right" : "WRONG", t2 * 1e3);
	drop(&m);
}

static void read_only()
{
	struct memory m;
	uint8_t *map;
	int plain, flag;

	NEED(make(&m, 16 * MIB, SMALL));
	map = (uint8_t *)mmap(NULL, m.size, PROT_READ, MAP_SHARED, m.fd, 0);
	NEED(map != MAP_FAILED);
	plain = cudaHostRegister(map, m.size, 0);
	if (!plain)
		cudaHostUnregister(map);
	flag = cudaHostRegister(map, m.size, cudaHostRegisterReadOnly);
	if (!flag)
		cudaHostUnregister(map);
	cudaGetLastError();
	row("3  read-only mapping: plain, with the flag", true, "%d, %d (1 and 801 are expected)", plain,
	    flag);
	munmap(map, m.size);
	drop(&m);
}

static void asynchrony(void *dst)
{
	struct memory m;
	cudaStream_t copies, work;
	double start, returned, both, alone;
	const double us = 20000;

	NEED(make(&m, GIB, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	CUDA(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking));
	CUDA(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
	start = now_s();
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, copies));
	returned = now_s() - start;
	CUDA(cudaStreamSynchronize(copies));
	alone = now_s() - start;
	start = now_s();
	busy<<<1, 1, 0, work>>>(cycles_of_us(device, us));
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, copies));
	CUDA(cudaStreamSynchronize(copies));
	CUDA(cudaStreamSynchronize(work));
	both = now_s() - start;
	row("4  1 GiB copy: call returns, with a kernel", returned < alone / 10,
	    "%.0f us of %.1f ms; with a kernel of %.0f ms %.1f ms", returned * 1e6, alone * 1e3,
	    us * 1e-3, both * 1e3);
	CUDA(cudaHostUnregister(m.map));
	CUDA(cudaStreamDestroy(copies));
	CUDA(cudaStreamDestroy(work));
	drop(&m);
}

/* In a process of its own: CUDA cannot be used after a fork. argv: what, descriptor, bytes. */
static pid_t spawn(const char *what, int fd, size_t size)
{
	char a[16], b[32], d[16];
	pid_t pid = fork();

	if (pid)
		return pid;
	fcntl(fd, F_SETFD, 0);
	snprintf(a, sizeof(a), "%d", fd);
	snprintf(b, sizeof(b), "%zu", size);
	snprintf(d, sizeof(d), "%d", device);
	execl("/proc/self/exe", "facts", what, a, b, d, (char *)NULL);
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
	void *dst;
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

static void sharing(void *dst)
{
	struct memory m;
	bool same;
	int rc;

	NEED(make(&m, 64 * MIB, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	rc = wait_for(spawn("shares", m.fd, m.size));
	copy_gbs(dst, m.map, m.size, 1);
	same = device_sum(dst, m.size) == 3ull * (m.size / 4);
	row("5  two processes register one file", !rc && same, "child %d, its stores seen here: %s", rc,
	    same ? "yes" : "NO");
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

static void ends_of_writers(void *dst)
{
	struct memory m;
	cudaStream_t stream;
	cudaError_t code;
	pid_t pid;
	int cut;

	NEED(make(&m, 512 * MIB, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	pid = spawn("writes", m.fd, m.size);
	usleep(300000);
	CUDA(cudaMemcpyAsync(dst, m.map, m.size, cudaMemcpyHostToDevice, stream));
	kill(pid, SIGKILL);
	wait_for(pid);
	code = cudaStreamSynchronize(stream);
	row("6  the writer is killed during a copy", code == cudaSuccess, "%s", cudaGetErrorName(code));
	cut = ftruncate(m.fd, m.size / 2);
	row("6  ftruncate while registered", true, "%s (a seal forbids it)", cut ? "refused" : "allowed");
	code = cudaHostUnregister(m.map);
	cudaGetLastError();
	row("6  unregister of a file that was cut", true, "%s", cudaGetErrorName(code));
	CUDA(cudaStreamDestroy(stream));
	drop(&m);
	NEED(make(&m, 64 * MIB, SMALL));
	CUDA(cudaHostRegister(m.map, m.size, cudaHostRegisterPortable));
	munmap(m.map, m.size);
	code = cudaHostUnregister(m.map);
	cudaGetLastError();
	row("6  munmap before unregister", true, "unregister says %s", cudaGetErrorName(code));
	close(m.fd);
}

/* A slot that is filled again as soon as the copy was started, and one that waits for the event. */
static void early_release(void *dst)
{
	struct memory m;
	cudaStream_t stream;
	cudaEvent_t event;
	unsigned long long want, early, guarded;

	NEED(make(&m, 256 * MIB, SMALL));
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

/* Registers 8 GiB in pieces of so many bytes. */
static int child_registers(size_t piece)
{
	const size_t size = 8 * GIB;
	struct memory m;

	NEED(make(&m, size, SMALL));
	for (size_t i = 0; i < size; i += piece)
		CUDA(cudaHostRegister(m.map + i, piece, cudaHostRegisterPortable));
	for (size_t i = 0; i < size; i += piece)
		CUDA(cudaHostUnregister(m.map + i));
	return 0;
}

/* The longest of our short calls while another process registers. */
static void stall(size_t piece, const char *name)
{
	double worst = 0, start = now_s();
	char what[64];
	void *p;
	int status = 0;
	pid_t pid = spawn("registers", 2, piece);

	while (waitpid(pid, &status, WNOHANG) == 0) {
		double t = now_s();

		CUDA(cudaHostAlloc(&p, 4096, 0));
		CUDA(cudaFreeHost(p));
		worst = std::max(worst, now_s() - t);
	}
	snprintf(what, sizeof(what), "8  8 GiB registered elsewhere, %s", name);
	row(what, status == 0, "our worst cudaHostAlloc %.1f ms, in %.1f s", worst * 1e3,
	    now_s() - start);
}

int main(int argc, char **argv)
{
	void *dst;

	if (argc == 5) {
		int fd = atoi(argv[2]);
		size_t size = strtoull(argv[3], NULL, 10);

		device = atoi(argv[4]);
		CUDA(cudaSetDevice(device));
		return !strcmp(argv[1], "shares") ? child_shares(fd, size)
		       : !strcmp(argv[1], "writes") ? child_writes(fd, size)
						    : child_registers(size);
	}
	device = argc > 1 ? atoi(argv[1]) : 0;
	need_device(device);
	CUDA(cudaSetDevice(device));
	CUDA(cudaMalloc(&dst, GIB));
	attributes();
	registration(dst, SMALL, "4 KiB pages");
	registration(dst, THP, "transparent huge pages");
	registration(dst, HUGETLB, "hugetlb");
	read_only();
	asynchrony(dst);
	sharing(dst);
	early_release(dst);
	if ((size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE) > 24 * GIB) {
		stall(8 * GIB, "in one call");
		stall(GIB, "in pieces of 1 GiB");
	} else {
		row("8  8 GiB registered elsewhere", true, "not run: less than 24 GiB of memory");
	}
	ends_of_writers(dst); /* the last: what it does may leave a range registered */
	return failures ? 1 : 0;
}
