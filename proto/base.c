/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/base.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

void stk_freep(void *p)
{
	free(*(void **)p);
}

int stk_close(int fd)
{
	int saved = errno;

	if (fd >= 0)
		close(fd);
	errno = saved;
	return -1;
}

void stk_closep(int *fd)
{
	*fd = stk_close(*fd);
}

size_t stk_utf8_next(const char *s, size_t n)
{
	/* Smallest code point of each size: anything below is an overlong form. */
	static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
	const unsigned char *u = (const unsigned char *)s;
	size_t size = u[0] < 0x80 ? 1 : u[0] < 0xc0 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : 4;
	uint32_t code;

	if (!n || !size || size > n || u[0] > 0xf4)
		return 0;
	if (size == 1)
		return 1;
	code = u[0] & (0x7fu >> size);
	for (size_t i = 1; i < size; i++) {
		if ((u[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (u[i] & 0x3f);
	}
	if (code < smallest[size] || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
		return 0;
	return size;
}
