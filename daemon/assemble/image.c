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

static const struct stkd_planes *best_kernels(void)
{
	const struct stkd_planes *found[3];

	stkd_planes_list(found);
	return found[0];
}

/* Height of a stored image; its width comes right behind. */
static uint32_t height_axis(const struct stk_spec_ops *ops, uint32_t ndims)
{
	return ops->channel == STK_CHANNEL_FIRST && ndims > 2;
}

static uint32_t channel_axis(const struct stk_spec_ops *ops, uint32_t ndims)
{
	return ops->channel == STK_CHANNEL_FIRST ? 0 : ndims - 1;
}

static int set_crop(struct stkd_image *image, const struct stk_spec_ops *ops, uint64_t *shape,
		    uint32_t ndims, bool channels, struct stk_err *err)
{
	uint32_t height = height_axis(ops, ndims), channel = channel_axis(ops, ndims);
	bool flip = ops->flip == STK_FLIP_RANDOM;

	if ((ops->crop[0] || flip) && ndims < 2)
		return stk_err_set(err, -EINVAL,
				   "%s: a sample has %" PRIu32 " dimensions, an image at least "
				   "height and width",
				   flip ? "flip" : "crop", ndims);
	if ((ops->crop[0] || flip) && channels && channel - height < 2)
		return stk_err_set(err, -EINVAL,
				   "%s: dimension %" PRIu32
				   " of a sample is its channels, not its height or width",
				   flip ? "flip" : "crop", channel);
	image->random = ops->crop_at == STK_CROP_RANDOM;
	image->flip = flip;
	if (!ops->crop[0])
		return 0;
	shape += height;
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
	uint32_t height = height_axis(ops, ndims);

	if (ops->ntranspose && ops->ntranspose != ndims)
		return stk_err_set(err, -EINVAL,
				   "transpose: %" PRIu32 " axes, a sample has %" PRIu32,
				   ops->ntranspose, ndims);
	for (uint32_t i = ndims; i-- > 0; steps *= shape[i]) {
		step[i] = steps;
		size[i] = shape[i] - (i - height < 2 ? image->spare[i - height] : 0);
	}
	image->step[0] = step[height];
	image->step[1] = ndims > 1 ? step[height + 1] : 0;
	for (uint32_t i = ndims; i-- > 0;) {
		uint32_t from = ops->ntranspose ? ops->transpose[i] : i;

		image->axes[i] = (struct stkd_axis){size[from], (int64_t)step[from], out};
		out *= size[from];
		if (from == height + 1)
			image->across = i;
		if (from == channel_axis(ops, ndims))
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

static bool turns(const struct stkd_image *image, uint32_t axis)
{
	return image->flip && axis == image->across;
}

/*
 * Takes axes around the line into it, as long as they go on where it ends, and then one whose lines go
 * into one block, whatever lies between them in the source. Returns the first one.
 */
static uint32_t extend_line(struct stkd_image *image, uint32_t first, bool channels)
{
	const struct stkd_axis *line = &image->axes[image->line];

	image->ngroups = line->size;
	image->lines = STKD_NO_AXIS;
	image->nlines = 1;
	/* Channels take turns from the beginning of a block on. */
	if (channels && image->channel == image->line)
		return first;
	while (first > 0 && first - 1 != image->planes && !turns(image, image->line) &&
	       !turns(image, first - 1) && !(channels && first - 1 == image->channel) &&
	       image->axes[first - 1].step == (int64_t)image->ngroups * line->step)
		image->ngroups *= image->axes[--first].size;
	if (first > 0 && first - 1 != image->planes && !(channels && first - 1 == image->channel)) {
		image->lines = --first;
		image->nlines = image->axes[first].size;
	}
	return first;
}

/* The planes of an image: an axis as short as pixels have values, of which none is turned round. */
static bool are_planes(const struct stkd_image *image, uint32_t axis)
{
	uint64_t size = image->axes[axis].size;

	return size >= 2 && size <= STKD_PLANES_MAX && !turns(image, axis);
}

/* The last axis goes from pixel to pixel, and another one through the values of each. */
static bool is_split(struct stkd_image *image, bool channels)
{
	uint32_t last = image->naxes - 1;

	if (channels && image->channel == last)
		return false;
	for (uint32_t i = 0; i < last; i++) {
		if (image->axes[i].step != 1 || !are_planes(image, i) ||
		    image->axes[last].step != (int64_t)image->axes[i].size)
			continue;
		image->planes = i;
		image->line = last;
		return true;
	}
	return false;
}

/* The last axis goes through the planes, the one before from pixel to pixel. */
static bool is_merge(struct stkd_image *image, bool channels)
{
	uint32_t last = image->naxes - 1;

	if (last < 1 || image->axes[last - 1].step != 1 || !are_planes(image, last) ||
	    (channels && image->channel == last - 1))
		return false;
	image->planes = last;
	image->line = last - 1;
	return true;
}

/* What is done at once: as many of the last axes as lie together in the source, or what can be put
 * together. Returns the first axis of it. */
static uint32_t set_run(struct stkd_image *image, bool channels)
{
	uint32_t first = image->naxes;

	image->planes = STKD_NO_AXIS;
	image->run = 1;
	while (first > 0 && image->axes[first - 1].step == (int64_t)image->run &&
	       !turns(image, first - 1) && may_run(image, first - 1, channels))
		image->run *= image->axes[--first].size;
	if (image->run == 1 && is_split(image, channels)) {
		image->kind = STKD_RUN_SPLIT;
		return extend_line(image, image->line, channels);
	}
	if (image->run == 1 && is_merge(image, channels)) {
		image->kind = STKD_RUN_MERGE;
		return extend_line(image, image->line, channels);
	}
	if (image->run < SHORT && first > 0 && may_run(image, first - 1, channels)) {
		image->kind = STKD_RUN_GATHER;
		image->line = first - 1;
		return extend_line(image, image->line, channels);
	}
	return first;
}

/* The largest step outside, so that the source is read in its order as far as that goes. */
static void set_order(struct stkd_image *image, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = image->norder;

		if (i == image->planes)
			continue;
		for (; k > 0 && image->axes[image->order[k - 1]].step < image->axes[i].step; k--)
			image->order[k] = image->order[k - 1];
		image->order[k] = i;
		image->norder++;
	}
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
	image->kernels = best_kernels();
	if (ndims == 0 || ndims > STK_SPEC_AXES_MAX)
		return stk_err_set(err, -EINVAL,
				   "crop, flip and transpose: a sample has %" PRIu32
				   " dimensions, possible are 1 to %d",
				   ndims, STK_SPEC_AXES_MAX);
	r = set_crop(image, ops, shape, ndims, channels, err);
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

static const uint8_t *at(const struct walk *walk, int64_t value)
{
	return walk->src + value * (int64_t)walk->image->in;
}

/* Value `n` of a block. */
static uint8_t *in_block(const struct walk *walk, void *block, size_t n)
{
	return (uint8_t *)block + n * walk->image->in;
}

/* The logarithm of a value's size. */
static unsigned size_of(const struct walk *walk)
{
	return (unsigned)__builtin_ctzl(walk->image->in);
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

/* Groups one by one, in whatever step. */
static void gather(const struct walk *walk, int64_t from, size_t groups, void *block)
{
	typedef void (*gather_fn)(void *restrict dst, const uint8_t *restrict src, int64_t step,
				  size_t groups, size_t run);
	static const gather_fn by_size[STKD_NSIZES] = {gather_uint8_t, gather_uint16_t,
						       gather_uint32_t, gather_uint64_t};

	by_size[size_of(walk)](block, at(walk, from), step_of(walk, walk->image->line), groups,
			       walk->image->run);
}

/* Groups that lie together, the last one first. */
static void turn(const struct walk *walk, int64_t from, size_t groups, void *block)
{
	const struct stkd_planes *kernels = walk->image->kernels;
	uint64_t run = walk->image->run, planes[STKD_PLANES_MAX * STKD_BLOCK];
	const uint8_t *src = at(walk, from - (int64_t)((groups - 1) * run));
	unsigned size = size_of(walk);

	if (run == 1) {
		kernels->back[size](block, src, groups);
	} else if (run <= STKD_PLANES_MAX) {
		kernels->split_back[run][size](planes, src, groups);
		kernels->merge[run][size](block, planes, groups);
	} else {
		gather(walk, from, groups, block);
	}
}

/* Groups of a line into a block, from its value `to` on. */

static void fetch_groups(const struct walk *walk, int64_t from, size_t groups, void *block,
			 size_t to)
{
	int64_t step = step_of(walk, walk->image->line), run = (int64_t)walk->image->run;
	uint8_t *dst = in_block(walk, block, to);

	if (step == run)
		memcpy(dst, at(walk, from), groups * walk->image->run * walk->image->in);
	else if (step == -run)
		turn(walk, from, groups, dst);
	else
		gather(walk, from, groups, dst);
}

static void fetch_split(const struct walk *walk, int64_t from, size_t groups, void *block,
			size_t to)
{
	const struct stkd_image *image = walk->image;
	uint64_t n = image->axes[image->planes].size;
	int64_t step = step_of(walk, image->line), back = (int64_t)(groups - 1) * step;

	if (step > 0)
		image->kernels->split[n][size_of(walk)](in_block(walk, block, to), at(walk, from),
							groups);
	else
		image->kernels->split_back[n][size_of(walk)](in_block(walk, block, to),
							     at(walk, from + back), groups);
}

static void fetch_planes(const struct walk *walk, int64_t from, size_t groups, void *block,
			 size_t to)
{
	const struct stkd_image *image = walk->image;
	const struct stkd_axis *planes = &image->axes[image->planes];
	int64_t step = step_of(walk, image->line);

	for (uint32_t p = 0; p < planes->size; p++, from += planes->step) {
		uint8_t *plane = in_block(walk, block, p * STKD_BLOCK + to);

		if (step > 0)
			memcpy(plane, at(walk, from), groups * image->in);
		else
			image->kernels->back[size_of(walk)](
				plane, at(walk, from - (int64_t)(groups - 1)), groups);
	}
}

/* A block of groups into the batch. */

static void put_groups(struct walk *walk, uint64_t to, const void *block, size_t groups,
		       uint32_t channel)
{
	values(walk, to, block, groups * walk->image->run, channel);
}

static void put_split(struct walk *walk, uint64_t to, const void *block, size_t groups,
		      uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	const struct stkd_axis *planes = &image->axes[image->planes];

	for (uint32_t p = 0; p < planes->size; p++)
		values(walk, to + p * planes->out,
		       (const uint8_t *)block + (size_t)p * STKD_BLOCK * image->in, groups,
		       image->planes == image->channel ? p : channel);
}

static void put_merged(struct walk *walk, uint64_t to, const void *block, size_t groups,
		       uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	uint64_t n = image->axes[image->planes].size, merged[STKD_PLANES_MAX * STKD_BLOCK];

	image->kernels->merge[n][size_of(walk)](merged, block, groups);
	values(walk, to, merged, groups * n,
	       image->planes == image->channel ? STKD_ANY_CHANNEL : channel);
}

typedef void (*fetch_fn)(const struct walk *walk, int64_t from, size_t groups, void *block,
			 size_t to);
typedef void (*put_fn)(struct walk *walk, uint64_t to, const void *block, size_t groups,
		       uint32_t channel);

static const struct {
	fetch_fn fetch;
	put_fn put;
} kinds[] = {
	[STKD_RUN_GATHER] = {fetch_groups, put_groups},
	[STKD_RUN_SPLIT] = {fetch_split, put_split},
	[STKD_RUN_MERGE] = {fetch_planes, put_merged},
};

/* What a group takes of the batch, or of each plane of it. */
static uint64_t unit_of(const struct stkd_image *image)
{
	return image->kind == STKD_RUN_MERGE ? image->axes[image->planes].size : image->run;
}

/* Groups line by line into a block, and out of it when it is full. */
static void run_lines(struct walk *walk, int64_t from, uint64_t to, uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	int64_t step = step_of(walk, image->line);
	uint64_t block[STKD_PLANES_MAX * STKD_BLOCK], unit = unit_of(image);
	size_t room = STKD_BLOCK / image->run, filled = 0, some;

	for (uint64_t l = 0; l < image->nlines; l++) {
		for (uint64_t i = 0; i < image->ngroups; i += some) {
			some = STK_MIN(image->ngroups - i, room - filled);
			kinds[image->kind].fetch(walk, from + (int64_t)i * step, some, block,
						 filled * image->run);
			filled += some;
			if (filled < room)
				continue;
			kinds[image->kind].put(walk, to, block, filled, channel);
			to += filled * unit;
			filled = 0;
		}
		if (image->lines != STKD_NO_AXIS)
			from += step_of(walk, image->lines);
	}
	if (filled)
		kinds[image->kind].put(walk, to, block, filled, channel);
}

static void go(struct walk *walk, uint32_t level, int64_t from, uint64_t to, uint32_t channel)
{
	const struct stkd_image *image = walk->image;
	uint32_t axis;

	if (level == image->norder) {
		if (image->kind == STKD_RUN_WHOLE)
			values(walk, to, at(walk, from), image->run, channel);
		else
			run_lines(walk, from, to, channel);
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
