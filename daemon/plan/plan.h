/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan: lengths, spec, seed, epoch, world in; steps out. Pure: no I/O, no thread, no clock, no
 * floating point, no global state. A plan is immutable after stkd_plan_new() and may be read by
 * any thread; each iterator belongs to one thread at a time.
 */
#ifndef STKD_PLAN_H
#define STKD_PLAN_H

#include "proto/err.h"
#include "proto/segment.h"
#include "proto/shm.h"
#include "proto/spec.h"

#define STKD_PLAN_VERSION 1 /* part of every state: bump when any sequence changes */

/* Real lengths of all samples in dataset order, in elements of the length field. Borrowed. */
struct stkd_lengths {
	const uint32_t *len;
	uint64_t count;
	const uint32_t *second; /* the same of the second length field; NULL: there is one */
	/* Several datasets: the first sample of each, then the number of all. NULL: one. */
	const uint64_t *first;
	uint32_t ndatasets;
};

/* A shape class: what a trainer compiles for. Largest padded size first is the reader's business. */
struct stkd_class {
	uint32_t edge; /* longest sample it takes; a chosen one is a multiple, or max_length */
	uint32_t rows; /* of a full batch, per rank and micro-batch */
	/* Of the padded width, which is a multiple or the edge; min == max for pad_to edge. */
	uint32_t width_min, width_max, width_multiple;
	/* The same of the second length; 0: there is one. */
	uint32_t edge2, width2_min, width2_max;
};

struct stkd_plan_counts {
	/* All are of epoch 0 where a mixture draws other samples in each epoch; of nothing but the
	 * samples themselves where it never ends, and steps is 0. */
	uint64_t samples;          /* in all datasets */
	uint64_t delivered;        /* rows per epoch, each sample once */
	uint64_t overlong_dropped; /* overlong: drop */
	uint64_t truncated;        /* overlong: truncate */
	uint64_t filtered;         /* keep */
	uint64_t promoted;         /* rows that moved to a larger bucket in the tail, each once */
	uint64_t tail_dropped;     /* tail: drop */
	uint64_t masked;           /* rows without a sample in the last step: pad; short where no
				    * full step has two rows per part, so that none can be lent */
	uint64_t steps;            /* per epoch; 0: differs from epoch to epoch (pack, unless one
				    * window holds all samples) */
	uint64_t real_tokens;      /* per epoch, after truncation; includes what tail: drop drops,
				    * as the order decides which samples those are */
	uint64_t padded_tokens;    /* per epoch, masked rows too, with pad_to edge; an upper bound
				    * for longest */
	uint64_t first_overlong;   /* sample id; UINT64_MAX when none */
	uint32_t max_length;       /* in effect */
	uint32_t shortest, longest;
	uint64_t empty;      /* pack, concat: samples without a token, never delivered */
	uint64_t split;      /* pack: samples delivered in pieces */
	uint64_t segments;   /* pack: samples and pieces per epoch */
	uint64_t rows;       /* pack, concat: rows per epoch with something in them; 0: as steps */
	uint64_t rows_least; /* pack: no packing takes fewer rows: its tokens fill as many */
	uint64_t unused;     /* samples of a mixture that an epoch does not draw */
	uint64_t repeated;   /* draws of samples that it drew before */
	bool varies;         /* another epoch draws other samples: these are of epoch 0 */
	uint32_t row_segments; /* pack, concat: a row never holds more segments; 0: one each */
};

struct stkd_plan;
struct stkd_iter;

/**
 * stkd_plan_new() - decide everything that is fixed before step 0
 * @spec:    resolved; read while the plan lives
 * @lengths: read while the plan lives
 * @world:   data-parallel ranks, 1..65536
 *
 * Chooses edges, rows per class and counts of an epoch. Refuses, with the numbers: no samples, no
 * edge that fits (overlong: error names the sample), a budget under one padded row, an epoch
 * without a step. Overlong means longer than max_length (0: the longest sample) or the last edge.
 *
 * Return: 0, -EINVAL with the reason, -ENOMEM.
 */
int stkd_plan_new(const struct stk_spec *spec, const struct stkd_lengths *lengths, uint32_t world,
		  struct stkd_plan **ret, struct stk_err *err);
struct stkd_plan *stkd_plan_free(struct stkd_plan *plan);
STK_DEFINE_CLEANUP(struct stkd_plan *, stkd_plan_free)

