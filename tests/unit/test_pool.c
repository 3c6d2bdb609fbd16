/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "daemon/assemble/pool.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED
#endif
#endif

/* A task that marks its rows in plain memory, so that a race or a row run twice shows. */
struct job {
	struct stkd_task task;
	struct stkd_pool *pool;
	uint8_t *rows;     /* nrows */
	unsigned resubmit; /* times done() submits it again */
	unsigned rounds;   /* done so far */
	sem_t *finished;
	bool free_in_done;
};

static void mark_rows(struct stkd_task *task, uint32_t first, uint32_t n)
{
	struct job *job = (struct job *)task;

	for (uint32_t i = first; i < first + n; i++)
		job->rows[i]++;
}

static void count_job(struct stkd_task *task)
{
	struct job *job = (struct job *)task;
	sem_t *finished = job->finished;

	job->rounds++;
	if (job->resubmit) {
		job->resubmit--;
		stkd_pool_submit(job->pool, task);
		return;
	}
	if (job->free_in_done) {
		free(job->rows);
		memset(job, 0xee, sizeof(*job));
		free(job);
	}
	sem_post(finished);
}

static struct stkd_pool *new_pool(unsigned nworkers)
{
	struct stkd_pool *pool = NULL;
	struct stk_err err = {.code = 0};

	assert_int_equal(stkd_pool_new(nworkers, NULL, "test", &pool, &err), 0);
	assert_int_equal(stkd_pool_size(pool), nworkers);
	return pool;
}

static void every_row_of_every_task_runs_once(void **state)
{
	enum { JOBS = 40 };
	struct stkd_share shares[3];

	(void)state;
	for (unsigned workers = 1; workers <= 8; workers *= 2) {
		struct stkd_pool *pool = new_pool(workers);
		struct job jobs[JOBS] = {0};
		sem_t finished;

		for (unsigned i = 0; i < STK_ARRAY_SIZE(shares); i++)
			shares[i] = (struct stkd_share){.weight = 1 + i};
		sem_init(&finished, 0, 0);
		for (unsigned i = 0; i < JOBS; i++) {
			jobs[i] = (struct job){
				.task = {.nrows = i * 7,
					 .range_rows = 1 + i % 5,
					 .run = mark_rows,
					 .row_bytes = 1000 * i,
					 .done = count_job,
					 .share = &shares[i % 3]},
				.pool = pool,
				.rows = calloc(1, i * 7 + 1),
				.resubmit = i % 4,
				.finished = &finished,
			};
			stkd_pool_submit(pool, &jobs[i].task);
		}
		for (unsigned i = 0; i < JOBS; i++)
			sem_wait(&finished);
		stkd_pool_free(pool);
		for (unsigned i = 0; i < JOBS; i++) {
			assert_int_equal(jobs[i].rounds, 1 + i % 4);
			for (unsigned r = 0; r < i * 7; r++)
				assert_int_equal(jobs[i].rows[r], 1 + i % 4);
			free(jobs[i].rows);
		}
		sem_destroy(&finished);
	}
}

static void done_may_free_its_task(void **state)
{
	enum { JOBS = 500 };
	struct stkd_pool *pool = new_pool(4);
	struct stkd_share share = {.weight = 1};
	sem_t finished;

	(void)state;
	sem_init(&finished, 0, 0);
	for (unsigned i = 0; i < JOBS; i++) {
		struct job *job = calloc(1, sizeof(*job));

		*job = (struct job){
			.task = {.nrows = 8,
				 .range_rows = 1,
				 .run = mark_rows,
				 .done = count_job,
				 .share = &share},
			.pool = pool,
			.rows = calloc(1, 8),
			.finished = &finished,
			.free_in_done = true,
		};
		stkd_pool_submit(pool, &job->task);
	}
	for (unsigned i = 0; i < JOBS; i++)
		sem_wait(&finished);
	stkd_pool_free(pool);
	sem_destroy(&finished);
}

static void a_task_without_rows_is_done_on_a_worker(void **state)
{
	struct stkd_pool *pool = new_pool(1);
	struct stkd_share share = {.weight = 1};
	sem_t finished;
	struct job job = {
		.task = {.range_rows = 1, .run = mark_rows, .done = count_job, .share = &share},
		.pool = pool,
		.resubmit = 2,
		.finished = &finished,
	};

	(void)state;
	sem_init(&finished, 0, 0);
	stkd_pool_submit(pool, &job.task);
	sem_wait(&finished);
	assert_int_equal(job.rounds, 3);
	stkd_pool_free(pool);
	sem_destroy(&finished);
}

