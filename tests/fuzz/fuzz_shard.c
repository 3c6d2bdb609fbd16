/* SPDX-License-Identifier: Apache-2.0 */
/* A shard file: what opens can be read, in every row of every field, within the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/shard/shard.h"
#include "tests/fuzz/fuzz.h"

static void read_rows(const struct stkd_shard *shard)
{
	for (uint32_t f = 0; f < shard->nfields; f++) {
		for (uint64_t row = 0; row < STK_MIN(shard->count, 64); row++) {
			struct stkd_extent extent;

			if (shard->format->row(shard, f, row, &extent) < 0)
				continue;
			if (extent.size && ((const uint8_t *)extent.data < shard->map ||
					    (const uint8_t *)extent.data + extent.size >
						    shard->map + shard->file_size))
				abort();
		}
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct stkd_shard_limits limits = {.header_max = 1 << 20};
	struct stkd_shard *shard = NULL;
	struct stk_err err;
	char path[64];
	int fd = memfd_create("fuzz", MFD_CLOEXEC);

	if (fd < 0 || write(fd, data, size) != (ssize_t)size)
		abort();
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	if (stkd_shard_open(path, &limits, &shard, &err) == 0) {
		read_rows(shard);
		stkd_shard_free(shard);
	}
	close(fd);
	return 0;
}
