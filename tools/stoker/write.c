/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `stoker write`: JSON Lines in, a set of shards out. Options, the loop over lines, and the summary;
 * the work is done by the nouns included below. One thread.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/stoker/commands.h"
#include "tools/stoker/input.h"
#include "tools/stoker/jsonl.h"
#include "tools/stoker/number.h"
#include "tools/stoker/progress.h"
#include "tools/stoker/shardwriter.h"
#include "tools/stoker/stop.h"

#define SHARD_BYTES_DEFAULT (256ull << 20)

struct job {
	/* From the command line. fields[0] are the ids. */
	struct field fields[STKD_SHARD_FIELDS_MAX];
	size_t nfields;
	const char *text, *ids, *name, *dtype;
	struct shardwriter_opts shards;
	uint64_t line_max, limit; /* limit 0: all */
	bool json;
	char **inputs;
	size_t ninputs;
	/* While it runs. */
	struct shardwriter *writer;
	struct progress progress;
	uint64_t samples, blank_lines;
	uint64_t bytes; /* of the inputs before the one that is being read */
};

enum option_code {
	OPT_TEXT = 256,
	OPT_IDS,
	OPT_NAME,
	OPT_DTYPE,
	OPT_FIELD,
	OPT_RAGGED,
	OPT_SAMPLES,
	OPT_BYTES,
	OPT_LINE_LIMIT,
	OPT_LIMIT,
	OPT_FORCE,
	OPT_JSON,
};

static const struct option options[] = {
	{"output", required_argument, NULL, 'o'},
	{"text", required_argument, NULL, OPT_TEXT},
	{"ids", required_argument, NULL, OPT_IDS},
	{"name", required_argument, NULL, OPT_NAME},
	{"dtype", required_argument, NULL, OPT_DTYPE},
	{"field", required_argument, NULL, OPT_FIELD},
	{"ragged", required_argument, NULL, OPT_RAGGED},
	{"samples-per-shard", required_argument, NULL, OPT_SAMPLES},
	{"shard-bytes", required_argument, NULL, OPT_BYTES},
	{"line-limit", required_argument, NULL, OPT_LINE_LIMIT},
	{"limit", required_argument, NULL, OPT_LIMIT},
	{"force", no_argument, NULL, OPT_FORCE},
	{"json", no_argument, NULL, OPT_JSON},
	{"help", no_argument, NULL, 'h'},
	{0},
};

static const char help[] =
	"usage: stoker write (--text KEY[,KEY] | --ids KEY) [OPTIONS] INPUT... -o DIR\n"
	"\n"
	"Turns JSON Lines (plain, gzip or zstd; - is standard input) into shards.\n"
	"\n"
	"  --text KEY[,KEY]         strings, joined by a newline; their UTF-8 bytes are the ids\n"
	"  --ids KEY                arrays of integers\n"
	"  --name NAME              of the field that holds the ids (input_ids)\n"
	"  --dtype TYPE             of the ids (u8 for --text, i32 for --ids)\n"
	"  --field NAME=KEY:TYPE[:SHAPE]\n"
	"                           one more field: a number, or arrays of shape 4 or 4x2\n"
	"  --ragged NAME=KEY:TYPE[:SHAPE]\n"
	"                           one more field: arrays of any length\n"
	"  -o, --output DIR         where shard-00000.safetensors ... and dataset.json go\n"
	"  --shard-bytes SIZE       largest shard (256MiB, unless --samples-per-shard is given)\n"
	"  --samples-per-shard N    most samples in a shard\n"
	"  --limit N                take the first N samples\n"
	"  --line-limit SIZE        longest line (64MiB)\n"
	"  --force                  replace the set that DIR holds\n"
	"  --json                   print the summary as JSON\n"
	"\n"
	"TYPE is one of " NUMBER_DTYPES ".\n"
	"man stoker says more.\n";

static void complain(const struct stk_err *err)
{
	fprintf(stderr, "stoker write: %s\n", err->text);
}

