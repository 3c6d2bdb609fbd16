/* SPDX-License-Identifier: Apache-2.0 */
/* The private daemon: where its socket is, and how it is started. This program plays stokerd too. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/launch.h"
#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

static char folder[64];

static int set_up(void **state)
{
	char self[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	(void)state;
	assert_true(n > 0);
	self[n] = '\0';
	strcpy(folder, "/tmp/stoker-test-XXXXXX");
	assert_non_null(mkdtemp(folder));
	setenv("XDG_RUNTIME_DIR", folder, 1);
	setenv("TMPDIR", folder, 1); /* other daemons of this machine are not to be seen */
	setenv("STOKER_SOCKET", "/nonexistent", 1);
	setenv("STOKERD", self, 1);
	unsetenv("FAKE_ERROR");
	unsetenv("TORCHELASTIC_RUN_ID");
	unsetenv("SLURM_JOB_ID");
	return 0;
}

static int tear_down(void **state)
{
	char command[128];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", folder);
	return system(command);
}

/* The daemon of these tests: one client, then the end. Ends by itself in any case. */
static int play_stokerd(int argc, char **argv)
{
	struct fake_daemon daemon = {0};
	const char *error = getenv("FAKE_ERROR");
	char counted[PATH_MAX];

	alarm(20);
	if (argc < 8 || strcmp(argv[2], "--socket") || strcmp(argv[4], "--ready-fd") ||
	    strcmp(argv[6], "--linger"))
		return 2;
	snprintf(counted, sizeof(counted), "%s.started", argv[3]);
	close(open(counted, O_CREAT | O_APPEND | O_WRONLY, 0600));
	fprintf(stderr, "standard error of the daemon\n");
	if (error) {
		dprintf(atoi(argv[5]), "%s", error);
		return 1;
	}
	unlink(argv[3]);
	snprintf(daemon.socket, sizeof(daemon.socket), "%s", argv[3]);
	usleep(50000); /* others come meanwhile */
	fake_start(&daemon);
	dprintf(atoi(argv[5]), "ok\n");
	close(atoi(argv[5]));
	for (int i = 0; i < 1500 && atomic_load(&daemon.attaches) == 0; i++)
		usleep(2000);
	while (atomic_load(&daemon.conn) >= 0)
		usleep(2000);
	fake_stop(&daemon);
	return 0;
}

static int open_path(struct stk_client **ret, char *error, const char *job)
{
	struct stk_client_opts opts = {
		.size = sizeof(opts), .path = "/data", .job = job, .attach_timeout_ms = 5000};

	return stk_client_open(&opts, ret, error, 1024);
}

static void a_path_starts_a_private_daemon_that_is_nobodys_child(void **state)
{
	struct stk_client_info info = {.size = sizeof(info)};
	char error[1024] = "", path[128];
	struct stk_client *client;
	struct stat st;
	char **sockets;
	FILE *stat_file;
	int parent = 0, session = 0;

	(void)state;
	if (open_path(&client, error, "run-1") < 0)
		fail_msg("%s", error);
	assert_int_equal(stk_client_info(client, &info), 0);
	assert_int_equal(info.private_daemon, 1);
	snprintf(path, sizeof(path), "%s/stoker/run-1.sock", folder);
	assert_string_equal(info.socket, path);
	snprintf(path, sizeof(path), "%s/stoker", folder);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0700);
	assert_int_not_equal(info.daemon_pid, getpid());
	assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child, no zombie */
	assert_int_equal(errno, ECHILD);
	snprintf(path, sizeof(path), "/proc/%d/stat", info.daemon_pid);
	stat_file = fopen(path, "r");
	assert_non_null(stat_file);
	assert_int_equal(fscanf(stat_file, "%*d (%*[^)]) %*c %d %*d %d", &parent, &session), 2);
	fclose(stat_file);
	assert_int_not_equal(parent, getpid());
	assert_int_not_equal(session, getsid(0));
	assert_int_equal(stk_control_sockets(&sockets), 1);
	assert_string_equal(sockets[0], info.socket);
	free(sockets[0]);
	free(sockets);
	stk_client_close(client);
	snprintf(path, sizeof(path), "%s/stoker/run-1.lock", folder);
	assert_int_equal(access(path, F_OK), -1);
	snprintf(path, sizeof(path), "%s/stoker/run-1.log", folder);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_size, (off_t)strlen("standard error of the daemon\n"));
}

