/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client object: a request, the session it has now, and where it stands. Used by one thread at
 * a time. client.c opens, closes and tells; next.c takes entries and waits; reattach.c recovers.
 */
#ifndef STK_CLIENT_CLIENT_H
#define STK_CLIENT_CLIENT_H

#include "client/attach.h"

/* The last entry that next() returned. */
struct stk__position {
	bool valid; /* false: none since the start or the last seek */
	bool ended; /* EPOCH_END of this epoch was returned */
	uint64_t epoch, step;
	uint32_t micro;
};

struct stk_client {
	struct stk__request request;
	struct stk__attached attached;
	struct stk__session *session;    /* NULL: the connection is lost */
	struct stk__schema *schema;      /* of the session, and through it those of earlier ones */
	struct stk_shm_control geometry; /* of the session */
	unsigned generation;             /* of stk__fork_generation() */
	uint32_t era;
	int final;      /* STK_STREAM_END or a negative errno once the end was reached; else 0 */
	bool resumed;   /* attached anew, and no entry was taken since */
	bool restarted; /* attached anew, and no batch came since */
	bool waiting;   /* waiting_since_ns is set in the seat */
	bool crowded; /* the feed has no fewer seats than we have cores: looking takes the worker's */
	uint32_t spins_left_out, spins_to_leave; /* waits without a look first: so far, in all */
	bool eager;                              /* as the session has it */
	bool hungry;                             /* likewise; one of several seats */
	int epoll;                               /* -1 until stk_client_fd() was called */
	bool armed; /* the pollable set waits for the daemon, see stk__client_arm() */
	struct stk__position last;
	uint8_t state[STK_STATE_SIZE_MAX];
	size_t state_size;
	struct stk_err err;
};

/* Drops the session; returns -EPIPE with the daemon's last words in client->err. */
int stk__client_lost(struct stk_client *client);

/**
 * stk__client_reattach() - a new session in place of a lost one
 *
 * Return: 0; -EPIPE at once when the request says so; the reason why it did not work, final.
 */
int stk__client_reattach(struct stk_client *client);

/* The client's state: the daemon's header, not what we sent, and this cursor. */
void stk__client_set_state(struct stk_client *client, const void *cursor, uint32_t size);

/*
 * Before the first batch the state is the one to start after. One without a cursor, of an older
 * daemon, and none at all are the beginning, of which the daemon tells the cursor.
 */
void stk__client_set_start(struct stk_client *client, const void *state, size_t size);

/* Makes the session the client's; puts its descriptors into the pollable set. */
int stk__client_adopt(struct stk_client *client, struct stk__session *session);

/*
 * Gives back what lies on the ring of eras before this client's: a ring has room for what two eras
 * leave unread, and each seek may leave the end of a stream.
 */
void stk__client_catch_up(struct stk_client *client);

/* From now on the pollable set is readable only when the daemon wrote or hung up. */
void stk__client_arm(struct stk_client *client);

/* -ECHILD in a forked child, else 0. */
int stk__client_usable(struct stk_client *client);

#endif
