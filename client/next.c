/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stk_client_next(): takes entries off the publish ring and waits for them. The way of a ready
 * batch has no system call. Runs on the client's thread.
 */
#include "client/client.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "client/socket.h"

#define SLICE_NS           INT64_C(250000000)   /* between two looks at the socket */
#define PATIENCE_NS        INT64_C(1000000)     /* one of several seats waits before it says so */
#define NOTHING            (STK_STREAM_END + 1) /* the ring is empty; never returned to the caller */
#define AGAIN              (STK_STREAM_END + 2) /* the entry was for nobody */
#define DRAIN_LIMIT        64
#define SPIN_NS            500000
#define SPIN_LOOKS         16
#define SPINS_LEFT_OUT_MAX 63

/* Relaxed everywhere: figures for the eye, stored by this thread only. */
static void add(_Atomic uint64_t *counter, uint64_t n)
{
	atomic_store_explicit(counter, atomic_load_explicit(counter, memory_order_relaxed) + n,
			      memory_order_relaxed);
}

static void begin_wait(struct stk_client *c)
{
	struct stk_shm_seat *seat = c->session->seat;

	if (c->waiting)
		return;
	c->waiting = true;
	add(&seat->waits, 1);
	atomic_store_explicit(&seat->waiting_since_ns, (uint64_t)stk__now_ns(),
			      memory_order_relaxed);
}

static void end_wait(struct stk_client *c)
{
	struct stk_shm_seat *seat = c->session->seat;
	uint64_t since = atomic_load_explicit(&seat->waiting_since_ns, memory_order_relaxed);
	uint64_t now = (uint64_t)stk__now_ns();

	c->waiting = false;
	stk_ring_retract(seat);
	add(&seat->wait_ns, now > since ? now - since : 0);
	atomic_store_explicit(&seat->waiting_since_ns, 0, memory_order_relaxed);
}

static void set_eager(struct stk_client *c, bool eager)
{
	c->eager = eager;
	c->hungry = false;
	stk__session_eager(c->session, eager);
}

static void set_hungry(struct stk_client *c)
{
	if (c->hungry || c->session->geometry.replicas == 1)
		return;
	c->hungry = true;
	stk__session_hungry(c->session);
}

/* A clock that is read without looking at the hardware: a tick is good enough for the eye. */
static void count_batch(struct stk_shm_seat *seat)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	atomic_store_explicit(&seat->last_next_ns,
			      (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec,
			      memory_order_relaxed);
	add(&seat->batches, 1);
}

static void remember(struct stk_client *c, const struct stk_batch *batch)
{
	const struct stk_shm_desc *d = &batch->desc;

	stk__client_set_state(c, d->cursor, d->cursor_size);
	c->last = (struct stk__position){
		.valid = true, .epoch = d->epoch, .step = d->step, .micro = d->micro};
}

static int take_batch(struct stk_client *c, const struct stk_shm_entry *e, struct stk_batch **ret)
{
	struct stk_batch *batch;
	int r = stk__session_lend(c->session, e, c->session->sub.head - 1, &batch, &c->err);

	if (r < 0)
		return c->final = r;
	count_batch(c->session->seat);
	remember(c, batch);
	c->restarted = false;
	*ret = batch;
	return 0;
}

static int take_epoch_end(struct stk_client *c, const struct stk_shm_entry *e,
			  struct stk_batch **ret)
{
	(void)ret;
	c->last.valid = true;
	c->last.ended = true;
	c->last.epoch = e->epoch;
	return STK_EPOCH_END;
}

static int take_stream_end(struct stk_client *c, const struct stk_shm_entry *e,
			   struct stk_batch **ret)
{
	(void)e;
	(void)ret;
	set_eager(c, true); /* nobody calls next() any more */
	set_hungry(c);
	return c->final = STK_STREAM_END;
}

static int take_error(struct stk_client *c, const struct stk_shm_entry *e, struct stk_batch **ret)
{
	char text[STK_SHM_ERROR_SIZE];

	(void)ret;
	c->final = e->micro > 0 && e->micro < 4096 ? -(int)e->micro : -EIO;
	stk__session_error(c->session, text);
	return stk_err_set(&c->err, c->final, "%s", text);
}

static int (*const takers[])(struct stk_client *, const struct stk_shm_entry *,
			     struct stk_batch **) = {
	[STK_SHM_BATCH] = take_batch,
	[STK_SHM_EPOCH_END] = take_epoch_end,
	[STK_SHM_STREAM_END] = take_stream_end,
	[STK_SHM_ERROR] = take_error,
};

