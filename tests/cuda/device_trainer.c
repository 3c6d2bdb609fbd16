/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer on a device: takes batches through libstoker-cuda and prints one line for each, with a
 * hash of its tensors made by a "kernel" in stream order; or the same of host batches. Finds the
 * stand-in runtime where libstoker-cuda finds it.
 *
 *   device_trainer --socket S --job J --path P [--host] [--device N] [--depth N] [--flags N]
 *                  [--rank N --world N] [--reconnect MS] [--stop-at N] [--pair] [KEY=VALUE ...]
 *
 * --stop-at N: says "stopped" after N batches and goes on when a line comes. --pair: two replicas of
 * the rank in this process, each with a pipeline; their batches have to be alike.
 */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stoker_cuda.h>

#define STEPS_MAX 4096

struct hashed {
	uint64_t epoch, step, sum;
	uint32_t micro, n;
	struct stk_tensor tensors[64];
};

static struct hashed hashed[STEPS_MAX];
static unsigned nhashed;

static struct options {
	struct stk_client_opts client;
	struct stk_cuda_opts cuda;
	const char *const *keys;
	bool host, pair;
	unsigned stop_at;
} o = {
	.client = {.size = sizeof(o.client), .attach_timeout_ms = 20000},
	.cuda = {.size = sizeof(o.cuda)},
};

static void *(*launch)(void *stream, void (*fn)(void *), void *arg);
static int (*set_device)(int device);
static int (*synchronize)(void *stream);
static void (*check_balance)(void);
static bool (*has_context)(int device);
static uint64_t (*pageable)(void);

static void find_standin(void)
{
	static const char *const names[] = {"libcudart.so.13", "libcudart.so.12"};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		void *library = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);

		if (!library || !dlsym(library, "standin_launch"))
			continue;
		launch = (__typeof__(launch))dlsym(library, "standin_launch");
		set_device = (__typeof__(set_device))dlsym(library, "cudaSetDevice");
		synchronize = (__typeof__(synchronize))dlsym(library, "cudaStreamSynchronize");
		check_balance = (__typeof__(check_balance))dlsym(library, "standin_check_balance");
		has_context = (__typeof__(has_context))dlsym(library, "standin_has_context");
		pageable = (__typeof__(pageable))dlsym(library, "standin_pageable");
		return;
	}
	fprintf(stderr, "the runtime in this process is no stand-in\n");
	exit(3);
}

/* The kernel. */
static void hash(void *arg)
{
	struct hashed *h = arg;
	uint64_t sum = 14695981039346656037u;

	for (uint32_t i = 0; i < h->n; i++) {
		const uint8_t *p = h->tensors[i].data;

		for (uint64_t k = 0; k < h->tensors[i].size; k++)
			sum = (sum ^ p[k]) * 1099511628211u;
	}
	h->sum = sum;
}

static struct hashed *remember(const struct stk_batch_info *info, uint32_t n)
{
	struct hashed *h = &hashed[nhashed++];

	if (nhashed == STEPS_MAX)
		exit(4);
	h->epoch = info->epoch;
	h->step = info->step;
	h->micro = info->micro;
	h->n = n;
	return h;
}

static int take_host(struct stk_client *client)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	struct stk_batch *batch;
	struct hashed *h;
	int r = stk_client_next(client, 20000, &batch);

	if (r)
		return r;
	stk_batch_info(batch, &info);
	h = remember(&info, stk_batch_ntensors(batch));
	for (uint32_t i = 0; i < h->n; i++)
		stk_batch_tensor_at(batch, i, &h->tensors[i]);
	hash(h);
	stk_batch_release(batch);
	return 0;
}

static int take_device(struct stk_cuda *cuda)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	struct stk_cuda_batch *batch;
	struct hashed *h;
	int r = stk_cuda_next(cuda, 20000, NULL, &batch);

	if (r)
		return r;
	stk_cuda_batch_info(batch, &info);
	h = remember(&info, stk_cuda_batch_ntensors(batch));
	for (uint32_t i = 0; i < h->n; i++)
		stk_cuda_batch_tensor_at(batch, i, &h->tensors[i]);
	launch(NULL, hash, h);
	return stk_cuda_release(batch, NULL);
}

static void stop(void)
{
	printf("stopped\n");
	fflush(stdout);
	if (getchar() == EOF)
		exit(5);
}

/* Everything up to the end of the stream. */
static int run(struct stk_client *client, struct stk_cuda *cuda)
{
	for (unsigned n = 0;;) {
		int r = cuda ? take_device(cuda) : take_host(client);

		if (r == STK_EPOCH_END)
			continue;
		if (r == STK_STREAM_END)
			return 0;
		if (r) {
			fprintf(stderr, "next: %d: %s\n", r,
				cuda ? stk_cuda_error(cuda) : stk_client_error(client));
			return 1;
		}
		if (++n == o.stop_at)
			stop();
	}
}

