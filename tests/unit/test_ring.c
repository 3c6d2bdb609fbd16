/* SPDX-License-Identifier: Apache-2.0 */
/* The two rings, one edge at a time; tests/stress runs them between threads and processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/ring.h"

#define ENTRIES 8u

struct fixture {
	struct stk_shm_control control;
	struct stk_shm_seat seat;
	struct stk_shm_entry publish[ENTRIES];
	_Atomic uint64_t release[ENTRIES];
	struct stk_ring_pub pub;
	struct stk_ring_sub sub;
	struct stk_ring_rel rel;
	struct stk_ring_drain drain;
};

static void reset(struct fixture *f, uint32_t start)
{
	memset(f, 0, sizeof(*f));
	atomic_store(&f->control.tail, start);
	atomic_store(&f->seat.release_tail, start);
	f->pub = (struct stk_ring_pub){&f->control, f->publish, ENTRIES - 1, start};
	f->sub = (struct stk_ring_sub){&f->control, f->publish, ENTRIES - 1, start};
	f->rel = (struct stk_ring_rel){&f->seat, f->release, ENTRIES - 1, start};
	f->drain = (struct stk_ring_drain){&f->seat, f->release, ENTRIES - 1, start};
}

static int set_up(void **state)
{
	struct fixture *f = aligned_alloc(128, stk_align_up(sizeof(*f), 128));

	reset(f, 0);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	free(*state);
	return 0;
}

static void publish(struct fixture *f, uint64_t step)
{
	struct stk_shm_entry e = {.kind = STK_SHM_BATCH, .slot = (uint32_t)step % 4, .step = step};

	stk_ring_publish(&f->pub, &e);
}

static void entries_come_out_in_the_order_in_which_they_went_in(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_entry e;

	assert_false(stk_ring_read(&f->sub, &e));
	for (uint64_t i = 0; i < ENTRIES; i++)
		publish(f, i);
	for (uint64_t i = 0; i < ENTRIES; i++) {
		assert_true(stk_ring_read(&f->sub, &e));
		assert_int_equal(e.step, i);
	}
	assert_false(stk_ring_read(&f->sub, &e));
}

static void indices_wrap_around_at_32_bits(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_entry e = {0};
	uint32_t slot, index;

	reset(f, UINT32_MAX - 1);
	for (uint64_t i = 0; i < 4; i++) {
		publish(f, i);
		assert_true(stk_ring_read(&f->sub, &e));
		assert_int_equal(e.step, i);
		stk_ring_release(&f->rel, &f->control, e.slot, f->sub.head - 1);
		assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_GOT);
		assert_int_equal(slot, i % 4);
		assert_int_equal(index, UINT32_MAX - 1 + (uint32_t)i);
	}
	assert_int_equal(f->sub.head, 2);
}

static void releases_come_out_as_they_went_in(void **state)
{
	struct fixture *f = *state;
	uint32_t slot, index;

	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_EMPTY);
	assert_false(stk_ring_release(&f->rel, &f->control, 3, 70));
	assert_false(stk_ring_release(&f->rel, &f->control, 1, 68));
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_GOT);
	assert_int_equal(slot, 3);
	assert_int_equal(index, 70);
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_GOT);
	assert_int_equal(slot, 1);
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_EMPTY);
}

static void a_release_tail_that_jumps_or_goes_back_is_a_lie(void **state)
{
	struct fixture *f = *state;
	uint32_t slot, index;

	atomic_store(&f->seat.release_tail, ENTRIES + 1);
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_LIE);
	reset(f, 5);
	atomic_store(&f->seat.release_tail, 4);
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_LIE);
	reset(f, 0);
	atomic_store(&f->seat.release_tail, ENTRIES);
	assert_int_equal(stk_ring_drain(&f->drain, &slot, &index), STK_RING_GOT);
}

static void a_release_asks_for_a_kick_only_when_the_daemon_ran_dry(void **state)
{
	struct fixture *f = *state;

	assert_false(stk_ring_release(&f->rel, &f->control, 0, 0));
	stk_ring_set_need_kick(&f->control, 1);
	assert_int_equal(stk_ring_release(&f->rel, &f->control, 1, 1), 1);
	stk_ring_set_need_kick(&f->control, 0);
	assert_false(stk_ring_release(&f->rel, &f->control, 2, 2));
}

static void announcing_sees_an_entry_that_came_in_between(void **state)
{
	struct fixture *f = *state;

	assert_true(stk_ring_announce(&f->sub, &f->seat, STK_SHM_WAIT_FUTEX));
	publish(f, 0);
	assert_false(stk_ring_announce(&f->sub, &f->seat, STK_SHM_WAIT_FUTEX));
}

static void the_publisher_sees_the_bits_until_the_seat_retracts_them(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(stk_ring_waiters(&f->seat), 0);
	stk_ring_announce(&f->sub, &f->seat, STK_SHM_WAIT_FUTEX);
	stk_ring_announce(&f->sub, &f->seat, STK_SHM_WAIT_FD);
	assert_int_equal(stk_ring_waiters(&f->seat), STK_SHM_WAIT_FUTEX | STK_SHM_WAIT_FD);
	assert_int_equal(stk_ring_waiters(&f->seat), STK_SHM_WAIT_FUTEX | STK_SHM_WAIT_FD);
	stk_ring_retract(&f->seat);
	assert_int_equal(stk_ring_waiters(&f->seat), 0);
}

static void announcing_in_vain_leaves_no_bit_behind(void **state)
{
	struct fixture *f = *state;

	publish(f, 0);
	assert_false(stk_ring_announce(&f->sub, &f->seat, STK_SHM_WAIT_FUTEX));
	assert_int_equal(stk_ring_waiters(&f->seat), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(entries_come_out_in_the_order_in_which_they_went_in),
		TEST(indices_wrap_around_at_32_bits),
		TEST(releases_come_out_as_they_went_in),
		TEST(a_release_tail_that_jumps_or_goes_back_is_a_lie),
		TEST(a_release_asks_for_a_kick_only_when_the_daemon_ran_dry),
		TEST(announcing_sees_an_entry_that_came_in_between),
		TEST(the_publisher_sees_the_bits_until_the_seat_retracts_them),
		TEST(announcing_in_vain_leaves_no_bit_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
