/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk through the steps of buckets: what bucket_iter.c (on through the steps) and
 * bucket_resume.c (from a cursor, from another world) share. An iterator belongs to one thread at a
 * time.
 */
#ifndef STKD_BUCKET_ITER_H
#define STKD_BUCKET_ITER_H

#include "daemon/plan/bucket.h"
#include "daemon/plan/iter.h"
#include "daemon/plan/source.h"

struct bucket_iter {
	struct stkd_iter head;
	const struct stkd_plan *plan;
	uint64_t epoch, step; /* of the next step; step 0: the buckets still show the last epoch */
	uint64_t delivered;
	uint64_t tail_delivered; /* when the tail began */
	uint64_t lent;           /* steps of the lending bucket in this epoch */
	bool in_tail;
	bool brimming;    /* a bucket may hold more than a step though nothing was read */
	uint32_t current; /* bucket that the tail has come to */
	uint32_t emitted; /* bucket whose ids the last step lends */
	uint64_t skip;    /* arrivals of the first step's class that it took in advance */
	/* The plan's outline, or own: of an epoch that is unlike others, or of the rest of an epoch
	 * that was begun in another world. Its steps count from `base`. */
	const struct stkd_outline *outline;
	uint64_t base;
	struct stkd_outline *own;
	struct stkd_source *source;
	struct stkd_bucket buckets[];
};

static inline struct bucket_iter *stkd_bucket_iter(struct stkd_iter *head)
{
	return (struct bucket_iter *)head;
}

/* The first step of an epoch is next. @outline: false leaves the outline to the caller. */
int stkd_bucket_begin(struct bucket_iter *iter, uint64_t epoch, bool outline);
int stkd_bucket_next(struct stkd_iter *head, struct stkd_step *ret);

int stkd_bucket_seek(struct stkd_iter *head, uint64_t epoch, uint64_t step, struct stk_err *err);
int stkd_bucket_resume(struct stkd_iter *head, const void *data, size_t size, struct stk_err *err);
int stkd_bucket_adopt(struct stkd_iter *head, const struct stkd_iter *other, struct stk_err *err);
size_t stkd_bucket_cursor(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX]);

static inline bool stkd_bucket_is_full(const struct bucket_iter *iter, uint32_t b)
{
	return stkd_bucket_waiting(&iter->buckets[b]) >= stkd_outline_global(iter->outline, b);
}

/* Does the outline follow from the plan alone? */
static inline bool stkd_bucket_is_plain(const struct bucket_iter *iter)
{
	return iter->outline == &iter->plan->outline;
}

#endif
