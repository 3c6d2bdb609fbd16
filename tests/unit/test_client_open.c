/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a client: options, the exchange, and replies that do not fit. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/stoker.h"
#include "tests/unit/fake_daemon.h"

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
	char error[1024];
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	unsetenv("TORCHELASTIC_RUN_ID");
	unsetenv("SLURM_JOB_ID");
	fake_start(&f->daemon);
	f->opts = (struct stk_client_opts){.size = sizeof(f->opts),
					   .stream = "fake",
					   .socket = f->daemon.socket,
					   .attach_timeout_ms = 2000};
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	stk_client_close(f->client);
	fake_stop(&f->daemon);
	free(f);
	return 0;
}

static int open_client(struct fixture *f)
{
	return stk_client_open(&f->opts, &f->client, f->error, sizeof(f->error));
}

static const json_t *sent(const struct fixture *f, const char *key)
{
	return json_object_get(json_object_get(f->daemon.last_call, "parameters"), key);
}

#define assert_contains(text, part)                                                                \
	do {                                                                                       \
		if (!strstr(text, part))                                                           \
			fail_msg("\"%s\" has no \"%s\"", text, part);                              \
	} while (0)

static void options_that_contradict_each_other_are_refused_by_name(void **state)
{
	struct fixture *f = *state;

	f->opts.path = "/data";
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "one of stream, path and spec");
	f->opts.path = NULL;
	f->opts.flags = 4;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "flags 0x4");
	f->opts.flags = 0;
	f->opts.world = 2;
	f->opts.rank = 2;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "rank 2");
	f->opts.rank = 1;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "set job");
	f->opts.job = "j";
	f->opts.replica = 1;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "replica 1");
	f->opts.replica = 0;
	f->opts.state = "STKSTATE, but no more";
	f->opts.state_size = 21;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "21 bytes");
}

static void options_of_another_release_are_taken_as_far_as_they_are_zero(void **state)
{
	struct fixture *f = *state;
	struct {
		struct stk_client_opts opts;
		uint64_t later;
	} newer = {.opts = f->opts};

	newer.opts.size = sizeof(newer);
	assert_int_equal(stk_client_open(&newer.opts, &f->client, f->error, sizeof(f->error)), 0);
	f->client = stk_client_close(f->client);
	newer.later = 1;
	assert_int_equal(stk_client_open(&newer.opts, &f->client, f->error, sizeof(f->error)),
			 -EINVAL);
	f->opts.size = 0;
	assert_int_equal(open_client(f), -EINVAL);
	assert_contains(f->error, "sizeof");
}

