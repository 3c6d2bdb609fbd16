/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages as they come from a socket: in pieces, some with descriptors. No descriptor may be
 * left, and what is taken can be sent again. The first byte says how large the pieces are.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/msg.h"
#include "tests/fuzz/fuzz.h"

static int one_fd(void)
{
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		abort();
	close(fd);
	return fd;
}

static void send_piece(int fd, const uint8_t *bytes, size_t size, unsigned nfds)
{
	union {
		char bytes[CMSG_SPACE(12 * sizeof(int))];
		struct cmsghdr align;
	} control = {0};
	struct iovec iov = {(void *)bytes, size};
	struct msghdr hdr = {.msg_iov = &iov, .msg_iovlen = 1};
	int fds[12];

	for (unsigned i = 0; i < nfds; i++)
		fds[i] = fd;
	if (nfds) {
		hdr.msg_control = &control;
		hdr.msg_controllen = CMSG_SPACE(nfds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(nfds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, nfds * sizeof(int));
	}
	if (sendmsg(fd, &hdr, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
		abort();
}

/* All whole messages. False at the end of the connection. */
static bool take_all(struct stk_msg_in *in)
{
	struct stk_err err;
	json_t *json;
	int r;

	while ((r = stk_msg_next(in, &json, &err)) == 1) {
		char *text = json_dumps(json, JSON_COMPACT);

		if (!text || !json_is_object(json))
			abort();
		free(text);
		json_decref(json);
	}
	return r == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stk_msg_in in = {0};
	struct stk_err err;
	int fds[2], before = one_fd();
	size_t piece;
	bool on = true;

	if (!size || size > 65536 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		return 0;
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	piece = 1 + (data[0] & 15) * (size_t)(data[0] & 16 ? 97 : 3);
	for (size_t at = 1; at < size && on; at += piece) {
		size_t n = STK_MIN(piece, size - at);

		send_piece(fds[1], data + at, n,
			   data[0] >> 5 && data[at] % 3 == 0 ? data[at] % 10 : 0);
		while (on && stk_msg_recv(fds[0], &in, &err) > 0)
			on = take_all(&in);
	}
	stk_msg_in_deinit(&in);
	close(fds[0]);
	close(fds[1]);
	if (one_fd() != before)
		abort(); /* a descriptor was left */
	return 0;
}
