/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens when the daemon is gone, and the seek: what goes over the connection after the
 * attach. Runs on the client's thread.
 */
#include "client/client.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "client/socket.h"

#define BACKOFF_FIRST_MS 20
#define BACKOFF_MAX_MS   1000
#define SILENCE_MIN_MS   1000

/* A daemon that ends a seat on purpose says why before it hangs up. */
static void last_words(struct stk_client *c)
{
	_cleanup_(stk_msg_in_deinit) struct stk_msg_in in = {0};
	struct stk_err err = {0};
	json_t *message;
	int r;

	do {
		r = stk__receive(c->session->sock, &in, 0, &message, &err);
		if (r == 0)
			json_decref(message);
	} while (r == 0);
	if (r == -EPIPE || r == -ETIMEDOUT || r == -EBADMSG)
		stk_err_set(&c->err, -EPIPE, "stokerd at %s is gone (pid %d)", c->attached.socket,
			    (int)c->attached.daemon_pid);
	else
		stk_err_set(&c->err, -EPIPE, "stokerd ended this seat: %s", err.text);
}

int stk__client_lost(struct stk_client *c)
{
	last_words(c);
	stk__session_end(c->session);
	stk__session_unref(c->session);
	c->session = NULL;
	if (!c->request.reconnect_ms)
		c->final = -EPIPE;
	return -EPIPE;
}

/* What the stream was when we came: the resolved keys, after the last batch that was returned. */
static int as_resumed(struct stk_client *c)
{
	json_t *spec = json_object_get(c->schema->root, "spec");
	json_t *copy;

	memcpy(c->request.state, c->state, c->state_size);
	c->request.state_size = c->state_size;
	c->request.rejoin = true;
	if (!json_is_object(spec))
		return 0;
	copy = json_copy(spec);
	if (!copy)
		return stk_err_set(&c->err, -ENOMEM, "attach anew: no memory");
	json_object_del(copy, "name");
	if (c->request.stream)
		json_object_del(copy,
				"data"); /* a configured stream's data is the configuration's */
	json_decref(c->request.spec);
	c->request.spec = copy;
	return 0;
}

static int attach_once(struct stk_client *c, int64_t deadline_ns, bool *ret_reached)
{
	struct stk__attached attached = {0};
	struct stk__session *session;
	int saved = c->request.attach_timeout_ms;
	int left = STK_MAX(stk__left_ms(deadline_ns), SILENCE_MIN_MS);
	int r;

	c->request.attach_timeout_ms = saved < 0 ? left : STK_MIN(saved, left);
	r = stk__attach(&c->request, &session, &attached, ret_reached, &c->err);
	c->request.attach_timeout_ms = saved;
	if (r < 0)
		return r;
	free(attached.socket); /* the same; the first one was handed out */
	free(attached.notice);
	c->attached.daemon_pid = attached.daemon_pid;
	c->attached.era = attached.era;
	c->resumed = true;
	return stk__client_adopt(c, session);
}

/* Worth another try: nobody listens yet, or the daemon has not noticed that our seat is vacant. */
static bool is_passing(const struct stk_client *c, int r, bool reached)
{
	if (r == -EBUSY)
		return true;
	return !c->request.private_daemon && (!reached || r == -EPIPE);
}

