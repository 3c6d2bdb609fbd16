/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NUMA nodes, their cores and the node of a PCI device, read from a sysfs tree. The tree is the
 * kernel's, a device's name is a client's: that one is checked. One thread at start; then read only.
 */
#include "daemon/memory/topology.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lists of cores and nodes are short; the rest of a longer file makes it unreadable as a list. */
#define FILE_MAX  4096
#define NAME_SIZE 24

int stkd_cpulist_parse(const char *text, cpu_set_t *ret)
{
	cpu_set_t set;
	const char *p = text;

	CPU_ZERO(&set);
	while (*p && *p != '\n') {
		unsigned long first, last;
		char *end;

		if (!isdigit((unsigned char)*p))
			return -EINVAL;
		first = last = strtoul(p, &end, 10);
		if (*end == '-') {
			if (!isdigit((unsigned char)end[1]))
				return -EINVAL;
			last = strtoul(end + 1, &end, 10);
		}
		if (last < first || last >= CPU_SETSIZE)
			return -EINVAL;
		for (; first <= last; first++)
			CPU_SET(first, &set);
		if (*end == ',' && isdigit((unsigned char)end[1]))
			end++;
		else if (*end && *end != '\n')
			return -EINVAL;
		p = end;
	}
	if (*p == '\n' && p[1])
		return -EINVAL;
	*ret = set;
	return 0;
}

/* A whole small file as text. */
static int read_text(const char *path, char text[static FILE_MAX])
{
	_cleanup_(stk_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return -errno;
	n = read(fd, text, FILE_MAX - 1);
	if (n < 0)
		return -errno;
	text[n] = '\0';
	return 0;
}

static int read_list(const char *path, cpu_set_t *ret, struct stk_err *err)
{
	char text[FILE_MAX];
	int r;

	r = read_text(path, text);
	if (r < 0)
		return stk_err_set(err, r, "%s: %s", path, strerrordesc_np(-r));
	r = stkd_cpulist_parse(text, ret);
	if (r < 0)
		return stk_err_set(err, r, "%s: \"%.*s\" is not a list of numbers below %d", path,
				   (int)strcspn(text, "\n"), text, CPU_SETSIZE);
	return 0;
}

static int node_cpus(const char *sysfs, int id, cpu_set_t *ret, struct stk_err *err)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/devices/system/node/node%d/cpulist", sysfs, id);
	return read_list(path, ret, err);
}

/* Nodes with memory, or on kernels that do not say so the ones online. -ENOENT: no NUMA tree. */
static int read_nodes(const char *sysfs, cpu_set_t *ret, struct stk_err *err)
{
	static const char *const names[] = {"has_memory", "online"};
	char path[PATH_MAX];
	int r = -ENOENT;

	for (size_t i = 0; i < STK_ARRAY_SIZE(names) && r == -ENOENT; i++) {
		snprintf(path, sizeof(path), "%s/devices/system/node/%s", sysfs, names[i]);
		r = read_list(path, ret, err);
	}
	if (r == 0 && !CPU_COUNT(ret))
		r = -ENOENT;
	return r;
}

static int add_node(struct stkd_topology *topology, int id, cpu_set_t *left, struct stk_err *err)
{
	struct stkd_node *node = &topology->nodes[topology->nnodes];
	cpu_set_t cpus;
	int r;

	if (topology->nnodes == STKD_NODES_MAX)
		return stk_err_set(err, -E2BIG, "%s: more than %d NUMA nodes with memory",
				   topology->sysfs, STKD_NODES_MAX);
	r = node_cpus(topology->sysfs, id, &cpus, err);
	if (r < 0)
		return r;
	node->id = id;
	CPU_AND(&node->cpus, &cpus, left);
	CPU_XOR(left, left, &node->cpus);
	topology->nnodes++;
	return 0;
}

int stkd_topology_init(struct stkd_topology *topology, const char *sysfs, const cpu_set_t *affinity,
		       struct stk_err *err)
{
	struct stkd_topology t = {.nnodes = 0};
	cpu_set_t left, nodes;
	int r;