static void the_daemon_inherits_nothing_of_ours(void **state)
{
	struct stk_client_info info = {.size = sizeof(info)};
	char error[1024] = "", path[64], target[256];
	struct stk_client *client;
	struct dirent *entry;
	struct stk_batch *batch;
	int leak = open("/etc/passwd", O_RDONLY); /* without close-on-exec */
	DIR *dir;

	(void)state;
	signal(SIGTERM, SIG_IGN);
	if (open_path(&client, error, "run-2") < 0)
		fail_msg("%s", error);
	signal(SIGTERM, SIG_DFL);
	close(leak);
	stk_client_info(client, &info);
	snprintf(path, sizeof(path), "/proc/%d/fd", info.daemon_pid);
	dir = opendir(path);
	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		ssize_t n = readlinkat(dirfd(dir), entry->d_name, target, sizeof(target) - 1);

		target[n > 0 ? n : 0] = '\0';
		assert_string_not_equal(target, "/etc/passwd");
		if (!strcmp(entry->d_name, "0") || !strcmp(entry->d_name, "1"))
			assert_string_equal(target, "/dev/null");
	}
	closedir(dir);
	assert_int_equal(kill(info.daemon_pid, SIGTERM), 0); /* not ignored there */
	assert_int_equal(stk_client_next(client, 5000, &batch), -EPIPE);
	stk_client_close(client);
}

static void a_daemon_that_died_is_started_again_once(void **state)
{
	struct stk_client_info info = {.size = sizeof(info)};
	struct stk_client_opts opts = {.size = sizeof(opts),
				       .path = "/data",
				       .job = "again",
				       .attach_timeout_ms = 5000,
				       .reconnect_ms = 5000};
	struct stk_client *client;
	struct stk_batch *batch;
	char error[1024] = "";
	int first;

	(void)state;
	if (stk_client_open(&opts, &client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
	stk_client_info(client, &info);
	first = info.daemon_pid;
	assert_int_equal(kill(first, SIGKILL), 0);
	while (stk_client_next(client, 300, &batch) == STK_TIMEOUT) {
		stk_client_info(client, &info);
		if (info.daemon_pid != first)
			break;
	}
	assert_int_not_equal(info.daemon_pid, first);
	assert_int_equal(kill(info.daemon_pid, SIGKILL), 0); /* before it gave a batch */
	assert_int_equal(stk_client_next(client, 5000, &batch), -EPIPE);
	assert_non_null(strstr(stk_client_error(client), "died twice"));
	stk_client_close(client);
}

static void processes_that_come_at_once_start_one_daemon(void **state)
{
	pid_t pids[4];
	char path[128];
	DIR *dir;
	struct dirent *entry;
	int started = 0, fine = 0;

	(void)state;
	for (int i = 0; i < 4; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			struct stk_err err = {0};
			char *socket = NULL;
			int fd, r;

			r = stk__launch("many", INT64_MAX, &fd, &socket, &err);
			free(socket);
			usleep(100000);
			_exit(r < 0);
		}
	}
	for (int i = 0; i < 4; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		fine += status == 0;
	}
	assert_int_equal(fine, 4);
	snprintf(path, sizeof(path), "%s/stoker", folder);
	dir = opendir(path);
	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		started += strstr(entry->d_name, ".started") != NULL;
		assert_null(strstr(entry->d_name, ".lock"));
	}
	closedir(dir);
	assert_int_equal(started, 1);
}

static void a_daemon_that_cannot_start_says_why(void **state)
{
	char error[1024] = "";
	struct stk_client *client;

	(void)state;
	setenv("FAKE_ERROR", "error: memory 4 KiB is less than one slot\n", 1);
	assert_int_equal(open_path(&client, error, "run-3"), -ECONNREFUSED);
	assert_non_null(strstr(error, "memory 4 KiB is less than one slot"));
	setenv("FAKE_ERROR", "", 1);
	assert_int_equal(open_path(&client, error, "run-3"), -ECONNREFUSED);
	assert_non_null(strstr(error, "run-3.log"));
	setenv("STOKERD", "stokerd", 1);
	assert_int_equal(open_path(&client, error, "run-3"), -ENOENT);
	assert_non_null(strstr(error, "STOKERD=stokerd"));
}

