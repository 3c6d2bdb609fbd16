/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the passes over lengths. Any thread.
 */
#include "daemon/plan/tally.h"

#include <errno.h>

#include "daemon/plan/source.h"

/* Reads stored lengths, or those that a source draws, for a histogram. */
struct reader {
	const struct stkd_plan *plan;
	uint64_t next, end;
	struct stkd_source *source; /* NULL: stored ones, from next to end */
	struct stkd_tally tally;
};

static bool next_id(struct reader *reader, uint64_t *ret)
{
	struct stkd_arrival arrival;

	if (!reader->source) {
		*ret = reader->next;
		return reader->next++ < reader->end;
	}
	if (!stkd_source_next(reader->source, &arrival))
		return false;
	*ret = arrival.id;
	return true;
}

static size_t read_lengths(void *context, uint32_t *out, size_t room)
{
	struct reader *reader = context;
	const struct stkd_plan *plan = reader->plan;
	size_t n = 0;
	uint64_t id;

	while (n < room && next_id(reader, &id)) {
		if (plan->picks && !stkd_plan_passes(plan, id)) {
			reader->tally.filtered++;
			continue;
		}
		if (plan->lengths.second)
			reader->tally.shortest2 =
				STK_MIN(reader->tally.shortest2, plan->lengths.second[id]);
		out[n++] = plan->lengths.len[id];
	}
	reader->tally.kept += n;
	return n;
}

static int read_drawn(const struct stkd_plan *plan, struct reader *reader,
		      struct stkd_histogram *ret)
{
	_cleanup_(stkd_source_freep) struct stkd_source *source = NULL;
	int r = stkd_source_new(plan, &source);

	if (r == 0)
		r = stkd_source_begin(source, 0);
	if (r < 0)
		return r;
	reader->source = source;
	return stkd_histogram_read(read_lengths, reader, ret);
}

/* How often every epoch reads each sample of a dataset. */
static uint64_t times_of(const struct stkd_mix *mix, uint32_t d)
{
	if (!mix->datasets[d].weight)
		return 0;
	return mix->whole ? mix->datasets[d].passes : 1;
}

static int read_stored(const struct stkd_plan *plan, struct stkd_histogram *ret,
		       struct stkd_tally *tally)
{
	const struct stkd_mix *mix = &plan->mix;
	int r = 0;

	for (uint32_t d = 0; r == 0 && d < mix->n; d++) {
		const struct stkd_mix_dataset *of = &mix->datasets[d];
		uint64_t times = times_of(mix, d);
		struct reader reader = {.plan = plan,
					.next = of->first,
					.end = of->first + of->count,
					.tally.shortest2 = UINT32_MAX};
		struct stkd_histogram h = {0};

		if (!times)
			continue;
		r = stkd_histogram_read(read_lengths, &reader, &h);
		if (r == 0)
			r = stkd_histogram_add(ret, &h, times);
		stkd_histogram_deinit(&h);
		tally->kept += reader.tally.kept * times;
		tally->filtered += reader.tally.filtered * times;
		tally->shortest2 = STK_MIN(tally->shortest2, reader.tally.shortest2);
	}
	return r;
}

int stkd_tally_lengths(const struct stkd_plan *plan, bool drawn, struct stkd_histogram *ret,
		       struct stkd_tally *ret_tally)
{
	struct reader reader = {.plan = plan, .tally.shortest2 = UINT32_MAX};
	struct stkd_histogram h = {0};
	int r;

	if (stkd_mix_is_plain(&plan->mix) && !plan->picks && !plan->lengths.second) {
		*ret_tally = (struct stkd_tally){.kept = plan->lengths.count};
		return stkd_histogram_new(plan->lengths.len, plan->lengths.count, ret);
	}
	if (drawn && !plan->mix.whole && plan->mix.draws != UINT64_MAX)
		r = read_drawn(plan, &reader, &h);
	else
		r = read_stored(plan, &h, &reader.tally);
	if (r < 0) {
		stkd_histogram_deinit(&h);
		return r;
	}
	*ret = h;
	*ret_tally = reader.tally;
	return 0;
}

static bool is_overlong(const struct stkd_plan *plan, uint64_t id)
{
	return plan->lengths.len[id] > plan->limit ||
	       (plan->lengths.second && plan->lengths.second[id] > plan->limit2);
}

uint64_t stkd_tally_overlong(const struct stkd_plan *plan)
{
	for (uint32_t d = 0; d < plan->mix.n; d++) {
		const struct stkd_mix_dataset *of = &plan->mix.datasets[d];

		if (!of->weight)
			continue;
		for (uint64_t id = of->first; id < of->first + of->count; id++)
			if (is_overlong(plan, id) && stkd_plan_passes(plan, id))
				return id;
	}
	return UINT64_MAX;
}

static void add(const struct stkd_plan *plan, uint64_t id, uint64_t times, struct stkd_outcome *to)
{
	uint32_t length;

	if (plan->picks && !stkd_plan_passes(plan, id)) {
		to->filtered += times;
		return;
	}
	if (is_overlong(plan, id))
		to->overlong += times;
	if (!stkd_plan_delivers(plan, id, &length))
		return;
	to->delivered += times;
	to->real_tokens += times * length;
	to->arrivals[stkd_plan_place(plan, id, length)] += times;
}

void stkd_tally_stored(const struct stkd_plan *plan, struct stkd_outcome *ret)
{
	*ret = (struct stkd_outcome){0};
	for (uint32_t d = 0; d < plan->mix.n; d++) {
		const struct stkd_mix_dataset *of = &plan->mix.datasets[d];
		uint64_t times = times_of(&plan->mix, d);

		for (uint64_t id = of->first; times && id < of->first + of->count; id++)
			add(plan, id, times, ret);
	}
}

int stkd_tally_epoch(const struct stkd_plan *plan, uint64_t epoch, struct stkd_outcome *ret)
{
	_cleanup_(stkd_source_freep) struct stkd_source *source = NULL;
	struct stkd_arrival arrival;
	int r = stkd_source_new(plan, &source);

	if (r == 0)
		r = stkd_source_begin(source, epoch);
	if (r < 0)
		return r;
	*ret = (struct stkd_outcome){0};
	while (stkd_source_next(source, &arrival))
		add(plan, arrival.id, 1, ret);
	return 0;
}
