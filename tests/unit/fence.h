/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory between two pages that may not be touched: what reads in front of it or behind it ends the
 * test. One thread.
 */
#ifndef FENCE_H
#define FENCE_H

#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "proto/base.h"

struct fence {
	uint8_t *start, *end;
};

static inline struct fence fence_new(size_t room)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = stk_align_up(room, page);
	uint8_t *map = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (map == MAP_FAILED || mprotect(map + page, size, PROT_READ | PROT_WRITE) < 0)
		abort();
	return (struct fence){map + page, map + page + size};
}

static inline void fence_free(struct fence *fence)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	munmap(fence->start - page, (size_t)(fence->end - fence->start) + 2 * page);
}

#endif
