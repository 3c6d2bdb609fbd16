/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of proto/ring.h: one stokerd, SEATS seats at one feed of SLOTS slots. Each atomic access
 * and each plain store of ring.h is one step here, in the order in which ring.h makes it, and has
 * its label (P1, C1, R1, R3, W1 .. W5, K1 .. K4, H1 .. H4). A seat is two threads: one takes batches and
 * parks when there is none, on the futex or on the descriptor as it pleases; the other releases
 * what is borrowed, in any order. There is no time-out in the model: a lost wake-up is a deadlock.
 *
 * What holds in every interleaving:
 *   every entry arrives at every seat, once and in order;
 *   a slot is not written while a seat may still read it, and holds what its entry says;
 *   neither ring overflows;
 *   all processes end: no wake-up and no kick is lost (spin: no invalid end state).
 *
 * `check` beside this file runs it, and each BROKEN_ variant, which spin must find faulty.
 */
#ifndef SEATS
#define SEATS 1
#endif
#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef BATCHES
#define BATCHES 3
#endif
#ifndef RING
#define RING 8 /* smallest power of two that is at least 2 * SLOTS + 2 */
#endif
#ifndef EPOCH
#define EPOCH 2 /* batches of an epoch; an EPOCH_END entry follows */
#endif

#ifndef OWED_MAX
#define OWED_MAX 1 /* releases that are told together */
#endif

#define BATCH 1
#define EPOCH_END 2
#define STREAM_END 3
#define NONE 0 /* batch numbers begin at 1 */
#define NO_SLOT 255

#define FUTEX 1
#define FD 2

/* need_kick: 0, or 1 + the seat that tells of its releases; with this bit all tell each at once. */
#define AT_ONCE 4

/* How a seat may park: a single one either way each time; of two the second as told. */
#ifdef SECOND_PARKS
#define PARKS(s, how) (how == (s == 0 -> FUTEX : SECOND_PARKS))
#else
#define PARKS(s, how) true
#endif

/* FOLLOWS: the second seat asks for a batch only once the first has it. */
#ifdef FOLLOWS
#define ASKS(s) (s == 0 || read_by[0] > head)
#else
#define ASKS(s) true
#endif

typedef entry_t {
	byte kind;
	byte slot;
	byte number
};

typedef seat_t {
	/* Shared memory. */
	byte release_tail;
	byte release[RING];
	byte wait;
	/* The kernel: a sleeper on the futex word, the eventfd towards this seat. */
	bool asleep;
	bool wakefd;
	/* Between the two threads of the seat: the batch it holds in a slot, NONE: none. */
	byte held[SLOTS];
	bool ended;
	bool hungry; /* in shared memory: its ring is empty; of several seats */
	/* Under one lock: releases that a dry daemon was not told of; whether to tell each. */
	byte owed;
	bool eager;
	/* The daemon's private side. */
	byte drained;
	bool lent[SLOTS]
};

/* Control file. */
entry_t ring[RING];
byte tail;
byte need_kick;
/* Slots file: the number of the batch whose bytes a slot has. */
byte content[SLOTS];

seat_t seat[SEATS];
bool kickfd; /* the eventfd towards the daemon */

/* Only for the assertions. */
byte read_by[SEATS];

inline wake(s, bits)
{
	if
	:: bits & FUTEX ->
		/* FUTEX_WAKE on the tail: everybody who sleeps on that word. */
		d_step {
			seat[0].asleep = false;
#if SEATS > 1
			seat[1].asleep = false;
#endif
		}
	:: else
	fi;
	if
	:: bits & FD -> seat[s].wakefd = true
	:: else
	fi;
	bits = 0
}

inline waiters(s, bits)
{
#ifdef BROKEN_CLEAR
	atomic { bits = seat[s].wait; seat[s].wait = 0 }
#else
	bits = seat[s].wait /* W2 */
#endif
}

/*
 * Slot, descriptor and entry are written in one step: until the tail moves nobody looks at them.
 * Only a slot that nobody borrows is written, and only an entry that everybody has read.
 */
inline store_entry()
{
	d_step {
		i = 0;
		do
		:: i < SEATS ->
			assert(mytail - read_by[i] < RING);
			if
			:: kind == BATCH ->
				assert(seat[i].held[slot] == NONE);
				seat[i].lent[slot] = true;
				content[slot] = number
			:: else
			fi;
			i++
		:: else -> i = 0; break
		od;
		ring[mytail % RING].kind = kind;
		ring[mytail % RING].slot = slot;
		ring[mytail % RING].number = number
	}
}

