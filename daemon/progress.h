/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What something that takes long tells while it runs, and how it is asked to stop: opening shards,
 * making memory. Of no room: who works writes on a work thread, the loop reads and cancels.
 */
#ifndef STKD_PROGRESS_H
#define STKD_PROGRESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct stkd_progress {
	_Atomic uint64_t done, total; /* shards, or bytes */
	_Atomic(const char *) stage;  /* static text: "opening shards" */
	_Atomic bool cancel;          /* set by the other thread: stop soon with -ECANCELED */
};

#endif
