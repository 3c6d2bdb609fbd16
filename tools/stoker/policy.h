/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A way to choose bucket edges, and what it costs on given lengths. Plain values; one thread.
 */
#ifndef STOKER_POLICY_H
#define STOKER_POLICY_H

#include "daemon/plan/edges.h"
#include "daemon/plan/plan.h"

struct policy {
	const char *name;
	uint32_t edges[STK_SPEC_EDGES_MAX];
	uint32_t edges2[STK_SPEC_EDGES_MAX]; /* of the second length; 0: there is one */
	size_t nedges;
	uint64_t real, padded; /* tokens when each sample is as wide as its own edge */
	uint64_t steps;        /* per epoch; 0: the plan is refused */
};

#define POLICIES_MAX 8

/**
 * policies_compare() - one size, powers of two, uniform, quantile, kmeans and optimal edges, the
 * spec's own where given, and packed rows; of two lengths, without powers of two and packed rows,
 * pairs of edges and the tokens of both
 * @plan: of the spec; says where samples are cut or dropped
 *
 * Return: number of policies, or a negative errno.
 */
int policies_compare(const struct stk_spec *spec, const struct stkd_plan *plan,
		     const struct stkd_lengths *lengths, uint32_t world,
		     struct policy ret[POLICIES_MAX], struct stk_err *err);

/* Share of padding: 1 - real / padded; 0 for nothing. */
double policy_padding(uint64_t real, uint64_t padded);

#endif