/* Tasks that note the order in which their ranges start; one worker, held at a gate. */
struct noted {
	struct stkd_task task;
	char name;
	char *notes;
	sem_t *gate, *finished;
};

static void note_range(struct stkd_task *task, uint32_t first, uint32_t n)
{
	struct noted *noted = (struct noted *)task;

	(void)first;
	(void)n;
	if (noted->gate)
		sem_wait(noted->gate);
	noted->notes[strlen(noted->notes)] = noted->name;
}

static void post_noted(struct stkd_task *task)
{
	sem_post(((struct noted *)task)->finished);
}

/* Submits them all behind the first, which one worker is held in; returns when all have run. */
static void run_noted(struct noted *n, size_t count, char *notes)
{
	struct stkd_pool *pool = new_pool(1);
	sem_t gate, finished;

	sem_init(&gate, 0, 0);
	sem_init(&finished, 0, 0);
	n[0].gate = &gate;
	for (size_t i = 0; i < count; i++) {
		n[i].task.range_rows = 1;
		n[i].task.run = note_range;
		n[i].task.done = post_noted;
		n[i].notes = notes;
		n[i].finished = &finished;
		stkd_pool_submit(pool, &n[i].task);
	}
	sem_post(&gate);
	for (size_t i = 0; i < count; i++)
		sem_wait(&finished);
	stkd_pool_free(pool);
	sem_destroy(&gate);
	sem_destroy(&finished);
}

static size_t count_notes(const char *notes, size_t n, char name)
{
	size_t found = 0;

	for (size_t i = 0; i < n; i++)
		found += notes[i] == name;
	return found;
}

static void shares_take_turns_and_their_tasks_keep_their_order(void **state)
{
	struct stkd_share gate = {.weight = 1}, a = gate, x = gate, p = gate;
	struct noted n[] = {{.name = 'g', .task = {.nrows = 1, .share = &gate}},
			    {.name = 'a', .task = {.nrows = 4, .share = &a}},
			    {.name = 'b', .task = {.nrows = 2, .share = &a}},
			    {.name = 'x', .task = {.nrows = 2, .share = &x}},
			    {.name = 'y', .task = {.nrows = 2, .share = &x}},
			    {.name = 'p', .task = {.nrows = 1, .share = &p}}};
	char notes[32] = "";

	(void)state;
	run_noted(n, STK_ARRAY_SIZE(n), notes);
	assert_string_equal(notes, "gaxpaxayaybb");
}

static void weights_one_and_three_share_rows_one_to_three(void **state)
{
	struct stkd_share gate = {.weight = 1}, one = {.weight = 1}, three = {.weight = 3};
	struct noted n[] = {
		{.name = 'g', .task = {.nrows = 1, .share = &gate}},
		{.name = 'o', .task = {.nrows = 400, .row_bytes = 1 << 18, .share = &one}},
		{.name = 't', .task = {.nrows = 400, .row_bytes = 1 << 18, .share = &three}}};
	char notes[1024] = "";

	(void)state;
	run_noted(n, STK_ARRAY_SIZE(n), notes);
	/* Until the heavier one has nothing left. */
	for (size_t claims = 1; claims < 500; claims++) {
		size_t got = count_notes(notes + 1, claims, 'o');

		assert_in_range(4 * got + 4, claims, claims + 8);
	}
}

static void bytes_count_not_rows(void **state)
{
	struct stkd_share gate = {.weight = 1}, small = gate, large = gate;
	struct noted n[] = {
		{.name = 'g', .task = {.nrows = 1, .share = &gate}},
		{.name = 's', .task = {.nrows = 300, .row_bytes = 60 << 10, .share = &small}},
		{.name = 'l', .task = {.nrows = 300, .row_bytes = 252 << 10, .share = &large}}};
	char notes[1024] = "";

	(void)state;
	run_noted(n, STK_ARRAY_SIZE(n), notes);
	/* A claim of either costs four more: 64 and 256. */
	assert_in_range(count_notes(notes + 1, 200, 'l'), 39, 41);
}

