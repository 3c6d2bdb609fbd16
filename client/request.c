/* SPDX-License-Identifier: Apache-2.0 */
#include "client/request.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/shm.h"
#include "proto/tree.h"

#define DEFAULT_TIMEOUT_MS 300000
#define JOB_MAX            255

void stk__request_deinit(struct stk__request *request)
{
	free(request->stream);
	free(request->job);
	free(request->socket);
	free(request->private_name);
	free(request->pci);
	json_decref(request->spec);
	*request = (struct stk__request){0};
}

char *stk__absolute(const char *path)
{
	_cleanup_(stk_freep) char *cwd = NULL;
	char *absolute;

	if (path[0] == '/')
		return strdup(path);
	cwd = getcwd(NULL, 0);
	if (!cwd || asprintf(&absolute, "%s/%s", strcmp(cwd, "/") ? cwd : "", path) < 0)
		return NULL;
	return absolute;
}

/* The caller may be built against an older or newer header. */
static int copy_opts(const struct stk_client_opts *opts, struct stk_client_opts *ret,
		     struct stk_err *err)
{
	const uint8_t *bytes = (const uint8_t *)opts;

	if (!opts || opts->size < offsetof(struct stk_client_opts, keys))
		return stk_err_set(err, -EINVAL,
				   "options: size %zu, set it to sizeof(struct stk_client_opts)",
				   opts ? opts->size : 0);
	for (size_t i = sizeof(*opts); i < opts->size; i++)
		if (bytes[i])
			return stk_err_set(err, -EINVAL,
					   "options: byte %zu is set, this libstoker " STK_RELEASE
					   " knows %zu bytes",
					   i, sizeof(*opts));
	*ret = (struct stk_client_opts){0};
	memcpy(ret, opts, STK_MIN(opts->size, sizeof(*ret)));
	return 0;
}

static int check_opts(const struct stk_client_opts *o, struct stk_err *err)
{
	if (!!o->stream + !!o->path > 1 || !(o->stream || o->path || o->spec))
		return stk_err_set(err, -EINVAL, "options: give one of stream, path and spec");
	if (o->flags || o->reserved || o->reserved2)
		return stk_err_set(err, -EINVAL,
				   "options: flags 0x%" PRIx32 " and reserved %" PRIu32
				   " must be 0",
				   o->flags, o->reserved | o->reserved2);
	if (o->pci && o->host_node < -1)
		return stk_err_set(err, -EINVAL, "options: host_node %" PRId32 ", -1 or more",
				   o->host_node);
	if (o->daemon > STK_DAEMON_PRIVATE)
		return stk_err_set(err, -EINVAL, "options: daemon %" PRIu32 ", at most %d",
				   o->daemon, STK_DAEMON_PRIVATE);
	if (o->daemon == STK_DAEMON_PRIVATE && o->socket)
		return stk_err_set(err, -EINVAL,
				   "options: a private daemon has no socket to choose: \"%s\"",
				   o->socket);
	if (o->attach_timeout_ms < -1 || o->reconnect_ms < 0)
		return stk_err_set(err, -EINVAL,
				   "options: attach_timeout_ms %" PRId32
				   " (-1 or more), reconnect_ms %" PRId32 " (0 or more)",
				   o->attach_timeout_ms, o->reconnect_ms);
	return 0;
}

static int take_ranks(struct stk__request *q, const struct stk_client_opts *o, struct stk_err *err)
{
	q->rank = o->rank;
	q->world = o->world ? o->world : 1;
	q->replica = o->replica;
	q->replicas = o->replicas ? o->replicas : 1;
	if (q->rank >= q->world)
		return stk_err_set(err, -EINVAL,
				   "rank %" PRIu32 ": the world has %" PRIu32 ", count from 0",
				   q->rank, q->world);
	if (q->replicas > STK_SHM_MAX_SEATS)
		return stk_err_set(err, -EINVAL, "replicas %" PRIu32 ": at most %" PRIu32,
				   q->replicas, STK_SHM_MAX_SEATS);
	if (q->replica >= q->replicas)
		return stk_err_set(err, -EINVAL,
				   "replica %" PRIu32 ": there are %" PRIu32
				   " replicas, count from 0",
				   q->replica, q->replicas);
	return 0;
}

