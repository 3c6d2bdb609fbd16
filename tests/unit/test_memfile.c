/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/memory/memfile.h"

#define MIB (UINT64_C(1) << 20)

/* Everything that a file leaves behind: descriptors and mappings. */
static unsigned count_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	unsigned n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static unsigned count_maps(const char *name)
{
	FILE *file = fopen("/proc/self/maps", "r");
	char line[512];
	unsigned n = 0;

	while (fgets(line, sizeof(line), file))
		n += strstr(line, name) != NULL;
	fclose(file);
	return n;
}

static uint64_t resident(const struct stkd_memfile *file)
{
	struct stat st;

	assert_int_equal(fstat(file->fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

struct warnings {
	char kinds[64];
	char text[1024];
	unsigned n;
};

static void note(void *data, const char *kind, const char *text)
{
	struct warnings *w = data;

	w->n++;
	strcat(strcat(w->kinds, kind), " ");
	snprintf(w->text, sizeof(w->text), "%s", text);
}

static void a_file_is_sealed_mapped_and_populated(void **state)
{
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = -1, .populate = true, .warn = note, .data = &w};
	struct stkd_memfile file;
	unsigned fds = count_fds();
	struct stat st;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", 6 * MIB, &place, &file, NULL), 0);
	assert_int_equal(fcntl(file.fd, F_GET_SEALS) & ~0x20 /* EXEC */,
			 F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
	assert_int_equal(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
	assert_int_equal(ftruncate(file.fd, 0), -1);
	assert_int_equal(ftruncate(file.fd, 7 * MIB), -1);
	assert_int_equal(fstat(file.fd, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0400);
	assert_int_equal(file.size, 6 * MIB);
	assert_int_equal(resident(&file), 6 * MIB);
	memset(file.map, 1, file.size);
	assert_int_equal(count_maps("stoker-test"), 1);
	stkd_memfile_deinit(&file);
	assert_int_equal(file.fd, -1);
	assert_null(file.map);
	assert_int_equal(count_fds(), fds);
	assert_int_equal(count_maps("stoker-test"), 0);
	stkd_memfile_deinit(&file); /* a second time does nothing */
}

static void a_file_is_locked_only_when_asked(void **state)
{
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = -1, .lock = -1, .warn = note, .data = &w};
	struct stkd_memfile file;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", 4096, &place, &file, NULL), 0);
	assert_false(file.locked);
	stkd_memfile_deinit(&file);
	place.lock = STK_NEED_TRY;
	assert_int_equal(stkd_memfile_new("stoker-test", 4096, &place, &file, NULL), 0);
	assert_int_equal(file.locked, w.n == 0);
	stkd_memfile_deinit(&file);
}

static void a_small_file_is_populated_without_being_asked(void **state)
{
	struct stkd_memfile file;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", 3 * MIB + 1, NULL, &file, NULL), 0);
	assert_true(resident(&file) >= 3 * MIB + 1);
	assert_false(file.locked);
	stkd_memfile_deinit(&file);
	assert_int_equal(stkd_memfile_new("stoker-test", 32 * MIB, NULL, &file, NULL), 0);
	assert_int_equal(resident(&file), 0);
	stkd_memfile_deinit(&file);
}

static void a_readonly_descriptor_cannot_be_written(void **state)
{
	struct stkd_memfile file;
	uint8_t *map;
	int fd;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", MIB, NULL, &file, NULL), 0);
	fd = stkd_memfile_readonly(&file, NULL);
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_ptr_equal(mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
	map = mmap(NULL, MIB, PROT_READ, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	assert_int_equal(mprotect(map, MIB, PROT_READ | PROT_WRITE), -1);
	file.map[5] = 42;
	assert_int_equal(map[5], 42);
	munmap(map, MIB);
	close(fd);
	stkd_memfile_deinit(&file);
	assert_int_equal(stkd_memfile_readonly(&file, NULL), -ENOENT);
}

static void impossible_sizes_are_refused(void **state)
{
	struct stkd_memfile file = {.fd = 77};
	struct stk_err err;
	unsigned fds = count_fds();

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", 0, NULL, &file, &err), -EINVAL);
	assert_int_equal(stkd_memfile_new("stoker-test", UINT64_MAX, NULL, &file, &err), -EINVAL);
	assert_true(stkd_memfile_new("stoker-test", INT64_MAX, NULL, &file, &err) < 0);
	assert_non_null(strstr(err.text, "stoker-test"));
	assert_int_equal(file.fd, 77);
	assert_int_equal(count_fds(), fds);
}

static void populating_tells_its_progress_and_can_be_cancelled(void **state)
{
	struct stkd_progress progress = {.done = 5};
	struct stkd_place place = {.node = -1, .populate = true, .progress = &progress};
	struct stkd_memfile file;
	unsigned fds = count_fds();
	struct stk_err err;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", 65 * MIB, &place, &file, &err), 0);
	assert_int_equal(atomic_load(&progress.done), 65 * MIB);
	assert_int_equal(atomic_load(&progress.total), 65 * MIB);
	assert_string_equal(atomic_load(&progress.stage), "populating memory");
	stkd_memfile_deinit(&file);
	atomic_store(&progress.cancel, true);
	assert_int_equal(stkd_memfile_new("stoker-test", 8 * MIB, &place, &file, &err), -ECANCELED);
	assert_int_equal(count_fds(), fds);
	assert_int_equal(count_maps("stoker-test"), 0);
}

static void an_absent_node_is_an_error_or_a_warning(void **state)
{
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = 63, .populate = true, .warn = note, .data = &w};
	struct stkd_memfile file;
	struct stk_err err;

	(void)state;
	assert_int_equal(stkd_memfile_new("stoker-test", MIB, &place, &file, &err), 0);
	assert_int_equal(file.node, -1);
	assert_non_null(strstr(w.kinds, "numa"));
	stkd_memfile_deinit(&file);
	place.numa = STK_NEED_REQUIRE;
	assert_int_equal(stkd_memfile_new("stoker-test", MIB, &place, &file, &err), -EINVAL);
	assert_non_null(strstr(err.text, "NUMA node 63: not online"));
	place.node = 100000;
	assert_int_equal(stkd_memfile_new("stoker-test", MIB, &place, &file, &err), -EINVAL);
	assert_int_equal(count_maps("stoker-test"), 0);
}

static void more_than_the_node_has_is_refused_before_it_is_touched(void **state)
{
	struct stkd_place place = {.node = 0, .numa = STK_NEED_REQUIRE, .populate = true};
	uint64_t available = stkd_node_available("/sys", 0);
	struct stkd_memfile file;
	struct stk_err err;

	(void)state;
	if (!available) {
		print_message("skipped: /sys does not say what node 0 has\n");
		skip();
	}
	assert_int_equal(stkd_memfile_new("stoker-test", 2 * available, &place, &file, &err),
			 -ENOMEM);
	assert_non_null(strstr(err.text, "NUMA node 0 has"));
	assert_non_null(strstr(err.text, " needed"));
}

static void pages_are_checked_to_lie_on_their_node(void **state)
{
	struct stkd_place place = {.node = 0, .numa = STK_NEED_REQUIRE, .populate = true};
	struct stkd_memfile file;
	struct stk_err err;
	int r;

	(void)state;
	r = stkd_memfile_new("stoker-test", 6 * MIB, &place, &file, &err);
	if (r == -EPERM || r == -ENOSYS) {
		print_message("skipped: %s\n", err.text);
		skip();
	}
	assert_int_equal(r, 0);
	assert_int_equal(file.node, 0);
	stkd_memfile_deinit(&file);
}

/* Runs fn in a child without privileges; its return value is the result, 0 is good. */
static int in_child(int (*fn)(void), bool drop)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		if (drop && geteuid() == 0 && (setgid(65534) < 0 || setuid(65534) < 0))
			_exit(99);
		_exit(fn());
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/* In a child no assertion of cmocka may run: each check returns its line. */
#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			return __LINE__ % 250 + 1;                                                 \
	} while (0)

static int lock_over_limit(void)
{
	struct rlimit limit = {.rlim_cur = MIB, .rlim_max = MIB};
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = -1, .populate = true, .warn = note, .data = &w};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};
	unsigned fds = count_fds();

	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB / 2, &place, &file, &err) == 0);
	CHECK(file.locked && w.n == 0);
	stkd_memfile_deinit(&file);
	CHECK(stkd_memfile_new("stoker-test", 2 * MIB, &place, &file, &err) == 0);
	CHECK(!file.locked && w.n == 1 && !strcmp(w.kinds, "lock "));
	CHECK(strstr(w.text, "RLIMIT_MEMLOCK is 1048576 bytes"));
	stkd_memfile_deinit(&file);
	place.lock = STK_NEED_REQUIRE;
	CHECK(stkd_memfile_new("stoker-test", 2 * MIB, &place, &file, &err) == -ENOMEM);
	CHECK(strstr(err.text, "2097152 are needed"));
	limit = (struct rlimit){0, 0};
	CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB, &place, &file, &err) == -EPERM);
	CHECK(strstr(err.text, "RLIMIT_MEMLOCK is 0 bytes"));
	CHECK(count_fds() == fds && count_maps("stoker-test") == 0);
	return 0;
}

