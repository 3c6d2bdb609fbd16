/* SPDX-License-Identifier: Apache-2.0 */
/* Taking batches: order, tensors, release, waiting, the daemon's end, a caller that interrupts. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/client.h"
#include "tests/unit/client_fixture.h"

static int look(struct fixture *f)
{
	struct stk_batch *batch;

	return stk_client_next(f->client, 0, &batch);
}

static int64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void batches_come_in_order_with_their_tensors(void **state)
{
	struct fixture *f = *state;
	struct stk_batch_info info = {.size = sizeof(info)};
	struct stk_tensor t;
	struct stk_batch *batch;

	fake_publish(&f->daemon, 2, 0, 0);
	fake_publish(&f->daemon, 0, 0, 1);
	batch = next_batch(f);
	assert_int_equal(stk_batch_info(batch, &info), 0);
	assert_int_equal(info.rows, FAKE_ROWS);
	assert_int_equal(info.edge, 8);
	assert_int_equal(info.last_micro, 1);
	assert_int_equal(info.sample_ids[2], 2);
	assert_int_equal(info.lengths[2], 3);
	assert_int_equal(stk_batch_ntensors(batch), 2);
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	assert_int_equal(t.element, STK_I32);
	assert_int_equal(t.ndim, 2);
	assert_int_equal(t.shape[0], FAKE_ROWS);
	assert_int_equal(t.shape[1], FAKE_WIDTH);
	assert_int_equal(((const int32_t *)t.data)[FAKE_WIDTH], 1);
	assert_int_equal(stk_batch_tensor_at(batch, 1, &t), 0);
	assert_string_equal(t.name, "image");
	assert_int_equal(t.ndim, 3);
	assert_int_equal(t.shape[2], 3);
	assert_int_equal(stk_batch_tensor_at(batch, 2, &t), -ERANGE);
	assert_int_equal(stk_batch_tensor(batch, "labels", &t), -ENOENT);
	stk_batch_release(batch);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 1);
	stk_batch_release(batch);
	assert_int_equal(look(f), STK_TIMEOUT);
}

static void the_short_batch_at_the_end_has_its_own_shape(void **state)
{
	struct fixture *f = *state;
	struct stk_tensor t;
	struct stk_batch *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	stk_batch_release(next_batch(f));
	fake_fill(&f->daemon, 0, 0, 1, 2);
	fake_entry(&f->daemon, STK_SHM_BATCH, 0, 0, 1);
	batch = next_batch(f);
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	assert_int_equal(t.shape[0], 2);
	assert_int_equal(t.size, 2 * FAKE_WIDTH * 4);
	stk_batch_release(batch);
}

static void slots_come_back_in_any_order_and_only_once(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *a, *b;
	uint32_t slot, index;

	fake_publish(&f->daemon, 3, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	a = next_batch(f);
	b = next_batch(f);
	stk_batch_release(b);
	stk_batch_release(a);
	stk_batch_release(a);
	stk_batch_release(NULL);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
	assert_int_equal(slot, 1);
	assert_int_equal(index, 1);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
	assert_int_equal(slot, 3);
	assert_int_equal(index, 0);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_EMPTY);
}

static bool kicked(struct fixture *f)
{
	uint64_t count;

	return read(f->daemon.fds[FAKE_KICK], &count, sizeof(count)) == sizeof(count);
}

static void a_dry_daemon_is_kicked_once_half_of_its_slots_are_free(void **state)
{
	struct fixture *f = *state;

	for (uint32_t i = 0; i < f->daemon.control->nslots; i++)
		fake_publish(&f->daemon, i, 0, i);
	stk_batch_release(next_batch(f));
	assert_false(kicked(f)); /* not dry */
	stk_ring_set_need_kick(f->daemon.control, 1);
	for (uint32_t i = 1; i < f->daemon.control->nslots / 2; i++)
		stk_batch_release(next_batch(f));
	assert_false(kicked(f));
	stk_batch_release(next_batch(f));
	assert_true(kicked(f));
}

static void an_empty_ring_tells_a_dry_daemon_of_what_was_released(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *first, *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	stk_ring_set_need_kick(f->daemon.control, 1);
	first = next_batch(f);
	stk_batch_release(next_batch(f));
	assert_false(kicked(f));
	assert_int_equal(stk_client_next(f->client, 0, &batch), STK_TIMEOUT);
	assert_true(kicked(f));
	stk_batch_release(first); /* nothing is ready: at once */
	assert_true(kicked(f));
}

