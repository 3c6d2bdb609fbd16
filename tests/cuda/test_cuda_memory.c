/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What goes wrong around the pipeline: devices that nobody asked for, memory that cannot be
 * page-locked, each error of the runtime, lost connections, forks.
 */
#include <sys/mman.h>
#include <sys/wait.h>

#include "client/cuda/pin.h"
#include "tests/cuda/cuda_fixture.h"

/* Devices. */

static void only_the_device_asked_for_gets_a_context_and_the_current_one_stays(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_device device = {.size = sizeof(device)};
	struct stk_cuda_batch *batch;
	int current;

	assert_int_equal(stk_cuda_device(1, &device, NULL, 0), 0);
	assert_string_equal(device.pci, "0000:42:00.0");
	assert_int_equal(device.host_node, 0);
	assert_int_equal(device.runtime, 13000);
	assert_int_equal(device.attributes, STK_CUDA_ATTR_REGISTER);
	assert_false(standin_has_context(0) || standin_has_context(1));
	f->cuda_opts.device = 1;
	open_cuda(f);
	publish(f);
	assert_int_equal(stk_cuda_next(f->cuda, 1000, NULL, &batch), 0);
	assert_int_equal(stk_cuda_release(batch, NULL), 0);
	close_all(f);
	cudaGetDevice(&current);
	assert_int_equal(current, 0);
	assert_false(standin_has_context(0));
	assert_true(standin_has_context(1));
}

static void one_thread_feeds_two_devices(void **state)
{
	struct fixture *f = *state, second = {0};
	struct stk_cuda_batch *a, *b;
	void *stream;

	fake_start(&second.daemon);
	second.opts = f->opts;
	second.opts.socket = second.daemon.socket;
	second.cuda_opts = f->cuda_opts;
	second.cuda_opts.device = 1;
	second.cuda_opts.warn_data = &second;
	open_client(&second);
	open_cuda(&second);
	cudaSetDevice(1);
	assert_int_equal(cudaStreamCreateWithFlags(&stream, 1), 0);
	cudaSetDevice(0);
	second.stream = stream;
	for (int i = 0; i < 3; i++) {
		struct check check[2] = {0};

		publish(f);
		publish(&second);
		a = next_batch(f);
		b = next_batch(&second);
		launch_check(f, a, &check[0]);
		launch_check(&second, b, &check[1]);
		assert_int_equal(stk_cuda_release(a, f->stream), 0);
		assert_int_equal(stk_cuda_release(b, stream), 0);
		settle(f);
		settle(&second);
		assert_int_equal(check[0].ran + check[1].ran, 2);
		assert_int_equal(check[0].bad + check[1].bad, 0);
		while (look(f) == STK_TIMEOUT && !drain(f))
			;
		while (look(&second) == STK_TIMEOUT && !drain(&second))
			;
	}
	cudaStreamDestroy(stream);
	close_all(&second);
	fake_stop(&second.daemon);
}

static void a_per_thread_stream_needs_the_device_to_be_current(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;

	f->cuda_opts.device = 1;
	f->cuda_opts.flags = STK_CUDA_PER_THREAD;
	open_cuda(f);
	publish(f);
	assert_int_equal(stk_cuda_next(f->cuda, 0, NULL, &batch), -EINVAL);
	assert_non_null(strstr(stk_cuda_error(f->cuda), "per-thread"));
	cudaSetDevice(1);
	assert_int_equal(stk_cuda_next(f->cuda, 1000, NULL, &batch), 0);
	assert_int_equal(stk_cuda_release(batch, NULL), 0);
	publish(f);
	assert_int_equal(stk_cuda_next(f->cuda, 1000, NULL, &batch), 0);
	cudaStreamSynchronize(STK__CUDA_STREAM_PER_THREAD);
	cudaSetDevice(0);
	/* The thread's stream of the other device: no order can be had by event. */
	assert_int_equal(stk_cuda_release(batch, NULL), -EINVAL);
	assert_int_equal(standin_calls("cudaDeviceSynchronize"), 1);
}

