/* SPDX-License-Identifier: Apache-2.0 */
/* Control messages: framing, descriptors, hostile input. */
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

#include "proto/msg.h"

struct pair {
	int ours, theirs;
	struct stk_msg_in in;
	struct stk_err err;
};

static int set_up(void **state)
{
	struct pair *p = calloc(1, sizeof(*p));
	int fds[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
			 0);
	p->ours = fds[0];
	p->theirs = fds[1];
	*state = p;
	return 0;
}

static int tear_down(void **state)
{
	struct pair *p = *state;

	stk_msg_in_deinit(&p->in);
	stk_close(p->ours);
	stk_close(p->theirs);
	free(p);
	return 0;
}

static void put(struct pair *p, const char *bytes, size_t size)
{
	assert_int_equal(write(p->theirs, bytes, size), (ssize_t)size);
}

/* The next message's "n", which has to be there. */
static int next_n(struct pair *p)
{
	json_t *json;
	int n;

	assert_int_equal(stk_msg_next(&p->in, &json, &p->err), 1);
	n = (int)json_integer_value(json_object_get(json, "n"));
	json_decref(json);
	return n;
}

static void send_n(struct pair *p, int n, const int *fds, size_t nfds)
{
	json_t *json = json_pack("{s:i}", "n", n);

	assert_int_equal(stk_msg_send(p->theirs, json, fds, nfds, 1000, &p->err), 0);
	json_decref(json);
}

static int expect_bad(struct pair *p, const char *bytes, size_t size, const char *text)
{
	json_t *json;
	int r;

	put(p, bytes, size);
	assert_true(stk_msg_recv(p->ours, &p->in, &p->err) > 0);
	r = stk_msg_next(&p->in, &json, &p->err);
	assert_non_null(strstr(p->err.text, text));
	return r;
}

static void two_messages_in_one_read_come_one_after_the_other(void **state)
{
	struct pair *p = *state;
	json_t *json;

	put(p, "{\"n\":1}\0{\"n\":2}\0", 16);
	assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), 16);
	assert_int_equal(next_n(p), 1);
	assert_int_equal(next_n(p), 2);
	assert_int_equal(stk_msg_next(&p->in, &json, &p->err), 0);
}

static void a_message_in_pieces_is_whole_only_after_its_zero_byte(void **state)
{
	static const char text[] = "{\"n\":7}";
	struct pair *p = *state;
	json_t *json;

	for (size_t i = 0; i < sizeof(text); i++) {
		assert_int_equal(stk_msg_next(&p->in, &json, &p->err), 0);
		put(p, text + i, 1);
		assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), 1);
	}
	assert_int_equal(next_n(p), 7);
}

static void an_idle_socket_says_again_and_a_closed_one_is_the_end(void **state)
{
	struct pair *p = *state;

	assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), -EAGAIN);
	p->theirs = stk_close(p->theirs);
	assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), 0);
}

static void what_is_not_one_json_object_is_refused_with_its_position(void **state)
{
	struct pair *p = *state;

	assert_int_equal(expect_bad(p, "[1]\0", 4, "object"), -EBADMSG);
	assert_int_equal(expect_bad(p, "\0", 1, "byte 0"), -EBADMSG);
	assert_int_equal(expect_bad(p, "{\"n\":}\0", 7, "byte 6"), -EBADMSG);
	assert_int_equal(expect_bad(p, "{\"n\":1}{}\0", 10, "byte"), -EBADMSG);
	assert_int_equal(expect_bad(p, "{\"n\":1,\"n\":2}\0", 14, "duplicate"), -EBADMSG);
	assert_int_equal(expect_bad(p, "{\"n\":\"\\u0000\"}\0", 15, "\\u0000"), -EBADMSG);
	assert_int_equal(expect_bad(p, "{\"n\":\"\xff\"}\0", 10, "byte"), -EBADMSG);
}

static void nesting_beyond_the_limit_is_refused_but_brackets_in_strings_are_not(void **state)
{
	struct pair *p = *state;
	char text[512];

	memset(text, '[', sizeof(text));
	memcpy(text, "{\"n\":", 5);
	text[sizeof(text) - 1] = '\0';
	assert_int_equal(expect_bad(p, text, sizeof(text), "nested deeper than 64"), -EBADMSG);
	memcpy(text, "{\"n\":3,\"s\":\"\\\"", 14);
	memcpy(text + sizeof(text) - 3, "\"}", 3);
	put(p, text, sizeof(text));
	assert_true(stk_msg_recv(p->ours, &p->in, &p->err) > 0);
	assert_int_equal(next_n(p), 3);
}

