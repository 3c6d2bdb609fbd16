/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/job.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/serve/report.h"
#include "daemon/serve/seek.h"

static void continue_attaches(struct stkd_job *job);

/* Registry. */

static struct stkd_job *find_job(struct stkd_server *server, uid_t uid, const char *stream,
				 const char *name)
{
	for (struct stkd_job *job = server->jobs; job; job = job->next)
		if (job->uid == uid && !strcmp(job->stream, stream) && !strcmp(job->name, name))
			return job;
	return NULL;
}

static void unref_stream(void *data)
{
	stkd_stream_unref(data);
}

static void free_job(struct stkd_job *job)
{
	if (job->opened)
		stkd_server_free_later(job->server, unref_stream, job->opened);
	stk_spec_free(job->spec);
	free(job->stream);
	free(job->name);
	free(job->start);
	free(job);
}

static bool has_conns(const struct stkd_job *job)
{
	for (const struct stkd_conn *c = job->server->conns; c; c = c->next)
		if (c->job == job)
			return true;
	return false;
}

static bool has_rank(const struct stkd_job *job, uint32_t rank)
{
	for (const struct stkd_conn *c = job->server->conns; c; c = c->next)
		if (c->job == job && c->rank == rank)
			return true;
	return false;
}

/*
 * A job without seats and without anybody on the way ends: it is not found any more, and work under
 * way is told to stop.
 */
static void end_if_empty(struct stkd_job *job)
{
	if (job->pinned || has_conns(job))
		return;
	while (job->feeds)
		stkd_job_feed_drop(job->feeds);
	atomic_store(&job->progress.cancel, true);
	if (job->link) {
		stkd_report_masked(job);
		log_info("job %s on %s ended", job->name, job->stream);
		*job->link = job->next;
		if (job->next)
			job->next->link = job->link;
		job->link = NULL;
	}
	if (!job->opening)
		free_job(job);
}

static struct stkd_job *new_job(struct stkd_server *server, const struct stkd_conn *conn,
				struct stkd_attach *attach)
{
	struct stkd_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->server = server;
	job->uid = conn->peer.uid;
	job->stream = strdup(attach->stream);
	job->name = strdup(attach->job);
	job->start = malloc(attach->state_size + 1);
	if (!job->stream || !job->name || !job->start) {
		free_job(job);
		return NULL;
	}
	memcpy(job->start, attach->state_size ? attach->state : (const uint8_t *)"",
	       attach->state_size);
	job->start_size = attach->state_size;
	job->world = attach->world;
	job->replicas = attach->replicas;
	job->spec = STK_STEAL(attach->spec);
	job->limits.header_max = server->conf->header_max;
	job->created_ns = stkd_now_ns();
	job->next = server->jobs;
	job->link = &server->jobs;
	if (job->next)
		job->next->link = &job->next;
	server->jobs = job;
	return job;
}

/* Every later attach brings what the first one fixed. */

static int check_number(const struct stkd_job *job, const char *what, uint32_t theirs,
			uint32_t ours, struct stk_err *err)
{
	if (theirs == ours)
		return 0;
	return stk_err_set(err, -EEXIST,
			   "job %s: %s %" PRIu32 " asked for, the job was created with %" PRIu32,
			   job->name, what, theirs, ours);
}

/* Paths are no part of a digest: the same data may lie elsewhere tomorrow. In one job they are. */
static int check_data(const struct stkd_job *job, const struct stk_spec *theirs,
		      const struct stk_spec *ours, struct stk_err *err)
{
	if (ours->name)
		return 0; /* a configured stream's may change with a reload; the job keeps its own */
	if (theirs->ndata != ours->ndata)
		return stk_err_set(err, -EEXIST,
				   "job %s: data: %zu datasets asked for, the job was created with "
				   "%zu",
				   job->name, theirs->ndata, ours->ndata);
	for (size_t i = 0; i < ours->ndata; i++)
		if (strcmp(theirs->data[i].path, ours->data[i].path))
			return stk_err_set(err, -EEXIST,
					   "job %s: data: %s asked for, the job was created with "
					   "%s",
					   job->name, theirs->data[i].path, ours->data[i].path);
	return 0;
}

static int check_spec(const struct stkd_job *job, const struct stk_spec *theirs,
		      struct stk_err *err)
{
	const struct stk_spec *ours = stkd_job_spec(job);
	_cleanup_(stk_freep) char *a = NULL, *b = NULL;
	const char *key = stk_spec_difference(theirs, ours, &a, &b);

