/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much memory this process may take, and how much a node has left, as the kernel says it in
 * /proc and /sys. The roots are arguments, so that tests use trees of their own. Any thread.
 */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/memory/memfile.h"

/* A memory limit file: a number of bytes, or "max". UINT64_MAX when there is none. */
static uint64_t read_limit(const char *path)
{
	_cleanup_(stk_freep) char *line = NULL;
	FILE *file = fopen(path, "re");
	unsigned long long value = 0;
	bool found;
	size_t room = 0;

	if (!file)
		return UINT64_MAX;
	found = getline(&line, &room, file) > 0 && sscanf(line, "%llu", &value) == 1;
	fclose(file);
	return found ? value : UINT64_MAX;
}

/* The least of the named limits in a control group and all groups above it, up to the mount. */
static uint64_t least_above(const char *mount, const char *group, const char *const *names)
{
	_cleanup_(stk_freep) char *path = strdup(group);
	uint64_t least = UINT64_MAX;
	char file[PATH_MAX];
	char *slash;

	if (!path)
		return UINT64_MAX;
	for (;;) {
		for (size_t i = 0; names[i]; i++) {
			int n = snprintf(file, sizeof(file), "%s%s/%s", mount, path, names[i]);
			uint64_t limit = UINT64_MAX;

			if (n > 0 && (size_t)n < sizeof(file))
				limit = read_limit(file);
			least = STK_MIN(least, limit);
		}
		slash = strrchr(path, '/');
		if (!slash)
			return least;
		*slash = '\0';
	}
}

static bool has_controller(const char *list, const char *name)
{
	size_t len = strlen(name);

	for (const char *p = list; p; p = strchr(p, ',')) {
		p += *p == ',';
		if (!strncmp(p, name, len) && (p[len] == ',' || p[len] == '\0'))
			return true;
	}
	return false;
}

/* One line of /proc/self/cgroup: "0::/group" (v2) or "4:memory,cpu:/group" (v1). */
static uint64_t limit_of_line(char *line, const char *sysfs)
{
	static const char *const v2[] = {"memory.max", "memory.high", NULL};
	static const char *const v1[] = {"memory.limit_in_bytes", NULL};
	char *controllers = strchr(line, ':'), *group;
	char mount[PATH_MAX];
	bool unified;
	int n;

	group = controllers ? strchr(controllers + 1, ':') : NULL;
	if (!group)
		return UINT64_MAX;
	*group++ = '\0';
	group[strcspn(group, "\n")] = '\0';
	unified = !strcmp(line, "0:");
	if (!unified && !has_controller(controllers + 1, "memory"))
		return UINT64_MAX;
	n = snprintf(mount, sizeof(mount), "%s/fs/cgroup%s", sysfs, unified ? "" : "/memory");
	if (n < 0 || (size_t)n >= sizeof(mount))
		return UINT64_MAX;
	return least_above(mount, group, unified ? v2 : v1);
}

static uint64_t cgroup_limit(const char *proc, const char *sysfs)
{
	_cleanup_(stk_freep) char *line = NULL;
	uint64_t least = UINT64_MAX;
	char path[PATH_MAX];
	size_t room = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/self/cgroup", proc);
	file = fopen(path, "re");
	if (!file)
		return UINT64_MAX;
	while (getline(&line, &room, file) > 0) {
		uint64_t limit = limit_of_line(line, sysfs); /* cuts the line, so once only */

		least = STK_MIN(least, limit);
	}
	fclose(file);
	return least;
}

/* Sum of the "Name: 123 kB" lines of a meminfo file whose names are asked for; 0: none found. */
static uint64_t sum_of_lines(const char *path, const char *const *names)
{
	_cleanup_(stk_freep) char *line = NULL;
	uint64_t sum = 0;
	size_t room = 0;
	FILE *file = fopen(path, "re");

	if (!file)
		return 0;
	while (getline(&line, &room, file) > 0) {
		for (size_t i = 0; names[i]; i++) {
			const char *value = strstr(line, names[i]);
			unsigned long long kib;

			if (value && (value == line || value[-1] == ' ') &&
			    sscanf(value + strlen(names[i]), ": %llu kB", &kib) == 1 &&
			    kib < UINT64_MAX / 1024 / 4)
				sum += kib * 1024;
		}
	}
	fclose(file);
	return sum;
}

uint64_t stkd_memory_limit(const char *proc, const char *sysfs)
{
	static const char *const total[] = {"MemTotal", NULL};
	char path[PATH_MAX];
	uint64_t machine, group;

	snprintf(path, sizeof(path), "%s/meminfo", proc);
	machine = sum_of_lines(path, total);
	group = cgroup_limit(proc, sysfs);
	return machine ? STK_MIN(machine, group) : group;
}

uint64_t stkd_node_available(const char *sysfs, int node)
{
	/* Clean page cache and reclaimable slabs give way to us. */
	static const char *const names[] = {"MemFree", "Active(file)", "Inactive(file)",
					    "SReclaimable", NULL};
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/devices/system/node/node%d/meminfo", sysfs, node);
	return sum_of_lines(path, names);
}
