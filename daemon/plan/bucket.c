/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the memory of waiting ids. Ids that were taken stay in place until the bucket is settled,
 * so that a step can lend them to its reader without a copy. The iterator's thread.
 */
#include "daemon/plan/bucket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MIN ((size_t)64)

void stkd_bucket_deinit(struct stkd_bucket *bucket)
{
	free(bucket->ids);
	*bucket = (struct stkd_bucket){0};
}

int stkd_bucket_reserve(struct stkd_bucket *bucket, size_t n)
{
	size_t need = bucket->end + n;
	size_t room = STK_MIN(STK_MAX(2 * bucket->room, ROOM_MIN), bucket->most);
	uint64_t *ids;

	if (need <= bucket->room)
		return 0;
	room = STK_MAX(room, need);
	ids = reallocarray(bucket->ids, room, sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	bucket->ids = ids;
	bucket->room = room;
	return 0;
}

void stkd_bucket_settle(struct stkd_bucket *bucket)
{
	size_t waiting = stkd_bucket_waiting(bucket);

	if (bucket->head && waiting)
		memmove(bucket->ids, bucket->ids + bucket->head, waiting * sizeof(*bucket->ids));
	bucket->head = 0;
	bucket->end = waiting;
}

void stkd_bucket_clear(struct stkd_bucket *bucket)
{
	bucket->head = bucket->end = 0;
	bucket->split = false;
	bucket->tokens = 0;
	bucket->longest = bucket->longest2 = 0;
}

void stkd_bucket_drop(struct stkd_bucket *bucket)
{
	bucket->end = bucket->head;
	bucket->split = false;
	bucket->tokens = 0;
	bucket->longest = bucket->longest2 = 0;
}
