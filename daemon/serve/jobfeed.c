/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/jobfeed.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/log.h"
#include "daemon/serve/job.h"

#define SLOTS_MIN  2
#define LEAVING_NS UINT64_C(10000000000) /* an attach waits so long for memory that is given back */

struct stkd_job_feed *stkd_job_feed_find(struct stkd_job *job, uint32_t rank)
{
	for (struct stkd_job_feed *jf = job->feeds; jf; jf = jf->next)
		if (jf->rank == rank)
			return jf;
	return NULL;
}

static void unref_feed(void *data)
{
	stkd_feed_unref(data);
}

void stkd_job_feed_unref(struct stkd_server *server, struct stkd_feed *feed)
{
	if (feed)
		stkd_server_free_later(server, unref_feed, feed);
}

static void free_job_feed(struct stkd_job_feed *jf)
{
	/* Relaxed: a sum that only the loop compares. */
	atomic_fetch_add_explicit(&jf->server->memory_leaving, jf->feed->charged,
				  memory_order_relaxed);
	stkd_job_feed_unref(jf->server, jf->feed);
	free(jf->state);
	free(jf->notice);
	free(jf);
}

void stkd_job_feed_drop(struct stkd_job_feed *jf)
{
	struct stkd_job_feed **at = &jf->job->feeds;

	while (*at != jf)
		at = &(*at)->next;
	*at = jf->next;
	jf->job = NULL;
	atomic_store(&jf->feed->progress.cancel, true);
	if (jf->building)
		return;
	stkd_feed_close(jf->feed);
	free_job_feed(jf);
}

/* Building. */

static void memory_freed(void *data, uint64_t bytes)
{
	struct stkd_server *server = data;

	/* Relaxed: sums that only the loop compares. */
	atomic_fetch_sub_explicit(&server->memory_leaving, bytes, memory_order_relaxed);
	atomic_fetch_sub_explicit(&server->memory_used, bytes, memory_order_relaxed);
}

static void feed_fault(void *data)
{
	struct stkd_server *server = data;

	uv_async_send(&server->fault);
}

/* A job that begins where another one has just ended does not get less for that. */
static bool is_worth_waiting(struct stkd_server *server, const struct stkd_conn *conn)
{
	return atomic_load_explicit(&server->memory_leaving, memory_order_relaxed) &&
	       stkd_now_ns() - conn->since_ns < LEAVING_NS;
}

/* Fits the slots into what is left of the budget: fewer than asked for if need be, never below two. */
static int charge(struct stkd_server *server, const struct stkd_conn *conn,
		  const struct stkd_stream *stream, uint32_t *ret_nslots, char **ret_notice,
		  struct stk_err *err)
{
	uint64_t used = atomic_load_explicit(&server->memory_used, memory_order_relaxed);
	uint64_t left = server->memory_limit > used ? server->memory_limit - used : 0;
	uint64_t fit = left / stream->slot_size;
	uint32_t want = stream->spec->prefetch;

	if (fit < want && is_worth_waiting(server, conn))
		return stk_err_set(err, -EAGAIN, "memory: about to be given back");
	if (fit < SLOTS_MIN)
		return stk_err_set(
			err, -ENOMEM,
			"memory: a feed needs %d slots of %" PRIu64 " bytes, %" PRIu64
			" of the limit of %" PRIu64
			" bytes are left; raise memory, or lower rows, tokens or max_length",
			SLOTS_MIN, stream->slot_size, left, server->memory_limit);
	if (fit < want &&
	    asprintf(ret_notice,
		     "memory: prefetch lowered from %" PRIu32 " to %" PRIu64 " slots of %" PRIu64
		     " bytes, %" PRIu64 " of the limit of %" PRIu64 " bytes are left",
		     want, fit, stream->slot_size, left, server->memory_limit) < 0) {
		*ret_notice = NULL;
		return stk_err_set(err, -ENOMEM, "out of memory");
	}
	if (*ret_notice)
		log_warn("%s", *ret_notice);
	*ret_nslots = (uint32_t)STK_MIN(fit, want);
	atomic_fetch_add_explicit(&server->memory_used, *ret_nslots * stream->slot_size,
				  memory_order_relaxed);
	return 0;
}

static void build_work(uv_work_t *work)
{
	struct stkd_job_feed *jf = work->data;

	jf->result = stkd_feed_build(jf->feed, &jf->params, &jf->err);
}

static void build_done(uv_work_t *work, int status)
{
	struct stkd_job_feed *jf = work->data;

	(void)status;
	jf->building = false;
	if (jf->replica == UINT32_MAX)
		jf->waiting_since_ns = stkd_now_ns();
	free(jf->state);
	jf->state = NULL;
	if (jf->job)
		stkd_job_built(jf);
	else
		free_job_feed(jf);
}

static void rewind_work(uv_work_t *work)
{
	struct stkd_job_feed *jf = work->data;

	jf->result = stkd_feed_rewind(jf->feed, jf->state, jf->state_size, &jf->err);
}

bool stkd_job_feed_rewind(struct stkd_job_feed *jf, struct stkd_conn *conn)
{
	if (conn->weighed || !conn->state_size ||
	    stkd_feed_get_state(jf->feed) != STKD_FEED_WAITING)
		return false;
	conn->weighed = true;
	jf->state = malloc(conn->state_size);
	if (!jf->state)
		return false;
	memcpy(jf->state, conn->state, conn->state_size);
	jf->state_size = conn->state_size;
	jf->replica = conn->replica;
	jf->building = true;
	uv_queue_work(&jf->server->loop, &jf->work, rewind_work, build_done);
	return true;
}

