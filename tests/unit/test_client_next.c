/* SPDX-License-Identifier: Apache-2.0 */
/* Taking batches: order, tensors, release, waiting, the daemon's end, a fork, hostile memory. */
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
};

static void open_client(struct fixture *f)
{
	char error[1024] = "";

	if (stk_client_open(&f->opts, &f->client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static int set_up_closed(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fake_start(&f->daemon);
	f->opts = (struct stk_client_opts){.size = sizeof(f->opts),
					   .stream = "fake",
					   .socket = f->daemon.socket,
					   .attach_timeout_ms = 2000};
	*state = f;
	return 0;
}

static int set_up(void **state)
{
	set_up_closed(state);
	open_client(*state);
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	stk_client_close(f->client);
	fake_stop(&f->daemon);
	free(f);
	return 0;
}

static struct stk_batch *next_batch(struct fixture *f)
{
	struct stk_batch *batch = NULL;
	int r = stk_client_next(f->client, 2000, &batch);

	if (r)
		fail_msg("next: %d: %s", r, stk_client_error(f->client));
	return batch;
}

static uint64_t step_of(const struct stk_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};

	assert_int_equal(stk_batch_info(batch, &info), 0);
	return info.step;
}

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

static void batches_outlive_their_client(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	struct stk_tensor t;
	int fds;

	fake_publish(&f->daemon, 0, 0, 9);
	batch = next_batch(f);
	f->client = stk_client_close(f->client);
	while (atomic_load(&f->daemon.conn) >= 0)
		usleep(1000);
	fds = fake_count("fd");
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	assert_string_equal(t.name, "ids");
	assert_int_equal(((const int32_t *)t.data)[0], 9000);
	assert_int_equal(step_of(batch), 9);
	stk_batch_release(batch);
	assert_int_equal(fake_count("fd"), fds); /* kept batches hold no descriptor */
}

static void the_state_follows_the_batches_that_were_returned(void **state)
{
	struct fixture *f = *state;
	uint8_t start[STK_STATE_MAX], after[STK_STATE_MAX], other[STK_STATE_MAX];
	struct stk_state_header header;
	const uint8_t *cursor;
	struct stk_batch *a, *b;
	int n;

	n = stk_client_state(f->client, start, sizeof(start));
	assert_int_equal(n, sizeof(header));
	assert_int_equal(stk_state_parse(start, (size_t)n, &header, &cursor, NULL), 0);
	assert_int_equal(header.seed, 17);
	assert_int_equal(header.cursor_size, 0);
	fake_publish(&f->daemon, 0, 0, 0x41);
	fake_publish(&f->daemon, 1, 0, 0x42);
	a = next_batch(f);
	b = next_batch(f);
	n = stk_client_state(f->client, after, sizeof(after));
	assert_int_equal(n, sizeof(header) + 8);
	assert_int_equal(stk_state_parse(after, (size_t)n, &header, &cursor, NULL), 0);
	assert_int_equal(cursor[0], 0x42);
	assert_int_equal(stk_batch_state(a, other, sizeof(other)), n);
	assert_int_equal(other[sizeof(header)], 0x41);
	assert_int_equal(stk_batch_state(b, other, sizeof(other)), n);
	assert_memory_equal(other, after, (size_t)n);
	assert_int_equal(stk_client_state(f->client, other, 10), -ENOSPC);
	assert_int_equal(stk_batch_state(a, other, 10), -ENOSPC);
	stk_batch_release(a);
	stk_batch_release(b);
}

static void assert_state(struct fixture *f, const char *cursor)
{
	uint8_t bytes[STK_STATE_MAX];
	struct stk_state_header header;
	const uint8_t *at;
	int n = stk_client_state(f->client, bytes, sizeof(bytes));

	assert_int_equal(stk_state_parse(bytes, (size_t)n, &header, &at, NULL), 0);
	assert_int_equal(header.seed, 17);
	assert_int_equal(header.cursor_size, strlen(cursor));
	assert_memory_equal(at, cursor, strlen(cursor));
}

static void the_state_before_the_first_batch_has_the_cursor_that_the_daemon_tells(void **state)
{
	struct fixture *f = *state;

	f->daemon.start = "the beginning";
	open_client(f);
	assert_state(f, f->daemon.start);
	fake_publish(&f->daemon, 0, 0, 0x41);
	stk_batch_release(next_batch(f));
	assert_int_equal(stk_client_seek(f->client, NULL, 0), 0);
	assert_state(f, f->daemon.start);
}

static void a_state_without_a_cursor_is_taken_as_the_beginning(void **state)
{
	struct fixture *f = *state;
	struct stk_state_header old;

	stk_state_header_init(&old);
	f->opts.state = &old;
	f->opts.state_size = sizeof(old);
	open_client(f);
	assert_state(f, "");
	stk_client_close(f->client);
	f->daemon.start = "the beginning";
	open_client(f);
	assert_state(f, f->daemon.start);
	assert_int_equal(stk_client_seek(f->client, &old, sizeof(old)), 0);
	assert_state(f, f->daemon.start);
}

static void a_state_with_a_cursor_is_kept_until_the_first_batch(void **state)
{
	struct fixture *f = *state;
	uint8_t given[sizeof(struct stk_state_header) + 4];
	struct stk_state_header header;

	stk_state_header_init(&header);
	header.seed = 17;
	header.cursor_size = 4;
	memcpy(given, &header, sizeof(header));
	memcpy(given + sizeof(header), "here", 4);
	f->opts.state = given;
	f->opts.state_size = sizeof(given);
	f->daemon.start = "the beginning";
	open_client(f);
	assert_state(f, "here");
}

static void seeking_skips_what_is_of_the_old_era_and_gives_it_back(void **state)
{
	struct fixture *f = *state;
	uint8_t saved[STK_STATE_MAX], now[STK_STATE_MAX];
	uint32_t slot, index;
	struct stk_batch *held, *batch;
	int n;

	fake_publish(&f->daemon, 0, 0, 0);
	held = next_batch(f);
	n = stk_client_state(f->client, saved, sizeof(saved));
	fake_publish(&f->daemon, 1, 0, 1);
	fake_entry(&f->daemon, STK_SHM_STREAM_END, STK_SHM_NO_SLOT, 0, 0);
	assert_int_equal(stk_client_seek(f->client, "no state", 8), -EINVAL);
	assert_int_equal(stk_client_seek(f->client, saved, (size_t)n), 0);
	assert_string_equal(json_string_value(json_object_get(f->daemon.last_call, "method")),
			    "io.stoker.Seek");
	assert_int_equal(f->daemon.era, 1);
	assert_int_equal(stk_client_state(f->client, now, sizeof(now)), n);
	assert_memory_equal(now, saved, (size_t)n);
	fake_publish(&f->daemon, 2, 0, 7);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 7);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
	assert_int_equal(slot, 1);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_EMPTY);
	assert_int_equal(step_of(held), 0);
	stk_batch_release(held);
	stk_batch_release(batch);
	assert_int_equal(stk_client_seek(f->client, NULL, 0), 0);
	assert_int_equal(stk_client_state(f->client, now, sizeof(now)),
			 sizeof(struct stk_state_header));
}

