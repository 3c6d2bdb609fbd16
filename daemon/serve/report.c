/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/report.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/serve/job.h"

#define BAD_MAX 512 /* samples of a reply: all of it fits a message, however long the paths */
#define LOGGED  10

#define MS UINT64_C(1000000)
#define S  UINT64_C(1000000000)

json_t *stkd_report_status(struct stkd_server *server)
{
	json_t *warnings = json_array();
	unsigned jobs = 0;

	for (unsigned i = 0; stkd_warning_at(i); i++)
		json_array_append_new(warnings, json_string(stkd_warning_at(i)));
	for (const struct stkd_job *job = server->jobs; job; job = job->next)
		jobs++;
	return json_pack("{s:s, s:i, s:i, s:I, s:b, s:s, s:i, s:i, s:I, s:I, s:i, s:i, s:o}",
			 "release", STK_RELEASE, "protocol", STK_MSG_PROTOCOL, "pid", (int)getpid(),
			 "uptime_s", (json_int_t)((stkd_now_ns() - server->started_ns) / S),
			 "private", server->private_mode, "socket", server->socket_path, "workers",
			 (int)server->workers, "nodes", (int)server->topology.nnodes,
			 "memory_limit", (json_int_t)server->memory_limit, "memory_used",
			 (json_int_t)atomic_load(&server->memory_used), "jobs", (int)jobs, "seats",
			 (int)server->nseats, "warnings", warnings);
}

json_t *stkd_report_streams(struct stkd_server *server)
{
	json_t *list = json_array();

	for (size_t i = 0; i < server->conf->nstreams; i++) {
		const struct stk_spec *spec = server->conf->streams[i];
		int jobs = 0;

		for (const struct stkd_job *job = server->jobs; job; job = job->next)
			jobs += !strcmp(job->stream, spec->name);
		json_array_append_new(list,
				      json_pack("{s:s, s:s, s:o, s:i}", "name", spec->name, "path",
						spec->ndata ? spec->data[0].path : "", "spec",
						stk_spec_to_json(spec), "jobs", jobs));
	}
	return json_pack("{s:o}", "streams", list);
}

static json_t *job_json(const struct stkd_job *job)
{
	const struct stkd_stream *stream = stkd_job_stream(job);
	uint64_t memory = 0;
	char fingerprint[33] = "", digest[33] = "";
	unsigned seats = 0;

	for (const struct stkd_conn *c = job->server->conns; c; c = c->next)
		seats += c->job == job && c->seated;
	for (const struct stkd_job_feed *jf = job->feeds; jf; jf = jf->next)
		memory += jf->feed->charged;
	if (stream) {
		stk_hex_encode(stream->dataset->fingerprint.bytes, 16, fingerprint);
		stk_hex_encode(stream->digest.bytes, 16, digest);
	}
	return json_pack("{s:s, s:s, s:i, s:I, s:I, s:i, s:I, s:s, s:s, s:I, s:I, s:I, s:I}",
			 "stream", job->stream, "job", job->name, "uid", (int)job->uid, "world",
			 (json_int_t)job->world, "replicas", (json_int_t)job->replicas,
			 "seats_taken", (int)seats, "seed", (json_int_t)stkd_job_spec(job)->seed,
			 "fingerprint", fingerprint, "digest", digest, "samples",
			 (json_int_t)(stream ? stkd_plan_counts(stream->plan)->samples : 0),
			 "steps_per_epoch",
			 (json_int_t)(stream && !stkd_plan_counts(stream->plan)->varies
					      ? stkd_plan_counts(stream->plan)->steps
					      : 0),
			 "memory_bytes", (json_int_t)memory, "age_s",
			 (json_int_t)((stkd_now_ns() - job->created_ns) / S));
}

json_t *stkd_report_jobs(struct stkd_server *server)
{
	json_t *list = json_array();

	for (const struct stkd_job *job = server->jobs; job; job = job->next)
		json_array_append_new(list, job_json(job));
	return json_pack("{s:o}", "jobs", list);
}

static json_t *seat_json(uint32_t number, const struct stkd_seat_figures *f)
{
	json_t *seat = json_pack(
		"{s:I, s:i, s:i, s:I, s:I, s:I, s:I, s:I, s:I}", "seat", (json_int_t)number, "pid",
		(int)f->peer.pid, "uid", (int)f->peer.uid, "since_s", (json_int_t)(f->since_ns / S),
		"batches", (json_int_t)f->batches, "wait_ms", (json_int_t)(f->wait_ns / MS),
		"waits", (json_int_t)f->waits, "waiting_ms", (json_int_t)(f->waiting_ns / MS),
		"leased", (json_int_t)f->leased);

	if (f->oldest_ns)
		json_object_set_new(seat, "oldest_lease_ms",
				    json_integer((json_int_t)(f->oldest_ns / MS)));
	return seat;
}

