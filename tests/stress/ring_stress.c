/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the two rings between a publisher and two seats, as threads and as processes. Checks that
 * every seat sees each entry once and in order, that no slot changes under a lease, and that no
 * wake-up is lost: a wait of seconds is a failure. Usage: ring_stress [SECONDS for each way].
 */
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/ring.h"

#define SLOTS     6u
#define SEATS     2u
#define WORDS     64u
#define ENTRIES   16u /* at least 2 * SLOTS + 2 */
#define LOST_S    5   /* nobody is that slow: a wake-up was lost */
#define HELD_MAX  3u  /* leases that a seat holds at once */
#define EPOCH_LEN 7u  /* batches between two EPOCH_END entries */

/* Everything that is shared, in one anonymous mapping. */
struct shared {
	struct stk_shm_control control;
	struct stk_shm_entry publish[ENTRIES];
	struct {
		struct stk_shm_seat shm;
		_Atomic uint64_t release[ENTRIES];
	} seat[SEATS];
	uint64_t data[SLOTS][WORDS]; /* plain stores, as real batches */
	_Atomic int failed;
};

struct lease {
	uint32_t slot, index;
	uint64_t step;
};

struct consumer {
	struct shared *s;
	unsigned number;
	int kick;
	uint64_t parks;
};

static struct shared *shared;
static double limit_s = 0.7;

static int fail(const char *what, uint64_t a, uint64_t b)
{
	fprintf(stderr, "ring_stress: %s: %llu, %llu\n", what, (unsigned long long)a,
		(unsigned long long)b);
	atomic_store(&shared->failed, 1);
	return 1;
}

static double now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint32_t roll(uint32_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 17;
	*state ^= *state << 5;
	return *state;
}

/* Lets the other side run at odd moments. */
static void stumble(uint32_t *state)
{
	if (roll(state) % 64 == 0)
		sched_yield();
	if (roll(state) % 4096 == 0)
		usleep(50);
}

/* The seats. */

static int check_slot(const struct shared *s, const struct lease *lease)
{
	for (unsigned i = 0; i < WORDS; i++)
		if (s->data[lease->slot][i] != lease->step * WORDS + i)
			return fail("a slot changed under its lease", lease->step,
				    s->data[lease->slot][i]);
	return 0;
}

static int give_back(struct consumer *c, struct stk_ring_rel *rel, struct lease *held, uint32_t *n,
		     uint32_t which)
{
	static const uint64_t one = 1;
	struct lease lease = held[which];

	if (check_slot(c->s, &lease))
		return 1;
	held[which] = held[--*n];
	if (stk_ring_release(rel, &c->s->control, lease.slot, lease.index) &&
	    write(c->kick, &one, sizeof(one)) < 0)
		return fail("kick", (uint64_t)errno, 0);
	return 0;
}

static int park(struct consumer *c, struct stk_ring_sub *sub)
{
	const struct timespec ts = {.tv_sec = LOST_S};
	struct stk_shm_seat *seat = &c->s->seat[c->number].shm;

	if (!stk_ring_announce(sub, seat, STK_SHM_WAIT_FUTEX))
		return 0;
	c->parks++;
	if (syscall(SYS_futex, &c->s->control.tail, FUTEX_WAIT, sub->head, &ts, NULL, 0) < 0 &&
	    errno == ETIMEDOUT)
		return fail("a wake-up was lost", c->number, sub->head);
	stk_ring_retract(seat);
	return 0;
}

/* One entry: the step it has to be, or the end. Returns 0 to go on, 1 on failure, 2 at the end. */
static int take(struct consumer *c, struct stk_ring_rel *rel, const struct stk_shm_entry *e,
		uint32_t index, struct lease *held, uint32_t *n, uint64_t *wanted)
{
	if (e->kind == STK_SHM_STREAM_END)
		return e->step == *wanted ? 2 : fail("entries at the end", e->step, *wanted);
	if (e->step != *wanted)
		return fail("entries out of order", e->step, *wanted);
	if (e->kind == STK_SHM_EPOCH_END)
		return 0;
	++*wanted;
	held[(*n)++] = (struct lease){e->slot, index, e->step};
	if (check_slot(c->s, &held[*n - 1]))
		return 1;
	return *n == HELD_MAX ? give_back(c, rel, held, n, (uint32_t)(e->step % *n)) : 0;
}

static int consume(struct consumer *c)
{
	struct shared *s = c->s;
	struct stk_ring_sub sub = {.shm = &s->control, .entries = s->publish, .mask = ENTRIES - 1};
	struct stk_ring_rel rel = {.shm = &s->seat[c->number].shm,
				   .entries = s->seat[c->number].release,
				   .mask = ENTRIES - 1};
	struct lease held[HELD_MAX];
	uint32_t n = 0, dice = 77 + c->number;
	uint64_t wanted = 0;

	for (;;) {
		struct stk_shm_entry e;
		int r;

		stumble(&dice);
		if (atomic_load(&s->failed))
			return 1;
		if (!stk_ring_read(&sub, &e)) {
			/* Holding on to leases while waiting for a batch would be the trainer's own fault. */
			r = n ? give_back(c, &rel, held, &n, roll(&dice) % n) : park(c, &sub);
			if (r)
				return r;
			continue;
		}
		r = take(c, &rel, &e, sub.head - 1, held, &n, &wanted);
		if (r)
			return r == 2 ? 0 : r;
	}
}

/* The publisher. */

struct publisher {
	struct shared *s;
	struct stk_ring_pub pub;
	struct stk_ring_drain drain[SEATS];
	uint32_t holders[SLOTS]; /* bit per seat */
	uint32_t index[SLOTS];
	int kick;
	uint64_t dry;
};

