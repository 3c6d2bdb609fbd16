/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembly against a bare loop that writes the same bytes, both in turn on one core. The bench that
 * includes it has the data set, the fields and the bare loop. One thread.
 */
#ifndef ASSEMBLY_BENCH_H
#define ASSEMBLY_BENCH_H

#include "daemon/assemble/assembly.h"
#include "tests/unit/fake_dataset.h"

#define BENCH_ROWS 32 /* of a batch */

struct bench {
	/* What the bench itself fills in. */
	struct fake_dataset fake;
	uint32_t samples; /* of the data set */
	int batches;      /* of a pass */
	int nslots;       /* so many that the caches have forgotten a slot when it comes again */
	void (*bare)(const struct bench *b);
	/* Made by bench_open(). */
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_recipe recipe;
	uint64_t ids[BENCH_ROWS];
	uint8_t *slots, *slot; /* all; the one being written */
};

/* Medians in GB/s, and of their ratio with its least and most. */
struct bench_figures {
	double bare, ours, ratio, least, most;
};

/* Keeps the process on the core where it is. Return: 0 or -errno. */
int bench_start(void);

/* Ends the program where it fails. */
void bench_open(struct bench *b, const struct stk_spec *spec, uint32_t max_length, uint32_t width);
void bench_close(struct bench *b);

/* Assembles one batch of b->ids into b->slot. */
void bench_assemble(const struct bench *b);
void bench_compare(struct bench *b, struct bench_figures *ret);

#endif
