/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two one-way rings. Publish: stokerd -> seats, in order. Release: one seat -> stokerd, slot
 * ids in any order. Both sides are here, so that each edge stands beside its partner. Indices are
 * free-running u32; each side keeps its own in private memory and only ever stores the shared one.
 *
 * Neither ring can overflow: at most nslots BATCH entries are unread (each holds its slot), between
 * two of them lies at most one EPOCH_END, and one final entry follows; a seat releases a slot once.
 */
#ifndef STK_PROTO_RING_H
#define STK_PROTO_RING_H

#include <string.h>

#include "proto/shm.h"

/* A release entry: the slot, and the publish index of the entry that lent it. */
static inline uint64_t stk_ring_release_word(uint32_t slot, uint32_t index)
{
	return (uint64_t)index << 32 | slot;
}

/* Daemon's side of the publish ring. */
struct stk_ring_pub {
	struct stk_shm_control *shm;
	struct stk_shm_entry *entries;
	uint32_t mask;
	uint32_t tail; /* ours; the shared one is only ever stored */
};

/*
 * Publishes one entry. The descriptor and the slot are complete; stores by other threads were
 * ordered before by the lock under which this runs.
 */
static inline void stk_ring_publish(struct stk_ring_pub *ring, const struct stk_shm_entry *entry)
{
	ring->entries[ring->tail & ring->mask] = *entry;
	ring->tail++;
	/*
	 * P1: pairs with C1. Whoever sees the new tail sees entry, descriptor and slot.
	 * W1: seq_cst, pairs with W3: it comes before our look at the wait words (W2).
	 */
	atomic_store_explicit(&ring->shm->tail, ring->tail, memory_order_seq_cst);
}

/*
 * After publishing: which wake-ups does this seat want?
 * W2: seq_cst load after W1. Either we see the bits of W4, or the seat sees our tail at W5. Only the
 * seat clears them (W6): it may stand between W5 and its sleep, and would then miss the next wake.
 */
static inline uint32_t stk_ring_waiters(const struct stk_shm_seat *seat)
{
	return atomic_load_explicit(&seat->wait, memory_order_seq_cst);
}

/* A seat's side of the publish ring. */
struct stk_ring_sub {
	const struct stk_shm_control *shm;
	const struct stk_shm_entry *entries;
	uint32_t mask;
	uint32_t head; /* ours: the next entry to read */
};

/* Copies the next entry. Returns false when the ring is empty. No system call. */
static inline bool stk_ring_read(struct stk_ring_sub *ring, struct stk_shm_entry *ret)
{
	/* C1: pairs with P1. */
	uint32_t tail = atomic_load_explicit(&ring->shm->tail, memory_order_acquire);

	if (tail == ring->head)
		return false;
	*ret = ring->entries[ring->head & ring->mask];
	ring->head++;
	return true;
}

/*
 * This seat waits no longer. Until then every publish makes the wake-ups asked for.
 * W6: relaxed, it carries no data; a W4 that follows is later in the order of this one word.
 */
static inline void stk_ring_retract(struct stk_shm_seat *seat)
{
	atomic_store_explicit(&seat->wait, 0, memory_order_relaxed);
}

/*
 * Announces that this seat is going to sleep. Returns true when the ring is still empty at `head`
 * (sleep: FUTEX_WAIT on tail with value head; retract when something came), false when something
 * came meanwhile.
 * W4: seq_cst store of the bits; W5: seq_cst load of the tail; partners W1, W2.
 */
static inline bool stk_ring_announce(struct stk_ring_sub *ring, struct stk_shm_seat *seat,
				     uint32_t bits)
{
	atomic_fetch_or_explicit(&seat->wait, bits, memory_order_seq_cst);
	if (atomic_load_explicit(&ring->shm->tail, memory_order_seq_cst) == ring->head)
		return true;
	stk_ring_retract(seat);
	return false;
}

/* A seat's side of the release ring; the owner serialises calls (any thread may release). */
struct stk_ring_rel {
	struct stk_shm_seat *shm;
	_Atomic uint64_t *entries;
	uint32_t mask;
	uint32_t tail; /* ours */
};