int stk__client_reattach(struct stk_client *c)
{
	int64_t deadline = stk__deadline(c->request.reconnect_ms);
	int pause_ms = BACKOFF_FIRST_MS;
	bool reached = false;
	int r;

	if (c->final)
		return c->final;
	/* A private daemon that dies again before it gave a single batch would do so for ever. */
	if (c->request.private_daemon && c->restarted)
		return c->final = stk_err_set(
			       &c->err, -EPIPE,
			       "the private stokerd died twice without a batch in between");
	r = as_resumed(c);
	if (r < 0)
		return c->final = r;
	c->restarted = true;
	for (;;) {
		r = attach_once(c, deadline, &reached);
		if (r == 0)
			return 0;
		if (r == -EINTR || stk__is_interrupted(&c->request)) {
			c->restarted = false; /* the next call tries anew */
			return stk_err_set(&c->err, -EINTR, "interrupted while attaching anew");
		}
		if (!is_passing(c, r, reached) || !stk__left_ms(deadline))
			break;
		poll(NULL, 0, STK_MIN(pause_ms, stk__left_ms(deadline)));
		pause_ms = STK_MIN(2 * pause_ms, BACKOFF_MAX_MS);
	}
	c->final = is_passing(c, r, reached) && r != -EBUSY ? -EPIPE : r;
	c->err.code = c->final;
	stk_err_prefix(&c->err, "connection lost, and not attached anew within %d ms: ",
		       c->request.reconnect_ms);
	return c->final;
}

/* The reply's era, or a negative errno. */
static int ask_seek(struct stk_client *c, const char *state, uint32_t *ret_era)
{
	_cleanup_(stk_msg_in_deinit) struct stk_msg_in in = {0};
	json_t *message, *reply;
	int timeout_ms = c->request.attach_timeout_ms;
	int r;

	message =
		stk_msg_call(STK_MSG_INTERFACE ".Seek", json_pack("{s:s}", "state", state), false);
	if (!message)
		return stk_err_set(&c->err, -ENOMEM, "seek: no memory");
	r = stk_msg_send(c->session->sock, message, NULL, 0,
			 timeout_ms < 0 ? INT32_MAX : timeout_ms, &c->err);
	json_decref(message);
	if (r == 0)
		r = stk__await(&c->request, c->session->sock, &in, timeout_ms, &reply, &c->err);
	if (r < 0)
		return r == -ECONNRESET ? -EPIPE : r;
	*ret_era = (uint32_t)json_integer_value(
		json_object_get(json_object_get(reply, "parameters"), "era"));
	json_decref(reply);
	return 0;
}

/* After these the connection may still bring an answer that nobody waits for: it is over. */
static bool is_broken(int r)
{
	return r == -ETIMEDOUT || r == -EINTR || r == -EPIPE || r == -EBADMSG || r == -EMSGSIZE ||
	       r == -EMFILE;
}

static int seek_connected(struct stk_client *c, const char *state, uint32_t *ret_era)
{
	struct stk_err err;
	int r = c->session ? ask_seek(c, state, ret_era) : -EPIPE;

	if (r == -EPIPE && c->request.reconnect_ms) {
		if (c->session)
			stk__client_lost(c);
		r = stk__client_reattach(c);
		if (r == 0)
			r = ask_seek(c, state, ret_era);
	}
	if (r < 0 && is_broken(r) && c->session) {
		err = c->err;
		stk__client_lost(c);
		c->err = err;
	}
	return r;
}

int stk_client_seek(struct stk_client *c, const void *state, size_t size)
{
	char text[2 * STK_STATE_SIZE_MAX + 1];
	struct stk_state_header header;
	const uint8_t *cursor;
	uint32_t era;
	int r = stk__client_usable(c);

	if (r < 0)
		return r;
	if (!c->session && c->final)
		return c->final;
	if (size > STK_STATE_SIZE_MAX)
		return stk_err_set(&c->err, -EINVAL, "state: %zu bytes, at most %zu", size,
				   (size_t)STK_STATE_SIZE_MAX);
	if (size) {
		r = stk_state_parse(state, size, &header, &cursor, &c->err);
		if (r < 0)
			return r;
	}
	stk_hex_encode(state, size, text);
	r = seek_connected(c, text, &era);
	if (r < 0)
		return r;
	c->era = era;
	stk__client_catch_up(c);
	c->final = 0;
	c->resumed = false;
	c->last = (struct stk__position){0};
	stk__client_set_start(c, state, size);
	return 0;
}