static void of_several_seats_the_one_that_is_asked_tells(void **state)
{
	struct fixture *f = *state;

	f->daemon.replicas = 2;
	open_client(f);
	for (uint32_t i = 0; i < f->daemon.control->nslots; i++)
		fake_publish(&f->daemon, i, 0, i);
	stk_ring_set_need_kick(f->daemon.control, 2); /* the other one */
	for (uint32_t i = 0; i < f->daemon.control->nslots / 2; i++)
		stk_batch_release(next_batch(f));
	assert_false(kicked(f));
	stk_ring_set_need_kick(f->daemon.control, 2 | STK_SHM_KICK_AT_ONCE);
	stk_batch_release(next_batch(f));
	assert_true(kicked(f));
	stk_ring_set_need_kick(f->daemon.control, 1);
	stk_batch_release(next_batch(f));
	assert_false(kicked(f));
}

static void one_of_several_seats_that_waits_says_so(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;

	f->daemon.replicas = 2;
	open_client(f);
	stk_ring_set_need_kick(f->daemon.control, 2);
	assert_int_equal(stk_client_next(f->client, 0, &batch), STK_TIMEOUT);
	assert_true(stk_ring_is_hungry(f->daemon.seat));
	assert_true(kicked(f));
	fake_publish(&f->daemon, 0, 0, 0);
	stk_batch_release(next_batch(f));
	assert_false(stk_ring_is_hungry(f->daemon.seat));
	assert_false(kicked(f));
	stk_ring_set_need_kick(f->daemon.control, 2 | STK_SHM_KICK_AT_ONCE);
	assert_int_equal(stk_client_next(f->client, 0, &batch), STK_TIMEOUT);
	assert_false(kicked(f)); /* the others are asked already */
}

static void who_shares_its_core_with_the_daemon_sleeps_without_a_look_first(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	cpu_set_t before, one;
	int core = sched_getcpu();

	assert_return_code(sched_getaffinity(0, sizeof(before), &before), errno);
	CPU_ZERO(&one);
	CPU_SET(core, &one);
	assert_return_code(sched_setaffinity(0, sizeof(one), &one), errno);
	atomic_store(&f->daemon.control->cpu, (uint32_t)core + 1);
	assert_int_equal(stk_client_next(f->client, 1, &batch), STK_TIMEOUT);
	assert_int_equal(f->client->spins_to_leave, 0);
	atomic_store(&f->daemon.control->cpu, (uint32_t)core + 2);
	assert_int_equal(stk_client_next(f->client, 1, &batch), STK_TIMEOUT);
	assert_int_equal(f->client->spins_to_leave, 1);
	assert_return_code(sched_setaffinity(0, sizeof(before), &before), errno);
}

static void of_more_seats_than_cores_none_looks_before_it_sleeps(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	cpu_set_t before, one;

	f->daemon.replicas = 2;
	assert_return_code(sched_getaffinity(0, sizeof(before), &before), errno);
	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	assert_return_code(sched_setaffinity(0, sizeof(one), &one), errno);
	open_client(f);
	assert_int_equal(stk_client_next(f->client, 1, &batch), STK_TIMEOUT);
	assert_int_equal(f->client->spins_to_leave, 0);
	assert_return_code(sched_setaffinity(0, sizeof(before), &before), errno);
}

static void ends_of_epochs_and_of_the_stream_are_told_and_the_last_is_final(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_entry(&f->daemon, STK_SHM_EPOCH_END, STK_SHM_NO_SLOT, 0, 1);
	fake_publish(&f->daemon, 1, 1, 0);
	fake_entry(&f->daemon, STK_SHM_STREAM_END, STK_SHM_NO_SLOT, 1, 0);
	stk_batch_release(next_batch(f));
	assert_int_equal(stk_client_next(f->client, -1, &batch), STK_EPOCH_END);
	stk_batch_release(next_batch(f));
	assert_int_equal(stk_client_next(f->client, -1, &batch), STK_STREAM_END);
	assert_int_equal(stk_client_next(f->client, -1, &batch), STK_STREAM_END);
}

static void an_error_comes_after_the_good_batches_with_code_and_text(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_entry e = {.kind = STK_SHM_ERROR, .slot = STK_SHM_NO_SLOT, .micro = EBADMSG};
	struct stk_batch *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	strcpy((char *)f->daemon.control + f->daemon.control->error_off, "shard 3 is cut");
	stk_ring_publish(&f->daemon.pub, &e);
	stk_batch_release(next_batch(f));
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EBADMSG);
	assert_string_equal(stk_client_error(f->client), "shard 3 is cut");
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EBADMSG);
}

static void an_empty_ring_times_out_when_it_should(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	int64_t start = now_ms();

	assert_int_equal(look(f), STK_TIMEOUT);
	assert_true(now_ms() - start < 20);
	start = now_ms();
	assert_int_equal(stk_client_next(f->client, 60, &batch), STK_TIMEOUT);
	assert_in_range(now_ms() - start, 60, 200);
	assert_int_equal(stk_ring_waiters(f->daemon.seat), 0); /* publishing costs no wake-up now */
}