static json_t *work_json(const struct stkd_worktime_figures *f)
{
	return json_pack("{s:I, s:I, s:I, s:I, s:I}", "busy", (json_int_t)f->busy, "blocked",
			 (json_int_t)f->blocked, "blocked_ms", (json_int_t)(f->blocked_ns / MS),
			 "range_ms", (json_int_t)(f->range_ns / MS), "storage_ms",
			 (json_int_t)(f->storage_ns / MS));
}

static json_t *queue_json(const struct stkd_job *job, struct stkd_job_feed *jf)
{
	struct stkd_seat_figures seats[STK_SHM_MAX_SEATS];
	struct stkd_feed_figures f;
	json_t *list = json_array();

	stkd_feed_figures(jf->feed, &f, seats);
	for (uint32_t i = 0; i < jf->feed->replicas; i++)
		if (seats[i].taken)
			json_array_append_new(list, seat_json(i, &seats[i]));
	return json_pack("{s:s, s:s, s:i, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, "
			 "s:o, s:I, s:o}",
			 "stream", job->stream, "job", job->name, "uid", (int)job->uid, "rank",
			 (json_int_t)jf->rank, "world", (json_int_t)job->world, "slots",
			 (json_int_t)f.slots, "ready", (json_int_t)f.ready, "leased",
			 (json_int_t)f.leased, "free", (json_int_t)f.free, "filling",
			 (json_int_t)f.filling, "epoch", (json_int_t)f.epoch, "steps_published",
			 (json_int_t)f.published, "steps_consumed", (json_int_t)f.consumed, "state",
			 stkd_feed_state_name(f.state), "seats", list, "weight",
			 (json_int_t)jf->feed->share.weight, "work", work_json(&f.work));
}

static int by_rank(const void *a, const void *b)
{
	const struct stkd_job_feed *const *x = a, *const *y = b;

	return ((*x)->rank > (*y)->rank) - ((*x)->rank < (*y)->rank);
}

static void append_queues(json_t *list, const struct stkd_job *job)
{
	_cleanup_(stk_freep) struct stkd_job_feed **feeds = NULL;
	size_t n = 0;

	for (struct stkd_job_feed *jf = job->feeds; jf; jf = jf->next)
		n++;
	feeds = calloc(n + 1, sizeof(struct stkd_job_feed *));
	if (!feeds)
		return;
	n = 0;
	for (struct stkd_job_feed *jf = job->feeds; jf; jf = jf->next)
		if (!jf->building)
			feeds[n++] = jf;
	qsort(feeds, n, sizeof(struct stkd_job_feed *), by_rank);
	for (size_t i = 0; i < n; i++)
		json_array_append_new(list, queue_json(job, feeds[i]));
}

json_t *stkd_report_queues(struct stkd_server *server)
{
	json_t *list = json_array();

	for (const struct stkd_job *job = server->jobs; job; job = job->next)
		append_queues(list, job);
	return json_pack("{s:o}", "queues", list);
}

json_t *stkd_report_quarantine(struct stkd_server *server, const char *stream, const char *name)
{
	uint32_t left = BAD_MAX;
	json_t *list = json_array();

	for (const struct stkd_job *job = server->jobs; job; job = job->next) {
		const struct stkd_stream *opened = stkd_job_stream(job);
		json_t *json;

		if (!opened || (stream && strcmp(stream, job->stream)) ||
		    (name && strcmp(name, job->name)))
			continue;
		json = stkd_assembly_quarantined(opened->assembly, left);
		left -= (uint32_t)json_array_size(json_object_get(json, "samples"));
		json_object_set_new(json, "stream", json_string(job->stream));
		json_object_set_new(json, "job", json_string(job->name));
		json_object_set_new(json, "uid", json_integer((json_int_t)job->uid));
		json_array_append_new(list, json);
	}
	return json_pack("{s:o}", "jobs", list);
}

void stkd_report_masked(const struct stkd_job *job)
{
	const struct stkd_stream *stream = stkd_job_stream(job);
	json_t *json, *bad;
	size_t i;

	if (!stream)
		return;
	json = stkd_assembly_quarantined(stream->assembly, LOGGED);
	json_array_foreach (json_object_get(json, "samples"), i, bad)
		log_warn("job %s on %s: masked sample %" JSON_INTEGER_FORMAT ": %s, row "
			 "%" JSON_INTEGER_FORMAT ", field %s: %s",
			 job->name, job->stream, json_integer_value(json_object_get(bad, "sample")),
			 json_string_value(json_object_get(bad, "shard")),
			 json_integer_value(json_object_get(bad, "row")),
			 json_string_value(json_object_get(bad, "field")),
			 json_string_value(json_object_get(bad, "reason")));
	if (json_integer_value(json_object_get(json, "rows")))
		log_warn("job %s on %s: %" JSON_INTEGER_FORMAT " rows of %s samples were masked",
			 job->name, job->stream, json_integer_value(json_object_get(json, "rows")),
			 json_is_true(json_object_get(json, "more")) ? "these and other" : "these");
	json_decref(json);
}
