/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker bench: consumers of a stream, measured in rounds, and in the same rounds what the machine
 * itself allows: the best bare loop that writes the same bytes, and what a bare futex costs. The
 * main thread commands, the seats' threads consume.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tools/stoker/benchlimit.h"
#include "tools/stoker/benchreport.h"
#include "tools/stoker/benchseat.h"
#include "tools/stoker/benchwake.h"
#include "tools/stoker/commands.h"
#include "tools/stoker/source.h"

#define SETTLE_NS   30000000L /* until a ring is full and the daemon at rest */
#define WAKES       400
#define LIMIT_SHARE 0.5 /* of a round's seconds, for one core and again for all */

static const char usage_text[] =
	"usage: stoker bench STREAM|PATH|SPEC.yaml [KEY=VALUE ...] [OPTIONS]\n"
	"       stoker bench --compare A.json B.json\n"
	"\n"
	"Measures what trainers would get, against what this machine allows in the same run.\n"
	"\n"
	"  --ranks N --replicas N       consumers: so many ranks, so many seats each (1, 1)\n"
	"  --rounds N --seconds S       so many rounds of so many seconds (5, 1)\n"
	"  --pace MS                    a consumer that works so long on each batch (0)\n"
	"  --job NAME                   of the seats (bench-PID)\n"
	"  --socket PATH                this daemon (default: a path or a spec starts a private "
	"one)\n"
	"  --no-limit                   leave the bare loop out\n"
	"  --json                       the figures as one JSON object\n"
	"  --compare A.json B.json      the ratios of two such objects, and nothing else\n";

struct bench {
	struct stk_client_opts opts;
	struct benchseat_opts seats;
	struct source source;
	double seconds, pace_ms;
	double bytes_per_cpu_s; /* of the daemon, in this round */
	uint32_t rounds;
	bool json, no_limit, compare, terminal;
	char job[32];
	unsigned cores;
	clockid_t daemon_clock;
	int daemon_pid;
	struct benchreport report;
	struct stk_err limit_err;
};

enum {
	OPT_RANKS = 256,
	OPT_REPLICAS,
	OPT_ROUNDS,
	OPT_SECONDS,
	OPT_PACE,
	OPT_JOB,
	OPT_SOCKET,
	OPT_NO_LIMIT,
	OPT_JSON,
	OPT_COMPARE,
	OPT_HELP
};

static const struct option options[] = {
	{"ranks", required_argument, NULL, OPT_RANKS},
	{"replicas", required_argument, NULL, OPT_REPLICAS},
	{"rounds", required_argument, NULL, OPT_ROUNDS},
	{"seconds", required_argument, NULL, OPT_SECONDS},
	{"pace", required_argument, NULL, OPT_PACE},
	{"job", required_argument, NULL, OPT_JOB},
	{"socket", required_argument, NULL, OPT_SOCKET},
	{"no-limit", no_argument, NULL, OPT_NO_LIMIT},
	{"json", no_argument, NULL, OPT_JSON},
	{"compare", no_argument, NULL, OPT_COMPARE},
	{"help", no_argument, NULL, OPT_HELP},
	{0},
};

static int real(const char *name, double min, double max, double *ret)
{
	char *end;
	double value = strtod(optarg, &end);

	if (end == optarg || *end || !(value >= min && value <= max)) {
		fprintf(stderr, "stoker bench: --%s %s: a number from %g to %g\n", name, optarg,
			min, max);
		return -EINVAL;
	}
	*ret = value;
	return 0;
}

static int whole(const char *name, uint32_t max, uint32_t *ret)
{
	double value;
	int r = real(name, 1, max, &value);

	if (r == 0 && value != (uint32_t)value) {
		fprintf(stderr, "stoker bench: --%s %s: a whole number\n", name, optarg);
		r = -EINVAL;
	}
	if (r == 0)
		*ret = (uint32_t)value;
	return r;
}

