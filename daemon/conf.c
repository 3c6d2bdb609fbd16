/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's configuration: its key table, the list keys, and the files in their order. Runs on
 * the main thread, at start and at reload.
 */
#include "daemon/conf.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX 4096
#define NAMES_MAX   1024
#define PPM         1000000u /* cpu: the whole machine */
#define DAY_MS      86400000u

static const char *const need_names[] = {"try", "require", NULL};

static char **names_free(char **names)
{
	for (char **name = names; name && *name; name++)
		free(*name);
	free(names);
	return NULL;
}
STK_DEFINE_CLEANUP(char **, names_free)

static int parse_names(char ***to, const struct stk_tree *node, struct stk_err *err)
{
	_cleanup_(names_freep) char **names = NULL;

	if (node->type != STK_TREE_NULL) {
		/* An empty list would lock out everybody: more likely a mistake than a wish. */
		if (node->type != STK_TREE_LIST || !node->nchildren || node->nchildren > NAMES_MAX)
			return stk_tree_refuse(node, err, "a list of 1 to %d names or ids",
					       NAMES_MAX);
		names = calloc(node->nchildren + 1, sizeof(*names));
		if (!names)
			return stk_err_set(err, -ENOMEM, "%s: no memory", node->place);
	}
	for (size_t i = 0; i < node->nchildren; i++) {
		const struct stk_tree *item = node->children[i];
		int r;

		if (item->type != STK_TREE_SCALAR || !*item->text)
			return stk_tree_refuse(item, err, "a name or an id");
		r = stk_tree_string(item, &names[i], err);
		if (r < 0)
			return r;
	}
	names_free(*to);
	*to = STK_STEAL(names);
	return 0;
}

static int parse_users(void *object, const struct stk_tree *node, struct stk_err *err)
{
	return parse_names(&((struct stkd_conf *)object)->users, node, err);
}

static int parse_groups(void *object, const struct stk_tree *node, struct stk_err *err)
{
	return parse_names(&((struct stkd_conf *)object)->groups, node, err);
}

