/* SPDX-License-Identifier: Apache-2.0 */
/* Where a client stands: the state it tells, the state it is opened with, seeking. */
#include <errno.h>
#include <string.h>

#include "tests/unit/client_fixture.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_state_follows_the_batches_that_were_returned),
		CLOSED(the_state_before_the_first_batch_has_the_cursor_that_the_daemon_tells),
		CLOSED(a_state_without_a_cursor_is_taken_as_the_beginning),
		CLOSED(a_state_with_a_cursor_is_kept_until_the_first_batch),
		TEST(seeking_skips_what_is_of_the_old_era_and_gives_it_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