	if (strlen(sysfs) >= sizeof(t.sysfs))
		return stk_err_set(err, -ENAMETOOLONG, "%s: path is too long", sysfs);
	strcpy(t.sysfs, sysfs);
	if (affinity)
		left = *affinity;
	else if (sched_getaffinity(0, sizeof(left), &left) < 0)
		return stk_err_set(err, -errno, "sched_getaffinity: %m");
	t.ncpus = (unsigned)CPU_COUNT(&left);
	r = read_nodes(sysfs, &nodes, err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (r == -ENOENT) {
		CPU_ZERO(&nodes);
		t.nnodes = 1; /* node 0, with no core yet */
	}
	for (int id = 0; id < CPU_SETSIZE; id++) {
		r = CPU_ISSET(id, &nodes) ? add_node(&t, id, &left, err) : 0;
		if (r < 0)
			return r;
	}
	/* Cores of nodes without memory are not lost: the first node takes them. */
	CPU_OR(&t.nodes[0].cpus, &t.nodes[0].cpus, &left);
	for (unsigned i = 0; i < t.nnodes; i++)
		t.nodes[i].ncpus = (unsigned)CPU_COUNT(&t.nodes[i].cpus);
	*topology = t;
	return 0;
}

/*
 * "[0000]DDDD:BB:DD.F" in any case -> the kernel's name; also keeps "../" out of paths. CUDA writes
 * upper case, NVML a domain of eight digits.
 */
static int device_name(const char *bdf, char ret[static NAME_SIZE])
{
	unsigned domain, bus, device, function;
	int end = 0;

	if (strspn(bdf, "0123456789abcdefABCDEF:.") != strlen(bdf) ||
	    sscanf(bdf, "%8x:%2x:%2x.%1x%n", &domain, &bus, &device, &function, &end) != 4 ||
	    bdf[end] != '\0')
		return -EINVAL;
	snprintf(ret, NAME_SIZE, "%04x:%02x:%02x.%x", domain, bus & 0xff, device & 0xff,
		 function & 7);
	return 0;
}

static int index_of_node(const struct stkd_topology *topology, long id)
{
	for (unsigned i = 0; i < topology->nnodes; i++)
		if (topology->nodes[i].id == id)
			return (int)i;
	return -1;
}

/* The only node that has cores of the set; -1: none, or several, which says nothing. */
static int node_of_cpus(const struct stkd_topology *topology, const cpu_set_t *local)
{
	int found = -1;

	for (unsigned i = 0; i < topology->nnodes; i++) {
		cpu_set_t cpus, both;

		if (node_cpus(topology->sysfs, topology->nodes[i].id, &cpus, NULL) < 0)
			continue;
		CPU_AND(&both, &cpus, local);
		if (!CPU_COUNT(&both))
			continue;
		if (found >= 0)
			return -1;
		found = (int)i;
	}
	return found;
}

int stkd_topology_of_pci(const struct stkd_topology *topology, const char *bdf)
{
	char name[NAME_SIZE], path[PATH_MAX], text[FILE_MAX];
	cpu_set_t local;
	int index = -1;

	if (device_name(bdf, name) < 0)
		return -1;
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", topology->sysfs, name);
	if (read_text(path, text) < 0)
		return -1;
	if (isdigit((unsigned char)text[0]))
		index = index_of_node(topology, strtol(text, NULL, 10));
	if (index >= 0)
		return index;
	/* -1: the firmware does not say; or a node without memory. */
	snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/local_cpulist", topology->sysfs, name);
	if (read_list(path, &local, NULL) == 0)
		index = node_of_cpus(topology, &local);
	return index < 0 && topology->nnodes == 1 ? 0 : index;
}

bool stkd_topology_is_pci(const char *bdf)
{
	char name[NAME_SIZE];

	return device_name(bdf, name) == 0;
}

int stkd_topology_near(const struct stkd_topology *topology, const char *bdf, int host_node)
{
	int index = stkd_topology_of_pci(topology, bdf);

	return index < 0 ? index_of_node(topology, host_node) : index;
}