static void replicas_cannot_write_into_each_others_batches(void **state)
{
	struct fixture *f = *state;
	struct stk_tensor t;
	struct stk_batch *batch;
	int status;
	pid_t pid;

	f->daemon.replicas = 2;
	f->opts.replicas = 2;
	f->opts.job = "j";
	open_client(f);
	fake_publish(&f->daemon, 0, 0, 0);
	batch = next_batch(f);
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	pid = fork();
	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile int32_t *)t.data = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	/* A sanitizer turns the signal into an exit status of its own. */
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	stk_batch_release(batch);
}

static int child(struct fixture *f, struct stk_batch *held)
{
	struct stk_tensor t;
	struct stk_batch *batch;

	if (stk_client_next(f->client, 0, &batch) != -ECHILD)
		return 1;
	if (stk_batch_tensor(held, "ids", &t) < 0 || ((const int32_t *)t.data)[0] != 0)
		return 2;
	if (stk_client_seek(f->client, NULL, 0) != -ECHILD || stk_client_fd(f->client) != -ECHILD)
		return 3;
	stk_batch_release(held);
	f->client = stk_client_close(f->client);
	return 0;
}

static void a_forked_child_reads_but_does_not_disturb_the_parent(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held;
	uint32_t slot, index;
	int status;
	pid_t pid;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	held = next_batch(f);
	pid = fork();
	if (!pid)
		_exit(child(f, held));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_EMPTY);
	assert_true(atomic_load(&f->daemon.conn) >= 0);
	stk_batch_release(next_batch(f));
	stk_batch_release(held);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
}

