/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What holds for every plan of packs and token streams, on random small specs. Each failure prints the
 * number of its case: PLAN_CASE=N runs that one alone.
 */
#include "daemon/plan/cursor.h"
#include "daemon/plan/packing.h"
#include "daemon/plan/source.h"
#include "tests/unit/plan_fixture.h"

#define CASES    3000
#define SAMPLES  60
#define LENGTH   40
#define STEPS    1200
#define SEGMENTS (SAMPLES * (LENGTH + 1) * 2)

struct one {
	struct stk_spec spec;
	uint32_t len[SAMPLES], n, world, parts, row;
	struct stkd_plan *plan;
	const struct stkd_plan_counts *counts;
	uint64_t global;
};

static void random_pack(struct stk_spec *spec, uint64_t *seed, uint32_t span)
{
	spec->align = below(seed, 4) ? 1 : 1 + below(seed, 4);
	spec->segments_max = below(seed, 3) ? 0 : 1 + below(seed, 5);
	spec->window = below(seed, 4) ? 1 + below(seed, 30) : 0;
	spec->overlong = (int)below(seed, 4);
	if (spec->overlong == STK_OVERLONG_ERROR)
		spec->overlong = STK_OVERLONG_SPLIT;
	if (below(seed, 5))
		spec->max_length = spec->align * (1 + below(seed, span));
	spec->flat = !below(seed, 3);
	if (!spec->flat)
		return;
	spec->rows = 0;
	spec->tokens = spec->align * (1 + below(seed, 2 * span));
	if (spec->max_length > spec->tokens)
		spec->max_length = (uint32_t)spec->tokens;
}

static void random_case(struct one *c, uint64_t seed)
{
	uint32_t span = 1 + below(&seed, LENGTH);

	c->spec = plain_spec();
	c->spec.align = 1;
	c->spec.seed = draw(&seed);
	c->spec.order = (int)below(&seed, 2);
	c->spec.rows = 1 + below(&seed, 4) * below(&seed, 2);
	c->spec.accumulate = 1 + below(&seed, 3) / 2;
	c->spec.tail = (int)below(&seed, 4) % 3;
	c->spec.balance = (int)below(&seed, 3);
	c->spec.group = below(&seed, 3) ? STK_GROUP_PACK : STK_GROUP_CONCAT;
	if (c->spec.group == STK_GROUP_PACK) {
		random_pack(&c->spec, &seed, span);
	} else {
		c->spec.max_length = 1 + below(&seed, span);
		c->spec.overlap = below(&seed, 2);
		c->spec.separator = below(&seed, 2);
	}
	c->world = 1 + below(&seed, 5);
	c->n = 1 + below(&seed, below(&seed, 3) ? SAMPLES : 9);
	for (uint32_t i = 0; i < c->n; i++)
		c->len[i] = below(&seed, 12) ? below(&seed, below(&seed, 3) ? span : span / 3 + 1)
					     : span;
	c->parts = c->world * c->spec.accumulate;
}

static bool open_case(struct one *c)
{
	struct stkd_lengths lengths = {.len = c->len, .count = c->n};
	const struct stkd_class *class;
	struct stk_err err = {0};
	uint32_t n;
	int r = stkd_plan_new(&c->spec, &lengths, c->world, &c->plan, &err);

	if (r < 0) {
		assert_int_equal(r, -EINVAL);
		if (!strstr(err.text, "no step") && !strstr(err.text, "no samples left") &&
		    !strstr(err.text, "no tokens") && !strstr(err.text, "fewer tokens"))
			fail_msg("%s", err.text);
		return false;
	}
	class = stkd_plan_classes(c->plan, &n);
	assert_int_equal(n, 1);
	assert_int_equal(class->width_min, class->edge);
	assert_int_equal(class->width_max, class->edge);
	c->row = class->edge;
	c->counts = stkd_plan_counts(c->plan);
	c->global = (uint64_t) class->rows * c->parts;
	return true;
}

/* What an epoch adds up to. */
struct sums {
	uint8_t times[SAMPLES][LENGTH + 1]; /* each token, and the separator */
	uint32_t next[SAMPLES];             /* where the next piece begins */
	uint64_t rows, masked, segments, tokens;
	/* Token streams: rows by their place, as first token and length. */
	uint64_t steps;
};