static int parse_option(struct bench *b, int option)
{
	switch (option) {
	case OPT_RANKS:
		return whole("ranks", 256, &b->seats.ranks);
	case OPT_REPLICAS:
		return whole("replicas", 64, &b->seats.replicas);
	case OPT_ROUNDS:
		return whole("rounds", BENCH_ROUNDS_MAX, &b->rounds);
	case OPT_SECONDS:
		return real("seconds", 0.01, 3600, &b->seconds);
	case OPT_PACE:
		return real("pace", 0, 10000, &b->pace_ms);
	case OPT_JOB:
		b->opts.job = optarg;
		return 0;
	case OPT_SOCKET:
		b->opts.socket = optarg;
		return 0;
	case OPT_NO_LIMIT:
		b->no_limit = true;
		return 0;
	case OPT_JSON:
		b->json = true;
		return 0;
	case OPT_COMPARE:
		b->compare = true;
		return 0;
	default:
		return -EINVAL;
	}
}

static void say(const struct bench *b, const char *text)
{
	if (b->terminal)
		fprintf(stderr, "\r\033[K%s", text);
}

static void progress(void *data, const char *stage, uint64_t done, uint64_t total)
{
	char text[128];

	if (total)
		snprintf(text, sizeof(text), "%s %" PRIu64 " of %" PRIu64, stage, done, total);
	else
		snprintf(text, sizeof(text), "%s", stage);
	say(data, text);
}