static int take_state(struct stk__request *q, const struct stk_client_opts *o, struct stk_err *err)
{
	struct stk_state_header header;
	const uint8_t *cursor;

	if (!o->state || !o->state_size)
		return 0;
	if (o->state_size > sizeof(q->state))
		return stk_err_set(err, -EINVAL, "state: %zu bytes, at most %zu", o->state_size,
				   sizeof(q->state));
	memcpy(q->state, o->state, o->state_size);
	q->state_size = o->state_size;
	return stk_state_parse(q->state, q->state_size, &header, &cursor, err);
}

/* A launcher's name for the run, the same in all its processes. */
static int default_job(char *text, size_t size)
{
	const char *id = getenv("TORCHELASTIC_RUN_ID");
	const char *port = getenv("MASTER_PORT");
	const char *step;

	/* torchrun calls every run "none" that was given no name; two on a node differ in their port. */
	if (id && !strcmp(id, "none") && port && *port)
		return snprintf(text, size, "torchrun-%s", port);
	if (id && *id)
		return snprintf(text, size, "%s", id);
	id = getenv("SLURM_JOB_ID");
	step = getenv("SLURM_STEP_ID");
	if (id && *id)
		return snprintf(text, size, "%s%s%s", id, step && *step ? "." : "",
				step ? step : "");
	return 0;
}

/* A private daemon is called after the job that it was started for. */
static int take_private_name(struct stk__request *q, const char *given, struct stk_err *err)
{
	if (given && (!*given || strlen(given) > JOB_MAX))
		return stk_err_set(err, -EINVAL, "private_name: %zu bytes, 1 to %d are possible",
				   strlen(given), JOB_MAX);
	q->private_name = strdup(given ? given : q->job);
	return q->private_name ? 0 : stk_err_set(err, -ENOMEM, "job: no memory");
}

static int take_job(struct stk__request *q, const struct stk_client_opts *o, struct stk_err *err)
{
	char text[JOB_MAX + 2];
	int n;

	if (o->job && *o->job)
		n = snprintf(text, sizeof(text), "%s", o->job);
	else
		n = default_job(text, sizeof(text));
	if (n > JOB_MAX)
		return stk_err_set(err, -EINVAL, "job: name of %d bytes, at most %d", n, JOB_MAX);
	if (!n && q->world * (uint64_t)q->replicas > 1)
		return stk_err_set(err, -EINVAL,
				   "job: world %" PRIu32 " and %" PRIu32
				   " replicas need a name common to all "
				   "processes, and neither TORCHELASTIC_RUN_ID nor SLURM_JOB_ID is "
				   "set; set job",
				   q->world, q->replicas);
	if (!n)
		snprintf(text, sizeof(text), "pid-%d", (int)getpid());
	q->job = strdup(text);
	if (!q->job)
		return stk_err_set(err, -ENOMEM, "job: no memory");
	return take_private_name(q, o->private_name, err);
}

/* A tree that must be a map becomes part of the spec; its keys win. */
static int merge_tree(json_t *spec, const struct stk_tree *tree, struct stk_err *err)
{
	json_t *json;

	if (tree->type == STK_TREE_NULL)
		return 0;
	if (tree->type != STK_TREE_MAP)
		return stk_err_set(err, -EINVAL, "%s: keys and values are needed", tree->place);
	json = stk_tree_to_json(tree);
	if (!json || json_object_update(spec, json) < 0) {
		json_decref(json);
		return stk_err_set(err, -ENOMEM, "spec: no memory");
	}
	json_decref(json);
	return 0;
}

static int merge_text(json_t *spec, const char *text, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	int r = stk_tree_from_yaml("spec", text, strlen(text), &tree, err);

	return r < 0 ? r : merge_tree(spec, tree, err);
}

