/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer that a test steers: reads one command a line on standard input, answers each with one
 * line of JSON. Uses the public header only, as a trainer would. One thread.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/stoker.h"

#define KEYS_MAX    64
#define BATCHES_MAX 4096
#define BURST_MAX   4096
#define WAIT_MS     20000 /* run: nobody waits longer than this for a batch */
#define CHILD_S     60    /* a forked child ends by itself */

struct trainer {
	struct stk_client_opts opts;
	struct stk_client *client;
	struct stk_batch *held[BATCHES_MAX]; /* by number, NULL once released */
	unsigned nheld;
	uint8_t state[STK_STATE_MAX];
	const char *keys[KEYS_MAX + 1];
	unsigned nkeys;
};

/* JSON. */

static void put_text(const char *text)
{
	putchar('"');
	for (; text && *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\' || c < 0x20)
			printf("\\u%04x", c);
		else
			putchar(c);
	}
	putchar('"');
}

static void put_hex(const void *data, size_t size)
{
	const uint8_t *bytes = data;

	putchar('"');
	for (size_t i = 0; i < size; i++)
		printf("%02x", bytes[i]);
	putchar('"');
}

static void put_outcome(const struct trainer *t, int r)
{
	printf("\"r\":%d", r);
	if (r < 0) {
		printf(",\"error\":");
		put_text(t->client ? stk_client_error(t->client) : "closed");
	}
}

static void put_ids(const struct stk_batch_info *info)
{
	printf(",\"ids\":[");
	for (uint32_t i = 0; i < info->nids; i++)
		printf("%s%lld", i ? "," : "", (long long)info->sample_ids[i]);
	printf("],\"lengths\":[");
	for (uint32_t i = 0; i < info->nids; i++)
		printf("%s%u", i ? "," : "", info->lengths[i]);
	printf("]");
}

static void put_tensors(const struct stk_batch *batch)
{
	struct stk_tensor tensor;

	printf(",\"tensors\":{");
	for (uint32_t i = 0; stk_batch_tensor_at(batch, i, &tensor) == 0; i++) {
		if (i)
			putchar(',');
		put_text(tensor.name);
		printf(":{\"element\":%u,\"shape\":[", tensor.element);
		for (uint32_t d = 0; d < tensor.ndim; d++)
			printf("%s%llu", d ? "," : "", (unsigned long long)tensor.shape[d]);
		printf("],\"hex\":");
		put_hex(tensor.data, tensor.size);
		putchar('}');
	}
	putchar('}');
}

static void put_batch(const struct stk_batch *batch, bool data)
{
	struct stk_batch_info i = {.size = sizeof(i)};
	int r = stk_batch_info(batch, &i);

	printf("\"r\":%d", r);
	if (r < 0)
		return;
	printf(",\"epoch\":%llu,\"step\":%llu,\"micro\":%u,\"last\":%u,\"class\":%u,\"edge\":%u,"
	       "\"rows\":%u,\"real\":%u,\"width\":%u,\"era\":%u,\"tokens\":%llu,\"padded\":%llu,"
	       "\"global\":%llu,\"slot\":%u,\"size\":%llu",
	       (unsigned long long)i.epoch, (unsigned long long)i.step, i.micro, i.last_micro,
	       i.shape_class, i.edge, i.rows, i.rows_real, i.width, i.era,
	       (unsigned long long)i.real_tokens, (unsigned long long)i.padded_tokens,
	       (unsigned long long)i.global_tokens, i.slot, (unsigned long long)i.data_size);
	put_ids(&i);
	if (data)
		put_tensors(batch);
}

/* Commands. */

static unsigned hold(struct trainer *t, struct stk_batch *batch)
{
	if (t->nheld == BATCHES_MAX) {
		fprintf(stderr, "trainer: more than %d batches\n", BATCHES_MAX);
		exit(2);
	}
	t->held[t->nheld] = batch;
	return t->nheld++;
}

static struct stk_batch *find(const struct trainer *t, const char *arg)
{
	unsigned n = (unsigned)strtoul(arg, NULL, 10);

