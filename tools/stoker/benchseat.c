/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchseat.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLICE_MS 100 /* a waiting seat looks whether it is to stop */

struct seat {
	struct benchseats *all;
	pthread_t thread;
	struct stk_client_opts opts;
	struct stk_client *client;
	double first_s;
	struct benchseat_sums sums;
	bool ended;
	int r;
	char error[1024];
};

struct benchseats {
	struct benchseat_opts opts;
	pthread_barrier_t barrier; /* the seats and whoever commands them */
	enum benchseat_phase phase;
	_Atomic bool stop;
	uint32_t n, started;
	struct seat seats[];
};

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

static void count(struct seat *seat, const struct stk_batch *batch, struct stk_batch_info *info)
{
	struct benchseat_sums *sums = &seat->sums;

	info->size = sizeof(*info);
	stk_batch_info(batch, info);
	sums->batches++;
	sums->rows += info->rows_real;
	sums->real_tokens += info->real_tokens;
	sums->padded_tokens += info->padded_tokens;
	sums->bytes += info->data_size;
}

/* The next batch, over the ends of epochs. Return: as stk_client_next(). */
static int next(struct seat *seat, int timeout_ms, struct stk_batch **ret)
{
	int r = stk_client_next(seat->client, timeout_ms, ret);

	while (r == STK_EPOCH_END)
		r = stk_client_next(seat->client, timeout_ms, ret);
	seat->ended |= r == STK_STREAM_END;
	if (r < 0 && seat->r == 0) {
		seat->r = r;
		snprintf(seat->error, sizeof(seat->error), "%s", stk_client_error(seat->client));
	}
	return r;
}

static void pause_us(uint32_t us)
{
	const struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};

	if (us)
		nanosleep(&t, NULL);
}

static void phase_run(struct seat *seat)
{
	struct stk_batch_info info;
	struct stk_batch *batch;

	while (!atomic_load_explicit(&seat->all->stop, memory_order_relaxed)) {
		uint64_t start = now_ns();
		int r = next(seat, SLICE_MS, &batch);

		if (r == STK_TIMEOUT)
			continue;
		if (r)
			return;
		benchtimes_add(&seat->sums.next, now_ns() - start);
		count(seat, batch, &info);
		stk_batch_release(batch);
		pause_us(seat->all->opts.pace_us);
	}
}

static void phase_ready(struct seat *seat)
{
	struct stk_client_info info = {.size = sizeof(info)};

	stk_client_info(seat->client, &info);
	for (uint32_t i = 0; i < info.slots; i++) {
		struct stk_batch *batch;
		uint64_t start = now_ns();

		if (next(seat, 0, &batch))
			return;
		stk_batch_release(batch);
		benchtimes_add(&seat->sums.ready, now_ns() - start);
	}
}

/* Waits with every other slot held, so that the ring is empty. False: no batch came. */
static bool wake_once(struct seat *seat, struct stk_batch **held)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	uint64_t asked, woke;

	stk_batch_release(*held);
	*held = NULL;
	asked = now_ns();
	if (next(seat, 1000, held))
		return false;
	woke = now_ns();
	stk_batch_info(*held, &info);
	/* One that was there already woke nobody. */
	if (info.ready_ns > asked && info.ready_ns <= woke)
		benchtimes_add(&seat->sums.wake, woke - info.ready_ns);
	return true;
}

static void phase_wake(struct seat *seat)
{
	struct stk_client_info info = {.size = sizeof(info)};
	struct stk_batch **held;
	uint32_t n = 0;

	stk_client_info(seat->client, &info);
	held = calloc(info.slots + 1, sizeof(struct stk_batch *));
	while (held && n < info.slots && next(seat, 1000, &held[n]) == 0)
		n++;
	for (uint32_t i = 0; n == info.slots && i < seat->all->opts.wakes; i++)
		if (!wake_once(seat, &held[i % n]))
			break;
	while (n--)
		stk_batch_release(held[n]);
	free(held);
}

static void (*const phases[])(struct seat *seat) = {
	[BENCH_RUN] = phase_run,
	[BENCH_READY] = phase_ready,
	[BENCH_WAKE] = phase_wake,
};

static void open_seat(struct seat *seat)
{
	uint64_t start = now_ns();
	struct stk_batch *batch;
	int r = stk_client_open(&seat->opts, &seat->client, seat->error, sizeof(seat->error));

	if (r < 0)
		seat->r = r;
	else if (next(seat, -1, &batch) == 0)
		stk_batch_release(batch);
	seat->first_s = (double)(now_ns() - start) / 1e9;
}