static void a_message_without_end_is_refused_at_the_limit(void **state)
{
	struct pair *p = *state;
	char chunk[65536];
	json_t *json;
	int r = 0;

	memset(chunk, ' ', sizeof(chunk));
	for (size_t sent = 0; sent <= 2 * STK_MSG_SIZE_MAX && r >= 0;) {
		sent += (size_t)write(p->theirs, chunk, sizeof(chunk));
		r = stk_msg_recv(p->ours, &p->in, &p->err);
		if (r > 0)
			assert_int_equal(stk_msg_next(&p->in, &json, &p->err), 0);
	}
	assert_int_equal(r, -EMSGSIZE);
	assert_true(p->in.room <= STK_MSG_SIZE_MAX + 4 * sizeof(chunk));
}

static ino_t inode(int fd)
{
	struct stat st;

	assert_int_equal(fstat(fd, &st), 0);
	return st.st_ino;
}

static void descriptors_come_with_the_message_they_were_sent_on(void **state)
{
	struct pair *p = *state;
	int pipe_fds[2];

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
	send_n(p, 1, NULL, 0);
	send_n(p, 2, pipe_fds, 1);
	assert_true(stk_msg_recv(p->ours, &p->in, &p->err) > 0);
	assert_int_equal(next_n(p), 1);
	assert_int_equal(p->in.nfds, 0);
	assert_int_equal(next_n(p), 2);
	assert_int_equal(p->in.nfds, 1);
	assert_int_equal(inode(p->in.fds[0]), inode(pipe_fds[0]));
	assert_true(fcntl(p->in.fds[0], F_GETFD) & FD_CLOEXEC);
	close(pipe_fds[0]);
	close(pipe_fds[1]);
}

static void descriptors_of_a_cut_message_and_of_the_one_behind_it_are_not_mixed(void **state)
{
	struct pair *p = *state;
	int a[2], b[2];
	json_t *json;
	char one[] = "{\"n\":1}";
	union {
		char bytes[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control = {.align = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec iov = {one, 4};
	struct msghdr hdr = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};

	assert_int_equal(pipe2(a, O_CLOEXEC), 0);
	assert_int_equal(pipe2(b, O_CLOEXEC), 0);
	memcpy(CMSG_DATA(&control.align), &a[0], sizeof(int));
	assert_int_equal(sendmsg(p->theirs, &hdr, 0), 4);
	assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), 4);
	assert_int_equal(stk_msg_next(&p->in, &json, &p->err), 0);
	put(p, one + 4, sizeof(one) - 4);
	send_n(p, 2, b, 2);
	assert_true(stk_msg_recv(p->ours, &p->in, &p->err) > 0);
	assert_int_equal(next_n(p), 1);
	assert_int_equal(p->in.nfds, 1);
	assert_int_equal(inode(p->in.fds[0]), inode(a[0]));
	assert_int_equal(next_n(p), 2);
	assert_int_equal(p->in.nfds, 2);
	assert_int_equal(inode(p->in.fds[0]), inode(b[0]));
	for (int i = 0; i < 2; i++) {
		close(a[i]);
		close(b[i]);
	}
}

static void descriptors_that_nobody_takes_are_closed_by_the_next_message(void **state)
{
	struct pair *p = *state;
	int pipe_fds[2];
	char byte;

	assert_int_equal(pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK), 0);
	send_n(p, 1, &pipe_fds[1], 1);
	close(pipe_fds[1]);
	send_n(p, 2, NULL, 0);
	assert_true(stk_msg_recv(p->ours, &p->in, &p->err) > 0);
	assert_int_equal(next_n(p), 1);
	assert_int_equal(read(pipe_fds[0], &byte, 1), -1); /* our copy keeps the pipe open */
	if (stk_msg_recv(p->ours, &p->in, &p->err) == -EAGAIN)
		p->err.code = 0;
	assert_int_equal(next_n(p), 2);
	assert_int_equal(read(pipe_fds[0], &byte, 1), 0); /* nobody holds the other end */
	close(pipe_fds[0]);
}

static int open_fds(void)
{
	int n = 0;

	for (int i = 0; i < 1024; i++)
		n += fcntl(i, F_GETFD) >= 0;
	return n;
}

static void too_many_descriptors_are_closed_and_refused(void **state)
{
	struct pair *p = *state;
	int fds[STK_MSG_FDS_MAX + 1];
	union {
		char bytes[CMSG_SPACE(sizeof(fds))];
		struct cmsghdr align;
	} control = {.align = {CMSG_LEN(sizeof(fds)), SOL_SOCKET, SCM_RIGHTS}};
	struct iovec iov = {(void *)"{}", 3};
	struct msghdr hdr = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = &control,
			     .msg_controllen = sizeof(control)};
	int before = open_fds();

	for (size_t i = 0; i < STK_ARRAY_SIZE(fds); i++)
		fds[i] = p->theirs;
	memcpy(CMSG_DATA(&control.align), fds, sizeof(fds));
	assert_int_equal(sendmsg(p->theirs, &hdr, 0), 3);
	assert_int_equal(stk_msg_recv(p->ours, &p->in, &p->err), -EPROTO);
	assert_non_null(strstr(p->err.text, "9 descriptors"));
	assert_int_equal(open_fds(), before);
}

