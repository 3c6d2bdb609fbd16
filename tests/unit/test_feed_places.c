/* SPDX-License-Identifier: Apache-2.0 */
/* Where a feed stands: the states that clients save of it, seeking, starting at a state. */
#include <errno.h>

#include "daemon/plan/iter.h"
#include "tests/unit/feed_fixture.h"

/* What a client saves after a batch that it still holds. Returns its size. */
static size_t state_of(struct fixture *f, uint32_t slot, uint8_t state[STK_STATE_SIZE_MAX])
{
	const struct stk_shm_control *shm = f->feed->shm;
	const struct stk_shm_desc *desc =
		(const struct stk_shm_desc *)(f->feed->control.map + shm->desc_off +
					      (uint64_t)slot * shm->desc_size);
	struct stk_state_header header;

	stkd_stream_state_header(f->stream, &header);
	header.cursor_size = desc->cursor_size;
	memcpy(state, &header, sizeof(header));
	memcpy(state + sizeof(header), desc->cursor, desc->cursor_size);
	return sizeof(header) + desc->cursor_size;
}

static void a_seek_goes_on_behind_the_state_in_a_new_era(void **state)
{
	struct fixture *f = *state;
	uint8_t place[STK_STATE_SIZE_MAX];
	struct stk_shm_entry entry;
	size_t size;

	start(f, "epochs=1", 1);
	step(f, 0);
	step(f, 0);
	entry = next(f, 0);
	size = state_of(f, entry.slot, place);
	release_at(f, 0, entry.slot, f->seats[0].sub.head - 1);
	for (int i = 0; i < 4; i++)
		step(f, 0);
	assert_int_equal(seek(f, 0, place, size), 1);
	do
		entry = step(f, 0);
	while (entry.era == 0);
	for (uint64_t i = 3; i < SAMPLES / 4; i++) {
		assert_int_equal(entry.kind, STK_SHM_BATCH);
		assert_int_equal(entry.era, 1);
		assert_int_equal(entry.step, i);
		entry = step(f, 0);
	}
	assert_int_equal(entry.kind, STK_SHM_EPOCH_END);
}

/* What a client saves before its first batch; an older one without the cursor. */
static size_t start_of(struct fixture *f, bool older, uint8_t state[STK_STATE_SIZE_MAX])
{
	const struct stk_shm_control *shm = f->feed->shm;
	struct stk_state_header header;

	memcpy(&header, f->feed->control.map + shm->state_off, sizeof(header));
	header.cursor_size = older ? 0 : shm->start_size;
	memcpy(state, &header, sizeof(header));
	memcpy(state + sizeof(header), f->feed->control.map + shm->start_off, header.cursor_size);
	return sizeof(header) + header.cursor_size;
}

static void assert_place(struct fixture *f, const uint8_t *place, size_t size, uint64_t epoch)
{
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};

	assert_int_equal(stkd_stream_iter(f->stream, place, size, &iter, &err), 0);
	assert_int_equal(stkd_iter_epoch(iter), epoch);
	assert_int_equal(stkd_iter_step(iter), 0);
	stkd_iter_free(iter);
}

/* Another stream, of another spec, refuses the state. */
static void assert_refused(struct fixture *f, const uint8_t *place, size_t size, const char *reason)
{
	struct stkd_stream *stream = f->stream;
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};

	open_stream(f, "tail=drop");
	assert_int_equal(stkd_stream_iter(f->stream, place, size, &iter, &err), -EINVAL);
	assert_non_null(strstr(err.text, "the digest of the spec is "));
	if (!strstr(err.text, reason))
		fail_msg("%s", err.text);
	stkd_stream_unref(f->stream);
	f->stream = stream;
}