inline publish()
{
#ifdef BROKEN_PUBLISH
	tail = mytail + 1;
	store_entry();
	mytail++;
#else
	store_entry();
	mytail++;
#ifndef BROKEN_WAKE
	tail = mytail; /* P1, W1 */
#endif
#endif
	s = 0;
	do
	:: s < SEATS ->
		waiters(s, bits);
#ifdef BROKEN_WAKE
		tail = mytail;
#endif
		wake(s, bits);
		s++
	:: else -> s = 0; kind = 0; slot = 0; break
	od
}

/*
 * Drains all release rings; a slot is free when every seat has released it. What follows the look
 * at a tail is private to the daemon or already written, so it is one step with it.
 */
inline drain()
{
	s = 0;
	do
	:: s < SEATS ->
		d_step {
			claim = seat[s].release_tail; /* R3, and K4 after K3 */
			assert(claim - seat[s].drained <= RING);
			do
			:: claim != seat[s].drained ->
				slot = seat[s].release[seat[s].drained % RING];
				assert(slot < SLOTS && seat[s].lent[slot]);
				seat[s].lent[slot] = false;
				seat[s].release[seat[s].drained % RING] = NO_SLOT;
				seat[s].drained++
			:: else -> break
			od;
			claim = 0;
			slot = 0;
			s++
		}
	:: else -> s = 0; break
	od
}

#ifdef BROKEN_REUSE
#define IS_FREE(k) (!seat[0].lent[k])
#else
#if SEATS > 1
#define IS_FREE(k) (!seat[0].lent[k] && !seat[1].lent[k])
#else
#define IS_FREE(k) (!seat[0].lent[k])
#endif
#endif

inline find_free()
{
	atomic {
		slot = 0;
		do
		:: slot < SLOTS && !IS_FREE(slot) -> slot++
		:: else -> break
		od
	}
}

/* Asks for a kick: any seat may be chosen to tell, or TELLER; all are when one of them is hungry. */
inline ask()
{
#if SEATS > 1
#ifdef TELLER
	need_kick = TELLER; /* K3, H3 */
#else
	if
	:: need_kick = 1 /* K3, H3 */
	:: need_kick = 2
	fi;
#endif
#ifndef BROKEN_HUNGRY
	if
	:: seat[0].hungry -> need_kick = AT_ONCE /* H4 */
	:: else ->
		if
		:: seat[1].hungry -> need_kick = AT_ONCE
		:: else
		fi
	fi
#endif
#else
	need_kick = 1 /* K3 */
#endif
}

/* Until a slot is free: says so, looks once more, sleeps on the kick. Leaves it in `slot`. */
inline get_slot()
{
	do
	:: true ->
		drain();
		find_free();
		if
		:: slot < SLOTS -> break
		:: else -> slot = 0
		fi;
		ask();
#ifndef BROKEN_NO_RECHECK
		drain(); /* K4 */
		find_free();
		if
		:: slot < SLOTS -> break
		:: else -> slot = 0
		fi;
#endif
		atomic { kickfd -> kickfd = false }
	od;
	need_kick = 0
}

active proctype daemon()
{
	byte mytail, number = 1, kind, slot, bits, claim, s, i;

	do
	:: number <= BATCHES ->
		get_slot();
		kind = BATCH;
		publish();
		if
		:: number % EPOCH == 0 ->
			kind = EPOCH_END;
			slot = NO_SLOT;
			publish()
		:: else
		fi;
		number++
	:: else -> break
	od;
	kind = STREAM_END;
	slot = NO_SLOT;
	publish();
	/* All memory comes back: as many slots as there are can be had at once. */
	do
	:: true ->
		drain();
		ask();
		drain();
		atomic {
			claim = 0;
			i = 0;
			do
			:: i < SLOTS -> claim = claim + (IS_FREE(i) -> 1 : 0); i++
			:: else -> break
			od
		};
		if
		:: claim == SLOTS -> break
		:: else -> atomic { kickfd -> kickfd = false }
		fi
	od
}

/* The eventfd; a write to it is one step. */
inline pay(s)
{
	seat[s].owed = 0;
	kickfd = true
}

/* Nothing is ready, or the stream is over: what is owed is told, and each release from now on. */
inline be_eager()
{
	atomic {
		seat[me].eager = true;
#ifndef BROKEN_OWED
		if
		:: seat[me].owed > 0 -> pay(me)
		:: else
		fi
#endif
	}
#if SEATS > 1
	say_hungry()
#endif
}

/*
 * One of several seats says so to the daemon, too, for the releases of the others: after a sleep that
 * may be short or none, and always ends.
 */