/*
 * Gives a slot back. Returns whose kick a daemon that ran dry wants (STK_SHM_KICK_*); 0: nobody's.
 * R1: release, pairs with R3: our last read of the slot precedes its reuse.
 * K1: seq_cst store of release_tail, then K2: seq_cst load of need_kick; partners K3, K4.
 */
static inline uint32_t stk_ring_release(struct stk_ring_rel *ring,
					const struct stk_shm_control *control, uint32_t slot,
					uint32_t index)
{
	/* Relaxed: ordered by the store of the tail below. */
	atomic_store_explicit(&ring->entries[ring->tail & ring->mask],
			      stk_ring_release_word(slot, index), memory_order_relaxed);
	ring->tail++;
	atomic_store_explicit(&ring->shm->release_tail, ring->tail, memory_order_seq_cst);
	return atomic_load_explicit(&control->need_kick, memory_order_seq_cst);
}

/*
 * One of several seats says that its ring is empty. Returns need_kick: unless all tell at once already
 * a daemon that ran dry is to be kicked, so that it asks the others.
 * H1: seq_cst store of hungry, then H2: seq_cst load of need_kick; partners H3, H4.
 */
static inline uint32_t stk_ring_hunger(struct stk_shm_seat *seat,
				       const struct stk_shm_control *control)
{
	atomic_store_explicit(&seat->hungry, 1, memory_order_seq_cst);
	return atomic_load_explicit(&control->need_kick, memory_order_seq_cst);
}

/* Something came. Relaxed: one who seems hungry for longer only costs kicks. */
static inline void stk_ring_sate(struct stk_shm_seat *seat)
{
	atomic_store_explicit(&seat->hungry, 0, memory_order_relaxed);
}

/* Daemon's side of a release ring. Everything read from it is a claim of the seat. */
struct stk_ring_drain {
	const struct stk_shm_seat *shm;
	const _Atomic uint64_t *entries;
	uint32_t mask;
	uint32_t head; /* ours */
};

enum stk_ring_drained { STK_RING_EMPTY = 0, STK_RING_GOT = 1, STK_RING_LIE = -1 };

/*
 * Takes one release. *ret_slot and *ret_index are unchecked claims. STK_RING_LIE: the tail moved
 * further than the ring is long; end the seat.
 */
static inline int stk_ring_drain(struct stk_ring_drain *ring, uint32_t *ret_slot,
				 uint32_t *ret_index)
{
	/* R3: pairs with R1. K4 when it follows K3 (need_kick stored with seq_cst). */
	uint32_t tail = atomic_load_explicit(&ring->shm->release_tail, memory_order_seq_cst);
	uint64_t word;

	if (tail == ring->head)
		return STK_RING_EMPTY;
	if (tail - ring->head > ring->mask + 1)
		return STK_RING_LIE;
	/* Relaxed: read once into a local; R3 ordered it. */
	word = atomic_load_explicit(&ring->entries[ring->head & ring->mask], memory_order_relaxed);
	ring->head++;
	*ret_slot = (uint32_t)word;
	*ret_index = (uint32_t)(word >> 32);
	return STK_RING_GOT;
}

/*
 * K3: says who is to kick a daemon that ran dry (STK_SHM_KICK_*), or that it did not (0). After the
 * first it drains all release rings once more (K4): either it sees the release of K1, or the seat sees
 * need_kick at K2.
 * H3: the same store. Whenever it does not ask all, H4 follows it and then, if a seat is hungry, a
 * store that does: either it sees the seat of H1, or that seat sees at H2 that it has to kick.
 */
static inline void stk_ring_set_need_kick(struct stk_shm_control *control, uint32_t value)
{
	atomic_store_explicit(&control->need_kick, value, memory_order_seq_cst);
}

/* H4: seq_cst load after H3. */
static inline bool stk_ring_is_hungry(const struct stk_shm_seat *seat)
{
	return atomic_load_explicit(&seat->hungry, memory_order_seq_cst) != 0;
}

#endif