static void check_row(const struct one *c, const struct stkd_step *step, uint32_t row,
		      struct sums *sums)
{
	uint32_t first = step->row_first[row], end = step->row_first[row + 1], used = 0;

	assert_true(end > first);
	assert_in_range(end - first, 1, c->counts->row_segments);
	if (c->spec.segments_max)
		assert_in_range(end - first, 1, c->spec.segments_max);
	for (uint32_t s = first; s < end; s++) {
		const struct stk_segment *segment = &step->segments[s];

		used = (uint32_t)stk_round_up(used, c->spec.align) + segment->length;
		assert_true(segment->id < c->n);
		assert_true(segment->length > 0);
		assert_true(segment->from + segment->length <=
			    c->len[segment->id] + c->spec.separator);
		if (s > first)
			assert_true(segment->position > segment[-1].position ||
				    (segment->position == segment[-1].position &&
				     segment->from > segment[-1].from));
		for (uint32_t t = 0; t < segment->length; t++)
			sums->times[segment->id][segment->from + t]++;
		if (c->spec.balance == STK_BALANCE_NONE && !c->spec.flat &&
		    c->spec.group == STK_GROUP_PACK) {
			assert_int_equal(segment->from, sums->next[segment->id]);
			sums->next[segment->id] += segment->length;
		}
		sums->tokens += segment->length;
	}
	sums->segments += end - first;
	assert_true(used <= c->row);
}

static void check_parts(const struct one *c, const struct stkd_step *step, struct sums *sums)
{
	uint32_t next = 0, least = UINT32_MAX, most = 0;

	for (uint32_t p = 0; p < c->parts; p++) {
		struct stkd_part part;

		stkd_step_part(c->plan, step, p / c->spec.accumulate, p % c->spec.accumulate,
			       &part);
		assert_null(part.ids);
		assert_ptr_equal(part.segments, step->segments);
		assert_ptr_equal(part.row_first, step->row_first + next);
		assert_in_range(part.rows, 1, c->global / c->parts);
		assert_true(part.rows_real <= part.rows);
		next += part.rows_real;
		least = STK_MIN(least, part.rows);
		most = STK_MAX(most, part.rows);
		sums->masked += part.rows - part.rows_real;
		/* A rank without a segment only where the samples have no more pieces, or asked for. */
		if (!part.rows_real && c->spec.tail == STK_TAIL_SHORT &&
		    c->spec.group == STK_GROUP_PACK)
			assert_int_equal(step->row_first[step->nids] - step->row_first[0],
					 step->nids);
	}
	assert_int_equal(next, step->nids);
	assert_true(most - least <= (c->spec.tail == STK_TAIL_SHORT));
}

/* Row k of the stream holds its tokens [k * max_length, k * max_length + row). */
static void check_stream(const struct one *c, struct stkd_step *steps, uint64_t before)
{
	struct stkd_source *source;
	struct stkd_arrival arrival;
	struct {
		uint64_t id;
		uint32_t at;
	} stream[SAMPLES * (LENGTH + 2)];
	uint32_t n = 0;

	assert_int_equal(stkd_source_new(c->plan, &source), 0);
	assert_int_equal(stkd_source_begin(source, steps->epoch), 0);
	while (stkd_source_next(source, &arrival))
		for (uint32_t t = 0; arrival.length && t < arrival.length + c->spec.separator;
		     t++) {
			stream[n].id = arrival.id;
			stream[n++].at = t;
		}
	stkd_source_free(source);
	/* Balancing moves rows within a step: a row's first token says which one it is. */
	for (uint32_t row = 0; row < steps->nids; row++) {
		const struct stk_segment *s = &steps->segments[steps->row_first[row]];
		uint32_t k = 0, t;

		while (k < n && (stream[k].id != s->id || stream[k].at != s->from))
			k++;
		assert_true(k < n);
		assert_int_equal(k % c->spec.max_length, 0);
		assert_in_range(k / c->spec.max_length, before, before + steps->nids - 1);
		for (t = 0; s < &steps->segments[steps->row_first[row + 1]]; s++)
			for (uint32_t i = 0; i < s->length; i++, t++) {
				assert_int_equal(stream[k + t].id, s->id);
				assert_int_equal(stream[k + t].at, s->from + i);
			}
		assert_int_equal(t, STK_MIN(c->row, n - k));
	}
}

