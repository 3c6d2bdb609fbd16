/* SPDX-License-Identifier: Apache-2.0 */
/* What others cannot do to a client: forked children, other clients and threads, hostile memory. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/client_fixture.h"

static void batches_outlive_their_client(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	struct stk_tensor t;
	int fds;

	fake_publish(&f->daemon, 0, 0, 9);
	batch = next_batch(f);
	f->client = stk_client_close(f->client);
	while (atomic_load(&f->daemon.conn) >= 0)
		usleep(1000);
	fds = fake_count("fd");
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	assert_string_equal(t.name, "ids");
	assert_int_equal(((const int32_t *)t.data)[0], 9000);
	assert_int_equal(step_of(batch), 9);
	stk_batch_release(batch);
	assert_int_equal(fake_count("fd"), fds); /* kept batches hold no descriptor */
}

static void replicas_cannot_write_into_each_others_batches(void **state)
{
	struct fixture *f = *state;
	struct stk_tensor t;
	struct stk_batch *batch;
	int status;
	pid_t pid;

	f->daemon.replicas = 2;
	f->opts.replicas = 2;
	f->opts.job = "j";
	open_client(f);
	fake_publish(&f->daemon, 0, 0, 0);
	batch = next_batch(f);
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	pid = fork();
	if (!pid) {
		signal(SIGSEGV, SIG_DFL);
		*(volatile int32_t *)t.data = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	/* A sanitizer turns the signal into an exit status of its own. */
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	stk_batch_release(batch);
}

static int child(struct fixture *f, struct stk_batch *held)
{
	struct stk_tensor t;
	struct stk_batch *batch;

	if (stk_client_next(f->client, 0, &batch) != -ECHILD)
		return 1;
	if (stk_batch_tensor(held, "ids", &t) < 0 || ((const int32_t *)t.data)[0] != 0)
		return 2;
	if (stk_client_seek(f->client, NULL, 0) != -ECHILD || stk_client_fd(f->client) != -ECHILD)
		return 3;
	stk_batch_release(held);
	f->client = stk_client_close(f->client);
	return 0;
}

static void a_forked_child_reads_but_does_not_disturb_the_parent(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held;
	uint32_t slot, index;
	int status;
	pid_t pid;

	fake_publish(&f->daemon, 0, 0, 0);
	fake_publish(&f->daemon, 1, 0, 1);
	held = next_batch(f);
	pid = fork();
	if (!pid)
		_exit(child(f, held));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_EMPTY);
	assert_true(atomic_load(&f->daemon.conn) >= 0);
	stk_batch_release(next_batch(f));
	stk_batch_release(held);
	assert_int_equal(stk_ring_drain(&f->daemon.drain, &slot, &index), STK_RING_GOT);
}