static void a_huge_batch_does_not_delay_a_small_one_of_another_share(void **state)
{
	struct stkd_share gate = {.weight = 1}, huge = gate, small = gate;
	struct noted n[] = {
		{.name = 'g', .task = {.nrows = 1, .share = &gate}},
		{.name = 'h', .task = {.nrows = 900, .row_bytes = 1 << 18, .share = &huge}},
		{.name = 'h', .task = {.nrows = 50, .row_bytes = 1 << 18, .share = &huge}},
		{.name = 's', .task = {.nrows = 8, .row_bytes = 1 << 12, .share = &small}}};
	char notes[1024] = "";

	(void)state;
	run_noted(n, STK_ARRAY_SIZE(n), notes);
	/* It came last, and all of it costs less than one claim of the other one. */
	assert_int_equal(count_notes(notes, 10, 's'), 8);
}

static void who_was_idle_takes_no_more_than_its_turn(void **state)
{
	struct stkd_share gate = {.weight = 1}, busy = gate, idle = gate;
	struct noted first[] = {
		{.name = 'g', .task = {.nrows = 1, .share = &gate}},
		{.name = 'b', .task = {.nrows = 100, .row_bytes = 1 << 18, .share = &busy}}};
	struct noted then[] = {
		{.name = 'g', .task = {.nrows = 1, .share = &gate}},
		{.name = 'b', .task = {.nrows = 100, .row_bytes = 1 << 18, .share = &busy}},
		{.name = 'i', .task = {.nrows = 100, .row_bytes = 1 << 18, .share = &idle}}};
	char notes[1024] = "";

	(void)state;
	run_noted(first, STK_ARRAY_SIZE(first), notes);
	/* The pool is a new one: as if this share had come to the other one late. */
	gate.taken = busy.taken;
	memset(notes, 0, sizeof(notes));
	run_noted(then, STK_ARRAY_SIZE(then), notes);
	for (size_t claims = 2; claims <= 200; claims += 2)
		assert_in_range(count_notes(notes + 1, claims, 'i'), claims / 2 - 1,
				claims / 2 + 1);
}

static void wait_at_gate(struct stkd_task *task, uint32_t first, uint32_t n)
{
	struct noted *noted = (struct noted *)task;

	(void)n;
	if (first == 0)
		sem_post(noted->finished); /* begun */
	sem_wait(noted->gate);
}

static void *open_gate(void *gate)
{
	usleep(20000);
	for (int i = 0; i < 3; i++)
		sem_post(gate);
	return NULL;
}

static void free_finishes_all_that_was_submitted(void **state)
{
	struct stkd_pool *pool = new_pool(1);
	char notes[8] = "";
	sem_t gate, begun, finished;
	pthread_t thread;
	struct stkd_share share = {.weight = 1}, strange = share;
	struct noted running = {
		.gate = &gate,
		.finished = &begun,
		.task = {.nrows = 3,
			 .range_rows = 1,
			 .run = wait_at_gate,
			 .done = post_noted,
			 .share = &share},
	};
	struct noted waiting = {
		.name = 'w',
		.notes = notes,
		.finished = &finished,
		.task = {.nrows = 1,
			 .range_rows = 1,
			 .run = note_range,
			 .done = post_noted,
			 .share = &share},
	};
	struct noted stranger = waiting;
	int value;

	(void)state;
	stranger.task.share = &strange;
	sem_init(&gate, 0, 0);
	sem_init(&begun, 0, 0);
	sem_init(&finished, 0, 0);
	stkd_pool_submit(pool, &running.task);
	sem_wait(&begun);
	stkd_pool_submit(pool, &waiting.task);
	stkd_pool_submit(pool, &stranger.task);
	/* The gate opens only when the pool ends already, or nearly so. */
	assert_int_equal(pthread_create(&thread, NULL, open_gate, &gate), 0);
	stkd_pool_free(pool);
	pthread_join(thread, NULL);
	sem_getvalue(&begun, &value);
	assert_int_equal(value, 1); /* its done() */
	sem_getvalue(&finished, &value);
	assert_int_equal(value, 2);
	sem_destroy(&gate);
	sem_destroy(&begun);
	sem_destroy(&finished);
}

struct seen {
	struct stkd_task task;
	sem_t *finished;
	char name[16];
	cpu_set_t cpus;
	sigset_t blocked;
};

static void look_around(struct stkd_task *task, uint32_t first, uint32_t n)
{
	struct seen *seen = (struct seen *)task;

	(void)first;
	(void)n;
	pthread_getname_np(pthread_self(), seen->name, sizeof(seen->name));
	sched_getaffinity(0, sizeof(seen->cpus), &seen->cpus);
	pthread_sigmask(SIG_SETMASK, NULL, &seen->blocked);
}

