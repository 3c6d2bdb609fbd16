/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stokerctl: looks at the daemons of this node through their control sockets. Uses libstoker's
 * public header only. One thread; nothing is kept between two looks.
 */
#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "client/stoker.h"

#define CALL_TIMEOUT_MS 5000
#define COLUMNS_MAX     16
#define CELL_MAX        160

enum { EXIT_FINE = 0, EXIT_NO = 1, EXIT_USAGE = 2 };

static const char usage_text[] =
	"usage: stokerctl [OPTIONS] COMMAND\n"
	"\n"
	"  status                            what each daemon is and uses\n"
	"  streams                           the streams it is configured for\n"
	"  jobs                              the runs that it feeds\n"
	"  queues                            depth of each queue, and who waits for whom\n"
	"  quarantine [STREAM [JOB]]         bad samples that were masked\n"
	"  detach STREAM JOB [RANK [SEAT]]   end seats of a job\n"
	"\n"
	"  --socket PATH      this daemon only (default: the system's and your private ones)\n"
	"  --json             machine-readable, one line for each look\n"
	"  --watch [SECONDS]  look again and again (default: every second)\n"
	"  --version, --help\n";

/* A text table: cells are collected, then printed with the widths they need. */
struct table {
	const char *const *heads; /* a leading '>' aligns right */
	size_t ncolumns, nrows;
	char (*cells)[COLUMNS_MAX][CELL_MAX];
};

struct options {
	const char *socket;
	bool json, watch;
	double interval_s;
};

/* Text of a daemon on a terminal: no control characters. */
static const char *clean(char *text)
{
	for (unsigned char *c = (unsigned char *)text; *c; c++)
		if (*c < ' ' || *c == 0x7f)
			*c = '?';
	return text;
}

/* Columns on a terminal: every byte but the continuation bytes of UTF-8. */
static size_t width(const char *text)
{
	size_t n = 0;

	for (; *text; text++)
		n += (*text & 0xc0) != 0x80;
	return n;
}

static void table_row(struct table *t)
{
	void *cells = realloc(t->cells, (t->nrows + 1) * sizeof(*t->cells));

	if (!cells) {
		fputs("stokerctl: no memory\n", stderr);
		exit(EXIT_NO);
	}
	t->cells = cells;
	memset(t->cells[t->nrows++], 0, sizeof(*t->cells));
}

static void __attribute__((format(printf, 3, 4)))
cell(struct table *t, size_t column, const char *fmt, ...)
{
	char *text = t->cells[t->nrows - 1][column];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, CELL_MAX, fmt, ap);
	va_end(ap);
	clean(text);
}

static void print_cell(const char *text, size_t room, bool right, bool last)
{
	int pad = (int)(room - width(text));

	if (right)
		printf("%*s%s", pad, "", text);
	else
		printf("%s%*s", text, last ? 0 : pad, "");
	fputs(last ? "\n" : "  ", stdout);
}

static void table_print(struct table *t, const char *empty)
{
	size_t widths[COLUMNS_MAX] = {0};

	if (!t->nrows) {
		printf("  %s\n", empty);
		return;
	}
	for (size_t c = 0; c < t->ncolumns; c++) {
		widths[c] = width(t->heads[c] + (t->heads[c][0] == '>'));
		for (size_t r = 0; r < t->nrows; r++)
			widths[c] = width(t->cells[r][c]) > widths[c] ? width(t->cells[r][c])
								      : widths[c];
	}
	for (size_t r = 0; r <= t->nrows; r++) {
		fputs("  ", stdout);
		for (size_t c = 0; c < t->ncolumns; c++) {
			bool right = t->heads[c][0] == '>';

			print_cell(r ? t->cells[r - 1][c] : t->heads[c] + right, widths[c], right,
				   c + 1 == t->ncolumns);
		}
	}
	free(t->cells);
	t->cells = NULL;
}

static const char *text_of(const json_t *object, const char *key)
{
	const char *text = json_string_value(json_object_get(object, key));

	return text ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
	return (long long)json_integer_value(json_object_get(object, key));
}

/* Each returns one of a few static buffers, enough for one row. */
static char *next_buffer(size_t *ret_size)
{
	static char buffers[8][64];
	static unsigned turn;

	*ret_size = sizeof(buffers[0]);
	return buffers[turn++ % 8];
}

static const char *duration(long long ms)
{
	size_t size;
	char *text = next_buffer(&size);

	if (ms < 1000)
		snprintf(text, size, "%lld ms", ms);
	else if (ms < 60000)
		snprintf(text, size, "%.1f s", (double)ms / 1e3);
	else if (ms < 3600000)
		snprintf(text, size, "%.1f min", (double)ms / 6e4);
	else
		snprintf(text, size, "%.1f h", (double)ms / 36e5);
	return text;
}

