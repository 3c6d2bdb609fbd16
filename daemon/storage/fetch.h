/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch(recipe) -> extents: where the bytes of a batch's rows are. Today every shard is mapped, so
 * an extent points into a mapping; decompressed blocks, plain reads and remote extents come behind
 * the same call. Called by workers; a fetch object belongs to one worker.
 */
#ifndef STKD_FETCH_H
#define STKD_FETCH_H

#include "daemon/shard/dataset.h"

/* The rows wanted, and of which stored fields. */
struct stkd_want {
	const uint64_t *ids;
	uint32_t nrows;
	const uint16_t *fields; /* indices into dataset->fields */
	uint32_t nfields;
};

/**
 * stkd_fetch() - extents for a range of rows
 * @out: nrows * nfields extents, row by row; valid until stkd_fetch_done()
 *
 * Runs inside stkd_guard_run(): may fault. Return: 0 or -EBADMSG with shard, sample and offset.
 */
int stkd_fetch(const struct stkd_dataset *dataset, const struct stkd_want *want,
	       struct stkd_extent *out, struct stk_err *err);

/**
 * stkd_fetch_probe() - after the rows were copied, inside the guard: faults if a shard was cut
 * @extents: of these rows, as stkd_fetch() gave them
 *
 * Reads the last byte of each shard: it is gone when the file ends before its last page. A cut
 * within that page reads as zeros, and concerns only rows that reach into it.
 *
 * Return: whether one does: then stkd_fetch_done() has to look.
 */
bool stkd_fetch_probe(const struct stkd_dataset *dataset, const struct stkd_want *want,
		      const struct stkd_extent *extents);

/*
 * After the rows were copied: did each shard they came from keep its size? Catches a cut inside the
 * last page, which reads as zeros without a signal. Return: 0 or -EBADMSG.
 */
int stkd_fetch_done(const struct stkd_dataset *dataset, const struct stkd_want *want,
		    struct stk_err *err);

#endif
