/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The picture of a plan: a histogram of lengths with the edges of its buckets, and the padding of
 * each way to choose them, as SVG. Plain values; one thread.
 */
#ifndef STOKER_PLOT_H
#define STOKER_PLOT_H

#include "tools/stoker/policy.h"

/* Return: 0 or a negative errno with the reason; then no file stays behind. */
int plot_write(const char *path, const char *title, const struct stkd_histogram *lengths,
	       const struct stkd_class *classes, uint32_t nclasses, const struct policy *policies,
	       int npolicies, struct stk_err *err);

#endif
