/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small safetensors files for tests, byte by byte, in a temporary folder. Each test file includes
 * it once; failures end the test at the line of the helper.
 */
#ifndef TESTS_SHARDFILE_H
#define TESTS_SHARDFILE_H

#include <endian.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <setjmp.h>
#include <cmocka.h>

#include "proto/base.h"

struct folder {
	char path[64];
	char file[160]; /* of the last folder_path() */
};

static inline int folder_setup(void **state)
{
	struct folder *folder = calloc(1, sizeof(*folder));

	assert_non_null(folder);
	strcpy(folder->path, "/tmp/stoker-test-XXXXXX");
	assert_non_null(mkdtemp(folder->path));
	*state = folder;
	return 0;
}

static inline int folder_remove_one(const char *path, const struct stat *st, int type,
				    struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static inline int folder_teardown(void **state)
{
	struct folder *folder = *state;

	nftw(folder->path, folder_remove_one, 8, FTW_DEPTH | FTW_PHYS);
	free(folder);
	return 0;
}

static inline const char *folder_path(struct folder *folder, const char *name)
{
	snprintf(folder->file, sizeof(folder->file), "%s/%s", folder->path, name);
	return folder->file;
}

/* Writes a file of exactly these bytes. Returns its path. */
static inline const char *write_bytes(struct folder *folder, const char *name, const void *bytes,
				      size_t size)
{
	FILE *file = fopen(folder_path(folder, name), "we");

	assert_non_null(file);
	assert_int_equal(fwrite(bytes, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
	return folder->file;
}

/* Writes header length, header and data. Returns the path. */
static inline const char *write_shard(struct folder *folder, const char *name, const char *header,
				      const void *data, size_t size)
{
	uint64_t n = htole64(strlen(header));
	FILE *file = fopen(folder_path(folder, name), "we");

	assert_non_null(file);
	assert_int_equal(fwrite(&n, sizeof(n), 1, file), 1);
	assert_int_equal(fwrite(header, 1, strlen(header), file), strlen(header));
	if (size)
		assert_int_equal(fwrite(data, 1, size, file), size);
	assert_int_equal(fclose(file), 0);
	return folder->file;
}

/*
 * A ragged I32 field "input_ids" of n samples with these lengths, the convention stated; values
 * count up from first. Returns the path.
 */
static inline const char *write_ragged(struct folder *folder, const char *name,
				       const uint32_t *lengths, size_t n, int32_t first)
{
	_cleanup_(stk_freep) uint8_t *data = NULL;
	size_t offsets_size = (n + 1) * 8;
	uint64_t total = 0;
	char header[512];

	for (size_t i = 0; i < n; i++)
		total += lengths[i];
	data = calloc(1, offsets_size + total * 4 + 1);
	assert_non_null(data);
	total = 0;
	for (size_t i = 0; i < n; i++) {
		total += lengths[i];
		memcpy(data + 8 * (i + 1), &total, 8);
	}
	for (uint64_t i = 0; i < total; i++) {
		int32_t value = first + (int32_t)i;

		memcpy(data + offsets_size + 4 * i, &value, 4);
	}
	snprintf(header, sizeof(header),
		 "{\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"},"
		 "\"input_ids.offsets\":{\"dtype\":\"I64\",\"shape\":[%zu],"
		 "\"data_offsets\":[0,%zu]},"
		 "\"input_ids.values\":{\"dtype\":\"I32\",\"shape\":[%" PRIu64 "],"
		 "\"data_offsets\":[%zu,%" PRIu64 "]}}",
		 n + 1, offsets_size, total, offsets_size, offsets_size + total * 4);
	return write_shard(folder, name, header, data, offsets_size + total * 4);
}

#endif
