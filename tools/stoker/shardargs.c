/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options of inspect and verify. One thread.
 */
#include "tools/stoker/shardargs.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum option_code { OPT_JSON = 256, OPT_HEADER_MAX, OPT_SAMPLE, OPT_LENGTH };

/* The first LOOK_OPTIONS are for the command that looks. */
#define LOOK_OPTIONS 2
static const struct option options[] = {
	{"sample", required_argument, NULL, OPT_SAMPLE},
	{"length", required_argument, NULL, OPT_LENGTH},
	{"help", no_argument, NULL, 'h'},
	{"json", no_argument, NULL, OPT_JSON},
	{"header-max", required_argument, NULL, OPT_HEADER_MAX},
	{0},
};

static int complain(const char *command, const char *what, const char *value)
{
	struct stk_err err;

	/* Through the error for its care with unprintable bytes. */
	stk_err_set(&err, -EINVAL, "%s%s; stoker %s --help lists the options", what, value,
		    command);
	fprintf(stderr, "stoker %s: %s\n", command, err.text);
	return 2;
}

static int take_header_max(const char *command, const char *text, struct shardargs *args)
{
	char *end;

	errno = 0;
	args->limits.header_max = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || !args->limits.header_max)
		return complain(command, "--header-max needs a number of bytes, not ", text);
	return -1;
}

int shardargs_parse(int argc, char **argv, const char *help, bool looks, struct shardargs *ret)
{
	const struct option *known = looks ? options : options + LOOK_OPTIONS;
	const char *command = argv[0];
	int found, status;

	*ret = (struct shardargs){0};
	opterr = 0;
	optind = 1;
	while ((found = getopt_long(argc, argv, ":h", known, NULL)) != -1) {
		if (found == 'h') {
			fputs(help, stdout);
			return 0;
		}
		if (found == ':')
			return complain(command, argv[optind - 1], " needs a value");
		if (found == '?')
			return complain(command, "unknown option ", argv[optind - 1]);
		if (found == OPT_HEADER_MAX) {
			status = take_header_max(command, optarg, ret);
			if (status >= 0)
				return status;
		}
		ret->json = ret->json || found == OPT_JSON;
		ret->sample = found == OPT_SAMPLE ? optarg : ret->sample;
		ret->length = found == OPT_LENGTH ? optarg : ret->length;
	}
	ret->paths = argv + optind;
	ret->npaths = (size_t)(argc - optind);
	if (!ret->npaths)
		return complain(command, "no path; name a file, a directory or a glob", "");
	return -1;
}
