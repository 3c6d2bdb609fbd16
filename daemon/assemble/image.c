/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/assemble/image.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define SHORT 32 /* fewer contiguous values than these are gathered before they go on */

/* SplitMix64's finaliser. */
static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint64_t stkd_key(uint64_t seed, uint64_t epoch, uint64_t sample)
{
	return mix(mix(mix(seed) ^ epoch) ^ sample);
}

uint64_t stkd_key_draw(uint64_t key, uint32_t number, uint64_t n)
{
	return (uint64_t)((unsigned __int128)mix(key ^ (number + 1)) * n >> 64);
}

static int set_crop(struct stkd_image *image, const struct stk_spec_ops *ops, uint64_t *shape,
		    uint32_t ndims, struct stk_err *err)
{
	bool flip = ops->flip == STK_FLIP_RANDOM;

	if ((ops->crop[0] || flip) && ndims < 2)
		return stk_err_set(err, -EINVAL,
				   "%s: a sample has %" PRIu32 " dimensions, an image at least "
				   "height and width",
				   flip ? "flip" : "crop", ndims);
	image->random = ops->crop_at == STK_CROP_RANDOM;
	image->flip = flip;
	if (!ops->crop[0])
		return 0;
	for (uint32_t i = 0; i < 2; i++) {
		if (ops->crop[i] > shape[i])
			return stk_err_set(err, -EINVAL,
					   "crop: [%" PRIu32 ", %" PRIu32
					   "] of samples that are [%" PRIu64 ", %" PRIu64 "]",
					   ops->crop[0], ops->crop[1], shape[0], shape[1]);
		image->spare[i] = shape[i] - ops->crop[i];
	}
	return 0;
}

/* The axes in the batch's order, each with its step in the source. */
static int set_axes(struct stkd_image *image, const struct stk_spec_ops *ops, uint64_t *shape,
		    uint32_t ndims, struct stk_err *err)
{
	uint64_t step[STK_SPEC_AXES_MAX], size[STK_SPEC_AXES_MAX], steps = 1, out = 1;

	if (ops->ntranspose && ops->ntranspose != ndims)
		return stk_err_set(err, -EINVAL,
				   "transpose: %" PRIu32 " axes, a sample has %" PRIu32,
				   ops->ntranspose, ndims);
	for (uint32_t i = ndims; i-- > 0; steps *= shape[i]) {
		step[i] = steps;
		size[i] = i < 2 ? shape[i] - image->spare[i] : shape[i];
	}
	image->step[0] = step[0];
	image->step[1] = ndims > 1 ? step[1] : 0;
	for (uint32_t i = ndims; i-- > 0;) {
		uint32_t from = ops->ntranspose ? ops->transpose[i] : i;

		image->axes[i] = (struct stkd_axis){size[from], (int64_t)step[from], out};
		out *= size[from];
		if (from == 1)
			image->across = i;
		if (from == (ops->channel == STK_CHANNEL_FIRST ? 0 : ndims - 1))
			image->channel = i;
	}
	for (uint32_t i = 0; i < ndims; i++)
		shape[i] = image->axes[i].size;
	return 0;
}

/* Lists of scale and bias: within a run channels take turns, so theirs must be its last axis. */
static bool may_run(const struct stkd_image *image, uint32_t axis, bool channels)
{
	return !channels || axis != image->channel || axis == image->naxes - 1;
}

/* What is done at once: as many of the last axes as lie together in the source, or a gather. */
static uint32_t set_run(struct stkd_image *image, bool channels)
{
	uint32_t first = image->naxes;

	image->groups = STKD_NO_AXIS;
	image->run = 1;
	while (first > 0 && image->axes[first - 1].step == (int64_t)image->run &&
	       !(image->flip && first - 1 == image->across) && may_run(image, first - 1, channels))
		image->run *= image->axes[--first].size;
	if (image->run < SHORT && first > 0 && may_run(image, first - 1, channels))
		image->groups = --first;
	return first;
}

/* The largest step outside, so that the source is read in its order as far as that goes. */
static void set_order(struct stkd_image *image, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = i;

		for (; k > 0 && image->axes[image->order[k - 1]].step < image->axes[i].step; k--)
			image->order[k] = image->order[k - 1];
		image->order[k] = i;
	}
	image->norder = n;
}

