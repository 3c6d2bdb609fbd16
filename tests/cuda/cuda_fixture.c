/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/cuda/cuda_fixture.h"

static void on_warning(void *data, const char *text)
{
	struct fixture *f = data;
	struct stk_cuda_info info = {.size = sizeof(info)};

	if (f->cuda) /* it may ask back */
		assert_int_equal(stk_cuda_info(f->cuda, &info), 0);
	f->warnings++;
	snprintf(f->warning, sizeof(f->warning), "%s", text);
}

void open_client(struct fixture *f)
{
	char error[1024] = "";

	if (stk_client_open(&f->opts, &f->client, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

void open_cuda(struct fixture *f)
{
	char error[1024] = "";

	if (stk_cuda_open(f->client, &f->cuda_opts, &f->cuda, error, sizeof(error)) < 0)
		fail_msg("%s", error);
}

int set_up_client(void **state)
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

int set_up(void **state)
{
	struct fixture *f;

	set_up_client(state);
	f = *state;
	open_cuda(f);
	assert_int_equal(cudaStreamCreateWithFlags(&f->stream, 1), 0);
	return 0;
}

void close_all(struct fixture *f)
{
	f->cuda = stk_cuda_close(f->cuda);
	f->client = stk_client_close(f->client);
}

int tear_down(void **state)
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
unsigned drain(struct fixture *f)
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

void publish(struct fixture *f)
{
	assert_true(f->published - f->drained < FAKE_SLOTS);
	fake_publish(&f->daemon, (uint32_t)(f->published % FAKE_SLOTS), 0, f->published);
	f->published++;
}

struct stk_cuda_batch *next_batch(struct fixture *f)
{
	struct stk_cuda_batch *batch = NULL;
	int r = stk_cuda_next(f->cuda, 5000, f->stream, &batch);

	if (r)
		fail_msg("next: %d: %s", r, stk_cuda_error(f->cuda));
	return batch;
}

int look(struct fixture *f)
{
	struct stk_cuda_batch *batch;

	return stk_cuda_next(f->cuda, 0, f->stream, &batch);
}

uint64_t step_of(const struct stk_cuda_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};

	assert_int_equal(stk_cuda_batch_info(batch, &info), 0);
	return info.step;
}

/* A kernel that reads the batch on the device. */

void check_kernel(void *arg)
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

void launch_check(struct fixture *f, const struct stk_cuda_batch *batch, struct check *check)
{
	struct stk_tensor t;

	assert_int_equal(stk_cuda_batch_tensor(batch, "ids", &t), 0);
	check->ids = t.data;
	check->step = step_of(batch);
	standin_launch(f->stream, check_kernel, check);
}

void settle(struct fixture *f)
{
	assert_int_equal(cudaStreamSynchronize(f->stream), 0);
}

/* Kernels that wait until they are let go. */
sem_t gate;

void gate_kernel(void *arg)
{
	(void)arg;
	sem_wait(&gate);
}