static int parse_count(const char *option, const char *text, uint64_t *ret, struct stk_err *err)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || !*ret || *ret > INT64_MAX)
		return stk_err_set(err, -EINVAL, "--%s: \"%s\" is not a number from 1 to %" PRIi64,
				   option, text, INT64_MAX);
	return 0;
}

static int parse_size(const char *option, const char *text, uint64_t *ret, struct stk_err *err)
{
	static const struct {
		const char *name;
		uint64_t factor;
	} units[] = {{"", 1},
		     {"B", 1},
		     {"kB", 1000},
		     {"KiB", 1ull << 10},
		     {"MB", 1000000},
		     {"MiB", 1ull << 20},
		     {"GB", 1000000000},
		     {"GiB", 1ull << 30},
		     {"TB", 1000000000000},
		     {"TiB", 1ull << 40}};
	uint64_t size;
	char *end;

	errno = 0;
	size = strtoull(text, &end, 10);
	for (size_t i = 0; i < STK_ARRAY_SIZE(units) && *text >= '0' && *text <= '9'; i++) {
		if (strcmp(end, units[i].name))
			continue;
		if (errno || !size || stk_mul_overflow(size, units[i].factor, ret) ||
		    *ret > INT64_MAX)
			break;
		return 0;
	}
	return stk_err_set(err, -EINVAL,
			   "--%s: \"%s\" is not a size; write bytes or 64MiB (kB, MB, GB, TB, KiB, "
			   "MiB, GiB, TiB)",
			   option, text);
}

static int add_field(struct job *job, const char *word, enum field_kind kind, struct stk_err *err)
{
	int r;

	if (job->nfields == STK_ARRAY_SIZE(job->fields))
		return stk_err_set(err, -EINVAL, "more than %d fields", STKD_SHARD_FIELDS_MAX);
	r = field_parse(word, kind, &job->fields[job->nfields], err);
	if (r < 0)
		return stk_err_prefix(err, kind == FIELD_FIXED ? "--field: " : "--ragged: ");
	job->nfields++;
	return 0;
}

static int take_option(struct job *job, int option, const char *arg, struct stk_err *err)
{
	switch (option) {
	case 'o':
		job->shards.dir = arg;
		return 0;
	case OPT_TEXT:
		job->text = arg;
		return 0;
	case OPT_IDS:
		job->ids = arg;
		return 0;
	case OPT_NAME:
		job->name = arg;
		return 0;
	case OPT_DTYPE:
		job->dtype = arg;
		return 0;
	case OPT_FIELD:
		return add_field(job, arg, FIELD_FIXED, err);
	case OPT_RAGGED:
		return add_field(job, arg, FIELD_RAGGED, err);
	case OPT_SAMPLES:
		return parse_count("samples-per-shard", arg, &job->shards.samples_max, err);
	case OPT_BYTES:
		return parse_size("shard-bytes", arg, &job->shards.bytes_max, err);
	case OPT_LINE_LIMIT:
		return parse_size("line-limit", arg, &job->line_max, err);
	case OPT_LIMIT:
		return parse_count("limit", arg, &job->limit, err);
	case OPT_FORCE:
		job->shards.force = true;
		return 0;
	default:
		job->json = true;
		return 0;
	}
}

/* What getopt_long() refused, as it was written. */
static int refuse_option(char *const *argv, int found, struct stk_err *err)
{
	const char *names[STK_ARRAY_SIZE(options)] = {0}, *word = argv[optind - 1], *near;
	char name[64];

	if (found == ':')
		return stk_err_set(err, -EINVAL, "%s needs a value", word);
	if (strncmp(word, "--", 2))
		return stk_err_set(err, -EINVAL, "unknown option -%c", optopt);
	for (size_t i = 0; options[i].name; i++)
		names[i] = options[i].name;
	snprintf(name, sizeof(name), "%.*s", (int)strcspn(word + 2, "="), word + 2);
	near = stk_nearest(name, names);
	if (!near)
		return stk_err_set(err, -EINVAL, "unknown option --%s", name);
	if (!strcmp(near, name))
		return stk_err_set(err, -EINVAL, "--%s takes no value", name);
	return stk_err_set(err, -EINVAL, "unknown option --%s; did you mean --%s?", name, near);
}

