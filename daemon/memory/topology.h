/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA nodes and cores this process may use, read once at start from a sysfs tree (an argument, so
 * that tests use a fake one). Plain data, immutable after.
 */
#ifndef STKD_TOPOLOGY_H
#define STKD_TOPOLOGY_H

#include <sched.h>

#include "proto/err.h"

#define STKD_NODES_MAX 64

struct stkd_node {
	int id;         /* the kernel's number */
	cpu_set_t cpus; /* of the node, within our affinity */
	unsigned ncpus;
};

struct stkd_topology {
	struct stkd_node
		nodes[STKD_NODES_MAX]; /* online nodes with memory; some may have no core of ours */
	unsigned nnodes;
	unsigned ncpus; /* in all */
	char sysfs[256];
};

/* @sysfs: "/sys"; @affinity: NULL: sched_getaffinity. A tree without nodes yields one node 0 with all cores. */
int stkd_topology_init(struct stkd_topology *topology, const char *sysfs, const cpu_set_t *affinity,
		       struct stk_err *err);

/* Node (index into nodes) of a PCI device "0000:41:00.0" by numa_node, then local_cpulist; -1: not known. */
int stkd_topology_of_pci(const struct stkd_topology *topology, const char *bdf);

/* True for a name that could be one: hexadecimal domain, bus, device and function. */
bool stkd_topology_is_pci(const char *bdf);

/* As of_pci(); where that does not know (or bdf is ""), the node with the kernel's number; -1: neither. */
int stkd_topology_near(const struct stkd_topology *topology, const char *bdf, int host_node);

/* "0-3,8" into a set; -EINVAL on anything else. */
int stkd_cpulist_parse(const char *text, cpu_set_t *ret);

#endif
