/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small words every room uses: ownership, sizes, checked arithmetic.
 * No state, no thread.
 */
#ifndef STK_BASE_H
#define STK_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STK_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define STK_MIN(a, b)     ((a) < (b) ? (a) : (b))
#define STK_MAX(a, b)     ((a) > (b) ? (a) : (b))

#define _cleanup_(f)         __attribute__((cleanup(f)))
#define _printf_(fmt, first) __attribute__((format(printf, fmt, first)))

/* Takes the value out of *p, so that a _cleanup_ does not free what is handed on. */
#define STK_STEAL(p)                                                                               \
	({                                                                                         \
		__typeof__(p) stolen_ = (p);                                                       \
		(p) = NULL;                                                                        \
		stolen_;                                                                           \
	})

/* Defines NAMEp(), for use with _cleanup_; TYPE is a pointer type, FREE takes NULL. */
#define STK_DEFINE_CLEANUP(type, free_fn)                                                          \
	static inline void free_fn##p(type *p)                                                     \
	{                                                                                          \
		if (*p)                                                                            \
			free_fn(*p);                                                               \
	}

/* _cleanup_(stk_freep) and _cleanup_(stk_closep): for memory of malloc() and descriptors. */
void stk_freep(void *p);
void stk_closep(int *fd);
/* Closes fd if it is >= 0, keeps errno, returns -1: fd = stk_close(fd). */
int stk_close(int fd);

/* Each returns true when the result does not fit. */
#define stk_add_overflow(a, b, out) __builtin_add_overflow(a, b, out)
#define stk_mul_overflow(a, b, out) __builtin_mul_overflow(a, b, out)

/* Rounds up to a power of two alignment; the caller knows that it fits. */
static inline uint64_t stk_align_up(uint64_t n, uint64_t align)
{
	return (n + align - 1) & ~(align - 1);
}

/* Rounds up to any multiple; the caller knows that it fits. */
static inline uint64_t stk_round_up(uint64_t n, uint64_t multiple)
{
	return (n + multiple - 1) / multiple * multiple;
}

/* Bytes of the valid UTF-8 character that starts at s (n bytes are left); 0 when there is none. */
size_t stk_utf8_next(const char *s, size_t n);

#endif
