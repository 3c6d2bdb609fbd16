/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A feed without a daemon, and its seats as clients play them. The test is the bus thread and the
 * clients; the workers of the pool are threads of their own.
 */
#ifndef FEED_FIXTURE_H
#define FEED_FIXTURE_H

#include <sched.h>
#include <time.h>

#include "daemon/serve/feed.h"
#include "tests/unit/shardfile.h"

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

static inline int setup(void **state)
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

static inline int teardown(void **state)
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

static inline void count_fault(void *data)
{
	struct fixture *f = data;

	atomic_fetch_add(&f->faults, 1);
}

static inline void open_stream(struct fixture *f, const char *word)
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

static inline void build(struct fixture *f, uint32_t replicas, const void *state, size_t size)
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

static inline int take(struct fixture *f, uint32_t seat, struct stk_err *err)
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

static inline void taken(struct fixture *f, uint32_t seat)
{
	struct stk_err err = {0};

	if (take(f, seat, &err) < 0) {
		print_error("%s\n", err.text);
		fail();
	}
}

static inline void start(struct fixture *f, const char *word, uint32_t replicas)
{
	open_stream(f, word);
	build(f, replicas, NULL, 0);
	for (uint32_t i = 0; i < replicas; i++)
		taken(f, i);
}

/* The next entry, within ten seconds. */
static inline struct stk_shm_entry next(struct fixture *f, uint32_t seat)
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

static inline void release_at(struct fixture *f, uint32_t seat, uint32_t slot, uint32_t index)
{
	struct player *p = &f->seats[seat];

	if (stk_ring_release(&p->rel, p->control, slot, index))
		stkd_feed_poke(f->feed);
}

/* Takes one entry and gives its slot back. */
static inline struct stk_shm_entry step(struct fixture *f, uint32_t seat)
{
	struct stk_shm_entry entry = next(f, seat);

	if (entry.kind == STK_SHM_BATCH)
		release_at(f, seat, entry.slot, f->seats[seat].sub.head - 1);
	return entry;
}

/* 1: all seats have asked for this place, and the feed goes on there; 0: others are awaited. */
static inline int seek(struct fixture *f, uint32_t seat, const void *place, size_t size)
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

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

#endif
