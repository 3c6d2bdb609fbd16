/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds for every plan, on random small specs. Each failure prints the number of its case:
 * PLAN_CASE=N runs that one alone.
 */
#include "daemon/plan/plan_private.h"
#include "tests/unit/plan_fixture.h"

#define CASES   4000
#define SAMPLES 160
#define STEPS   512

struct one {
	struct stk_spec spec;
	uint32_t len[SAMPLES], n, world;
	struct stkd_plan *plan;
	uint32_t parts, nclasses;
	const struct stkd_class *classes;
	const struct stkd_plan_counts *counts;
};

static void random_edges(struct stk_spec *spec, uint64_t *seed, uint32_t span)
{
	uint32_t edge = 0;

	spec->nedges = 1 + below(seed, 5);
	for (size_t i = 0; i < spec->nedges; i++) {
		edge += 1 + below(seed, span / 2 + 1);
		spec->edges[i] = edge;
	}
}

static void random_case(struct one *c, uint64_t seed)
{
	uint32_t span = 1 + below(&seed, 60);

	c->spec = plain_spec();
	c->spec.seed = draw(&seed);
	c->spec.order = (int)below(&seed, 2);
	c->spec.overlong = (int)below(&seed, 2);
	c->spec.group = below(&seed, 4) ? STK_GROUP_BUCKET : STK_GROUP_FIXED;
	c->spec.buckets = 1 + below(&seed, 6);
	c->spec.accumulate = 1 + below(&seed, 3) / 2;
	c->spec.multiple_of = below(&seed, 2) ? 1 : 1 + below(&seed, 8);
	c->spec.pad_to = (int)below(&seed, 2);
	c->spec.tail = (int)below(&seed, 4) % 3;
	if (below(&seed, 2))
		c->spec.max_length = 1 + below(&seed, span + 5);
	if (c->spec.group == STK_GROUP_BUCKET && below(&seed, 2))
		random_edges(&c->spec, &seed, span);
	c->spec.rows = 1 + below(&seed, 5);
	if (below(&seed, 2)) {
		c->spec.rows = 0;
		/* Often one row of the largest bucket, so that lenders are smaller ones. */
		c->spec.tokens = span + 8 + below(&seed, below(&seed, 2) ? 4 * span + 1 : 8);
	}
	c->world = 1 + below(&seed, 7);
	c->n = 1 + below(&seed, below(&seed, 3) ? SAMPLES : 12);
	for (uint32_t i = 0; i < c->n; i++)
		c->len[i] = below(&seed, below(&seed, 3) ? span : span / 3 + 1);
	c->parts = c->world * c->spec.accumulate;
}

/* False when the plan refuses, which only an epoch without a step may do here. */
static bool open_case(struct one *c)
{
	struct stkd_lengths lengths = {c->len, c->n};
	struct stk_err err = {0};
	int r = stkd_plan_new(&c->spec, &lengths, c->world, &c->plan, &err);

	if (r < 0) {
		assert_int_equal(r, -EINVAL);
		assert_true(strstr(err.text, "no step") || strstr(err.text, "no samples left") ||
			    strstr(err.text, "smaller than one row"));
		if (strstr(err.text, "no step"))
			assert_true(c->spec.tail == STK_TAIL_DROP || c->n < c->parts ||
				    c->spec.overlong == STK_OVERLONG_DROP);
		return false;
	}
	c->classes = stkd_plan_classes(c->plan, &c->nclasses);
	c->counts = stkd_plan_counts(c->plan);
	return true;
}

/* What the steps of an epoch add up to. */
struct sums {
	uint8_t seen[SAMPLES];
	uint64_t delivered, masked, real_tokens, padded_tokens;
};

static void check_row(const struct one *c, const struct stkd_step *step, uint64_t id,
		      struct sums *sums)
{
	assert_true(id < c->n);
	assert_int_equal(sums->seen[id], 0);
	sums->seen[id] = 1;
	assert_true(stkd_plan_length(c->plan, id) <= step->width);
	assert_true(c->len[id] <= c->counts->max_length ||
		    c->spec.overlong == STK_OVERLONG_TRUNCATE);
	sums->real_tokens += stkd_plan_length(c->plan, id);
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
			if (c->spec.tokens)
				assert_true((uint64_t)part.rows * step->width <= c->spec.tokens);
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
	sums->delivered += step->nids;
	check_parts(c, step, sums);
}

