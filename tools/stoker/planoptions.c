/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns the command line of `stoker plan`. One thread.
 */
#include "tools/stoker/planoptions.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/stoker/planspec.h"

static const char usage[] =
	"usage: stoker plan [OPTIONS] PATH|SPEC.yaml|--lengths FILE [KEY=VALUE ...]\n"
	"\n"
	"Shows the padding that each way of bucketing costs and the steps of an epoch.\n"
	"\n"
	"  PATH             a shard, a directory of shards, or a glob\n"
	"  SPEC.yaml        the keys of a stream, data too, or a configuration with one stream\n"
	"  --lengths FILE   a JSON array of lengths, or {\"lengths\": [...]}; - is standard input\n"
	"                   or a NumPy file of whole numbers, FILE.npy\n"
	"  KEY=VALUE        keys of a stream's spec: buckets=8 multiple_of=8 tokens=16384 ...\n"
	"  --world W        data-parallel ranks (1)\n"
	"  --json           everything as one JSON object\n"
	"  --hash           nothing but a hash of the epoch's recipes, to compare machines by\n"
	"  --plot FILE      draw lengths, edges and padding as SVG\n"
	"  --edges-out FILE write the edges, for edges=FILE\n"
	"  --steps A:B      the recipes of steps A to B - 1 as JSON lines instead\n"
	"  --epoch E        of this epoch (0)\n"
	"  --rank R         of this rank only, a line for each micro-batch\n"
	"  --show           with their sample ids\n"
	"\n"
	"Ends with 0; 1 when the data or the plan is refused; 2 on wrong usage.\n";

/* A number up to max that ends at `end`. */
static int take_number(const char *option, const char *text, char end, uint64_t max, uint64_t *ret,
		       const char **ret_rest, struct stk_err *err)
{
	unsigned long long value;
	char *rest;

	errno = 0;
	value = strtoull(text, &rest, 10);
	if (errno || *text < '0' || *text > '9' || *rest != end || value > max)
		return stk_err_set(err, -EINVAL, "--%s: \"%s\" must be a whole number 0..%" PRIu64,
				   option, text, max);
	*ret = value;
	if (ret_rest)
		*ret_rest = rest;
	return 0;
}

static int take_steps(struct plan_options *o, const char *text, struct stk_err *err)
{
	const char *rest = text;

	if (take_number("steps", text, ':', UINT64_MAX, &o->first, &rest, NULL) < 0 ||
	    take_number("steps", rest + 1, '\0', UINT64_MAX, &o->end, NULL, NULL) < 0 ||
	    o->first >= o->end)
		return stk_err_set(err, -EINVAL,
				   "--steps: \"%s\" must be A:B, whole numbers with A below B",
				   text);
	o->steps = true;
	return 0;
}

enum {
	OPT_WORLD = 256,
	OPT_LENGTHS,
	OPT_JSON,
	OPT_HASH,
	OPT_STEPS,
	OPT_EPOCH,
	OPT_RANK,
	OPT_SHOW,
	OPT_PLOT,
	OPT_EDGES_OUT
};

static const struct option long_options[] = {
	{"world", required_argument, NULL, OPT_WORLD},
	{"lengths", required_argument, NULL, OPT_LENGTHS},
	{"json", no_argument, NULL, OPT_JSON},
	{"hash", no_argument, NULL, OPT_HASH},
	{"steps", required_argument, NULL, OPT_STEPS},
	{"epoch", required_argument, NULL, OPT_EPOCH},
	{"rank", required_argument, NULL, OPT_RANK},
	{"show", no_argument, NULL, OPT_SHOW},
	{"plot", required_argument, NULL, OPT_PLOT},
	{"edges-out", required_argument, NULL, OPT_EDGES_OUT},
	{"help", no_argument, NULL, 'h'},
	{0},
};

static int take_option(struct plan_options *o, int c, const char *arg, struct stk_err *err)
{
	switch (c) {
	case OPT_WORLD:
		if (take_number("world", arg, '\0', 65536, &o->world, NULL, NULL) < 0 || !o->world)
			return stk_err_set(err, -EINVAL,
					   "--world: \"%s\" must be a whole number 1..65536", arg);
		return 0;
	case OPT_LENGTHS:
		o->lengths = arg;
		return 0;
	case OPT_PLOT:
		o->plot = arg;
		return 0;
	case OPT_EDGES_OUT:
		o->edges_out = arg;
		return 0;
	case OPT_JSON:
		o->json = true;
		return 0;
	case OPT_HASH:
		o->hash = true;
		return 0;
	case OPT_STEPS:
		return take_steps(o, arg, err);
	case OPT_EPOCH:
		return take_number("epoch", arg, '\0', UINT64_MAX, &o->epoch, NULL, err);
	case OPT_RANK:
		o->one_rank = true;
		return take_number("rank", arg, '\0', 65535, &o->rank, NULL, err);
	default:
		o->show = true;
		return 0;
	}
}

/* A word of the spec, unless it looks like a path: ./a=b is one. */
static bool is_assignment(const char *word)
{
	size_t key = strspn(word, "abcdefghijklmnopqrstuvwxyz_");

	return key > 0 && word[key] == '=';
}

static int take_words(struct plan_options *o, int argc, char **argv, struct stk_err *err)
{
	o->words = argv; /* assignments move to the front of what is left */
	for (int i = 0; i < argc; i++) {
		char *word = argv[i];

		if (is_assignment(word))
			o->words[o->nwords++] = word;
		else if (o->path)
			return stk_err_set(err, -EINVAL, "one PATH, not \"%s\" and \"%s\"", o->path,
					   word);
		else
			o->path = word;
	}
	if (o->path && planspec_is_file(o->path)) {
		o->spec = o->path;
		o->path = NULL;
	}
	if (!o->spec && !o->path == !o->lengths)
		return stk_err_set(err, -EINVAL, "%s",
				   o->path ? "give PATH or --lengths, not both"
					   : "no PATH and no --lengths FILE");
	if (o->one_rank && o->rank >= o->world)
		return stk_err_set(err, -EINVAL,
				   "--rank: %" PRIu64 " must be below --world %" PRIu64, o->rank,
				   o->world);
	if (o->hash && (o->steps || o->json))
		return stk_err_set(err, -EINVAL, "--hash does not go with --%s",
				   o->steps ? "steps" : "json");
	if ((o->one_rank || o->show) && !o->steps)
		return stk_err_set(err, -EINVAL, "--%s goes with --steps A:B",
				   o->show ? "show" : "rank");
	return 0;
}

int plan_options_parse(struct plan_options *o, int argc, char **argv, struct stk_err *err)
{
	int c, r;

	*o = (struct plan_options){.world = 1};
	optind = 1;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":h", long_options, NULL)) != -1) {
		if (c == 'h')
			return fputs(usage, stdout), 1;
		if (c == '?' || c == ':')
			return stk_err_set(err, -EINVAL, "%s \"%s\"",
					   c == ':' ? "no value for option" : "unknown option",
					   argv[optind - 1]);
		r = take_option(o, c, optarg, err);
		if (r < 0)
			return r;
	}
	return take_words(o, argc - optind, argv + optind, err);
}
