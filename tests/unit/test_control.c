/* SPDX-License-Identifier: Apache-2.0 */
/* Calls without a seat, and where daemons are found. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

static void a_call_brings_the_replys_parameters(void **state)
{
	struct fake_daemon daemon = {0};
	char error[256], *reply;

	(void)state;
	fake_start(&daemon);
	assert_int_equal(stk_control_call(daemon.socket, "io.stoker.Status", NULL, 1000, &reply,
					  error, sizeof(error)),
			 0);
	assert_string_equal(reply, "{\"method\":\"io.stoker.Status\"}");
	free(reply);
	assert_int_equal(stk_control_call(daemon.socket, "io.stoker.X", "{\"rank\":3}", 1000,
					  &reply, NULL, 0),
			 0);
	free(reply);
	assert_int_equal(json_integer_value(json_object_get(
				 json_object_get(daemon.last_call, "parameters"), "rank")),
			 3);
	fake_stop(&daemon);
}

static void wrong_parameters_are_refused_before_anything_is_sent(void **state)
{
	char error[256], *reply;

	(void)state;
	assert_int_equal(
		stk_control_call("/nonexistent", "m", "[1]", 1000, &reply, error, sizeof(error)),
		-EINVAL);
	assert_int_equal(stk_control_call("/nonexistent", "m", "{\"a\":", 1000, &reply, error,
					  sizeof(error)),
			 -EINVAL);
	assert_non_null(strstr(error, "byte"));
}

static void a_socket_without_a_daemon_is_told_apart(void **state)
{
	char error[256], *reply;

	(void)state;
	assert_int_equal(
		stk_control_call("/nonexistent/s", "m", NULL, 1000, &reply, error, sizeof(error)),
		-ENOENT);
	assert_non_null(strstr(error, "/nonexistent/s"));
	setenv("STOKER_SOCKET", "/nonexistent/t", 1);
	assert_int_equal(stk_control_call(NULL, "m", NULL, 1000, &reply, error, sizeof(error)),
			 -ENOENT);
	assert_non_null(strstr(error, "/nonexistent/t"));
	unsetenv("STOKER_SOCKET");
}

static void system_and_private_daemons_are_found_and_dead_sockets_are_not(void **state)
{
	struct fake_daemon system_daemon = {0}, private_daemon = {0};
	char run[32] = "/tmp/stoker-test-XXXXXX", folder[64];
	struct sockaddr_un dead = {.sun_family = AF_UNIX};
	char **paths;
	int fd;

	(void)state;
	assert_non_null(mkdtemp(run));
	snprintf(folder, sizeof(folder), "%s/stoker", run);
	assert_int_equal(mkdir(folder, 0700), 0);
	snprintf(private_daemon.socket, sizeof(private_daemon.socket), "%s/b.sock", folder);
	snprintf(dead.sun_path, sizeof(dead.sun_path), "%s/a.sock", folder);
	fake_start(&system_daemon);
	fake_start(&private_daemon);
	setenv("STOKER_SOCKET", system_daemon.socket, 1);
	setenv("XDG_RUNTIME_DIR", run, 1);
	setenv("TMPDIR", run, 1);
	fd = socket(AF_UNIX, SOCK_STREAM, 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&dead, sizeof(dead)), 0);
	close(fd); /* the file stays, as after a kill */
	assert_int_equal(stk_control_sockets(&paths), 2);
	assert_string_equal(paths[0], system_daemon.socket);
	assert_string_equal(paths[1], private_daemon.socket);
	assert_null(paths[2]);
	for (int i = 0; i < 2; i++)
		free(paths[i]);
	free(paths);
	fake_stop(&private_daemon);
	fake_stop(&system_daemon);
	assert_int_equal(stk_control_sockets(&paths), 0);
	free(paths);
	unlink(dead.sun_path);
	rmdir(folder);
	rmdir(run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_call_brings_the_replys_parameters),
		cmocka_unit_test(wrong_parameters_are_refused_before_anything_is_sent),
		cmocka_unit_test(a_socket_without_a_daemon_is_told_apart),
		cmocka_unit_test(system_and_private_daemons_are_found_and_dead_sockets_are_not),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