	return n < t->nheld ? t->held[n] : NULL;
}

/* next [TIMEOUT_MS] [data] */
static void command_next(struct trainer *t, char *arg)
{
	struct stk_batch *batch;
	int r = stk_client_next(t->client, *arg ? atoi(arg) : WAIT_MS, &batch);

	if (r != 0) {
		put_outcome(t, r);
		return;
	}
	printf("\"batch\":%u,", hold(t, batch));
	put_batch(batch, strstr(arg, "data"));
}

/* Takes everything that is ready and keeps it. */
static void command_hold(struct trainer *t, char *arg)
{
	struct stk_batch *batch;
	unsigned n = 0;
	int r;

	(void)arg;
	while ((r = stk_client_next(t->client, 0, &batch)) == 0) {
		hold(t, batch);
		n++;
	}
	printf("\"held\":%u,", n);
	put_outcome(t, r);
}

/* release NUMBER | all */
static void command_release(struct trainer *t, char *arg)
{
	for (unsigned i = 0; i < t->nheld; i++) {
		if (strcmp(arg, "all") != 0 && i != (unsigned)strtoul(arg, NULL, 10))
			continue;
		stk_batch_release(t->held[i]);
		t->held[i] = NULL;
	}
	printf("\"r\":0");
}

static void command_tensors(struct trainer *t, char *arg)
{
	const struct stk_batch *batch = find(t, arg);

	if (batch)
		put_batch(batch, true);
	else
		printf("\"r\":%d", -ENOENT);
}

/* run ENTRIES [data]: takes and releases up to that many entries, 0: to the end of the stream. */
static void command_run(struct trainer *t, char *arg)
{
	unsigned long left = strtoul(arg, NULL, 10);
	bool endless = !left, data = strstr(arg, "data");
	struct stk_batch *batch;
	const char *comma = "";
	int r = 0;

	printf("\"entries\":[");
	while ((endless || left--) && (r == 0 || r == STK_EPOCH_END)) {
		fflush(stdout); /* a daemon may be started in there; a sanitizer's _exit() flushes too */
		r = stk_client_next(t->client, WAIT_MS, &batch);
		if (r != 0 && r != STK_EPOCH_END)
			break;
		printf("%s{", comma);
		comma = ",";
		if (r == 0) {
			put_batch(batch, data);
			stk_batch_release(batch);
		} else {
			printf("\"r\":%d", r);
		}
		putchar('}');
	}
	printf("],");
	put_outcome(t, r);
}

static int by_value(const void *a, const void *b)
{
	const long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

static long now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000L + ts.tv_nsec;
}

/* burst N: next and release of ready batches only, between two getppid() for a tracer to see. */
static void command_burst(struct trainer *t, char *arg)
{
	static long took[BURST_MAX];
	unsigned long want = strtoul(arg, NULL, 10), n = 0;
	struct stk_batch *batch;
	int r = 0;

	getppid();
	while (n < want && n < BURST_MAX) {
		long start = now_ns();

		r = stk_client_next(t->client, 0, &batch);
		if (r != 0)
			break;
		stk_batch_release(batch);
		took[n++] = now_ns() - start;
	}
	getppid();
	qsort(took, n, sizeof(*took), by_value);
	printf("\"n\":%lu,\"p50_ns\":%ld,", n, n ? took[n / 2] : 0);
	put_outcome(t, r);
}

/* state [NUMBER] */
static void command_state(struct trainer *t, char *arg)
{
	int r = *arg ? -ENOENT : stk_client_state(t->client, t->state, sizeof(t->state));

	if (*arg && find(t, arg))
		r = stk_batch_state(find(t, arg), t->state, sizeof(t->state));
	put_outcome(t, r < 0 ? r : 0);
	if (r >= 0) {
		printf(",\"state\":");
		put_hex(t->state, (size_t)r);
	}
}

static size_t from_hex(const char *text, uint8_t *bytes, size_t room)
{
	size_t n = 0;
	unsigned byte;

	for (; n < room && sscanf(text + 2 * n, "%2x", &byte) == 1; n++)
		bytes[n] = (uint8_t)byte;
	return n;
}

