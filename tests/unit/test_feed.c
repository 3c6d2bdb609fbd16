/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds without a daemon: what seats see of them, and what a feed believes of its seats. */
#include <errno.h>

#include "daemon/plan/iter.h"
#include "tests/unit/feed_fixture.h"

static void an_epoch_is_its_steps_and_then_its_end(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_entry entry;

	start(f, "epochs=2", 1);
	for (uint64_t epoch = 0; epoch < 2; epoch++) {
		for (uint64_t i = 0; i < SAMPLES / 4; i++) {
			entry = step(f, 0);
			assert_int_equal(entry.kind, STK_SHM_BATCH);
			assert_int_equal(entry.epoch, epoch);
			assert_int_equal(entry.step, i);
		}
		entry = step(f, 0);
		assert_int_equal(entry.kind, STK_SHM_EPOCH_END);
		assert_int_equal(entry.step, SAMPLES / 4);
	}
	assert_int_equal(step(f, 0).kind, STK_SHM_STREAM_END);
	assert_int_equal(atomic_load(&f->faults), 0);
}

static void a_slot_that_is_not_held_is_a_fault(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_entry entry;

	start(f, "epochs=1", 1);
	entry = next(f, 0);
	release_at(f, 0, entry.slot, f->seats[0].sub.head - 1);
	release_at(f, 0, entry.slot, f->seats[0].sub.head - 1);
	stkd_feed_poke(f->feed);
	assert_int_equal(atomic_load(&f->faults), 1);
	assert_non_null(strstr(f->feed->seats[0].fault, "does not hold"));
}

/* Whose kick the feed wants once all its slots are published. */
static uint32_t asked(struct fixture *f)
{
	struct stkd_feed_figures figures;
	struct stkd_seat_figures seats[SEATS];
	time_t end = time(NULL) + 10;

	do {
		stkd_feed_figures(f->feed, &figures, seats);
		if (time(NULL) > end)
			fail_msg("the ring does not fill");
		sched_yield();
	} while (figures.free || figures.filling);
	return atomic_load(&f->feed->shm->need_kick);
}

static void give_back_unheard(struct fixture *f, uint32_t seat)
{
	struct stk_shm_entry entry = next(f, seat);

	stk_ring_release(&f->seats[seat].rel, f->feed->shm, entry.slot,
			 f->seats[seat].sub.head - 1);
}

static void of_several_seats_the_slowest_is_asked_to_tell(void **state)
{
	struct fixture *f = *state;

	start(f, "epochs=0", 2);
	assert_int_equal(asked(f), 1);
	give_back_unheard(f, 1);
	assert_int_equal(asked(f), 1); /* it holds as many as ever */
	give_back_unheard(f, 0);
	give_back_unheard(f, 0);
	stkd_feed_poke(f->feed);
	assert_int_equal(asked(f), 1); /* that freed a slot */
	stkd_feed_poke(f->feed);
	assert_int_equal(asked(f), 2); /* that freed none, and the other holds more */
	stkd_feed_leave_seat(f->feed, 1);
	assert_int_equal(asked(f), 1); /* nobody is there to tell */
}

static void while_a_seat_waits_all_are_asked_to_tell_at_once(void **state)
{
	struct fixture *f = *state;

	start(f, "epochs=0", 2);
	assert_int_equal(asked(f), 1);
	assert_int_equal(stk_ring_hunger(f->feed->seats[1].shm, f->feed->shm), 1);
	stkd_feed_poke(f->feed);
	assert_true(asked(f) & STK_SHM_KICK_AT_ONCE);
	stk_ring_sate(f->feed->seats[1].shm);
	give_back_unheard(f, 0);
	give_back_unheard(f, 1);
	stkd_feed_poke(f->feed);
	assert_false(asked(f) & STK_SHM_KICK_AT_ONCE);
}

