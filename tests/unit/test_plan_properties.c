/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds for every plan, on random small specs. Each failure prints the number of its case:
 * PLAN_CASE=N runs that one alone.
 */
#include "daemon/plan/tally.h"
#include "tests/unit/plan_cases.h"

#define CASES 2500
#define STEPS 1024

/* What the steps of an epoch add up to. */
struct sums {
	uint32_t seen[SAMPLES];
	uint64_t delivered, masked, real_tokens, padded_tokens;
};

static void check_keep(const struct one *c, uint64_t id)
{
	const struct stk_spec_keep *keep = &c->spec.keep;
	bool inverted = keep->over && !strcmp(keep->over, "tokens");
	uint64_t over = inverted ? c->len2[id] : c->len[id];
	uint64_t under = inverted ? c->len[id] : c->len2[id];

	assert_true(c->len[id] >= keep->min_length);
	assert_true(!keep->max_length || c->len[id] <= keep->max_length);
	if (!keep->over)
		return;
	assert_true(over * 1000000 >= under * keep->ratio_min);
	assert_true(over * 1000000 <= under * keep->ratio_max);
}

static void check_row(const struct one *c, const struct stkd_step *step, uint64_t id,
		      struct sums *sums)
{
	assert_true(id < c->n);
	sums->seen[id]++;
	assert_true(stkd_plan_length(c->plan, id) <= step->width);
	assert_true(c->len[id] <= c->counts->max_length ||
		    c->spec.overlong == STK_OVERLONG_TRUNCATE);
	if (c->two)
		assert_true(c->len2[id] <= step->width2 ||
			    c->spec.overlong == STK_OVERLONG_TRUNCATE);
	check_keep(c, id);
	sums->real_tokens += stkd_plan_length(c->plan, id);
}

/* Padding included. */
static void check_budget(const struct one *c, const struct stkd_step *step, uint64_t rows)
{
	const struct stk_spec_cost *cost = &c->spec.cost;
	uint64_t width = (uint64_t)step->width + step->width2;

	if (c->spec.tokens)
		assert_true(rows * width <= c->spec.tokens);
	if (c->spec.global_tokens)
		assert_true(step->nids * width <= c->spec.global_tokens);
	if (c->spec.global_rows)
		assert_true(step->nids <= c->spec.global_rows);
	if (cost->budget)
		assert_true(rows * (cost->a * width + cost->b * width * width) <=
			    cost->budget * 1000000);
}

static void check_parts(const struct one *c, const struct stkd_step *step, struct sums *sums)
{
	const struct stkd_class *class = &c->classes[step->shape_class];
	const uint64_t *next = step->ids;
	uint32_t least = UINT32_MAX, most = 0;

	for (uint32_t rank = 0; rank < c->world; rank++) {
		for (uint32_t micro = 0; micro < c->spec.accumulate; micro++) {
			struct stkd_part part;

			stkd_step_part(c->plan, step, rank, micro, &part);
			assert_ptr_equal(part.ids, next);
			next += part.rows_real;
			assert_in_range(part.rows, 1, class->rows);
			assert_true(part.rows_real <= part.rows);
			check_budget(c, step, part.rows);
			least = STK_MIN(least, part.rows);
			most = STK_MAX(most, part.rows);
			sums->masked += part.rows - part.rows_real;
			sums->padded_tokens += (uint64_t)part.rows * class->edge;
		}
	}
	assert_ptr_equal(next, step->ids + step->nids);
	assert_true(most - least <= (c->spec.tail == STK_TAIL_SHORT));
}

static void check_step(const struct one *c, const struct stkd_step *step, struct sums *sums)
{
	const struct stkd_class *class = &c->classes[step->shape_class];
	uint64_t before = sums->real_tokens;
	uint32_t longest = 0;

	assert_in_range(step->width, class->width_min, class->width_max);
	assert_in_range(step->width2, class->width2_min, class->width2_max);
	assert_true(step->width % class->width_multiple == 0 || step->width == class->edge);
	for (uint32_t i = 0; i < step->nids; i++) {
		check_row(c, step, step->ids[i], sums);
		longest = STK_MAX(longest, stkd_plan_length(c->plan, step->ids[i]));
	}
	assert_int_equal(step->real_tokens, sums->real_tokens - before);
	if (c->spec.pad_to == STK_PAD_EDGE)
		assert_int_equal(step->width, class->edge);
	else
		assert_true(step->width < STK_MAX(longest, 1u) + c->spec.multiple_of);
	if (c->spec.pad_to == STK_PAD_EDGE)
		assert_int_equal(step->width2, class->edge2);
	sums->delivered += step->nids;
	check_parts(c, step, sums);
}

