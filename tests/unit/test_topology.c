/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/memory/memfile.h"
#include "daemon/memory/topology.h"

static char root[64];

static int new_tree(void **state)
{
	(void)state;
	strcpy(root, "/tmp/stoker-topology-XXXXXX");
	return mkdtemp(root) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static int remove_tree(void **state)
{
	(void)state;
	return nftw(root, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Writes a file of the fake tree, and the directories above it. */
static void put(const char *name, const char *text)
{
	char path[512];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", root, name);
	for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')); p++) {
		*p = '\0';
		mkdir(path, 0700);
		*p = '/';
	}
	file = fopen(path, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void drop(const char *name)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/%s", root, name);
	assert_int_equal(unlink(path), 0);
}

static cpu_set_t set_of(const char *list)
{
	cpu_set_t set;

	assert_int_equal(stkd_cpulist_parse(list, &set), 0);
	return set;
}

static void assert_cpus(const struct stkd_node *node, const char *list)
{
	cpu_set_t want = set_of(list);

	assert_true(CPU_EQUAL(&node->cpus, &want));
	assert_int_equal(node->ncpus, CPU_COUNT(&want));
}

static void two_nodes(void)
{
	put("devices/system/node/has_memory", "0-1\n");
	put("devices/system/node/node0/cpulist", "0-3,8-11\n");
	put("devices/system/node/node1/cpulist", "4-7,12-15\n");
}

static struct stkd_topology init(const char *affinity)
{
	cpu_set_t set = set_of(affinity);
	struct stkd_topology t;
	struct stk_err err = {.code = 0};

	if (stkd_topology_init(&t, root, &set, &err) < 0)
		fail_msg("%s", err.text);
	return t;
}

static void lists_of_numbers_are_parsed(void **state)
{
	static const char *const bad[] = {
		"x",     "-1",   "1-",   "3-1",         "1,",  ",1", "1,,2", "0-99999999",
		"1024",  "1 2",  "0-3x", "1\n\n",       "0x1", " 1", "+1",   "99999999999999999999",
		"1-2-3", "0-3;", "1,-2", "0-1023,1024",
	};
	cpu_set_t set;

	(void)state;
	set = set_of("0-3,8");
	assert_int_equal(CPU_COUNT(&set), 5);
	assert_true(CPU_ISSET(3, &set) && CPU_ISSET(8, &set) && !CPU_ISSET(4, &set));
	set = set_of("0-1023\n");
	assert_int_equal(CPU_COUNT(&set), 1024);
	set = set_of("\n");
	assert_int_equal(CPU_COUNT(&set), 0);
	for (size_t i = 0; i < STK_ARRAY_SIZE(bad); i++)
		assert_int_equal(stkd_cpulist_parse(bad[i], &set), -EINVAL);
}

static void nodes_hold_only_cores_that_we_may_use(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	t = init("1-5");
	assert_int_equal(t.nnodes, 2);
	assert_int_equal(t.ncpus, 5);
	assert_int_equal(t.nodes[1].id, 1);
	assert_cpus(&t.nodes[0], "1-3");
	assert_cpus(&t.nodes[1], "4-5");
}

static void a_node_without_our_cores_is_listed_with_none(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	t = init("0-2");
	assert_int_equal(t.nnodes, 2);
	assert_cpus(&t.nodes[1], "");
}

static void node_numbers_may_have_holes_and_memory_may_have_no_cores(void **state)
{
	struct stkd_topology t;

	(void)state;
	put("devices/system/node/has_memory", "0,8,255\n");
	put("devices/system/node/node0/cpulist", "0-3\n");
	put("devices/system/node/node8/cpulist", "4-7\n");
	put("devices/system/node/node255/cpulist", "\n");
	t = init("0-7");
	assert_int_equal(t.nnodes, 3);
	assert_int_equal(t.nodes[1].id, 8);
	assert_int_equal(t.nodes[2].id, 255);
	assert_cpus(&t.nodes[2], "");
}

static void cores_of_a_node_without_memory_go_to_the_first_node(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("devices/system/node/has_memory", "1\n");
	t = init("0-7");
	assert_int_equal(t.nnodes, 1);
	assert_int_equal(t.nodes[0].id, 1);
	assert_cpus(&t.nodes[0], "0-7");
}

static void without_a_tree_all_cores_are_node_0(void **state)
{
	struct stkd_topology t;

	(void)state;
	t = init("0-2");
	assert_int_equal(t.nnodes, 1);
	assert_int_equal(t.nodes[0].id, 0);
	assert_cpus(&t.nodes[0], "0-2");
	assert_int_equal(stkd_topology_of_pci(&t, "0000:41:00.0"), -1);
}

static void an_old_kernel_lists_nodes_online_only(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("devices/system/node/online", "0-1\n");
	drop("devices/system/node/has_memory");
	t = init("0-15");
	assert_int_equal(t.nnodes, 2);
}

static void garbage_in_the_tree_is_named(void **state)
{
	cpu_set_t set = set_of("0");
	struct stkd_topology t;
	struct stk_err err;

	(void)state;
	two_nodes();
	put("devices/system/node/node1/cpulist", "0-99999999\n");
	assert_int_equal(stkd_topology_init(&t, root, &set, &err), -EINVAL);
	assert_non_null(strstr(err.text, "node1/cpulist: \"0-99999999\" is not"));
	put("devices/system/node/has_memory", "all\n");
	assert_int_equal(stkd_topology_init(&t, root, &set, &err), -EINVAL);
	assert_non_null(strstr(err.text, "has_memory: \"all\" is not"));
	put("devices/system/node/has_memory", "0-64\n");
	for (int i = 0; i < 65; i++) {
		char name[64];

		snprintf(name, sizeof(name), "devices/system/node/node%d/cpulist", i);
		put(name, "\n");
	}
	assert_int_equal(stkd_topology_init(&t, root, &set, &err), -E2BIG);
	put("devices/system/node/has_memory", "0,70\n");
	assert_int_equal(stkd_topology_init(&t, root, &set, &err), -ENOENT);
	assert_non_null(strstr(err.text, "node70/cpulist"));
}

static void a_device_is_found_by_its_numa_node(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("bus/pci/devices/0000:41:00.0/numa_node", "1\n");
	put("bus/pci/devices/0000:ab:00.0/numa_node", "0\n");
	t = init("0-15");
	assert_int_equal(stkd_topology_of_pci(&t, "0000:41:00.0"), 1);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:AB:00.0"), 0);
	assert_int_equal(stkd_topology_of_pci(&t, "00000000:41:00.0"), 1);
}

static void a_device_without_node_is_found_by_its_cores(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("bus/pci/devices/0000:41:00.0/numa_node", "-1\n");
	put("bus/pci/devices/0000:41:00.0/local_cpulist", "4-7,12-15\n");
	/* All cores: the firmware says nothing. */
	put("bus/pci/devices/0000:42:00.0/numa_node", "-1\n");
	put("bus/pci/devices/0000:42:00.0/local_cpulist", "0-15\n");
	put("bus/pci/devices/0000:43:00.0/numa_node", "garbage");
	put("bus/pci/devices/0000:44:00.0/numa_node", "7\n");
	put("bus/pci/devices/0000:44:00.0/local_cpulist", "0\n");
	t = init("0-1"); /* the device's cores need not be ours */
	assert_int_equal(stkd_topology_of_pci(&t, "0000:41:00.0"), 1);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:42:00.0"), -1);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:43:00.0"), -1);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:44:00.0"), 0);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:45:00.0"), -1);
}