static const char *bytes(long long n)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double value = (double)n;
	size_t size, unit = 0;
	char *text = next_buffer(&size);

	while (value >= 1024 && unit < 4) {
		value /= 1024;
		unit++;
	}
	snprintf(text, size, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return text;
}

static const char *user(long long uid)
{
	const struct passwd *pw = getpwuid((uid_t)uid);
	size_t size;
	char *text = next_buffer(&size);

	if (pw)
		snprintf(text, size, "%s", pw->pw_name);
	else
		snprintf(text, size, "%lld", uid);
	return text;
}

static void show_status(const json_t *reply)
{
	const json_t *warning;
	size_t i;

	printf("  release    %s, protocol %lld\n", text_of(reply, "release"),
	       number_of(reply, "protocol"));
	printf("  process    %lld, up %s\n", number_of(reply, "pid"),
	       duration(number_of(reply, "uptime_s") * 1000));
	printf("  workers    %lld on %lld NUMA node%s\n", number_of(reply, "workers"),
	       number_of(reply, "nodes"), number_of(reply, "nodes") == 1 ? "" : "s");
	printf("  memory     %s of %s\n", bytes(number_of(reply, "memory_used")),
	       bytes(number_of(reply, "memory_limit")));
	printf("  serves     %lld job%s, %lld seat%s\n", number_of(reply, "jobs"),
	       number_of(reply, "jobs") == 1 ? "" : "s", number_of(reply, "seats"),
	       number_of(reply, "seats") == 1 ? "" : "s");
	json_array_foreach (json_object_get(reply, "warnings"), i, warning) {
		char text[1024];

		snprintf(text, sizeof(text), "%s",
			 json_string_value(warning) ? json_string_value(warning) : "");
		printf("  warning    %s\n", clean(text));
	}
}

static void show_streams(const json_t *reply)
{
	static const char *const heads[] = {"STREAM", "DATA", "GROUP", ">ROWS", ">TOKENS", ">JOBS"};
	struct table t = {heads, sizeof(heads) / sizeof(*heads), 0, NULL};
	const json_t *s;
	size_t i;

	json_array_foreach (json_object_get(reply, "streams"), i, s) {
		const json_t *spec = json_object_get(s, "spec");

		table_row(&t);
		cell(&t, 0, "%s", text_of(s, "name"));
		cell(&t, 1, "%s", text_of(s, "path"));
		cell(&t, 2, "%s", text_of(spec, "group"));
		cell(&t, 3, number_of(spec, "rows") ? "%lld" : "-", number_of(spec, "rows"));
		cell(&t, 4, number_of(spec, "tokens") ? "%lld" : "-", number_of(spec, "tokens"));
		cell(&t, 5, "%lld", number_of(s, "jobs"));
	}
	table_print(&t, "no streams are configured");
}

static void show_jobs(const json_t *reply)
{
	static const char *const heads[] = {"STREAM",  "JOB",   "USER",     ">WORLD",
					    ">SEATS",  ">SEED", ">SAMPLES", ">STEPS/EPOCH",
					    ">MEMORY", ">AGE"};
	struct table t = {heads, sizeof(heads) / sizeof(*heads), 0, NULL};
	const json_t *j;
	size_t i;

	json_array_foreach (json_object_get(reply, "jobs"), i, j) {
		table_row(&t);
		cell(&t, 0, "%s", text_of(j, "stream"));
		cell(&t, 1, "%s", text_of(j, "job"));
		cell(&t, 2, "%s", user(number_of(j, "uid")));
		cell(&t, 3, "%lld", number_of(j, "world"));
		cell(&t, 4, "%lld of %lld", number_of(j, "seats_taken"),
		     number_of(j, "world") * number_of(j, "replicas"));
		cell(&t, 5, "%lld", number_of(j, "seed"));
		cell(&t, 6, "%lld", number_of(j, "samples"));
		cell(&t, 7, "%lld", number_of(j, "steps_per_epoch"));
		cell(&t, 8, "%s", bytes(number_of(j, "memory_bytes")));
		cell(&t, 9, "%s", duration(number_of(j, "age_s") * 1000));
	}
	table_print(&t, "no jobs");
}