static void a_device_that_is_not_there_is_named(void **state)
{
	struct fixture *f = *state;
	char error[512];

	f->cuda_opts.device = 2;
	assert_int_equal(stk_cuda_open(f->client, &f->cuda_opts, &f->cuda, error, sizeof(error)),
			 -ENODEV);
	assert_string_equal(error, "device 2: there are 2, counted from 0; -1 is the current one");
	standin_devices(0);
	assert_int_equal(stk_cuda_open(f->client, &f->cuda_opts, &f->cuda, error, sizeof(error)),
			 -ENODEV);
	assert_non_null(strstr(error, "cudaErrorNoDevice"));
	assert_int_equal(standin_last_error(), 0);
}

static void wrong_options_are_refused_with_value_and_range(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_opts o = f->cuda_opts;
	char error[512];

	o.depth = 65;
	assert_int_equal(stk_cuda_open(f->client, &o, &f->cuda, error, sizeof(error)), -EINVAL);
	assert_string_equal(error, "options: depth 65, 1 to 64");
	o = f->cuda_opts;
	o.flags = 0x100;
	assert_int_equal(stk_cuda_open(f->client, &o, &f->cuda, error, sizeof(error)), -EINVAL);
	o = f->cuda_opts;
	o.size = 8;
	assert_int_equal(stk_cuda_open(f->client, &o, &f->cuda, error, sizeof(error)), -EINVAL);
}

/* Memory that cannot be registered. */

#define ROUNDS 1000

static void check_fallback(struct fixture *f, enum stk_cuda_memory memory, uint64_t pageable)
{
	struct stk_cuda_info info = {.size = sizeof(info)};

	for (unsigned i = 0; i < ROUNDS; i++) {
		struct check check = {.bad = 0};
		struct stk_cuda_batch *batch;

		publish(f);
		batch = next_batch(f);
		launch_check(f, batch, &check);
		settle(f);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		assert_int_equal(check.ran == 1 && !check.bad, 1);
		for (int k = 0; k < 1000 && !drain(f); k++)
			assert_int_equal(look(f), STK_TIMEOUT);
	}
	stk_cuda_info(f->cuda, &info);
	assert_int_equal(info.memory, memory);
	assert_int_equal(standin_pageable(), pageable);
	assert_int_equal(standin_registered_bytes(), 0);
	assert_int_equal(standin_last_error(), 0);
	settle(f);
	cudaStreamDestroy(f->stream);
	f->stream = NULL;
}

static void a_refused_registration_falls_back_to_pinned_buffers_with_one_warning(void **state)
{
	static const int codes[] = {STK__CUDA_INVALID_VALUE, STK__CUDA_NO_MEMORY, 712,
				    STK__CUDA_NOT_SUPPORTED};

	for (size_t i = 0; i < STK_ARRAY_SIZE(codes); i++) {
		struct fixture *f = *state;
		struct stk_cuda_info info = {.size = sizeof(info)};

		standin_fail("cudaHostRegister", 1, 100, codes[i]);
		open_cuda(f);
		assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
		check_fallback(f, STK_CUDA_MEMORY_BOUNCE, 0);
		assert_int_equal(f->warnings, 1);
		assert_non_null(strstr(f->warning, "cudaHostRegister: cudaError"));
		assert_non_null(strstr(f->warning, "pinned buffers"));
		stk_cuda_info(f->cuda, &info);
		assert_non_null(strstr(info.reason, "cudaHostRegister"));
		tear_down(state);
		set_up_client(state);
	}
}

static void with_no_pinned_memory_at_all_copies_are_pageable_and_right(void **state)
{
	struct fixture *f = *state;

	standin_fail("cudaHostRegister", 1, 100, STK__CUDA_NO_MEMORY);
	standin_fail("cudaHostAlloc", 2, 100, STK__CUDA_NO_MEMORY);
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	check_fallback(f, STK_CUDA_MEMORY_PAGEABLE, ROUNDS);
	assert_int_equal(f->warnings, 1);
	assert_non_null(strstr(f->warning, "pageable"));
}

