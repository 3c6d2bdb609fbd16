/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Geometry of images against a reference that fetches one value at a time; and the kernels below it,
 * those of each instruction set, between pages that may not be touched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "daemon/assemble/image.h"
#include "tests/unit/fence.h"

#define VALUES_MAX 20000
#define ROOM       (VALUES_MAX * 8)

static uint64_t seed = 1;

static uint32_t below(uint32_t n)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((seed >> 33) % n);
}

static struct fence random_bytes(void)
{
	struct fence memory = fence_new(ROOM);

	for (uint8_t *at = memory.start; at < memory.end; at++)
		*at = (uint8_t)below(256);
	return memory;
}

struct picture {
	struct stkd_image image;
	struct stkd_chain chain;
	struct stk_spec_ops ops;
	bool chained;
	enum stk_dtype from, to;
	uint32_t ndims;
	uint64_t shape[STK_SPEC_AXES_MAX];
};

static uint64_t count_of(const uint64_t *shape, uint32_t n)
{
	uint64_t count = 1;

	for (uint32_t i = 0; i < n; i++)
		count *= shape[i];
	return count;
}

static uint32_t height_of(const struct picture *p)
{
	return p->ops.channel == STK_CHANNEL_FIRST && p->ndims > 2;
}

/* Short axes are as likely as long ones, wherever they are. */
static void choose_shape(struct picture *p)
{
	do {
		p->ndims = 2 + below(3);
		for (uint32_t i = 0; i < p->ndims; i++)
			p->shape[i] = 1 + below(below(2) ? 5 : below(4) ? 40 : 1500);
	} while (count_of(p->shape, p->ndims) > VALUES_MAX);
}

static void choose_ops(struct picture *p)
{
	struct stk_spec_ops *ops = &p->ops;
	uint64_t channels;

	ops->channel = below(2) ? STK_CHANNEL_FIRST : STK_CHANNEL_LAST;
	if (below(2)) {
		ops->crop[0] = 1 + below((uint32_t)p->shape[height_of(p)]);
		ops->crop[1] = 1 + below((uint32_t)p->shape[height_of(p) + 1]);
		ops->crop_at = below(2) ? STK_CROP_RANDOM : STK_CROP_CENTRE;
	}
	ops->flip = below(2) ? STK_FLIP_RANDOM : STK_FLIP_NONE;
	if (below(4)) {
		ops->ntranspose = p->ndims;
		for (uint32_t i = 0; i < p->ndims; i++) {
			uint32_t k = below(i + 1);

			ops->transpose[i] = ops->transpose[k];
			ops->transpose[k] = i;
		}
	}
	if (!p->chained)
		return;
	channels = p->shape[ops->channel == STK_CHANNEL_FIRST ? 0 : p->ndims - 1];
	if (p->ndims == 2)
		channels = 1; /* crop and flip are of the same two */
	ops->nscale = channels <= STK_SPEC_CHANNELS_MAX && below(3) ? (uint32_t)channels : 1;
	for (uint32_t i = 0; i < ops->nscale; i++)
		ops->scale[i] = 0.25 + i;
	ops->nbias = 1;
	ops->bias[0] = -3;
}

static void set_up(struct picture *p)
{
	static const enum stk_dtype from[] = {STK_DTYPE_U8, STK_DTYPE_U16, STK_DTYPE_F32,
					      STK_DTYPE_I64};
	static const enum stk_dtype to[] = {STK_DTYPE_F32, STK_DTYPE_F16, STK_DTYPE_BF16};
	struct stk_err err = {.text = ""};

	memset(p, 0, sizeof(*p));
	p->chained = below(3);
	p->from = from[below(2) ? 0 : below(4)];
	p->to = p->chained ? to[below(3)] : p->from;
	choose_shape(p);
	choose_ops(p);
	if (p->chained && stkd_chain_init(&p->chain, p->from, p->to, &p->ops, &err) < 0)
		fail_msg("%s", err.text);
}

/* Where each place of the batch comes from, value by value. */
static void expect(const struct picture *p, uint8_t *want, const uint8_t *src, uint64_t key)
{
	const struct stk_spec_ops *ops = &p->ops;
	size_t in = stk_dtype_size(p->from), out = stk_dtype_size(p->to);
	uint64_t size[STK_SPEC_AXES_MAX], start[2] = {0, 0}, at[STK_SPEC_AXES_MAX], total;
	bool turned = ops->flip == STK_FLIP_RANDOM && stkd_key_draw(key, 2, 2);
	uint32_t height = height_of(p);

	memcpy(size, p->shape, sizeof(size));
	for (uint32_t i = 0; i < 2 && ops->crop[0]; i++) {
		uint64_t spare = p->shape[height + i] - ops->crop[i];

		start[i] = ops->crop_at == STK_CROP_RANDOM ? stkd_key_draw(key, i, spare + 1)
							   : spare / 2;
		size[height + i] = ops->crop[i];
	}
	total = count_of(size, p->ndims);
	for (uint64_t o = 0; o < total; o++) {
		uint64_t rest = o, from = 0;
		uint32_t channel;

		for (uint32_t i = p->ndims; i-- > 0;) {
			uint32_t axis = ops->ntranspose ? ops->transpose[i] : i;

			at[axis] = rest % size[axis];
			rest /= size[axis];
		}
		if (turned)
			at[height + 1] = size[height + 1] - 1 - at[height + 1];
		channel = (uint32_t)at[ops->channel == STK_CHANNEL_FIRST ? 0 : p->ndims - 1];
		for (uint32_t i = 0; i < p->ndims; i++)
			from = from * p->shape[i] + at[i] +
			       (i - height < 2 ? start[i - height] : 0);
		if (p->chained)
			stkd_chain_run(&p->chain, want + o * out, src + from * in, 1, channel);
		else
			memcpy(want + o * out, src + from * in, in);
	}
}

