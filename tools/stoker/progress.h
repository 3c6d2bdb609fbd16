/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A progress line on the terminal (standard error), redrawn at most ten times a second; nothing at all
 * when it is not a terminal. Lives on the stack of the command; one thread.
 */
#ifndef STOKER_PROGRESS_H
#define STOKER_PROGRESS_H

#include "proto/base.h"

struct progress {
	bool shown;       /* standard error is a terminal */
	const char *noun; /* "samples", "shards": what items counts */
	uint64_t total;   /* bytes; 0 when it is not known */
	uint64_t start_ns, drawn_ns;
};

/* @noun lives as long as the progress does. */
void progress_begin(struct progress *progress, const char *noun, uint64_t total_bytes);
/* Cheap enough for every sample: a clock read, and rarely a line. */
void progress_update(struct progress *progress, uint64_t items, uint64_t bytes);
/* Takes the line away; before any other output. May be called again. */
void progress_end(struct progress *progress);

uint64_t progress_elapsed_ns(const struct progress *progress);

/* "4.2 MB", with decimal units, in a caller's buffer. Returns text. */
#define PROGRESS_SIZE_MAX 24
char *progress_size(uint64_t bytes, char text[PROGRESS_SIZE_MAX]);

/* The line itself, at most width columns: "  1234 samples  12.3 MB  4.5 MB/s  [####    ]  52 %  ETA 0:07". */
void progress_format(char *line, size_t size, unsigned width, const struct progress *progress,
		     uint64_t items, uint64_t bytes, uint64_t elapsed_ns);

#endif