/* What the feed stands still for: its seats, the trainer, shards, stoker, or nothing. */
static const char *waits_for(const json_t *q)
{
	bool consumer_waits = false;
	const json_t *seat;
	size_t i;

	json_array_foreach (json_object_get(q, "seats"), i, seat)
		consumer_waits |= number_of(seat, "waiting_ms") > 0;
	if (!strcmp(text_of(q, "state"), "waiting"))
		return "seats";
	if (strcmp(text_of(q, "state"), "running"))
		return "-";
	if (number_of(q, "free") == 0 && number_of(q, "filling") == 0)
		return number_of(q, "leased") == number_of(q, "slots") ? "trainer (holds all slots)"
								       : "trainer";
	if (!consumer_waits || number_of(q, "ready"))
		return "-";
	return number_of(json_object_get(q, "work"), "blocked") ? "storage" : "stoker";
}

/* The seat that has held a batch for longest, and how long the consumers waited so far. */
static void cell_seats(struct table *t, size_t column, const json_t *q)
{
	long long oldest = -1, pid = 0, waited = 0, number = 0;
	const json_t *seat;
	size_t i;

	json_array_foreach (json_object_get(q, "seats"), i, seat) {
		const json_t *age = json_object_get(seat, "oldest_lease_ms");

		if (number_of(seat, "wait_ms") + number_of(seat, "waiting_ms") > waited)
			waited = number_of(seat, "wait_ms") + number_of(seat, "waiting_ms");
		if (json_is_integer(age) && json_integer_value(age) > oldest) {
			oldest = (long long)json_integer_value(age);
			pid = number_of(seat, "pid");
			number = number_of(seat, "seat");
		}
	}
	cell(t, column, "%s", duration(waited));
	if (oldest >= 0)
		cell(t, column + 2, "%s, seat %lld of pid %lld", duration(oldest), number, pid);
	else
		cell(t, column + 2, "-");
}

static void show_queues(const json_t *reply)
{
	static const char *const heads[] = {"STREAM",  "JOB",        ">RANK",       ">SLOTS",
					    ">READY",  ">LEASED",    ">FREE",       ">FILLING",
					    ">EPOCH",  ">PUBLISHED", ">CONSUMED",   "STATE",
					    ">WAITED", "WAITS FOR",  "OLDEST LEASE"};
	static const char *const numbers[] = {
		"slots",   "ready", "leased",          "free",
		"filling", "epoch", "steps_published", "steps_consumed"};
	struct table t = {heads, sizeof(heads) / sizeof(*heads), 0, NULL};
	const json_t *q;
	size_t i;

	json_array_foreach (json_object_get(reply, "queues"), i, q) {
		table_row(&t);
		cell(&t, 0, "%s", text_of(q, "stream"));
		cell(&t, 1, "%s", text_of(q, "job"));
		cell(&t, 2, "%lld of %lld", number_of(q, "rank"), number_of(q, "world"));
		for (size_t c = 0; c < 8; c++)
			cell(&t, 3 + c, "%lld", number_of(q, numbers[c]));
		cell(&t, 11, "%s", text_of(q, "state"));
		cell(&t, 13, "%s", waits_for(q));
		cell_seats(&t, 12, q);
	}
	table_print(&t, "no queues");
}

static void show_quarantine(const json_t *reply)
{
	static const char *const heads[] = {"STREAM", "JOB",   ">SAMPLE", "SHARD",
					    ">ROW",   ">BYTE", "FIELD",   "REASON"};
	struct table t = {heads, sizeof(heads) / sizeof(*heads), 0, NULL};
	const json_t *job, *bad;
	size_t i, k;

	json_array_foreach (json_object_get(reply, "jobs"), i, job) {
		json_array_foreach (json_object_get(job, "samples"), k, bad) {
			table_row(&t);
			cell(&t, 0, "%s", text_of(job, "stream"));
			cell(&t, 1, "%s", text_of(job, "job"));
			cell(&t, 2, "%lld", number_of(bad, "sample"));
			cell(&t, 3, "%s", text_of(bad, "shard"));
			cell(&t, 4, "%lld", number_of(bad, "row"));
			cell(&t, 5, json_object_get(bad, "offset") ? "%lld" : "-",
			     number_of(bad, "offset"));
			cell(&t, 6, "%s", text_of(bad, "field"));
			cell(&t, 7, "%s", text_of(bad, "reason"));
		}
	}
	table_print(&t, "no sample was masked");
	json_array_foreach (json_object_get(reply, "jobs"), i, job) {
		char name[CELL_MAX];

		if (!number_of(job, "rows"))
			continue;
		snprintf(name, sizeof(name), "%s", text_of(job, "job"));
		printf("  job %s: %lld rows masked so far%s\n", clean(name), number_of(job, "rows"),
		       json_is_true(json_object_get(job, "more")) ? ", of these and other samples"
								  : "");
	}
}

