/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchwake.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct pair {
	_Atomic uint32_t word; /* counts turns; odd: the other thread's */
	uint64_t woken_ns;     /* when the turn was given; ordered by the word */
	unsigned rounds;
	struct benchtimes there; /* of the other thread */
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void give(struct pair *pair, uint32_t turn)
{
	pair->woken_ns = now_ns();
	atomic_store_explicit(&pair->word, turn, memory_order_release);
	syscall(SYS_futex, &pair->word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Sleeps until the turn is given. */
static void take(struct pair *pair, uint32_t turn, struct benchtimes *times)
{
	while (atomic_load_explicit(&pair->word, memory_order_acquire) != turn)
		syscall(SYS_futex, &pair->word, FUTEX_WAIT, turn - 1, NULL, NULL, 0);
	benchtimes_add(times, now_ns() - pair->woken_ns);
}

static void *answer(void *arg)
{
	struct pair *pair = arg;

	for (uint32_t i = 0; i < pair->rounds; i++) {
		take(pair, 2 * i + 1, &pair->there);
		give(pair, 2 * i + 2);
	}
	return NULL;
}

int benchwake_measure(unsigned rounds, struct benchtimes *times)
{
	static struct pair pair; /* too large for a stack; one measurement at a time */
	pthread_t thread;
	int r;

	pair = (struct pair){.rounds = rounds};
	r = pthread_create(&thread, NULL, answer, &pair);
	if (r)
		return -r;
	for (uint32_t i = 0; i < rounds; i++) {
		give(&pair, 2 * i + 1);
		take(&pair, 2 * i + 2, times);
	}
	pthread_join(thread, NULL);
	benchtimes_merge(times, &pair.there);
	return 0;
}
