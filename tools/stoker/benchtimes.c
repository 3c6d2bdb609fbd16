/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchtimes.h"

/* Below SUB each cell is one nanosecond; above, each power of two has SUB / 2 cells of its own. */
static unsigned cell_of(uint64_t ns)
{
	unsigned shift = 0;

	while (ns >> shift >= BENCHTIMES_SUB)
		shift++;
	return STK_MIN(shift * (BENCHTIMES_SUB / 2) + (unsigned)(ns >> shift),
		       (unsigned)BENCHTIMES_SIZE - 1);
}

/* The middle of a cell. */
static double time_of(unsigned cell)
{
	unsigned half = BENCHTIMES_SUB / 2, shift = cell < BENCHTIMES_SUB ? 0 : cell / half - 1;
	double first = (double)(cell - shift * half), size = (double)(UINT64_C(1) << shift);

	return first * size + (size - 1) / 2;
}

void benchtimes_add(struct benchtimes *times, uint64_t ns)
{
	times->cells[cell_of(ns)]++;
	times->n++;
}

void benchtimes_merge(struct benchtimes *times, const struct benchtimes *other)
{
	for (unsigned i = 0; i < BENCHTIMES_SIZE; i++)
		times->cells[i] += other->cells[i];
	times->n += other->n;
}

double benchtimes_at(const struct benchtimes *times, unsigned ppm)
{
	double wanted = (double)times->n * ppm / 1e6, seen = 0;

	for (unsigned i = 0; i < BENCHTIMES_SIZE && times->n; i++) {
		seen += (double)times->cells[i];
		if (seen > 0 && seen >= wanted)
			return time_of(i);
	}
	return 0;
}