static int drain_all(struct publisher *p)
{
	uint32_t slot, index;
	int r;

	for (unsigned i = 0; i < SEATS; i++) {
		while ((r = stk_ring_drain(&p->drain[i], &slot, &index)) == STK_RING_GOT) {
			if (slot >= SLOTS || !(p->holders[slot] & 1u << i) ||
			    p->index[slot] != index)
				return fail("a release of what was not lent", slot, index);
			p->holders[slot] &= ~(1u << i);
		}
		if (r == STK_RING_LIE)
			return fail("a release tail that lies", i, 0);
	}
	return 0;
}

static int free_slot(const struct publisher *p)
{
	for (unsigned i = 0; i < SLOTS; i++)
		if (!p->holders[i])
			return (int)i;
	return -1;
}

/* Waits for a kick the way the daemon does: says that it ran dry, and looks once more. */
static int wait_for_slot(struct publisher *p, int *ret_slot)
{
	struct pollfd poll_kick = {.fd = p->kick, .events = POLLIN};
	uint64_t count;

	if (drain_all(p))
		return 1;
	while ((*ret_slot = free_slot(p)) < 0) {
		stk_ring_set_need_kick(&p->s->control, 1);
		if (drain_all(p))
			return 1;
		if (free_slot(p) < 0) {
			p->dry++;
			if (poll(&poll_kick, 1, LOST_S * 1000) == 0)
				return fail("a kick was lost", p->pub.tail, 0);
		}
		stk_ring_set_need_kick(&p->s->control, 0);
		if (read(p->kick, &count, sizeof(count)) < 0 && errno != EAGAIN)
			return fail("kick", (uint64_t)errno, 0);
		if (atomic_load(&p->s->failed) || drain_all(p))
			return 1;
	}
	return 0;
}

static void publish(struct publisher *p, uint32_t kind, uint32_t slot, uint64_t step)
{
	const struct stk_shm_entry e = {.kind = kind, .slot = slot, .step = step};
	bool wake = false;

	stk_ring_publish(&p->pub, &e);
	for (unsigned i = 0; i < SEATS; i++)
		wake |= stk_ring_waiters(&p->s->seat[i].shm) & STK_SHM_WAIT_FUTEX;
	if (wake)
		syscall(SYS_futex, &p->s->control.tail, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static int produce(struct shared *s, int kick)
{
	struct publisher p = {
		.s = s,
		.pub = {.shm = &s->control, .entries = s->publish, .mask = ENTRIES - 1},
		.kick = kick};
	double end = now_s() + limit_s;
	uint32_t dice = 5;
	uint64_t step;
	int slot;

	for (unsigned i = 0; i < SEATS; i++)
		p.drain[i] = (struct stk_ring_drain){
			.shm = &s->seat[i].shm, .entries = s->seat[i].release, .mask = ENTRIES - 1};
	for (step = 0; step % 256 || now_s() < end; step++) {
		stumble(&dice);
		if (wait_for_slot(&p, &slot))
			return 1;
		for (unsigned i = 0; i < WORDS; i++)
			s->data[slot][i] = step * WORDS + i;
		p.holders[slot] = (1u << SEATS) - 1;
		p.index[slot] = p.pub.tail;
		publish(&p, STK_SHM_BATCH, (uint32_t)slot, step);
		if (step % EPOCH_LEN == EPOCH_LEN - 1)
			publish(&p, STK_SHM_EPOCH_END, STK_SHM_NO_SLOT, step + 1);
	}
	publish(&p, STK_SHM_STREAM_END, STK_SHM_NO_SLOT, step);
	printf("  %llu batches, publisher ran dry %llu times\n", (unsigned long long)step,
	       (unsigned long long)p.dry);
	return 0;
}

/* The two ways. */

static void *consume_thread(void *data)
{
	return (void *)(intptr_t)consume(data);
}

static int run_threads(struct consumer *consumers)
{
	pthread_t threads[SEATS];
	int failed = 0;

	for (unsigned i = 0; i < SEATS; i++)
		pthread_create(&threads[i], NULL, consume_thread, &consumers[i]);
	failed |= produce(shared, consumers[0].kick);
	for (unsigned i = 0; i < SEATS; i++) {
		void *r;

		pthread_join(threads[i], &r);
		failed |= r != NULL;
		printf("  seat %u parked %llu times\n", i, (unsigned long long)consumers[i].parks);
	}
	return failed;
}

static int run_processes(struct consumer *consumers)
{
	pid_t pids[SEATS];
	int failed = 0;

	fflush(stdout);
	for (unsigned i = 0; i < SEATS; i++) {
		pids[i] = fork();
		if (!pids[i])
			_exit(consume(&consumers[i]));
	}
	failed |= produce(shared, consumers[0].kick);
	for (unsigned i = 0; i < SEATS; i++) {
		int status = 1;

		waitpid(pids[i], &status, 0);
		failed |= status;
	}
	return failed;
}

static int run(const char *name, int (*way)(struct consumer *consumers))
{
	struct consumer consumers[SEATS] = {0};
	int kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	int failed;

	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (kick < 0 || shared == MAP_FAILED) {
		perror("ring_stress");
		return 1;
	}
	for (unsigned i = 0; i < SEATS; i++)
		consumers[i] = (struct consumer){.s = shared, .number = i, .kick = kick};
	printf("%s\n", name);
	failed = way(consumers) || atomic_load(&shared->failed);
	munmap(shared, sizeof(*shared));
	close(kick);
	return failed;
}

int main(int argc, char **argv)
{
	int failed;

	if (argc > 1)
		limit_s = strtod(argv[1], NULL);
	failed = run("threads", run_threads);
	failed |= run("processes", run_processes);
	puts(failed ? "FAILED" : "fine");
	return failed;
}