/* Each sample as often as the epoch draws it; what is missing is on a counted list. */
static void check_seen(const struct one *c, const struct sums *sums, uint64_t epoch)
{
	const struct stkd_mix *mix = &c->plan->mix;
	struct stkd_outcome outcome;

	assert_int_equal(stkd_tally_epoch(c->plan, epoch, &outcome), 0);
	for (uint32_t d = 0; d < mix->n; d++) {
		const struct stkd_mix_dataset *of = &mix->datasets[d];

		for (uint64_t id = of->first; id < of->first + of->count; id++) {
			uint32_t length;
			bool delivers = stkd_plan_delivers(c->plan, id, &length);

			assert_true(sums->seen[id] <= (delivers ? of->passes : 0));
			if (delivers && c->spec.tail != STK_TAIL_DROP)
				assert_true(sums->seen[id] >= of->drawn / of->count);
		}
	}
	if (c->spec.tail == STK_TAIL_DROP)
		assert_true(sums->delivered <= outcome.delivered);
	else
		assert_int_equal(sums->delivered, outcome.delivered);
	assert_int_equal(outcome.delivered + outcome.filtered +
				 (c->spec.overlong == STK_OVERLONG_DROP ? outcome.overlong : 0),
			 mix->draws);
}

/* The sums against the counts of the plan. */
static void check_sums(const struct one *c, const struct sums *sums)
{
	const struct stkd_plan_counts *counts = c->counts;

	assert_int_equal(sums->delivered, counts->delivered);
	assert_int_equal(c->plan->mix.draws, counts->delivered + counts->overlong_dropped +
						     counts->filtered + counts->tail_dropped);
	assert_int_equal(sums->masked, counts->masked);
	assert_int_equal(sums->padded_tokens, counts->padded_tokens);
	if (c->spec.tail != STK_TAIL_DROP) {
		assert_int_equal(counts->tail_dropped, 0);
		assert_int_equal(sums->real_tokens, counts->real_tokens);
	}
	assert_true(sums->real_tokens <= counts->real_tokens);
	assert_true(sums->real_tokens <= sums->padded_tokens);
}

/* No step before the tail is of a larger class than the first one. */
static void check_first(const struct one *c, const struct stkd_step *step, uint64_t *largest)
{
	const struct stkd_class *class = &c->classes[step->shape_class];
	uint64_t tokens = (uint64_t) class->rows * ((uint64_t) class->edge + class->edge2);

	if (!c->spec.largest_first || !c->plan->mix.whole)
		return;
	if (!step->step)
		*largest = tokens;
	if (step->step < c->plan->outline.main_steps)
		assert_true(tokens <= *largest);
}

/* One epoch: every step, then the sums against what is known. */
static void check_epoch(const struct one *c, struct stkd_iter *iter)
{
	uint64_t epoch = stkd_iter_epoch(iter), largest = 0;
	struct stkd_step step = {0};
	struct sums sums = {0};

	for (uint64_t s = 0; !step.last_of_epoch; s++) {
		assert_int_equal(stkd_iter_step(iter), s);
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		if (!s && !c->plan->mix.whole)
			epoch = step.epoch; /* those without a step are passed over */
		assert_int_equal(step.epoch, epoch);
		assert_int_equal(step.step, s);
		if (c->plan->mix.whole || !epoch)
			assert_int_equal(step.last_of_epoch, s + 1 == c->counts->steps);
		check_step(c, &step, &sums);
		check_first(c, &step, &largest);
	}
	assert_int_equal(stkd_iter_epoch(iter), epoch + 1);
	assert_int_equal(stkd_iter_step(iter), 0);
	check_seen(c, &sums, epoch);
	if (c->plan->mix.whole || !epoch)
		check_sums(c, &sums);
}