static void a_program_that_does_not_run_is_named(void **state)
{
	char path[128], error[1024] = "";
	struct stk_client *client;

	(void)state;
	snprintf(path, sizeof(path), "%s/broken", folder);
	close(open(path, O_CREAT | O_WRONLY, 0755));
	assert_int_equal(chmod(path, 0755), 0);
	setenv("STOKERD", path, 1);
	assert_int_equal(open_path(&client, error, "run-4"), -ECONNREFUSED);
	assert_non_null(strstr(error, "cannot run"));
	assert_non_null(strstr(error, path));
}

static void a_folder_that_others_could_use_is_not_used(void **state)
{
	char path[128], error[1024] = "", elsewhere[128];
	struct stk_client *client;

	(void)state;
	if (geteuid() == 0)
		setenv("TMPDIR", "/nonexistent", 1); /* root owns /run/user/0 where it exists */
	if (access("/run/user/0", F_OK) == 0 && geteuid() == 0)
		skip();
	setenv("TMPDIR", "/nonexistent", 1);
	snprintf(path, sizeof(path), "%s/stoker", folder);
	assert_int_equal(mkdir(path, 0755), 0);
	assert_int_equal(chmod(path, 0777), 0);
	assert_true(open_path(&client, error, "run-5") < 0);
	assert_int_equal(rmdir(path), 0);
	snprintf(elsewhere, sizeof(elsewhere), "%s/elsewhere", folder);
	assert_int_equal(mkdir(elsewhere, 0700), 0);
	assert_int_equal(symlink(elsewhere, path), 0);
	assert_true(open_path(&client, error, "run-5") < 0);
}

static void names_that_are_no_file_names_are_hashed(void **state)
{
	char a[108], b[108], deep[120];
	struct stk_err err;

	(void)state;
	assert_int_equal(stk__launch_socket("/run/x", "job_1.2-a", a, sizeof(a), &err), 0);
	assert_string_equal(a, "/run/x/job_1.2-a.sock");
	assert_int_equal(stk__launch_socket("/run/x", "../../etc/passwd", a, sizeof(a), &err), 0);
	assert_null(strstr(a, ".."));
	assert_int_equal(stk__launch_socket("/run/x", "../../etc/passwe", b, sizeof(b), &err), 0);
	assert_string_not_equal(a, b);
	assert_int_equal(stk__launch_socket("/run/x", ".hidden", a, sizeof(a), &err), 0);
	assert_non_null(strstr(a, "/job-"));
	memset(deep, 'x', sizeof(deep));
	deep[0] = '/';
	deep[60] = '\0';
	assert_int_equal(stk__launch_socket(
				 deep,
				 "a-name-with-exactly-sixty-four-characters-so-that-it-is-allowed-",
				 a, sizeof(a), &err),
			 0);
	assert_non_null(strstr(a, "/job-"));
	deep[60] = 'x';
	deep[100] = '\0';
	assert_int_equal(stk__launch_socket(deep, "j", a, sizeof(a), &err), 0);
	deep[100] = 'x';
	deep[119] = '\0';
	assert_int_equal(stk__launch_socket(deep, "j", a, sizeof(a), &err), -ENAMETOOLONG);
	assert_non_null(strstr(err.text, "at most 107"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		TEST(a_path_starts_a_private_daemon_that_is_nobodys_child),
		TEST(the_daemon_inherits_nothing_of_ours),
		TEST(a_daemon_that_died_is_started_again_once),
		TEST(processes_that_come_at_once_start_one_daemon),
		TEST(a_daemon_that_cannot_start_says_why),
		TEST(a_program_that_does_not_run_is_named),
		TEST(a_folder_that_others_could_use_is_not_used),
		TEST(names_that_are_no_file_names_are_hashed),
	};

	if (argc > 1 && !strcmp(argv[1], "--private"))
		return play_stokerd(argc, argv);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
