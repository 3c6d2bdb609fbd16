/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `stoker plan` is asked for: its command line, checked. Strings are those of argv. One thread.
 */
#ifndef STOKER_PLANOPTIONS_H
#define STOKER_PLANOPTIONS_H

#include "proto/err.h"

struct plan_options {
	const char *path, *lengths, *spec, *plot, *edges_out;
	char **words; /* KEY=VALUE */
	size_t nwords;
	uint64_t world, epoch, first, end, rank;
	bool json, steps, one_rank, show, hash;
};

/* Return: 0, 1 when help was printed, -EINVAL. */
int plan_options_parse(struct plan_options *options, int argc, char **argv, struct stk_err *err);

#endif
