/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of the commands that look at shards: inspect and verify. Lives on the stack of
 * the command; one thread.
 */
#ifndef STOKER_SHARDARGS_H
#define STOKER_SHARDARGS_H

#include "daemon/shard/shard.h"

struct shardargs {
	bool json;
	const char *sample; /* as given, NULL: not asked for */
	const char *length; /* name of the length field, or NULL */
	struct stkd_shard_limits limits;
	char **paths;
	size_t npaths;
};

/**
 * shardargs_parse() - read the options, complain on standard error
 * @help:  printed for --help
 * @looks: takes --sample and --length too
 *
 * Return: -1: go on; else the exit status to end with.
 */
int shardargs_parse(int argc, char **argv, const char *help, bool looks, struct shardargs *ret);

#endif
