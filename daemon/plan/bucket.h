/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What waits in one bucket: sample ids, oldest first, with the sum and the maximum of their
 * lengths kept up to date. A member of an iterator, used by its thread.
 */
#ifndef STKD_BUCKET_H
#define STKD_BUCKET_H

#include "proto/err.h"

struct stkd_bucket {
	uint64_t *ids;
	size_t head, end,
		room; /* ids[head..end) wait; those before were taken and are still lent */
	size_t most;  /* room beyond this is not taken in advance */
	bool split;   /* some were taken and some left: the sums below count both */
	uint64_t tokens;
	uint32_t longest, longest2; /* in both lengths, where there are two */
};

void stkd_bucket_deinit(struct stkd_bucket *bucket);

static inline size_t stkd_bucket_waiting(const struct stkd_bucket *bucket)
{
	return bucket->end - bucket->head;
}

/* Room for n more. -ENOMEM leaves the bucket as it was. */
int stkd_bucket_reserve(struct stkd_bucket *bucket, size_t n);

static inline int stkd_bucket_push(struct stkd_bucket *bucket, uint64_t id, uint32_t length)
{
	if (bucket->end == bucket->room) {
		int r = stkd_bucket_reserve(bucket, 1);

		if (r < 0)
			return r;
	}
	bucket->ids[bucket->end++] = id;
	bucket->tokens += length;
	bucket->longest = STK_MAX(bucket->longest, length);
	return 0;
}

/* Forgets the ids that were taken; clear forgets those that wait, too. */
void stkd_bucket_settle(struct stkd_bucket *bucket);
void stkd_bucket_clear(struct stkd_bucket *bucket);
/* Forgets those that wait; those that were taken are still lent. */
void stkd_bucket_drop(struct stkd_bucket *bucket);

#endif
