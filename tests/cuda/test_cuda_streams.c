/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which streams wait for a batch, and which ones it is kept for: none yet, several, unknown ones, and
 * those of host batches. Runs with the main thread and the stand-in's streams.
 */
#include "tests/cuda/cuda_fixture.h"

static struct stk_cuda_batch *take(struct fixture *f, void *stream)
{
	struct stk_cuda_batch *batch = NULL;
	int r = stk_cuda_take(f->cuda, stream, &batch);

	if (r)
		fail_msg("take: %d: %s", r, stk_cuda_error(f->cuda));
	return batch;
}

static const int32_t *ids_of(const struct stk_cuda_batch *batch)
{
	struct stk_tensor t;

	assert_int_equal(stk_cuda_batch_tensor(batch, "ids", &t), 0);
	return t.data;
}

/* Batches go by until the slot with that number is written again. */
static void until_reused(struct fixture *f, uint32_t number)
{
	for (int i = 0; i < 1000; i++) {
		struct stk_cuda_batch *batch;
		bool same;

		while (f->published - f->drained < FAKE_SLOTS)
			publish(f);
		batch = next_batch(f);
		same = stk_cuda_batch_slot(batch) == number;
		settle(f);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		drain(f);
		if (same)
			return;
	}
	fail_msg("device slot %u was not used again", number);
}

static void nothing_waits_for_a_batch_taken_without_a_stream_until_one_asks(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	struct check check = {.bad = 0};

	standin_delay_us(20000);
	publish(f);
	batch = take(f, STK_CUDA_NO_STREAM);
	assert_int_equal(standin_calls("cudaStreamWaitEvent"), 0);
	assert_int_equal(stk_cuda_wait(batch, f->stream), 0);
	assert_int_equal(standin_calls("cudaStreamWaitEvent"), 1);
	launch_check(f, batch, &check);
	assert_int_equal(stk_cuda_release_after(batch, &f->stream, 1), 0);
	assert_int_equal(standin_calls("cudaMemcpyAsync"), 1);
	assert_int_equal(standin_calls("cudaEventRecord"), 2);
	settle(f);
	assert_int_equal(check.ran == 1 && !check.bad, 1);
}

static void taking_only_looks(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch, *held[3];

	assert_int_equal(stk_cuda_take(f->cuda, f->stream, &batch), STK_TIMEOUT);
	for (int i = 0; i < 4; i++)
		publish(f);
	for (unsigned i = 0; i < 3; i++) {
		held[i] = take(f, f->stream);
		assert_int_equal(step_of(held[i]), i);
	}
	assert_int_equal(stk_cuda_take(f->cuda, f->stream, &batch), -EBUSY);
	for (int i = 0; i < 3; i++)
		assert_int_equal(stk_cuda_release(held[i], f->stream), 0);
	batch = next_batch(f);
	assert_int_equal(step_of(batch), 3);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
}

static void a_batch_read_by_two_streams_is_kept_for_the_slower_one(void **state)
{
	struct fixture *f = *state;
	struct check slow = {.usec = 30000}, fast = {.usec = 0};
	struct stk_cuda_batch *batch;
	void *streams[2] = {NULL, f->stream};
	uint32_t number;

	assert_int_equal(cudaStreamCreateWithFlags(&streams[0], 1), 0);
	publish(f);
	batch = next_batch(f);
	number = stk_cuda_batch_slot(batch);
	assert_int_equal(stk_cuda_wait(batch, streams[0]), 0);
	slow.ids = ids_of(batch);
	standin_launch(streams[0], check_kernel, &slow);
	launch_check(f, batch, &fast);
	assert_int_equal(stk_cuda_release_after(batch, streams, 2), 0);
	until_reused(f, number);
	assert_int_equal(slow.ran, 1);
	assert_int_equal(slow.bad + fast.bad, 0);
	cudaStreamSynchronize(streams[0]);
	cudaStreamDestroy(streams[0]);
}