static json_t *names_to_json(char *const *names)
{
	json_t *list;

	if (!names)
		return json_null();
	list = json_array();
	for (; *names; names++) {
		if (json_array_append_new(list, json_string(*names)) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

static json_t *users_to_json(const void *object)
{
	return names_to_json(((const struct stkd_conf *)object)->users);
}

static json_t *groups_to_json(const void *object)
{
	return names_to_json(((const struct stkd_conf *)object)->groups);
}

static int parse_cpu(void *object, const struct stk_tree *node, struct stk_err *err)
{
	return stk_tree_ppm(node, 1, PPM, &((struct stkd_conf *)object)->cpu, err);
}

static json_t *cpu_to_json(const void *object)
{
	return json_real((double)((const struct stkd_conf *)object)->cpu / PPM);
}

static int add_stream(struct stkd_conf *conf, const struct stk_tree *node, struct stk_err *err)
{
	_cleanup_(stk_spec_freep) struct stk_spec *spec = NULL;
	struct stk_spec **streams;
	int r;

	if (node->type != STK_TREE_MAP)
		return stk_tree_refuse(node, err, "a map with name and data");
	r = stk_spec_parse(NULL, node, &spec, err);
	if (r < 0)
		return r;
	if (!spec->name || !spec->ndata)
		return stk_err_set(err, -EINVAL, "%s: a stream needs %s", node->place,
				   spec->name ? "data, a path of shards" : "a name");
	if (stkd_conf_stream(conf, spec->name))
		return stk_err_set(err, -EINVAL,
				   "%s: stream \"%s\" is already defined, names must differ",
				   stk_tree_get(node, "name")->place, spec->name);
	if (conf->nstreams >= STREAMS_MAX)
		return stk_err_set(err, -E2BIG, "%s: more than %d streams", node->place,
				   STREAMS_MAX);
	streams = reallocarray(conf->streams, conf->nstreams + 1, sizeof(struct stk_spec *));
	if (!streams)
		return stk_err_set(err, -ENOMEM, "%s: no memory", node->place);
	conf->streams = streams;
	streams[conf->nstreams++] = STK_STEAL(spec);
	return 0;
}

/* Appends: the files of stokerd.yaml.d add streams. Nothing takes one away. */
static int parse_streams(void *object, const struct stk_tree *node, struct stk_err *err)
{
	if (node->type != STK_TREE_LIST && node->type != STK_TREE_NULL)
		return stk_tree_refuse(node, err, "a list of streams (- name: NAME)");
	for (size_t i = 0; i < node->nchildren; i++) {
		int r = add_stream(object, node->children[i], err);

		if (r < 0)
			return r;
	}
	return 0;
}

static json_t *streams_to_json(const void *object)
{
	const struct stkd_conf *conf = object;
	json_t *list = json_array();

	for (size_t i = 0; i < conf->nstreams; i++) {
		if (json_array_append_new(list, stk_spec_to_json(conf->streams[i])) < 0) {
			json_decref(list);
			return NULL;
		}
	}
	return list;
}

#define CONF(member) offsetof(struct stkd_conf, member)

/* clang-format off */
static const struct stk_key keys[] = {
	/* 107 bytes: what a socket address holds. */
	{"socket", STK_KEY_STRING, CONF(socket), "/run/stoker/stokerd.sock", 1, 107, NULL, NULL, 0,
	 "path of the control socket", NULL, NULL},
	{"memory", STK_KEY_SIZE, CONF(memory), "0", 0, UINT64_C(1) << 60, NULL, "bytes", 0,
	 "batch memory of all feeds, 0: a quarter of the memory that the daemon may use, at most 16GiB",
	 NULL, NULL},
	{"cpu", STK_KEY_CUSTOM, CONF(cpu), "0.25", 0, 0, NULL, NULL, 0,
	 "share of the allowed cores for workers, above 0 and at most 1; at least one worker runs",
	 parse_cpu, cpu_to_json},
	{"workers", STK_KEY_U32, CONF(workers), "0", 0, 512, NULL, "threads", 0,
	 "worker threads in all, 0: from cpu", NULL, NULL},
	{"lock", STK_KEY_ENUM, CONF(lock), NULL, 0, 0, need_names, NULL, 0,
	 "lock batch memory in RAM; left out: require for the system daemon, try for a private one",
	 NULL, NULL},
	{"numa", STK_KEY_ENUM, CONF(numa), NULL, 0, 0, need_names, NULL, 0,
	 "place batch memory on the trainer's NUMA node; left out: as for lock", NULL, NULL},
	{"attach_timeout", STK_KEY_DURATION, CONF(attach_timeout_ms), "300s", 1000, DAY_MS, NULL, NULL, 0,
	 "a feed waits this long for all its seats", NULL, NULL},
	{"seat_grace", STK_KEY_DURATION, CONF(seat_grace_ms), "60s", 0, DAY_MS, NULL, NULL, 0,
	 "a vacant seat of a shared feed keeps its batches this long", NULL, NULL},
	{"linger", STK_KEY_DURATION, CONF(linger_ms), "5s", 0, DAY_MS, NULL, NULL, 0,
	 "a private daemon ends this long after its last client", NULL, NULL},
	{"header_max", STK_KEY_SIZE, CONF(header_max), "100000000", 4096, UINT64_C(1) << 40, NULL, "bytes", 0,
	 "largest header of a shard that is read", NULL, NULL},
	{"users", STK_KEY_CUSTOM, CONF(users), NULL, 0, 0, NULL, NULL, 0,
	 "list of users (names or ids) that may attach; left out: whoever may open the socket",
	 parse_users, users_to_json},
	{"groups", STK_KEY_CUSTOM, CONF(groups), NULL, 0, 0, NULL, NULL, 0,
	 "list of groups (names or ids) that may attach; left out: as for users",
	 parse_groups, groups_to_json},
	{"streams", STK_KEY_CUSTOM, CONF(streams), NULL, 0, 0, NULL, NULL, 0,
	 "list of streams, each with the stream keys, name and data at least",
	 parse_streams, streams_to_json},
};
/* clang-format on */

static const struct stk_key_hint hints[] = {
	{"num_workers", "use workers"},
	{"threads", "use workers"},
	{"worker_threads", "use workers"},
	{"listen", "use socket"},
	{"address", "use socket"},
	{"cpus", "use cpu"},
	{"mlock", "use lock"},
	{"data", "use streams: [{name: NAME, data: PATH}]"},
	{"datasets", "use streams: [{name: NAME, data: PATH}]"},
	{"rows", "use rows of a stream, beneath streams"},
	{"tokens", "use tokens of a stream, beneath streams"},
};

const struct stk_key_table stkd_conf_table = {
	.keys = keys,
	.nkeys = STK_ARRAY_SIZE(keys),
	.hints = hints,
	.nhints = STK_ARRAY_SIZE(hints),
	.what = "configuration key",
};

int stkd_conf_new(struct stkd_conf **ret, struct stk_err *err)
{
	_cleanup_(stkd_conf_freep) struct stkd_conf *conf = calloc(1, sizeof(*conf));
	int r;

	if (!conf)
		return stk_err_set(err, -ENOMEM, "configuration: no memory");
	r = stk_keys_defaults(&stkd_conf_table, conf, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(conf);
	return 0;
}

/* A path in a file means the same wherever the daemon was started. */
static int make_path_absolute(char **path, const char *dir, struct stk_err *err)
{
	char *absolute;

	if (!*path || **path == '/')
		return 0;
	if (asprintf(&absolute, "%s%s%s", dir, strcmp(dir, "/") ? "/" : "", *path) < 0)
		return stk_err_set(err, -ENOMEM, "%s: no memory", *path);
	free(*path);
	*path = absolute;
	return 0;
}

static int make_absolute(struct stk_spec *spec, const char *dir, struct stk_err *err)
{
	int r = make_path_absolute(&spec->edges_file, dir, err);

	for (size_t i = 0; r == 0 && i < spec->ndata; i++)
		r = make_path_absolute(&spec->data[i].path, dir, err);
	return r;
}

/* The directory that holds the file, for free(). */
static int directory_of(const char *path, char **ret, struct stk_err *err)
{
	_cleanup_(stk_freep) char *copy = strdup(path);
	char *dir;

	if (!copy)
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	dir = realpath(dirname(copy), NULL);
	if (!dir)
		return stk_err_set(err, -errno, "%s: its directory cannot be resolved: %m", path);
	*ret = dir;
	return 0;
}

static int load_file(struct stkd_conf *conf, const char *path, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	_cleanup_(stk_freep) char *dir = NULL;
	size_t before = conf->nstreams;
	int r;

	r = stk_tree_from_yaml_file(path, &tree, err);
	if (r < 0)
		return r;
	r = directory_of(path, &dir, err);
	if (r < 0)
		return r;
	r = stk_keys_walk(&stkd_conf_table, conf, tree, NULL, err);
	for (size_t i = before; !r && i < conf->nstreams; i++) {
		r = make_absolute(conf->streams[i], dir, err);
		if (r == 0)
			r = stk_spec_read_edges(conf->streams[i], err);
	}
	return r;
}

static int is_config_name(const struct dirent *entry)
{
	const char *dot = strrchr(entry->d_name, '.');

	return *entry->d_name != '.' && dot && !strcmp(dot, ".yaml");
}

/* By bytes: the order must not depend on the locale. */
static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int load_directory(struct stkd_conf *conf, const char *dir, struct stk_err *err)
{
	struct dirent **entries;
	int n = scandir(dir, &entries, is_config_name, by_name), r = 0;

	if (n < 0 && errno == ENOENT)
		return 0;
	if (n < 0)
		return stk_err_set(err, -errno, "%s: cannot be read: %m", dir);
	for (int i = 0; i < n; i++) {
		_cleanup_(stk_freep) char *path = NULL;

		if (!r && asprintf(&path, "%s/%s", dir, entries[i]->d_name) < 0) {
			path = NULL;
			r = stk_err_set(err, -ENOMEM, "%s: no memory", dir);
		}
		if (!r)
			r = load_file(conf, path, err);
		free(entries[i]);
	}
	free(entries);
	return r;
}

int stkd_conf_load(const char *path, struct stkd_conf **ret, struct stk_err *err)
{
	_cleanup_(stkd_conf_freep) struct stkd_conf *conf = NULL;
	_cleanup_(stk_freep) char *dir = NULL;
	int r;

	r = stkd_conf_new(&conf, err);
	if (r < 0)
		return r;
	r = load_file(conf, path, err);
	if (r < 0)
		return r;
	if (asprintf(&dir, "%s.d", path) < 0) {
		dir = NULL;
		return stk_err_set(err, -ENOMEM, "%s: no memory", path);
	}
	r = load_directory(conf, dir, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(conf);
	return 0;
}

struct stkd_conf *stkd_conf_free(struct stkd_conf *conf)
{
	if (!conf)
		return NULL;
	for (size_t i = 0; i < conf->nstreams; i++)
		stk_spec_free(conf->streams[i]);
	free(conf->streams);
	names_free(conf->users);
	names_free(conf->groups);
	free(conf->socket);
	free(conf);
	return NULL;
}

const struct stk_spec *stkd_conf_stream(const struct stkd_conf *conf, const char *name)
{
	for (size_t i = 0; i < conf->nstreams; i++)
		if (!strcmp(conf->streams[i]->name, name))
			return conf->streams[i];
	return NULL;
}