/* A seat may leave after the last batch and before it knows that it was the last. */
static void a_seat_that_comes_back_finds_the_ends_it_had_not_read(void **state)
{
	struct fixture *f = *state;

	start(f, "epochs=1", 2);
	for (int i = 0; i < SAMPLES / 4; i++)
		for (uint32_t s = 0; s < 2; s++)
			assert_int_equal(step(f, s).kind, STK_SHM_BATCH);
	assert_int_equal(step(f, 0).kind, STK_SHM_EPOCH_END);
	assert_int_equal(step(f, 0).kind, STK_SHM_STREAM_END);
	stkd_feed_leave_seat(f->feed, 1);
	taken(f, 1);
	assert_int_equal(step(f, 1).kind, STK_SHM_EPOCH_END);
	assert_int_equal(step(f, 1).kind, STK_SHM_STREAM_END);
}

static void a_seat_that_comes_back_goes_on_at_its_oldest_lease(void **state)
{
	struct fixture *f = *state;

	start(f, "epochs=1", 2);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(step(f, 1).step, i);
	stkd_feed_leave_seat(f->feed, 1);
	for (uint64_t i = 0; i < 3; i++)
		assert_int_equal(step(f, 0).step, i);
	taken(f, 1);
	assert_int_equal(step(f, 1).step, 3);
}

/* A plan that cannot go on after a few steps. */
struct short_iter {
	struct stkd_iter head;
	struct stkd_iter *real;
	unsigned left;
};

static int short_next(struct stkd_iter *head, struct stkd_step *ret)
{
	struct short_iter *iter = (struct short_iter *)head;

	return iter->left-- ? stkd_iter_next(iter->real, ret) : -EBADMSG;
}

static size_t short_cursor(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX])
{
	return stkd_iter_cursor(((const struct short_iter *)head)->real, out);
}

static void short_where(const struct stkd_iter *head, uint64_t *ret_epoch, uint64_t *ret_step)
{
	const struct stkd_iter *real = ((const struct short_iter *)head)->real;

	real->ops->where(real, ret_epoch, ret_step);
}

static void short_destroy(struct stkd_iter *head)
{
	stkd_iter_free(((struct short_iter *)head)->real);
	free(head);
}

static const struct stkd_iter_ops short_ops = {
	.destroy = short_destroy, .next = short_next, .cursor = short_cursor, .where = short_where};

static void shorten(struct stkd_feed *feed, unsigned steps)
{
	struct short_iter *iter = calloc(1, sizeof(*iter));

	assert_non_null(iter);
	*iter = (struct short_iter){{&short_ops}, feed->iter, steps};
	feed->iter = &iter->head;
}

/* Keeps a worker until it is told to go on. */
struct gate {
	struct stkd_task task;
	struct stkd_share share;
	_Atomic bool open;
	_Atomic unsigned *left;
};

static void gate_run(struct stkd_task *task, uint32_t first, uint32_t n)
{
	(void)first;
	(void)n;
	while (!atomic_load(&((struct gate *)task)->open))
		sched_yield();
}

static void gate_done(struct stkd_task *task)
{
	atomic_fetch_sub(((struct gate *)task)->left, 1);
}

static void close_gates(struct fixture *f, struct gate gates[2], _Atomic unsigned *left)
{
	atomic_store(left, 2);
	for (int i = 0; i < 2; i++) {
		gates[i] = (struct gate){.task = {.nrows = 1,
						  .range_rows = 1,
						  .run = gate_run,
						  .done = gate_done,
						  .share = &gates[i].share},
					 .share = {.weight = 1},
					 .left = left};
		stkd_pool_submit(f->pool, &gates[i].task);
	}
}

static void open_gates(struct gate gates[2], _Atomic unsigned *left)
{
	for (int i = 0; i < 2; i++)
		atomic_store(&gates[i].open, true);
	while (atomic_load(left))
		sched_yield();
}

static void batches_in_flight_come_before_the_error_of_the_plan(void **state)
{
	struct fixture *f = *state;
	struct gate gates[2];
	_Atomic unsigned left;

	open_stream(f, "epochs=1");
	build(f, 1, NULL, 0);
	shorten(f->feed, 3);
	close_gates(f, gates, &left);
	taken(f, 0);
	open_gates(gates, &left);
	for (uint64_t i = 0; i < 3; i++) {
		struct stk_shm_entry entry = step(f, 0);

		assert_int_equal(entry.kind, STK_SHM_BATCH);
		assert_int_equal(entry.step, i);
	}
	assert_int_equal(step(f, 0).kind, STK_SHM_ERROR);
	assert_int_equal(stkd_feed_get_state(f->feed), STKD_FEED_FAILED);
}

