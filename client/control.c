/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls to a daemon that need no seat, for operators' tools, and where daemons listen. Owns
 * nothing; any thread.
 */
#include "client/stoker.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/socket.h"

#define CONNECT_MS 1000

static int parse_parameters(const char *text, json_t **ret, struct stk_err *err)
{
	json_error_t error;

	*ret = json_loads(text ? text : "{}", JSON_REJECT_DUPLICATES, &error);
	if (!*ret)
		return stk_err_set(err, -EINVAL, "parameters: byte %d: %s", error.position,
				   error.text);
	if (json_is_object(*ret))
		return 0;
	json_decref(*ret);
	return stk_err_set(err, -EINVAL, "parameters: a JSON object is needed");
}

static int call(const char *socket, const char *method, const char *parameters, int64_t deadline,
		char **ret_reply, struct stk_err *err)
{
	_cleanup_(stk_msg_in_deinit) struct stk_msg_in in = {0};
	_cleanup_(stk_closep) int fd = -1;
	json_t *message, *reply, *json;
	int left, r;

	r = parse_parameters(parameters, &json, err);
	if (r < 0)
		return r;
	message = stk_msg_call(method, json, false);
	if (!message)
		return stk_err_set(err, -EINVAL, "method: not valid UTF-8, or no memory");
	r = stk__connect(socket, deadline, &fd, err);
	left = stk__left_ms(deadline);
	if (r == 0)
		r = stk_msg_send(fd, message, NULL, 0, left < 0 ? INT32_MAX : left, err);
	json_decref(message);
	if (r == 0)
		r = stk__receive(fd, &in, deadline, &reply, err);
	if (r < 0)
		return r;
	json = json_object_get(reply, "parameters");
	*ret_reply = json ? json_dumps(json, JSON_COMPACT) : strdup("{}");
	json_decref(reply);
	return *ret_reply ? 0 : stk_err_set(err, -ENOMEM, "reply: no memory");
}

int stk_control_call(const char *socket, const char *method, const char *parameters, int timeout_ms,
		     char **ret_reply, char *error, size_t error_size)
{
	struct stk_err err = {0};
	int r = call(socket ? socket : stk__socket_system(), method, parameters,
		     stk__deadline(timeout_ms), ret_reply, &err);

	if (error && error_size)
		snprintf(error, error_size, "%s", err.text);
	return r;
}

struct paths {
	char **list; /* NULL-terminated */
	size_t n;
};

static void paths_free(struct paths *paths)
{
	for (size_t i = 0; i < paths->n; i++)
		free(paths->list[i]);
	free(paths->list);
}

/* Adds a socket that somebody listens on. */
static int add_socket(struct paths *paths, const char *path)
{
	_cleanup_(stk_closep) int fd = -1;
	char **list;

	for (size_t i = 0; i < paths->n; i++)
		if (!strcmp(paths->list[i], path))
			return 0;
	if (stk__connect(path, stk__deadline(CONNECT_MS), &fd, NULL) < 0)
		return 0;
	list = realloc(paths->list, (paths->n + 2) * sizeof(*list));
	if (!list)
		return -ENOMEM;
	paths->list = list;
	list[paths->n] = strdup(path);
	if (!list[paths->n])
		return -ENOMEM;
	list[++paths->n] = NULL;
	return 0;
}

static int is_socket_name(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return dot && !strcmp(dot, ".sock");
}

static int add_folder(struct paths *paths, const char *folder)
{
	struct dirent **entries;
	struct stat st;
	int r = 0;
	int n;

	/* Sockets of somebody else are nothing to talk to. */
	if (lstat(folder, &st) < 0 || !S_ISDIR(st.st_mode) || st.st_uid != geteuid())
		return 0;
	n = scandir(folder, &entries, is_socket_name, alphasort);
	for (int i = 0; i < n; i++) {
		char path[4096];

		if (r == 0 && snprintf(path, sizeof(path), "%s/%s", folder, entries[i]->d_name) <
				      (int)sizeof(path))
			r = add_socket(paths, path);
		free(entries[i]);
	}
	if (n >= 0)
		free(entries);
	return r;
}

int stk_control_sockets(char ***ret_paths)
{
	struct paths paths = {.list = calloc(1, sizeof(char *))};
	char folder[4096];
	int r, found;

	if (!paths.list)
		return -ENOMEM;
	r = add_socket(&paths, stk__socket_system());
	for (unsigned i = 0;
	     r == 0 && (found = stk__socket_folder(i, folder, sizeof(folder))) != -ERANGE; i++)
		if (found == 0)
			r = add_folder(&paths, folder);
	if (r < 0) {
		paths_free(&paths);
		return r;
	}
	*ret_paths = paths.list;
	return (int)paths.n;
}