static void a_lock_limit_is_named_with_value_and_need(void **state)
{
	(void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	print_message("skipped: sanitizers make mlock() do nothing\n");
	skip();
#endif
	assert_int_equal(in_child(lock_over_limit, true), 0);
}

static int map_over_limit(void)
{
	struct rlimit limit = {.rlim_cur = 512 * MIB, .rlim_max = 512 * MIB};
	struct stkd_place place = {.node = -1};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};
	unsigned fds = count_fds();

	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	CHECK(stkd_memfile_new("stoker-test", 600 * MIB, &place, &file, &err) == -ENOMEM);
	CHECK(strstr(err.text, "RLIMIT_AS is 536870912 bytes"));
	CHECK(count_fds() == fds);
	return 0;
}

static void an_address_space_limit_is_named_too(void **state)
{
	(void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	print_message("skipped: sanitizers need the address space that this limits\n");
	skip();
#endif
	assert_int_equal(in_child(map_over_limit, true), 0);
}

static int no_descriptors(void)
{
	struct rlimit limit = {.rlim_cur = 0, .rlim_max = 0};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};

	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB, NULL, &file, &err) == -EMFILE);
	CHECK(strstr(err.text, "memfd_create"));
	return 0;
}

static void without_descriptors_there_is_no_file(void **state)
{
	(void)state;
	assert_int_equal(in_child(no_descriptors, false), 0);
}

