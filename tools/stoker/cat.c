/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker cat: one client that prints every ring entry as a line of JSON. Takes its seat like a
 * trainer, so it shows what a trainer would get. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/stoker.h"
#include "proto/base.h"
#include "proto/err.h"
#include "tools/stoker/batchline.h"
#include "tools/stoker/commands.h"
#include "tools/stoker/source.h"

static const char usage_text[] =
	"usage: stoker cat STREAM|PATH|SPEC.yaml [KEY=VALUE ...] [OPTIONS]\n"
	"\n"
	"Prints each batch that a trainer would get as one JSON line.\n"
	"\n"
	"  --rank R --world W           which data-parallel rank of how many (0 of 1)\n"
	"  --replica I --replicas N     which seat of the rank of how many (0 of 1)\n"
	"  --job NAME                   needed when several processes make one job\n"
	"  --socket PATH                this daemon (default: a path or a spec starts a private "
	"one)\n"
	"  --epochs N, --steps N        end after so many (default: one epoch)\n"
	"  --state FILE                 continue from FILE if it exists, and save there at the "
	"end\n"
	"  --data                       print lengths and values too\n"
	"  --timeout SECONDS            fail when no batch comes for so long\n";

struct cat {
	struct stk_client_opts opts;
	const char *state_path;
	uint64_t epochs, steps; /* 0: no limit */
	int timeout_ms;
	bool data;
	bool terminal; /* standard error is one */
	struct source source;
	uint8_t state[STK_STATE_MAX];
};

enum {
	OPT_RANK = 256,
	OPT_WORLD,
	OPT_REPLICA,
	OPT_REPLICAS,
	OPT_JOB,
	OPT_SOCKET,
	OPT_EPOCHS,
	OPT_STEPS,
	OPT_STATE,
	OPT_DATA,
	OPT_TIMEOUT,
	OPT_HELP
};

static const struct option options[] = {
	{"rank", required_argument, NULL, OPT_RANK},
	{"world", required_argument, NULL, OPT_WORLD},
	{"replica", required_argument, NULL, OPT_REPLICA},
	{"replicas", required_argument, NULL, OPT_REPLICAS},
	{"job", required_argument, NULL, OPT_JOB},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"epochs", required_argument, NULL, OPT_EPOCHS},
	{"steps", required_argument, NULL, OPT_STEPS},
	{"state", required_argument, NULL, OPT_STATE},
	{"data", no_argument, NULL, OPT_DATA},
	{"timeout", required_argument, NULL, OPT_TIMEOUT},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

static int number(const char *name, uint64_t min, uint64_t max, uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(optarg, &end, 10);
	if (!errno && end != optarg && !*end && optarg[0] >= '0' && optarg[0] <= '9' &&
	    *ret >= min && *ret <= max)
		return 0;
	fprintf(stderr, "stoker cat: --%s %s: a number from %" PRIu64 " to %" PRIu64 "\n", name,
		optarg, min, max);
	return -EINVAL;
}

static int number32(const char *name, uint32_t min, uint32_t *ret)
{
	uint64_t n = 0;
	int r = number(name, min, UINT32_MAX, &n);

	*ret = (uint32_t)n;
	return r;
}

static int parse_option(struct cat *c, int option)
{
	uint64_t n = 0;
	int r;

	switch (option) {
	case OPT_RANK:
		return number32("rank", 0, &c->opts.rank);
	case OPT_WORLD:
		return number32("world", 1, &c->opts.world);
	case OPT_REPLICA:
		return number32("replica", 0, &c->opts.replica);
	case OPT_REPLICAS:
		return number32("replicas", 1, &c->opts.replicas);
	case OPT_EPOCHS:
		return number("epochs", 1, UINT64_MAX, &c->epochs);
	case OPT_STEPS:
		return number("steps", 1, UINT64_MAX, &c->steps);
	case OPT_TIMEOUT:
		r = number("timeout", 0, INT32_MAX / 1000, &n);
		c->timeout_ms = (int)(n * 1000);
		return r;
	case OPT_JOB:
		c->opts.job = optarg;
		return 0;
	case OPT_SOCKET:
		c->opts.socket = optarg;
		return 0;
	case OPT_STATE:
		c->state_path = optarg;
		return 0;
	case OPT_DATA:
		c->data = true;
		return 0;
	default:
		return -EINVAL;
	}
}

static int load_state(struct cat *c)
{
	_cleanup_(stk_freep) char *text = NULL;
	size_t size;
	int r;

	if (!c->state_path)
		return 0;
	r = source_read_file(c->state_path, sizeof(c->state), &text, &size);
	if (r == -ENOENT)
		return 0;
	if (r == 0 && !size)
		r = -EBADMSG;
	if (r < 0) {
		fprintf(stderr, "stoker cat: state %s: %s\n", c->state_path, strerror(-r));
		return r;
	}
	memcpy(c->state, text, size);
	c->opts.state = c->state;
	c->opts.state_size = size;
	return 0;
}