static void the_beginning_has_a_cursor_that_names_the_key_that_differs(void **state)
{
	struct fixture *f = *state;
	uint8_t place[STK_STATE_SIZE_MAX];
	size_t size;

	start(f, "epochs=2", 1);
	size = start_of(f, false, place);
	assert_true(size > sizeof(struct stk_state_header));
	assert_place(f, place, size, 0);
	assert_refused(
		f, place, size,
		"; the first key that differs is tail, now \"drop\", in the state \"short\";");
	size = start_of(f, true, place);
	assert_int_equal(size, sizeof(struct stk_state_header));
	assert_place(f, place, size, 0);
	assert_refused(f, place, size, " now; allow_changed");
}

static void a_state_behind_an_epoch_names_the_key_that_differs(void **state)
{
	struct fixture *f = *state;
	uint8_t place[STK_STATE_SIZE_MAX];
	struct stk_shm_entry entry;
	size_t size;

	start(f, "epochs=2", 1);
	for (uint64_t i = 1; i < SAMPLES / 4; i++)
		step(f, 0);
	entry = next(f, 0);
	size = state_of(f, entry.slot, place);
	assert_place(f, place, size, 1);
	assert_refused(
		f, place, size,
		"; the first key that differs is tail, now \"drop\", in the state \"short\";");
}

static void seats_that_seek_differently_are_told(void **state)
{
	struct fixture *f = *state;
	uint8_t place[STK_STATE_SIZE_MAX];
	struct stk_shm_entry entry;
	size_t size;

	start(f, "epochs=1", 2);
	entry = next(f, 0);
	size = state_of(f, entry.slot, place);
	assert_int_equal(seek(f, 0, place, size), 0);
	assert_int_equal(seek(f, 1, NULL, 0), -EINVAL);
	assert_int_equal(seek(f, 1, place, size), 1);
	assert_int_equal(f->feed->era, 1);
}

static void a_feed_starts_at_the_earliest_state_of_its_seats(void **state)
{
	struct fixture *f = *state;
	uint8_t early[STK_STATE_SIZE_MAX], late[STK_STATE_SIZE_MAX];
	struct stk_shm_entry entry;
	size_t early_size, late_size;
	struct stk_err err;

	start(f, "epochs=1", 1);
	entry = next(f, 0);
	early_size = state_of(f, entry.slot, early);
	entry = next(f, 0);
	late_size = state_of(f, entry.slot, late);
	assert_int_equal(stkd_feed_rewind(f->feed, early, early_size, &err), 0);
	assert_int_equal(next(f, 0).step, 2); /* it runs: too late */
	stkd_feed_close(f->feed);
	stkd_feed_unref(f->feed);
	build(f, 2, late, late_size);
	assert_int_equal(stkd_feed_rewind(f->feed, early, early_size, &err), 0);
	assert_int_equal(stkd_feed_rewind(f->feed, late, late_size, &err), 0);
	early[0]++;
	assert_int_equal(stkd_feed_rewind(f->feed, early, early_size, &err), -EINVAL);
	taken(f, 0);
	taken(f, 1);
	assert_int_equal(next(f, 0).step, 1);
}

static void a_feed_that_fails_calls_for_those_who_wait_for_a_seek(void **state)
{
	struct fixture *f = *state;

	start(f, "epochs=1", 2);
	assert_int_equal(seek(f, 0, NULL, 0), 0);
	stkd_feed_fail(f->feed, -EPIPE, "replica_lost");
	assert_int_equal(atomic_load(&f->faults), 1);
	assert_int_equal(f->feed->failed.code, -EPIPE);
	assert_true(f->feed->seats[0].seek_pending);
	assert_int_equal(seek(f, 1, NULL, 0), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_seek_goes_on_behind_the_state_in_a_new_era),
		TEST(the_beginning_has_a_cursor_that_names_the_key_that_differs),
		TEST(a_state_behind_an_epoch_names_the_key_that_differs),
		TEST(seats_that_seek_differently_are_told),
		TEST(a_feed_starts_at_the_earliest_state_of_its_seats),
		TEST(a_feed_that_fails_calls_for_those_who_wait_for_a_seek),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