/* The first field, from --text or --ids, --name and --dtype. */
static int take_ids(struct job *job, struct stk_err *err)
{
	enum stk_dtype dtype = job->text ? STK_DTYPE_U8 : STK_DTYPE_I32;

	if (!job->text == !job->ids)
		return stk_err_set(err, -EINVAL, "%s one of --text KEY and --ids KEY",
				   job->text ? "give only" : "give");
	if (job->dtype && field_dtype(job->dtype, &dtype, err) < 0)
		return stk_err_prefix(err, "--dtype: ");
	return field_ids(job->name, job->text ? FIELD_TEXT : FIELD_RAGGED,
			 job->text ? job->text : job->ids, dtype, &job->fields[0], err);
}

static int check_job(struct job *job, struct stk_err *err)
{
	size_t stdins = 0;
	int r = take_ids(job, err);

	if (r < 0)
		return r;
	for (size_t i = 0; i < job->nfields; i++)
		for (size_t j = 0; j < i; j++)
			if (!strcmp(job->fields[i].name, job->fields[j].name))
				return stk_err_set(err, -EINVAL, "two fields are called \"%s\"",
						   job->fields[i].name);
	for (size_t i = 0; i < job->ninputs; i++)
		stdins += !strcmp(job->inputs[i], "-");
	if (!job->ninputs)
		return stk_err_set(err, -EINVAL,
				   "no input; name files of JSON Lines, or - for "
				   "standard input");
	if (stdins > 1)
		return stk_err_set(err, -EINVAL, "standard input can be read only once");
	if (!job->shards.dir || !*job->shards.dir)
		return stk_err_set(err, -EINVAL, "no output; add -o DIR");
	if (!job->shards.bytes_max && !job->shards.samples_max)
		job->shards.bytes_max = SHARD_BYTES_DEFAULT;
	return 0;
}

/* Return: 0; 1 when the help was asked for. */
static int parse_job(int argc, char **argv, struct job *job, struct stk_err *err)
{
	int found, r;

	*job = (struct job){.nfields = 1, .name = "input_ids", .line_max = INPUT_LINE_MAX};
	job->shards.stop_fd = -1;
	opterr = 0;
	optind = 1;
	while ((found = getopt_long(argc, argv, ":o:h", options, NULL)) != -1) {
		if (found == 'h')
			return 1;
		r = found == '?' || found == ':' ? refuse_option(argv, found, err)
						 : take_option(job, found, optarg, err);
		if (r < 0)
			return r;
	}
	job->inputs = argv + optind;
	job->ninputs = (size_t)(argc - optind);
	return check_job(job, err);
}

/* Bytes of all inputs; 0 when one of them is no plain file. */
static uint64_t total_size(const struct job *job)
{
	uint64_t total = 0;
	struct stat st;

	for (size_t i = 0; i < job->ninputs; i++) {
		int r = strcmp(job->inputs[i], "-") ? stat(job->inputs[i], &st) : fstat(0, &st);

		if (r < 0 || !S_ISREG(st.st_mode))
			return 0;
		total += (uint64_t)st.st_size;
	}
	return total;
}

static bool enough(const struct job *job)
{
	return job->limit && job->samples >= job->limit;
}

static int take_line(struct job *job, const struct input *input, const char *line, size_t size,
		     struct stk_err *err)
{
	int r;

	if (jsonl_blank(line, size)) {
		job->blank_lines++;
		return 0;
	}
	r = jsonl_row(line, size, shardwriter_columns(job->writer), job->nfields, err);
	if (r < 0) {
		stk_err_prefix(err, "%s:%" PRIu64 ": ", input_name(input),
			       input_line_number(input));
		return r;
	}
	job->samples++;
	return shardwriter_row(job->writer, err);
}

static int take_input(struct job *job, const char *path, struct stk_err *err)
{
	_cleanup_(input_freep) struct input *input = NULL;
	const char *line;
	size_t size;
	int r = input_open(path, job->line_max, job->shards.stop_fd, &input, err);

	while (r == 0 && !enough(job)) {
		r = input_line(input, &line, &size, err);
		if (r == 0)
			break;
		if (r > 0)
			r = take_line(job, input, line, size, err);
		progress_update(&job->progress, job->samples, job->bytes + input_bytes(input));
	}
	if (r == 0)
		job->bytes += input_bytes(input);
	return r;
}