static int reopen_as_stranger(void)
{
	struct stkd_memfile file;
	char path[64];

	CHECK(stkd_memfile_new("stoker-test", MIB, NULL, &file, NULL) == 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", file.fd);
	CHECK(open(path, O_RDWR) == -1 && errno == EACCES);
	CHECK(stkd_memfile_readonly(&file, NULL) >= 0);
	return 0;
}

static void the_file_cannot_be_reopened_for_writing(void **state)
{
	(void)state;
	if (geteuid() != 0) {
		assert_int_equal(in_child(reopen_as_stranger, false), 0);
		return;
	}
	assert_int_equal(in_child(reopen_as_stranger, true), 0);
}

/* From now on these system calls fail with that error, as under a container's seccomp profile. */
static int forbid(const long *calls, size_t n, int error, int advice)
{
	struct sock_filter filter[32];
	struct sock_fprog program = {.filter = filter};
	unsigned short len = 0;

	filter[len++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
						     offsetof(struct seccomp_data, nr));
	for (size_t i = 0; i < n; i++) {
		filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							     (unsigned)calls[i], 0, 1);
		filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
							     SECCOMP_RET_ERRNO | (unsigned)error);
	}
	if (advice) {
		filter[len++] =
			(struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3);
		filter[len++] = (struct sock_filter)BPF_STMT(
			BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2]));
		filter[len++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
							     (unsigned)advice, 0, 1);
		filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K,
							     SECCOMP_RET_ERRNO | (unsigned)error);
	}
	filter[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	program.len = len;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0 ? -errno : 0;
}