static void lost_descriptors_name_the_limit_and_leave_none_behind(void **state)
{
	struct pair *p = *state;
	int fds[3] = {p->theirs, p->theirs, p->theirs};
	struct rlimit saved, low;
	int before, top, r;
	char text[64];

	send_n(p, 1, fds, 3);
	before = open_fds();
	top = dup(p->ours); /* the lowest free number */
	close(top);
	getrlimit(RLIMIT_NOFILE, &saved);
	low = saved;
	low.rlim_cur = (rlim_t)top + 1;
	setrlimit(RLIMIT_NOFILE, &low);
	r = stk_msg_recv(p->ours, &p->in, &p->err);
	setrlimit(RLIMIT_NOFILE, &saved);
	assert_int_equal(r, -EMFILE);
	snprintf(text, sizeof(text), "descriptor limit %d reached", top + 1);
	assert_non_null(strstr(p->err.text, text));
	assert_int_equal(open_fds(), before);
}

static void a_full_socket_is_told_at_once_or_after_the_timeout(void **state)
{
	struct pair *p = *state;
	json_t *json = json_pack("{s:s}", "s", "some text that fills the socket");
	int r;

	do
		r = stk_msg_send(p->theirs, json, NULL, 0, 0, &p->err);
	while (r == 0);
	assert_true(r == -EAGAIN || r == -ETIMEDOUT);
	assert_int_equal(stk_msg_send(p->theirs, json, NULL, 0, 20, &p->err), -ETIMEDOUT);
	json_decref(json);
}

static void sending_to_a_closed_socket_is_an_error_without_a_signal(void **state)
{
	struct pair *p = *state;
	json_t *json = json_object();

	p->ours = stk_close(p->ours);
	assert_int_equal(stk_msg_send(p->theirs, json, NULL, 0, 0, &p->err), -EPIPE);
	json_decref(json);
}

static void a_message_over_the_limit_is_not_sent(void **state)
{
	struct pair *p = *state;
	char *text = malloc(STK_MSG_SIZE_MAX + 1);
	json_t *json;

	memset(text, 'x', STK_MSG_SIZE_MAX);
	text[STK_MSG_SIZE_MAX] = '\0';
	json = json_pack("{s:s}", "s", text);
	assert_int_equal(stk_msg_send(p->theirs, json, NULL, 0, 0, &p->err), -EMSGSIZE);
	json_decref(json);
	free(text);
}

static void builders_make_varlink_messages(void **state)
{
	struct stk_err err = {0};
	json_t *call = stk_msg_call("io.stoker.Status", NULL, true);
	json_t *error, *other;
	char *text = json_dumps(call, JSON_COMPACT | JSON_SORT_KEYS);

	(void)state;
	assert_string_equal(text,
			    "{\"method\":\"io.stoker.Status\",\"more\":true,\"parameters\":{}}");
	free(text);
	stk_err_set(&err, -EINVAL, "path \xff is bad");
	error = stk_msg_error(NULL, &err);
	text = json_dumps(error, JSON_COMPACT | JSON_SORT_KEYS);
	assert_string_equal(text, "{\"error\":\"io.stoker.Refused\",\"parameters\":{\"code\":-22,"
				  "\"reason\":\"path \\\\xff is bad\"}}");
	free(text);
	other = stk_msg_error("org.varlink.service.MethodNotFound", &err);
	assert_string_equal(json_string_value(json_object_get(other, "error")),
			    "org.varlink.service.MethodNotFound");
	json_decref(call);
	json_decref(error);
	json_decref(other);
}

static void the_interface_text_is_compiled_in(void **state)
{
	(void)state;
	assert_non_null(strstr(stk_msg_varlink_text, "interface io.stoker\n"));
	assert_non_null(strstr(stk_msg_varlink_text, "method Attach("));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(two_messages_in_one_read_come_one_after_the_other),
		TEST(a_message_in_pieces_is_whole_only_after_its_zero_byte),
		TEST(an_idle_socket_says_again_and_a_closed_one_is_the_end),
		TEST(what_is_not_one_json_object_is_refused_with_its_position),
		TEST(nesting_beyond_the_limit_is_refused_but_brackets_in_strings_are_not),
		TEST(a_message_without_end_is_refused_at_the_limit),
		TEST(descriptors_come_with_the_message_they_were_sent_on),
		TEST(descriptors_of_a_cut_message_and_of_the_one_behind_it_are_not_mixed),
		TEST(descriptors_that_nobody_takes_are_closed_by_the_next_message),
		TEST(too_many_descriptors_are_closed_and_refused),
		TEST(lost_descriptors_name_the_limit_and_leave_none_behind),
		TEST(a_full_socket_is_told_at_once_or_after_the_timeout),
		TEST(sending_to_a_closed_socket_is_an_error_without_a_signal),
		TEST(a_message_over_the_limit_is_not_sent),
		cmocka_unit_test(builders_make_varlink_messages),
		cmocka_unit_test(the_interface_text_is_compiled_in),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