static void post_seen(struct stkd_task *task)
{
	sem_post(((struct seen *)task)->finished);
}

static void workers_are_named_pinned_and_deaf_to_all_signals_but_faults(void **state)
{
	struct stkd_share share = {.weight = 1};
	sem_t finished;
	struct seen seen = {
		.task = {.nrows = 1,
			 .range_rows = 1,
			 .run = look_around,
			 .done = post_seen,
			 .share = &share},
		.finished = &finished,
	};
	struct stkd_pool *pool = NULL;
	cpu_set_t ours, one;
	sigset_t before, after;
	int cpu = 0;

	(void)state;
	sem_init(&finished, 0, 0);
	assert_int_equal(sched_getaffinity(0, sizeof(ours), &ours), 0);
	while (!CPU_ISSET(cpu, &ours))
		cpu++;
	CPU_ZERO(&one);
	CPU_SET(cpu, &one);
	pthread_sigmask(SIG_SETMASK, NULL, &before);
	assert_int_equal(stkd_pool_new(1, &one, "a-long-pool-name", &pool, NULL), 0);
	pthread_sigmask(SIG_SETMASK, NULL, &after);
	assert_int_equal(sigismember(&before, SIGTERM), sigismember(&after, SIGTERM));
	stkd_pool_submit(pool, &seen.task);
	sem_wait(&finished);
	stkd_pool_free(pool);
	assert_string_equal(seen.name, "a-long-pool-0");
	assert_true(CPU_EQUAL(&seen.cpus, &one));
	assert_int_equal(sigismember(&seen.blocked, SIGTERM), 1);
	assert_int_equal(sigismember(&seen.blocked, SIGCHLD), 1);
	assert_int_equal(sigismember(&seen.blocked, SIGBUS), 0);
	assert_int_equal(sigismember(&seen.blocked, SIGSEGV), 0);
	sem_destroy(&finished);
}

static void a_set_of_absent_cores_is_no_error(void **state)
{
	struct stkd_pool *pool = NULL;
	cpu_set_t none;

	(void)state;
	CPU_ZERO(&none);
	CPU_SET(CPU_SETSIZE - 1, &none);
	assert_int_equal(stkd_pool_new(1, &none, "absent", &pool, NULL), 0);
	stkd_pool_free(pool);
}

static void idle_workers_take_no_time(void **state)
{
	struct stkd_pool *pool = new_pool(8);
	struct timespec before, after;

	(void)state;
	usleep(20000);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	usleep(100000);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	assert_true((after.tv_sec - before.tv_sec) * 1000000000L + after.tv_nsec - before.tv_nsec <
		    10000000L);
	stkd_pool_free(pool);
}

static void a_pool_that_cannot_start_says_how_far_it_came(void **state)
{
	struct rlimit saved, low;
	struct stkd_pool *pool = NULL;
	struct stk_err err = {.code = 0};
	int r;

	(void)state;
#ifdef SANITIZED
	print_message("skipped: sanitizers need the address space that this limits\n");
	skip();
#endif
	getrlimit(RLIMIT_AS, &saved);
	low = (struct rlimit){.rlim_cur = 256 << 20, .rlim_max = saved.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
	r = stkd_pool_new(200, NULL, "many", &pool, &err);
	setrlimit(RLIMIT_AS, &saved);
	assert_int_equal(r, -11 /* EAGAIN */);
	assert_null(pool);
	assert_non_null(strstr(err.text, "of 200 threads"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_row_of_every_task_runs_once),
		cmocka_unit_test(done_may_free_its_task),
		cmocka_unit_test(a_task_without_rows_is_done_on_a_worker),
		cmocka_unit_test(shares_take_turns_and_their_tasks_keep_their_order),
		cmocka_unit_test(weights_one_and_three_share_rows_one_to_three),
		cmocka_unit_test(bytes_count_not_rows),
		cmocka_unit_test(a_huge_batch_does_not_delay_a_small_one_of_another_share),
		cmocka_unit_test(who_was_idle_takes_no_more_than_its_turn),
		cmocka_unit_test(free_finishes_all_that_was_submitted),
		cmocka_unit_test(workers_are_named_pinned_and_deaf_to_all_signals_but_faults),
		cmocka_unit_test(a_set_of_absent_cores_is_no_error),
		cmocka_unit_test(idle_workers_take_no_time),
		cmocka_unit_test(a_pool_that_cannot_start_says_how_far_it_came),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
