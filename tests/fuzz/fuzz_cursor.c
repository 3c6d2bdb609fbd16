/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States: the first byte chooses a plan, the rest is a whole state, or a cursor that gets its
 * checksum here so that it is looked at. From what is taken a few steps are planned.
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "daemon/plan/plan.h"
#include "proto/state.h"
#include "tests/fuzz/fuzz.h"

#define SAMPLES 300
#define STEPS   60

static const char *const specs[] = {
	"{group: fixed, rows: 4}",
	"{group: bucket, rows: 3, edges: [8, 16, 40], order: none}",
	"{group: bucket, tokens: 160, buckets: 4, tail: drop, accumulate: 2}",
	"{group: bucket, rows: 2, buckets: 3, tail: pad, order: block, block: 16}",
	"{group: pack, rows: 2, max_length: 48, window: 64}",
	"{group: pack, rows: 2, max_length: 48, window: 0, order: none}",
	"{group: concat, rows: 2, max_length: 32}",
	"{group: bucket, global_rows: 12, buckets: 3, largest_first: true}",
};

static struct stkd_plan *plans[STK_ARRAY_SIZE(specs)];
static uint32_t lengths[SAMPLES];

/* Made once; a spec that this release does not know leaves its place empty. */
static void make_plans(void)
{
	const struct stkd_lengths all = {.len = lengths, .count = SAMPLES};

	for (uint32_t i = 0; i < SAMPLES; i++)
		lengths[i] = 1 + i * 7919 % 40;
	for (size_t i = 0; i < STK_ARRAY_SIZE(specs); i++) {
		_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
		struct stk_spec *spec;
		struct stk_err err;

		if (stk_tree_from_yaml("spec", specs[i], strlen(specs[i]), &tree, &err) < 0 ||
		    stk_spec_parse(NULL, tree, &spec, &err) < 0)
			continue;
		if (stkd_plan_new(spec, &all, 2, &plans[i], &err) < 0)
			stk_spec_free(spec);
	}
	if (!plans[0])
		abort();
}

static void check_step(const struct stkd_plan *plan, const struct stkd_step *step)
{
	struct stkd_part part;
	uint32_t nclasses;

	stkd_plan_classes(plan, &nclasses);
	if (step->shape_class >= nclasses)
		abort();
	for (uint32_t i = 0; step->ids && i < step->nids; i++)
		if (step->ids[i] >= SAMPLES)
			abort();
	for (uint32_t rank = 0; rank < 2; rank++) {
		stkd_step_part(plan, step, rank, 0, &part);
		if (part.rows_real > part.rows)
			abort();
	}
}

static void walk(const struct stkd_plan *plan, const void *cursor, size_t size)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	uint8_t out[STK_SHM_CURSOR_MAX];
	struct stkd_step step;
	struct stk_err err;

	if (stkd_iter_new(plan, cursor, size, &iter, &err) < 0)
		return;
	for (int i = 0; i < STEPS && stkd_iter_next(iter, &step) == 0; i++) {
		check_step(plan, &step);
		if (stkd_iter_cursor(iter, out) > sizeof(out))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	struct stk_state_header header;
	const uint8_t *inside;
	struct stk_err err;
	struct stkd_plan *plan;
	uint32_t sum;

	if (!plans[0])
		make_plans();
	if (!size)
		return 0;
	plan = plans[data[0] % STK_ARRAY_SIZE(specs)];
	if (stk_state_parse(data + 1, size - 1, &header, &inside, &err) == 0 && plan)
		walk(plan, inside, header.cursor_size);
	if (!plan || size - 1 > sizeof(cursor) - sizeof(sum))
		return 0;
	memcpy(cursor, data + 1, size - 1);
	sum = XXH32(data + 1, size - 1, 0);
	for (unsigned i = 0; i < sizeof(sum); i++)
		cursor[size - 1 + i] = (uint8_t)(sum >> (8 * i));
	walk(plan, cursor, size - 1 + sizeof(sum));
	return 0;
}
