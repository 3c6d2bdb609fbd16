/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stk_client_why(): who is waited for. Reads the daemon's figures of this client's queue. Runs on
 * the client's thread.
 */
#include "client/client.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_MS 2000

static json_int_t number(const json_t *object, const char *name)
{
	return json_integer_value(json_object_get(object, name));
}

static bool is_text(const json_t *object, const char *name, const char *text)
{
	const char *s = json_string_value(json_object_get(object, name));

	return s && !strcmp(s, text);
}

static bool has_our_seat(const json_t *queue)
{
	const json_t *seats = json_object_get(queue, "seats"), *seat;
	size_t i;

	json_array_foreach (seats, i, seat)
		if (number(seat, "pid") == getpid())
			return true;
	return false;
}

/* The queue of this client's rank, borrowed, or NULL. One job name may stand for several streams. */
static const json_t *find_queue(const struct stk_client *c, const json_t *reply)
{
	const json_t *queues = json_object_get(reply, "queues"), *queue, *found = NULL;
	size_t i;

	json_array_foreach (queues, i, queue)
		if (is_text(queue, "job", c->request.job) &&
		    number(queue, "rank") == (json_int_t)c->request.rank &&
		    (!found || has_our_seat(queue)))
			found = queue;
	return found;
}

/* Whoever of the seats holds the most. */
static json_int_t holder(const json_t *queue)
{
	const json_t *seats = json_object_get(queue, "seats"), *seat;
	json_int_t most = -1, pid = 0;
	size_t i;

	json_array_foreach (seats, i, seat) {
		if (number(seat, "leased") > most) {
			most = number(seat, "leased");
			pid = number(seat, "pid");
		}
	}
	return pid;
}

/* The workers' side of a batch that is being filled. An older daemon tells nothing of storage. */
static void explain_filling(const json_t *q, char *text, size_t size)
{
	const json_t *work = json_object_get(q, "work");
	json_int_t busy = number(work, "busy"), blocked = number(work, "blocked");
	json_int_t all = number(work, "range_ms"), storage = number(work, "storage_ms");
	int n = snprintf(text, size,
			 "%s: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
			 " slots are being filled and none is ready",
			 blocked || storage > all / 2 ? "storage" : "assembly",
			 number(q, "filling"), number(q, "slots"));

	if (blocked && n > 0 && (size_t)n < size)
		n += snprintf(
			text + n, size - (size_t)n,
			"; %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
			" workers on it wait for a shard to be read, for %" JSON_INTEGER_FORMAT
			" ms so far",
			blocked, busy, number(work, "blocked_ms"));
	if (all && n > 0 && (size_t)n < size)
		snprintf(text + n, size - (size_t)n,
			 "; waiting for shards took %" JSON_INTEGER_FORMAT
			 " %% of the workers' time",
			 100 * storage / all);
}

static void explain(const struct stk_client *c, const json_t *q, char *text, size_t size)
{
	json_int_t slots = number(q, "slots"), leased = number(q, "leased");
	json_int_t ready = number(q, "ready"), filling = number(q, "filling");
	const char *state = json_string_value(json_object_get(q, "state"));

	if (is_text(q, "state", "waiting"))
		snprintf(text, size,
			 "ring: %zu of %" PRIu32 " seats of rank %" PRIu32
			 " are taken, the others have not attached",
			 json_array_size(json_object_get(q, "seats")), c->request.replicas,
			 c->request.rank);
	else if (leased >= slots)
		snprintf(text, size,
			 "trainer: all %" JSON_INTEGER_FORMAT
			 " slots are held and not released, most of them by pid "
			 "%" JSON_INTEGER_FORMAT,
			 slots, holder(q));
	else if (ready)
		snprintf(text, size,
			 "trainer: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
			 " slots are ready",
			 ready, slots);
	else if (filling)
		explain_filling(q, text, size);
	else
		snprintf(text, size,
			 "plan: %" JSON_INTEGER_FORMAT " of %" JSON_INTEGER_FORMAT
			 " slots are free and nothing is being filled, feed is %s",
			 number(q, "free"), slots, state ? state : "unknown");
}

int stk_client_why(struct stk_client *c, char *text, size_t size)
{
	_cleanup_(stk_freep) char *reply = NULL;
	char error[256] = "";
	const json_t *queue;
	json_t *json;
	int r = stk_control_call(c->attached.socket, STK_MSG_INTERFACE ".Queues", NULL, ANSWER_MS,
				 &reply, error, sizeof(error));

	if (r < 0) {
		snprintf(text, size, "stokerd: no answer at %s: %s", c->attached.socket, error);
		return r;
	}
	json = json_loads(reply, 0, NULL);
	queue = find_queue(c, json);
	if (queue)
		explain(c, queue, text, size);
	else
		snprintf(text, size, "stokerd: it has no queue of job %s rank %" PRIu32,
			 c->request.job, c->request.rank);
	json_decref(json);
	return 0;
}