static void *publish_soon(void *data)
{
	struct fixture *f = data;

	usleep(30000);
	fake_publish(&f->daemon, 0, 0, 0);
	return NULL;
}

static void a_parked_consumer_is_woken_and_its_wait_is_counted(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_seat *seat = f->daemon.seat;
	int64_t start = now_ms();
	pthread_t thread;

	pthread_create(&thread, NULL, publish_soon, f);
	stk_batch_release(next_batch(f));
	pthread_join(thread, NULL);
	assert_in_range(now_ms() - start, 20, 150); /* well before the slice of 250 ms is over */
	assert_int_equal(atomic_load(&seat->waits), 1);
	assert_in_range(atomic_load(&seat->wait_ns), 10000000, 200000000);
	assert_int_equal(atomic_load(&seat->waiting_since_ns), 0);
	assert_int_equal(atomic_load(&seat->batches), 1);
	assert_int_equal(atomic_load(&seat->consumed), 1);
	assert_int_equal(stk_ring_waiters(seat), 0);
}

static void *publish_to_a_sleeper(void *data)
{
	struct fixture *f = data;

	while (!(stk_ring_waiters(f->daemon.seat) & STK_SHM_WAIT_FUTEX))
		;
	fake_publish(&f->daemon, 0, 0, 0);
	return NULL;
}

/* On a busy machine its patience may end first: a few tries. */
static void one_of_several_seats_that_waits_shortly_does_not_say_so(void **state)
{
	struct fixture *f = *state;
	bool said = true;

	f->daemon.replicas = 2;
	open_client(f);
	stk_ring_set_need_kick(f->daemon.control, 2);
	for (int i = 0; i < 100 && said; i++) {
		pthread_t thread;

		pthread_create(&thread, NULL, publish_to_a_sleeper, f);
		stk_batch_release(next_batch(f));
		pthread_join(thread, NULL);
		said = kicked(f);
	}
	assert_false(said);
}

static void the_descriptor_polls_readable_when_something_came(void **state)
{
	struct fixture *f = *state;
	struct pollfd p = {.fd = stk_client_fd(f->client), .events = POLLIN};

	assert_true(p.fd >= 0);
	assert_int_equal(stk_client_fd(f->client), p.fd);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(look(f), STK_TIMEOUT);
		assert_int_equal(poll(&p, 1, 0), 0);
		fake_publish(&f->daemon, 0, 0, (uint64_t)i);
		assert_int_equal(poll(&p, 1, 1000), 1);
		stk_batch_release(next_batch(f));
	}
	assert_int_equal(look(f), STK_TIMEOUT);
	assert_int_equal(poll(&p, 1, 0), 0);
	fake_hang_up(&f->daemon);
	assert_int_equal(poll(&p, 1, 1000), 1); /* a poller learns that the daemon is gone */
	assert_int_equal(look(f), -EPIPE);
}

static void the_descriptor_polls_readable_until_the_first_look_that_found_nothing(void **state)
{
	struct fixture *f = *state;
	struct pollfd p = {.events = POLLIN};

	assert_int_equal(look(f), STK_TIMEOUT); /* before there was a descriptor to wake */
	fake_publish(&f->daemon, 0, 0, 0);
	p.fd = stk_client_fd(f->client);
	assert_int_equal(poll(&p, 1, 0), 1);
	stk_batch_release(next_batch(f));
	assert_int_equal(look(f), STK_TIMEOUT);
	assert_int_equal(poll(&p, 1, 0), 0);
}

static void *hang_up_soon(void *data)
{
	struct fixture *f = data;

	usleep(30000);
	fake_hang_up(&f->daemon);
	return NULL;
}

static void a_dead_daemon_ends_a_parked_consumer_within_a_second(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held, *batch;
	struct stk_tensor t;
	pthread_t thread;
	int64_t start;

	fake_publish(&f->daemon, 0, 0, 5);
	held = next_batch(f);
	start = now_ms();
	pthread_create(&thread, NULL, hang_up_soon, f);
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EPIPE);
	assert_true(now_ms() - start < 1000);
	pthread_join(thread, NULL);
	assert_non_null(strstr(stk_client_error(f->client), "is gone"));
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EPIPE);
	assert_int_equal(stk_batch_tensor(held, "ids", &t), 0);
	assert_int_equal(((const int32_t *)t.data)[0], 5000);
	stk_batch_release(held);
}

static void what_was_published_before_the_daemons_end_is_returned(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	fake_hang_up(&f->daemon);
	stk_batch_release(next_batch(f));
	stk_batch_release(next_batch(f));
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EPIPE);
}

