/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/seat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

uint64_t stkd_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

static int make_file(struct stkd_memfile *ret, uint32_t number, uint32_t ring_entries,
		     uint32_t first, struct stk_err *err)
{
	const struct stkd_place place = {.node = -1, .populate = true, .lock = -1, .numa = -1};
	struct stk_shm_seat header;
	uint64_t size = stk_shm_seat_plan(ring_entries, &header);
	int r = stkd_memfile_new("stoker-seat", size, &place, ret, err);

	if (r < 0)
		return r;
	header.seat = number;
	header.first = first;
	memcpy(ret->map, &header, sizeof(header));
	return 0;
}

/*
 * The wake direction is a socket pair, not an eventfd: a peer can fill an eventfd's counter and
 * clear O_NONBLOCK, and our write would sleep; send() with MSG_DONTWAIT on our own end cannot.
 */
static int make_fds(int *ret_kick, int ret_wake[2], struct stk_err *err)
{
	int kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	if (kick < 0)
		return stk_err_set(err, -errno, "eventfd: %m");
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ret_wake) < 0) {
		int r = stk_err_set(err, -errno, "socketpair: %m");

		stk_close(kick);
		return r;
	}
	*ret_kick = kick;
	return 0;
}

int stkd_seat_take(struct stkd_seat *seat, uint32_t ring_entries, uint32_t first,
		   const struct ucred *peer, const void *owner, struct stk_err *err)
{
	struct stkd_memfile file = {.fd = -1};
	int kick = -1, wake[2] = {-1, -1};
	int r = make_file(&file, seat->number, ring_entries, first, err);

	if (r < 0)
		return r;
	r = make_fds(&kick, wake, err);
	if (r < 0) {
		stkd_memfile_deinit(&file);
		return r;
	}
	seat->file = file;
	seat->shm = (struct stk_shm_seat *)file.map;
	seat->drain = (struct stk_ring_drain){
		.shm = seat->shm,
		.entries = (_Atomic uint64_t *)(file.map +
						((struct stk_shm_seat *)file.map)->ring_off),
		.mask = ring_entries - 1,
	};
	seat->kick_fd = kick;
	seat->wake_fds[0] = wake[0];
	seat->wake_fds[1] = wake[1];
	seat->peer = *peer;
	seat->owner = owner;
	seat->since_ns = stkd_now_ns();
	seat->fault[0] = '\0';
	seat->state = STKD_SEAT_TAKEN;
	return 0;
}

void stkd_seat_leave(struct stkd_seat *seat, enum stkd_seat_state state)
{
	if (seat->state == STKD_SEAT_TAKEN) {
		stkd_memfile_deinit(&seat->file);
		seat->kick_fd = stk_close(seat->kick_fd);
		seat->wake_fds[0] = stk_close(seat->wake_fds[0]);
		seat->wake_fds[1] = stk_close(seat->wake_fds[1]);
	}
	free(seat->seek);
	seat->seek = NULL;
	seat->seek_pending = false;
	seat->shm = NULL;
	seat->owner = NULL;
	seat->vacant_ns = stkd_now_ns();
	seat->state = state;
}

bool stkd_seat_wake(struct stkd_seat *seat)
{
	uint64_t one = 1;
	uint32_t bits;

	if (seat->state != STKD_SEAT_TAKEN)
		return false;
	bits = stk_ring_waiters(seat->shm);
	/* A full socket already polls readable; nothing is lost when the send fails. */
	if (bits & STK_SHM_WAIT_FD)
		(void)!send(seat->wake_fds[0], &one, sizeof(one), MSG_DONTWAIT | MSG_NOSIGNAL);
	return bits & STK_SHM_WAIT_FUTEX;
}