int stkd_image_init(struct stkd_image *image, const struct stk_spec_ops *ops, uint64_t *shape,
		    uint32_t ndims, size_t in, size_t out, bool channels, struct stk_err *err)
{
	int r;

	memset(image, 0, sizeof(*image));
	image->across = image->channel = STKD_NO_AXIS;
	image->in = in;
	image->out = out;
	image->naxes = ndims;
	if (ndims == 0 || ndims > STK_SPEC_AXES_MAX)
		return stk_err_set(err, -EINVAL,
				   "crop, flip and transpose: a sample has %" PRIu32
				   " dimensions, possible are 1 to %d",
				   ndims, STK_SPEC_AXES_MAX);
	r = set_crop(image, ops, shape, ndims, err);
	if (r == 0)
		r = set_axes(image, ops, shape, ndims, err);
	if (r == 0)
		set_order(image, set_run(image, channels));
	return r;
}

/* One sample on its way. */
struct walk {
	const struct stkd_image *image;
	const struct stkd_chain *chain;
	stkd_copy_fn copy;
	uint8_t *dst;
	const uint8_t *src;
	int64_t across; /* step of the axis that may be turned round */
	bool ok;
};

static int64_t step_of(const struct walk *walk, uint32_t axis)
{
	return axis == walk->image->across ? walk->across : walk->image->axes[axis].step;
}

static void values(struct walk *walk, uint64_t to, const void *src, size_t n, uint32_t channel)
{
	uint8_t *dst = walk->dst + to * walk->image->out;

	if (walk->chain)
		walk->ok &= stkd_chain_run(walk->chain, dst, src, n, channel);
	else
		walk->copy(dst, src, n);
}

#define DEFINE_GATHER(type)                                                                        \
	static void gather_##type(void *restrict dst, const uint8_t *restrict src, int64_t step,   \
				  size_t groups, size_t run)                                       \
	{                                                                                          \
		type *d = dst;                                                                     \
                                                                                                   \
		for (size_t g = 0; g < groups; g++)                                                \
			for (size_t i = 0; i < run; i++)                                           \
				memcpy(d++,                                                        \
				       src + ((int64_t)g * step + (int64_t)i) *                    \
						       (int64_t)sizeof(type),                      \
				       sizeof(type));                                              \
	}

DEFINE_GATHER(uint8_t)
DEFINE_GATHER(uint16_t)
DEFINE_GATHER(uint32_t)
DEFINE_GATHER(uint64_t)

static void gather(const struct walk *walk, uint32_t axis, int64_t from, size_t groups, void *block)
{
	const uint8_t *src = walk->src + from * (int64_t)walk->image->in;
	int64_t step = step_of(walk, axis);
	size_t run = walk->image->run;

	switch (walk->image->in) {
	case 1:
		gather_uint8_t(block, src, step, groups, run);
		return;
	case 2:
		gather_uint16_t(block, src, step, groups, run);
		return;
	case 4:
		gather_uint32_t(block, src, step, groups, run);
		return;
	default:
		gather_uint64_t(block, src, step, groups, run);
	}
}

static void one_run(struct walk *walk, int64_t from, uint64_t to, uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	uint64_t block[STKD_BLOCK], groups, some;

	if (image->groups == STKD_NO_AXIS) {
		values(walk, to, walk->src + from * (int64_t)image->in, image->run, channel);
		return;
	}
	groups = image->axes[image->groups].size;
	for (uint64_t i = 0; i < groups; i += some) {
		some = STK_MIN(groups - i, STKD_BLOCK / image->run);
		gather(walk, image->groups, from + (int64_t)i * step_of(walk, image->groups), some,
		       block);
		values(walk, to + i * image->run, block, some * image->run, channel);
	}
}

static void go(struct walk *walk, uint32_t level, int64_t from, uint64_t to, uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	uint32_t axis;

	if (level == image->norder) {
		one_run(walk, from, to, channel);
		return;
	}
	axis = image->order[level];
	for (uint64_t i = 0; i < image->axes[axis].size; i++)
		go(walk, level + 1, from + (int64_t)i * step_of(walk, axis),
		   to + i * image->axes[axis].out, axis == image->channel ? (uint32_t)i : channel);
}

bool stkd_image_run(const struct stkd_image *image, const struct stkd_chain *chain,
		    stkd_copy_fn copy, uint8_t *dst, const uint8_t *src, uint64_t key)
{
	struct walk walk = {
		.image = image, .chain = chain, .copy = copy, .dst = dst, .src = src, .ok = true};
	int64_t from = 0;

	for (uint32_t i = 0; i < 2; i++) {
		uint64_t at = image->random ? stkd_key_draw(key, i, image->spare[i] + 1)
					    : image->spare[i] / 2;

		from += (int64_t)(at * image->step[i]);
	}
	if (image->across != STKD_NO_AXIS)
		walk.across = image->axes[image->across].step;
	if (image->flip && stkd_key_draw(key, 2, 2)) {
		from += (int64_t)(image->axes[image->across].size - 1) * walk.across;
		walk.across = -walk.across;
	}
	go(&walk, 0, from, 0, STKD_ANY_CHANNEL);
	return walk.ok;
}