static void what_cuda_says_counts_only_where_the_tree_does_not_know(void **state)
{
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("bus/pci/devices/0000:41:00.0/numa_node", "1\n");
	put("bus/pci/devices/0000:42:00.0/numa_node", "-1\n");
	t = init("0-15");
	assert_int_equal(stkd_topology_near(&t, "0000:41:00.0", 0), 1);
	assert_int_equal(stkd_topology_near(&t, "0000:42:00.0", 1), 1);
	assert_int_equal(stkd_topology_near(&t, "", 1), 1);
	assert_int_equal(stkd_topology_near(&t, "0000:42:00.0", -1), -1);
	assert_int_equal(stkd_topology_near(&t, "0000:42:00.0", 9), -1);
}

static void on_one_node_every_device_is_there(void **state)
{
	struct stkd_topology t;

	(void)state;
	put("devices/system/node/has_memory", "0\n");
	put("devices/system/node/node0/cpulist", "0-1\n");
	put("bus/pci/devices/0000:41:00.0/numa_node", "-1\n");
	t = init("0-1");
	assert_int_equal(stkd_topology_of_pci(&t, "0000:41:00.0"), 0);
	assert_int_equal(stkd_topology_of_pci(&t, "0000:42:00.0"), -1);
}

static void a_device_name_cannot_leave_the_tree(void **state)
{
	static const char *const bad[] = {"",
					  "../../../etc",
					  "0000:41:00.0/..",
					  "41:00.0",
					  "0000:41:0",
					  "0000:41:00.0 ",
					  "0000:4100.0",
					  "0000::00.0",
					  "x",
					  "0000:41:00.0\n",
					  "000000001:41:00.0",
					  "..:..:..",
					  "0000:041:00.0"};
	struct stkd_topology t;

	(void)state;
	two_nodes();
	put("bus/pci/devices/0000:41:00.0/numa_node", "1\n");
	t = init("0-15");
	for (size_t i = 0; i < STK_ARRAY_SIZE(bad); i++)
		assert_int_equal(stkd_topology_of_pci(&t, bad[i]), -1);
	for (size_t i = 0; i < STK_ARRAY_SIZE(bad); i++)
		assert_false(stkd_topology_is_pci(bad[i]));
	assert_true(stkd_topology_is_pci("0000:41:00.0"));
}

