/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/methods.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log.h"
#include "daemon/serve/attach.h"
#include "daemon/serve/job.h"
#include "daemon/serve/report.h"
#include "daemon/serve/seek.h"

static void call_get_info(struct stkd_conn *conn, const json_t *parameters)
{
	(void)parameters;
	stkd_conn_reply(conn,
			json_pack("{s:s, s:s, s:s, s:s, s:[s, s]}", "vendor", "stoker", "product",
				  "stokerd", "version", STK_RELEASE, "url", "https://varlink.org",
				  "interfaces", "org.varlink.service", STK_MSG_INTERFACE));
}

static const char service_text[] =
	"interface org.varlink.service\n"
	"method GetInfo() -> (vendor: string, product: string, version: string, url: string,\n"
	"  interfaces: []string)\n"
	"method GetInterfaceDescription(interface: string) -> (description: string)\n"
	"error InterfaceNotFound (interface: string)\n"
	"error MethodNotFound (method: string)\n"
	"error MethodNotImplemented (method: string)\n"
	"error InvalidParameter (parameter: string)\n";

static void call_get_description(struct stkd_conn *conn, const json_t *parameters)
{
	const char *name = json_string_value(json_object_get(parameters, "interface"));

	if (!name)
		stkd_conn_error(conn, "org.varlink.service.InvalidParameter",
				json_pack("{s:s}", "parameter", "interface"));
	else if (!strcmp(name, STK_MSG_INTERFACE))
		stkd_conn_reply(conn, json_pack("{s:s}", "description", stk_msg_varlink_text));
	else if (!strcmp(name, "org.varlink.service"))
		stkd_conn_reply(conn, json_pack("{s:s}", "description", service_text));
	else
		stkd_conn_error(conn, "org.varlink.service.InterfaceNotFound",
				json_pack("{s:s}", "interface", name));
}

static void call_status(struct stkd_conn *conn, const json_t *parameters)
{
	(void)parameters;
	stkd_conn_reply(conn, stkd_report_status(conn->server));
}

static void call_streams(struct stkd_conn *conn, const json_t *parameters)
{
	(void)parameters;
	stkd_conn_reply(conn, stkd_report_streams(conn->server));
}

static void call_jobs(struct stkd_conn *conn, const json_t *parameters)
{
	(void)parameters;
	stkd_conn_reply(conn, stkd_report_jobs(conn->server));
}

static void call_queues(struct stkd_conn *conn, const json_t *parameters)
{
	(void)parameters;
	stkd_conn_reply(conn, stkd_report_queues(conn->server));
}

static void call_quarantine(struct stkd_conn *conn, const json_t *parameters)
{
	const json_t *stream = json_object_get(parameters, "stream"),
		     *job = json_object_get(parameters, "job");
	struct stk_err err;

	if ((stream && !json_is_string(stream) && !json_is_null(stream)) ||
	    (job && !json_is_string(job) && !json_is_null(job))) {
		stk_err_set(&err, -EINVAL, "quarantine: stream and job are strings, or left out");
		stkd_conn_refuse(conn, &err);
		return;
	}
	stkd_conn_reply(conn, stkd_report_quarantine(conn->server, json_string_value(stream),
						     json_string_value(job)));
}

static bool detach_matches(const struct stkd_conn *c, const json_t *parameters)
{
	const json_t *rank = json_object_get(parameters, "rank"),
		     *seat = json_object_get(parameters, "seat");

	return !strcmp(c->job->stream, json_string_value(json_object_get(parameters, "stream"))) &&
	       !strcmp(c->job->name, json_string_value(json_object_get(parameters, "job"))) &&
	       (!json_is_integer(rank) || json_integer_value(rank) == c->rank) &&
	       (!json_is_integer(seat) || json_integer_value(seat) == c->replica);
}

/* Only a job's user, the daemon's user and root end its seats. */
static void call_detach(struct stkd_conn *conn, const json_t *parameters)
{
	struct stk_err err;
	int n = 0;

	if (!json_is_string(json_object_get(parameters, "stream")) ||
	    !json_is_string(json_object_get(parameters, "job"))) {
		stk_err_set(&err, -EINVAL, "detach: stream and job are needed, both strings");
		stkd_conn_refuse(conn, &err);
		return;
	}
	for (struct stkd_conn *c = conn->server->conns, *next; c; c = next) {
		next = c->next;
		if (!c->job || c == conn || !detach_matches(c, parameters))
			continue;
		if (conn->peer.uid && conn->peer.uid != geteuid() && conn->peer.uid != c->job->uid)
			continue;
		stkd_conn_close(c, "detached by an operator");
		n++;
	}
	if (!n) {
		stk_err_set(&err, -ENOENT, "detach: no seat of yours on stream %s, job %s",
			    json_string_value(json_object_get(parameters, "stream")),
			    json_string_value(json_object_get(parameters, "job")));
		stkd_conn_refuse(conn, &err);
		return;
	}
	stkd_conn_reply(conn, json_pack("{s:i}", "detached", n));
}

static const struct {
	const char *name;
	void (*call)(struct stkd_conn *conn, const json_t *parameters);
} methods[] = {
	{"io.stoker.Attach", stkd_attach_call},
	{"io.stoker.Seek", stkd_seek_call},
	{"io.stoker.Status", call_status},
	{"io.stoker.Streams", call_streams},
	{"io.stoker.Jobs", call_jobs},
	{"io.stoker.Queues", call_queues},
	{"io.stoker.Quarantine", call_quarantine},
	{"io.stoker.Detach", call_detach},
	{"org.varlink.service.GetInfo", call_get_info},
	{"org.varlink.service.GetInterfaceDescription", call_get_description},
};

void stkd_methods_call(struct stkd_conn *conn, const json_t *message)
{
	const char *name = json_string_value(json_object_get(message, "method"));
	const json_t *parameters = json_object_get(message, "parameters");

	if (!name || (parameters && !json_is_object(parameters) && !json_is_null(parameters))) {
		stkd_conn_close(conn, "it sent a message that is not a Varlink call");
		return;
	}
	for (size_t i = 0; i < STK_ARRAY_SIZE(methods); i++) {
		if (!strcmp(methods[i].name, name)) {
			methods[i].call(conn, parameters);
			return;
		}
	}
	stkd_conn_error(conn, "org.varlink.service.MethodNotFound",
			json_pack("{s:s}", "method", name));
}