static void memory_that_the_caller_does_not_want_pinned_is_not(void **state)
{
	struct fixture *f = *state;

	f->cuda_opts.flags = STK_CUDA_PAGEABLE;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	check_fallback(f, STK_CUDA_MEMORY_PAGEABLE, ROUNDS);
	assert_int_equal(standin_calls("cudaHostRegister"), 0);
	assert_int_equal(f->warnings, 0);
	f->cuda = stk_cuda_close(f->cuda);
	f->cuda_opts.flags = STK_CUDA_BOUNCE;
	open_cuda(f);
	assert_int_equal(standin_calls("cudaHostRegister"), 0);
}

static void a_large_piece_that_is_refused_is_tried_in_smaller_ones(void **state)
{
	struct fixture *f = *state;

	standin_fail("cudaHostRegister", 1, 2, STK__CUDA_INVALID_VALUE);
	open_cuda(f);
	assert_int_equal(f->warnings, 0);
	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
	assert_int_equal(standin_calls("cudaHostRegister"), 2 + FAKE_SLOTS);
	assert_int_equal(standin_last_error(), 0);
}

static void half_a_registration_is_undone(void **state)
{
	struct fixture *f = *state;

	standin_fail("cudaHostRegister", 1, 2, STK__CUDA_INVALID_VALUE);
	open_cuda(f);
	close_all(f);
	open_client(f);
	/* Two of four single slots are registered when the third is refused. */
	standin_fail("cudaHostRegister", 1, 2, STK__CUDA_INVALID_VALUE);
	open_cuda(f);
	close_all(f);
	open_client(f);
	standin_fail("cudaHostRegister", 2, 100, STK__CUDA_NOT_SUPPORTED);
	open_cuda(f);
	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
}

static void shared_slots_are_registered_writable_and_read_only_again_after(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_info info = {.size = sizeof(info)};
	pid_t pid;
	int status;

	close_all(f);
	f->daemon.replicas = 2;
	f->opts.replicas = 2;
	f->opts.job = "j";
	open_client(f);
	f->cuda_opts.flags = STK_CUDA_HOST;
	open_cuda(f);
	stk_cuda_info(f->cuda, &info);
	assert_int_equal(info.memory, STK_CUDA_MEMORY_REGISTERED);
	publish(f);
	pid = fork();
	if (!pid) {
		struct stk_batch_info batch = {.size = sizeof(batch)};
		struct stk_batch *b;

		_exit(stk_cuda_next_host(f->cuda, 0, &b) == -ECHILD ? 7 : 8);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 7);
	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CYCLES 200
#else
#define CYCLES 1000
#endif

static void opening_and_closing_many_times_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	int fds = 0, maps = 0;

	for (int i = 0; i < CYCLES; i++) {
		open_cuda(f);
		close_all(f);
		assert_int_equal(standin_registered_bytes(), 0);
		open_client(f);
		if (i == 5) {
			fds = fake_count("fd");
			maps = fake_count("map_files");
		}
	}
	assert_in_range(fake_count("fd"), fds - 2, fds + 2);
	assert_in_range(fake_count("map_files"), maps - 8, maps + 8);
}

