/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seat: one consumer of a feed. Owns its seat file, its kick eventfd (client to daemon) and wake
 * socket (daemon to client). Belongs to its feed; everything but wake() is called under the feed's
 * lock. Nothing in the seat file is trusted.
 */
#ifndef STKD_SEAT_H
#define STKD_SEAT_H

#include <sys/socket.h>

#include "daemon/memory/memfile.h"
#include "proto/ring.h"

enum stkd_seat_state {
	STKD_SEAT_EMPTY, /* nobody came yet */
	STKD_SEAT_TAKEN,
	STKD_SEAT_VACANT, /* its holder went; its slots wait for it */
};

struct stkd_seat {
	uint32_t number;
	enum stkd_seat_state state;
	struct stkd_memfile file;
	struct stk_shm_seat *shm;
	struct stk_ring_drain drain;
	int kick_fd;     /* eventfd: the client adds, we drain */
	int wake_fds[2]; /* [0] ours, [1] goes to the client */
	struct ucred peer;
	uint64_t since_ns;  /* taken since; CLOCK_MONOTONIC */
	uint64_t vacant_ns; /* vacant since */
	char fault[200];    /* why the daemon ends this seat; "" while all is well */
	const void *owner;  /* the connection; compared only */
	uint8_t *seek;      /* state asked for by a pending seek, or NULL */
	size_t seek_size;
	bool seek_pending;
};

/* Makes file and descriptors for a new holder. On error the seat is as before. */
int stkd_seat_take(struct stkd_seat *seat, uint32_t ring_entries, uint32_t first,
		   const struct ucred *peer, const void *owner, struct stk_err *err);
/* Gives back file and descriptors; the state becomes `state`. */
void stkd_seat_leave(struct stkd_seat *seat, enum stkd_seat_state state);

/* Wakes the consumer if it sleeps. @tail: the futex word. Returns true when a FUTEX wake is due. */
bool stkd_seat_wake(struct stkd_seat *seat);

uint64_t stkd_now_ns(void); /* CLOCK_MONOTONIC */

#endif
