/* SPDX-License-Identifier: Apache-2.0 */
/* stoker: pack, plan, inspect, verify and read shards. This file only finds the command. */
#include <stdio.h>
#include <string.h>

#include "proto/err.h"
#include "tools/stoker/commands.h"

static const struct {
	const char *name, *help;
	int (*run)(int argc, char **argv);
} commands[] = {
	{"write", "turn JSON Lines into shards", stoker_write},
	{"inspect", "show what is in shards", stoker_inspect},
	{"verify", "check shards, all bad files in one run", stoker_verify},
	{"plan", "show the padding that each way of bucketing costs", stoker_plan},
	{"cat", "attach as a client and print batches", stoker_cat},
	{"bench", "measure a stream against what this machine allows", stoker_bench},
};

static void usage(FILE *out)
{
	fprintf(out, "usage: stoker COMMAND [ARGUMENTS]\n\n");
	for (size_t i = 0; i < STK_ARRAY_SIZE(commands); i++)
		fprintf(out, "  %-8s  %s\n", commands[i].name, commands[i].help);
	fprintf(out, "\nstoker COMMAND --help says more; stoker --version; man stoker\n");
}

int main(int argc, char **argv)
{
	const char *names[STK_ARRAY_SIZE(commands) + 1] = {0};
	const char *near;

	if (argc < 2 || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
		usage(argc < 2 ? stderr : stdout);
		return argc < 2 ? 2 : 0;
	}
	if (!strcmp(argv[1], "--version")) {
		puts("stoker " STK_RELEASE);
		return 0;
	}
	for (size_t i = 0; i < STK_ARRAY_SIZE(commands); i++) {
		names[i] = commands[i].name;
		if (!strcmp(argv[1], commands[i].name))
			return commands[i].run(argc - 1, argv + 1);
	}
	near = stk_nearest(argv[1], names);
	fprintf(stderr, "stoker: unknown command \"%s\"", argv[1]);
	if (near)
		fprintf(stderr, "; did you mean \"%s\"?", near);
	fprintf(stderr, "\n");
	return 2;
}