/* seek [HEX] */
static void command_seek(struct trainer *t, char *arg)
{
	size_t n = from_hex(arg, t->state, sizeof(t->state));

	put_outcome(t, stk_client_seek(t->client, n ? t->state : NULL, n));
}

static _Noreturn void be_child(void)
{
	close(0);
	close(1);
	close(2);
	alarm(CHILD_S);
	for (;;)
		pause();
}

/* fork [raw]: leaves a living child; raw: one in which libstoker does not close what it inherited. */
static void command_fork(struct trainer *t, char *arg)
{
	pid_t pid;

	(void)t;
	fflush(stdout);
	pid = !strcmp(arg, "raw") ? _Fork() : fork();
	if (pid == 0)
		be_child();
	printf("\"r\":0,\"pid\":%d", (int)pid);
}

/* childnext: what next() says in a forked child. */
static void command_childnext(struct trainer *t, char *arg)
{
	struct stk_batch *batch;
	int ends[2], r = 0;

	(void)arg;
	fflush(stdout);
	if (pipe(ends) < 0)
		exit(2);
	if (fork() == 0) {
		r = stk_client_next(t->client, 0, &batch);
		_exit(write(ends[1], &r, sizeof(r)) != sizeof(r));
	}
	if (read(ends[0], &r, sizeof(r)) != sizeof(r))
		r = -EIO;
	close(ends[0]);
	close(ends[1]);
	printf("\"r\":%d", r);
}

/* poll TIMEOUT_MS: of the client's descriptor */
static void command_poll(struct trainer *t, char *arg)
{
	struct pollfd p = {.fd = stk_client_fd(t->client), .events = POLLIN};

	printf("\"r\":%d", p.fd < 0 ? p.fd : poll(&p, 1, atoi(arg)));
}

static void command_shapes(struct trainer *t, char *arg)
{
	struct stk_shape_info s = {.size = sizeof(s)};

	(void)arg;
	printf("\"r\":0,\"shapes\":[");
	for (uint32_t i = 0; stk_client_shape(t->client, i, &s) == 0; i++)
		printf("%s[%u,%u,%u,%u,%u,%u,%u,%u]", i ? "," : "", s.edge, s.rows, s.width_min,
		       s.width_max, s.width_multiple, s.edge2, s.width2_min, s.width2_max);
	putchar(']');
}

static void put_client(const struct trainer *t)
{
	struct stk_client_info i = {.size = sizeof(i)};
	int r = stk_client_info(t->client, &i);

	printf("\"r\":%d", r);
	if (r < 0)
		return;
	printf(",\"samples\":%llu,\"steps\":%llu,\"dropped\":%llu,\"truncated\":%llu,"
	       "\"promoted\":%llu,\"tail_dropped\":%llu,\"masked\":%llu,\"slots\":%u,"
	       "\"slot_size\":%llu,\"daemon_pid\":%d,\"private\":%u,\"socket\":",
	       (unsigned long long)i.samples, (unsigned long long)i.steps_per_epoch,
	       (unsigned long long)i.overlong_dropped, (unsigned long long)i.truncated,
	       (unsigned long long)i.promoted, (unsigned long long)i.tail_dropped,
	       (unsigned long long)i.masked, i.slots, (unsigned long long)i.slot_size, i.daemon_pid,
	       i.private_daemon);
	put_text(i.socket);
	printf(",\"job\":");
	put_text(i.job);
}

static void command_info(struct trainer *t, char *arg)
{
	(void)arg;
	put_client(t);
}

static void command_close(struct trainer *t, char *arg)
{
	(void)arg;
	t->client = stk_client_close(t->client);
	printf("\"r\":0");
}

/* cycles N: leaves, attaches anew and takes one batch, again and again. */
static void command_cycles(struct trainer *t, char *arg)
{
	struct stk_batch *batch;
	char error[1024] = "";
	int r = 0;

	for (int n = atoi(arg); n > 0 && r == 0; n--) {
		t->client = stk_client_close(t->client);
		r = stk_client_open(&t->opts, &t->client, error, sizeof(error));
		if (r == 0)
			r = stk_client_next(t->client, WAIT_MS, &batch);
		if (r == 0)
			stk_batch_release(batch);
	}
	printf("\"r\":%d,\"error\":", r);
	put_text(error);
}