static int write_whole(int fd, const void *bytes, size_t size)
{
	ssize_t n = write(fd, bytes, size);

	if (n != (ssize_t)size)
		return n < 0 ? -errno : -EIO;
	return fsync(fd) < 0 ? -errno : 0;
}

/* Beside it first, so that a crash leaves the old state or the new one. */
static int save_state(const struct cat *c, const struct stk_client *client)
{
	_cleanup_(stk_freep) char *temporary = NULL;
	_cleanup_(stk_closep) int fd = -1;
	uint8_t state[STK_STATE_MAX];
	int size, r;

	if (!c->state_path)
		return 0;
	size = stk_client_state(client, state, sizeof(state));
	if (asprintf(&temporary, "%s.XXXXXX", c->state_path) < 0) {
		temporary = NULL;
		return -ENOMEM;
	}
	fd = mkostemp(temporary, O_CLOEXEC);
	r = fd < 0 ? -errno : write_whole(fd, state, (size_t)size);
	if (r == 0 && (fchmod(fd, 0644) < 0 || rename(temporary, c->state_path) < 0))
		r = -errno;
	if (r < 0) {
		fprintf(stderr, "stoker cat: state %s: %s\n", c->state_path, strerror(-r));
		if (fd >= 0)
			unlink(temporary);
	}
	return r;
}

static void progress(void *data, const char *stage, uint64_t done, uint64_t total)
{
	const struct cat *c = data;

	if (!c->terminal)
		return;
	fprintf(stderr, "\r\033[K%s", stage);
	if (total)
		fprintf(stderr, " %" PRIu64 " of %" PRIu64, done, total);
	fflush(stderr);
}

struct seen {
	uint64_t epochs, steps; /* that ended */
	uint64_t epoch;         /* of the last batch: the one that ends next */
};

static void print_batch(const struct cat *c, struct stk_batch *batch, struct seen *seen)
{
	struct stk_batch_info info = {.size = sizeof(info)};

	stk_batch_info(batch, &info);
	batchline_print(stdout, batch, c->data);
	seen->steps += info.last_micro;
	seen->epoch = info.epoch;
	stk_batch_release(batch);
}

static bool is_enough(const struct cat *c, const struct seen *seen)
{
	return (c->epochs && seen->epochs >= c->epochs) || (c->steps && seen->steps >= c->steps);
}

/* 0 at the end asked for; a negative errno otherwise, with a line on stderr. */
static int print_all(const struct cat *c, struct stk_client *client)
{
	struct seen seen = {0};

	while (!is_enough(c, &seen)) {
		struct stk_batch *batch;
		int r = stk_client_next(client, c->timeout_ms, &batch);

		if (r == 0) {
			print_batch(c, batch, &seen);
		} else if (r == STK_EPOCH_END) {
			printf("{\"kind\":\"epoch_end\",\"epoch\":%" PRIu64 "}\n", seen.epoch);
			seen.epochs++;
		} else if (r == STK_STREAM_END) {
			puts("{\"kind\":\"stream_end\"}");
			return 0;
		} else if (r == STK_TIMEOUT) {
			fprintf(stderr, "stoker cat: no batch for %d s\n", c->timeout_ms / 1000);
			return -ETIMEDOUT;
		} else {
			fprintf(stderr, "stoker cat: %s\n", stk_client_error(client));
			return r;
		}
		if (ferror(stdout))
			break;
	}
	return 0;
}

static void print_notice(const struct stk_client *client)
{
	struct stk_client_info info = {.size = sizeof(info)};

	if (stk_client_info(client, &info) == 0 && info.notice)
		fprintf(stderr, "stoker cat: %s\n", info.notice);
}

static int run(struct cat *c)
{
	struct stk_client *client;
	char error[1024];
	int r;

	r = load_state(c);
	if (r < 0)
		return 1;
	r = stk_client_open(&c->opts, &client, error, sizeof(error));
	if (c->terminal)
		fputs("\r\033[K", stderr);
	if (r < 0) {
		fprintf(stderr, "stoker cat: %s\n", error);
		return 1;
	}
	print_notice(client);
	r = print_all(c, client);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "stoker cat: standard output: %m\n");
		r = -EIO; /* what was not printed is not to be skipped next time */
	} else if (save_state(c, client) < 0) {
		r = -EIO;
	}
	stk_client_close(client);
	return r < 0 ? 1 : 0;
}

int stoker_cat(int argc, char **argv)
{
	struct cat c = {.opts.size = sizeof(c.opts), .opts.progress = progress, .timeout_ms = -1};
	int option, status = 2;

	c.opts.progress_data = &c;
	c.terminal = isatty(STDERR_FILENO);
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == OPT_HELP) {
			fputs(usage_text, stdout);
			return 0;
		}
		if (parse_option(&c, option) < 0)
			return 2;
	}
	if (!c.epochs && !c.steps)
		c.epochs = 1;
	if (optind == argc)
		fputs(usage_text, stderr);
	else if (source_take("stoker cat", argv + optind, (size_t)(argc - optind), &c.source,
			     &c.opts) == 0)
		status = run(&c);
	source_deinit(&c.source);
	return status;
}