static void count(void *arg)
{
	++*(_Atomic int *)arg;
}

/* Of the stand-in itself: the pipeline uses its events again as soon as somebody waits for them. */
static void who_waits_for_an_event_waits_for_what_it_was_then(void **state)
{
	struct fixture *f = *state;
	_Atomic int ran = 0;
	int early;
	void *waits, *idle, *event;

	assert_int_equal(cudaStreamCreateWithFlags(&waits, 1), 0);
	assert_int_equal(cudaStreamCreateWithFlags(&idle, 1), 0);
	assert_int_equal(cudaEventCreateWithFlags(&event, STK__CUDA_EVENT_DISABLE_TIMING), 0);
	sem_init(&gate, 0, 0);
	standin_launch(f->stream, gate_kernel, NULL);
	assert_int_equal(cudaEventRecord(event, f->stream), 0);
	assert_int_equal(cudaStreamWaitEvent(waits, event, 0), 0);
	standin_launch(waits, count, &ran);
	assert_int_equal(cudaEventRecord(event, idle), 0);
	cudaStreamSynchronize(idle);
	usleep(20000);
	early = ran;
	sem_post(&gate);
	cudaStreamSynchronize(waits);
	assert_int_equal(early, 0);
	assert_int_equal(ran, 1);
	assert_int_equal(cudaEventQuery(event), 0);
	cudaEventDestroy(event);
	cudaStreamDestroy(waits);
	cudaStreamDestroy(idle);
}

static void a_batch_read_by_nobody_costs_no_record(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	void *none = STK_CUDA_NO_STREAM;

	publish(f);
	batch = take(f, none);
	assert_int_equal(stk_cuda_release_after(batch, NULL, 0), 0);
	publish(f);
	batch = take(f, none);
	assert_int_equal(stk_cuda_release_after(batch, &none, 1), 0);
	assert_int_equal(standin_calls("cudaEventRecord"), 2);
	assert_int_equal(standin_calls("cudaDeviceSynchronize"), 0);
}

static void a_batch_read_by_unknown_streams_is_kept_by_waiting(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch;
	struct check check = {.usec = 20000};

	publish(f);
	batch = next_batch(f);
	launch_check(f, batch, &check);
	assert_int_equal(stk_cuda_release(batch, STK_CUDA_ANY_STREAM), 0);
	assert_int_equal(check.ran == 1 && !check.bad, 1);
	assert_int_equal(standin_calls("cudaDeviceSynchronize"), 1);
}

static void waiting_that_fails_is_named_with_cudas_number(void **state)
{
	struct fixture *f = *state;
	struct stk_cuda_batch *batch, *held[3];
	char text[1024];

	publish(f);
	batch = take(f, STK_CUDA_NO_STREAM);
	standin_fail("cudaStreamWaitEvent", 1, 1, 700);
	assert_int_equal(stk_cuda_wait(batch, f->stream), -EIO);
	assert_int_equal(stk_cuda_last_error(f->cuda, text, sizeof(text)), 700);
	assert_non_null(strstr(text, "cudaStreamWaitEvent: cudaErrorIllegalAddress"));
	assert_string_equal(text, stk_cuda_error(f->cuda));
	assert_int_equal(stk_cuda_wait(batch, f->stream), 0);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	/* What is no error of CUDA has no number of its. */
	for (int i = 0; i < 3; i++) {
		publish(f);
		held[i] = next_batch(f);
	}
	assert_int_equal(look(f), -EBUSY);
	assert_int_equal(stk_cuda_last_error(f->cuda, text, sizeof(text)), 0);
	assert_non_null(strstr(text, "all 3 device slots"));
	for (int i = 0; i < 3; i++)
		assert_int_equal(stk_cuda_release(held[i], f->stream), 0);
}

/* Host batches. */

static struct stk_batch *host_batch(struct fixture *f)
{
	struct stk_batch *batch = NULL;