static int no_samples(const struct job *job, struct stk_err *err)
{
	if (job->ninputs > 1)
		return stk_err_set(err, -ENODATA, "no samples in %s and %zu more", job->inputs[0],
				   job->ninputs - 1);
	return stk_err_set(err, -ENODATA, "no samples in %s",
			   strcmp(job->inputs[0], "-") ? job->inputs[0] : "standard input");
}

/* Everything between the command line and the summary. Frees the writer, which tidies up. */
static int run_job(struct job *job, struct shardwriter_totals *ret, struct stk_err *err)
{
	_cleanup_(shardwriter_freep) struct shardwriter *writer = NULL;
	int r = shardwriter_open(&job->shards, job->fields, job->nfields, &writer, err);

	job->writer = writer;
	for (size_t i = 0; i < job->ninputs && r == 0 && !enough(job); i++)
		r = take_input(job, job->inputs[i], err);
	if (r == 0 && !job->samples)
		r = no_samples(job, err);
	if (r == 0)
		r = shardwriter_finish(writer, err);
	if (r == 0)
		*ret = shardwriter_totals(writer);
	return r;
}

static const char *plural(uint64_t n)
{
	return n == 1 ? "" : "s";
}

static int print_summary(const struct job *job, const struct shardwriter_totals *totals)
{
	double seconds = (double)progress_elapsed_ns(&job->progress) / 1e9;
	char bytes[PROGRESS_SIZE_MAX];

	if (job->json) {
		json_t *json = json_pack(
			"{sssIsIsIsIsIsf}", "directory", job->shards.dir, "samples",
			(json_int_t)totals->samples, "tokens", (json_int_t)totals->elements,
			"shards", (json_int_t)totals->shards, "bytes", (json_int_t)totals->bytes,
			"blank_lines", (json_int_t)job->blank_lines, "seconds", seconds);

		json_dumpf(json, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
		json_decref(json);
		putchar('\n');
	} else {
		printf("%s: %" PRIu64 " sample%s, %" PRIu64 " token%s, %" PRIu64
		       " shard%s, %s, %.2f s",
		       job->shards.dir, totals->samples, plural(totals->samples), totals->elements,
		       plural(totals->elements), totals->shards, plural(totals->shards),
		       progress_size(totals->bytes, bytes), seconds);
		if (job->blank_lines)
			printf("; %" PRIu64 " blank line%s skipped", job->blank_lines,
			       plural(job->blank_lines));
		putchar('\n');
	}
	if (fflush(stdout) == 0 && !ferror(stdout))
		return 0;
	fprintf(stderr, "stoker write: the set is complete, but cannot print the summary: %m\n");
	return 1;
}

static int write_set(struct job *job, struct stk_err *err)
{
	struct shardwriter_totals totals = {0};
	int r;

	/* A limit on the size of files is then an error of write(), which names the file. */
	signal(SIGXFSZ, SIG_IGN);
	job->shards.stop_fd = stop_open(err);
	if (job->shards.stop_fd < 0)
		return complain(err), 1;
	progress_begin(&job->progress, "samples", total_size(job));
	r = run_job(job, &totals, err);
	progress_end(&job->progress);
	stk_close(job->shards.stop_fd);
	if (r < 0)
		return complain(err), 1;
	return print_summary(job, &totals);
}

int stoker_write(int argc, char **argv)
{
	struct stk_err err = {0};
	struct job job;
	int r = parse_job(argc, argv, &job, &err);

	if (r > 0) {
		fputs(help, stdout);
		r = 0;
	} else if (r < 0) {
		complain(&err);
		fprintf(stderr, "stoker write --help lists the options\n");
		r = 2;
	} else {
		r = write_set(&job, &err);
	}
	for (size_t i = 0; i < job.nfields; i++)
		field_deinit(&job.fields[i]);
	return r;
}
