/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A shard: one file of samples behind one small interface, whatever its format. Opened and checked
 * once (all rules of the format, every offset), then immutable; any thread may read rows.
 */
#ifndef STKD_SHARD_H
#define STKD_SHARD_H

#include <sys/types.h>

#include "proto/dtype.h"
#include "proto/err.h"
#include "proto/state.h"

#define STKD_FIELD_DIMS_MAX   7
#define STKD_SHARD_FIELDS_MAX 64 /* of a dataset; a file with more is no part of one */

/* A field of a sample, as stored. */
struct stkd_field {
	char *name;
	enum stk_dtype dtype;
	bool ragged;
	uint32_t ndims; /* of inner */
	uint64_t inner
		[STKD_FIELD_DIMS_MAX]; /* shape: fixed: of the sample; ragged: of one element */
	uint64_t inner_count;          /* product of inner; 1 for none */
	bool text; /* the file says that the elements are bytes of UTF-8 text; a hint for people */
};

/* Bytes of one field of one row, inside the mapping (or a cached block). Unaligned. */
struct stkd_extent {
	const void *data;
	uint64_t count; /* ragged: elements of the ragged dimension; fixed: 1 */
	uint64_t size;  /* bytes */
};

struct stkd_shard;

struct stkd_shard_limits {
	uint64_t header_max; /* bytes; 0: 100000000 as the reference reader */
};

/* Behind a format: one static table in its .c file. */
struct stkd_format {
	const char *name; /* "safetensors" */
	/* Does the file look like this format by its content? */
	bool (*probe)(const uint8_t *head, size_t size, uint64_t file_size);
	/* Reads shard->fd (the map comes later); sets count, fields, payload_size, state. */
	int (*open)(struct stkd_shard *shard, const struct stkd_shard_limits *limits,
		    struct stk_err *err);
	/* Row checked against count by the caller. Re-checks what it reads from the map. -EBADMSG:
	 * ret->data is the place in the map that is wrong. */
	int (*row)(const struct stkd_shard *shard, uint32_t field, uint64_t row,
		   struct stkd_extent *ret);
	void (*close)(struct stkd_shard *shard);
	/* What row() will read soon; NULL: nothing. Takes any row below count. */
	void (*prefetch)(const struct stkd_shard *shard, uint32_t field, uint64_t row);
};

struct stkd_shard {
	char *path; /* as opened */
	const struct stkd_format *format;
	uint64_t file_size;    /* at open */
	uint64_t payload_size; /* bytes of data, without header */
	dev_t dev;
	ino_t ino;
	int fd;             /* -1 once mapped; reopened by path for the size check */
	const uint8_t *map; /* whole file, read-only, private to the shard; NULL for size 0 */
	uint64_t count;     /* samples */
	struct stkd_field *fields; /* sorted by name */
	uint32_t nfields;
	void *state; /* the format's */
};

/**
 * stkd_shard_open() - open, recognise and check one file
 *
 * A file of another kind is named for what it is ("git-lfs pointer", "zip archive", ...). Nothing
 * is allocated from a size that the file claims before it was compared with the file's size.
 *
 * Return: 0; -EBADMSG with path, place, both numbers; -EINVAL not a regular file; -ENOMEM, also for
 * vm.max_map_count; -ENODEV cannot be mapped; -ENOENT, -EACCES, ...
 */
int stkd_shard_open(const char *path, const struct stkd_shard_limits *limits,
		    struct stkd_shard **ret, struct stk_err *err);
struct stkd_shard *stkd_shard_free(struct stkd_shard *shard);
STK_DEFINE_CLEANUP(struct stkd_shard *, stkd_shard_free)

/* Index of a field by name, or -1. */
int stkd_shard_field(const struct stkd_shard *shard, const char *name);

/* Same name, dtype, kind and shape. */
bool stkd_field_equal(const struct stkd_field *a, const struct stkd_field *b);
/* "input_ids: I32, ragged" or "image: U8 [3, 8, 8]", for messages. Returns out. */
#define STKD_FIELD_TEXT_SIZE 320
const char *stkd_field_text(const struct stkd_field *field, char out[STKD_FIELD_TEXT_SIZE]);

/* -EINVAL with the first field that differs, in name, dtype, kind or shape. */
int stkd_shard_agree(const struct stkd_shard *shard, const struct stkd_shard *other,
		     struct stk_err *err);

/* Lengths of a ragged field, rows [first, first + n). -EBADMSG when the file changed under us. */
int stkd_shard_lengths(const struct stkd_shard *shard, uint32_t field, uint64_t first, uint64_t n,
		       uint32_t *out, struct stk_err *err);

/* -EBADMSG with both numbers when the file is shorter or longer than at open, or was replaced. */
int stkd_shard_unchanged(const struct stkd_shard *shard, struct stk_err *err);

extern const struct stkd_format stkd_format_safetensors;

#endif