static void print_info(struct stk_cuda *cuda)
{
	struct stk_cuda_info info = {.size = sizeof(info)};

	stk_cuda_info(cuda, &info);
	printf("info memory %u batches %" PRIu64 " pageable %" PRIu64 " contexts %d%d\n",
	       info.memory, info.batches, pageable(), has_context(0), has_context(1));
}

/* Both seats of the feed, in turn. Leaves the hashes of the first. */
static int run_pair(struct stk_client *client)
{
	struct stk_cuda *cuda[2] = {NULL, NULL};
	struct stk_client *second = NULL;
	char error[1024] = "";
	int r;

	o.client.replica = 1;
	r = stk_client_open(&o.client, &second, error, sizeof(error));
	if (r == 0)
		r = stk_cuda_open(client, &o.cuda, &cuda[0], error, sizeof(error));
	if (r == 0)
		r = stk_cuda_open(second, &o.cuda, &cuda[1], error, sizeof(error));
	if (r < 0)
		fprintf(stderr, "open: %d: %s\n", r, error);
	find_standin();
	while (r == 0 || r == STK_EPOCH_END) {
		r = take_device(cuda[0]);
		if (take_device(cuda[1]) != r)
			r = -EPROTO;
	}
	synchronize(NULL);
	if (r == STK_STREAM_END)
		print_info(cuda[0]);
	stk_cuda_close(cuda[1]);
	stk_cuda_close(cuda[0]);
	stk_client_close(second);
	for (unsigned i = 0; i < nhashed; i += 2) {
		if (hashed[i].sum != hashed[i + 1].sum || hashed[i].step != hashed[i + 1].step)
			return 7;
		hashed[i / 2] = hashed[i];
	}
	nhashed /= 2;
	return r == STK_STREAM_END ? 0 : 1;
}

static void print(void)
{
	for (unsigned i = 0; i < nhashed; i++)
		printf("%" PRIu64 " %" PRIu64 " %" PRIu32 " %016" PRIx64 "\n", hashed[i].epoch,
		       hashed[i].step, hashed[i].micro, hashed[i].sum);
}

static int run_on_device(struct stk_client *client)
{
	struct stk_cuda *cuda;
	char error[1024];
	int r = stk_cuda_open(client, &o.cuda, &cuda, error, sizeof(error));

	if (r < 0) {
		fprintf(stderr, "open: %d: %s\n", r, error);
		return 2;
	}
	find_standin();
	if (o.cuda.device)
		set_device(o.cuda.device); /* after the fact: no context was made meanwhile */
	r = run(client, cuda);
	synchronize(NULL);
	print_info(cuda);
	stk_cuda_close(cuda);
	return r;
}

static void parse(int argc, char **argv)
{
	static const struct option longs[] = {
		{"socket", 1, NULL, 's'},  {"job", 1, NULL, 'j'},    {"path", 1, NULL, 'p'},
		{"host", 0, NULL, 'h'},    {"device", 1, NULL, 'd'}, {"depth", 1, NULL, 'n'},
		{"flags", 1, NULL, 'f'},   {"rank", 1, NULL, 'r'},   {"world", 1, NULL, 'w'},
		{"stop-at", 1, NULL, 'a'}, {"pci", 1, NULL, 'i'},    {"reconnect", 1, NULL, 'c'},
		{"pair", 0, NULL, 'P'},    {NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "+", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			o.client.socket = optarg;
			break;
		case 'j':
			o.client.job = optarg;
			break;
		case 'p':
			o.client.path = optarg;
			break;
		case 'h':
			o.host = true;
			break;
		case 'd':
			o.cuda.device = atoi(optarg);
			break;
		case 'n':
			o.cuda.depth = (uint32_t)atoi(optarg);
			break;
		case 'f':
			o.cuda.flags = (uint32_t)atoi(optarg);
			break;
		case 'r':
			o.client.rank = (uint32_t)atoi(optarg);
			break;
		case 'w':
			o.client.world = (uint32_t)atoi(optarg);
			break;
		case 'a':
			o.stop_at = (unsigned)atoi(optarg);
			break;
		case 'i':
			o.client.pci = optarg;
			break;
		case 'P':
			o.pair = true;
			o.client.replicas = 2;
			break;
		case 'c':
			o.client.reconnect_ms = atoi(optarg);
			break;
		default:
			exit(6);
		}
	}
	o.client.keys = (const char *const *)argv + optind;
}

int main(int argc, char **argv)
{
	struct stk_client *client;
	char error[1024];
	int r;

	parse(argc, argv);
	o.client.host_node = -1;
	r = stk_client_open(&o.client, &client, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "attach: %d: %s\n", r, error);
		return 1;
	}
	r = o.host ? run(client, NULL) : o.pair ? run_pair(client) : run_on_device(client);
	stk_client_close(client);
	print();
	if (check_balance)
		check_balance();
	return r;
}
