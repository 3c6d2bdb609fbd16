/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a file that is not a shard looks like, for error messages: people meet un-pulled git-lfs
 * pointers, archives and error pages under the names of shards. Constant data, any thread.
 */
#ifndef STKD_FILETYPE_H
#define STKD_FILETYPE_H

#include "proto/base.h"

#define STKD_FILETYPE_HEAD 512 /* bytes from the start that are enough to tell */

/* A phrase such as "git-lfs pointer", or NULL: nothing known. */
const char *stkd_filetype_name(const uint8_t *head, size_t size);

#endif
