/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes that grow without a bound in bounded memory: kept rows go to an unlinked temporary file once
 * they exceed a mebibyte; the row that is being built stays behind them. One thread.
 */
#ifndef STOKER_SPOOL_H
#define STOKER_SPOOL_H

#include "tools/stoker/sink.h"

struct spool {
	int dirfd;       /* where the temporary file is made; borrowed */
	const char *dir; /* its path, for errors; borrowed */
	int fd;          /* -1 until it is needed */
	uint64_t on_disk;
	uint8_t *data; /* [0, kept) is kept, [kept, size) is the row being built */
	size_t kept, size, capacity;
};

void spool_init(struct spool *spool, int dirfd, const char *dir);
void spool_deinit(struct spool *spool);

/* Room for that many bytes at the end of the row; they count at once. NULL: no memory. */
uint8_t *spool_extend(struct spool *spool, size_t size);
/* Bytes of the row that is being built. */
size_t spool_row(const struct spool *spool);
/* Keeps the row. */
int spool_keep(struct spool *spool, struct stk_err *err);
/* All kept bytes. */
uint64_t spool_bytes(const struct spool *spool);
/* Writes the kept bytes to the sink and forgets them; the row that is being built stays. */
int spool_drain(struct spool *spool, struct sink *sink, struct stk_err *err);

#endif