static void any_image_is_value_for_value_what_its_key_says(void **state)
{
	uint8_t *want = malloc(ROOM), *got = malloc(ROOM);
	struct fence memory = random_bytes();
	uint64_t shape[STK_SPEC_AXES_MAX];
	unsigned kinds[4] = {0};
	struct stk_err err;

	(void)state;
	for (int round = 0; round < 1500; round++) {
		static struct picture p;
		uint64_t size, key = (uint64_t)below(1u << 30);
		const uint8_t *src;

		set_up(&p);
		size = count_of(p.shape, p.ndims) * stk_dtype_size(p.from);
		src = below(2) ? memory.start : memory.end - size;
		memcpy(shape, p.shape, sizeof(shape));
		assert_int_equal(stkd_image_init(&p.image, &p.ops, shape, p.ndims,
						 stk_dtype_size(p.from), stk_dtype_size(p.to),
						 p.ops.nscale > 1, &err),
				 0);
		kinds[p.image.kind]++;
		size = count_of(shape, p.ndims) * stk_dtype_size(p.to);
		memset(got, 0x5a, ROOM);
		memset(want, 0x5a, ROOM);
		expect(&p, want, src, key);
		stkd_image_run(&p.image, p.chained ? &p.chain : NULL,
			       stkd_copy_find(p.from, p.from), got, src, key);
		if (memcmp(want, got, STK_MIN(size + 64, (uint64_t)ROOM)))
			fail_msg("round %d: %u dimensions of %s as %s, kind %d", round, p.ndims,
				 stk_dtype_name(p.from), stk_dtype_name(p.to), p.image.kind);
	}
	for (int i = 0; i < 4; i++)
		assert_in_range(kinds[i], 20, 1500); /* or it shows nothing */
	fence_free(&memory);
	free(want);
	free(got);
}

/* Kernels. */

static void check_split(stkd_planes_fn kernel, bool back, uint32_t planes, size_t size, size_t n,
			const uint8_t *src)
{
	static uint8_t block[STKD_PLANES_MAX * STKD_BLOCK * 8];

	kernel(block, src, n);
	for (size_t i = 0; i < n; i++)
		for (uint32_t p = 0; p < planes; p++)
			assert_memory_equal(block + (p * STKD_BLOCK + (back ? n - 1 - i : i)) *
							    size,
					    src + (i * planes + p) * size, size);
}

static void check_merge(stkd_planes_fn kernel, uint32_t planes, size_t size, size_t n,
			const uint8_t *block, uint8_t *dst)
{
	kernel(dst, block, n);
	for (size_t i = 0; i < n; i++)
		for (uint32_t p = 0; p < planes; p++)
			assert_memory_equal(dst + (i * planes + p) * size,
					    block + (p * STKD_BLOCK + i) * size, size);
}

static void check_back(stkd_planes_fn kernel, size_t size, size_t n, const uint8_t *src)
{
	static uint8_t block[STKD_BLOCK * 8];

	kernel(block, src, n);
	for (size_t i = 0; i < n; i++)
		assert_memory_equal(block + (n - 1 - i) * size, src + i * size, size);
}

static void kernels_of_each_instruction_set_move_values_alike(void **state)
{
	const struct stkd_planes *list[3];
	size_t found = stkd_planes_list(list);
	struct fence memory = random_bytes();
	uint8_t *dst = malloc(ROOM);

	(void)state;
	for (size_t k = 0; k < found; k++) {
		for (unsigned s = 0; s < STKD_NSIZES; s++) {
			for (int round = 0; round < 60; round++) {
				size_t size = (size_t)1 << s, n = below(STKD_BLOCK + 1);

				for (uint32_t p = 2; p <= STKD_PLANES_MAX; p++) {
					const uint8_t *src = memory.end - n * p * size;

					src = round % 2 ? src : memory.start + below(64);
					check_split(list[k]->split[p][s], false, p, size, n, src);
					check_split(list[k]->split_back[p][s], true, p, size, n,
						    src);
					check_merge(list[k]->merge[p][s], p, size, n, memory.start,
						    dst);
				}
				check_back(list[k]->back[s], size, n,
					   round % 2 ? memory.end - n * size
						     : memory.start + below(64));
			}
		}
		print_message("%s\n", list[k]->name);
	}
	fence_free(&memory);
	free(dst);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_image_is_value_for_value_what_its_key_says),
		cmocka_unit_test(kernels_of_each_instruction_set_move_values_alike),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