/* Has next() returned this batch before? */
static bool is_repeated(const struct stk__position *last, const struct stk_shm_entry *e)
{
	if (e->epoch != last->epoch)
		return e->epoch < last->epoch;
	return last->ended || e->step < last->step ||
	       (e->step == last->step && e->micro <= last->micro);
}

/*
 * After attaching anew: the daemon goes on at a whole step and without the end of an epoch that is
 * over. What was returned before is skipped, an epoch's end that was not is returned first.
 */
static int resume(struct stk_client *c, const struct stk_shm_entry *e)
{
	struct stk__position *last = &c->last;

	if (last->valid && e->kind == STK_SHM_BATCH && is_repeated(last, e)) {
		stk__session_skip(c->session, e->slot, c->session->sub.head - 1);
		return AGAIN;
	}
	if (last->valid && e->kind == STK_SHM_EPOCH_END &&
	    (e->epoch < last->epoch || (e->epoch == last->epoch && last->ended)))
		return AGAIN;
	if (last->valid && !last->ended &&
	    (e->kind == STK_SHM_STREAM_END ||
	     (e->kind == STK_SHM_BATCH && e->epoch > last->epoch))) {
		c->session->sub.head--; /* it is taken by the next call */
		last->ended = true;
		return STK_EPOCH_END;
	}
	c->resumed = false;
	return 0;
}

/* 0 and *ret_entry; NOTHING; AGAIN; STK_EPOCH_END. */
static int read_entry(struct stk_client *c, struct stk_shm_entry *ret_entry)
{
	struct stk__session *s = c->session;
	uint32_t index = s->sub.head;

	if (!stk_ring_read(&s->sub, ret_entry))
		return NOTHING;
	/* Relaxed: a figure for the eye. */
	atomic_store_explicit(&s->seat->consumed, s->sub.head, memory_order_relaxed);
	if ((int32_t)(ret_entry->era - c->era) < 0) {
		if (ret_entry->kind == STK_SHM_BATCH)
			stk__session_skip(s, ret_entry->slot, index);
		return AGAIN;
	}
	return c->resumed ? resume(c, ret_entry) : 0;
}

void stk__client_catch_up(struct stk_client *c)
{
	struct stk__session *s = c->session;
	struct stk_shm_entry e;

	while (stk_ring_read(&s->sub, &e)) {
		if ((int32_t)(e.era - c->era) >= 0) {
			s->sub.head--;
			break;
		}
		if (e.kind == STK_SHM_BATCH)
			stk__session_skip(s, e.slot, s->sub.head - 1);
	}
	/* Relaxed: a figure for the eye. */
	atomic_store_explicit(&s->seat->consumed, s->sub.head, memory_order_relaxed);
}

/* Takes what is ready. NOTHING: the ring is empty. */
static int take(struct stk_client *c, struct stk_batch **ret)
{
	struct stk_shm_entry e;
	int r;

	if (c->final)
		return c->final;
	do
		r = read_entry(c, &e);
	while (r == AGAIN);
	if (r == NOTHING)
		return r;
	if (c->waiting)
		end_wait(c);
	if (c->eager)
		set_eager(c, false);
	if (r)
		return r;
	if (e.era != c->era || e.kind >= STK_ARRAY_SIZE(takers) || !takers[e.kind])
		return c->final = stk_err_set(
			       &c->err, -EPROTO,
			       "publish entry: kind %u in era %u, this client is in era %u", e.kind,
			       e.era, c->era);
	return takers[e.kind](c, &e, ret);
}

/* Empties the descriptor that said "look at the ring". */
static void drain_wake(int fd)
{
	char bytes[64];

	for (int i = 0; i < DRAIN_LIMIT && read(fd, bytes, sizeof(bytes)) > 0; i++)
		;
}

/* Before the caller polls: the daemon shall write to the wake descriptor. */
static int arm(struct stk_client *c, struct stk_batch **ret)
{
	struct stk__session *s = c->session;

	stk__client_arm(c);
	drain_wake(s->wake);
	if (!stk_ring_announce(&s->sub, s->seat, STK_SHM_WAIT_FD))
		return take(c, ret);
	begin_wait(c);
	return NOTHING;
}

/*
 * Parks until the tail moves, at most one slice. The tail is read-only memory of the daemon. One of
 * several seats has patience first: the slowest gives back several slots together, and a daemon that
 * had to look for each would do little else.
 */