static int without_numa_calls(int error)
{
	static const long calls[] = {SYS_mbind, SYS_move_pages};
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = 0, .populate = true, .warn = note, .data = &w};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};

	CHECK(forbid(calls, 2, error, 0) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB, &place, &file, &err) == 0);
	CHECK(w.n >= 1 && !strncmp(w.kinds, "numa ", 5) && !strstr(w.kinds + 5, "numa"));
	CHECK(file.node == -1 && resident(&file) == MIB);
	stkd_memfile_deinit(&file);
	place.numa = STK_NEED_REQUIRE;
	CHECK(stkd_memfile_new("stoker-test", MIB, &place, &file, &err) == -error);
	CHECK(count_maps("stoker-test") == 0);
	return 0;
}

static int numa_calls_eperm(void)
{
	return without_numa_calls(EPERM);
}

static int numa_calls_enosys(void)
{
	return without_numa_calls(ENOSYS);
}

static int check_refused(void)
{
	static const long calls[] = {SYS_move_pages};
	struct warnings w = {.n = 0};
	struct stkd_place place = {.node = 0, .populate = true, .warn = note, .data = &w};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};

	CHECK(forbid(calls, 1, EPERM, 0) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB, &place, &file, &err) == 0);
	CHECK(w.n >= 1 && !strncmp(w.kinds, "numa ", 5));
	stkd_memfile_deinit(&file);
	place.numa = STK_NEED_REQUIRE;
	CHECK(stkd_memfile_new("stoker-test", MIB, &place, &file, &err) == -EPERM);
	CHECK(strstr(err.text, "move_pages"));
	return 0;
}

static void numa_calls_that_seccomp_refuses_are_one_warning(void **state)
{
	(void)state;
	assert_int_equal(in_child(numa_calls_eperm, true), 0);
	assert_int_equal(in_child(numa_calls_enosys, true), 0);
	assert_int_equal(in_child(check_refused, true), 0);
}

static int without_populate(void)
{
	struct stkd_place place = {.node = -1, .populate = true};
	struct stkd_memfile file;

	CHECK(forbid(NULL, 0, EINVAL, 23 /* MADV_POPULATE_WRITE */) == 0);
	CHECK(madvise(NULL, 0, 23) == -1 && errno == EINVAL);
	CHECK(stkd_memfile_new("stoker-test", 6 * MIB, &place, &file, NULL) == 0);
	CHECK(resident(&file) == 6 * MIB);
	stkd_memfile_deinit(&file);
	return 0;
}

static void a_kernel_without_populate_is_served_by_allocating(void **state)
{
	(void)state;
	assert_int_equal(in_child(without_populate, true), 0);
}

static int without_memfd(void)
{
	static const long calls[] = {SYS_memfd_create};
	struct stkd_memfile file;
	struct stk_err err = {.code = 0};

	CHECK(forbid(calls, 1, ENOSYS, 0) == 0);
	CHECK(stkd_memfile_new("stoker-test", MIB, NULL, &file, &err) == -ENOSYS);
	CHECK(strstr(err.text, "memfd_create"));
	return 0;
}

static void a_kernel_without_memory_files_is_named(void **state)
{
	(void)state;
	assert_int_equal(in_child(without_memfd, true), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_is_sealed_mapped_and_populated),
		cmocka_unit_test(a_file_is_locked_only_when_asked),
		cmocka_unit_test(a_small_file_is_populated_without_being_asked),
		cmocka_unit_test(a_readonly_descriptor_cannot_be_written),
		cmocka_unit_test(impossible_sizes_are_refused),
		cmocka_unit_test(populating_tells_its_progress_and_can_be_cancelled),
		cmocka_unit_test(an_absent_node_is_an_error_or_a_warning),
		cmocka_unit_test(more_than_the_node_has_is_refused_before_it_is_touched),
		cmocka_unit_test(pages_are_checked_to_lie_on_their_node),
		cmocka_unit_test(a_lock_limit_is_named_with_value_and_need),
		cmocka_unit_test(an_address_space_limit_is_named_too),
		cmocka_unit_test(without_descriptors_there_is_no_file),
		cmocka_unit_test(the_file_cannot_be_reopened_for_writing),
		cmocka_unit_test(numa_calls_that_seccomp_refuses_are_one_warning),
		cmocka_unit_test(a_kernel_without_populate_is_served_by_allocating),
		cmocka_unit_test(a_kernel_without_memory_files_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