static void show_detach(const json_t *reply)
{
	printf("  detached %lld seat%s\n", number_of(reply, "detached"),
	       number_of(reply, "detached") == 1 ? "" : "s");
}

static const struct command {
	const char *name, *method;
	int min_args, max_args;
	bool reads; /* asks every daemon; else each may refuse, and one has to agree */
	void (*show)(const json_t *reply);
} commands[] = {
	{"status", "io.stoker.Status", 0, 0, true, show_status},
	{"streams", "io.stoker.Streams", 0, 0, true, show_streams},
	{"jobs", "io.stoker.Jobs", 0, 0, true, show_jobs},
	{"queues", "io.stoker.Queues", 0, 0, true, show_queues},
	{"quarantine", "io.stoker.Quarantine", 0, 2, true, show_quarantine},
	{"detach", "io.stoker.Detach", 2, 4, false, show_detach},
};

static int no_daemon(void)
{
	const char *socket = getenv("STOKER_SOCKET"), *run = getenv("XDG_RUNTIME_DIR"),
		   *tmp = getenv("TMPDIR");
	unsigned uid = (unsigned)geteuid();

	fprintf(stderr, "stokerctl: no stokerd listens; looked at %s",
		socket && *socket ? socket : "/run/stoker/stokerd.sock");
	if (run && *run)
		fprintf(stderr, ", %s/stoker", run);
	fprintf(stderr, ", /run/user/%u/stoker and %s/stoker-%u\n", uid,
		tmp && *tmp == '/' ? tmp : "/tmp", uid);
	return EXIT_NO;
}

/* The call's parameters from the words behind the command; NULL: wrong usage. */
static char *parameters_of(const struct command *c, char **words, int n)
{
	static const char *const names[] = {"stream", "job", "rank", "seat"};
	json_t *json = json_object();
	char *text;

	for (int i = 0; i < n; i++) {
		char *end;
		long number = strtol(words[i], &end, 10);

		if (i >= 2 && (*end || end == words[i] || number < 0)) {
			fprintf(stderr, "stokerctl: %s: %s \"%s\" is not a number\n", c->name,
				names[i], words[i]);
			json_decref(json);
			return NULL;
		}
		json_object_set_new(json, names[i],
				    i < 2 ? json_string(words[i]) : json_integer(number));
	}
	text = json_dumps(json, JSON_COMPACT);
	json_decref(json);
	return text;
}

/* One daemon's answer; NULL when it gave none, with a line on stderr where that matters. */
static json_t *ask(const char *socket, const struct command *c, const char *parameters, bool quiet)
{
	char error[1024], *text;
	json_t *reply;
	int r = stk_control_call(socket, c->method, parameters, CALL_TIMEOUT_MS, &text, error,
				 sizeof(error));

	if (r < 0) {
		if (!quiet)
			fprintf(stderr, "stokerctl: %s: %s\n", socket, clean(error));
		return NULL;
	}
	reply = json_loads(text, 0, NULL);
	free(text);
	return reply;
}

static void head(const char *socket)
{
	static const struct command status = {"status", "io.stoker.Status", 0, 0, true, NULL};
	json_t *reply = ask(socket, &status, NULL, true);
	char text[256];

	snprintf(text, sizeof(text), "%s stokerd at %s, process %lld",
		 json_is_true(json_object_get(reply, "private")) ? "private" : "system", socket,
		 number_of(reply, "pid"));
	printf("%s\n", clean(text));
	json_decref(reply);
}

/* Asks all daemons once. Returns how many answered. */
static int look(const struct command *c, const char *parameters, char **sockets, bool json)
{
	json_t *all = json_array();
	int answered = 0;

	for (int i = 0; sockets[i]; i++) {
		json_t *reply = ask(sockets[i], c, parameters, !c->reads && sockets[1]);

		if (!reply)
			continue;
		if (json) {
			json_object_set_new(reply, "socket", json_string(sockets[i]));
			json_array_append(all, reply);
		} else {
			if (answered)
				putchar('\n');
			head(sockets[i]);
			c->show(reply);
		}
		json_decref(reply);
		answered++;
	}
	if (json) {
		json_dumpf(all, stdout, JSON_COMPACT);
		putchar('\n');
	}
	json_decref(all);
	return answered;
}

static char **find_sockets(const struct options *o)
{
	char **sockets = NULL;

	if (!o->socket)
		return stk_control_sockets(&sockets) < 0 ? NULL : sockets;
	sockets = calloc(2, sizeof(*sockets));
	if (sockets)
		sockets[0] = strdup(o->socket);
	return sockets;
}