inline say_hungry()
{
#ifdef BROKEN_SAY
	if
	:: need_kick != 0 && need_kick != AT_ONCE -> kickfd = true
	:: else
	fi;
	seat[me].hungry = true
#else
	seat[me].hungry = true; /* H1 */
	if
	:: need_kick != 0 && need_kick != AT_ONCE -> kickfd = true /* H2 */
	:: else
	fi
#endif
}

/* What the next entry must be. */
inline check_order()
{
	d_step {
		if
		:: epoch_end_due -> assert(ring[head % RING].kind == EPOCH_END); epoch_end_due = false
		:: else ->
			if
			:: want <= BATCHES ->
				slot = ring[head % RING].slot;
				assert(ring[head % RING].kind == BATCH);
				assert(ring[head % RING].number == want);
				assert(content[slot] == want);
				assert(seat[me].held[slot] == NONE);
				seat[me].held[slot] = want;
				epoch_end_due = (want % EPOCH == 0);
				want++
			:: else -> assert(ring[head % RING].kind == STREAM_END); seat[me].ended = true
			fi
		fi;
		slot = 0;
		head++;
		read_by[me] = head
	}
}

/* W5 looked at the tail; then FUTEX_WAIT: the kernel compares and queues in one step. */
inline park_futex()
{
#ifdef BROKEN_ORDER
	if
	:: tail == head -> seat[me].wait = seat[me].wait | FUTEX; sleep_futex()
	:: else
	fi
#else
	seat[me].wait = seat[me].wait | FUTEX; /* W4 */
	if
	:: tail == head -> sleep_futex() /* W5 */
	:: else
	fi
#endif
}

inline sleep_futex()
{
	atomic {
		if
		:: tail == head -> seat[me].asleep = true
		:: else
		fi
	};
	!seat[me].asleep
}

/* The eventfd is emptied before the look at the tail, never after it. */
inline park_fd()
{
#ifdef BROKEN_ORDER
	seat[me].wakefd = false;
	if
	:: tail == head -> seat[me].wait = seat[me].wait | FD; seat[me].wakefd
	:: else
	fi
#else
#ifndef BROKEN_FD
	seat[me].wakefd = false;
#endif
	seat[me].wait = seat[me].wait | FD; /* W4 */
	if
	:: tail == head -> /* W5 */
#ifdef BROKEN_FD
		seat[me].wakefd = false;
#endif
		seat[me].wakefd /* poll() */
	:: else
	fi
#endif
}

proctype consumer(byte me)
{
	byte head, want = 1, slot;
	bool epoch_end_due;

	do
	:: seat[me].ended -> be_eager(); break
	:: !seat[me].ended && ASKS(me) ->
		if
		:: atomic {
			tail != head -> check_order();
			seat[me].eager = false;
			seat[me].hungry = false
		} /* C1; stable */
		:: else ->
			be_eager();
			if
			:: PARKS(me, FUTEX) -> park_futex()
			:: PARKS(me, FD) -> park_fd()
			fi;
			seat[me].wait = 0 /* W6 */
		fi
	od
}

/* The last read of the slot, and the entry that gives it back. */
inline store_release(k)
{
	d_step {
		assert(content[k] == seat[me].held[k]);
		seat[me].held[k] = NONE;
		seat[me].release[mytail % RING] = k;
		mytail++
	}
}

inline store_release_tail()
{
#ifdef BROKEN_KICK
	kick = need_kick;
	seat[me].release_tail = mytail;
#else
	seat[me].release_tail = mytail; /* R1, K1 */
	kick = need_kick;               /* K2 */
#endif
	atomic {
		if
		:: kick != 0 && (kick == AT_ONCE || seat[me].eager) -> pay(me)
		:: kick == me + 1 && !seat[me].eager ->
			seat[me].owed++;
			if
			:: seat[me].owed >= OWED_MAX -> pay(me)
			:: else
			fi
		:: else
		fi;
		kick = 0
	}
}

#ifdef BROKEN_RELEASE
#define GIVE_BACK(k)                                                                      \
	seat[me].held[k] != NONE -> seat[me].release_tail = mytail + 1; store_release(k); \
	store_release_tail()
#else
#define GIVE_BACK(k)                                          \
	atomic { seat[me].held[k] != NONE->store_release(k) } \
	store_release_tail()
#endif

proctype releaser(byte me)
{
	byte mytail, kick;

	do
	:: GIVE_BACK(0)
#if SLOTS > 1
	:: GIVE_BACK(1)
#endif
	:: seat[me].ended && mytail == BATCHES -> break
	od
}

init
{
	atomic {
#if SEATS > 1
		run consumer(1);
		run releaser(1);
#endif
		run consumer(0);
		run releaser(0)
	}
}