/* Tokens of a sample that the plan promises. */
static uint32_t promised(const struct one *c, uint32_t i)
{
	if (c->spec.group == STK_GROUP_CONCAT)
		return c->len[i] ? c->len[i] + c->spec.separator : 0;
	if (c->len[i] <= c->counts->max_length)
		return c->len[i];
	return c->spec.overlong == STK_OVERLONG_DROP ? 0 : c->counts->max_length;
}

static void check_tokens(const struct one *c, const struct sums *sums, const struct stkd_step *last)
{
	uint64_t missing = 0, again = 0, dropped = 0, empty = 0;

	for (uint32_t i = 0; i < c->n; i++) {
		empty += !c->len[i];
		dropped += c->len[i] > c->counts->max_length && c->spec.group == STK_GROUP_PACK &&
			   c->spec.overlong == STK_OVERLONG_DROP;
		for (uint32_t t = 0; t <= LENGTH; t++) {
			if (t >= promised(c, i))
				assert_int_equal(sums->times[i][t], 0);
			else if (!sums->times[i][t])
				missing++;
			else
				again += sums->times[i][t] - 1;
		}
	}
	assert_int_equal(empty, c->counts->empty);
	assert_int_equal(dropped, c->counts->overlong_dropped);
	assert_int_equal(c->n - empty - dropped, c->counts->delivered);
	assert_int_equal(missing + sums->tokens - again, c->counts->real_tokens);
	if (c->spec.tail != STK_TAIL_DROP) {
		assert_int_equal(missing, 0);
		assert_int_equal(last->dropped_rows + last->dropped_tokens, 0);
	} else if (c->spec.group == STK_GROUP_PACK) {
		assert_int_equal(missing, last->dropped_tokens);
	}
	/* Only a stream repeats tokens: those that rows share. */
	if (c->spec.overlap)
		assert_in_range(again, sums->rows ? sums->rows - 1 : 0, sums->rows);
	else
		assert_int_equal(again, 0);
}

static void check_epoch(const struct one *c, struct stkd_iter *iter, uint64_t epoch)
{
	struct sums *sums = calloc(1, sizeof(*sums));
	struct stkd_step step = {0};

	while (!step.last_of_epoch) {
		uint64_t tokens = sums->tokens;

		assert_true(sums->steps < STEPS);
		assert_int_equal(stkd_iter_next(iter, &step), 0);
		assert_int_equal(step.epoch, epoch);
		assert_int_equal(step.step, sums->steps++);
		assert_int_equal(step.width, c->row);
		assert_in_range(step.nids, 1, c->global);
		for (uint32_t row = 0; row < step.nids; row++)
			check_row(c, &step, row, sums);
		assert_int_equal(sums->tokens - tokens, step.real_tokens);
		check_parts(c, &step, sums);
		if (c->spec.group == STK_GROUP_CONCAT)
			check_stream(c, &step, sums->rows);
		sums->rows += step.nids;
	}
	check_tokens(c, sums, &step);
	if (c->counts->steps) {
		assert_int_equal(sums->steps, c->counts->steps);
		/* A last step of a few long samples leaves parts without any; the order decides. */
		if (c->spec.group == STK_GROUP_CONCAT || c->spec.tail != STK_TAIL_SHORT)
			assert_int_equal(sums->masked, c->counts->masked);
		assert_true(sums->rows + step.dropped_rows >= c->counts->rows);
		assert_int_equal(c->counts->padded_tokens % c->row, 0);
	}
	assert_true(sums->rows + step.dropped_rows >=
		    (c->spec.group == STK_GROUP_PACK ? c->counts->rows_least : c->counts->rows));
	if (c->spec.group == STK_GROUP_PACK && c->spec.tail != STK_TAIL_DROP)
		assert_int_equal(sums->segments, c->counts->segments);
	free(sums);
}

/* A step and the cursor behind it, kept. */
struct record {
	struct stkd_step step;
	struct stk_segment *segments;
	uint32_t *row_first;
	uint8_t cursor[STK_SHM_CURSOR_MAX];
	size_t size;
};