/* A masked row under `short` only where no step could lend: every full step has one row a part. */
static void check_masks(const struct one *c)
{
	struct stkd_iter *iter;

	if (c->spec.tail != STK_TAIL_SHORT || !c->counts->masked || stk_spec_is_global(&c->spec))
		return;
	assert_true(c->counts->masked < c->parts);
	iter = make_iter(c->plan, NULL, 0);
	for (uint64_t s = 0; s < c->counts->steps; s++) {
		struct stkd_step step;

		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_int_equal(step.rows_part, 1);
		assert_true(step.last_of_epoch || step.nids == c->parts);
	}
	stkd_iter_free(iter);
}

/* A step and the cursor behind it, kept. */
struct record {
	struct stkd_step step;
	uint64_t ids[1400];
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	size_t size;
};

static void record_next(struct stkd_iter *iter, struct record *ret)
{
	assert_int_equal(stkd_iter_next(iter, &ret->step), 0);
	assert_true(ret->step.nids <= STK_ARRAY_SIZE(ret->ids));
	memcpy(ret->ids, ret->step.ids, ret->step.nids * sizeof(ret->ids[0]));
	ret->size = stkd_iter_cursor(iter, ret->cursor);
	assert_in_range(ret->size, 1, STK_SHM_CURSOR_MAX);
}

/* All but how the step is cut into parts. */
static void assert_same_step(const struct record *a, const struct record *b)
{
	assert_int_equal(a->step.epoch, b->step.epoch);
	assert_int_equal(a->step.step, b->step.step);
	assert_int_equal(a->step.shape_class, b->step.shape_class);
	assert_int_equal(a->step.width, b->step.width);
	assert_int_equal(a->step.width2, b->step.width2);
	assert_int_equal(a->step.real_tokens, b->step.real_tokens);
	assert_int_equal(a->step.last_of_epoch, b->step.last_of_epoch);
	assert_int_equal(a->step.nids, b->step.nids);
	assert_memory_equal(a->ids, b->ids, a->step.nids * sizeof(a->ids[0]));
	assert_int_equal(a->size, b->size);
	assert_memory_equal(a->cursor, b->cursor, a->size);
}

static void assert_same(const struct record *a, const struct record *b)
{
	assert_same_step(a, b);
	assert_int_equal(a->step.rows_part, b->step.rows_part);
}

static struct record all[2 * STEPS + 1];

/* Two epochs and one more step; returns how many. */
static uint64_t record_epochs(const struct stkd_plan *plan)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0);
	uint64_t n = 0, epochs = 0;

	while (epochs < 2) {
		assert_true(n + 1 < STK_ARRAY_SIZE(all));
		record_next(iter, &all[n]);
		epochs += all[n++].step.last_of_epoch;
	}
	record_next(iter, &all[n++]);
	stkd_iter_free(iter);
	return n;
}

static void check_seek(struct stkd_iter *iter, const struct record *to)
{
	struct record got;

	assert_int_equal(stkd_iter_seek(iter, to->step.epoch, to->step.step, NULL), 0);
	record_next(iter, &got);
	assert_same(&got, to);
}

/* From each cursor of two epochs a new iterator gives the same next steps; so does seek. */
static void check_resume(const struct one *c, uint64_t n)
{
	struct stkd_iter *seeker = make_iter(c->plan, NULL, 0);

	/* Every one of a small plan, some of a larger one. */
	for (uint64_t i = 0; i + 1 < n; i += 1 + n / 100) {
		struct stkd_iter *iter = make_iter(c->plan, all[i].cursor, all[i].size);
		uint64_t two = STK_MIN(n, i + 3);
		struct record got;

		for (uint64_t j = i + 1; j < two; j++) {
			record_next(iter, &got);
			assert_same(&got, &all[j]);
		}
		stkd_iter_free(iter);
		/* Back to the middle of what was seen, then forth. */
		check_seek(seeker, &all[i / 2]);
		check_seek(seeker, &all[i + 1]);
	}
	stkd_iter_free(seeker);
}

/* The same plan in another world, or NULL where that is refused. */
static struct stkd_plan *elsewhere(const struct one *c, uint32_t world, uint32_t accumulate,
				   struct stk_spec *spec)
{
	struct stkd_lengths lengths = lengths_of(c);
	struct stkd_plan *plan = NULL;

	*spec = c->spec;
	spec->accumulate = accumulate;
	return stkd_plan_new(spec, &lengths, world, &plan, NULL) < 0 ? NULL : plan;
}

