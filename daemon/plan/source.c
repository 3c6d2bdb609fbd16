/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the way from a position to a sample id. The iterator's thread.
 */
#include "daemon/plan/source.h"

#include <errno.h>
#include <stdlib.h>

int stkd_source_new(const struct stkd_plan *plan, struct stkd_source **ret)
{
	struct stkd_source *source = calloc(1, sizeof(*source));

	if (!source)
		return -ENOMEM;
	source->plan = plan;
	source->end = plan->lengths.count;
	*ret = source;
	return 0;
}

struct stkd_source *stkd_source_free(struct stkd_source *source)
{
	free(source);
	return NULL;
}

int stkd_source_begin(struct stkd_source *source, uint64_t epoch)
{
	const struct stkd_plan *plan = source->plan;

	source->epoch = epoch;
	source->position = source->first = source->n = 0;
	stkd_order_init(&source->order, plan->spec->order, plan->lengths.count, plan->spec->seed,
			epoch, 0);
	return 0;
}

void stkd_source_seek(struct stkd_source *source, uint64_t position)
{
	source->position = position;
}

void stkd_source_load(struct stkd_source *source, uint64_t position, bool back)
{
	uint64_t first = position, n = STK_MIN(source->end - position, STKD_SOURCE_AHEAD);

	if (back) {
		first = position < STKD_SOURCE_AHEAD ? 0 : position - STKD_SOURCE_AHEAD + 1;
		n = position - first + 1;
	}
	source->first = first;
	source->n = n;
	for (uint64_t i = 0; i < n; i++) {
		source->ids[i] = stkd_order_at(&source->order, first + i);
		__builtin_prefetch(&source->plan->lengths.len[source->ids[i]]);
	}
}