/* The registration alone, of memory that is never touched. */
static void register_sparse(uint32_t nslots, uint64_t slot_size, unsigned pieces)
{
	struct stk__session s = {.geometry = {.nslots = nslots, .slot_size = slot_size},
				 .lock = PTHREAD_MUTEX_INITIALIZER,
				 .slots_size = nslots * slot_size};
	int fd = memfd_create("sparse", MFD_CLOEXEC);
	uint64_t before = standin_calls("cudaHostRegister");
	struct stk__cuda_device *device;
	struct stk_err err;

	assert_int_equal(ftruncate(fd, (off_t)s.slots_size), 0);
	s.slots =
		mmap(NULL, s.slots_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	assert_ptr_not_equal(s.slots, MAP_FAILED);
	assert_int_equal(stk__cuda_device_new(0, &device, &err), 0);
	assert_int_equal(stk__cuda_pin(device, &s, &err), 0);
	assert_int_equal(standin_calls("cudaHostRegister") - before, pieces);
	assert_int_equal(standin_registered_bytes(), s.slots_size);
	s.pin->end(s.pin);
	assert_int_equal(standin_registered_bytes(), 0);
	stk__cuda_device_unref(device);
	munmap(s.slots, s.slots_size);
	close(fd);
}

static void pieces_are_of_whole_slots_and_at_most_a_gib(void **state)
{
	const uint64_t mib = UINT64_C(1) << 20;

	(void)state;
	register_sparse(7, 300 * mib, 3);
	register_sparse(3, 600 * mib, 3);
	register_sparse(4, 512 * mib, 2);
	register_sparse(2, 1024 * mib, 2);
	register_sparse(1000, mib, 1);
	standin_reset();
}

/* Each error in turn. */

static void every_function_that_fails_is_named_and_nothing_is_lost(void **state)
{
	static const struct {
		const char *name, *doing;
	} steps[] = {
		{"cudaMemcpyAsync", "copying epoch 0 step 0"},
		{"cudaEventRecord", "after copying epoch 0 step 0"},
		{"cudaStreamWaitEvent", "the caller's stream"},
	};
	struct fixture *f = *state;

	for (size_t i = 0; i < STK_ARRAY_SIZE(steps); i++) {
		struct check check = {.bad = 0};
		struct stk_cuda_batch *batch;

		publish(f);
		standin_fail(steps[i].name, 1, 1, 700);
		assert_int_equal(look(f), -EIO);
		if (!strstr(stk_cuda_error(f->cuda), steps[i].name) ||
		    !strstr(stk_cuda_error(f->cuda), "cudaErrorIllegalAddress"))
			fail_msg("%s", stk_cuda_error(f->cuda));
		if (i == 0)
			assert_non_null(strstr(stk_cuda_error(f->cuda), steps[i].doing));
		assert_int_equal(standin_last_error(), 0);
		batch = next_batch(f);
		assert_int_equal(step_of(batch), i);
		launch_check(f, batch, &check);
		settle(f);
		assert_int_equal(check.bad, 0);
		stk_cuda_release(batch, f->stream);
		for (int k = 0; k < 1000 && !drain(f); k++)
			assert_int_equal(look(f), STK_TIMEOUT);
	}
}

static void a_release_that_cannot_be_ordered_waits_for_the_device(void **state)
{
	struct fixture *f = *state;
	struct check check = {.usec = 20000};
	struct stk_cuda_batch *batch;

	publish(f);
	batch = next_batch(f);
	launch_check(f, batch, &check);
	standin_fail("cudaEventRecord", 1, 1, 400);
	assert_int_equal(stk_cuda_release(batch, f->stream), -EIO);
	assert_int_equal(check.ran, 1);
	assert_non_null(strstr(stk_cuda_error(f->cuda), "cudaErrorInvalidResourceHandle"));
	assert_int_equal(standin_last_error(), 0);
}

static void opening_undoes_itself_whatever_fails(void **state)
{
	static const char *const names[] = {"cudaStreamCreateWithFlags", "cudaMalloc",
					    "cudaEventCreateWithFlags", "cudaGetDeviceCount",
					    "cudaGetDevice"};
	struct fixture *f = *state;
	char error[512];

	f->cuda_opts.device = -1;
	for (size_t i = 0; i < STK_ARRAY_SIZE(names); i++)
		for (unsigned nth = 1; nth <= (i == 1 || i == 2 ? 3u : 1u); nth++) {
			int r;

			standin_fail(names[i], nth, 1, STK__CUDA_NO_MEMORY);
			r = stk_cuda_open(f->client, &f->cuda_opts, &f->cuda, error, sizeof(error));
			assert_int_equal(r, -ENOMEM);
			if (!strstr(error, names[i]) || !strstr(error, "cudaErrorMemoryAllocation"))
				fail_msg("%s", error);
			assert_int_equal(standin_last_error(), 0);
		}
}

/* After a lost connection. */

static void lose_the_connection(struct fixture *f, int device)
{
	struct stk_cuda_batch *a, *b;
	struct check check[2] = {0};

	f->opts.reconnect_ms = 5000;
	f->cuda_opts.device = device;
	close_all(f);
	open_client(f);
	open_cuda(f);
	cudaSetDevice(device);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	cudaSetDevice(0);
	standin_delay_us(150000);
	publish(f);
	a = next_batch(f);
	launch_check(f, a, &check[0]);
	fake_hang_up(&f->daemon);
	f->drained = 1;
	assert_int_equal(look(f), STK_TIMEOUT);
	/* The copy of the first reads the old mapping, which is still there. */
	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
	publish(f);
	b = next_batch(f);
	assert_int_equal(step_of(b), 1);
	launch_check(f, b, &check[1]);
	settle(f);
	assert_int_equal(check[0].ran + check[1].ran, 2);
	assert_int_equal(check[0].bad + check[1].bad, 0);
	stk_cuda_release(a, f->stream);
	stk_cuda_release(b, f->stream);
	for (int i = 0; i < 1000 && standin_registered_bytes() != FAKE_SLOTS * FAKE_SLOT_SIZE; i++)
		look(f);
	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
	assert_int_equal(standin_calls("cudaHostRegister"), 2);
	assert_int_equal(f->warnings, 0);
}

static void an_old_session_stays_registered_until_its_last_batch_is_back(void **state)
{
	lose_the_connection(*state, 0);
}

static void so_does_one_of_a_device_that_is_not_current(void **state)
{
	lose_the_connection(*state, 1);
}

static void new_memory_that_cannot_be_registered_is_told_by_next(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_info info = {.size = sizeof(info)};
	struct stk_cuda_batch *batch;

	f->opts.reconnect_ms = 5000;
	close_all(f);
	open_client(f);
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	fake_hang_up(&f->daemon);
	assert_int_equal(look(f), STK_TIMEOUT);
	standin_fail("cudaHostRegister", 1, 100, STK__CUDA_NO_MEMORY);
	publish(f);
	batch = next_batch(f);
	assert_int_equal(f->warnings, 1);
	stk_cuda_info(f->cuda, &info);
	assert_int_equal(info.memory, STK_CUDA_MEMORY_BOUNCE);
	stk_cuda_release(batch, f->stream);
	settle(f);
}

static void a_forked_child_is_told_and_leaves_cuda_alone(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	uint64_t calls;
	int status;
	pid_t pid;

	publish(f);
	batch = next_batch(f);
	settle(f);
	calls = standin_calls("cudaHostUnregister");
	pid = fork();
	if (!pid) {
		struct stk_cuda_batch *b;

		if (stk_cuda_next(f->cuda, 0, f->stream, &b) != -ECHILD ||
		    stk_cuda_release(batch, f->stream) != -ECHILD)
			_exit(1);
		stk_cuda_close(f->cuda);
		stk_client_close(f->client);
		_exit(standin_calls("cudaHostUnregister") == calls ? 7 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 7);
	stk_cuda_release(batch, f->stream);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		CLIENT(only_the_device_asked_for_gets_a_context_and_the_current_one_stays),
		WITH(one_thread_feeds_two_devices),
		CLIENT(a_per_thread_stream_needs_the_device_to_be_current),
		CLIENT(a_device_that_is_not_there_is_named),
		CLIENT(wrong_options_are_refused_with_value_and_range),
		CLIENT(a_refused_registration_falls_back_to_pinned_buffers_with_one_warning),
		CLIENT(with_no_pinned_memory_at_all_copies_are_pageable_and_right),
		CLIENT(memory_that_the_caller_does_not_want_pinned_is_not),
		CLIENT(a_large_piece_that_is_refused_is_tried_in_smaller_ones),
		CLIENT(half_a_registration_is_undone),
		cmocka_unit_test(pieces_are_of_whole_slots_and_at_most_a_gib),
		CLIENT(shared_slots_are_registered_writable_and_read_only_again_after),
		CLIENT(opening_and_closing_many_times_leaves_nothing),
		WITH(every_function_that_fails_is_named_and_nothing_is_lost),
		WITH(a_release_that_cannot_be_ordered_waits_for_the_device),
		CLIENT(opening_undoes_itself_whatever_fails),
		CLIENT(an_old_session_stays_registered_until_its_last_batch_is_back),
		CLIENT(so_does_one_of_a_device_that_is_not_current),
		CLIENT(new_memory_that_cannot_be_registered_is_told_by_next),
		WITH(a_forked_child_is_told_and_leaves_cuda_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
