/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Anonymous memory files (memfd): created sealed against resizing, placed on a NUMA node before the
 * first touch, populated, checked page by page, locked. Each belongs to one feed or seat for ever.
 * Created on a work thread; the mapping may be used by any thread.
 */
#ifndef STKD_MEMFILE_H
#define STKD_MEMFILE_H

#include "daemon/progress.h"
#include "proto/err.h"
#include "proto/spec.h"

#define STKD_MEMFILE_SMALL (UINT64_C(4) << 20)

struct stkd_memfile {
	int fd;       /* read-write */
	uint8_t *map; /* shared, read-write */
	uint64_t size;
	int node; /* bound to; -1: not bound */
	bool locked;
};

struct stkd_place {
	int node;       /* kernel's node number to bind to; -1: do not bind */
	int numa, lock; /* enum stk_need; lock -1: not at all */
	bool populate;  /* slots: touch every page now; files up to STKD_MEMFILE_SMALL always are */
	struct stkd_progress *progress; /* may be NULL: bytes populated */
	/* A warning under `try`; kind is "numa" or "lock". May be NULL. The caller filters repetitions. */
	void (*warn)(void *data, const char *kind, const char *text);
	void *data;
};

/**
 * stkd_memfile_new() - create, seal (SHRINK, GROW, SEAL), map and place
 * @name:  shown in /proc; not unique
 * @place: NULL: neither bound nor locked, populated if small
 *
 * Order: mbind, MADV_POPULATE_WRITE, verify by move_pages, mlock. Under `require` each failure is
 * an error that names the limit (RLIMIT_MEMLOCK with value and need; node with free memory), under
 * `try` one warning and on. Populating always must succeed.
 *
 * Return: 0 or -ENOMEM, -EPERM, ... with the text; nothing is left behind.
 */
int stkd_memfile_new(const char *name, uint64_t size, const struct stkd_place *place,
		     struct stkd_memfile *ret, struct stk_err *err);
void stkd_memfile_deinit(struct stkd_memfile *file); /* *file may be zero with fd -1 */

/* A second descriptor of the same file that cannot be mapped writable. -errno on failure. */
int stkd_memfile_readonly(const struct stkd_memfile *file, struct stk_err *err);

/* Bytes this process may take: the least of the machine's memory and the cgroup limits (v2 and v1) above us.
 * UINT64_MAX when neither is known. Roots: "/proc", "/sys". */
uint64_t stkd_memory_limit(const char *proc, const char *sysfs);

/* Bytes that a node can still give, page cache included; 0: not known. */
uint64_t stkd_node_available(const char *sysfs, int node);

#endif
