/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Workers within ranges, and how long they wait there. A range is a fraction of a millisecond unless
 * pages of its shards are missing, so only threads whose last range was slow ask the kernel how
 * long they ran, and a quick one costs two looks at the clock.
 */
#include "daemon/serve/worktime.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "proto/err.h"
#include "daemon/serve/seat.h"

#define SLOW_NS 1000000

static _Thread_local int32_t own_tid;
static _Thread_local bool last_was_slow;

/* Contents of a small file of /proc, terminated; false: it cannot be read. */
static bool read_proc(const char *path, char *text, size_t size)
{
	_cleanup_(stk_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	text[n > 0 ? n : 0] = '\0';
	return n > 0;
}

/* How long this thread has had a core or has waited for one. */
static bool read_ran(uint64_t *ret)
{
	char text[128];
	uint64_t on_core, for_core;

	if (!read_proc("/proc/thread-self/schedstat", text, sizeof(text)) ||
	    sscanf(text, "%" SCNu64 " %" SCNu64, &on_core, &for_core) != 2)
		return false;
	*ret = on_core + for_core;
	return true;
}

static struct stkd_worktime_place *take_place(struct stkd_worktime *time, uint64_t now_ns)
{
	if (!own_tid)
		own_tid = gettid();
	for (unsigned i = 0; i < STKD_WORKTIME_PLACES; i++) {
		struct stkd_worktime_place *p =
			&time->place[((unsigned)own_tid + i) % STKD_WORKTIME_PLACES];
		int32_t nobody = 0;

		/* Relaxed everywhere: figures for the eye, a mixture of two ranges does no harm. */
		if (!atomic_compare_exchange_strong_explicit(
			    &p->tid, &nobody, own_tid, memory_order_relaxed, memory_order_relaxed))
			continue;
		atomic_store_explicit(&p->since_ns, now_ns, memory_order_relaxed);
		return p;
	}
	return NULL;
}

void stkd_worktime_begin(struct stkd_worktime *time, struct stkd_worktime_range *range)
{
	range->watched = last_was_slow && read_ran(&range->ran_ns);
	range->since_ns = stkd_now_ns();
	range->place = take_place(time, range->since_ns);
}

void stkd_worktime_end(struct stkd_worktime *time, const struct stkd_worktime_range *range)
{
	uint64_t took = stkd_now_ns() - range->since_ns, ran;

	if (range->place)
		atomic_store_explicit(&range->place->tid, 0, memory_order_relaxed);
	atomic_fetch_add_explicit(&time->range_ns, took, memory_order_relaxed);
	last_was_slow = took >= SLOW_NS;
	if (!range->watched || !last_was_slow || !read_ran(&ran))
		return;
	ran -= range->ran_ns;
	if (took > ran)
		atomic_fetch_add_explicit(&time->storage_ns, took - ran, memory_order_relaxed);
}

/* Nothing but a missing page makes a worker sleep within a range. */
static bool is_asleep(int32_t tid)
{
	char path[64], text[256];
	const char *state;

	snprintf(path, sizeof(path), "/proc/self/task/%" PRId32 "/stat", tid);
	if (!read_proc(path, text, sizeof(text)))
		return false;
	state = strrchr(text, ')'); /* behind the name, which may hold anything */
	return state && state[1] == ' ' && state[2] != 'R';
}

void stkd_worktime_figures(struct stkd_worktime *time, struct stkd_worktime_figures *ret)
{
	uint64_t now = stkd_now_ns(), since;
	int32_t tid;

	*ret = (struct stkd_worktime_figures){
		.range_ns = atomic_load_explicit(&time->range_ns, memory_order_relaxed),
		.storage_ns = atomic_load_explicit(&time->storage_ns, memory_order_relaxed),
	};
	for (unsigned i = 0; i < STKD_WORKTIME_PLACES; i++) {
		tid = atomic_load_explicit(&time->place[i].tid, memory_order_relaxed);
		since = atomic_load_explicit(&time->place[i].since_ns, memory_order_relaxed);
		if (!tid)
			continue;
		ret->busy++;
		if (!is_asleep(tid))
			continue;
		ret->blocked++;
		if (now > since)
			ret->blocked_ns = STK_MAX(ret->blocked_ns, now - since);
	}
}
