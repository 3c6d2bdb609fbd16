/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchwake.h"

#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct pair {
	_Atomic uint32_t word; /* counts turns; odd: the child's */
	uint64_t woken_ns;     /* when the turn was given; ordered by the word */
	unsigned rounds;
	struct benchtimes there; /* of the child */
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

/* Sleeps until the turn is given. False: a second went by without it. */
static bool take(struct pair *pair, uint32_t turn, struct benchtimes *times)
{
	const struct timespec second = {.tv_sec = 1};

	while (atomic_load_explicit(&pair->word, memory_order_acquire) != turn)
		if (syscall(SYS_futex, &pair->word, FUTEX_WAIT, turn - 1, &second, NULL, 0) < 0 &&
		    errno == ETIMEDOUT)
			return false;
	benchtimes_add(times, now_ns() - pair->woken_ns);
	return true;
}

static int sit_on(int core)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core, &set);
	return sched_setaffinity(0, sizeof(set), &set) < 0 ? -errno : 0;
}

static void answer(struct pair *pair, int core)
{
	if (sit_on(core) < 0)
		_exit(1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (uint32_t i = 0; i < pair->rounds; i++) {
		if (!take(pair, 2 * i + 1, &pair->there))
			_exit(1);
		give(pair, 2 * i + 2);
	}
	_exit(0);
}

static int ask(struct pair *pair, int core, struct benchtimes *times)
{
	pid_t child = fork();
	int r = 0;

	if (child < 0)
		return -errno;
	if (child == 0)
		answer(pair, core);
	for (uint32_t i = 0; i < pair->rounds && r == 0; i++) {
		give(pair, 2 * i + 1);
		if (!take(pair, 2 * i + 2, times))
			r = -ETIMEDOUT;
	}
	if (r < 0)
		kill(child, SIGKILL);
	while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
		;
	if (r == 0)
		benchtimes_merge(times, &pair->there);
	return r;
}

static int first_core(const cpu_set_t *set, int but)
{
	for (int i = 0; i < CPU_SETSIZE; i++)
		if (CPU_ISSET(i, set) && i != but)
			return i;
	return but;
}

int benchwake_cores(pid_t pid, struct benchwake_cores *ret)
{
	cpu_set_t ours, theirs;

	if (sched_getaffinity(0, sizeof(ours), &ours) < 0 ||
	    sched_getaffinity(pid, sizeof(theirs), &theirs) < 0)
		return -errno;
	ret->theirs = first_core(&theirs, -1);
	ret->ours = first_core(&ours, ret->theirs);
	if (ret->ours == ret->theirs)
		ret->theirs = first_core(&theirs, ret->ours);
	return 0;
}

int benchwake_measure(const struct benchwake_cores *cores, unsigned rounds,
		      struct benchtimes *times)
{
	cpu_set_t before;
	struct pair *pair = mmap(NULL, sizeof(*pair), PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int r;

	if (pair == MAP_FAILED)
		return -errno;
	pair->rounds = rounds;
	r = sched_getaffinity(0, sizeof(before), &before) < 0 ? -errno : sit_on(cores->ours);
	if (r == 0) {
		r = ask(pair, cores->theirs, times);
		sched_setaffinity(0, sizeof(before), &before);
	}
	munmap(pair, sizeof(*pair));
	return r;
}