static void a_forked_child_does_not_keep_the_seat(void **state)
{
	struct fixture *f = *state;
	pid_t pid = fork();

	if (!pid) {
		pause();
		_exit(0);
	}
	f->client = stk_client_close(f->client);
	for (int i = 0; i < 500 && atomic_load(&f->daemon.conn) >= 0; i++)
		usleep(2000);
	assert_int_equal(atomic_load(&f->daemon.conn), -1);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* Publishes a batch whose descriptor was changed by one assignment; next() has to refuse it. */
#define REFUSED(change)                                                                            \
	do {                                                                                       \
		struct stk_batch *batch_;                                                          \
		struct stk_shm_desc *d;                                                            \
		struct stk_shm_field *field;                                                       \
		open_client(f);                                                                    \
		d = fake_fill(&f->daemon, 0, 0, 0, FAKE_ROWS);                                     \
		field = (struct stk_shm_field *)(d + 1);                                           \
		(void)field;                                                                       \
		change;                                                                            \
		fake_entry(&f->daemon, STK_SHM_BATCH, 0, 0, 0);                                    \
		assert_int_equal(stk_client_next(f->client, 0, &batch_), -EPROTO);                 \
		assert_int_equal(stk_client_next(f->client, 0, &batch_), -EPROTO);                 \
		f->client = stk_client_close(f->client);                                           \
	} while (0)

static void damaged_descriptors_are_errors_and_never_a_crash(void **state)
{
	struct fixture *f = *state;

	REFUSED(d->slot = 3);
	REFUSED(d->era = 1);
	REFUSED(d->shape_class = 1);
	REFUSED(d->nids = UINT32_MAX);
	REFUSED(d->ids_off = FAKE_SLOT_SIZE);
	REFUSED(d->cursor_size = UINT32_MAX);
	REFUSED(d->extent_size = UINT64_MAX);
	REFUSED(field[0].offset = FAKE_SLOT_SIZE);
	REFUSED(field[0].size = 8); /* smaller than the shape says */
	REFUSED(field[0].lead[0] = UINT32_MAX);
	REFUSED(field[1].lead[0] = 4);
	REFUSED(field[1].nlead = 7);
}

static void damaged_entries_are_errors_and_never_a_crash(void **state)
{
	static const struct stk_shm_entry entries[] = {
		{.kind = STK_SHM_BATCH, .slot = FAKE_SLOTS},
		{.kind = STK_SHM_BATCH, .slot = STK_SHM_NO_SLOT},
		{.kind = 0},
		{.kind = 77},
		{.kind = UINT32_MAX},
		{.kind = STK_SHM_EPOCH_END, .era = 5},
	};
	struct fixture *f = *state;
	struct stk_batch *batch;

	for (size_t i = 0; i < STK_ARRAY_SIZE(entries); i++) {
		open_client(f);
		stk_ring_publish(&f->daemon.pub, &entries[i]);
		assert_int_equal(stk_client_next(f->client, 0, &batch), -EPROTO);
		assert_true(stk_client_error(f->client)[0]);
		f->client = stk_client_close(f->client);
	}
}

static void a_slot_that_is_still_borrowed_cannot_be_lent_again(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *held, *batch;

	fake_publish(&f->daemon, 0, 0, 0);
	held = next_batch(f);
	fake_publish(&f->daemon, 0, 0, 1);
	assert_int_equal(stk_client_next(f->client, 0, &batch), -EPROTO);
	stk_batch_release(held);
}

static void *release_all(void *data)
{
	struct stk_batch **batches = data;

	for (int i = 0; i < 2; i++)
		stk_batch_release(batches[i]);
	return NULL;
}

static void several_threads_may_release_at_once(void **state)
{
	struct fixture *f = *state;
	uint32_t slot, index, seen;

	for (uint64_t round = 0; round < 50; round++) {
		struct stk_batch *batches[FAKE_SLOTS];
		pthread_t threads[2];

		for (uint32_t i = 0; i < FAKE_SLOTS; i++)
			fake_publish(&f->daemon, i, 0, round * FAKE_SLOTS + i);
		for (uint32_t i = 0; i < FAKE_SLOTS; i++)
			batches[i] = next_batch(f);
		for (int i = 0; i < 2; i++)
			pthread_create(&threads[i], NULL, release_all, batches + 2 * i);
		for (int i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		seen = 0;
		while (stk_ring_drain(&f->daemon.drain, &slot, &index) == STK_RING_GOT)
			seen |= 1u << slot;
		assert_int_equal(seen, (1u << FAKE_SLOTS) - 1);
	}
}

static void two_clients_of_one_process_do_not_mix(void **state)
{
	struct fixture *f = *state;
	struct fixture other = {0};
	struct stk_batch *batch;

	fake_start(&other.daemon);
	other.opts = f->opts;
	other.opts.socket = other.daemon.socket;
	open_client(&other);
	fake_publish(&f->daemon, 0, 0, 1);
	fake_publish(&other.daemon, 0, 0, 2);
	batch = next_batch(&other);
	assert_int_equal(step_of(batch), 2);
	stk_batch_release(batch);
	stk_client_close(other.client);
	fake_stop(&other.daemon);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 1);
	stk_batch_release(batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(batches_outlive_their_client),
		CLOSED(replicas_cannot_write_into_each_others_batches),
		TEST(a_forked_child_reads_but_does_not_disturb_the_parent),
		TEST(a_forked_child_does_not_keep_the_seat),
		CLOSED(damaged_descriptors_are_errors_and_never_a_crash),
		CLOSED(damaged_entries_are_errors_and_never_a_crash),
		TEST(a_slot_that_is_still_borrowed_cannot_be_lent_again),
		TEST(several_threads_may_release_at_once),
		TEST(two_clients_of_one_process_do_not_mix),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