static void record_next(struct stkd_iter *iter, struct record *ret)
{
	uint32_t first, n;

	assert_int_equal(stkd_iter_next(iter, &ret->step), 0);
	first = ret->step.row_first[0];
	n = ret->step.row_first[ret->step.nids] - first;
	ret->segments = malloc((n + 1) * sizeof(*ret->segments));
	ret->row_first = malloc((ret->step.nids + 1) * sizeof(*ret->row_first));
	memcpy(ret->segments, ret->step.segments + first, n * sizeof(*ret->segments));
	for (uint32_t i = 0; i <= ret->step.nids; i++)
		ret->row_first[i] = ret->step.row_first[i] - first;
	ret->size = stkd_iter_cursor(iter, ret->cursor);
	assert_in_range(ret->size, 1, 64);
}

static void record_free(struct record *record)
{
	free(record->segments);
	free(record->row_first);
}

static void assert_same(const struct record *a, const struct record *b)
{
	assert_int_equal(a->step.epoch, b->step.epoch);
	assert_int_equal(a->step.step, b->step.step);
	assert_int_equal(a->step.rows_part, b->step.rows_part);
	assert_int_equal(a->step.real_tokens, b->step.real_tokens);
	assert_int_equal(a->step.last_of_epoch, b->step.last_of_epoch);
	assert_int_equal(a->step.dropped_rows, b->step.dropped_rows);
	assert_int_equal(a->step.dropped_tokens, b->step.dropped_tokens);
	assert_int_equal(a->step.nids, b->step.nids);
	assert_memory_equal(a->row_first, b->row_first, (a->step.nids + 1) * sizeof(uint32_t));
	assert_memory_equal(a->segments, b->segments,
			    a->row_first[a->step.nids] * sizeof(a->segments[0]));
	assert_int_equal(a->size, b->size);
	assert_memory_equal(a->cursor, b->cursor, a->size);
}

static void check_resume(const struct one *c)
{
	static struct record all[2 * STEPS];
	struct stkd_iter *iter = make_iter(c->plan, NULL, 0), *seeker = make_iter(c->plan, NULL, 0);
	uint32_t n = 0;

	do
		record_next(iter, &all[n++]);
	while (n < STK_ARRAY_SIZE(all) && all[n - 1].step.epoch < 2);
	stkd_iter_free(iter);
	for (uint32_t i = 0; i + 1 < n; i++) {
		struct record got;

		iter = make_iter(c->plan, all[i].cursor, all[i].size);
		for (uint32_t j = i + 1; j < STK_MIN(n, i + 4); j++) {
			record_next(iter, &got);
			assert_same(&got, &all[j]);
			record_free(&got);
		}
		stkd_iter_free(iter);
		assert_int_equal(
			stkd_iter_seek(seeker, all[i + 1].step.epoch, all[i + 1].step.step, NULL),
			0);
		record_next(seeker, &got);
		assert_same(&got, &all[i + 1]);
		record_free(&got);
	}
	stkd_iter_free(seeker);
	for (uint32_t i = 0; i < n; i++)
		record_free(&all[i]);
}

static int compare_segments(const void *x, const void *y)
{
	const struct stk_segment *a = x, *b = y;

	if (a->position != b->position)
		return a->position < b->position ? -1 : 1;
	if (a->from != b->from)
		return a->from < b->from ? -1 : 1;
	return a->length < b->length ? -1 : a->length > b->length; /* a shared token */
}

static uint64_t hash_of(const struct stk_segment *s, uint64_t n)
{
	uint64_t h = n;

	for (uint64_t i = 0; i < n; i++)
		h = (h ^ s[i].position ^ (uint64_t)s[i].from << 20 ^ (uint64_t)s[i].length << 40) *
			    UINT64_C(0x9e3779b97f4a7c15) +
		    (h >> 29);
	return h;
}

