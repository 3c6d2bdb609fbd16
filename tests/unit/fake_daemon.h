/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon for client tests: one feed, one seat, in this process. A thread answers Attach and Seek on
 * a socket in a temporary folder; the test publishes, drains and hangs up by itself.
 */
#ifndef FAKE_DAEMON_H
#define FAKE_DAEMON_H

#include <pthread.h>

#include "proto/msg.h"
#include "proto/ring.h"
#include "proto/state.h"

#define FAKE_SLOTS     4u
#define FAKE_SLOT_SIZE 65536u
#define FAKE_ROWS      3u /* of a full batch */
#define FAKE_WIDTH     8u

enum fake_fd { FAKE_CONTROL, FAKE_SLOTS_FD, FAKE_SEAT, FAKE_KICK, FAKE_WAKE, FAKE_FDS };

struct fake_daemon;
/* Answers an attach; default: fake_reply(). */
typedef void fake_attach(struct fake_daemon *f, int conn, const json_t *call);

/* Zero it, set what differs, then fake_start(). */
struct fake_daemon {
	fake_attach *attach;
	uint32_t replicas; /* 0: 1 */
	uint32_t first;
	uint32_t era;         /* of the next entry; a Seek adds 1 */
	int layout, protocol; /* 0: ours */
	bool unsealed;
	const char *notice; /* NULL: none */
	const char *start;  /* cursor of the beginning; NULL: as an older daemon */
	uint64_t lie_size;  /* added to the header's file_size */
	/* Made by fake_start(). */
	char folder[64], socket[96];
	int listener, stop[2];
	pthread_t thread;
	_Atomic int conn; /* -1 while nobody is attached */
	_Atomic int attaches;
	json_t *last_call; /* read it while no attach is under way */
	/* The feed: made anew by each attach. */
	int fds[FAKE_FDS];
	uint8_t *slots;
	struct stk_shm_control *control;
	struct stk_shm_seat *seat;
	struct stk_ring_pub pub;
	struct stk_ring_drain drain;
};

void fake_start(struct fake_daemon *f);
void fake_stop(struct fake_daemon *f);

/* The last reply of an attach, with nfds descriptors of f->fds; builds the feed. */
void fake_reply(struct fake_daemon *f, int conn, size_t nfds);
/* Builds the memory files without sending anything. */
void fake_build(struct fake_daemon *f);

/* Fills a slot (ids: row r of step s is s * 1000 + r) and its descriptor, without publishing. */
struct stk_shm_desc *fake_fill(struct fake_daemon *f, uint32_t slot, uint64_t epoch, uint64_t step,
			       uint32_t rows_real);
void fake_entry(struct fake_daemon *f, uint32_t kind, uint32_t slot, uint64_t epoch, uint64_t step);
/* fake_fill() with all rows, then the entry. */
void fake_publish(struct fake_daemon *f, uint32_t slot, uint64_t epoch, uint64_t step);
/* Hangs up on the client that is attached. */
void fake_hang_up(struct fake_daemon *f);

/* Number of entries of a folder of /proc/self: "fd" or "map_files". */
int fake_count(const char *name);

#endif
