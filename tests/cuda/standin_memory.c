/* SPDX-License-Identifier: Apache-2.0 */
/* Registered, pinned and device memory of the stand-in. */
#include <inttypes.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/standin_private.h"

#define PIECE_MAX          (UINT64_C(1) << 30)
#define REGISTER_READ_ONLY 8

static struct range *ranges;

struct range *standin_range(const void *p, size_t size, bool host)
{
	const uint8_t *at = p;

	for (struct range *r = ranges; r; r = r->next)
		if (at < r->base + r->size && at + size > r->base && (r->kind != DEVICE) == host)
			return r;
	return NULL;
}

bool standin_holds(const struct range *r, const void *p, size_t size)
{
	const uint8_t *at = p;

	return at >= r->base && at + size <= r->base + r->size;
}

static struct range *add_range(enum kind kind, void *base, size_t size)
{
	struct range *r = calloc(1, sizeof(*r));

	r->kind = kind;
	r->device = standin_current;
	r->base = base;
	r->size = size;
	r->next = ranges;
	return ranges = r;
}

static int drop_range(enum kind kind, void *base, const char *what)
{
	for (struct range **at = &ranges; *at; at = &(*at)->next) {
		struct range *r = *at;

		if (r->kind != kind || r->base != base)
			continue;
		if (r->busy)
			DIE("%s: %u copies are in flight there", what, r->busy);
		*at = r->next;
		free(r);
		return 0;
	}
	return kind == REGISTERED ? NOT_REGISTERED : STK__CUDA_INVALID_VALUE;
}

/* All of it mapped, readable, writable and shared? */
static bool is_shared_writable(const void *base, size_t size)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t at = (uintptr_t)base, end = at + size, first, last;
	char line[512], access[8];

	while (maps && at < end && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %7s", &first, &last, access) == 3 &&
		    first <= at && at < last && !strncmp(access, "rw-s", 4))
			at = last;
	if (maps)
		fclose(maps);
	return at >= end;
}

API int cudaHostRegister(void *base, size_t size, unsigned flags)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	BROKEN();
	if ((uintptr_t)base % page || size % page)
		DIE("registering %zu bytes at %p: not whole pages", size, base);
	if (size > PIECE_MAX)
		STRICT("registering %zu bytes in one call", size);
	if (flags != STK__CUDA_REGISTER_PORTABLE)
		STRICT("registering with flags %u", flags);
	if (flags & REGISTER_READ_ONLY)
		return standin_leave(STK__CUDA_NOT_SUPPORTED);
	if (!size || !is_shared_writable(base, size))
		return standin_leave(STK__CUDA_INVALID_VALUE);
	if (standin_range(base, size, true))
		return standin_leave(ALREADY_REGISTERED);
	add_range(REGISTERED, base, size);
	return standin_leave(0);
}

API int cudaHostUnregister(void *base)
{
	struct range *r;
	unsigned char in_core;
	int code;

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	r = standin_range(base, 1, true);
	if (r && mincore(r->base + r->size - 1 - ((uintptr_t)r->base + r->size - 1) % 4096, 1,
			 &in_core) < 0)
		STRICT("unregistering %p: it is not mapped any more", base);
	if (r && r->device != standin_current)
		DIE("unregistering %p with another device current than when it was registered",
		    base);
	code = drop_range(REGISTERED, base, "cudaHostUnregister");
	BROKEN();
	return standin_leave(code);
}

API int cudaHostAlloc(void **ret, size_t size, unsigned flags)
{
	(void)flags;
	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	BROKEN();
	*ret = aligned_alloc(4096, stk_align_up(size, 4096));
	memset(*ret, 0xAA, size);
	add_range(PINNED, *ret, size);
	return standin_leave(0);
}

API int cudaFreeHost(void *p)
{
	int r;

	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	r = drop_range(PINNED, p, "cudaFreeHost");
	if (!r)
		free(p);
	BROKEN();
	return standin_leave(r);
}

API int cudaMalloc(void **ret, size_t size)
{
	ENTER(true);
	FORBIDDEN_IN_CAPTURE();
	BROKEN();
	*ret = aligned_alloc(256, stk_align_up(size, 256));
	memset(*ret, 0xCC, size);
	add_range(DEVICE, *ret, size);
	return standin_leave(0);
}

API int cudaFree(void *p)
{
	int r;

	ENTER(true);
	if (!p)
		return standin_leave(0);
	FORBIDDEN_IN_CAPTURE();
	r = drop_range(DEVICE, p, "cudaFree");
	if (!r)
		free(p);
	BROKEN();
	return standin_leave(r);
}

uint64_t standin_registered_bytes(void)
{
	uint64_t n = 0;

	pthread_mutex_lock(&standin_lock);
	for (const struct range *r = ranges; r; r = r->next)
		n += r->kind == REGISTERED ? r->size : 0;
	pthread_mutex_unlock(&standin_lock);
	return n;
}

void standin_memory_balance(void)
{
	static const char *const names[] = {"registered", "pinned", "device"};

	for (const struct range *r = ranges; r; r = r->next)
		DIE("%zu bytes of %s memory at %p are left", r->size, names[r->kind], r->base);
}