static void this_machine_has_a_node_with_cores(void **state)
{
	struct stkd_topology t;
	unsigned ncpus = 0;

	(void)state;
	assert_int_equal(stkd_topology_init(&t, "/sys", NULL, NULL), 0);
	for (unsigned i = 0; i < t.nnodes; i++)
		ncpus += t.nodes[i].ncpus;
	assert_true(ncpus > 0);
	assert_int_equal(ncpus, t.ncpus);
}

static uint64_t limit(void)
{
	char proc[80], sysfs[80];

	snprintf(proc, sizeof(proc), "%s/proc", root);
	snprintf(sysfs, sizeof(sysfs), "%s/sys", root);
	return stkd_memory_limit(proc, sysfs);
}

static void the_least_limit_of_all_groups_above_counts(void **state)
{
	(void)state;
	assert_true(limit() == UINT64_MAX);
	put("proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\nSwapTotal: 7 kB\n");
	assert_int_equal(limit(), 1024000);
	put("proc/self/cgroup", "0::/a.slice/b.service\n");
	put("sys/fs/cgroup/a.slice/b.service/memory.max", "max\n");
	put("sys/fs/cgroup/a.slice/memory.max", "900000\n");
	assert_int_equal(limit(), 900000);
	put("sys/fs/cgroup/a.slice/b.service/memory.max", "800000\n");
	assert_int_equal(limit(), 800000);
	put("sys/fs/cgroup/a.slice/b.service/memory.high", "790000\n");
	assert_int_equal(limit(), 790000);
	/* A container: its group is the root that it sees. */
	put("proc/self/cgroup", "0::/\n");
	put("sys/fs/cgroup/memory.max", "700000\n");
	assert_int_equal(limit(), 700000);
	put("sys/fs/cgroup/memory.max", "garbage\n");
	assert_int_equal(limit(), 1024000);
}

static void version_1_groups_limit_too(void **state)
{
	(void)state;
	put("proc/meminfo", "MemTotal:       1000 kB\n");
	put("proc/self/cgroup",
	    "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/y\n0::/z\n");
	put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "9223372036854771712\n");
	put("sys/fs/cgroup/memory/memory.limit_in_bytes", "600000\n");
	put("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1\n");
	put("sys/fs/cgroup/z/memory.max", "500000\n");
	assert_int_equal(limit(), 500000);
	put("sys/fs/cgroup/z/memory.max", "max\n");
	assert_int_equal(limit(), 600000);
	put("proc/self/cgroup", "nonsense\n:::\n0:\n4:memory2:/x\n");
	assert_int_equal(limit(), 1024000);
}

static void a_node_can_give_what_is_free_and_its_page_cache(void **state)
{
	(void)state;
	put("devices/system/node/node1/meminfo",
	    "Node 1 MemTotal:       1000 kB\nNode 1 MemFree:         100 kB\n"
	    "Node 1 Active:          500 kB\nNode 1 Active(file):     20 kB\n"
	    "Node 1 Inactive(file):    3 kB\nNode 1 SReclaimable:      1 kB\n");
	assert_int_equal(stkd_node_available(root, 1), 124 * 1024);
	assert_int_equal(stkd_node_available(root, 0), 0);
}

#define TREE_TEST(f) cmocka_unit_test_setup_teardown(f, new_tree, remove_tree)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lists_of_numbers_are_parsed),
		TREE_TEST(nodes_hold_only_cores_that_we_may_use),
		TREE_TEST(a_node_without_our_cores_is_listed_with_none),
		TREE_TEST(node_numbers_may_have_holes_and_memory_may_have_no_cores),
		TREE_TEST(cores_of_a_node_without_memory_go_to_the_first_node),
		TREE_TEST(without_a_tree_all_cores_are_node_0),
		TREE_TEST(an_old_kernel_lists_nodes_online_only),
		TREE_TEST(garbage_in_the_tree_is_named),
		TREE_TEST(a_device_is_found_by_its_numa_node),
		TREE_TEST(a_device_without_node_is_found_by_its_cores),
		TREE_TEST(what_cuda_says_counts_only_where_the_tree_does_not_know),
		TREE_TEST(on_one_node_every_device_is_there),
		TREE_TEST(a_device_name_cannot_leave_the_tree),
		cmocka_unit_test(this_machine_has_a_node_with_cores),
		TREE_TEST(the_least_limit_of_all_groups_above_counts),
		TREE_TEST(version_1_groups_limit_too),
		TREE_TEST(a_node_can_give_what_is_free_and_its_page_cache),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