static const struct {
	const char *name;
	void (*run)(struct trainer *t, char *arg);
	bool closed; /* allowed after close */
} commands[] = {
	{"next", command_next, false},      {"hold", command_hold, false},
	{"release", command_release, true}, {"tensors", command_tensors, true},
	{"run", command_run, false},        {"burst", command_burst, false},
	{"state", command_state, false},    {"seek", command_seek, false},
	{"fork", command_fork, true},       {"childnext", command_childnext, false},
	{"poll", command_poll, false},      {"shapes", command_shapes, false},
	{"info", command_info, false},      {"close", command_close, true},
	{"cycles", command_cycles, true},
};

static void answer(struct trainer *t, char *line)
{
	char *arg;

	line[strcspn(line, "\n")] = '\0';
	arg = line + strcspn(line, " ");
	if (*arg)
		*arg++ = '\0';
	putchar('{');
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		if (strcmp(commands[i].name, line) != 0)
			continue;
		if (t->client || commands[i].closed)
			commands[i].run(t, arg);
		else
			put_outcome(t, -ENOTCONN);
		printf("}\n");
		fflush(stdout);
		return;
	}
	fprintf(stderr, "trainer: unknown command %s\n", line);
	exit(2);
}

/* Options. */

static bool take_option(struct trainer *t, const char *name, const char *value)
{
	struct stk_client_opts *o = &t->opts;
	const struct {
		const char *name;
		const char **text;
		uint32_t *number;
	} options[] = {
		{"--stream", &o->stream, NULL},
		{"--path", &o->path, NULL},
		{"--spec", &o->spec, NULL},
		{"--job", &o->job, NULL},
		{"--socket", &o->socket, NULL},
		{"--daemon", NULL, &o->daemon},
		{"--rank", NULL, &o->rank},
		{"--world", NULL, &o->world},
		{"--replica", NULL, &o->replica},
		{"--replicas", NULL, &o->replicas},
		{"--attach-timeout", NULL, (uint32_t *)&o->attach_timeout_ms},
		{"--reconnect", NULL, (uint32_t *)&o->reconnect_ms},
	};

	if (!strcmp(name, "--state")) {
		o->state = t->state;
		o->state_size = from_hex(value, t->state, sizeof(t->state));
		return true;
	}
	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
		if (strcmp(options[i].name, name) != 0)
			continue;
		if (options[i].text)
			*options[i].text = value;
		else
			*options[i].number = (uint32_t)strtol(value, NULL, 10);
		return true;
	}
	return false;
}

static void take_options(struct trainer *t, int argc, char **argv)
{
	t->opts.size = sizeof(t->opts);
	t->opts.keys = t->keys;
	for (int i = 1; i < argc; i++) {
		if (argv[i][0] != '-' && strchr(argv[i], '=') && t->nkeys < KEYS_MAX) {
			t->keys[t->nkeys++] = argv[i];
		} else if (i + 1 < argc && take_option(t, argv[i], argv[i + 1])) {
			i++;
		} else {
			fprintf(stderr, "trainer: %s?\n", argv[i]);
			exit(2);
		}
	}
}

int main(int argc, char **argv)
{
	static struct trainer t;
	static char line[2 * STK_STATE_MAX + 64];
	char error[1024] = "";
	int r;

	take_options(&t, argc, argv);
	r = stk_client_open(&t.opts, &t.client, error, sizeof(error));
	putchar('{');
	if (r < 0) {
		printf("\"r\":%d,\"error\":", r);
		put_text(error);
	} else {
		put_client(&t);
	}
	printf("}\n");
	fflush(stdout);
	if (r < 0)
		return 1;
	while (fgets(line, sizeof(line), stdin))
		answer(&t, line);
	for (unsigned i = 0; i < t.nheld; i++)
		stk_batch_release(t.held[i]);
	stk_client_close(t.client);
	return 0;
}
