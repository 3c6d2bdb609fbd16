/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worktime: where the workers' time on a feed goes, to assembling or to waiting for storage. Workers
 * note the ranges they are in; the loop reads. No lock.
 */
#ifndef STKD_WORKTIME_H
#define STKD_WORKTIME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define STKD_WORKTIME_PLACES 64 /* workers that are seen at once; more are not, and do no harm */

struct stkd_worktime_place {
	_Atomic int32_t tid; /* 0: nobody */
	_Atomic uint64_t since_ns;
};

/* Zeroed to begin with. */
struct stkd_worktime {
	_Atomic uint64_t range_ns;   /* in ranges, all workers together */
	_Atomic uint64_t storage_ns; /* of it, waiting for pages of shards; never too much */
	struct stkd_worktime_place place[STKD_WORKTIME_PLACES];
};

/* One range of one worker, on its stack. */
struct stkd_worktime_range {
	struct stkd_worktime_place *place; /* NULL: all are taken */
	uint64_t since_ns;
	uint64_t ran_ns; /* that the thread had a core or waited for one until then */
	bool watched;    /* ran_ns is known */
};

void stkd_worktime_begin(struct stkd_worktime *time, struct stkd_worktime_range *range);
void stkd_worktime_end(struct stkd_worktime *time, const struct stkd_worktime_range *range);

struct stkd_worktime_figures {
	uint32_t busy, blocked; /* workers in a range; of them, those that wait for a page */
	uint64_t blocked_ns;    /* that the longest of them has been in its range */
	uint64_t range_ns, storage_ns;
};
void stkd_worktime_figures(struct stkd_worktime *time, struct stkd_worktime_figures *ret);

#endif