static double clock_s(clockid_t clock)
{
	struct timespec t = {0};

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A line of /proc/PID/status in bytes; NaN where it cannot be read. */
static double memory(int pid, const char *line)
{
	_cleanup_(stk_freep) char *text = NULL;
	char path[48];
	const char *at;
	double kib;
	size_t size;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	if (source_read_file(path, 1u << 16, &text, &size) < 0)
		return __builtin_nan("");
	at = strstr(text, line);
	if (!at || sscanf(at + strlen(line), ": %lf kB", &kib) != 1)
		return __builtin_nan("");
	return kib * 1024;
}

static void add_memory(struct bench *b)
{
	static const struct {
		const char *line;
		enum bench_figure figure;
	} lines[] = {
		{"RssAnon", BENCH_MEM_ANON},
		{"RssShmem", BENCH_MEM_SHARED},
		{"RssFile", BENCH_MEM_FILE},
	};

	for (size_t i = 0; i < STK_ARRAY_SIZE(lines); i++)
		benchreport_add(&b->report, lines[i].figure, memory(b->daemon_pid, lines[i].line));
}

static void add_run(struct bench *b, const struct benchseat_sums *sums, double took, double cpu)
{
	struct benchreport *r = &b->report;
	double tokens = (double)sums->real_tokens;

	benchreport_add(r, BENCH_SAMPLES, (double)sums->rows / took);
	benchreport_add(r, BENCH_REAL, tokens / took);
	benchreport_add(r, BENCH_PADDED, (double)sums->padded_tokens / took);
	/* Each seat of a rank is given the same bytes, which are written once. */
	benchreport_add(r, BENCH_GB, (double)sums->bytes / took / b->seats.replicas);
	b->bytes_per_cpu_s = (double)sums->bytes / cpu / b->seats.replicas;
	if (sums->padded_tokens)
		benchreport_add(r, BENCH_PADDING, 1 - tokens / (double)sums->padded_tokens);
	benchreport_add(r, BENCH_NEXT_P50, benchtimes_at(&sums->next, 500000));
	benchreport_add(r, BENCH_NEXT_P99, benchtimes_at(&sums->next, 990000));
	benchreport_add(r, BENCH_NEXT_P999, benchtimes_at(&sums->next, 999000));
	if (tokens > 0) {
		benchreport_add(r, BENCH_CPU_DAEMON, cpu / tokens * 1e6 * b->seats.replicas);
		benchreport_add(r, BENCH_CPU_CLIENT, (double)sums->cpu_ns / 1e9 / tokens * 1e6);
	}
}

static void settle(void)
{
	const struct timespec t = {0, SETTLE_NS};

	nanosleep(&t, NULL);
}

static int consume(struct bench *b, struct benchseats *seats, char *error, size_t size)
{
	static struct benchseat_sums sums;
	double start, cpu, took;
	int r;

	settle();
	r = benchseats_phase(seats, BENCH_READY, 0, &sums, error, size);
	if (r)
		return r;
	if (sums.ready.n)
		benchreport_add(&b->report, BENCH_READY_P50, benchtimes_at(&sums.ready, 500000));
	start = clock_s(CLOCK_MONOTONIC);
	cpu = clock_s(b->daemon_clock);
	r = benchseats_phase(seats, BENCH_RUN, b->seconds, &sums, error, size);
	took = clock_s(CLOCK_MONOTONIC) - start;
	if (r == 0)
		add_run(b, &sums, took, clock_s(b->daemon_clock) - cpu);
	return r;
}

/* p50 of a bare futex between these cores; NAN when it could not be measured. */
static double bare_wake(const struct benchwake_cores *cores)
{
	static struct benchtimes times;

	memset(&times, 0, sizeof(times));
	return benchwake_measure(cores, WAKES, &times) < 0 ? NAN : benchtimes_at(&times, 500000);
}

static int wake(struct bench *b, struct benchseats *seats, char *error, size_t size)
{
	static struct benchseat_sums sums;
	struct benchwake_cores cores, one;
	double p50, futex = NAN, futex_one = NAN;
	int r;

	if (benchwake_cores(b->daemon_pid, &cores) == 0) {
		one = (struct benchwake_cores){cores.ours, cores.ours};
		futex = bare_wake(&cores);
		futex_one = cores.ours == cores.theirs ? futex : bare_wake(&one);
	}
	r = benchseats_phase(seats, BENCH_WAKE, 0, &sums, error, size);
	if (r || !sums.wake.n)
		return r;
	p50 = benchtimes_at(&sums.wake, 500000);
	benchreport_add(&b->report, BENCH_WAKE_P50, p50);
	benchreport_add(&b->report, BENCH_WAKE_P99, benchtimes_at(&sums.wake, 990000));
	benchreport_add(&b->report, BENCH_FUTEX_P50, futex);
	benchreport_add(&b->report, BENCH_FUTEX_ONE_P50, futex_one);
	benchreport_add(&b->report, BENCH_WAKE_RATIO, p50 / futex);
	return 0;
}

/* The limit on one core and on all, with the seats at rest, and ratios to this round's bytes. */
static int add_limit(struct bench *b, struct benchlimit *limit, struct stk_err *err)
{
	static const struct {
		enum bench_figure bare, assembly, ratio_assembly, ratio;
	} parts[] = {
		{BENCH_BARE_ONE, BENCH_ASSEMBLY_ONE, BENCH_RATIO_ASSEMBLY_ONE,
		 BENCH_RATIO_BARE_ONE},
		{BENCH_BARE_ALL, BENCH_ASSEMBLY_ALL, BENCH_RATIO_ASSEMBLY_ALL,
		 BENCH_RATIO_BARE_ALL},
	};
	struct benchreport *report = &b->report;
	double ours = report->values[BENCH_GB][report->n[BENCH_GB] - 1];

	settle();
	for (size_t i = 0; i < STK_ARRAY_SIZE(parts); i++) {
		struct benchlimit_rate rates[BENCHLIMIT_NWHATS];
		double bare, assembly;
		int r = benchlimit_measure(limit, i ? b->cores : 1, b->seconds * LIMIT_SHARE, rates,
					   err);

		if (r < 0)
			return r;
		bare = rates[BENCHLIMIT_BARE].bytes;
		assembly = rates[BENCHLIMIT_ASSEMBLY].bytes;
		benchreport_add(report, parts[i].bare, bare);
		benchreport_add(report, parts[i].assembly, assembly);
		benchreport_add(report, parts[i].ratio_assembly, assembly / bare);
		benchreport_add(report, parts[i].ratio, ours / bare);
		if (i == 0)
			benchreport_add(report, BENCH_RATIO_CPU, b->bytes_per_cpu_s / bare);
	}
	return 0;
}

static void open_limit(struct bench *b, const struct stk_client_info *info,
		       struct benchlimit **limit)
{
	if (b->no_limit) {
		b->report.limit = "--no-limit";
		return;
	}
	say(b, "opening the data for the bare loop");
	if (benchlimit_new(info->schema, info->slots, info->slot_size, limit, &b->limit_err) < 0)
		b->report.limit = b->limit_err.text;
}

static int run_round(struct bench *b, struct benchseats *seats, struct benchlimit *limit,
		     char *error, size_t size)
{
	struct stk_err err;
	int r = consume(b, seats, error, size);

	if (r == 0 && limit && add_limit(b, limit, &err) < 0) {
		snprintf(error, size, "bare loop: %.900s", err.text);
		return -EIO;
	}
	return r == 0 ? wake(b, seats, error, size) : r;
}

static int run_rounds(struct bench *b, struct benchseats *seats, char *error, size_t size)
{
	_cleanup_(benchlimit_freep) struct benchlimit *limit = NULL;
	struct stk_client_info info = {.size = sizeof(info)};
	int r = 0;

	stk_client_info(benchseats_client(seats), &info);
	b->daemon_pid = info.daemon_pid;
	if (clock_getcpuclockid(info.daemon_pid, &b->daemon_clock))
		b->daemon_clock = CLOCK_PROCESS_CPUTIME_ID;
	benchreport_add(&b->report, BENCH_MEM_CLIENT, memory((int)getpid(), "RssAnon"));
	open_limit(b, &info, &limit);
	for (uint32_t i = 0; i < b->rounds && r == 0; i++) {
		char text[64];

		snprintf(text, sizeof(text), "round %" PRIu32 " of %" PRIu32, i + 1, b->rounds);
		say(b, text);
		r = run_round(b, seats, limit, error, size);
	}
	if (r == 1) {
		snprintf(error, size,
			 "the stream ended; epochs=0 and fewer or shorter rounds measure on");
		r = -ENODATA;
	}
	add_memory(b);
	return r;
}

static int run(struct bench *b)
{
	struct benchseats *seats;
	char error[1024] = "";
	double first = 0;
	int r = benchseats_new(&b->seats, &seats, &first, error, sizeof(error));

	if (r == 0) {
		benchreport_add(&b->report, BENCH_FIRST, first);
		r = run_rounds(b, seats, error, sizeof(error));
		benchseats_free(seats);
	}
	say(b, "");
	if (r < 0) {
		fprintf(stderr, "stoker bench: %s\n", error);
		return 1;
	}
	if (!b->json)
		benchreport_print(&b->report, stdout);
	else
		benchreport_print_json(&b->report, stdout);
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr, "stoker bench: standard output: %m\n");
		return 1;
	}
	return 0;
}

