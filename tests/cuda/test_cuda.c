/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pipeline against the stand-in runtime: order, what is given back when, the calls it makes. A
 * program that does what CUDA forbids is ended there.
 */
#include <pthread.h>

#include "tests/cuda/cuda_fixture.h"

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

static void lists_of_packed_rows_outlive_the_host_slot(void **state)
{
	struct fixture *f = *state;
	struct stk_batch_info info = {.size = sizeof(info)};
	struct stk_cuda_batch *batch;
	struct stk_shm_desc *d = fake_fill(&f->daemon, 0, 0, 0, FAKE_ROWS);
	uint32_t *lists = (uint32_t *)(f->daemon.slots + 2048);

	d->row_first_off = 2048;
	d->from_off = 2048 + 4 * (FAKE_ROWS + 1);
	for (uint32_t i = 0; i < 2 * FAKE_ROWS + 1; i++)
		lists[i] = i;
	fake_entry(&f->daemon, STK_SHM_BATCH, 0, 0, 0);
	f->published++;
	batch = next_batch(f);
	settle(f);
	for (int k = 0; k < 1000 && !drain(f); k++) /* which overwrites the slot */
		assert_int_equal(look(f), STK_TIMEOUT);
	assert_int_equal(stk_cuda_batch_info(batch, &info), 0);
	assert_int_equal(info.sample_ids[FAKE_ROWS - 1], FAKE_ROWS - 1);
	assert_int_equal(info.lengths[FAKE_ROWS - 1], FAKE_ROWS);
	assert_int_equal(info.row_first[FAKE_ROWS], FAKE_ROWS);
	assert_int_equal(info.segment_from[0], FAKE_ROWS + 1);
	assert_int_equal(info.segment_from[FAKE_ROWS - 1], 2 * FAKE_ROWS);
	stk_cuda_release(batch, f->stream);
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

static void a_whole_life_leaves_an_error_of_the_trainers_pending(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;

	publish(f);
	batch = next_batch(f);
	settle(f);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	settle(f);
	assert_int_equal(cudaSetDevice(7), 101); /* not ours */
	close_all(f);
	assert_int_equal(standin_last_error(), 101);
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(batches_arrive_on_the_device_in_order_with_their_shapes),
		WITH(lists_of_packed_rows_outlive_the_host_slot),
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
		WITH(a_whole_life_leaves_an_error_of_the_trainers_pending),
		CLIENT(a_host_batch_goes_back_when_the_streams_that_read_it_are_done),
		WITH(batches_may_be_released_on_another_thread),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
