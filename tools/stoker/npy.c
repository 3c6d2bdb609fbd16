/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the reading of .npy files: a header that is a Python literal, then the numbers. Everything in
 * it is checked before it is used. One thread.
 */
#include "tools/stoker/npy.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_MAX 65535
#define CHUNK      4096

struct npy {
	const char *path;
	FILE *file;
	unsigned size; /* of a number */
	bool has_sign;
	uint64_t n;
};

static int refuse(const struct npy *npy, const char *why, struct stk_err *err)
{
	return stk_err_set(err, -EINVAL, "%s: %s", npy->path, why);
}

/* The text behind 'KEY': in the header's literal. */
static const char *value_of(const char *header, const char *key)
{
	const char *at = strstr(header, key);

	at = at ? strchr(at, ':') : NULL;
	return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

static int parse_header(struct npy *npy, const char *header, struct stk_err *err)
{
	const char *type = value_of(header, "'descr'"), *shape = value_of(header, "'shape'");
	char order, kind, *end;

	if (!type || !shape || sscanf(type, "'%c%c%u'", &order, &kind, &npy->size) != 3 ||
	    (order != '<' && order != '|') || (kind != 'i' && kind != 'u') ||
	    (npy->size != 1 && npy->size != 2 && npy->size != 4 && npy->size != 8))
		return refuse(npy,
			      "lengths must be little-endian whole numbers (<i4, <u4, <i8 ...)",
			      err);
	npy->has_sign = kind == 'i';
	if (*shape != '(' || shape[1] < '0' || shape[1] > '9')
		return refuse(npy, "lengths must have one dimension", err);
	errno = 0;
	npy->n = strtoull(shape + 1, &end, 10);
	if (errno || (strncmp(end, ",)", 2) != 0 && *end != ')'))
		return refuse(npy, "lengths must have one dimension", err);
	return 0;
}

static int read_header(struct npy *npy, struct stk_err *err)
{
	uint8_t start[12];
	uint32_t size;
	char *header;
	int r = -EINVAL;

	if (fread(start, 1, 10, npy->file) != 10 || memcmp(start, "\x93NUMPY", 6) != 0)
		return refuse(npy, "not a NumPy file", err);
	size = (uint32_t)start[8] | (uint32_t)start[9] << 8;
	if (start[6] > 1) {
		if (fread(start + 10, 1, 2, npy->file) != 2)
			return refuse(npy, "it ends within its header", err);
		size |= (uint32_t)start[10] << 16 | (uint32_t)start[11] << 24;
	}
	if (size > HEADER_MAX)
		return refuse(npy, "its header is larger than 65535 bytes", err);
	header = calloc(1, size + 1);
	if (!header)
		return stk_err_set(err, -ENOMEM, "%s: no memory", npy->path);
	if (fread(header, 1, size, npy->file) != size)
		refuse(npy, "it ends within its header", err);
	else
		r = parse_header(npy, header, err);
	free(header);
	return r;
}

static int take(const struct npy *npy, const uint8_t *bytes, uint64_t i, uint32_t *ret,
		struct stk_err *err)
{
	uint64_t value = 0;

	for (unsigned b = 0; b < npy->size; b++)
		value |= (uint64_t)bytes[b] << 8 * b;
	/* A negative one has its upper bit, which no length has. */
	if (value > UINT32_MAX || (npy->has_sign && value >> (8 * npy->size - 1)))
		return stk_err_set(err, -EINVAL,
				   "%s: element %" PRIu64 " is not a whole number 0..%" PRIu32,
				   npy->path, i, UINT32_MAX);
	*ret = (uint32_t)value;
	return 0;
}

/* Grows with what is really there: a header may promise anything. */
static int read_numbers(const struct npy *npy, uint32_t **ret, struct stk_err *err)
{
	uint8_t chunk[CHUNK * 8];
	uint64_t room = 0;

	for (uint64_t i = 0; i < npy->n;) {
		size_t n = (size_t)STK_MIN(npy->n - i, (uint64_t)CHUNK);

		if (fread(chunk, npy->size, n, npy->file) != n)
			return refuse(npy, "it ends before the numbers that its shape promises",
				      err);
		if (i + n > room) {
			uint32_t *grown;

			room = STK_MAX(2 * room, i + n);
			grown = reallocarray(*ret, room, sizeof(*grown));
			if (!grown)
				return stk_err_set(err, -ENOMEM, "%s: no memory", npy->path);
			*ret = grown;
		}
		for (size_t k = 0; k < n; k++) {
			int r = take(npy, chunk + k * npy->size, i + k, *ret + i + k, err);

			if (r < 0)
				return r;
		}
		i += n;
	}
	return 0;
}

int npy_read_lengths(const char *path, uint32_t **ret, uint64_t *ret_n, struct stk_err *err)
{
	struct npy npy = {.path = path, .file = fopen(path, "re")};
	uint32_t *lengths = NULL;
	int r;

	if (!npy.file)
		return stk_err_set(err, -errno, "%s: %m", path);
	r = read_header(&npy, err);
	if (r == 0)
		r = read_numbers(&npy, &lengths, err);
	fclose(npy.file);
	if (r < 0) {
		free(lengths);
		return r;
	}
	*ret = lengths;
	*ret_n = npy.n;
	return 0;
}
