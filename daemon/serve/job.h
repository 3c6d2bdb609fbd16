/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job: one training run on a stream, known by (uid, stream or path, job name). The first attach
 * creates it and fixes world, replicas, spec and start; it lives while it has a seat or somebody
 * attaches. Opening and populating run on work threads; the job belongs to the loop.
 */
#ifndef STKD_JOB_H
#define STKD_JOB_H

#include "daemon/serve/conn.h"
#include "daemon/serve/jobfeed.h"

struct stkd_job {
	struct stkd_job *next,
		**link; /* in server->jobs; link NULL: it has ended, work is under way */
	struct stkd_server *server;
	uid_t uid;
	char *stream; /* configured name, or the path of a path spec */
	char *name;
	uint32_t world, replicas;
	uint8_t *start; /* state, as the first attach gave it */
	size_t start_size;
	struct stk_spec *spec; /* until the stream has it */
	/* The work thread must not look into a configuration that reloads. */
	struct stkd_shard_limits limits;
	struct stkd_stream *opened; /* NULL while opening */
	bool opening;
	unsigned pinned; /* somebody walks its connections, any of which may end meanwhile */
	uint64_t created_ns;
	struct stkd_progress progress;
	struct stkd_job_feed *feeds;
	uv_work_t work;
	struct stk_err err;
	int result;
};

/*
 * The opened stream, or NULL while the work thread has it. job->opened itself belongs to that thread
 * until then.
 */
static inline struct stkd_stream *stkd_job_stream(const struct stkd_job *job)
{
	return job->opening ? NULL : job->opened;
}

/* Resolved; lives as long as the job. */
static inline const struct stk_spec *stkd_job_spec(const struct stkd_job *job)
{
	return stkd_job_stream(job) ? job->opened->spec : job->spec;
}

/* What an attach asks for; strings are borrowed from the message. */
struct stkd_attach {
	const char *stream, *job;
	struct stk_spec *spec; /* resolved; taken over when a job is created */
	uint32_t rank, world, replica, replicas;
	const uint8_t *state;
	size_t state_size;
	bool rejoin;
	int node; /* next to the device, index into the topology; -1: not known */
};

/**
 * stkd_job_attach() - find or create the job and wait in it
 * @conn: answered later, when its feed is ready: with a reply or a refusal
 *
 * Return: 0 the connection waits or was answered; negative errno: refused now, with the text.
 */
int stkd_job_attach(struct stkd_conn *conn, struct stkd_attach *attach, struct stk_err *err);

/* The connection goes: leaves its seat or its place in the queue. */
void stkd_job_detach(struct stkd_conn *conn);

/* Timeouts and progress of this job. Returns true while it still needs the tick. The job may be gone
 * afterwards. */
bool stkd_job_tick(struct stkd_job *job);

/* The build of a feed is over: seats those who wait for it, or refuses them. The job may be gone
 * afterwards. */
void stkd_job_built(struct stkd_job_feed *jf);

/* Ends seats that a worker found at fault, and waits that a failed feed left behind. */
void stkd_job_faults(struct stkd_server *server);

#endif
