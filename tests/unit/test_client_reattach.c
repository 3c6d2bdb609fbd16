/* SPDX-License-Identifier: Apache-2.0 */
/* A lost connection: attached anew where the client stands, nothing lost and nothing twice. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
	pthread_t thread;
	void (*then)(struct fake_daemon *d); /* what the daemon publishes after the second attach */
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	char error[1024] = "";

	fake_start(&f->daemon);
	f->opts = (struct stk_client_opts){.size = sizeof(f->opts),
					   .stream = "fake",
					   .job = "j",
					   .socket = f->daemon.socket,
					   .attach_timeout_ms = 2000,
					   .reconnect_ms = 2000};
	if (stk_client_open(&f->opts, &f->client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	while (!atomic_load(&f->daemon.attaches)) /* it counts after it replied */
		usleep(1000);
	*state = f;
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

static void *hang_up_then_publish(void *data)
{
	struct fixture *f = data;

	fake_hang_up(&f->daemon);
	while (atomic_load(&f->daemon.attaches) < 2)
		usleep(1000);
	f->then(&f->daemon);
	return NULL;
}

/* Hangs up while the test goes on to call next(), which attaches anew; then publishes. */
static void lose(struct fixture *f, void (*then)(struct fake_daemon *d))
{
	f->then = then;
	pthread_create(&f->thread, NULL, hang_up_then_publish, f);
}

static int next_step(struct fixture *f, uint64_t *ret_step)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	struct stk_batch *batch;
	int r = stk_client_next(f->client, 3000, &batch);

	if (r < 0)
		fail_msg("next: %d: %s", r, stk_client_error(f->client));
	if (r)
		return r;
	stk_batch_info(batch, &info);
	*ret_step = info.epoch * 100 + info.step;
	stk_batch_release(batch);
	return 0;
}

/* Each expected number is a batch (epoch * 100 + step), or -2 for an epoch's end. */
static void expect(struct fixture *f, const int *wanted, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t step = 0;
		int r = next_step(f, &step);

		if (wanted[i] < 0)
			assert_int_equal(r, -wanted[i]);
		else
			assert_int_equal(r, 0);
		if (wanted[i] >= 0)
			assert_int_equal(step, wanted[i]);
	}
}
#define EXPECT(f, ...)                                                                             \
	do {                                                                                       \
		static const int wanted_[] = {__VA_ARGS__};                                        \
		expect(f, wanted_, STK_ARRAY_SIZE(wanted_));                                       \
	} while (0)

static void goes_on(struct fake_daemon *d)
{
	fake_publish(d, 0, 0, 2);
	fake_publish(d, 1, 0, 3);
}

static void it_goes_on_with_the_next_batch_and_old_batches_stay_readable(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held;
	struct stk_tensor t;
	const json_t *sent, *spec;
	char hex[2 * STK_STATE_MAX + 1];
	uint8_t saved[STK_STATE_MAX];
	int n;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	EXPECT(f, 0);
	assert_int_equal(stk_client_next(f->client, 1000, &held), 0);
	n = stk_client_state(f->client, saved, sizeof(saved));
	lose(f, goes_on);
	EXPECT(f, 2, 3);
	pthread_join(f->thread, NULL);
	assert_int_equal(stk_batch_tensor(held, "ids", &t), 0);
	assert_int_equal(((const int32_t *)t.data)[0], 1000);
	stk_batch_release(held);
	sent = json_object_get(f->daemon.last_call, "parameters");
	spec = json_object_get(sent, "spec");
	assert_true(json_is_true(json_object_get(sent, "rejoin")));
	assert_int_equal(json_integer_value(json_object_get(spec, "rows")), 3); /* resolved */
	assert_null(json_object_get(spec, "data")); /* is the configured stream's */
	stk_hex_encode(saved, (size_t)n, hex);
	assert_string_equal(json_string_value(json_object_get(sent, "state")), hex);
}

static void replays(struct fake_daemon *d)
{
	fake_publish(d, 0, 0, 0);
	fake_publish(d, 1, 0, 1);
	fake_publish(d, 2, 0, 2);
}

static void what_was_returned_before_is_skipped_and_given_back(void **state)
{
	struct fixture *f = *state;
	uint32_t slot, index;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	EXPECT(f, 0, 1);
	lose(f, replays);
	EXPECT(f, 2);
	pthread_join(f->thread, NULL);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
		assert_int_equal(slot, i);
	}
}

static void next_epoch(struct fake_daemon *d)
{
	fake_publish(d, 0, 1, 0);
}

static void an_epochs_end_that_was_not_told_is_told_first(void **state)
{
	struct fixture *f = *state;

	fake_publish(&f->daemon, 0, 0, 3);
	EXPECT(f, 3);
	lose(f, next_epoch);
	EXPECT(f, -STK_EPOCH_END, 100);
	pthread_join(f->thread, NULL);
}

static void epochs_end_again(struct fake_daemon *d)
{
	fake_publish(d, 0, 0, 3);
	fake_entry(d, STK_SHM_EPOCH_END, STK_SHM_NO_SLOT, 0, 4);
	fake_publish(d, 1, 1, 0);
}

static void an_epochs_end_that_was_told_is_not_told_again(void **state)
{
	struct fixture *f = *state;

	fake_publish(&f->daemon, 0, 0, 3);
	fake_entry(&f->daemon, STK_SHM_EPOCH_END, STK_SHM_NO_SLOT, 0, 4);
	EXPECT(f, 3, -STK_EPOCH_END);
	lose(f, epochs_end_again);
	EXPECT(f, 100);
	pthread_join(f->thread, NULL);
}

