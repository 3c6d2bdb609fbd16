/* SPDX-License-Identifier: Apache-2.0 */
/*
 * States of a stream: what is written into one, whether one fits, and the iterator that goes on from
 * it. A cursor is followed by short hashes of the spec's keys where there is room, so that a refusal
 * can name the key that differs. Any thread.
 */
#include "daemon/serve/stream.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"

/* {name, value} of each key, little-endian, then how many and this. */
static const uint8_t prints_mark[4] = {'K', 'E', 'Y', 'S'};

static size_t put16(uint8_t *out, uint16_t value)
{
	out[0] = (uint8_t)value;
	out[1] = (uint8_t)(value >> 8);
	return 2;
}

static uint16_t get16(const uint8_t *in)
{
	return (uint16_t)(in[0] | in[1] << 8);
}

static void take_prints(struct stkd_stream *s)
{
	struct stk_spec_print prints[STKD_STREAM_PRINTS_MAX];
	size_t n = stk_spec_prints(s->spec, prints), size = 0;

	for (size_t i = 0; i < n; i++) {
		size += put16(s->prints + size, prints[i].name);
		size += put16(s->prints + size, prints[i].value);
	}
	s->prints[size++] = (uint8_t)n;
	memcpy(s->prints + size, prints_mark, sizeof(prints_mark));
	s->prints_size = size + sizeof(prints_mark);
}

size_t stkd_stream_cursor(const struct stkd_stream *s, const struct stkd_iter *iter,
			  uint8_t out[STK_SHM_CURSOR_MAX])
{
	size_t size = stkd_iter_cursor(iter, out);

	if (s->prints_size > STK_SHM_CURSOR_MAX - size)
		return size;
	memcpy(out + size, s->prints, s->prints_size);
	return size + s->prints_size;
}

int stkd_stream_take_start(struct stkd_stream *s, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	int r = stkd_iter_new(s->plan, NULL, 0, &iter, err);

	if (r < 0)
		return r;
	take_prints(s);
	s->start_size = stkd_stream_cursor(s, iter, s->start);
	return 0;
}

/* Where the hashes of a cursor begin, and how many they are; its size and 0: there are none. */
static size_t find_prints(const uint8_t *cursor, size_t size, size_t *ret_n)
{
	size_t n, room;

	*ret_n = 0;
	if (size < sizeof(prints_mark) + 1 ||
	    memcmp(cursor + size - sizeof(prints_mark), prints_mark, sizeof(prints_mark)))
		return size;
	room = size - sizeof(prints_mark) - 1;
	n = cursor[room];
	if (n > STKD_STREAM_PRINTS_MAX || 4 * n > room)
		return size;
	*ret_n = n;
	return room - 4 * n;
}

void stkd_stream_state_header(const struct stkd_stream *s, struct stk_state_header *ret)
{
	stk_state_header_init(ret);
	ret->plan_version = STKD_PLAN_VERSION;
	ret->data = s->dataset->fingerprint;
	ret->spec = s->digest;
	ret->seed = s->spec->seed;
	ret->world = s->world;
	ret->samples = s->dataset->count;
}

/* A state, taken apart. */
struct state {
	struct stk_state_header header;
	const uint8_t *cursor, *prints;
	size_t cursor_size, nprints;
};

/* The value of this key in the state: its hash, or -1 where it was left out. */
static int32_t print_of(const struct state *state, uint16_t name)
{
	for (size_t i = 0; i < state->nprints; i++)
		if (get16(state->prints + 4 * i) == name)
			return get16(state->prints + 4 * i + 2);
	return -1;
}

/* The first key whose value is another one now, and its value then, where it is known. */
static const char *find_difference(const struct stkd_stream *s, const struct state *state,
				   char **ret_then)
{
	for (size_t i = 0; state->nprints && i < stk_spec_table.nkeys; i++) {
		struct stk_spec_print ours;
		bool set = stk_spec_print_key(s->spec, i, &ours);
		int32_t theirs = print_of(state, ours.name);

		if (theirs == (set ? ours.value : -1))
			continue;
		*ret_then = stk_spec_print_value(i, theirs);
		return stk_spec_table.keys[i].name;
	}
	return NULL; /* the state does not say */
}

static int refuse_spec(const struct stkd_stream *s, const struct state *state, struct stk_err *err)
{
	_cleanup_(stk_freep) char *then = NULL;
	const char *key = find_difference(s, state, &then);
	_cleanup_(stk_freep) char *now = key ? stk_spec_value(s->spec, key) : NULL;
	char a[33], b[33];

	stk_hex_encode(state->header.spec.bytes, 16, a);
	stk_hex_encode(s->digest.bytes, 16, b);
	return stk_err_set(
		err, -EINVAL,
		"state: the digest of the spec is %s in the state, %s now%s%s%s%.200s%s%s; "
		"allow_changed takes it all the same",
		a, b, key ? "; the first key that differs is " : "", key ? key : "",
		now ? ", now " : "", now ? now : "", then ? ", in the state " : "",
		then ? then : "");
}

