/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An opened stream: the resolved spec, its dataset, the plan for one world and the compiled
 * assembly. Opened on a work thread, immutable after, counted: jobs and their feeds hold it.
 */
#ifndef STKD_STREAM_H
#define STKD_STREAM_H

#include "daemon/assemble/assembly.h"
#include "daemon/plan/plan.h"
#include "daemon/shard/dataset.h"
#include "proto/spec.h"

#define STKD_STREAM_PRINTS_MAX  64
#define STKD_STREAM_PRINTS_SIZE (4 * STKD_STREAM_PRINTS_MAX + 5)

struct stkd_stream {
	_Atomic unsigned refs;
	struct stk_spec *spec;
	struct stkd_dataset *dataset;
	struct stkd_plan *plan;
	struct stkd_assembly *assembly;
	struct stk_hash digest;
	uint8_t prints[STKD_STREAM_PRINTS_SIZE]; /* short hashes of the spec's keys, for states */
	size_t prints_size;
	uint8_t start[STK_SHM_CURSOR_MAX]; /* cursor of the beginning */
	size_t start_size;
	_Atomic bool said_world; /* that a state is of another world */
	uint32_t world;
	uint32_t rows_max;     /* of any batch */
	uint32_t row_segments; /* at most, of a packed row; 0: rows are not packed */
	uint64_t slot_size;    /* of the largest class, rounded to pages */
	char *schema;          /* JSON text for the control file */
};

/**
 * stkd_stream_open() - open shards, plan, compile
 * @spec: taken over on success
 * @job:  name that goes into the schema
 *
 * Return: 0 or a negative errno with place, value and what is allowed; nothing stays behind.
 */
int stkd_stream_open(struct stk_spec *spec, const char *job, uint32_t world,
		     const struct stkd_shard_limits *limits, struct stkd_progress *progress,
		     struct stkd_stream **ret, struct stk_err *err);
struct stkd_stream *stkd_stream_ref(struct stkd_stream *stream);
struct stkd_stream *stkd_stream_unref(struct stkd_stream *stream); /* NULL */
STK_DEFINE_CLEANUP(struct stkd_stream *, stkd_stream_unref)

/* Once there is a plan: hashes of the keys, and the cursor of the beginning. */
int stkd_stream_take_start(struct stkd_stream *stream, struct stk_err *err);

/* Cursor of an iterator as it goes into descriptors and states. Return: size. */
size_t stkd_stream_cursor(const struct stkd_stream *stream, const struct stkd_iter *iter,
			  uint8_t out[STK_SHM_CURSOR_MAX]);

/* Fills everything but the cursor. */
void stkd_stream_state_header(const struct stkd_stream *stream, struct stk_state_header *ret);

/**
 * stkd_stream_iter() - an iterator that starts after a state
 * @state, @size: untrusted; size 0: the beginning
 *
 * Refuses, with both values, a state of other data, another spec, seed or plan version, unless
 * allow_changed (but for the version). One of another world goes on: see
 * stkd_iter_new_from_world(). Says so in the log, once for each stream.
 */
int stkd_stream_iter(struct stkd_stream *stream, const void *state, size_t size,
		     struct stkd_iter **ret, struct stk_err *err);

#endif
