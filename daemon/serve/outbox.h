/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer has not taken yet of the messages for it. Belongs to its connection, on the loop; a
 * message that fits the socket never comes here.
 */
#ifndef STKD_OUTBOX_H
#define STKD_OUTBOX_H

#include "proto/msg.h"

/* One reply of the largest size, and small ones behind it. */
#define STKD_OUTBOX_MAX (STK_MSG_SIZE_MAX + (64u << 10))

struct stkd_outbox {
	char *bytes; /* NULL: empty */
	size_t at, size;
	uint64_t since_ns; /* the peer took something last */
};

void stkd_outbox_deinit(struct stkd_outbox *box);

/* Sends a message and keeps what the socket does not take. -EMSGSIZE: one or all are too large. */
int stkd_outbox_put(struct stkd_outbox *box, int fd, const json_t *message, struct stk_err *err);

/* The socket takes more: goes on. 0, also when something is left; or a negative errno. */
int stkd_outbox_flush(struct stkd_outbox *box, int fd, struct stk_err *err);

#endif
