/* SPDX-License-Identifier: Apache-2.0 */
/* stokerd: options, configuration, then the server until it is told to stop. */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "daemon/conf.h"
#include "daemon/log.h"
#include "daemon/serve/server.h"
#include "daemon/shard/guard.h"
#include "proto/keys.h"

static const char usage_text[] =
	"usage: stokerd [OPTIONS]\n"
	"\n"
	"  --config FILE     configuration (default: " STK_CONF_PATH " if it exists)\n"
	"  --check-config    read the configuration, say what is wrong with it, and exit\n"
	"  --socket PATH     control socket instead of the configured one\n"
	"  --private         serve this user only, end after the last client\n"
	"  --linger TIME     --private: how long after the last client (5s)\n"
	"  --drop-log FILE   remove FILE (where stderr goes) at a clean end\n"
	"  --ready-fd N      write \"ok\" or \"error: TEXT\" there when started\n"
	"  --workers N       worker threads in all\n"
	"  --memory SIZE     memory for the slots of all feeds\n"
	"  --verbose         log more\n"
	"  --version, --help\n";

enum {
	OPT_CONFIG = 256,
	OPT_CHECK,
	OPT_SOCKET,
	OPT_PRIVATE,
	OPT_LINGER,
	OPT_READY_FD,
	OPT_WORKERS,
	OPT_MEMORY,
	OPT_VERBOSE,
	OPT_DROP_LOG,
	OPT_VERSION,
	OPT_HELP
};

static const struct option options[] = {
	{"config", required_argument, NULL, OPT_CONFIG},
	{"check-config", no_argument, NULL, OPT_CHECK},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"private", no_argument, NULL, OPT_PRIVATE},
	{"linger", required_argument, NULL, OPT_LINGER},
	{"ready-fd", required_argument, NULL, OPT_READY_FD},
	{"workers", required_argument, NULL, OPT_WORKERS},
	{"memory", required_argument, NULL, OPT_MEMORY},
	{"drop-log", required_argument, NULL, OPT_DROP_LOG},
	{"verbose", no_argument, NULL, OPT_VERBOSE},
	{"version", no_argument, NULL, OPT_VERSION},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

struct command {
	struct stkd_server_opts server;
	const char *conf_path;
	bool check;
	bool done; /* --help or --version was answered */
};

/* Options that are configuration keys too are parsed by the key table: "workers=4". */
static int parse_key(const char *key, const char *value, struct stkd_conf *into,
		     struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	_cleanup_(stk_freep) char *word = NULL;
	int r;

	if (asprintf(&word, "%s=%s", key, value) < 0) {
		word = NULL;
		return stk_err_set(err, -ENOMEM, "out of memory");
	}
	r = stk_tree_from_words(&word, 1, &tree, err);
	return r < 0 ? r : stk_keys_walk(&stkd_conf_table, into, tree, NULL, err);
}

static int parse_fd(const char *text, int *ret, struct stk_err *err)
{
	char *end;
	long n = strtol(text, &end, 10);

	if (end == text || *end || n < 0 || n > 1 << 20 || fcntl((int)n, F_SETFD, FD_CLOEXEC) < 0)
		return stk_err_set(err, -EINVAL, "--ready-fd: %s is not an open descriptor", text);
	*ret = (int)n;
	return 0;
}

static int parse_option(int option, struct command *c, struct stkd_conf *keys, struct stk_err *err)
{
	switch (option) {
	case OPT_CONFIG:
		c->conf_path = optarg;
		return 0;
	case OPT_CHECK:
		c->check = true;
		return 0;
	case OPT_SOCKET:
		c->server.socket = optarg;
		return 0;
	case OPT_PRIVATE:
		c->server.private_mode = true;
		return 0;
	case OPT_READY_FD:
		return parse_fd(optarg, &c->server.ready_fd, err);
	case OPT_LINGER:
		return parse_key("linger", optarg, keys, err);
	case OPT_WORKERS:
		return parse_key("workers", optarg, keys, err);
	case OPT_MEMORY:
		return parse_key("memory", optarg, keys, err);
	case OPT_DROP_LOG:
		c->server.remove_at_end = optarg;
		return 0;
	case OPT_VERBOSE:
		stkd_log_init(STKD_LOG_DEBUG);
		return 0;
	case OPT_VERSION:
		puts("stokerd " STK_RELEASE);
		c->done = true;
		return 0;
	case OPT_HELP:
		fputs(usage_text, stdout);
		c->done = true;
		return 0;
	default:
		return stk_err_set(err, -EINVAL, "wrong usage; see stokerd --help");
	}
}

static int parse_command(int argc, char **argv, struct command *c, struct stk_err *err)
{
	_cleanup_(stkd_conf_freep) struct stkd_conf *keys = NULL;
	uint32_t linger;
	int option, r;

	r = stkd_conf_new(&keys, err);
	if (r < 0)
		return r;
	linger = keys->linger_ms;
	keys->workers = 0;
	keys->memory = 0;
	while (!c->done && (option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		r = parse_option(option, c, keys, err);
		if (r < 0)
			return r;
	}
	if (optind < argc)
		return stk_err_set(err, -EINVAL, "\"%s\" is not an option; see stokerd --help",
				   argv[optind]);
	c->server.workers = keys->workers;
	c->server.memory = keys->memory;
	c->server.linger_ms = keys->linger_ms != linger ? keys->linger_ms : 0;
	return 0;
}

/* No data file ever gets the number of a standard descriptor. */
static void fill_standard_fds(void)
{
	int fd;

	do {
		fd = open("/dev/null", O_RDWR);
	} while (fd >= 0 && fd <= STDERR_FILENO);
	if (fd >= 0)
		close(fd);
}

static void raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static int load_conf(struct command *c, struct stk_err *err)
{
	if (!c->conf_path && !c->server.private_mode && access(STK_CONF_PATH, F_OK) == 0)
		c->conf_path = STK_CONF_PATH;
	if (!c->conf_path)
		return stkd_conf_new(&c->server.conf, err);
	c->server.conf_path = c->conf_path;
	return stkd_conf_load(c->conf_path, &c->server.conf, err);
}

/* Whoever started us and waits for the ready message hears of early failures too. */
static int fail(const struct command *c, const struct stk_err *err)
{
	log_error("%s", err->text);
	if (c->server.ready_fd >= 0)
		dprintf(c->server.ready_fd, "error: %s\n", err->text);
	return err->code == -EINVAL ? 2 : 1;
}

int main(int argc, char **argv)
{
	struct command c = {.server.ready_fd = -1};
	struct stk_err err = {0};
	int r;

	fill_standard_fds();
	stkd_log_init(STKD_LOG_INFO);
	if (parse_command(argc, argv, &c, &err) < 0)
		return fail(&c, &err);
	if (c.done)
		return 0;
	if (load_conf(&c, &err) < 0)
		return fail(&c, &err);
	if (c.check) {
		printf("%s: %zu streams, fine\n", c.conf_path ? c.conf_path : "built-in defaults",
		       c.server.conf->nstreams);
		stkd_conf_free(c.server.conf);
		return 0;
	}
	raise_descriptor_limit();
	r = stkd_guard_install();
	if (r < 0) {
		stk_err_set(&err, r, "SIGBUS handler: %s", strerror(-r));
		return fail(&c, &err);
	}
	return stkd_server_run(&c.server);
}