static void a_forked_child_does_not_keep_the_seat(void **state)
{
	struct fixture *f = *state;
	pid_t pid = fork();

	if (!pid) {
		pause();
		_exit(0);
	}
	f->client = stk_client_close(f->client);
	for (int i = 0; i < 500 && atomic_load(&f->daemon.conn) >= 0; i++)
		usleep(2000);
	assert_int_equal(atomic_load(&f->daemon.conn), -1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Publishes a batch whose descriptor was changed by one assignment; next() has to refuse it. */
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		struct stk_batch *batch_;                                                          \
		struct stk_shm_desc *d;                                                            \
		struct stk_shm_field *field;                                                       \
		open_client(f);                                                                    \
		d = fake_fill(&f->daemon, 0, 0, 0, FAKE_ROWS);                                     \
		field = (struct stk_shm_field *)(d + 1);                                           \
		(void)field;                                                                       \
		change;                                                                            \
		fake_entry(&f->daemon, STK_SHM_BATCH, 0, 0, 0);                                    \
		assert_int_equal(stk_client_next(f->client, 0, &batch_), -EPROTO);                 \
		assert_int_equal(stk_client_next(f->client, 0, &batch_), -EPROTO);                 \
		f->client = stk_client_close(f->client);                                           \
	} while (0)

static void damaged_descriptors_are_errors_and_never_a_crash(void **state)
{
	struct fixture *f = *state;

	REFUSED(d->slot = 3);
	REFUSED(d->era = 1);
	REFUSED(d->shape_class = 1);
	REFUSED(d->nids = UINT32_MAX);
	REFUSED(d->ids_off = FAKE_SLOT_SIZE);
	REFUSED(d->cursor_size = UINT32_MAX);
	REFUSED(d->extent_size = UINT64_MAX);
	REFUSED(field[0].offset = FAKE_SLOT_SIZE);
	REFUSED(field[0].size = 8); /* smaller than the shape says */
	REFUSED(field[0].lead[0] = UINT32_MAX);
	REFUSED(field[1].lead[0] = 4);
	REFUSED(field[1].nlead = 7);
}

static void damaged_entries_are_errors_and_never_a_crash(void **state)
{
	static const struct stk_shm_entry entries[] = {
		{.kind = STK_SHM_BATCH, .slot = FAKE_SLOTS},
		{.kind = STK_SHM_BATCH, .slot = STK_SHM_NO_SLOT},
		{.kind = 0},
		{.kind = 77},
		{.kind = UINT32_MAX},
		{.kind = STK_SHM_EPOCH_END, .era = 5},
	};
	struct fixture *f = *state;
	struct stk_batch *batch;

	for (size_t i = 0; i < STK_ARRAY_SIZE(entries); i++) {
		open_client(f);
		stk_ring_publish(&f->daemon.pub, &entries[i]);
		assert_int_equal(stk_client_next(f->client, 0, &batch), -EPROTO);
		assert_true(stk_client_error(f->client)[0]);
		f->client = stk_client_close(f->client);
	}
}

static void a_slot_that_is_still_borrowed_cannot_be_lent_again(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held, *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	held = next_batch(f);
	fake_publish(&f->daemon, 0, 0, 1);
	assert_int_equal(stk_client_next(f->client, 0, &batch), -EPROTO);
	stk_batch_release(held);
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

static void *release_all(void *data)
{
	struct stk_batch **batches = data;

	for (int i = 0; i < 2; i++)
		stk_batch_release(batches[i]);
	return NULL;
}

static void several_threads_may_release_at_once(void **state)
{
	struct fixture *f = *state;
	uint32_t slot, index, seen;

	for (uint64_t round = 0; round < 50; round++) {
		struct stk_batch *batches[FAKE_SLOTS];
		pthread_t threads[2];

		for (uint32_t i = 0; i < FAKE_SLOTS; i++)
			fake_publish(&f->daemon, i, 0, round * FAKE_SLOTS + i);
		for (uint32_t i = 0; i < FAKE_SLOTS; i++)
			batches[i] = next_batch(f);
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, release_all, batches + 2 * i);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		seen = 0;
		while (stk_ring_drain(&f->daemon.drain, &slot, &index) == STK_RING_GOT)
			seen |= 1u << slot;
		assert_int_equal(seen, (1u << FAKE_SLOTS) - 1);
	}
}

static void two_clients_of_one_process_do_not_mix(void **state)
{
	struct fixture *f = *state;
	struct fixture other = {0};
	struct stk_batch *batch;

	fake_start(&other.daemon);
	other.opts = f->opts;
	other.opts.socket = other.daemon.socket;
	open_client(&other);
	fake_publish(&f->daemon, 0, 0, 1);
	fake_publish(&other.daemon, 0, 0, 2);
	batch = next_batch(&other);
	assert_int_equal(step_of(batch), 2);
	stk_batch_release(batch);
	stk_client_close(other.client);
	fake_stop(&other.daemon);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 1);
	stk_batch_release(batch);
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

#define TEST(f)   cmocka_unit_test_setup_teardown(f, set_up, tear_down)
#define CLOSED(f) cmocka_unit_test_setup_teardown(f, set_up_closed, tear_down)

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
		TEST(ends_of_epochs_and_of_the_stream_are_told_and_the_last_is_final),
		TEST(an_error_comes_after_the_good_batches_with_code_and_text),
		TEST(an_empty_ring_times_out_when_it_should),
		TEST(a_parked_consumer_is_woken_and_its_wait_is_counted),
		TEST(the_descriptor_polls_readable_when_something_came),
		TEST(the_descriptor_polls_readable_until_the_first_look_that_found_nothing),
		TEST(a_dead_daemon_ends_a_parked_consumer_within_a_second),
		TEST(what_was_published_before_the_daemons_end_is_returned),
		TEST(the_reason_of_a_daemon_that_ends_the_seat_is_told),
		TEST(batches_outlive_their_client),
		TEST(the_state_follows_the_batches_that_were_returned),
		CLOSED(the_state_before_the_first_batch_has_the_cursor_that_the_daemon_tells),
		CLOSED(a_state_without_a_cursor_is_taken_as_the_beginning),
		CLOSED(a_state_with_a_cursor_is_kept_until_the_first_batch),
		TEST(seeking_skips_what_is_of_the_old_era_and_gives_it_back),
		CLOSED(replicas_cannot_write_into_each_others_batches),
		TEST(a_forked_child_reads_but_does_not_disturb_the_parent),
		TEST(a_forked_child_does_not_keep_the_seat),
		CLOSED(damaged_descriptors_are_errors_and_never_a_crash),
		CLOSED(damaged_entries_are_errors_and_never_a_crash),
		TEST(a_slot_that_is_still_borrowed_cannot_be_lent_again),
		CLOSED(a_seat_that_comes_later_starts_at_its_first_entry),
		TEST(several_threads_may_release_at_once),
		TEST(two_clients_of_one_process_do_not_mix),
		TEST(take_returns_what_is_ready_and_never_waits),
		CLOSED(a_caller_may_interrupt_a_wait_and_loses_nothing),
		CLOSED(a_caller_may_interrupt_an_attach),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