static int run_once(const struct options *o, const struct command *c, const char *parameters)
{
	char **sockets = find_sockets(o);
	int answered = 0;
	bool any = sockets && sockets[0], several = any && sockets[1];

	if (any)
		answered = look(c, parameters, sockets, o->json);
	for (int i = 0; sockets && sockets[i]; i++)
		free(sockets[i]);
	free(sockets);
	if (!any)
		return no_daemon();
	if (!answered && !c->reads && several)
		fprintf(stderr, "stokerctl: %s: no daemon has such a seat of yours\n", c->name);
	return answered ? EXIT_FINE : EXIT_NO;
}

static int run(const struct options *o, const struct command *c, const char *parameters)
{
	const struct timespec pause = {
		(time_t)o->interval_s,
		(long)((o->interval_s - (double)(time_t)o->interval_s) * 1e9)};
	bool terminal = isatty(STDOUT_FILENO);

	for (bool first = true;; first = false) {
		int status;

		if (o->watch && terminal && !o->json)
			fputs("\033[H\033[2J", stdout);
		else if (!first && !o->json)
			putchar('\n');
		status = run_once(o, c, parameters);
		if (fflush(stdout) || ferror(stdout)) {
			fprintf(stderr, "stokerctl: standard output: %m\n");
			return EXIT_NO;
		}
		if (!o->watch)
			return status;
		nanosleep(&pause, NULL);
	}
}

/* Letters that differ when two words are laid over one another, and the difference in length. */
static size_t distance(const char *a, const char *b)
{
	size_t la = strlen(a), lb = strlen(b), common = 0;

	while (common < la && common < lb && a[common] == b[common])
		common++;
	a += common, b += common, la -= common, lb -= common;
	for (; la && lb && a[la - 1] == b[lb - 1]; la--, lb--)
		;
	return la > lb ? la : lb;
}

static int unknown(const char *word)
{
	size_t best = 0;

	for (size_t i = 1; i < sizeof(commands) / sizeof(*commands); i++)
		if (distance(word, commands[i].name) < distance(word, commands[best].name))
			best = i;
	fprintf(stderr, "stokerctl: unknown command \"%s\"", word);
	if (distance(word, commands[best].name) <= strlen(word) / 2)
		fprintf(stderr, "; did you mean \"%s\"?", commands[best].name);
	fputs("\n", stderr);
	return EXIT_USAGE;
}

static int dispatch(const struct options *o, char **words, int n)
{
	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++) {
		const struct command *c = &commands[i];
		char *parameters;
		int status;

		if (strcmp(words[0], c->name))
			continue;
		if (n - 1 < c->min_args || n - 1 > c->max_args) {
			fprintf(stderr, "stokerctl: %s: wrong number of words\n\n%s", c->name,
				usage_text);
			return EXIT_USAGE;
		}
		parameters = parameters_of(c, words + 1, n - 1);
		if (!parameters)
			return EXIT_USAGE;
		status = run(o, c, parameters);
		free(parameters);
		return status;
	}
	return unknown(words[0]);
}

/* "--watch 2" and "--watch=2": the number may be a word of its own. */
static bool parse_interval(const char *text, double *ret)
{
	char *end;
	double value = text ? strtod(text, &end) : 0;

	if (!text || end == text || *end || !(value >= 0.05 && value <= 86400))
		return false;
	*ret = value;
	return true;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'}, {"json", no_argument, NULL, 'j'},
		{"watch", optional_argument, NULL, 'w'},  {"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'v'},      {0},
	};
	struct options o = {.interval_s = 1};
	int option;

	while ((option = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (option == 's') {
			o.socket = optarg;
		} else if (option == 'j') {
			o.json = true;
		} else if (option == 'w') {
			o.watch = true;
			if (optarg && !parse_interval(optarg, &o.interval_s)) {
				fprintf(stderr,
					"stokerctl: --watch=%s: seconds from 0.05 to 86400\n",
					optarg);
				return EXIT_USAGE;
			}
			if (!optarg && optind < argc && parse_interval(argv[optind], &o.interval_s))
				optind++;
		} else if (option == 'h') {
			fputs(usage_text, stdout);
			return EXIT_FINE;
		} else if (option == 'v') {
			puts("stokerctl " STK_RELEASE);
			return EXIT_FINE;
		} else {
			return EXIT_USAGE;
		}
	}
	if (optind == argc) {
		fputs(usage_text, stderr);
		return EXIT_USAGE;
	}
	if (o.watch && !strcmp(argv[optind], "detach")) {
		fputs("stokerctl: detach: not with --watch\n", stderr);
		return EXIT_USAGE;
	}
	return dispatch(&o, argv + optind, argc - optind);
}
