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