/* A global batch: steps and cursors are the same in this world, and each cursor loads in it. */
static void check_world(const struct one *c, const struct stkd_plan *plan, uint64_t n)
{
	struct stkd_iter *iter = make_iter(plan, NULL, 0), *moved = NULL;
	struct record got;

	for (uint64_t i = 0; i < n; i++) {
		record_next(iter, &got);
		assert_same_step(&got, &all[i]);
		if (i + 1 == n || i % (3 + n / 20))
			continue;
		assert_int_equal(stkd_iter_new_from_world(plan, c->world, all[i].cursor,
							  all[i].size, &moved, NULL),
				 0);
		record_next(moved, &got);
		assert_same_step(&got, &all[i + 1]);
		moved = stkd_iter_free(moved);
	}
	stkd_iter_free(iter);
}

static void check_worlds(const struct one *c, uint64_t n)
{
	uint32_t of = c->spec.global_rows ? c->spec.global_rows : c->spec.world_multiple;

	for (uint32_t world = 1; world <= of && world <= 14; world++) {
		uint32_t accumulate = of % (2 * world) ? 1 : 1 + world % 2;
		struct stk_spec spec;
		struct stkd_plan *plan = elsewhere(c, world, accumulate, &spec);

		if (of % (world * accumulate))
			assert_null(plan);
		if (plan)
			check_world(c, plan, n);
		stkd_plan_free(plan);
	}
}

/* Counts the samples of the rest of an epoch, and goes on from some of its cursors. */
static void count_rest(const struct stkd_plan *plan, struct stkd_iter *iter, uint64_t epoch,
		       uint32_t *seen)
{
	static struct record rest[STEPS];
	uint64_t n = 0;

	while (stkd_iter_epoch(iter) == epoch) {
		assert_true(n < STK_ARRAY_SIZE(rest));
		record_next(iter, &rest[n]);
		for (uint32_t i = 0; i < rest[n].step.nids; i++)
			seen[rest[n].ids[i]]++;
		n++;
	}
	for (uint64_t i = 0; i + 1 < n; i += 1 + n / 6) {
		struct stkd_iter *again = make_iter(plan, rest[i].cursor, rest[i].size);
		struct record got;

		for (uint64_t j = i + 1; j < n && j < i + 3; j++) {
			record_next(again, &got);
			assert_same(&got, &rest[j]);
		}
		stkd_iter_free(again);
	}
}

/* Goes to another world behind some steps of epoch 0, and from there to a third one. */
static void check_moves(const struct one *c, const struct stkd_plan *plan, const uint32_t *whole)
{
	uint32_t before[SAMPLES] = {0}, seen[SAMPLES];
	uint64_t steps = 0;

	while (!all[steps].step.last_of_epoch)
		steps++;
	for (uint64_t i = 0; i < steps; i++) {
		struct stkd_iter *iter = NULL;
		struct stk_err err = {0};

		for (uint32_t k = 0; k < all[i].step.nids; k++)
			before[all[i].ids[k]]++;
		if (i % (1 + steps / 8) && i + 3 < steps)
			continue;
		memcpy(seen, before, sizeof(seen));
		if (stkd_iter_new_from_world(plan, c->world, all[i].cursor, all[i].size, &iter,
					     &err) < 0)
			fail_msg("%s", err.text);
		assert_true(stkd_iter_epoch(iter) > all[i].step.epoch ||
			    stkd_iter_step(iter) == all[i].step.step + 1);
		count_rest(plan, iter, all[i].step.epoch, seen);
		stkd_iter_free(iter);
		for (uint32_t id = 0; id < c->n; id++) {
			assert_true(seen[id] <= whole[id] || c->spec.tail == STK_TAIL_DROP);
			assert_true(seen[id] >= whole[id] || c->spec.tail == STK_TAIL_DROP);
		}
	}
}

/* Rows of each rank: another world goes on, and every sample still comes as often as it should. */
static void check_move(const struct one *c, uint64_t seed)
{
	uint32_t world = 1 + below(&seed, 9);
	uint32_t whole[SAMPLES] = {0};
	struct stk_spec spec;
	struct stkd_plan *plan = elsewhere(c, world, c->spec.accumulate, &spec);
	bool ended = false;

	for (uint64_t i = 0; !ended; i++) {
		for (uint32_t k = 0; k < all[i].step.nids; k++)
			whole[all[i].ids[k]]++;
		ended = all[i].step.last_of_epoch;
	}
	if (plan && !all[0].step.epoch)
		check_moves(c, plan, whole);
	stkd_plan_free(plan);
}

