/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The worker pool: its lock guards shares, and the counters of every task in them. Shares with
 * something to claim wait in a list of turns, those first that have taken least by their weight
 * (start-time fair queueing). Shares and tasks are their owners' memory: nothing is allocated here.
 */
#include "daemon/assemble/pool.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a claim, and the end of a batch, take beside the bytes. */
#define CLAIM_BYTES 4096

struct stkd_pool {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct stkd_share *turns, *last_turn; /* those with unclaimed rows, least taken first */
	uint64_t
		now; /* what the share that had the last turn had taken before: where others begin */
	unsigned idle; /* workers that sleep */
	bool stop;
	bool pinned;
	cpu_set_t cpus;
	char name[12];  /* with "-999" a thread name of at most 15 characters */
	unsigned named; /* workers that have taken their number */
	unsigned nworkers;
	pthread_t threads[];
};

/* Behind those that have taken as much: equals take turns. */
static void push_turn(struct stkd_pool *pool, struct stkd_share *share)
{
	struct stkd_share **at = &pool->turns;

	if (pool->turns && pool->last_turn->taken <= share->taken)
		at = &pool->last_turn->turn;
	while (*at && (*at)->taken <= share->taken)
		at = &(*at)->turn;
	share->turn = *at;
	*at = share;
	if (!share->turn)
		pool->last_turn = share;
}

/* What a share did not take while it had nothing to do is gone: it begins where the others are. */
static void begin_turns(struct stkd_pool *pool, struct stkd_share *share)
{
	if (!pool->turns)
		pool->now = STK_MAX(pool->now, share->taken);
	share->taken = STK_MAX(pool->now, share->taken);
	push_turn(pool, share);
}

/* Takes a range of the share whose turn it is; that share then waits for its next turn. */
static struct stkd_task *claim(struct stkd_pool *pool, uint32_t *ret_first, uint32_t *ret_n)
{
	struct stkd_share *share = pool->turns;
	struct stkd_task *task;

	if (!share)
		return NULL;
	pool->turns = share->turn;
	task = share->first;
	*ret_first = task->claimed;
	*ret_n = STK_MIN(task->range_rows, task->nrows - task->claimed);
	task->claimed += *ret_n;
	pool->now = share->taken;
	share->taken += (CLAIM_BYTES + *ret_n * task->row_bytes) / share->weight;
	if (task->claimed == task->nrows)
		share->first = task->next;
	if (share->first)
		push_turn(pool, share);
	return task;
}

static void name_thread(const struct stkd_pool *pool, unsigned index)
{
	char name[16];

	snprintf(name, sizeof(name), "%s-%u", pool->name, index % 1000);
	pthread_setname_np(pthread_self(), name);
}

/* Runs one range; called and left with the lock held. */
static void run_range(struct stkd_pool *pool, struct stkd_task *task, uint32_t first, uint32_t n)
{
	bool last;

	pthread_mutex_unlock(&pool->lock);
	if (n)
		task->run(task, first, n);
	pthread_mutex_lock(&pool->lock);
	task->finished += n;
	last = task->finished == task->nrows;
	if (!last)
		return;
	/* All rows are finished, so no other worker knows this task any more: done() may free it. */
	pthread_mutex_unlock(&pool->lock);
	task->done(task);
	pthread_mutex_lock(&pool->lock);
}

static void *work(void *arg)
{
	struct stkd_pool *pool = arg;
	struct stkd_task *task;
	uint32_t first = 0, n = 0;

	/* Not being pinned only costs speed: a cpuset may have shrunk since the set was read. */
	if (pool->pinned)
		sched_setaffinity(0, sizeof(pool->cpus), &pool->cpus);
	pthread_mutex_lock(&pool->lock);
	name_thread(pool, pool->named++);
	for (;;) {
		task = claim(pool, &first, &n);
		if (task) {
			run_range(pool, task, first, n);
		} else if (pool->stop) {
			break;
		} else {
			pool->idle++;
			pthread_cond_wait(&pool->wake, &pool->lock);
			pool->idle--;
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

/* Workers take no signals but the faults of their own accesses, which must not be blocked. */
static void worker_signals(sigset_t *ret)
{
	sigfillset(ret);
	sigdelset(ret, SIGBUS);
	sigdelset(ret, SIGSEGV);
	sigdelset(ret, SIGFPE);
	sigdelset(ret, SIGILL);
}

/* Starts the workers; stops at the first that cannot be. Return: 0 or a negative errno. */
static int start_workers(struct stkd_pool *pool, unsigned nworkers)
{
	sigset_t blocked, saved;
	int r = 0;

	worker_signals(&blocked);
	pthread_sigmask(SIG_SETMASK, &blocked, &saved); /* inherited by the workers */
	while (pool->nworkers < nworkers) {
		r = pthread_create(&pool->threads[pool->nworkers], NULL, work, pool);
		if (r)
			break;
		pool->nworkers++;
	}
	pthread_sigmask(SIG_SETMASK, &saved, NULL);
	return -r;
}

int stkd_pool_new(unsigned nworkers, const cpu_set_t *cpus, const char *name,
		  struct stkd_pool **ret, struct stk_err *err)
{
	struct stkd_pool *pool;
	int r;

	assert(nworkers > 0);
	pool = calloc(1, sizeof(*pool) + nworkers * sizeof(pool->threads[0]));
	if (!pool)
		return stk_err_set(err, -ENOMEM, "pool %s: no memory", name);
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	snprintf(pool->name, sizeof(pool->name), "%s", name);
	pool->pinned = cpus != NULL;
	if (cpus)
		pool->cpus = *cpus;
	r = start_workers(pool, nworkers);
	if (r < 0) {
		stk_err_set(err, r,
			    "pool %s: %u of %u threads could be started: %s; RLIMIT_NPROC or the "
			    "cgroup's "
			    "pids.max may be too small",
			    name, pool->nworkers, nworkers, strerrordesc_np(-r));
		stkd_pool_free(pool);
		return r;
	}
	*ret = pool;
	return 0;
}

struct stkd_pool *stkd_pool_free(struct stkd_pool *pool)
{
	if (!pool)
		return NULL;
	pthread_mutex_lock(&pool->lock);
	pool->stop = true;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->nworkers; i++)
		pthread_join(pool->threads[i], NULL);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
	return NULL;
}

/* Without the lock: a worker that wakes up needs it at once. */
static void wake_workers(struct stkd_pool *pool, uint64_t n)
{
	for (; n; n--)
		pthread_cond_signal(&pool->wake);
}

void stkd_pool_submit(struct stkd_pool *pool, struct stkd_task *task)
{
	uint64_t ranges = STK_MAX((uint64_t)task->nrows / task->range_rows, 1);
	struct stkd_share *share = task->share;

	assert(task->range_rows > 0 && share->weight > 0);
	task->next = NULL;
	task->claimed = task->finished = 0;
	pthread_mutex_lock(&pool->lock);
	if (share->first) {
		share->last->next = task;
	} else {
		share->first = task;
		begin_turns(pool, share);
	}
	share->last = task;
	ranges = STK_MIN(ranges, pool->idle);
	pthread_mutex_unlock(&pool->lock);
	wake_workers(pool, ranges);
}

unsigned stkd_pool_size(const struct stkd_pool *pool)
{
	return pool->nworkers;
}