/* One epoch: every step, then the sums against the counts of the plan. */
static void check_epoch(const struct one *c, struct stkd_iter *iter, uint64_t epoch)
{
	struct sums sums = {0};
	uint64_t missing = 0;

	for (uint64_t s = 0; s < c->counts->steps; s++) {
		struct stkd_step step;

		assert_int_equal(stkd_iter_epoch(iter), epoch);
		assert_int_equal(stkd_iter_step(iter), s);
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_int_equal(step.epoch, epoch);
		assert_int_equal(step.step, s);
		assert_int_equal(step.last_of_epoch, s + 1 == c->counts->steps);
		check_step(c, &step, &sums);
	}
	assert_int_equal(stkd_iter_epoch(iter), epoch + 1);
	assert_int_equal(stkd_iter_step(iter), 0);
	for (uint32_t i = 0; i < c->n; i++)
		missing += !sums.seen[i];
	assert_int_equal(sums.delivered, c->counts->delivered);
	assert_int_equal(missing, c->counts->overlong_dropped + c->counts->tail_dropped);
	assert_int_equal(sums.masked, c->counts->masked);
	assert_int_equal(sums.padded_tokens, c->counts->padded_tokens);
	if (c->spec.tail != STK_TAIL_DROP) {
		assert_int_equal(c->counts->tail_dropped, 0);
		assert_int_equal(sums.real_tokens, c->counts->real_tokens);
	}
	assert_true(sums.real_tokens <= c->counts->real_tokens);
	assert_true(sums.real_tokens <= sums.padded_tokens);
}

/* A masked row under `short` only where no step could lend: every full step has one row a part. */
static void check_masks(const struct one *c)
{
	struct stkd_iter *iter;

	if (c->spec.tail != STK_TAIL_SHORT || !c->counts->masked)
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
	uint64_t ids[SAMPLES];
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	size_t size;
};

static void record_next(struct stkd_iter *iter, struct record *ret)
{
	assert_int_equal(stkd_iter_next(iter, &ret->step), 0);
	assert_true(ret->step.nids <= SAMPLES);
	memcpy(ret->ids, ret->step.ids, ret->step.nids * sizeof(ret->ids[0]));
	ret->size = stkd_iter_cursor(iter, ret->cursor);
	assert_in_range(ret->size, 1, STK_SHM_CURSOR_MAX);
}

static void assert_same(const struct record *a, const struct record *b)
{
	assert_int_equal(a->step.epoch, b->step.epoch);
	assert_int_equal(a->step.step, b->step.step);
	assert_int_equal(a->step.shape_class, b->step.shape_class);
	assert_int_equal(a->step.width, b->step.width);
	assert_int_equal(a->step.rows_part, b->step.rows_part);
	assert_int_equal(a->step.real_tokens, b->step.real_tokens);
	assert_int_equal(a->step.nids, b->step.nids);
	assert_memory_equal(a->ids, b->ids, a->step.nids * sizeof(a->ids[0]));
	assert_int_equal(a->size, b->size);
	assert_memory_equal(a->cursor, b->cursor, a->size);
}

static void check_seek(struct stkd_iter *iter, const struct record *to)
{
	struct record got;

	assert_int_equal(stkd_iter_seek(iter, to->step.epoch, to->step.step, NULL), 0);
	record_next(iter, &got);
	assert_same(&got, to);
}

/* From each cursor of two epochs a new iterator gives the same next steps; so does seek. */
static void check_resume(const struct one *c)
{
	static struct record all[2 * STEPS + 1];
	struct stkd_iter *iter = make_iter(c->plan, NULL, 0);
	struct stkd_iter *seeker = make_iter(c->plan, NULL, 0);
	uint64_t n = 2 * c->counts->steps + 1;

	assert_true(n <= STK_ARRAY_SIZE(all));
	for (uint64_t i = 0; i < n; i++)
		record_next(iter, &all[i]);
	stkd_iter_free(iter);
	for (uint64_t i = 0; i + 1 < n; i++) {
		struct record got;
		uint64_t two = STK_MIN(n, i + 3);

		iter = make_iter(c->plan, all[i].cursor, all[i].size);
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

/* The counts follow from the lengths alone, in whatever order they stand. */
static void check_order_is_irrelevant(const struct one *c)
{
	struct one other = *c;
	struct stkd_plan_counts counts;

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
		overlong;
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
}

static void check_case(uint64_t number)
{
	struct one *c = calloc(1, sizeof(*c));
	struct stkd_iter *iter;

	assert_non_null(c);
	random_case(c, (number + 1) * UINT64_C(0x9e3779b97f4a7c15));
	if (open_case(c)) {
		assert_true(c->counts->steps <= STEPS);
		note_kind(c);
		iter = make_iter(c->plan, NULL, 0);
		check_epoch(c, iter, 0);
		check_epoch(c, iter, 1);
		stkd_iter_free(iter);
		check_masks(c);
		check_resume(c);
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

static void every_plan_keeps_its_promises(void **state)
{
	const char *only = getenv("PLAN_CASE");
	uint64_t first = only ? strtoull(only, NULL, 10) : 0;

	(void)state;
	last = only ? first + 1 : CASES;
	for (running = first; running < last; running++)
		check_case(running);
	if (only)
		return;
	/* Cases that never come up would prove nothing. */
	assert_true(reached.plans > CASES / 2);
	for (int tail = 0; tail < 3; tail++)
		assert_true(reached.rest[tail] > CASES / 20);
	assert_true(reached.promoted > CASES / 20);
	assert_true(reached.lent_in_main > 20);
	assert_true(reached.lent_in_tail > 20);
	assert_true(reached.filled_by_loan > 20);
	assert_true(reached.masked_short > 20);
	assert_true(reached.overlong > CASES / 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_plan_keeps_its_promises, say_which),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
