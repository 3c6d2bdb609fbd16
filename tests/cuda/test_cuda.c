/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline against the stand-in runtime: order, what is given back when, the calls it makes,
 * each error, devices that nobody asked for. A program that does what CUDA forbids is ended there.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/cuda/pin.h"
#include "client/cuda/runtime.h"
#include "client/cuda/stoker_cuda.h"
#include "tests/cuda/standin.h"
#include "tests/unit/fake_daemon.h"

int cudaSetDevice(int device);
int cudaGetDevice(int *ret);
int cudaStreamCreateWithFlags(void **ret, unsigned flags);
int cudaStreamDestroy(void *stream);
int cudaStreamSynchronize(void *stream);
int cudaHostRegister(void *base, size_t size, unsigned flags);
int cudaHostUnregister(void *base);

struct fixture {
	struct fake_daemon daemon;
	struct stk_client_opts opts;
	struct stk_client *client;
	struct stk_cuda_opts cuda_opts;
	struct stk_cuda *cuda;
	void *stream; /* the trainer's */
	uint64_t published, drained;
	unsigned warnings;
	char warning[2048];
};

static void on_warning(void *data, const char *text)
{
	struct fixture *f = data;

	f->warnings++;
	snprintf(f->warning, sizeof(f->warning), "%s", text);
}

