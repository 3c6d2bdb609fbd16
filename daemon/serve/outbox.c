/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/outbox.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "daemon/serve/seat.h"

void stkd_outbox_deinit(struct stkd_outbox *box)
{
	free(box->bytes);
	*box = (struct stkd_outbox){0};
}

/* As much as the socket takes now. Return: bytes sent, or a negative errno. */
static ssize_t send_some(int fd, const char *bytes, size_t size, struct stk_err *err)
{
	size_t sent = 0;

	while (sent < size) {
		ssize_t n = send(fd, bytes + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n >= 0)
			sent += (size_t)n;
		else if (errno == EAGAIN || errno == EWOULDBLOCK)
			break;
		else if (errno != EINTR)
			return stk_err_set(err, -errno, "socket: %m");
	}
	return (ssize_t)sent;
}

static int keep(struct stkd_outbox *box, const char *bytes, size_t size, struct stk_err *err)
{
	size_t left = box->size - box->at;
	char *all;

	if (left + size > STKD_OUTBOX_MAX)
		return stk_err_set(err, -EMSGSIZE, "it does not read its replies");
	all = malloc(left + size);
	if (!all)
		return stk_err_set(err, -ENOMEM, "out of memory");
	if (left)
		memcpy(all, box->bytes + box->at, left);
	memcpy(all + left, bytes, size);
	if (!box->bytes)
		box->since_ns = stkd_now_ns();
	free(box->bytes);
	box->bytes = all;
	box->at = 0;
	box->size = left + size;
	return 0;
}

int stkd_outbox_put(struct stkd_outbox *box, int fd, const json_t *message, struct stk_err *err)
{
	_cleanup_(stk_freep) char *text = json_dumps(message, JSON_COMPACT);
	ssize_t sent = 0;
	size_t size;

	if (!text)
		return stk_err_set(err, -ENOMEM, "out of memory");
	size = strlen(text) + 1;
	if (size - 1 > STK_MSG_SIZE_MAX)
		return stk_err_set(err, -EMSGSIZE, "a reply of %zu bytes, at most %u are allowed",
				   size - 1, STK_MSG_SIZE_MAX);
	if (!box->bytes)
		sent = send_some(fd, text, size, err);
	if (sent < 0)
		return (int)sent;
	return (size_t)sent == size ? 0 : keep(box, text + sent, size - (size_t)sent, err);
}

int stkd_outbox_flush(struct stkd_outbox *box, int fd, struct stk_err *err)
{
	ssize_t sent = send_some(fd, box->bytes + box->at, box->size - box->at, err);

	if (sent < 0)
		return (int)sent;
	box->at += (size_t)sent;
	if (sent)
		box->since_ns = stkd_now_ns();
	if (box->at == box->size)
		stkd_outbox_deinit(box);
	return 0;
}
