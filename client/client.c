/* SPDX-License-Identifier: Apache-2.0 */
#include "client/client.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "client/socket.h"

int stk__client_usable(struct stk_client *c)
{
	if (c->generation == stk__fork_generation())
		return 0;
	return stk_err_set(&c->err, -ECHILD,
			   "this client belongs to the process that forked; open one here");
}

void stk__client_set_state(struct stk_client *c, const void *cursor, uint32_t size)
{
	struct stk_state_header header = c->session->state;

	header.cursor_size = size;
	memcpy(c->state, &header, sizeof(header));
	memcpy(c->state + sizeof(header), cursor, size);
	c->state_size = sizeof(header) + size;
}

void stk__client_set_start(struct stk_client *c, const void *state, size_t size)
{
	if (size <= sizeof(struct stk_state_header)) {
		stk__client_set_state(c, c->session->start, c->session->geometry.start_size);
		return;
	}
	memcpy(c->state, state, size);
	c->state_size = size;
}

static int watch(const struct stk_client *c, int operation, int fd, uint32_t events)
{
	struct epoll_event event = {.events = events};

	return epoll_ctl(c->epoll, operation, fd, &event) < 0 ? -errno : 0;
}

/*
 * The daemon writes to the wake descriptor only once next() has asked it to. Until then it polls
 * writable, which it always is, so that nobody sleeps on what was ready before.
 */
static int watch_session(struct stk_client *c)
{
	int r = watch(c, EPOLL_CTL_ADD, c->session->wake, EPOLLIN | EPOLLOUT);

	c->armed = false;
	if (r == 0)
		r = watch(c, EPOLL_CTL_ADD, c->session->sock, EPOLLRDHUP);
	return r < 0 ? stk_err_set(&c->err, r, "epoll: %s", strerror(-r)) : 0;
}

void stk__client_arm(struct stk_client *c)
{
	if (!c->armed && watch(c, EPOLL_CTL_MOD, c->session->wake, EPOLLIN) == 0)
		c->armed = true;
}

static bool is_crowded(uint32_t seats)
{
	cpu_set_t set;

	return seats > 1 && sched_getaffinity(0, sizeof(set), &set) == 0 &&
	       (unsigned)CPU_COUNT(&set) <= seats;
}

int stk__client_adopt(struct stk_client *c, struct stk__session *session)
{
	c->session = session;
	c->era = c->attached.era;
	c->waiting = c->eager = c->hungry = false;
	c->geometry = session->geometry;
	c->crowded = is_crowded(c->geometry.replicas);
	if (c->schema && !strcmp(c->schema->text, session->schema->text)) {
		stk__schema_unref(session->schema);
		session->schema = stk__schema_ref(c->schema);
	} else {
		session->schema->older = c->schema;
		c->schema = stk__schema_ref(session->schema);
	}
	return c->epoll >= 0 ? watch_session(c) : 0;
}

static int client_open(struct stk_client *c, const struct stk_client_opts *opts)
{
	struct stk__session *session;
	int r;

	r = stk__request_init(&c->request, opts, &c->err);
	if (r < 0)
		return r;
	r = stk__attach(&c->request, &session, &c->attached, NULL, &c->err);
	if (r < 0)
		return r;
	r = stk__client_adopt(c, session);
	stk__client_set_start(c, c->request.state, c->request.state_size);
	return r;
}

int stk_client_open(const struct stk_client_opts *opts, struct stk_client **ret_client, char *error,
		    size_t error_size)
{
	struct stk_client *c = calloc(1, sizeof(*c));
	int r;

	if (!c) {
		if (error && error_size)
			snprintf(error, error_size, "client: no memory");
		return -ENOMEM;
	}
	c->epoll = -1;
	c->generation = stk__fork_generation();
	r = client_open(c, opts);
	if (r < 0) {
		if (error && error_size)
			snprintf(error, error_size, "%s", c->err.text);
		stk_client_close(c);
		return r;
	}
	*ret_client = c;
	return 0;
}

struct stk_client *stk_client_close(struct stk_client *c)
{
	if (!c)
		return NULL;
	if (c->session) {
		stk__session_end(c->session);
		stk__session_unref(c->session);
	}
	stk_close(c->epoll);
	stk__schema_unref(c->schema);
	stk__request_deinit(&c->request);
	free(c->attached.socket);
	free(c->attached.notice);
	free(c);
	return NULL;
}

int stk_client_state(const struct stk_client *c, void *state, size_t room)
{
	if (c->state_size > room)
		return -ENOSPC;
	memcpy(state, c->state, c->state_size);
	return (int)c->state_size;
}

int stk_client_shapes(const struct stk_client *c, struct stk_shape *shapes, uint32_t room)
{
	uint32_t n = STK_MIN(room, c->schema->nshapes);

	for (uint32_t i = 0; i < n; i++) {
		const struct stk_shape_info *of = &c->schema->shapes[i];

		shapes[i] = (struct stk_shape){of->edge, of->rows, of->width_min, of->width_max,
					       of->width_multiple};
	}
	return (int)c->schema->nshapes;
}

int stk_client_shape(const struct stk_client *c, uint32_t i, struct stk_shape_info *ret)
{
	size_t size = STK_MIN(ret->size, sizeof(*ret));

	if (size < sizeof(ret->size))
		return -EINVAL;
	if (i >= c->schema->nshapes)
		return -ERANGE;
	memcpy(ret, &c->schema->shapes[i], size);
	ret->size = size;
	return 0;
}

static void fill_counts(struct stk_client_info *i, const struct stk__schema *schema)
{
	json_int_t epochs = json_integer_value(json_object_get(schema->root, "epochs"));

	i->samples = stk__schema_count(schema, "samples");
	i->steps_per_epoch = stk__schema_count(schema, "steps");
	i->overlong_dropped = stk__schema_count(schema, "overlong_dropped");
	i->truncated = stk__schema_count(schema, "truncated");
	i->promoted = stk__schema_count(schema, "promoted");
	i->tail_dropped = stk__schema_count(schema, "tail_dropped");
	i->masked = stk__schema_count(schema, "masked");
	i->epochs = epochs < 0 ? 0 : (uint64_t)epochs;
}

int stk_client_info(const struct stk_client *c, struct stk_client_info *ret)
{
	struct stk_client_info i = {
		.size = STK_MIN(ret->size, sizeof(i)),
		.rank = c->request.rank,
		.world = c->request.world,
		.replica = c->request.replica,
		.replicas = c->request.replicas,
		.slots = c->geometry.nslots,
		.micros = c->geometry.micros,
		.slot_size = c->geometry.slot_size,
		.stream = c->schema->stream,
		.job = c->request.job,
		.socket = c->attached.socket,
		.daemon_pid = c->attached.daemon_pid,
		.private_daemon = c->request.private_daemon,
		.schema = c->schema->text,
		.notice = c->attached.notice,
	};

	if (ret->size < sizeof(ret->size))
		return -EINVAL;
	fill_counts(&i, c->schema);
	memcpy(ret, &i, i.size);
	return 0;
}

int stk_client_fd(struct stk_client *c)
{
	int r = stk__client_usable(c);

	if (r < 0)
		return r;
	if (c->epoll >= 0)
		return c->epoll;
	if (!c->session)
		return c->final < 0 ? c->final : -EPIPE;
	c->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (c->epoll < 0)
		return stk_err_set(&c->err, -errno, "epoll: %m");
	r = watch_session(c);
	if (r < 0) {
		stk_closep(&c->epoll);
		return r;
	}
	return c->epoll;
}

const char *stk_client_error(const struct stk_client *c)
{
	return c->err.text;
}