/* A plan whose steps take as long as the test wants. */
struct slow_iter {
	struct stkd_iter head;
	struct stkd_iter *real;
	_Atomic bool *entered, *may_leave;
};

static int slow_next(struct stkd_iter *head, struct stkd_step *ret)
{
	struct slow_iter *iter = (struct slow_iter *)head;

	atomic_store(iter->entered, true);
	while (!atomic_load(iter->may_leave))
		sched_yield();
	return stkd_iter_next(iter->real, ret);
}

static size_t slow_cursor(const struct stkd_iter *head, uint8_t out[STK_SHM_CURSOR_MAX])
{
	return stkd_iter_cursor(((const struct slow_iter *)head)->real, out);
}

static void slow_where(const struct stkd_iter *head, uint64_t *ret_epoch, uint64_t *ret_step)
{
	const struct stkd_iter *real = ((const struct slow_iter *)head)->real;

	real->ops->where(real, ret_epoch, ret_step);
}

static void slow_destroy(struct stkd_iter *head)
{
	stkd_iter_free(((struct slow_iter *)head)->real);
	free(head);
}

static const struct stkd_iter_ops slow_ops = {
	.destroy = slow_destroy, .next = slow_next, .cursor = slow_cursor, .where = slow_where};

static void slow_down(struct stkd_feed *feed, _Atomic bool *entered, _Atomic bool *may_leave)
{
	struct slow_iter *iter = calloc(1, sizeof(*iter));

	assert_non_null(iter);
	*iter = (struct slow_iter){{&slow_ops}, feed->iter, entered, may_leave};
	feed->iter = &iter->head;
}

static void a_step_that_takes_long_to_plan_holds_up_nobody(void **state)
{
	_Atomic bool entered = false, may_leave = false;
	struct stkd_seat_figures seats[1];
	struct stkd_feed_figures figures;
	struct fixture *f = *state;
	struct stk_shm_entry entry;

	open_stream(f, "epochs=1");
	build(f, 1, NULL, 0);
	slow_down(f->feed, &entered, &may_leave);
	taken(f, 0);
	while (!atomic_load(&entered))
		sched_yield();
	stkd_feed_poke(f->feed);
	stkd_feed_figures(f->feed, &figures, seats);
	assert_int_equal(figures.free, SLOTS);
	assert_int_equal(seek(f, 0, NULL, 0), 1);
	assert_int_equal(f->feed->era, 1);
	atomic_store(&may_leave, true);
	for (uint64_t i = 0; i < SAMPLES / 4; i++) {
		entry = step(f, 0);
		assert_int_equal(entry.era, 1);
		assert_int_equal(entry.step, i);
	}
}

static void a_feed_that_closes_while_a_step_is_planned_ends(void **state)
{
	_Atomic bool entered = false, may_leave = false;
	struct fixture *f = *state;

	open_stream(f, "epochs=1");
	build(f, 1, NULL, 0);
	slow_down(f->feed, &entered, &may_leave);
	taken(f, 0);
	while (!atomic_load(&entered))
		sched_yield();
	stkd_feed_leave_seat(f->feed, 0);
	assert_int_equal(stkd_feed_get_state(f->feed), STKD_FEED_CLOSED);
	f->feed = stkd_feed_unref(f->feed);
	atomic_store(&may_leave, true);
	f->pool = stkd_pool_free(f->pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_epoch_is_its_steps_and_then_its_end),
		TEST(a_slot_that_is_not_held_is_a_fault),
		TEST(of_several_seats_the_slowest_is_asked_to_tell),
		TEST(while_a_seat_waits_all_are_asked_to_tell_at_once),
		TEST(a_seat_that_comes_back_finds_the_ends_it_had_not_read),
		TEST(a_seat_that_comes_back_goes_on_at_its_oldest_lease),
		TEST(batches_in_flight_come_before_the_error_of_the_plan),
		TEST(a_step_that_takes_long_to_plan_holds_up_nobody),
		TEST(a_feed_that_closes_while_a_step_is_planned_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