	if (!key)
		return check_data(job, theirs, ours, err);
	return stk_err_set(err, -EEXIST, "job %s: %s: %s asked for, the job was created with %s",
			   job->name, key, a ? a : "nothing", b ? b : "nothing");
}

static int check_joins(const struct stkd_job *job, const struct stkd_attach *attach,
		       struct stk_err *err)
{
	int r = check_number(job, "world", attach->world, job->world, err);

	if (!r)
		r = check_number(job, "replicas", attach->replicas, job->replicas, err);
	if (!r)
		r = check_spec(job, attach->spec, err);
	if (r || attach->rejoin)
		return r;
	if (attach->state_size != job->start_size ||
	    (job->start_size && memcmp(attach->state, job->start, job->start_size)))
		return stk_err_set(err, -EEXIST,
				   "job %s: another start state than the one it was created with "
				   "(%zu and %zu bytes)",
				   job->name, attach->state_size, job->start_size);
	return 0;
}

/* Opening the stream, on a work thread. */

static void open_work(uv_work_t *work)
{
	struct stkd_job *job = work->data;

	job->result = stkd_stream_open(job->spec, job->name, job->world, &job->limits,
				       &job->progress, &job->opened, &job->err);
}

/* @jf: only those who wait for it; NULL: all. */
static void refuse_all(struct stkd_job *job, const struct stk_err *err,
		       const struct stkd_job_feed *jf)
{
	for (struct stkd_conn *c = job->server->conns, *next; c; c = next) {
		next = c->next;
		if (c->job != job || !c->attaching || (jf && c->rank != jf->rank))
			continue;
		if (jf && jf->replica != UINT32_MAX && c->replica != jf->replica)
			continue;
		c->job = NULL;
		c->attaching = false;
		stkd_conn_refuse(c, err);
	}
}

static void open_done(uv_work_t *work, int status)
{
	struct stkd_job *job = work->data;

	(void)status;
	job->opening = false;
	if (job->result == 0)
		job->spec = NULL; /* the stream has it */
	if (!job->link) {
		end_if_empty(job);
	} else if (job->result < 0) {
		log_warn("job %s on %s refused: %s", job->name, job->stream, job->err.text);
		refuse_all(job, &job->err, NULL);
		end_if_empty(job);
	} else {
		log_info("job %s on %s: %" PRIu64 " samples, %" PRIu64
			 " steps an epoch, world %" PRIu32,
			 job->name, job->stream, stkd_plan_counts(job->opened->plan)->samples,
			 stkd_plan_counts(job->opened->plan)->steps, job->world);
		continue_attaches(job);
	}
}

static void add_notice(char *text, size_t size, const char *notice)
{
	size_t n = strlen(text);

	if (notice)
		snprintf(text + n, size - n, "%s%s", n ? "; " : "", notice);
}

/* Nobody reads a private daemon's log: what it warned of is told, too. */
static void make_notice(const struct stkd_job_feed *jf, char *text, size_t size)
{
	text[0] = '\0';
	add_notice(text, size, jf->notice);
	for (unsigned i = 0; jf->job->server->private_mode && stkd_warning_at(i); i++)
		add_notice(text, size, stkd_warning_at(i));
}

/* The last reply of an attach, with its descriptors. */
static bool reply_attached(struct stkd_conn *conn, struct stkd_job_feed *jf)
{
	struct stkd_feed *feed = jf->feed;
	struct stkd_seat *seat = &feed->seats[conn->replica];
	const int fds[] = {feed->control_ro_fd, feed->slots.fd, seat->file.fd, seat->kick_fd,
			   seat->wake_fds[1]};
	char notice[1024];
	json_t *reply;

	make_notice(jf, notice, sizeof(notice));
	reply = json_pack(
		"{s:i, s:i, s:s, s:i, s:s, s:s, s:i, s:I, s:I, s:i, s:I, s:I, s:I, s:i, s:b, s:s*}",
		"protocol", STK_MSG_PROTOCOL, "layout", STK_SHM_MAJOR, "release", STK_RELEASE,
		"plan_version", STKD_PLAN_VERSION, "stream", jf->job->stream, "job", jf->job->name,
		"seat", (int)conn->replica, "first", (json_int_t)seat->shm->first, "era",
		(json_int_t)feed->era, "pid", (int)getpid(), "control_size",
		(json_int_t)feed->control.size, "slots_size", (json_int_t)feed->slots.size,
		"seat_size", (json_int_t)seat->file.size, "node", feed->slots.node, "locked",
		feed->slots.locked, "notice", notice[0] ? notice : NULL);

	return stkd_conn_reply_fds(conn, reply, fds, STK_ARRAY_SIZE(fds));
}