/* Balanced or not, a step has the same rows; of flat packs, the same segments. */
static void check_balance(const struct one *c)
{
	struct one plain = *c;
	struct stkd_iter *a, *b;
	struct record x = {0}, y = {0};

	plain.spec.balance = STK_BALANCE_NONE;
	assert_true(open_case(&plain));
	a = make_iter(c->plan, NULL, 0);
	b = make_iter(plain.plan, NULL, 0);
	do {
		uint64_t sum_x = 0, sum_y = 0;

		record_next(a, &x);
		record_next(b, &y);
		assert_int_equal(x.step.nids, y.step.nids);
		assert_int_equal(x.size, y.size);
		assert_memory_equal(x.cursor, y.cursor, x.size);
		for (uint32_t row = 0; row < x.step.nids && !c->spec.flat; row++) {
			sum_x += hash_of(x.segments + x.row_first[row],
					 x.row_first[row + 1] - x.row_first[row]);
			sum_y += hash_of(y.segments + y.row_first[row],
					 y.row_first[row + 1] - y.row_first[row]);
		}
		assert_int_equal(sum_x, sum_y);
		assert_int_equal(x.row_first[x.step.nids], y.row_first[y.step.nids]);
		qsort(x.segments, x.row_first[x.step.nids], sizeof(x.segments[0]),
		      compare_segments);
		qsort(y.segments, x.row_first[x.step.nids], sizeof(y.segments[0]),
		      compare_segments);
		assert_memory_equal(x.segments, y.segments,
				    x.row_first[x.step.nids] * sizeof(x.segments[0]));
		record_free(&x);
		record_free(&y);
	} while (!x.step.last_of_epoch);
	stkd_iter_free(a);
	stkd_iter_free(b);
	stkd_plan_free(plain.plan);
}

/* A cursor that was made up is refused, or gives steps within the plan; it never hurts. */
static void check_made_up(const struct one *c, uint64_t seed)
{
	for (int i = 0; i < 4; i++) {
		struct stkd_packed_cursor cursor = {
			.epoch = below(&seed, 3),
			.step = 1 + below(&seed, 5),
			.at = below(&seed, 5) ? below(&seed, c->n + 2) : draw(&seed),
			.in = below(&seed, 5) ? below(&seed, 6) : draw(&seed),
			.parts = below(&seed, 3) ? 0 : draw(&seed) >> below(&seed, 64),
			.before = below(&seed, 4),
		};
		struct stkd_iter *iter = NULL;
		uint8_t bytes[STK_SHM_CURSOR_MAX];
		struct stkd_step step = {0};
		size_t size = stkd_packed_cursor_encode(&cursor, bytes);
		struct stk_err err = {0};
		int r = stkd_iter_new(c->plan, bytes, size, &iter, &err);

		if (r < 0) {
			assert_int_equal(r, -EINVAL);
			assert_non_null(strstr(err.text, "cursor: "));
			continue;
		}
		for (int s = 0; s < STEPS && r == 0 && !step.last_of_epoch; s++)
			r = stkd_iter_next(iter, &step);
		assert_true(r == 0 || r == -EBADMSG);
		stkd_iter_free(iter);
	}
}

static struct {
	unsigned plans, steps_known, unknown, split, flat, masked, streams, dropped;
} reached;

static void note_kind(const struct one *c)
{
	reached.plans++;
	reached.steps_known += c->counts->steps > 0;
	reached.unknown += !c->counts->steps;
	reached.split += c->counts->split > 0;
	reached.flat += c->spec.flat;
	reached.masked += c->counts->masked > 0;
	reached.streams += c->spec.group == STK_GROUP_CONCAT;
	reached.dropped += c->spec.tail == STK_TAIL_DROP;
}

static void check_case(uint64_t number)
{
	struct one *c = calloc(1, sizeof(*c));
	struct stkd_iter *iter;

	assert_non_null(c);
	random_case(c, (number + 1) * UINT64_C(0x9e3779b97f4a7c15));
	if (open_case(c)) {
		note_kind(c);
		iter = make_iter(c->plan, NULL, 0);
		check_epoch(c, iter, 0);
		check_epoch(c, iter, 1);
		stkd_iter_free(iter);
		check_resume(c);
		check_balance(c);
		check_made_up(c, number + 77);
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

static void every_packed_plan_keeps_its_promises(void **state)
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
	assert_true(reached.steps_known > CASES / 10);
	assert_true(reached.unknown > CASES / 20);
	assert_true(reached.split > CASES / 20);
	assert_true(reached.flat > CASES / 20);
	assert_true(reached.masked > CASES / 20);
	assert_true(reached.streams > CASES / 10);
	assert_true(reached.dropped > CASES / 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(every_packed_plan_keeps_its_promises, say_which),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