static void park(struct stk_client *c, int64_t deadline_ns)
{
	struct stk__session *s = c->session;
	int64_t slice = c->hungry || s->geometry.replicas == 1 ? SLICE_NS : PATIENCE_NS;
	int64_t left = deadline_ns == STK__FOREVER ? slice : deadline_ns - stk__now_ns();
	struct timespec ts = {.tv_nsec = (long)STK_MIN(left, slice)};

	if (left > 0 && stk_ring_announce(&s->sub, s->seat, STK_SHM_WAIT_FUTEX))
		syscall(SYS_futex, &s->control->tail, FUTEX_WAIT, s->sub.head, &ts, NULL, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/*
 * Looks for a while before it sleeps: a batch that is nearly ready costs neither side a wake-up, which
 * takes the daemon longer than a small batch. It yields in between: the worker may want this very
 * core. Where it did when it last published, sleeping is the quicker way. After a look in vain the next
 * ones are left out, more each time, so that a trainer that waits long burns next to nothing. True: the
 * tail has moved.
 */
static bool spin(struct stk_client *c, int64_t deadline_ns)
{
	const struct stk__session *s = c->session;
	int64_t end;

	/* Relaxed: a hint. */
	if (c->crowded || atomic_load_explicit(&s->control->cpu, memory_order_relaxed) ==
				  (uint32_t)sched_getcpu() + 1)
		return false;
	if (c->spins_left_out < c->spins_to_leave) {
		c->spins_left_out++;
		return false;
	}
	c->spins_left_out = 0;
	end = stk__now_ns() + SPIN_NS;
	do {
		for (int i = 0; i < SPIN_LOOKS; i++) {
			/* Relaxed: taking the entry is what orders. */
			if (atomic_load_explicit(&s->control->tail, memory_order_relaxed) !=
			    s->sub.head) {
				c->spins_to_leave = 0;
				return true;
			}
			relax();
		}
		sched_yield();
	} while (stk__now_ns() < STK_MIN(end, deadline_ns));
	c->spins_to_leave = STK_MIN(2 * c->spins_to_leave + 1, SPINS_LEFT_OUT_MAX);
	return false;
}

/*
 * The ring was empty. Who is woken by a batch takes it at once; the connection is looked at when there
 * is none.
 */
static int wait_next(struct stk_client *c, int64_t deadline_ns, struct stk_batch **ret)
{
	int r = NOTHING;

	while (r == NOTHING) {
		bool gone = false, late;

		if (!c->session) {
			r = stk__client_reattach(c);
			if (r < 0)
				return r;
		}
		if (!c->eager)
			set_eager(c, true);
		late = deadline_ns != STK__FOREVER && stk__now_ns() >= deadline_ns;
		if (!late && !spin(c, deadline_ns)) {
			begin_wait(c);
			park(c, deadline_ns);
		}
		r = take(c, ret);
		if (r == NOTHING) {
			/* Looked at before the ring is once more: what came before the end counts. */
			gone = stk__hung_up(c->session->sock);
			r = take(c, ret);
		}
		if (r == NOTHING && gone) {
			stk__client_lost(c);
			continue;
		}
		if (r == NOTHING && stk__is_interrupted(&c->request))
			return stk_err_set(&c->err, -EINTR, "interrupted while waiting");
		if (r == NOTHING)
			set_hungry(c);
		if (r == NOTHING && late && c->epoll >= 0)
			r = arm(c, ret);
		if (r == NOTHING && late)
			break;
	}
	if (r != NOTHING)
		return r;
	if (c->waiting && c->epoll < 0)
		end_wait(c);
	return STK_TIMEOUT;
}

int stk_client_take(struct stk_client *c, struct stk_batch **ret_batch)
{
	int r = stk__client_usable(c);

	if (r < 0)
		return r;
	r = c->session ? take(c, ret_batch) : c->final ? c->final : NOTHING;
	return r == NOTHING ? STK_TIMEOUT : r;
}

int stk_client_next(struct stk_client *c, int timeout_ms, struct stk_batch **ret_batch)
{
	int r = stk__client_usable(c);

	if (r < 0)
		return r;
	r = c->session ? take(c, ret_batch) : c->final ? c->final : NOTHING;
	if (r != NOTHING)
		return r;
	return wait_next(c, stk__deadline(timeout_ms), ret_batch);
}
