/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/attach.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/serve/job.h"

#define WORLD_MAX UINT32_C(65536)

static int get_u32(const json_t *parameters, const char *name, uint32_t min, uint32_t max,
		   uint32_t missing, uint32_t *ret, struct stk_err *err)
{
	const json_t *value = json_object_get(parameters, name);

	*ret = missing;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_integer(value) || json_integer_value(value) < (json_int_t)min ||
	    json_integer_value(value) > (json_int_t)max) {
		_cleanup_(stk_freep) char *text = json_dumps(value, JSON_ENCODE_ANY);

		return stk_err_set(err, -EINVAL,
				   "attach: %s: %s is not an integer from %" PRIu32 " to %" PRIu32,
				   name, text ? text : "?", min, max);
	}
	*ret = (uint32_t)json_integer_value(value);
	return 0;
}

static int get_text(const json_t *parameters, const char *name, const char *missing,
		    const char **ret, struct stk_err *err)
{
	const json_t *value = json_object_get(parameters, name);

	*ret = missing;
	if (!value || json_is_null(value))
		return 0;
	if (!json_is_string(value))
		return stk_err_set(err, -EINVAL, "attach: %s: a string is needed", name);
	*ret = json_string_value(value);
	return 0;
}

static int check_versions(const json_t *parameters, struct stk_err *err)
{
	uint32_t min, max, layout;
	const char *release;
	int r;

	if ((r = get_u32(parameters, "protocol_min", 1, INT32_MAX, 1, &min, err)) < 0 ||
	    (r = get_u32(parameters, "protocol_max", 1, INT32_MAX, 1, &max, err)) < 0 ||
	    (r = get_u32(parameters, "layout", 0, INT32_MAX, 0, &layout, err)) < 0 ||
	    (r = get_text(parameters, "release", "unknown", &release, err)) < 0)
		return r;
	if (min > STK_MSG_PROTOCOL || max < STK_MSG_PROTOCOL)
		return stk_err_set(err, -EPROTO,
				   "attach: libstoker %s speaks protocol %" PRIu32 " to %" PRIu32
				   ", stokerd %s speaks %d",
				   release, min, max, STK_RELEASE, STK_MSG_PROTOCOL);
	if (layout != STK_SHM_MAJOR)
		return stk_err_set(err, -EPROTO,
				   "attach: libstoker %s has shared-memory layout %" PRIu32
				   ", stokerd %s has %d",
				   release, layout, STK_RELEASE, STK_SHM_MAJOR);
	return 0;
}

/* Trust. */

static int check_peer(const struct stkd_conn *conn, struct stk_err *err)
{
	const struct stkd_server *server = conn->server;
	uid_t uid = conn->peer.uid;

	if (uid == 0 || uid == geteuid())
		return 0;
	if (server->private_mode)
		return stk_err_set(err, -EACCES,
				   "attach: this private stokerd serves user %u, not user %u",
				   (unsigned)geteuid(), (unsigned)uid);
	if (stkd_trust_admits(&server->trust, conn->fd, &conn->peer))
		return 0;
	return stk_err_set(err, -EACCES,
			   "attach: user %u is not among the users and groups of the configuration",
			   (unsigned)uid);
}

/* A path makes the daemon read files for its client: only for those who could read them as it. */
static int check_path(const struct stkd_conn *conn, const struct stk_spec *spec,
		      struct stk_err *err)
{
	if (conn->peer.uid != 0 && conn->peer.uid != geteuid())
		return stk_err_set(err, -EACCES,
				   "attach: data: a path is served by a private stokerd; this one "
				   "serves the streams of "
				   "its configuration");
	if (!spec->ndata)
		return stk_err_set(err, -EINVAL, "attach: neither stream nor spec.data is given");
	for (size_t i = 0; i < spec->ndata; i++)
		if (spec->data[i].path[0] != '/')
			return stk_err_set(err, -EINVAL,
					   "attach: spec.data: %s is not an absolute path",
					   spec->data[i].path);
	return 0;
}

/* The spec. */

static int find_stream(const struct stkd_conn *conn, const char *name, const struct stk_spec **ret,
		       struct stk_err *err)
{
	const struct stkd_conf *conf = conn->server->conf;
	_cleanup_(stk_freep) const char **names = calloc(conf->nstreams + 1, sizeof(char *));
	const char *near;

	*ret = stkd_conf_stream(conf, name);
	if (*ret)
		return 0;
	for (size_t i = 0; names && i < conf->nstreams; i++)
		names[i] = conf->streams[i]->name;
	near = names ? stk_nearest(name, names) : NULL;
	return stk_err_set(err, -ENOENT,
			   "attach: unknown stream \"%s\"%s%s%s; stokerctl streams lists all %zu",
			   name, near ? "; did you mean \"" : "", near ? near : "",
			   near ? "\"?" : "", conf->nstreams);
}

static int parse_spec(const struct stk_spec *base, const json_t *json, struct stk_spec **ret,
		      struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	int r;

	if (json && !json_is_null(json)) {
		r = stk_tree_from_json("spec", json, &tree, err);
		if (r < 0)
			return r;
	}
	if (base && tree && (stk_tree_get(tree, "data") || stk_tree_get(tree, "name")))
		return stk_err_set(err, -EINVAL,
				   "attach: spec: data and name belong to the stream %s and stay "
				   "as configured",
				   base->name);
	return stk_spec_parse(base, tree, ret, err);
}