	publish(f);
	if (stk_cuda_take_host(f->cuda, &batch))
		fail_msg("take: %s", stk_cuda_error(f->cuda));
	return batch;
}

static void host_batches_outlive_their_pipeline_and_the_last_one_ends_it(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch[3];
	struct stk_cuda *cuda;

	f->cuda_opts.flags = STK_CUDA_HOST;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	for (int i = 0; i < 3; i++)
		batch[i] = host_batch(f);
	assert_int_equal(stk_cuda_take_host(f->cuda, &batch[0]), STK_TIMEOUT);
	cuda = f->cuda;
	sem_init(&gate, 0, 0);
	standin_launch(f->stream, gate_kernel, NULL); /* a copy from the second */
	assert_int_equal(stk_cuda_release_host(cuda, batch[0], NULL, 0), 0);
	close_all(f);
	assert_true(standin_registered_bytes() > 0);
	sem_post(&gate);
	assert_int_equal(stk_cuda_release_host(cuda, batch[1], &f->stream, 1), 0);
	assert_true(standin_registered_bytes() > 0);
	assert_int_equal(stk_cuda_release_host(cuda, batch[2], NULL, 0), 0);
	assert_int_equal(standin_registered_bytes(), 0);
}

static void a_host_batch_read_by_unknown_streams_is_kept_by_waiting(void **state)
{
	struct fixture *f = *state;
	struct check check = {.usec = 20000, .step = 0};
	void *streams[] = {STK_CUDA_NO_STREAM, STK_CUDA_ANY_STREAM};
	struct stk_tensor t;
	struct stk_batch *batch;

	f->cuda_opts.flags = STK_CUDA_HOST;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	batch = host_batch(f);
	assert_int_equal(stk_batch_tensor(batch, "ids", &t), 0);
	check.ids = t.data;
	standin_launch(f->stream, check_kernel, &check);
	assert_int_equal(stk_cuda_release_host(f->cuda, batch, streams, 2), 0);
	assert_int_equal(check.ran == 1 && !check.bad, 1);
	assert_int_equal(drain(f), 1);
}

/* Graphs that are being captured. */

static void one_slot(struct fixture *f)
{
	f->cuda = stk_cuda_close(f->cuda);
	f->cuda_opts.depth = 1;
	open_cuda(f);
}

static void what_a_capture_forbids_to_wait_for_is_waited_for_afterwards(void **state)
{
	struct fixture *f = *state;
	struct check check = {.usec = 50000};
	struct stk_cuda_batch *batch;

	one_slot(f);
	publish(f);
	batch = next_batch(f);
	launch_check(f, batch, &check);
	standin_capture(true);
	assert_int_equal(stk_cuda_release(batch, STK_CUDA_ANY_STREAM), 0);
	publish(f);
	for (int i = 0; i < 3; i++)
		assert_int_equal(look(f), STK_TIMEOUT);
	standin_capture(false);
	batch = next_batch(f);
	assert_true(check.ran == 1 && !check.bad);
	assert_int_equal(step_of(batch), 1);
	assert_int_equal(stk_cuda_release(batch, f->stream), 0);
	assert_int_equal(standin_last_error(), 0);
}