static void stream_ends(struct fake_daemon *d)
{
	fake_entry(d, STK_SHM_STREAM_END, STK_SHM_NO_SLOT, 1, 0);
}

static void the_last_epochs_end_comes_before_the_streams_end(void **state)
{
	struct fixture *f = *state;

	fake_publish(&f->daemon, 0, 0, 3);
	EXPECT(f, 3);
	lose(f, stream_ends);
	EXPECT(f, -STK_EPOCH_END, -STK_STREAM_END, -STK_STREAM_END);
	pthread_join(f->thread, NULL);
}

static void the_pollable_descriptor_stays_the_same(void **state)
{
	struct fixture *f = *state;
	struct pollfd p = {.fd = stk_client_fd(f->client), .events = POLLIN};
	struct stk_batch *batch;

	fake_hang_up(&f->daemon);
	assert_int_equal(stk_client_next(f->client, 0, &batch), STK_TIMEOUT); /* attached anew */
	assert_int_equal(stk_client_fd(f->client), p.fd);
	assert_int_equal(poll(&p, 1, 0), 0);
	fake_publish(&f->daemon, 0, 0, 0);
	assert_int_equal(poll(&p, 1, 1000), 1);
	EXPECT(f, 0);
}

static _Atomic int refusals;

static void reply_busy_twice(struct fake_daemon *d, int conn, const json_t *call)
{
	struct stk_err err;
	json_t *json;

	(void)call;
	if (atomic_fetch_add(&refusals, 1) >= 2) {
		fake_reply(d, conn, FAKE_FDS);
		fake_publish(d, 0, 0, 1);
		return;
	}
	stk_err_set(&err, -EBUSY, "the seat is taken");
	json = stk_msg_error(NULL, &err);
	stk_msg_send(conn, json, NULL, 0, 1000, NULL);
	json_decref(json);
}

static void a_seat_not_yet_vacant_is_asked_for_again(void **state)
{
	struct fixture *f = *state;

	atomic_store(&refusals, 0);
	f->daemon.attach = reply_busy_twice;
	fake_hang_up(&f->daemon);
	EXPECT(f, 1);
	assert_int_equal(atomic_load(&refusals), 3);
}

static void reply_changed(struct fake_daemon *d, int conn, const json_t *call)
{
	struct stk_err err;
	json_t *json;

	(void)d;
	(void)call;
	atomic_fetch_add(&refusals, 1);
	stk_err_set(&err, -EINVAL, "state: the data changed");
	json = stk_msg_error(NULL, &err);
	stk_msg_send(conn, json, NULL, 0, 1000, NULL);
	json_decref(json);
}

static void a_daemon_that_says_no_is_not_asked_again(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;

	atomic_store(&refusals, 0);
	f->daemon.attach = reply_changed;
	fake_hang_up(&f->daemon);
	assert_int_equal(stk_client_next(f->client, 1000, &batch), -EINVAL);
	assert_non_null(strstr(stk_client_error(f->client), "the data changed"));
	assert_int_equal(stk_client_next(f->client, 1000, &batch), -EINVAL);
	assert_int_equal(atomic_load(&refusals), 1);
}

static void no_daemon_within_the_window_is_the_end(void **state)
{
	struct fixture *f = *state;
	struct stk_client *client;
	struct stk_batch *batch;
	struct timespec a, b;
	int r;

	f->opts.reconnect_ms = 100;
	stk_client_close(f->client);
	f->client = NULL;
	while (atomic_load(&f->daemon.conn) >= 0)
		usleep(1000);
	assert_int_equal(stk_client_open(&f->opts, &client, NULL, 0), 0);
	unlink(f->daemon.socket);
	fake_hang_up(&f->daemon);
	clock_gettime(CLOCK_MONOTONIC, &a);
	r = stk_client_next(client, -1, &batch);
	clock_gettime(CLOCK_MONOTONIC, &b);
	assert_int_equal(r, -EPIPE);
	assert_in_range((b.tv_sec - a.tv_sec) * 1000 + (b.tv_nsec - a.tv_nsec) / 1000000, 80, 600);
	assert_non_null(strstr(stk_client_error(client), "within 100 ms"));
	stk_client_close(client);
}

static void seeking_over_a_lost_connection_attaches_first(void **state)
{
	struct fixture *f = *state;

	fake_hang_up(&f->daemon);
	assert_int_equal(stk_client_seek(f->client, NULL, 0), 0);
	fake_publish(&f->daemon, 0, 0, 7);
	EXPECT(f, 7);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(it_goes_on_with_the_next_batch_and_old_batches_stay_readable),
		TEST(what_was_returned_before_is_skipped_and_given_back),
		TEST(an_epochs_end_that_was_not_told_is_told_first),
		TEST(an_epochs_end_that_was_told_is_not_told_again),
		TEST(the_last_epochs_end_comes_before_the_streams_end),
		TEST(the_pollable_descriptor_stays_the_same),
		TEST(a_seat_not_yet_vacant_is_asked_for_again),
		TEST(a_daemon_that_says_no_is_not_asked_again),
		TEST(no_daemon_within_the_window_is_the_end),
		TEST(seeking_over_a_lost_connection_attaches_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
