/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the passes over lengths. Any thread.
 */
#include "daemon/plan/tally.h"

#include <errno.h>

#include "daemon/plan/pairs.h"
#include "daemon/plan/source.h"

/* Reads a dataset as it is stored, or the samples at the first places of a pass over it. */
struct reader {
	const struct stkd_plan *plan;
	struct stkd_source *source; /* NULL: as stored */
	uint32_t d;
	uint64_t pass, next, end; /* sample ids as stored; places of the pass */
	uint64_t ids[STKD_SOURCE_AHEAD];
	struct stkd_tally tally;
};

static struct reader stored_of(const struct stkd_plan *plan, uint32_t d)
{
	const struct stkd_mix_dataset *of = &plan->mix.datasets[d];

	return (struct reader){.plan = plan,
			       .next = of->first,
			       .end = of->first + of->count,
			       .tally.shortest2 = UINT32_MAX};
}

/* Whole ones that an epoch makes. */
static uint64_t passes_of(const struct stkd_mix_dataset *of)
{
	return of->count ? of->drawn / of->count : 0;
}

/* What the source's epoch draws of a dataset behind its whole passes. */
static struct reader rest_of(struct stkd_source *source, uint32_t d)
{
	const struct stkd_mix_dataset *of = &source->plan->mix.datasets[d];

	return (struct reader){.plan = source->plan,
			       .source = source,
			       .d = d,
			       .pass = passes_of(of),
			       .end = of->count ? of->drawn % of->count : 0,
			       .tally.shortest2 = UINT32_MAX};
}

static bool next_id(struct reader *reader, uint64_t *ret)
{
	uint64_t at = reader->next % STKD_SOURCE_AHEAD, left = reader->end - reader->next;

	if (!left)
		return false;
	*ret = reader->next++;
	if (!reader->source)
		return true;
	if (!at)
		stkd_source_pass(reader->source, reader->d, reader->pass, *ret,
				 STK_MIN(left, (uint64_t)STKD_SOURCE_AHEAD), reader->ids);
	*ret = reader->ids[at];
	return true;
}

static void take_second(struct stkd_tally *tally, uint32_t second)
{
	tally->shortest2 = STK_MIN(tally->shortest2, second);
	tally->longest2 = STK_MAX(tally->longest2, second);
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
			take_second(&reader->tally, plan->lengths.second[id]);
		out[n++] = plan->lengths.len[id];
	}
	reader->tally.kept += n;
	return n;
}

/* Its lengths, each counted so many times. */
static int read_all(struct reader *reader, uint64_t times, struct stkd_histogram *ret,
		    struct stkd_tally *tally)
{
	struct stkd_histogram h = {0};
	int r;

	if (!times || reader->next == reader->end)
		return 0;
	r = stkd_histogram_read(read_lengths, reader, &h);
	if (r == 0)
		r = stkd_histogram_add(ret, &h, times);
	stkd_histogram_deinit(&h);
	tally->kept += reader->tally.kept * times;
	tally->filtered += reader->tally.filtered * times;
	tally->shortest2 = STK_MIN(tally->shortest2, reader->tally.shortest2);
	tally->longest2 = STK_MAX(tally->longest2, reader->tally.longest2);
	return r;
}

/* A source at the beginning of an epoch. */
static int open_epoch(const struct stkd_plan *plan, uint64_t epoch, struct stkd_source **ret)
{
	_cleanup_(stkd_source_freep) struct stkd_source *source = NULL;
	int r = stkd_source_new(plan, &source);

	if (r == 0)
		r = stkd_source_begin(source, epoch);
	if (r == 0)
		*ret = STK_STEAL(source);
	return r;
}

static int read_drawn(const struct stkd_plan *plan, struct stkd_histogram *ret,
		      struct stkd_tally *tally)
{
	_cleanup_(stkd_source_freep) struct stkd_source *source = NULL;
	int r = open_epoch(plan, 0, &source);

	for (uint32_t d = 0; r == 0 && d < plan->mix.n; d++) {
		struct reader whole = stored_of(plan, d), rest = rest_of(source, d);

		r = read_all(&whole, passes_of(&plan->mix.datasets[d]), ret, tally);
		if (r == 0)
			r = read_all(&rest, 1, ret, tally);
	}
	return r;
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
	int r = 0;

	for (uint32_t d = 0; r == 0 && d < plan->mix.n; d++) {
		struct reader reader = stored_of(plan, d);

		r = read_all(&reader, times_of(&plan->mix, d), ret, tally);
	}
	return r;
}

int stkd_tally_lengths(const struct stkd_plan *plan, bool drawn, struct stkd_histogram *ret,
		       struct stkd_tally *ret_tally)
{
	struct stkd_tally tally = {.shortest2 = UINT32_MAX};
	struct stkd_histogram h = {0};
	int r;

	if (stkd_mix_is_plain(&plan->mix) && !plan->picks && !plan->lengths.second) {
		*ret_tally = (struct stkd_tally){.kept = plan->lengths.count};
		return stkd_histogram_new(plan->lengths.len, plan->lengths.count, ret);
	}
	if (drawn && !plan->mix.whole && plan->mix.draws != UINT64_MAX)
		r = read_drawn(plan, &h, &tally);
	else
		r = read_stored(plan, &h, &tally);
	if (r < 0) {
		stkd_histogram_deinit(&h);
		return r;
	}
	*ret = h;
	*ret_tally = tally;
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

static void add_all(struct reader *reader, uint64_t times, struct stkd_outcome *to)
{
	uint64_t id;

	while (times && next_id(reader, &id))
		add(reader->plan, id, times, to);
}

void stkd_tally_stored(const struct stkd_plan *plan, struct stkd_outcome *ret)
{
	*ret = (struct stkd_outcome){0};
	for (uint32_t d = 0; d < plan->mix.n; d++) {
		struct reader reader = stored_of(plan, d);

		add_all(&reader, times_of(&plan->mix, d), ret);
	}
}

void stkd_tally_pairs(const struct stkd_plan *plan, struct stkd_pairs *ret)
{
	for (uint32_t d = 0; d < plan->mix.n; d++) {
		struct reader reader = stored_of(plan, d);
		uint64_t id, times = times_of(&plan->mix, d);
		uint32_t length;

		while (times && next_id(&reader, &id))
			if (stkd_plan_delivers(plan, id, &length))
				stkd_pairs_add(ret, length, stkd_plan_second(plan, id), times);
	}
}

/* Which samples it draws does not hang on how datasets alternate. */
int stkd_tally_epoch(const struct stkd_plan *plan, uint64_t epoch, struct stkd_outcome *ret)
{
	_cleanup_(stkd_source_freep) struct stkd_source *source = NULL;
	int r = open_epoch(plan, epoch, &source);

	if (r < 0)
		return r;
	*ret = (struct stkd_outcome){0};
	for (uint32_t d = 0; d < plan->mix.n; d++) {
		struct reader whole = stored_of(plan, d), rest = rest_of(source, d);

		add_all(&whole, passes_of(&plan->mix.datasets[d]), ret);
		add_all(&rest, 1, ret);
	}
	return 0;
}