/* Slots and workers on one node: next to the client's device, or ranks in turn where none is known. */
static unsigned choose_node(const struct stkd_server *server, const struct stkd_conn *conn)
{
	if (conn->node >= 0)
		return (unsigned)conn->node;
	return server->topology.nnodes ? conn->rank % server->topology.nnodes : 0;
}

static int fill_params(struct stkd_job *job, const struct stkd_conn *conn,
		       struct stkd_feed_params *ret)
{
	const struct stkd_server *server = job->server;
	const struct stk_spec *spec = job->opened->spec;
	unsigned node = choose_node(server, conn);

	*ret = (struct stkd_feed_params){
		.stream = job->opened,
		.pool = server->pools[node],
		.rank = conn->rank,
		.replicas = job->replicas,
		.node = server->topology.nnodes ? server->topology.nodes[node].id : -1,
		.numa = stkd_server_need(server, spec->numa, server->conf->numa),
		.lock = stkd_server_need(server, spec->lock, server->conf->lock),
		.state = conn->state,
		.state_size = conn->state_size,
	};
	return 0;
}

static struct stkd_job_feed *new_feed(struct stkd_job *job, const struct stkd_conn *conn,
				      struct stk_err *err)
{
	struct stkd_job_feed *jf = calloc(1, sizeof(*jf));

	if (!jf || fill_params(job, conn, &jf->params) < 0)
		goto no_memory;
	jf->state = malloc(conn->state_size + 1);
	if (!jf->state)
		goto no_memory;
	memcpy(jf->state, conn->state_size ? conn->state : (const uint8_t *)"", conn->state_size);
	jf->params.state = jf->state;
	if (charge(job->server, conn, job->opened, &jf->params.nslots, &jf->notice, err) < 0)
		goto failed;
	jf->feed = stkd_feed_alloc(&jf->params);
	if (!jf->feed) {
		atomic_fetch_sub_explicit(&job->server->memory_used,
					  jf->params.nslots * job->opened->slot_size,
					  memory_order_relaxed);
		goto no_memory;
	}
	jf->feed->charged = jf->params.nslots * job->opened->slot_size;
	jf->feed->freed = memory_freed;
	jf->feed->fault = feed_fault;
	jf->feed->freed_data = jf->feed->fault_data = job->server;
	jf->server = job->server;
	jf->job = job;
	jf->replica = UINT32_MAX;
	jf->rank = conn->rank;
	jf->next = job->feeds;
	job->feeds = jf;
	return jf;
no_memory:
	stk_err_set(err, -ENOMEM, "out of memory");
failed:
	if (jf) {
		free(jf->state);
		free(jf->notice);
	}
	free(jf);
	return NULL;
}

int stkd_job_feed_start(struct stkd_job *job, const struct stkd_conn *conn, struct stk_err *err)
{
	struct stkd_job_feed *jf = new_feed(job, conn, err);

	if (!jf)
		return err->code;
	jf->building = true;
	jf->work.data = jf;
	uv_queue_work(&job->server->loop, &jf->work, build_work, build_done);
	return 0;
}

/* Timeouts. */

static bool tick_vacant(struct stkd_job_feed *jf)
{
	const struct stkd_conf *conf = jf->job->server->conf;
	struct stkd_feed *feed = jf->feed;
	uint64_t now = stkd_now_ns(), grace = conf->seat_grace_ms * UINT64_C(1000000);
	bool vacant = false;
	char text[160];

	for (uint32_t i = 0; i < feed->replicas; i++) {
		if (feed->seats[i].state != STKD_SEAT_VACANT)
			continue;
		vacant = true;
		if (now - feed->seats[i].vacant_ns < grace)
			continue;
		snprintf(text, sizeof(text),
			 "replica_lost: replica %" PRIu32 " of rank %" PRIu32
			 " left and did not come back within %" PRIu32 " ms",
			 i, feed->rank, conf->seat_grace_ms);
		stkd_feed_fail(feed, -EPIPE, text);
		return false;
	}
	return vacant;
}

static bool tick_waiting(struct stkd_job_feed *jf)
{
	const struct stkd_conf *conf = jf->job->server->conf;
	uint64_t limit = conf->attach_timeout_ms * UINT64_C(1000000);
	uint32_t taken = 0;
	char text[160];

	if (stkd_now_ns() - jf->waiting_since_ns < limit)
		return true;
	for (uint32_t i = 0; i < jf->feed->replicas; i++)
		taken += jf->feed->seats[i].state == STKD_SEAT_TAKEN;
	snprintf(text, sizeof(text),
		 "rank %" PRIu32 ": %" PRIu32 " of %" PRIu32 " replicas attached within %" PRIu32
		 " ms",
		 jf->rank, taken, jf->feed->replicas, conf->attach_timeout_ms);
	stkd_feed_fail(jf->feed, -ETIMEDOUT, text);
	return false;
}

bool stkd_job_feed_tick(struct stkd_job_feed *jf)
{
	if (jf->building)
		return true;
	switch (stkd_feed_get_state(jf->feed)) {
	case STKD_FEED_WAITING:
		return tick_waiting(jf);
	case STKD_FEED_RUNNING:
	case STKD_FEED_ENDED:
		return tick_vacant(jf);
	default:
		return false;
	}
}
