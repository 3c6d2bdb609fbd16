/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry of a fixed sample: crop, flip and transpose as a walk over the source, whose runs of
 * values then go through a chain; and the keys that what is random is drawn from. Compiled once per
 * field, immutable after, any thread.
 */
#ifndef STKD_IMAGE_H
#define STKD_IMAGE_H

#include "daemon/assemble/chain.h"
#include "daemon/assemble/kernels.h"
#include "daemon/assemble/planes.h"

#define STKD_NO_AXIS UINT32_MAX

struct stkd_axis {
	uint64_t size;
	int64_t step; /* in the source, in values */
	uint64_t out; /* in the batch, in values */
};

/* How the values of a run lie in the source. */
enum stkd_run_kind {
	STKD_RUN_WHOLE,  /* together, in their order */
	STKD_RUN_GATHER, /* in groups that lie together, a step from one group to the next */
	STKD_RUN_SPLIT,  /* taking turns; they belong to planes of the batch (HWC to CHW) */
	STKD_RUN_MERGE,  /* in planes; they take turns in the batch (CHW to HWC) */
};

struct stkd_image {
	struct stkd_axis axes[STK_SPEC_AXES_MAX]; /* in the order of the batch */
	uint32_t naxes;
	uint32_t across;            /* axis that a flip turns round; STKD_NO_AXIS: none */
	uint32_t channel;           /* axis of lists of scale and bias; STKD_NO_AXIS: none */
	uint64_t spare[2], step[2]; /* of crop: rows and columns left out, and their steps */
	bool random, flip;
	uint32_t order[STK_SPEC_AXES_MAX]; /* axes around a run, the largest step first */
	uint32_t norder;
	enum stkd_run_kind kind;
	uint64_t run;     /* values that lie together: all, or those of a group */
	uint64_t ngroups; /* of a run, or of values that take turns */
	uint64_t nlines;  /* that go into one block after the other */
	uint32_t line;    /* axis along which the groups follow each other */
	uint32_t lines;   /* and from line to line; STKD_NO_AXIS: there is one */
	uint32_t planes;  /* axis of the planes, or of values that take turns; STKD_NO_AXIS: none */
	const struct stkd_planes *kernels;
	size_t in, out; /* bytes of a value */
};

/**
 * stkd_image_init() - compile
 * @shape: of the stored sample, ndims; changed to that of the batch
 * @channels: whether scale or bias are lists
 *
 * Return: 0, or -EINVAL with what is wrong in @err, without the field.
 */
int stkd_image_init(struct stkd_image *image, const struct stk_spec_ops *ops, uint64_t *shape,
		    uint32_t ndims, size_t in, size_t out, bool channels, struct stk_err *err);

/* One sample; of chain and copy one is NULL. Return: as stkd_chain_run(). */
bool stkd_image_run(const struct stkd_image *image, const struct stkd_chain *chain,
		    stkd_copy_fn copy, uint8_t *dst, const uint8_t *src, uint64_t key);

/*
 * The key of a sample in an epoch: a function of these three numbers alone, for ever. Draws from it
 * are numbered: 0 row and 1 column of a crop, 2 flip.
 */
uint64_t stkd_key(uint64_t seed, uint64_t epoch, uint64_t sample);
/* A number below n, n > 0. */
uint64_t stkd_key_draw(uint64_t key, uint32_t number, uint64_t n);

#endif
