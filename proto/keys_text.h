/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The texts of keys: sizes and durations with their units, and "what is allowed" in words. Shared
 * by keys.c (errors) and keys_print.c (man page, commented config). No state, any thread.
 */
#ifndef STK_PROTO_KEYS_TEXT_H
#define STK_PROTO_KEYS_TEXT_H

#include "proto/keys.h"

#define STK_KEYS_TEXT 256

/* "16GiB", "1GB", "4096"; "300s", "250ms". False: another text, or it does not fit. */
bool stk__keys_size(const char *text, uint64_t *ret);
bool stk__keys_duration(const char *text, uint64_t *ret_ms);

/* Not empty of meaning on a terminal: UTF-8 without control characters. */
bool stk__keys_is_plain(const char *text);

/* "a whole number from 1 to 65536 (rows)"; empty for CUSTOM. */
void stk__keys_allowed(const struct stk_key *key, char out[STK_KEYS_TEXT]);

#endif
