/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state: from where a job continues. This header (identity of data and plan), then a cursor
 * (opaque here; daemon/plan/cursor.h). Travels as bytes or as hexadecimal text. Hostile when read.
 */
#ifndef STK_PROTO_STATE_H
#define STK_PROTO_STATE_H

#include <assert.h>

#include "proto/base.h"
#include "proto/err.h"

#define STK_STATE_VERSION  1
#define STK_STATE_SIZE_MAX (72 + 1024) /* header + STK_SHM_CURSOR_MAX */

/* 128-bit hash, most significant half first in text; never a secret. */
struct stk_hash {
	uint8_t bytes[16];
};

struct stk_state_header {
	char magic[8];         /* "STKSTATE" */
	uint32_t version;      /* STK_STATE_VERSION */
	uint32_t plan_version; /* of the planner; another one is refused */
	struct stk_hash data;  /* fingerprint of the datasets */
	struct stk_hash spec;  /* digest of the spec keys that change plan or bytes */
	uint64_t seed;
	uint32_t world;
	uint32_t cursor_size; /* bytes that follow; 0 in the control file's copy */
	uint64_t samples;     /* of all datasets; 0 in states of older releases */
};
static_assert(sizeof(struct stk_state_header) == 72, "part of saved states: append only");

/* Fills magic and version; the rest is the caller's. */
void stk_state_header_init(struct stk_state_header *header);

/**
 * stk_state_parse() - split a state into header and cursor
 * @bytes, @size:  untrusted
 * @ret_header:    checked copy: magic, version, cursor_size fits
 * @ret_cursor:    points into @bytes
 *
 * Return: 0 or -EINVAL with the reason.
 */
int stk_state_parse(const void *bytes, size_t size, struct stk_state_header *ret_header,
		    const uint8_t **ret_cursor, struct stk_err *err);

/* Hexadecimal text, zero-terminated: text has room for 2 * size + 1. */
void stk_hex_encode(const void *bytes, size_t size, char *text);
/* Return: number of bytes, or -EINVAL (odd length, not hexadecimal, longer than size). */
int stk_hex_decode(const char *text, void *bytes, size_t size);

#endif