static void *serve(void *arg)
{
	struct seat *seat = arg;
	struct benchseats *all = seat->all;

	open_seat(seat);
	pthread_barrier_wait(&all->barrier);
	for (;;) {
		uint64_t cpu;

		pthread_barrier_wait(&all->barrier);
		if (all->phase == BENCH_QUIT)
			break;
		memset(&seat->sums, 0, sizeof(seat->sums));
		cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		if (seat->r == 0 && !seat->ended)
			phases[all->phase](seat);
		seat->sums.cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu;
		pthread_barrier_wait(&all->barrier);
	}
	seat->client = stk_client_close(seat->client);
	return NULL;
}

static int find_error(const struct benchseats *seats, char *error, size_t error_size)
{
	for (uint32_t i = 0; i < seats->n; i++) {
		if (seats->seats[i].r == 0)
			continue;
		snprintf(error, error_size, "%s", seats->seats[i].error);
		return seats->seats[i].r;
	}
	return 0;
}

struct benchseats *benchseats_free(struct benchseats *seats)
{
	if (!seats)
		return NULL;
	if (seats->started == seats->n) {
		seats->phase = BENCH_QUIT;
		pthread_barrier_wait(&seats->barrier);
	}
	for (uint32_t i = 0; i < seats->started; i++)
		pthread_join(seats->seats[i].thread, NULL);
	pthread_barrier_destroy(&seats->barrier);
	free(seats);
	return NULL;
}

static int start_seats(struct benchseats *seats)
{
	int r = 0;

	for (uint32_t i = 0; i < seats->n && r == 0; i++) {
		struct seat *seat = &seats->seats[i];

		seat->all = seats;
		seat->opts = *seats->opts.client;
		seat->opts.world = seats->opts.ranks;
		seat->opts.rank = i / seats->opts.replicas;
		seat->opts.replicas = seats->opts.replicas;
		seat->opts.replica = i % seats->opts.replicas;
		if (i)
			seat->opts.progress = NULL;
		r = pthread_create(&seat->thread, NULL, serve, seat);
		seats->started += r == 0;
	}
	return -r;
}

int benchseats_new(const struct benchseat_opts *opts, struct benchseats **ret, double *ret_first_s,
		   char *error, size_t error_size)
{
	uint32_t n = opts->ranks * opts->replicas;
	struct benchseats *seats = calloc(1, sizeof(*seats) + n * sizeof(seats->seats[0]));
	double first = 0;
	int r;

	if (!seats) {
		snprintf(error, error_size, "no memory for %u seats", n);
		return -ENOMEM;
	}
	seats->opts = *opts;
	seats->n = n;
	pthread_barrier_init(&seats->barrier, NULL, n + 1);
	r = start_seats(seats);
	if (r < 0) {
		/* Those that run wait for the others for ever: the process has to end. */
		snprintf(error, error_size, "%u of %u threads could be started: %s", seats->started,
			 n, strerror(-r));
		return r;
	}
	pthread_barrier_wait(&seats->barrier);
	r = find_error(seats, error, error_size);
	if (r < 0) {
		benchseats_free(seats);
		return r;
	}
	for (uint32_t i = 0; i < n; i++)
		first = STK_MAX(first, seats->seats[i].first_s);
	*ret_first_s = first;
	*ret = seats;
	return 0;
}

static void add(struct benchseat_sums *sum, const struct benchseat_sums *one)
{
	sum->batches += one->batches;
	sum->rows += one->rows;
	sum->real_tokens += one->real_tokens;
	sum->padded_tokens += one->padded_tokens;
	sum->bytes += one->bytes;
	sum->cpu_ns += one->cpu_ns;
	benchtimes_merge(&sum->next, &one->next);
	benchtimes_merge(&sum->ready, &one->ready);
	benchtimes_merge(&sum->wake, &one->wake);
}

int benchseats_phase(struct benchseats *seats, enum benchseat_phase phase, double seconds,
		     struct benchseat_sums *ret, char *error, size_t error_size)
{
	const struct timespec t = {(time_t)seconds,
				   (long)((seconds - (double)(time_t)seconds) * 1e9)};
	bool ended = false;

	seats->phase = phase;
	atomic_store_explicit(&seats->stop, false, memory_order_relaxed);
	pthread_barrier_wait(&seats->barrier);
	if (phase == BENCH_RUN)
		nanosleep(&t, NULL);
	atomic_store_explicit(&seats->stop, true, memory_order_relaxed);
	pthread_barrier_wait(&seats->barrier);
	memset(ret, 0, sizeof(*ret));
	for (uint32_t i = 0; i < seats->n; i++) {
		add(ret, &seats->seats[i].sums);
		ended |= seats->seats[i].ended;
	}
	if (find_error(seats, error, error_size) < 0)
		return find_error(seats, error, error_size);
	return ended;
}

const struct stk_client *benchseats_client(const struct benchseats *seats)
{
	return seats->seats[0].client;
}