/* As with data: only for those whose files the daemon could read as well. */
static int read_edges(const struct stkd_conn *conn, struct stk_spec *spec, struct stk_err *err)
{
	if (!spec->edges_file)
		return 0;
	if (conn->peer.uid != 0 && conn->peer.uid != geteuid())
		return stk_err_set(err, -EACCES,
				   "attach: edges: a file is read for the daemon's own user only; "
				   "give its numbers instead");
	if (spec->edges_file[0] != '/')
		return stk_err_set(err, -EINVAL, "attach: spec.edges: %s is not an absolute path",
				   spec->edges_file);
	if (stk_spec_read_edges(spec, err) < 0) {
		stk_err_prefix(err, "attach: ");
		return -EINVAL;
	}
	return 0;
}

static int resolve_spec(struct stkd_conn *conn, const json_t *parameters,
			struct stkd_attach *attach, struct stk_err *err)
{
	const struct stk_spec *base = NULL;
	const char *stream;
	int r = get_text(parameters, "stream", "", &stream, err);

	if (r < 0)
		return r;
	if (stream[0]) {
		r = find_stream(conn, stream, &base, err);
		if (r < 0)
			return r;
	}
	r = parse_spec(base, json_object_get(parameters, "spec"), &attach->spec, err);
	if (r == 0)
		r = read_edges(conn, attach->spec, err);
	if (r < 0)
		return r;
	/* Of other people's jobs in one daemon none makes itself more important than it is meant to be. */
	if (!conn->server->private_mode)
		attach->spec->weight =
			STK_MIN(attach->spec->weight, base ? base->weight : UINT32_C(1));
	attach->stream = stream;
	if (base)
		return 0;
	r = check_path(conn, attach->spec, err);
	if (r == 0)
		attach->stream = attach->spec->data[0].path;
	return r;
}

/* Rank, replica, job, state. */

static int check_name(const char *name, struct stk_err *err)
{
	size_t n = strlen(name);

	if (!n || n > 255)
		return stk_err_set(err, -EINVAL, "attach: job: %zu bytes, 1 to 255 allowed", n);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f)
			return stk_err_set(err, -EINVAL,
					   "attach: job: control characters are not allowed");
	return 0;
}

static int get_place(const json_t *parameters, struct stkd_attach *attach, struct stk_err *err)
{
	int r;

	if ((r = get_text(parameters, "job", "", &attach->job, err)) < 0 ||
	    (r = check_name(attach->job, err)) < 0 ||
	    (r = get_u32(parameters, "world", 1, WORLD_MAX, 1, &attach->world, err)) < 0 ||
	    (r = get_u32(parameters, "replicas", 1, STK_SHM_MAX_SEATS, 1, &attach->replicas, err)) <
		    0 ||
	    (r = get_u32(parameters, "rank", 0, attach->world - 1, 0, &attach->rank, err)) < 0)
		return r;
	return get_u32(parameters, "replica", 0, attach->replicas - 1, 0, &attach->replica, err);
}

static int get_state(const json_t *parameters, uint8_t state[STK_STATE_SIZE_MAX],
		     struct stkd_attach *attach, struct stk_err *err)
{
	const char *text;
	int n = get_text(parameters, "state", "", &text, err);

	if (n < 0)
		return n;
	n = stk_hex_decode(text, state, STK_STATE_SIZE_MAX);
	if (n < 0)
		return stk_err_set(err, -EINVAL,
				   "attach: state: %zu characters are not hexadecimal text of at "
				   "most %d bytes",
				   strlen(text), STK_STATE_SIZE_MAX);
	attach->state = state;
	attach->state_size = (size_t)n;
	attach->rejoin = json_is_true(json_object_get(parameters, "rejoin"));
	return 0;
}

/* Where the client's device is; what it says is only believed where this machine's own tree agrees. */
static int get_device(const struct stkd_conn *conn, const json_t *parameters,
		      struct stkd_attach *attach, struct stk_err *err)
{
	const json_t *device = json_object_get(parameters, "device");
	const json_t *node = json_object_get(device, "host_node");
	const char *pci;
	int r;

	attach->node = -1;
	if (!device || json_is_null(device))
		return 0;
	if (!json_is_object(device))
		return stk_err_set(err, -EINVAL, "attach: device: an object is needed");
	r = get_text(device, "pci", "", &pci, err);
	if (r < 0)
		return r;
	if (pci[0] && !stkd_topology_is_pci(pci))
		return stk_err_set(err, -EINVAL,
				   "attach: device: pci \"%s\" is no address such as 0000:41:00.0",
				   pci);
	if (node && !json_is_null(node) &&
	    (!json_is_integer(node) || json_integer_value(node) < -1 ||
	     json_integer_value(node) > INT32_MAX))
		return stk_err_set(err, -EINVAL,
				   "attach: device: host_node is not an integer from -1 on");
	attach->node =
		stkd_topology_near(&conn->server->topology, pci,
				   json_is_integer(node) ? (int)json_integer_value(node) : -1);
	return 0;
}

void stkd_attach_call(struct stkd_conn *conn, const json_t *parameters)
{
	uint8_t state[STK_STATE_SIZE_MAX];
	struct stkd_attach attach = {0};
	struct stk_err err = {0};
	int r;

	if (conn->job)
		r = stk_err_set(&err, -EBUSY,
				"attach: this connection has a seat or asks for one already");
	else if ((r = check_versions(parameters, &err)) == 0 && (r = check_peer(conn, &err)) == 0 &&
		 (r = get_place(parameters, &attach, &err)) == 0 &&
		 (r = get_state(parameters, state, &attach, &err)) == 0 &&
		 (r = get_device(conn, parameters, &attach, &err)) == 0 &&
		 (r = resolve_spec(conn, parameters, &attach, &err)) == 0)
		r = stkd_job_attach(conn, &attach, &err);
	stk_spec_free(attach.spec);
	if (r < 0)
		stkd_conn_refuse(conn, &err);
}
