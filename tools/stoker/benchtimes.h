/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A histogram of times in nanoseconds, exact to 3 %, of fixed size: so that percentiles of
 * hundreds of millions of calls cost nothing to keep. Plain values; one thread.
 */
#ifndef STOKER_BENCHTIMES_H
#define STOKER_BENCHTIMES_H

#include "proto/base.h"

#define BENCHTIMES_SUB  32 /* cells of each power of two */
#define BENCHTIMES_SIZE (48 * BENCHTIMES_SUB)

struct benchtimes {
	uint64_t n;
	uint64_t cells[BENCHTIMES_SIZE];
};

void benchtimes_add(struct benchtimes *times, uint64_t ns);
void benchtimes_merge(struct benchtimes *times, const struct benchtimes *other);
/* The time that so many of a million do not exceed; 0 where there are none. */
double benchtimes_at(const struct benchtimes *times, unsigned ppm);

#endif