static void the_call_carries_only_the_keys_that_were_given(void **state)
{
	static const char *const keys[] = {"rows=32", "buckets=[8, 16]", NULL};
	struct fixture *f = *state;
	char *text;

	f->opts.keys = keys;
	assert_int_equal(open_client(f), 0);
	text = json_dumps(sent(f, "spec"), JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(text, "{\"buckets\":[8,16],\"rows\":32}");
	free(text);
	assert_string_equal(json_string_value(sent(f, "stream")), "fake");
	assert_string_equal(json_string_value(sent(f, "state")), "");
	assert_int_equal(json_integer_value(sent(f, "world")), 1);
	assert_int_equal(json_integer_value(sent(f, "layout")), STK_SHM_MAJOR);
	assert_true(json_is_true(json_object_get(f->daemon.last_call, "more")));
}

static void paths_are_made_absolute_for_a_daemon_elsewhere(void **state)
{
	struct fixture *f = *state;
	const json_t *data;

	assert_int_equal(chdir("/usr"), 0);
	f->opts.stream = NULL;
	f->opts.path = "share/*.safetensors";
	assert_int_equal(open_client(f), 0);
	assert_string_equal(json_string_value(json_object_get(sent(f, "spec"), "data")),
			    "/usr/share/*.safetensors");
	f->client = stk_client_close(f->client);
	f->opts.path = NULL;
	f->opts.spec = "rows: 2\ndata:\n  - {path: a, weight: 1}\n  - /b\n";
	assert_int_equal(open_client(f), 0);
	data = json_object_get(sent(f, "spec"), "data");
	assert_string_equal(json_string_value(json_object_get(json_array_get(data, 0), "path")),
			    "/usr/a");
	assert_string_equal(json_string_value(json_array_get(data, 1)), "/b");
}

static void the_job_comes_from_the_launcher(void **state)
{
	struct fixture *f = *state;
	char pid[32];

	assert_int_equal(open_client(f), 0);
	snprintf(pid, sizeof(pid), "pid-%d", (int)getpid());
	assert_string_equal(json_string_value(sent(f, "job")), pid);
	f->client = stk_client_close(f->client);
	setenv("SLURM_JOB_ID", "77", 1);
	setenv("SLURM_STEP_ID", "3", 1);
	f->opts.world = 2;
	assert_int_equal(open_client(f), 0);
	assert_string_equal(json_string_value(sent(f, "job")), "77.3");
	f->client = stk_client_close(f->client);
	setenv("TORCHELASTIC_RUN_ID", "run", 1);
	assert_int_equal(open_client(f), 0);
	assert_string_equal(json_string_value(sent(f, "job")), "run");
}

static void no_daemon_is_refused_with_the_path(void **state)
{
	struct fixture *f = *state;

	f->opts.socket = "/nonexistent/s.sock";
	assert_int_equal(open_client(f), -ECONNREFUSED);
	assert_contains(f->error, "/nonexistent/s.sock");
}

static void reply_refused(struct fake_daemon *d, int conn, const json_t *call)
{
	struct stk_err err;
	json_t *json;

	(void)d;
	(void)call;
	stk_err_set(&err, -EBUSY, "rank 0: the seat is taken by pid 7");
	json = stk_msg_error(NULL, &err);
	stk_msg_send(conn, json, NULL, 0, 1000, NULL);
	json_decref(json);
}

static void a_refusal_has_the_daemons_code_and_words(void **state)
{
	struct fixture *f = *state;

	f->daemon.attach = reply_refused;
	assert_int_equal(open_client(f), -EBUSY);
	assert_string_equal(f->error, "rank 0: the seat is taken by pid 7");
}

static void other_versions_are_refused_with_both_named(void **state)
{
	struct fixture *f = *state;

	f->daemon.layout = 7;
	assert_int_equal(open_client(f), -EPROTO);
	assert_contains(f->error, "stokerd 9.9 has protocol 1 and layout 7");
	assert_contains(f->error, "libstoker " STK_RELEASE " has protocol 1 and layout 1");
}

static const char *raw_reply;
static size_t raw_size;

static void reply_raw(struct fake_daemon *d, int conn, const json_t *call)
{
	(void)d;
	(void)call;
	if (send(conn, raw_reply, raw_size, MSG_NOSIGNAL) < 0)
		perror("send");
	shutdown(conn, SHUT_WR);
}

static void malformed_replies_are_errors_and_nothing_is_left_open(void **state)
{
	static const struct {
		const char *bytes;
		size_t size;
		int code;
	} replies[] = {
		{"", 0, -EPIPE},
		{"{\"parameters\":", 14, -EPIPE},
		{"nonsense\0", 9, -EBADMSG},
		{"[]\0", 3, -EBADMSG},
		{"{}\0", 3, -EPROTO},
		{"{\"parameters\":7}\0", 17, -EPROTO},
		{"{\"parameters\":{\"protocol\":1,\"layout\":1}}\0", 41, -EPROTO},
		{"{\"error\":\"x\"}\0", 14, -EPROTO},
		{"{\"error\":7,\"parameters\":[]}\0", 28, -EPROTO},
		{"{\"error\":\"io.stoker.Refused\",\"parameters\":{\"reason\":\"r\",\"code\":5}}\0",
		 67, -EPROTO},
	};
	struct fixture *f = *state;
	int before = 0;

	f->daemon.attach = reply_raw;
	for (size_t i = 0; i < STK_ARRAY_SIZE(replies); i++) {
		raw_reply = replies[i].bytes;
		raw_size = replies[i].size;
		assert_int_equal(open_client(f), replies[i].code);
		assert_true(f->error[0]);
		while (atomic_load(&f->daemon.conn) >= 0)
			usleep(1000);
		if (!before)
			before = fake_count("fd");
		assert_int_equal(fake_count("fd"), before);
	}
}

static void reply_three_fds(struct fake_daemon *d, int conn, const json_t *call)
{
	(void)call;
	fake_reply(d, conn, 3);
}

static void too_few_descriptors_are_refused_and_closed(void **state)
{
	struct fixture *f = *state;

	f->daemon.attach = reply_three_fds;
	assert_int_equal(open_client(f), -EPROTO);
	assert_contains(f->error, "3 descriptors came, 5 are needed");
}

static void a_size_in_the_header_that_is_not_the_files_is_refused(void **state)
{
	struct fixture *f = *state;
	struct stat st;

	f->daemon.lie_size = 4096;
	assert_int_equal(open_client(f), -EPROTO);
	assert_contains(f->error, "by fstat");
	assert_int_equal(fstat(f->daemon.fds[FAKE_CONTROL], &st), 0);
	assert_int_equal(st.st_size, f->daemon.control->file_size - 4096); /* we cut nothing */
}

static void memory_that_may_shrink_is_not_mapped(void **state)
{
	struct fixture *f = *state;

	f->daemon.unsealed = true;
	assert_int_equal(open_client(f), -EPROTO);
	assert_contains(f->error, "control file: not a memory file sealed");
}

static void too_little_address_space_is_an_error_and_harms_nobody(void **state)
{
	struct fixture *f = *state;
	struct rlimit saved, low;
	unsigned long pages = 0;
	FILE *statm;
	struct stat st;
	int r;

	/* A first attach makes all threads and arenas, so that only the mappings are new. */
	assert_int_equal(open_client(f), 0);
	f->client = stk_client_close(f->client);
	statm = fopen("/proc/self/statm", "r");
	assert_non_null(statm);
	assert_int_equal(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	getrlimit(RLIMIT_AS, &saved);
	low = saved;
	/* The daemon makes its files anew in place of the old ones; our slots do not fit beside them. */
	low.rlim_cur = pages * 4096 + FAKE_SLOTS * FAKE_SLOT_SIZE - 4096;
	setrlimit(RLIMIT_AS, &low);
	r = open_client(f);
	setrlimit(RLIMIT_AS, &saved);
	if (r == 0)
		skip(); /* a sanitizer owns the address space */
	assert_int_equal(r, -ENOMEM);
	assert_contains(f->error, "RLIMIT_AS");
	assert_int_equal(fstat(f->daemon.fds[FAKE_SLOTS_FD], &st), 0);
	assert_int_equal(st.st_size, FAKE_SLOTS * FAKE_SLOT_SIZE);
	assert_int_equal(open_client(f), 0);
}

static void the_descriptor_limit_is_named_and_nothing_leaks(void **state)
{
	struct fixture *f = *state;
	struct rlimit saved, low;
	int before, r;

	/* The fake daemon needs its descriptors first; they stay open until the next attach. */
	assert_int_equal(open_client(f), 0);
	f->client = stk_client_close(f->client);
	while (atomic_load(&f->daemon.conn) >= 0)
		usleep(1000);
	before = fake_count("fd");
	getrlimit(RLIMIT_NOFILE, &saved);
	low = saved;
	/* /proc/self/fd itself, "." and ".." are in the count; room for two sockets, and for two of five. */
	low.rlim_cur = (rlim_t)before - 3 + 2 + 2;
	setrlimit(RLIMIT_NOFILE, &low);
	r = open_client(f);
	setrlimit(RLIMIT_NOFILE, &saved);
	assert_int_equal(r, -EMFILE);
	assert_contains(f->error, "descriptor limit");
	while (atomic_load(&f->daemon.conn) >= 0)
		usleep(1000);
	assert_int_equal(fake_count("fd"), before);
}

static void reply_never(struct fake_daemon *d, int conn, const json_t *call)
{
	(void)d;
	(void)conn;
	(void)call;
}

static void silence_ends_in_a_timeout(void **state)
{
	struct fixture *f = *state;

	f->daemon.attach = reply_never;
	f->opts.attach_timeout_ms = 50;
	assert_int_equal(open_client(f), -ETIMEDOUT);
	assert_contains(f->error, "50 ms");
}

/* Five times 30 ms of work, under a limit of 100 ms of silence. */
static void reply_slowly(struct fake_daemon *d, int conn, const json_t *call)
{
	(void)call;
	for (int i = 0; i < 5; i++) {
		json_t *json = stk_msg_reply(json_pack("{s:{s:s,s:i,s:i}}", "progress", "stage",
						       "slow", "done", i, "total", 5),
					     true);

		stk_msg_send(conn, json, NULL, 0, 1000, NULL);
		json_decref(json);
		usleep(30000);
	}
	fake_reply(d, conn, FAKE_FDS);
}

static unsigned reports;

static void on_progress(void *data, const char *stage, uint64_t done, uint64_t total)
{
	(void)done;
	(void)total;
	assert_string_equal(data, "mine");
	reports += !strcmp(stage, "slow");
}

static void progress_is_passed_on_and_counts_as_a_sign_of_life(void **state)
{
	struct fixture *f = *state;

	f->daemon.attach = reply_slowly;
	f->opts.attach_timeout_ms = 100;
	f->opts.progress = on_progress;
	f->opts.progress_data = (void *)"mine";
	reports = 0;
	assert_int_equal(open_client(f), 0);
	assert_int_equal(reports, 5);
}

static void what_was_announced_can_be_asked_for(void **state)
{
	struct fixture *f = *state;
	struct stk_client_info info = {.size = sizeof(info)};
	struct stk_shape shape;

	assert_int_equal(open_client(f), 0);
	assert_int_equal(stk_client_info(f->client, &info), 0);
	assert_int_equal(info.samples, 10);
	assert_int_equal(info.steps_per_epoch, 4);
	assert_int_equal(info.truncated, 1);
	assert_int_equal(info.epochs, 2);
	assert_int_equal(info.slots, FAKE_SLOTS);
	assert_int_equal(info.slot_size, FAKE_SLOT_SIZE);
	assert_int_equal(info.daemon_pid, getpid());
	assert_string_equal(info.stream, "fake");
	assert_string_equal(info.socket, f->daemon.socket);
	assert_null(info.notice);
	assert_int_equal(stk_client_shapes(f->client, NULL, 0), 1);
	assert_int_equal(stk_client_shapes(f->client, &shape, 1), 1);
	assert_int_equal(shape.rows, 3);
	assert_int_equal(shape.width_max, 8);
}

static void a_shape_is_told_as_far_as_the_caller_knows_it(void **state)
{
	struct fixture *f = *state;
	struct stk_shape_info info = {.size = sizeof(info)};

	assert_int_equal(open_client(f), 0);
	assert_int_equal(stk_client_shape(f->client, 0, &info), 0);
	assert_int_equal(info.size, sizeof(info));
	assert_int_equal(info.edge, 8);
	assert_int_equal(info.rows, 3);
	assert_int_equal(info.width_min, 8);
	assert_int_equal(info.width_max, 8);
	assert_int_equal(info.width_multiple, 8);
	assert_int_equal(info.edge2, 5);
	assert_int_equal(info.width2_min, 2);
	assert_int_equal(info.width2_max, 4);
	assert_int_equal(stk_client_shape(f->client, 1, &info), -ERANGE);
	info.size = sizeof(info.size) - 1;
	assert_int_equal(stk_client_shape(f->client, 0, &info), -EINVAL);
	/* Built against an older header, and against a newer one. */
	info = (struct stk_shape_info){.size = offsetof(struct stk_shape_info, edge2), .edge2 = 99};
	assert_int_equal(stk_client_shape(f->client, 0, &info), 0);
	assert_int_equal(info.width_multiple, 8);
	assert_int_equal(info.edge2, 99);
	info.size = 4096;
	assert_int_equal(stk_client_shape(f->client, 0, &info), 0);
	assert_int_equal(info.size, sizeof(info));
	assert_int_equal(info.edge2, 5);
}

static void what_was_asked_for_and_is_not_so_can_be_read(void **state)
{
	struct fixture *f = *state;
	struct stk_client_info info = {.size = sizeof(info)};

	f->daemon.notice = "memory: prefetch lowered";
	assert_int_equal(open_client(f), 0);
	assert_int_equal(stk_client_info(f->client, &info), 0);
	assert_string_equal(info.notice, "memory: prefetch lowered");
	/* Built against an older header: nothing is written behind what it knows. */
	info = (struct stk_client_info){.size = offsetof(struct stk_client_info, notice)};
	assert_int_equal(stk_client_info(f->client, &info), 0);
	assert_null(info.notice);
}

static void attaching_again_and_again_leaves_nothing_behind(void **state)
{
	struct fixture *f = *state;
	int fds = 0, maps = 0;

	for (int i = 0; i < 60; i++) {
		f->daemon.layout = i % 3 == 2 ? 7 : 0; /* every third one fails half-way */
		assert_int_equal(open_client(f), f->daemon.layout ? -EPROTO : 0);
		f->client = f->daemon.layout ? NULL : stk_client_close(f->client);
		while (atomic_load(&f->daemon.conn) >= 0)
			usleep(500);
		if (i == 10) {
			fds = fake_count("fd");
			maps = fake_count("map_files");
		}
	}
	assert_int_equal(fake_count("fd"), fds);
	assert_in_range(fake_count("map_files"), maps - 2, maps + 2);
}

static void the_device_is_told_when_there_is_one(void **state)
{
	struct fixture *f = *state;

	f->opts.host_node = 1;
	assert_int_equal(open_client(f), 0);
	assert_null(sent(f, "device"));
	f->client = stk_client_close(f->client);
	f->opts.pci = "0000:41:00.0";
	assert_int_equal(open_client(f), 0);
	assert_string_equal(json_string_value(json_object_get(sent(f, "device"), "pci")),
			    "0000:41:00.0");
	assert_int_equal(json_integer_value(json_object_get(sent(f, "device"), "host_node")), 1);
	f->client = stk_client_close(f->client);
	f->opts.host_node = -2;
	assert_int_equal(open_client(f), -EINVAL);
	assert_string_equal(f->error, "options: host_node -2, -1 or more");
}

static void a_private_daemons_name_has_to_be_one(void **state)
{
	struct fixture *f = *state;

	f->opts.private_name = "";
	assert_int_equal(open_client(f), -EINVAL);
	assert_string_equal(f->error, "private_name: 0 bytes, 1 to 255 are possible");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(options_that_contradict_each_other_are_refused_by_name),
		TEST(options_of_another_release_are_taken_as_far_as_they_are_zero),
		TEST(the_call_carries_only_the_keys_that_were_given),
		TEST(paths_are_made_absolute_for_a_daemon_elsewhere),
		TEST(the_job_comes_from_the_launcher),
		TEST(no_daemon_is_refused_with_the_path),
		TEST(a_refusal_has_the_daemons_code_and_words),
		TEST(other_versions_are_refused_with_both_named),
		TEST(malformed_replies_are_errors_and_nothing_is_left_open),
		TEST(too_few_descriptors_are_refused_and_closed),
		TEST(a_size_in_the_header_that_is_not_the_files_is_refused),
		TEST(memory_that_may_shrink_is_not_mapped),
		TEST(too_little_address_space_is_an_error_and_harms_nobody),
		TEST(the_descriptor_limit_is_named_and_nothing_leaks),
		TEST(silence_ends_in_a_timeout),
		TEST(progress_is_passed_on_and_counts_as_a_sign_of_life),
		TEST(what_was_announced_can_be_asked_for),
		TEST(a_shape_is_told_as_far_as_the_caller_knows_it),
		TEST(what_was_asked_for_and_is_not_so_can_be_read),
		TEST(attaching_again_and_again_leaves_nothing_behind),
		TEST(the_device_is_told_when_there_is_one),
		TEST(a_private_daemons_name_has_to_be_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