static unsigned count_cores(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) < 0 ? 1 : (unsigned)CPU_COUNT(&set);
}

static int start(struct bench *b, char **words, size_t n)
{
	if (source_take("stoker bench", words, n, &b->source, &b->opts) < 0)
		return 2;
	snprintf(b->job, sizeof(b->job), "bench-%d", (int)getpid());
	if (!b->opts.job)
		b->opts.job = b->job;
	b->cores = count_cores();
	b->seats.client = &b->opts;
	b->seats.pace_us = (uint32_t)(b->pace_ms * 1000);
	b->seats.wakes = WAKES;
	b->report.what = words[0];
	b->report.cores = b->cores;
	b->report.ranks = b->seats.ranks;
	b->report.replicas = b->seats.replicas;
	b->report.seconds = b->seconds;
	return run(b);
}

int stoker_bench(int argc, char **argv)
{
	static struct bench b; /* the figures are too large for a stack */
	int option, n, status = 2;

	b = (struct bench){.opts = {.size = sizeof(b.opts), .progress = progress},
			   .seats = {.ranks = 1, .replicas = 1},
			   .seconds = 1,
			   .rounds = 5};
	b.opts.progress_data = &b;
	b.terminal = isatty(STDERR_FILENO);
	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		if (option == OPT_HELP) {
			fputs(usage_text, stdout);
			return 0;
		}
		if (parse_option(&b, option) < 0)
			return 2;
	}
	n = argc - optind;
	if (n == 0 || (b.compare && n != 2))
		fputs(usage_text, stderr);
	else if (b.compare)
		return benchreport_compare(argv[optind], argv[optind + 1], stdout) < 0;
	else
		status = start(&b, argv + optind, (size_t)n);
	source_deinit(&b.source);
	return status;
}
