/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The spec that `stoker plan` plans: from a YAML file, words, or both. One thread.
 */
#ifndef STOKER_PLANSPEC_H
#define STOKER_PLANSPEC_H

#include "proto/spec.h"

/* Is this word the name of a spec rather than of shards? */
bool planspec_is_file(const char *word);

/**
 * planspec_read() - words over a file
 * @path:  a map of stream keys, or a configuration with one stream; NULL: words alone
 *
 * Relative paths in the file are beside it. Edges are read from theirs. Return: 0 or a negative
 * errno with the reason.
 */
int planspec_read(const char *path, char *const *words, size_t nwords, struct stk_spec **ret,
		  struct stk_err *err);

/* Writes the edges of a plan so that `edges: FILE` reads them. */
struct stkd_plan;
int planspec_write_edges(const char *path, const struct stk_spec *spec,
			 const struct stkd_plan *plan, struct stk_err *err);

#endif
