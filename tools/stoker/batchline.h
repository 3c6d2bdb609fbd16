/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch as one line of JSON, the same for the same batch: no times, no addresses, numbers with
 * the digits that bring back the same value. Prints to a stdio stream; no state.
 */
#ifndef STOKER_BATCHLINE_H
#define STOKER_BATCHLINE_H

#include <stdbool.h>
#include <stdio.h>

#include "client/stoker.h"

/* @data: also lengths and all values. A masked row has the sample id null; what JSON cannot say is
 * "nan", "inf" or "-inf"; 8-bit floats are their bytes. */
void batchline_print(FILE *out, const struct stk_batch *batch, bool data);

#endif