static int refuse_data(const struct stkd_stream *s, const struct state *state, struct stk_err *err)
{
	uint64_t before = state->header.samples, now = s->dataset->count;
	char a[33], b[33], samples[96] = "";

	stk_hex_encode(state->header.data.bytes, 16, a);
	stk_hex_encode(s->dataset->fingerprint.bytes, 16, b);
	if (before && before != now)
		snprintf(samples, sizeof(samples), "; it had %" PRIu64 " samples and has %" PRIu64,
			 before, now);
	else if (before)
		snprintf(samples, sizeof(samples),
			 "; it has as many samples (%" PRIu64 ") of other lengths or contents",
			 now);
	return stk_err_set(err, -EINVAL,
			   "state: the fingerprint of the data is %s in the state, %s now%s; "
			   "allow_changed takes it all the same",
			   a, b, samples);
}

static int check_state(const struct stkd_stream *s, const struct state *state, struct stk_err *err)
{
	const struct stk_state_header *theirs = &state->header;

	if (theirs->plan_version != STKD_PLAN_VERSION)
		return stk_err_set(err, -EINVAL,
				   "state: plan version %" PRIu32 " in the state, %d now",
				   theirs->plan_version, STKD_PLAN_VERSION);
	if (memcmp(&theirs->data, &s->dataset->fingerprint, sizeof(theirs->data)))
		return refuse_data(s, state, err);
	if (theirs->seed != s->spec->seed)
		return stk_err_set(err, -EINVAL,
				   "state: seed %" PRIu64 " in the state, %" PRIu64 " now",
				   theirs->seed, s->spec->seed);
	if (memcmp(&theirs->spec, &s->digest, sizeof(theirs->spec)))
		return refuse_spec(s, state, err);
	return 0;
}

static int parse_state(const void *bytes, size_t size, struct state *ret, struct stk_err *err)
{
	int r = stk_state_parse(bytes, size, &ret->header, &ret->cursor, err);

	if (r < 0)
		return r;
	ret->cursor_size = find_prints(ret->cursor, ret->header.cursor_size, &ret->nprints);
	ret->prints = ret->cursor + ret->cursor_size;
	return 0;
}

/* The state is of something else: its cursor may still fit, else its epoch begins again. */
static int take_changed(const struct stkd_stream *s, const struct state *state,
			struct stkd_iter **ret, struct stk_err *err)
{
	struct stk_err why = {0};
	uint64_t epoch = 0;
	int r = stkd_iter_new_from_world(s->plan, state->header.world, state->cursor,
					 state->cursor_size, ret, &why);

	if (r == 0) {
		log_warn("a state of other data or another spec is taken: its cursor fits");
		return 0;
	}
	r = stkd_iter_cursor_epoch(state->cursor, state->cursor_size, &epoch, err);
	if (r == 0)
		r = stkd_iter_new(s->plan, NULL, 0, ret, err);
	if (r == 0)
		r = stkd_iter_seek(*ret, epoch, 0, err);
	if (r == 0)
		log_warn("a state of other data or another spec is taken: epoch %" PRIu64
			 " begins again (%s)",
			 epoch, why.text);
	else
		*ret = stkd_iter_free(*ret);
	return r;
}

int stkd_stream_iter(struct stkd_stream *s, const void *bytes, size_t size, struct stkd_iter **ret,
		     struct stk_err *err)
{
	struct state state = {0};
	struct stk_err why = {0};
	int r;

	if (!size)
		return stkd_iter_new(s->plan, NULL, 0, ret, err);
	r = parse_state(bytes, size, &state, err);
	if (r < 0)
		return r;
	r = check_state(s, &state, &why);
	if (r < 0 && s->spec->allow_changed) {
		log_warn("%s", why.text);
		*ret = NULL;
		return take_changed(s, &state, ret, err);
	}
	if (r < 0)
		return stk_err_set(err, r, "%s", why.text);
	r = stkd_iter_new_from_world(s->plan, state.header.world, state.cursor, state.cursor_size,
				     ret, err);
	/* Each rank's feed comes here; relaxed, as nothing hangs on which of them says it. */
	if (r == 0 && state.header.world != s->world && !stk_spec_is_global(s->spec) &&
	    !atomic_exchange_explicit(&s->said_world, true, memory_order_relaxed))
		log_warn("state of world %" PRIu32 " continued in world %" PRIu32
			 ": each sample still comes once, in other batches",
			 state.header.world, s->world);
	return r;
}
