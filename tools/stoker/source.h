/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a command attaches to: the words STREAM|PATH|SPEC.yaml [KEY=VALUE ...] of a command line.
 * Owns the texts that the client's options point to; one thread.
 */
#ifndef STOKER_SOURCE_H
#define STOKER_SOURCE_H

#include "client/stoker.h"
#include "proto/base.h"

struct source {
	char *spec; /* text of a spec file */
	const char **keys;
};

/**
 * source_take() - words into the options of a client
 * @command: for errors, which go to standard error
 * @n:       at least 1
 *
 * Return: 0 or a negative errno; source_deinit() either way.
 */
int source_take(const char *command, char **words, size_t n, struct source *source,
		struct stk_client_opts *opts);
void source_deinit(struct source *source);

/* A whole small file, terminated. Return: 0 or a negative errno; -EFBIG above max bytes. */
int source_read_file(const char *path, size_t max, char **ret_text, size_t *ret_size);

#endif