const struct stkd_class *stkd_plan_classes(const struct stkd_plan *plan, uint32_t *ret_n);
const struct stkd_plan_counts *stkd_plan_counts(const struct stkd_plan *plan);

/* Length of a sample as delivered: cut to max_length under overlong: truncate. */
uint32_t stkd_plan_length(const struct stkd_plan *plan, uint64_t sample);

/* One global step. Borrowed from the iterator until its next call. */
struct stkd_step {
	uint64_t epoch, step;
	uint32_t shape_class;
	uint32_t width;      /* padded length of every row of the step, all ranks alike */
	const uint64_t *ids; /* nids samples in plan order, all ranks' parts one after another */
	uint32_t nids;
	uint32_t rows_part; /* rows of each part, masked ones included; 0: the ids, spread evenly */
	uint64_t real_tokens; /* of all ranks */
	bool last_of_epoch;
	uint32_t width2; /* padded length in the second length; 0: there is one */
	/*
	 * Groups pack and concat: ids is NULL, nids counts the rows, and row r holds segments
	 * [row_first[r], row_first[r + 1]), the first one at its beginning, each of the others at the
	 * next multiple of the spec's align. Other groups: NULL.
	 */
	const struct stk_segment *segments;
	const uint32_t *row_first;
	uint64_t dropped_rows, dropped_tokens; /* last step, tail: drop: what was left over */
};

/* The rows of one (rank, micro). ids point into the step. */
struct stkd_part {
	const uint64_t *ids;
	uint32_t rows_real; /* ids given */
	uint32_t rows;      /* rows of the batch; those from rows_real on are masked */
	/* Packed: ids is NULL; the step's segments, and rows_real + 1 indices into them. */
	const struct stk_segment *segments;
	const uint32_t *row_first;
};

/**
 * stkd_iter_new() - start, or continue after a cursor
 * @cursor, @size: NULL and 0: epoch 0, step 0. Untrusted: checksum, ranges and the plan's own
 *                 numbers are checked.
 *
 * Return: 0, -EINVAL with the reason, -ENOMEM.
 */
int stkd_iter_new(const struct stkd_plan *plan, const void *cursor, size_t size,
		  struct stkd_iter **ret, struct stk_err *err);
/**
 * stkd_iter_new_from_world() - continue after a cursor that an iterator of another world made
 * @world: of that cursor; all else is the same
 *
 * With a global batch the steps go on exactly as they would have. With rows of each rank the rest of
 * the epoch is cut into steps of this world: each sample is still delivered exactly once, and the
 * number of the next step is one more than that of the last one there. Makes the plan of the other
 * world meanwhile, and reads the lengths of the rest of the epoch.
 */
int stkd_iter_new_from_world(const struct stkd_plan *plan, uint32_t world, const void *cursor,
			     size_t size, struct stkd_iter **ret, struct stk_err *err);
/* The epoch that a cursor of any plan is in. Return: 0 or -EINVAL with the reason. */
int stkd_iter_cursor_epoch(const void *cursor, size_t size, uint64_t *ret_epoch,
			   struct stk_err *err);
struct stkd_iter *stkd_iter_free(struct stkd_iter *iter);
STK_DEFINE_CLEANUP(struct stkd_iter *, stkd_iter_free)

/* The epoch that the next step belongs to (so a cursor at the end of epoch e says e + 1, step 0). */
uint64_t stkd_iter_epoch(const struct stkd_iter *iter);
uint64_t stkd_iter_step(const struct stkd_iter *iter);

/* Next step; epochs follow one another without end (spec->epochs is the caller's business).
 * Return: 0; -ENOMEM; -EBADMSG: the cursor it started from was made up, rows ran out. */
int stkd_iter_next(struct stkd_iter *iter, struct stkd_step *ret);

/* Skips to a step of an epoch by planning up to it. -EINVAL when the epoch has fewer steps. */
int stkd_iter_seek(struct stkd_iter *iter, uint64_t epoch, uint64_t step, struct stk_err *err);

void stkd_step_part(const struct stkd_plan *plan, const struct stkd_step *step, uint32_t rank,
		    uint32_t micro, struct stkd_part *ret);

/* Cursor from which the plan continues after the last step returned. Return: size, at most
 * STK_SHM_CURSOR_MAX. */
size_t stkd_iter_cursor(const struct stkd_iter *iter, uint8_t out[STK_SHM_CURSOR_MAX]);

#endif