static void take_seat(struct stkd_conn *conn, struct stkd_job_feed *jf)
{
	struct stk_err err;

	conn->attaching = false;
	if (stkd_feed_take_seat(jf->feed, conn->replica, &conn->peer, conn, &err) < 0) {
		conn->job = NULL;
		stkd_conn_refuse(conn, &err);
		if (!has_rank(jf->job, jf->rank))
			stkd_job_feed_drop(jf);
		return;
	}
	conn->seated = true;
	conn->feed = stkd_feed_ref(jf->feed);
	conn->server->nseats++;
	if (stkd_conn_watch_kick(conn, jf->feed->seats[conn->replica].kick_fd) < 0) {
		stkd_conn_close(conn, "out of descriptors");
		return;
	}
	log_info("job %s on %s: rank %" PRIu32 " replica %" PRIu32 " attached, pid %d",
		 jf->job->name, jf->job->stream, conn->rank, conn->replica, (int)conn->peer.pid);
	reply_attached(conn, jf);
}

/* One waiting attach: as far as it can go now. */
static void continue_attach(struct stkd_job *job, struct stkd_conn *conn)
{
	struct stkd_job_feed *jf = stkd_job_feed_find(job, conn->rank);
	struct stk_err err;
	int r;

	if (jf && jf->building)
		return;
	if (jf) {
		if (!conn->rejoin || !stkd_job_feed_rewind(jf, conn))
			take_seat(conn, jf);
		return;
	}
	conn->weighed = true; /* it is built from this one's state */
	r = stkd_job_feed_start(job, conn, &err);
	if (r == -EAGAIN) {
		atomic_store(&job->progress.stage, "waiting for memory"); /* the tick tries again */
	} else if (r < 0) {
		conn->job = NULL;
		conn->attaching = false;
		stkd_conn_refuse(conn, &err);
	}
}

/* The job may be gone afterwards: a client that hung up takes its seat with it when we reply. */
static void continue_attaches(struct stkd_job *job)
{
	job->pinned++;
	for (struct stkd_conn *c = job->server->conns, *next; c; c = next) {
		next = c->next;
		if (c->job == job && c->attaching && !c->closing)
			continue_attach(job, c);
	}
	stkd_server_want_tick(job->server);
	job->pinned--;
	end_if_empty(job);
}

void stkd_job_built(struct stkd_job_feed *jf)
{
	struct stkd_job *job = jf->job;

	if (jf->result < 0) {
		log_warn("job %s rank %" PRIu32 " refused: %s", job->name, jf->rank, jf->err.text);
		refuse_all(job, &jf->err, jf);
		if (jf->replica == UINT32_MAX || !has_rank(job, jf->rank))
			stkd_job_feed_drop(jf);
	}
	continue_attaches(job);
}

static int check_seat(struct stkd_job *job, const struct stkd_attach *attach, struct stk_err *err)
{
	struct stkd_job_feed *jf = stkd_job_feed_find(job, attach->rank);

	/* Two on their way to one seat: the second is told at once. */
	for (const struct stkd_conn *c = job->server->conns; c; c = c->next)
		if (c->job == job && c->rank == attach->rank && c->replica == attach->replica &&
		    !c->closing)
			return stk_err_set(err, -EBUSY,
					   "job %s: rank %" PRIu32 " replica %" PRIu32
					   " is taken by pid %d of user %u%s%" PRIu64 " s",
					   job->name, attach->rank, attach->replica,
					   (int)c->peer.pid, (unsigned)c->peer.uid,
					   c->seated ? " since " : ", attaching since ",
					   (stkd_now_ns() -
					    (jf && c->seated ? jf->feed->seats[c->replica].since_ns
							     : job->created_ns)) /
						   UINT64_C(1000000000));
	return 0;
}

static int join_or_create(struct stkd_conn *conn, struct stkd_attach *attach, struct stkd_job **ret,
			  struct stk_err *err)
{
	struct stkd_server *server = conn->server;
	struct stkd_job *job = find_job(server, conn->peer.uid, attach->stream, attach->job);
	int r;

