/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes one anonymous memory file ready before anybody sees it: sealed, placed, populated, checked,
 * locked. After that no page of it can fail to be there. On a work thread; knows no other file.
 */
#include "daemon/memory/memfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

#define CHUNK       (UINT64_C(64) << 20) /* between two looks at `cancel` */
#define CHECK_PAGES 1024                 /* per call of move_pages() */
#define NODES_MAX   1024                 /* the kernel's own limit */

static uint64_t page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* Under `require` the error stands; under `try` its text becomes a warning and 0 is returned. */
static int need(const struct stkd_place *place, int how, const char *kind, struct stk_err *why,
		struct stk_err *err)
{
	if (how == STK_NEED_REQUIRE)
		return stk_err_set(err, why->code, "%s", why->text);
	if (place->warn)
		place->warn(place->data, kind, why->text);
	return 0;
}

static bool cancelled(const struct stkd_place *place)
{
	/* Relaxed: nothing but the wish itself is read. */
	return place->progress &&
	       atomic_load_explicit(&place->progress->cancel, memory_order_relaxed);
}

static int create(const char *name, struct stkd_memfile *file, struct stk_err *err)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;

	file->fd = memfd_create(name, flags | MFD_NOEXEC_SEAL);
	if (file->fd < 0 && errno == EINVAL)
		file->fd = memfd_create(name, flags);
	if (file->fd < 0)
		return stk_err_set(err, -errno, "memory file %s: memfd_create: %m", name);
	/* Its mode counts when someone opens it through /proc: only we may, and only to read. */
	if (fchmod(file->fd, 0400) < 0)
		return stk_err_set(err, -errno, "memory file %s: fchmod: %m", name);
	if (ftruncate(file->fd, (off_t)file->size) < 0)
		return stk_err_set(err, -errno, "memory file %s: %" PRIu64 " bytes: %m", name,
				   file->size);
	if (fcntl(file->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
		return stk_err_set(err, -errno, "memory file %s: seals: %m", name);
	return 0;
}

static int map(const char *name, struct stkd_memfile *file, struct stk_err *err)
{
	void *address = mmap(NULL, file->size, PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
	struct rlimit limit;
	int r = -errno;

	if (address != MAP_FAILED) {
		file->map = address;
		return 0;
	}
	if (r == -ENOMEM && getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
		return stk_err_set(err, r,
				   "memory file %s: cannot map %" PRIu64
				   " bytes: RLIMIT_AS is %llu bytes for all mappings",
				   name, file->size, (unsigned long long)limit.rlim_cur);
	return stk_err_set(err, r, "memory file %s: cannot map %" PRIu64 " bytes: %s%s", name,
			   file->size, strerrordesc_np(-r),
			   r == -ENOMEM ? " (address space, or vm.max_map_count)" : "");
}

/* Binding to a full node would end in the kernel's OOM killer, so what it has left is asked first. */
static int bind_node(const char *name, struct stkd_memfile *file, int node, struct stk_err *why)
{
	enum { BITS = 8 * sizeof(unsigned long) };
	unsigned long mask[NODES_MAX / BITS] = {0};
	uint64_t available;

	if (node >= NODES_MAX)
		return stk_err_set(why, -EINVAL, "memory file %s: NUMA node %d: at most %d", name,
				   node, NODES_MAX - 1);
	available = stkd_node_available("/sys", node);
	if (available && available < file->size)
		return stk_err_set(why, -ENOMEM,
				   "memory file %s: NUMA node %d has %" PRIu64
				   " bytes left, %" PRIu64 " needed",
				   name, node, available, file->size);
	mask[node / BITS] = 1UL << node % BITS;
	if (mbind(file->map, file->size, MPOL_BIND, mask, NODES_MAX, 0) < 0)
		return stk_err_set(
			why, -errno, "memory file %s: cannot be bound to NUMA node %d: %s", name,
			node,
			errno == EINVAL ? "not online, or not in the cgroup's cpuset.mems"
					: strerrordesc_np(errno));
	file->node = node;
	return 0;
}

/* One chunk of pages now, or an error instead of a SIGBUS later. */
static int populate_chunk(struct stkd_memfile *file, uint64_t offset, uint64_t size)
{
	if (madvise(file->map + offset, size, MADV_POPULATE_WRITE) == 0)
		return 0;
	if (errno != EINVAL)
		return -errno;
	/* Before Linux 5.14: allocated first, so that touching cannot fail. */
	if (fallocate(file->fd, 0, (off_t)offset, (off_t)size) < 0)
		return -errno;
	for (uint64_t i = 0; i < size; i += page_size())
		*(volatile uint8_t *)(file->map + offset + i) = 0;
	return 0;
}

static void progress_start(const struct stkd_place *place, const char *stage, uint64_t total)
{
	/* Relaxed: for the eye only. */
	if (!place->progress)
		return;
	atomic_store_explicit(&place->progress->done, 0, memory_order_relaxed);
	atomic_store_explicit(&place->progress->total, total, memory_order_relaxed);
	atomic_store_explicit(&place->progress->stage, stage, memory_order_relaxed);
}

static int populate(const char *name, struct stkd_memfile *file, const struct stkd_place *place,
		    struct stk_err *err)
{
	int r;

	progress_start(place, "populating memory", file->size);
	for (uint64_t offset = 0; offset < file->size; offset += CHUNK) {
		uint64_t size = STK_MIN(CHUNK, file->size - offset);

		if (cancelled(place))
			return stk_err_set(err, -ECANCELED, "memory file %s: cancelled", name);
		r = populate_chunk(file, offset, size);
		if (r < 0)
			return stk_err_set(err, r,
					   "memory file %s: %" PRIu64 " of %" PRIu64
					   " bytes could be populated: %s",
					   name, offset, file->size,
					   r == -EFAULT ? "no memory" : strerrordesc_np(-r));
		if (place->progress)
			atomic_fetch_add_explicit(&place->progress->done, size,
						  memory_order_relaxed);
	}
	return 0;
}

/* Counts pages that lie elsewhere than on the node. */
static int check_chunk(const struct stkd_memfile *file, uint64_t offset, uint64_t *strangers)
{
	void *pages[CHECK_PAGES];
	int status[CHECK_PAGES];
	unsigned long n = 0;

	for (; n < CHECK_PAGES && offset < file->size; offset += page_size())
		pages[n++] = file->map + offset;
	if (move_pages(0, n, pages, NULL, status, 0) < 0)
		return -errno;
	for (unsigned long i = 0; i < n; i++)
		*strangers += status[i] != file->node;
	return 0;
}

static int check_node(const char *name, const struct stkd_memfile *file,
		      const struct stkd_place *place, struct stk_err *why)
{
	uint64_t strangers = 0, step = CHECK_PAGES * page_size();
	int r;

	for (uint64_t offset = 0; offset < file->size; offset += step) {
		if (cancelled(place))
			return stk_err_set(why, -ECANCELED, "memory file %s: cancelled", name);
		r = check_chunk(file, offset, &strangers);
		if (r < 0)
			return stk_err_set(why, r,
					   "memory file %s: its NUMA node %d cannot be checked: "
					   "move_pages: %s",
					   name, file->node, strerrordesc_np(-r));
	}
	if (strangers)
		return stk_err_set(
			why, -ENOMEM,
			"memory file %s: %" PRIu64 " of %" PRIu64 " pages are not on NUMA node %d",
			name, strangers, (file->size + page_size() - 1) / page_size(), file->node);
	return 0;
}

/* Bytes that this process has locked already; they count against the limit too. */
static uint64_t locked_bytes(void)
{
	FILE *file = fopen("/proc/self/status", "re");
	unsigned long long kib = 0;
	char line[256];

	if (!file)
		return 0;
	while (fgets(line, sizeof(line), file) && sscanf(line, "VmLck: %llu kB", &kib) != 1)
		;
	fclose(file);
	return kib * 1024;
}

static int lock(const char *name, struct stkd_memfile *file, struct stk_err *why)
{
	struct rlimit limit;
	int r;

	if (mlock(file->map, file->size) == 0) {
		file->locked = true;
		return 0;
	}
	r = -errno;
	if ((r != -ENOMEM && r != -EPERM && r != -EAGAIN) ||
	    getrlimit(RLIMIT_MEMLOCK, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
		return stk_err_set(why, r, "memory file %s: cannot lock %" PRIu64 " bytes: %s",
				   name, file->size, strerrordesc_np(-r));
	return stk_err_set(
		why, r,
		"memory file %s: cannot lock %" PRIu64 " bytes: RLIMIT_MEMLOCK is %llu bytes, "
		"%" PRIu64 " are needed with what is locked already (LimitMEMLOCK= of the unit, "
		"ulimit -l)",
		name, file->size, (unsigned long long)limit.rlim_cur, locked_bytes() + file->size);
}

/* bind, populate, check, lock: in this order, as a touched or pinned page does not move any more. */
static int place_file(const char *name, struct stkd_memfile *file, const struct stkd_place *place,
		      struct stk_err *err)
{
	bool now = place->populate || file->size <= STKD_MEMFILE_SMALL;
	struct stk_err why = {.code = 0};
	int r = 0;

	if (place->node >= 0 && bind_node(name, file, place->node, &why) < 0)
		r = need(place, place->numa, "numa", &why, err);
	if (r == 0 && now)
		r = populate(name, file, place, err);
	if (r < 0)
		return r;
	if (file->node >= 0 && now) {
		r = check_node(name, file, place, &why);
		if (r == -ECANCELED)
			return stk_err_set(err, r, "%s", why.text);
		if (r < 0)
			r = need(place, place->numa, "numa", &why, err);
	}
	if (r == 0 && place->lock >= 0 && lock(name, file, &why) < 0)
		r = need(place, place->lock, "lock", &why, err);
	return r;
}

int stkd_memfile_new(const char *name, uint64_t size, const struct stkd_place *place,
		     struct stkd_memfile *ret, struct stk_err *err)
{
	static const struct stkd_place nowhere = {.node = -1};
	struct stkd_memfile file = {.fd = -1, .size = size, .node = -1};
	int r;

	if (!size || size > INT64_MAX)
		return stk_err_set(err, -EINVAL, "memory file %s: %" PRIu64 " bytes, 1 to %" PRIi64,
				   name, size, INT64_MAX);
	r = create(name, &file, err);
	if (r == 0)
		r = map(name, &file, err);
	if (r == 0 && place)
		r = place_file(name, &file, place, err);
	else if (r == 0 && size <= STKD_MEMFILE_SMALL)
		r = populate(name, &file, &nowhere, err);
	if (r < 0) {
		stkd_memfile_deinit(&file);
		return r;
	}
	*ret = file;
	return 0;
}

void stkd_memfile_deinit(struct stkd_memfile *file)
{
	if (file->map)
		munmap(file->map, file->size);
	file->map = NULL;
	file->locked = false;
	file->fd = stk_close(file->fd);
}

int stkd_memfile_readonly(const struct stkd_memfile *file, struct stk_err *err)
{
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", file->fd);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return stk_err_set(err, -errno, "memory file: cannot be opened read-only: %s: %m",
				   path);
	return fd;
}