/* The counts follow from the lengths alone, in whatever order they stand. */
static void check_order_is_irrelevant(const struct one *c)
{
	struct one other = *c;
	struct stkd_plan_counts counts;

	if (c->ndatasets || c->two)
		return;
	for (uint32_t i = 0; i < c->n; i++)
		other.len[i] = c->len[c->n - 1 - i];
	other.spec.seed++;
	assert_true(open_case(&other));
	counts = *other.counts;
	counts.first_overlong = c->counts->first_overlong;
	assert_memory_equal(&counts, c->counts, sizeof(counts));
	stkd_plan_free(other.plan);
}

/* How often each kind of plan came up. */
static struct {
	unsigned plans, rest[3], promoted, lent_in_main, lent_in_tail, filled_by_loan, masked_short,
		overlong, filtered, mixed, partial, two, global, first, method[4];
} reached;

static void note_kind(const struct one *c)
{
	const struct stkd_outline *o = &c->plan->outline;
	bool lends = o->lender < o->nbuckets;

	reached.plans++;
	reached.rest[c->spec.tail] += o->rest > 0;
	reached.promoted += o->promoted > 0;
	reached.lent_in_main += lends && o->lender_main >= o->lend_step;
	reached.lent_in_tail += lends && o->lender_main < o->lend_step;
	reached.filled_by_loan += lends && !o->rest;
	reached.masked_short += c->spec.tail == STK_TAIL_SHORT && c->counts->masked;
	reached.overlong += c->counts->overlong_dropped || c->counts->truncated;
	reached.filtered += c->counts->filtered > 0;
	reached.mixed += c->ndatasets > 0;
	reached.partial += !c->plan->mix.whole;
	reached.two += c->two;
	reached.global += stk_spec_is_global(&c->spec);
	reached.first += o->first < o->nbuckets;
	reached.method[c->spec.bucket_method] += !c->spec.nedges && c->nclasses > 1;
}

static void check_case(uint64_t number)
{
	struct one *c = calloc(1, sizeof(*c));
	struct stkd_iter *iter;

	assert_non_null(c);
	random_case(c, (number + 1) * UINT64_C(0x9e3779b97f4a7c15));
	if (open_case(c)) {
		uint64_t n;

		note_kind(c);
		iter = make_iter(c->plan, NULL, 0);
		check_epoch(c, iter);
		check_epoch(c, iter);
		stkd_iter_free(iter);
		check_masks(c);
		n = record_epochs(c->plan);
		check_resume(c, n);
		if (stk_spec_is_global(&c->spec))
			check_worlds(c, n);
		else
			check_move(c, number + 1);
		check_order_is_irrelevant(c);
		stkd_plan_free(c->plan);
	}
	free(c);
}

static uint64_t running, last;

static int say_which(void **state)
{
	(void)state;
	if (running < last)
		print_message("failed: PLAN_CASE=%llu\n", (unsigned long long)running);
	return 0;
}

/* Cases that never come up would prove nothing. */
static void assert_all_reached(void)
{
	assert_true(reached.plans > CASES / 2);
	for (int tail = 0; tail < 3; tail++)
		assert_true(reached.rest[tail] > CASES / 20);
	for (int method = 0; method < 4; method++)
		assert_true(reached.method[method] > CASES / 40);
	assert_true(reached.promoted > CASES / 20);
	assert_true(reached.lent_in_main > 10);
	assert_true(reached.lent_in_tail > 10);
	assert_true(reached.filled_by_loan > 2);
	assert_true(reached.masked_short > 10);
	assert_true(reached.overlong > CASES / 20);
	assert_true(reached.filtered > CASES / 40);
	assert_true(reached.mixed > CASES / 20);
	assert_true(reached.partial > CASES / 40);
	assert_true(reached.two > CASES / 20);
	assert_true(reached.global > CASES / 20);
	assert_true(reached.first > CASES / 40);
}

static void every_plan_keeps_its_promises(void **state)
{
	const char *only = getenv("PLAN_CASE");
	uint64_t first = only ? strtoull(only, NULL, 10) : 0;

	(void)state;
	last = only ? first + 1 : CASES;
	for (running = first; running < last; running++)
		check_case(running);
	if (!only)
		assert_all_reached();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_plan_keeps_its_promises, say_which),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
