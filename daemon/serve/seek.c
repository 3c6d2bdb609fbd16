/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/seek.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/serve/jobfeed.h"

/* Belongs to the work thread until it is done; holds its connection and the feed. */
struct seek {
	uv_work_t work;
	struct stkd_conn *conn;
	struct stkd_feed *feed;
	uint8_t state[STK_STATE_SIZE_MAX];
	size_t size;
	struct stkd_iter *iter;
	int result;
	struct stk_err err;
};

static void find_place(uv_work_t *work)
{
	struct seek *s = work->data;

	s->result = stkd_stream_iter(s->feed->stream, s->state, s->size, &s->iter, &s->err);
}

/* Answers all seats that wait for this era. */
static void answer(struct stkd_conn *conn, uint32_t era)
{
	struct stkd_feed *feed = conn->feed;
	struct stkd_conn *waiting[STK_SHM_MAX_SEATS];
	unsigned n = 0;

	pthread_mutex_lock(&feed->lock);
	for (struct stkd_conn *c = conn->server->conns; c; c = c->next) {
		if (!c->seated || c->feed != feed || !feed->seats[c->replica].seek_pending)
			continue;
		feed->seats[c->replica].seek_pending = false;
		waiting[n++] = c;
	}
	pthread_mutex_unlock(&feed->lock);
	for (unsigned i = 0; i < n; i++)
		stkd_conn_reply(waiting[i], json_pack("{s:I}", "era", (json_int_t)era));
}

static void ask_feed(struct seek *s)
{
	struct stkd_conn *conn = s->conn;
	uint32_t era;
	int r = s->result;

	if (r == 0)
		r = stkd_feed_seek(s->feed, conn->replica, s->state, s->size, s->iter, &era,
				   &s->err);
	if (r == 1) {
		s->iter = NULL;
		answer(conn, era);
	} else if (r < 0) {
		stkd_conn_refuse(conn, &s->err);
	}
}

static void place_found(uv_work_t *work, int status)
{
	struct seek *s = work->data;
	struct stkd_conn *conn = s->conn;

	(void)status;
	conn->seeking = false;
	if (!conn->closing)
		ask_feed(s);
	stkd_iter_free(s->iter);
	stkd_job_feed_unref(conn->server, s->feed);
	free(s);
	stkd_conn_drop(conn);
}

static int start(struct stkd_conn *conn, const char *text, struct stk_err *err)
{
	struct seek *s;
	int size;

	if (!conn->seated)
		return stk_err_set(err, -EINVAL, "seek: this connection holds no seat");
	if (conn->seeking)
		return stk_err_set(err, -EBUSY, "seek: the one before is not answered yet");
	s = calloc(1, sizeof(*s));
	if (!s)
		return stk_err_set(err, -ENOMEM, "out of memory");
	size = text ? stk_hex_decode(text, s->state, sizeof(s->state)) : -EINVAL;
	if (size < 0) {
		free(s);
		return stk_err_set(err, -EINVAL,
				   "seek: state is not hexadecimal text of at most %d bytes",
				   STK_STATE_SIZE_MAX);
	}
	s->size = (size_t)size;
	s->conn = conn;
	s->feed = stkd_feed_ref(conn->feed);
	s->work.data = s;
	conn->seeking = true;
	stkd_conn_hold(conn);
	uv_queue_work(&conn->server->loop, &s->work, find_place, place_found);
	return 0;
}

void stkd_seek_call(struct stkd_conn *conn, const json_t *parameters)
{
	struct stk_err err;

	if (start(conn, json_string_value(json_object_get(parameters, "state")), &err) < 0)
		stkd_conn_refuse(conn, &err);
}

void stkd_seek_failed(struct stkd_conn *conn)
{
	struct stkd_feed *feed = conn->feed;
	struct stk_err err;
	bool waits;

	pthread_mutex_lock(&feed->lock);
	waits = feed->state == STKD_FEED_FAILED && feed->seats[conn->replica].seek_pending;
	if (waits) {
		feed->seats[conn->replica].seek_pending = false;
		err = feed->failed;
	}
	pthread_mutex_unlock(&feed->lock);
	if (!waits)
		return;
	stk_err_prefix(&err, "seek: ");
	stkd_conn_refuse(conn, &err);
}
