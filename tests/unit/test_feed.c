/* SPDX-License-Identifier: Apache-2.0 */
/* Feeds without a daemon: what seats see of them, and what a feed believes of its seats. */
#include "shardfile.h"

#include <errno.h>
#include <sched.h>
#include <time.h>

#include "daemon/plan/iter.h"
#include "daemon/serve/feed.h"

#define SAMPLES 40
#define SEATS   2
#define SLOTS   4

/* A seat as a client plays it. */
struct player {
	struct stk_ring_sub sub;
	struct stk_ring_rel rel;
	const struct stk_shm_control *control;
};

struct fixture {
	struct folder *folder;
	struct stkd_stream *stream;
	struct stkd_pool *pool;
	struct stkd_feed *feed;
	struct player seats[SEATS];
	_Atomic unsigned faults;
};

static const struct ucred me = {.pid = 1, .uid = 2, .gid = 3};

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	uint32_t lengths[SAMPLES];
	void *folder;
	struct stk_err err;

	assert_non_null(f);
	folder_setup(&folder);
	f->folder = folder;
	for (uint32_t i = 0; i < SAMPLES; i++)
		lengths[i] = 1 + i % 7;
	write_ragged(f->folder, "a.safetensors", lengths, SAMPLES, 1);
	assert_int_equal(stkd_pool_new(2, NULL, "test", &f->pool, &err), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	void *folder = f->folder;

	if (f->feed)
		stkd_feed_close(f->feed);
	stkd_pool_free(f->pool);
	stkd_feed_unref(f->feed);
	stkd_stream_unref(f->stream);
	free(f);
	return folder_teardown(&folder);
}

static void count_fault(void *data)
{
	struct fixture *f = data;

	atomic_fetch_add(&f->faults, 1);
}

static void open_stream(struct fixture *f, const char *word)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	struct stkd_shard_limits limits = {.header_max = 1 << 20};
	struct stkd_progress progress = {0};
	char data[128], rows[] = "rows=4", order[] = "order=none", copy[64];
	struct stk_spec *spec;
	struct stk_err err;

	snprintf(data, sizeof(data), "data=%s", f->folder->path);
	snprintf(copy, sizeof(copy), "%s", word);
	assert_int_equal(stk_tree_from_words((char *[]){data, rows, order, copy}, 4, &tree, &err),
			 0);
	assert_int_equal(stk_spec_parse(NULL, tree, &spec, &err), 0);
	assert_int_equal(stkd_stream_open(spec, "job", 1, &limits, &progress, &f->stream, &err), 0);
}

static void build(struct fixture *f, uint32_t replicas, const void *state, size_t size)
{
	struct stkd_feed_params params = {
		.stream = f->stream,
		.pool = f->pool,
		.replicas = replicas,
		.nslots = SLOTS,
		.node = -1,
		.lock = STK_NEED_TRY,
		.state = state,
		.state_size = size,
	};
	struct stk_err err;

	f->feed = stkd_feed_alloc(&params);
	assert_non_null(f->feed);
	f->feed->fault = count_fault;
	f->feed->fault_data = f;
	assert_int_equal(stkd_feed_build(f->feed, &params, &err), 0);
}

static int take(struct fixture *f, uint32_t seat, struct stk_err *err)
{
	struct stkd_feed *feed = f->feed;
	struct player *p = &f->seats[seat];
	int r = stkd_feed_take_seat(feed, seat, &me, f, err);

	if (r < 0)
		return r;
	*p = (struct player){
		.sub = {.shm = feed->shm,
			.entries = feed->ring.entries,
			.mask = feed->ring.mask,
			.head = feed->seats[seat].shm->first},
		.rel = {.shm = feed->seats[seat].shm,
			.entries = (_Atomic uint64_t *)(feed->seats[seat].file.map +
							feed->seats[seat].shm->ring_off),
			.mask = feed->ring.mask},
		.control = feed->shm,
	};
	return 0;
}

static void taken(struct fixture *f, uint32_t seat)
{
	struct stk_err err = {0};

	if (take(f, seat, &err) < 0) {
		print_error("%s\n", err.text);
		fail();
	}
}

static void start(struct fixture *f, const char *word, uint32_t replicas)
{
	open_stream(f, word);
	build(f, replicas, NULL, 0);
	for (uint32_t i = 0; i < replicas; i++)
		taken(f, i);
}

/* The next entry, within ten seconds. */
static struct stk_shm_entry next(struct fixture *f, uint32_t seat)
{
	struct stk_shm_entry entry = {0};
	time_t end = time(NULL) + 10;

	while (!stk_ring_read(&f->seats[seat].sub, &entry)) {
		if (time(NULL) > end)
			fail_msg("seat %u: nothing came", seat);
		sched_yield();
	}
	return entry;
}

static void release_at(struct fixture *f, uint32_t seat, uint32_t slot, uint32_t index)
{
	struct player *p = &f->seats[seat];

	if (stk_ring_release(&p->rel, p->control, slot, index))
		stkd_feed_poke(f->feed);
}

/* Takes one entry and gives its slot back. */
static struct stk_shm_entry step(struct fixture *f, uint32_t seat)
{
	struct stk_shm_entry entry = next(f, seat);

	if (entry.kind == STK_SHM_BATCH)
		release_at(f, seat, entry.slot, f->seats[seat].sub.head - 1);
	return entry;
}

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

static int seek(struct fixture *f, uint32_t seat, const void *place, size_t size)
{
	struct stkd_iter *iter = NULL;
	struct stk_err err = {0};
	uint32_t era;
	int r = stkd_stream_iter(f->stream, place, size, &iter, &err);

	if (r == 0)
		r = stkd_feed_seek(f->feed, seat, place, size, iter, &era, &err);
	if (r != 1)
		stkd_iter_free(iter);
	for (uint32_t i = 0; r == 1 && i < f->feed->replicas; i++)
		f->feed->seats[i].seek_pending = false;
	return r;
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
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(an_epoch_is_its_steps_and_then_its_end),
		TEST(a_slot_that_is_not_held_is_a_fault),
		TEST(of_several_seats_the_slowest_is_asked_to_tell),
		TEST(while_a_seat_waits_all_are_asked_to_tell_at_once),
		TEST(a_seat_that_comes_back_finds_the_ends_it_had_not_read),
		TEST(a_seat_that_comes_back_goes_on_at_its_oldest_lease),
		TEST(batches_in_flight_come_before_the_error_of_the_plan),
		TEST(a_seek_goes_on_behind_the_state_in_a_new_era),
		TEST(the_beginning_has_a_cursor_that_names_the_key_that_differs),
		TEST(a_state_behind_an_epoch_names_the_key_that_differs),
		TEST(seats_that_seek_differently_are_told),
		TEST(a_feed_starts_at_the_earliest_state_of_its_seats),
		TEST(a_step_that_takes_long_to_plan_holds_up_nobody),
		TEST(a_feed_that_closes_while_a_step_is_planned_ends),
		TEST(a_feed_that_fails_calls_for_those_who_wait_for_a_seek),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