	if (job) {
		r = check_joins(job, attach, err);
		if (!r)
			r = check_seat(job, attach, err);
		*ret = job;
		return r;
	}
	job = new_job(server, conn, attach);
	if (!job)
		return stk_err_set(err, -ENOMEM, "out of memory");
	job->opening = true;
	job->work.data = job;
	atomic_store(&job->progress.stage, "opening shards");
	uv_queue_work(&server->loop, &job->work, open_work, open_done);
	*ret = job;
	return 0;
}

int stkd_job_attach(struct stkd_conn *conn, struct stkd_attach *attach, struct stk_err *err)
{
	struct stkd_job *job = NULL;
	uint8_t *state = malloc(attach->state_size + 1);
	int r;

	if (!state)
		return stk_err_set(err, -ENOMEM, "out of memory");
	r = join_or_create(conn, attach, &job, err);
	if (r < 0) {
		free(state);
		return r;
	}
	memcpy(state, attach->state_size ? attach->state : (const uint8_t *)"", attach->state_size);
	free(conn->state);
	conn->state = state;
	conn->state_size = attach->state_size;
	conn->rank = attach->rank;
	conn->replica = attach->replica;
	conn->replicas = attach->replicas;
	conn->rejoin = attach->rejoin;
	conn->weighed = false;
	conn->since_ns = stkd_now_ns();
	conn->node = attach->node;
	conn->job = job;
	conn->attaching = true;
	if (!job->opening)
		continue_attaches(job);
	stkd_server_want_tick(conn->server);
	return 0;
}

void stkd_job_detach(struct stkd_conn *conn)
{
	struct stkd_job *job = conn->job;
	struct stkd_job_feed *jf;
	bool closed = false;

	if (!job)
		return;
	if (conn->seated) {
		stkd_feed_leave_seat(conn->feed, conn->replica);
		closed = stkd_feed_get_state(conn->feed) == STKD_FEED_CLOSED;
		conn->server->nseats--;
		log_info("job %s on %s: rank %" PRIu32 " replica %" PRIu32 " left, pid %d",
			 job->name, job->stream, conn->rank, conn->replica, (int)conn->peer.pid);
	}
	stkd_job_feed_unref(conn->server, conn->feed);
	conn->feed = NULL;
	conn->seated = conn->attaching = false;
	conn->job = NULL;
	jf = stkd_job_feed_find(job, conn->rank);
	if (jf && (closed || !has_rank(job, conn->rank)))
		stkd_job_feed_drop(jf);
	if (job->opening || conn->server->stopping)
		end_if_empty(job);
	else
		continue_attaches(job); /* who waited for what is gone now begins anew */
	stkd_server_want_tick(conn->server);
}

/* Progress. */

static void send_progress(struct stkd_conn *conn, const struct stkd_progress *p)
{
	/* Relaxed: figures for the eye. */
	const char *stage = atomic_load_explicit(&p->stage, memory_order_relaxed);

	stkd_conn_progress(
		conn,
		json_pack("{s:{s:s, s:I, s:I}}", "progress", "stage", stage ? stage : "waiting",
			  "done", (json_int_t)atomic_load_explicit(&p->done, memory_order_relaxed),
			  "total",
			  (json_int_t)atomic_load_explicit(&p->total, memory_order_relaxed)));
}

bool stkd_job_tick(struct stkd_job *job)
{
	bool again = job->opening;

	job->pinned++; /* telling progress may find that the last client has gone */
	if (!job->opening)
		continue_attaches(job); /* those that wait for memory */
	for (struct stkd_conn *c = job->server->conns, *next; c; c = next) {
		struct stkd_job_feed *jf;

		next = c->next;
		if (c->job != job || !c->attaching || c->closing)
			continue;
		again = true;
		jf = stkd_job_feed_find(job, c->rank);
		send_progress(c, jf ? &jf->feed->progress : &job->progress);
	}
	for (struct stkd_job_feed *jf = job->feeds; jf; jf = jf->next)
		again |= stkd_job_feed_tick(jf);
	job->pinned--;
	end_if_empty(job);
	return again;
}

void stkd_job_faults(struct stkd_server *server)
{
	for (struct stkd_conn *c = server->conns, *next; c; c = next) {
		char reason[sizeof(c->feed->seats[0].fault)] = "";

		next = c->next;
		if (!c->seated || c->closing)
			continue;
		pthread_mutex_lock(&c->feed->lock);
		memcpy(reason, c->feed->seats[c->replica].fault, sizeof(reason));
		pthread_mutex_unlock(&c->feed->lock);
		if (reason[0])
			stkd_conn_close(c, reason);
		else
			stkd_seek_failed(c);
	}
}