static void the_reason_of_a_daemon_that_ends_the_seat_is_told(void **state)
{
	struct fixture *f = *state;
	struct stk_err err;
	struct stk_batch *batch;
	json_t *json;

	stk_err_set(&err, -EPERM, "detached by an operator");
	json = stk_msg_error(NULL, &err);
	assert_int_equal(stk_msg_send(atomic_load(&f->daemon.conn), json, NULL, 0, 1000, NULL), 0);
	json_decref(json);
	fake_hang_up(&f->daemon);
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EPIPE);
	assert_non_null(strstr(stk_client_error(f->client), "detached by an operator"));
}

static void a_seat_that_comes_later_starts_at_its_first_entry(void **state)
{
	struct fixture *f = *state;

	f->daemon.first = UINT32_MAX - 1;
	open_client(f);
	for (uint64_t i = 0; i < 4; i++) {
		fake_publish(&f->daemon, (uint32_t)i, 0, i);
		stk_batch_release(next_batch(f));
	}
	assert_int_equal(atomic_load(&f->daemon.seat->consumed), 2);
}

static void take_returns_what_is_ready_and_never_waits(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch = NULL;
	int64_t start = now_ms();

	assert_int_equal(stk_client_take(f->client, &batch), STK_TIMEOUT);
	fake_publish(&f->daemon, 1, 0, 0);
	fake_entry(&f->daemon, STK_SHM_EPOCH_END, 0, 0, 0);
	assert_int_equal(stk_client_take(f->client, &batch), 0);
	assert_int_equal(step_of(batch), 0);
	stk_batch_release(batch);
	assert_int_equal(stk_client_take(f->client, &batch), STK_EPOCH_END);
	fake_hang_up(&f->daemon);
	assert_int_equal(stk_client_take(f->client, &batch), STK_TIMEOUT);
	assert_int_equal(look(f), -EPIPE);
	assert_int_equal(stk_client_take(f->client, &batch), -EPIPE);
	assert_true(now_ms() - start < 1000);
}

static int count_and_stop(void *data)
{
	int *left = data;

	return (*left)-- <= 0;
}

static void a_caller_may_interrupt_a_wait_and_loses_nothing(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	int left = INT_MAX;

	f->opts.interrupted = count_and_stop;
	f->opts.interrupt_data = &left;
	open_client(f);
	left = 1;
	assert_int_equal(stk_client_next(f->client, -1, &batch), -EINTR);
	assert_string_equal(stk_client_error(f->client), "interrupted while waiting");
	fake_publish(&f->daemon, 1, 0, 0);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 0);
	stk_batch_release(batch);
}

/* An attach that nobody answers. */
static void say_nothing(struct fake_daemon *daemon, int conn, const json_t *call)
{
	(void)daemon;
	(void)conn;
	(void)call;
}

static void a_caller_may_interrupt_an_attach(void **state)
{
	struct fixture *f = *state;
	char error[256] = "";
	int left = 2;

	f->daemon.attach = say_nothing;
	f->opts.interrupted = count_and_stop;
	f->opts.interrupt_data = &left;
	f->opts.attach_timeout_ms = -1;
	assert_int_equal(stk_client_open(&f->opts, &f->client, error, sizeof(error)), -EINTR);
	assert_string_equal(error, "interrupted");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(batches_come_in_order_with_their_tensors),
		TEST(the_short_batch_at_the_end_has_its_own_shape),
		TEST(slots_come_back_in_any_order_and_only_once),
		TEST(a_dry_daemon_is_kicked_once_half_of_its_slots_are_free),
		TEST(an_empty_ring_tells_a_dry_daemon_of_what_was_released),
		CLOSED(of_several_seats_the_one_that_is_asked_tells),
		CLOSED(one_of_several_seats_that_waits_says_so),
		CLOSED(one_of_several_seats_that_waits_shortly_does_not_say_so),
		CLOSED(of_more_seats_than_cores_none_looks_before_it_sleeps),
		TEST(ends_of_epochs_and_of_the_stream_are_told_and_the_last_is_final),
		TEST(an_error_comes_after_the_good_batches_with_code_and_text),
		TEST(an_empty_ring_times_out_when_it_should),
		TEST(who_shares_its_core_with_the_daemon_sleeps_without_a_look_first),
		TEST(a_parked_consumer_is_woken_and_its_wait_is_counted),
		TEST(the_descriptor_polls_readable_when_something_came),
		TEST(the_descriptor_polls_readable_until_the_first_look_that_found_nothing),
		TEST(a_dead_daemon_ends_a_parked_consumer_within_a_second),
		TEST(what_was_published_before_the_daemons_end_is_returned),
		TEST(the_reason_of_a_daemon_that_ends_the_seat_is_told),
		CLOSED(a_seat_that_comes_later_starts_at_its_first_entry),
		TEST(take_returns_what_is_ready_and_never_waits),
		CLOSED(a_caller_may_interrupt_a_wait_and_loses_nothing),
		CLOSED(a_caller_may_interrupt_an_attach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