static int merge_words(json_t *spec, const char *const *words, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	size_t n = 0;
	int r;

	while (words && words[n])
		n++;
	if (!n)
		return 0;
	r = stk_tree_from_words((char *const *)words, n, &tree, err);
	return r < 0 ? r : merge_tree(spec, tree, err);
}

/* The daemon's current directory is not ours. A new reference. */
static json_t *absolute_json(const char *path)
{
	_cleanup_(stk_freep) char *absolute = stk__absolute(path);

	return absolute ? json_string(absolute) : NULL;
}

static int make_absolute(json_t *spec, struct stk_err *err)
{
	json_t *data = json_object_get(spec, "data"), *item;
	json_t *edges = json_object_get(spec, "edges");
	bool failed = false;
	size_t i;

	if (json_is_string(edges)) /* a file */
		failed = json_object_set_new(spec, "edges",
					     absolute_json(json_string_value(edges))) < 0;
	if (json_is_string(data)) {
		failed |= json_object_set_new(spec, "data",
					      absolute_json(json_string_value(data))) < 0;
		data = NULL; /* it is gone */
	}
	json_array_foreach (data, i, item) {
		const char *path = json_string_value(json_object_get(item, "path"));

		if (json_is_string(item))
			failed |= json_array_set_new(data, i,
						     absolute_json(json_string_value(item))) < 0;
		else if (path)
			failed |= json_object_set_new(item, "path", absolute_json(path)) < 0;
	}
	return failed ? stk_err_set(err, -EINVAL, "spec: cannot make its paths absolute") : 0;
}

static int take_spec(struct stk__request *q, const struct stk_client_opts *o, struct stk_err *err)
{
	int r;

	q->spec = json_object();
	if (!q->spec)
		return stk_err_set(err, -ENOMEM, "spec: no memory");
	r = o->spec ? merge_text(q->spec, o->spec, err) : 0;
	if (r == 0)
		r = merge_words(q->spec, o->keys, err);
	if (r < 0)
		return r;
	if (o->path && json_object_get(q->spec, "data"))
		return stk_err_set(err, -EINVAL, "data: given by path \"%s\" and by a key",
				   o->path);
	if (o->path && json_object_set_new(q->spec, "data", json_string(o->path)) < 0)
		return stk_err_set(err, -EINVAL, "path: not valid UTF-8");
	return make_absolute(q->spec, err);
}

static int take_texts(struct stk__request *q, const struct stk_client_opts *o, struct stk_err *err)
{
	const char *socket = o->socket;

	q->private_daemon = o->daemon == STK_DAEMON_PRIVATE ||
			    (o->daemon == STK_DAEMON_AUTO && !o->stream && !socket);
	if ((socket && !(q->socket = strdup(socket))) ||
	    (o->stream && !(q->stream = strdup(o->stream))) ||
	    (o->pci && !(q->pci = strdup(o->pci))))
		return stk_err_set(err, -ENOMEM, "options: no memory");
	q->attach_timeout_ms = o->attach_timeout_ms ? o->attach_timeout_ms : DEFAULT_TIMEOUT_MS;
	q->reconnect_ms = o->reconnect_ms;
	q->host_node = o->host_node;
	q->progress = o->progress;
	q->progress_data = o->progress_data;
	q->interrupted = o->interrupted;
	q->interrupt_data = o->interrupt_data;
	return 0;
}

int stk__request_init(struct stk__request *q, const struct stk_client_opts *opts,
		      struct stk_err *err)
{
	struct stk_client_opts o;
	int r;

	if ((r = copy_opts(opts, &o, err)) < 0 || (r = check_opts(&o, err)) < 0 ||
	    (r = take_ranks(q, &o, err)) < 0 || (r = take_state(q, &o, err)) < 0 ||
	    (r = take_job(q, &o, err)) < 0 || (r = take_spec(q, &o, err)) < 0)
		return r;
	return take_texts(q, &o, err);
}
