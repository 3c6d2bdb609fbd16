/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a safetensors file: its header, read and checked by every rule of the format (one
 * owner for each byte of the data area, no holes). Says nothing yet about samples and fields.
 */
#ifndef STKD_TENSORS_H
#define STKD_TENSORS_H

#include "daemon/shard/scan.h"
#include "proto/dtype.h"

#define STKD_HEADER_MAX 100000000 /* bytes; the cap of the reference reader */

struct stkd_tensor {
	char *name;
	uint64_t *shape; /* NULL for a scalar */
	uint32_t ndims;
	enum stk_dtype dtype;
	uint64_t begin, end; /* bytes from the start of the data area */
};

struct stkd_tensors {
	struct stkd_tensor *list; /* sorted by name */
	size_t n;
	uint64_t data_start; /* bytes from the start of the file */
	char *stoker;        /* __metadata__ "stoker", or NULL */
	char *stoker_text;   /* __metadata__ "stoker.text", or NULL */
};

/**
 * stkd_tensors_read() - read and check a header
 * @fd:         regular file of @file_size bytes; read with pread(), so that a cut cannot fault
 * @header_max: larger headers are refused; 0: STKD_HEADER_MAX
 *
 * Stricter than the reference reader in two points: a name given twice (the reference keeps the
 * last one) and a name with a NUL in it are refused.
 *
 * Return: 0; -EBADMSG with tensor, reason and numbers; -ENOMEM; an error of pread().
 */
int stkd_tensors_read(int fd, uint64_t file_size, uint64_t header_max, struct stkd_tensors **ret,
		      struct stk_err *err);
struct stkd_tensors *stkd_tensors_free(struct stkd_tensors *tensors);
STK_DEFINE_CLEANUP(struct stkd_tensors *, stkd_tensors_free)

const struct stkd_tensor *stkd_tensors_find(const struct stkd_tensors *tensors, const char *name);

/* pread() of exactly size bytes; -EBADMSG when the file ends before. */
int stkd_pread(int fd, void *buffer, size_t size, uint64_t offset, struct stk_err *err);

#endif