static void an_event_that_was_taken_into_a_graph_is_neither_believed_nor_waited_for(void **state)
{
	struct fixture *f = *state;
	struct check check = {.usec = 50000};
	struct stk_cuda_batch *batch;
	void *streams[2];

	one_slot(f);
	assert_int_equal(cudaStreamCreateWithFlags(&streams[1], 1), 0);
	streams[0] = f->stream;
	sem_init(&gate, 0, 0);
	for (unsigned n = 1; n <= 2; n++) { /* alone, and beside one that is not there yet */
		check.ran = 0;
		publish(f);
		batch = next_batch(f);
		launch_check(f, batch, &check);
		if (n == 2)
			standin_launch(streams[1], gate_kernel, NULL);
		standin_capture_on(f->stream, true);
		assert_int_equal(stk_cuda_release_after(batch, streams, n), 0);
		publish(f);
		assert_int_equal(look(f), STK_TIMEOUT);
		if (n == 2)
			sem_post(&gate);
		standin_capture_on(f->stream, false);
		batch = next_batch(f);
		assert_true(check.ran == 1 && !check.bad);
		assert_int_equal(stk_cuda_release(batch, f->stream), 0);
		settle(f);
		while (f->drained < f->published) {
			drain(f);
			assert_int_equal(look(f), STK_TIMEOUT);
		}
	}
	cudaStreamSynchronize(streams[1]);
	cudaStreamDestroy(streams[1]);
	assert_int_equal(standin_last_error(), 0);
}

static void a_host_batch_whose_event_went_into_a_graph_comes_back_after_the_capture(void **state)
{
	struct fixture *f = *state;
	struct stk_batch *batch;

	f->cuda_opts.flags = STK_CUDA_HOST;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	batch = host_batch(f);
	standin_capture_on(f->stream, true);
	assert_int_equal(stk_cuda_release_host(f->cuda, batch, &f->stream, 1), 0);
	assert_int_equal(stk_cuda_poll(f->cuda), 0);
	assert_int_equal(stk_cuda_take_host(f->cuda, &batch), STK_TIMEOUT);
	assert_int_equal(drain(f), 0);
	standin_capture_on(f->stream, false);
	assert_int_equal(stk_cuda_poll(f->cuda), 0);
	assert_int_equal(drain(f), 1);
	assert_int_equal(standin_last_error(), 0);
}

/* The device breaks, or the runtime is gone before us. */

static void a_broken_device_is_named_by_each_call_and_every_host_slot_comes_back(void **state)
{
	static const int codes[] = {700, STK__CUDA_UNLOADING};
	struct fixture *f = *state;

	for (size_t i = 0; i < STK_ARRAY_SIZE(codes); i++) {
		struct stk_cuda_batch *batch, *other = NULL;

		for (int k = 0; k < 3; k++)
			publish(f);
		batch = next_batch(f);
		standin_break(codes[i]);
		assert_int_equal(stk_cuda_next(f->cuda, 100, f->stream, &other), -EIO);
		if (i == 0)
			assert_non_null(strstr(stk_cuda_error(f->cuda), "cudaErrorIllegalAddress"));
		assert_int_equal(stk_cuda_poll(f->cuda), -EIO);
		assert_int_equal(stk_cuda_release(batch, f->stream), -EIO);
		f->cuda = stk_cuda_close(f->cuda);
		drain(f);
		assert_int_equal(f->drained, f->published);
		assert_int_equal(standin_last_error(), 0);
		standin_break(0);
		if (i == 0)
			open_cuda(f);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		WITH(nothing_waits_for_a_batch_taken_without_a_stream_until_one_asks),
		WITH(taking_only_looks),
		WITH(a_batch_read_by_two_streams_is_kept_for_the_slower_one),
		WITH(who_waits_for_an_event_waits_for_what_it_was_then),
		WITH(a_batch_read_by_nobody_costs_no_record),
		WITH(a_batch_read_by_unknown_streams_is_kept_by_waiting),
		WITH(waiting_that_fails_is_named_with_cudas_number),
		CLIENT(host_batches_outlive_their_pipeline_and_the_last_one_ends_it),
		CLIENT(a_host_batch_read_by_unknown_streams_is_kept_by_waiting),
		WITH(what_a_capture_forbids_to_wait_for_is_waited_for_afterwards),
		WITH(an_event_that_was_taken_into_a_graph_is_neither_believed_nor_waited_for),
		CLIENT(a_host_batch_whose_event_went_into_a_graph_comes_back_after_the_capture),
		WITH(a_broken_device_is_named_by_each_call_and_every_host_slot_comes_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
