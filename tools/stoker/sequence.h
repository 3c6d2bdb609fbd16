/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash over the recipes of an epoch: which samples are in which row of which step, and how wide it is.
 * The same on every machine, and for every world where the global batch is given. One thread.
 */
#ifndef STOKER_SEQUENCE_H
#define STOKER_SEQUENCE_H

#include "daemon/plan/plan.h"

struct sequence;

struct sequence *sequence_new(void); /* NULL: no memory */
struct sequence *sequence_free(struct sequence *sequence);
STK_DEFINE_CLEANUP(struct sequence *, sequence_free)

/* @rows: of all parts, masked ones included. */
void sequence_add(struct sequence *sequence, const struct stkd_step *step, uint64_t rows);
/* 32 hexadecimal digits. */
void sequence_text(const struct sequence *sequence, char text[33]);

#endif