static void open_client(struct fixture *f)
{
	char error[1024] = "";

	if (stk_client_open(&f->opts, &f->client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static void open_cuda(struct fixture *f)
{
	char error[1024] = "";

	if (stk_cuda_open(f->client, &f->cuda_opts, &f->cuda, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

static int set_up_client(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	fake_start(&f->daemon);
	f->opts = (struct stk_client_opts){.size = sizeof(f->opts),
					   .stream = "fake",
					   .socket = f->daemon.socket,
					   .attach_timeout_ms = 5000};
	f->cuda_opts = (struct stk_cuda_opts){
		.size = sizeof(f->cuda_opts), .warn = on_warning, .warn_data = f};
	open_client(f);
	*state = f;
	return 0;
}

static int set_up(void **state)
{
	struct fixture *f;

	set_up_client(state);
	f = *state;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	return 0;
}

static void close_all(struct fixture *f)
{
	f->cuda = stk_cuda_close(f->cuda);
	f->client = stk_client_close(f->client);
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	if (f->stream) {
		cudaStreamSynchronize(f->stream);
		cudaStreamDestroy(f->stream);
	}
	close_all(f);
	fake_stop(&f->daemon);
	free(f);
	standin_reset();
	return 0;
}

/* Takes what the client gave back; returns how many slots came since the last call. */
static unsigned drain(struct fixture *f)
{
	uint32_t slot, index;
	unsigned n = 0;

	while (stk_ring_drain(&f->daemon.drain, &slot, &index) == STK_RING_GOT) {
		/* The daemon fills it again at once: a copy that still reads it would see that. */
		memset(f->daemon.slots + slot * FAKE_SLOT_SIZE, 0xEE, FAKE_SLOT_SIZE);
		n++;
	}
	f->drained += n;
	return n;
}

static void publish(struct fixture *f)
{
	assert_true(f->published - f->drained < FAKE_SLOTS);
	fake_publish(&f->daemon, (uint32_t)(f->published % FAKE_SLOTS), 0, f->published);
	f->published++;
}

static struct stk_cuda_batch *next_batch(struct fixture *f)
{
	struct stk_cuda_batch *batch = NULL;
	int r = stk_cuda_next(f->cuda, 5000, f->stream, &batch);

	if (r)
		fail_msg("next: %d: %s", r, stk_cuda_error(f->cuda));
	return batch;
}

static int look(struct fixture *f)
{
	struct stk_cuda_batch *batch;

	return stk_cuda_next(f->cuda, 0, f->stream, &batch);
}

static uint64_t step_of(const struct stk_cuda_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};

	assert_int_equal(stk_cuda_batch_info(batch, &info), 0);
	return info.step;
}

/* A kernel that reads the batch on the device. */
struct check {
	const int32_t *ids;
	uint64_t step;
	unsigned usec;
	_Atomic unsigned bad, ran;
};

static void check_kernel(void *arg)
{
	struct check *check = arg;

	if (check->usec)
		usleep(check->usec);
	for (uint32_t r = 0; r < FAKE_ROWS; r++)
		for (uint32_t i = 0; i < FAKE_WIDTH; i++)
			if (check->ids[r * FAKE_WIDTH + i] != (int32_t)(check->step * 1000 + r))
				check->bad++;
	check->ran++;
}

static void launch_check(struct fixture *f, const struct stk_cuda_batch *batch, struct check *check)
{
	struct stk_tensor t;

	assert_int_equal(stk_cuda_batch_tensor(batch, "ids", &t), 0);
	check->ids = t.data;
	check->step = step_of(batch);
	standin_launch(f->stream, check_kernel, check);
}

static void settle(struct fixture *f)
{
	assert_int_equal(cudaStreamSynchronize(f->stream), 0);
}

/* Kernels that wait until they are let go. */
static sem_t gate;

static void gate_kernel(void *arg)
{
	(void)arg;
	sem_wait(&gate);
}

static void batches_arrive_on_the_device_in_order_with_their_shapes(void **state)
{
	struct fixture *f = *state;
	struct stk_batch_info info = {.size = sizeof(info)};
	struct check check = {.bad = 0};
	struct stk_cuda_batch *batch;
	struct stk_tensor t;

	for (int i = 0; i < 3; i++)
		publish(f);
	for (uint64_t step = 0; step < 3; step++) {
		batch = next_batch(f);
		assert_int_equal(stk_cuda_batch_info(batch, &info), 0);
		assert_int_equal(info.step, step);
		assert_int_equal(info.sample_ids[2], step * 1000 + 2);
		assert_int_equal(info.lengths[2], 3);
		assert_int_equal(stk_cuda_batch_ntensors(batch), 2);
		assert_int_equal(stk_cuda_batch_tensor_at(batch, 1, &t), 0);
		assert_string_equal(t.name, "image");
		assert_int_equal(t.ndim, 3);
		assert_ptr_equal(t.data, (const uint8_t *)info.data + 512);
		assert_int_equal(stk_cuda_batch_tensor_at(batch, 2, &t), -ERANGE);
		assert_int_equal(stk_cuda_batch_tensor(batch, "labels", &t), -ENOENT);
		launch_check(f, batch, &check);
		settle(f);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	}
	assert_int_equal(check.ran, 3);
	assert_int_equal(check.bad, 0);
	assert_int_equal(look(f), STK_TIMEOUT);
}

static void slots_are_registered_once_in_place_and_unregistered_before_they_go(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(standin_registered_bytes(), FAKE_SLOTS * FAKE_SLOT_SIZE);
	assert_int_equal(standin_calls("cudaHostRegister"), 1);
	f->cuda = stk_cuda_close(f->cuda);
	open_cuda(f);
	assert_int_equal(standin_calls("cudaHostRegister"), 1);
	close_all(f);
	assert_int_equal(standin_registered_bytes(), 0);
	assert_int_equal(f->warnings, 0);
}

static void a_host_slot_goes_back_when_its_copy_is_complete_and_not_before(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	unsigned n = 0;

	standin_delay_us(30000);
	publish(f);
	batch = next_batch(f);
	assert_int_equal(drain(f), 0);
	settle(f);
	for (int i = 0; i < 1000 && !n; i++) {
		assert_int_equal(look(f), STK_TIMEOUT);
		n = drain(f);
	}
	assert_int_equal(n, 1);
	stk_cuda_release(batch, f->stream);
}

static void
each_batch_costs_one_copy_two_records_and_one_wait_and_the_host_never_waits(void **state)
{
	static const char *const never[] = {"cudaStreamSynchronize", "cudaDeviceSynchronize",
					    "cudaMalloc", "cudaHostAlloc", "cudaSetDevice"};
	struct fixture *f = *state;
	struct stk_cuda_info info = {.size = sizeof(info)};
	uint64_t before[STK_ARRAY_SIZE(never)], copies;
	struct check check[50] = {0};
	unsigned steps = STK_ARRAY_SIZE(check);

	for (size_t k = 0; k < STK_ARRAY_SIZE(never); k++)
		before[k] = standin_calls(never[k]);
	for (unsigned i = 0; i < steps; i++) {
		struct stk_cuda_batch *batch;

		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		batch = next_batch(f);
		launch_check(f, batch, &check[i]);
		/* The trainer's own waiting, so that the device keeps up. */
		for (int spin = 0; spin < 5000 && !check[i].ran; spin++)
			usleep(100);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		usleep(500);
		drain(f);
	}
	for (size_t k = 0; k < STK_ARRAY_SIZE(never); k++)
		if (standin_calls(never[k]) != before[k])
			fail_msg("%s was called", never[k]);
	stk_cuda_info(f->cuda, &info);
	assert_int_equal(info.batches, steps);
	copies = standin_calls("cudaMemcpyAsync");
	assert_in_range(copies, steps, steps + 3); /* all slots may be ahead */
	assert_int_equal(standin_calls("cudaEventRecord"), copies + steps);
	/* One more for a copy into a slot that a late step still reads. */
	assert_int_equal(standin_calls("cudaStreamWaitEvent"), steps + info.lagging);
	assert_in_range(standin_calls("cudaEventCreateWithFlags"), 4, 9);
	assert_int_equal(standin_calls("cudaHostRegister"), 1);
	assert_int_equal(standin_pageable(), 0);
	for (unsigned i = 0; i < steps; i++)
		assert_int_equal(check[i].ran == 1 && !check[i].bad, 1);
	assert_true(info.ahead > steps / 2);
}

static void a_device_slot_is_not_overwritten_while_a_slow_step_reads_it(void **state)
{
	struct fixture *f = *state;
	struct check check[40] = {0};

	for (unsigned i = 0; i < 40; i++) {
		struct stk_cuda_batch *batch;

		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		batch = next_batch(f);
		check[i].usec = i % 3 * 1500;
		launch_check(f, batch, &check[i]);
		/* The trainer runs ahead of its device. */
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		drain(f);
	}
	settle(f);
	for (unsigned i = 0; i < 40; i++) {
		assert_int_equal(check[i].ran, 1);
		assert_int_equal(check[i].bad, 0);
	}
}

static void work_on_a_second_stream_keeps_the_slot_too(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	struct check check = {.usec = 40000};
	uint32_t number;
	void *second;

	assert_int_equal(cudaStreamCreateWithFlags(&second, 1), 0);
	publish(f);
	batch = next_batch(f);
	number = stk_cuda_batch_slot(batch);
	assert_int_equal(stk_cuda_record(batch, second), 0);
	struct stk_tensor t;

	stk_cuda_batch_tensor(batch, "ids", &t);
	check.ids = t.data;
	standin_launch(second, check_kernel, &check);
	assert_int_equal(stk_cuda_record(batch, second), 0);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	for (int i = 0; i < 12; i++) {
		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		batch = next_batch(f);
		if (!check.ran)
			assert_int_not_equal(stk_cuda_batch_slot(batch), number);
		settle(f);
		stk_cuda_release(batch, f->stream);
		drain(f);
	}
	cudaStreamSynchronize(second);
	cudaStreamDestroy(second);
	assert_int_equal(check.bad, 0);
}

static void holding_every_slot_is_refused_with_the_number_and_passes(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch[3];

	for (int i = 0; i < 4; i++)
		publish(f);
	for (int i = 0; i < 3; i++)
		batch[i] = next_batch(f);
	assert_int_equal(look(f), -EBUSY);
	assert_non_null(strstr(stk_cuda_error(f->cuda), "all 3 device slots"));
	assert_int_equal(stk_cuda_release(batch[1], f->stream), 0);
	batch[1] = next_batch(f);
	assert_int_equal(step_of(batch[1]), 3);
	for (int i = 0; i < 3; i++)
		stk_cuda_release(batch[i], f->stream);
}

static void a_device_far_behind_makes_next_time_out_and_not_hang(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	int r = 0;

	sem_init(&gate, 0, 0);
	standin_launch(f->stream, gate_kernel, NULL);
	for (int i = 0; i < 20 && r == 0; i++) {
		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		r = stk_cuda_next(f->cuda, 20, f->stream, &batch);
		if (r == 0)
			assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		drain(f);
	}
	assert_int_equal(r, STK_TIMEOUT);
	sem_post(&gate);
	batch = next_batch(f);
	stk_cuda_release(batch, f->stream);
	settle(f);
}

static void epoch_ends_come_in_their_place_with_batches_copied_ahead(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;

	publish(f);
	fake_entry(&f->daemon, STK_SHM_EPOCH_END, 0, 0, 0);
	publish(f);
	publish(f);
	fake_entry(&f->daemon, STK_SHM_EPOCH_END, 0, 1, 0);
	fake_entry(&f->daemon, STK_SHM_STREAM_END, 0, 1, 0);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 0);
	stk_cuda_release(batch, f->stream);
	assert_int_equal(look(f), STK_EPOCH_END);
	for (uint64_t step = 1; step < 3; step++) {
		batch = next_batch(f);
		assert_int_equal(step_of(batch), step);
		stk_cuda_release(batch, f->stream);
	}
	assert_int_equal(look(f), STK_EPOCH_END);
	assert_int_equal(look(f), STK_STREAM_END);
	assert_int_equal(look(f), STK_STREAM_END);
	settle(f);
}

static void an_error_of_the_stream_comes_after_the_good_batches(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;

	publish(f);
	publish(f);
	strcpy((char *)f->daemon.control + f->daemon.control->error_off, "shard 7 shrank");
	fake_entry(&f->daemon, STK_SHM_ERROR, 0, 0, 0);
	for (uint64_t step = 0; step < 2; step++) {
		batch = next_batch(f);
		assert_int_equal(step_of(batch), step);
		stk_cuda_release(batch, f->stream);
	}
	assert_int_equal(look(f), -EIO);
	assert_string_equal(stk_cuda_error(f->cuda), "shard 7 shrank");
	settle(f);
}

static void the_state_is_that_of_the_batch_returned_and_not_of_those_ahead(void **state)
{
	struct fixture *f = *state;
	uint8_t ours[STK_STATE_MAX], batches[STK_STATE_MAX];
	struct stk_cuda_batch *batch;
	int n;

	for (int i = 0; i < 4; i++)
		publish(f);
	batch = next_batch(f);
	n = stk_cuda_state(f->cuda, ours, sizeof(ours));
	assert_true(n > 0);
	assert_int_equal(stk_cuda_batch_state(batch, batches, sizeof(batches)), n);
	assert_memory_equal(ours, batches, n);
	assert_int_equal(stk_cuda_state(f->cuda, ours, 3), -ENOSPC);
	stk_cuda_release(batch, f->stream);
	settle(f);
}

static void a_seek_drops_what_was_copied_ahead(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;

	standin_delay_us(10000);
	for (int i = 0; i < 3; i++)
		publish(f);
	batch = next_batch(f);
	assert_int_equal(stk_cuda_seek(f->cuda, NULL, 0), 0);
	f->published = 1003; /* slot 3, of the new era */
	f->drained = 1000;
	publish(f);
	stk_cuda_release(batch, f->stream);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 1003);
	stk_cuda_release(batch, f->stream);
	settle(f);
}

static void batches_outlive_their_pipeline_and_client(void **state)
{
	struct fixture *f = *state;
	struct check check = {.usec = 5000};
	struct stk_cuda_batch *batch;

	publish(f);
	batch = next_batch(f);
	close_all(f);
	assert_int_equal(standin_registered_bytes(), 0);
	launch_check(f, batch, &check);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	settle(f);
	assert_int_equal(check.ran, 1);
	assert_int_equal(check.bad, 0);
}

static void closing_waits_for_copies_under_way(void **state)
{
	struct fixture *f = *state;

	standin_delay_us(20000);
	publish(f);
	publish(f);
	stk_cuda_release(next_batch(f), f->stream);
	close_all(f);
}

static void a_capture_elsewhere_is_not_disturbed(void **state)
{
	struct fixture *f = *state;

	standin_capture(true);
	f->cuda = stk_cuda_close(f->cuda);
	open_cuda(f);
	for (int i = 0; i < 6; i++) {
		struct stk_cuda_batch *batch;

		publish(f);
		batch = next_batch(f);
		settle(f);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		for (int k = 0; k < 1000 && !drain(f); k++)
			assert_int_equal(look(f), STK_TIMEOUT);
	}
	close_all(f);
	assert_int_equal(standin_last_error(), 0);
}

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

#define ROUNDS 100

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

static void opening_and_closing_many_times_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	int fds = 0, maps = 0;

	for (int i = 0; i < 300; i++) {
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

/* Host batches that the trainer copies himself. */

static void a_host_batch_goes_back_when_the_streams_that_read_it_are_done(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;
	unsigned n = 0;

	f->cuda_opts.flags = STK_CUDA_HOST;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	assert_int_equal(standin_calls("cudaMalloc"), 0);
	sem_init(&gate, 0, 0);
	publish(f);
	assert_int_equal(stk_cuda_next_host(f->cuda, 1000, &batch), 0);
	standin_launch(f->stream, gate_kernel, NULL); /* stands for the copy */
	assert_int_equal(stk_cuda_release_host(f->cuda, batch, &f->stream, 1), 0);
	assert_int_equal(stk_cuda_next_host(f->cuda, 20, &batch), STK_TIMEOUT);
	assert_int_equal(drain(f), 0);
	assert_int_equal(stk_cuda_poll(f->cuda), 0);
	assert_int_equal(drain(f), 0);
	sem_post(&gate);
	settle(f);
	for (int i = 0; i < 1000 && !n; i++) {
		assert_int_equal(stk_cuda_poll(f->cuda), 0);
		n = drain(f);
	}
	assert_int_equal(n, 1);
	publish(f);
	assert_int_equal(stk_cuda_next_host(f->cuda, 1000, &batch), 0);
	assert_int_equal(stk_cuda_release_host(f->cuda, batch, NULL, 0), 0);
	assert_int_equal(drain(f), 1);
	assert_int_equal(standin_calls("cudaDeviceSynchronize"), 0);
}

/* A consumer that takes and one that gives back. */

struct pipe {
	struct fixture *f;
	sem_t ready, room;
	struct stk_cuda_batch *batches[2];
};

static void *releaser(void *data)
{
	struct pipe *p = data;

	for (unsigned i = 0; i < 40; i++) {
		sem_wait(&p->ready);
		assert_int_equal(stk_cuda_release(p->batches[i % 2], p->f->stream), 0);
		sem_post(&p->room);
	}
	return NULL;
}

static void batches_may_be_released_on_another_thread(void **state)
{
	struct fixture *f = *state;
	struct pipe p = {.f = f};
	struct check check[40] = {0};
	pthread_t thread;

	sem_init(&p.ready, 0, 0);
	sem_init(&p.room, 0, 2);
	pthread_create(&thread, NULL, releaser, &p);
	for (unsigned i = 0; i < 40; i++) {
		drain(f);
		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		sem_wait(&p.room);
		p.batches[i % 2] = next_batch(f);
		assert_int_equal(step_of(p.batches[i % 2]), i);
		launch_check(f, p.batches[i % 2], &check[i]);
		sem_post(&p.ready);
	}
	pthread_join(thread, NULL);
	settle(f);
	for (unsigned i = 0; i < 40; i++)
		assert_int_equal(check[i].ran == 1 && !check[i].bad, 1);
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

#define WITH(test)   cmocka_unit_test_setup_teardown(test, set_up, tear_down)
#define CLIENT(test) cmocka_unit_test_setup_teardown(test, set_up_client, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(batches_arrive_on_the_device_in_order_with_their_shapes),
		WITH(slots_are_registered_once_in_place_and_unregistered_before_they_go),
		WITH(a_host_slot_goes_back_when_its_copy_is_complete_and_not_before),
		WITH(each_batch_costs_one_copy_two_records_and_one_wait_and_the_host_never_waits),
		WITH(a_device_slot_is_not_overwritten_while_a_slow_step_reads_it),
		WITH(work_on_a_second_stream_keeps_the_slot_too),
		WITH(holding_every_slot_is_refused_with_the_number_and_passes),
		WITH(a_device_far_behind_makes_next_time_out_and_not_hang),
		WITH(epoch_ends_come_in_their_place_with_batches_copied_ahead),
		WITH(an_error_of_the_stream_comes_after_the_good_batches),
		WITH(the_state_is_that_of_the_batch_returned_and_not_of_those_ahead),
		WITH(a_seek_drops_what_was_copied_ahead),
		WITH(batches_outlive_their_pipeline_and_client),
		WITH(closing_waits_for_copies_under_way),
		WITH(a_capture_elsewhere_is_not_disturbed),
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
		CLIENT(a_host_batch_goes_back_when_the_streams_that_read_it_are_done),
		WITH(batches_may_be_released_on_another_thread),
		CLIENT(an_old_session_stays_registered_until_its_last_batch_is_back),
		CLIENT(so_does_one_of_a_device_that_is_not_current),
		WITH(a_forked_child_is_told_and_leaves_cuda_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
