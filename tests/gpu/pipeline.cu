/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stoker on a device: every word of an epoch checked there, bandwidth against memory that the runtime
 * page-locked itself, what a trainer waits for, graphs, a soak. Two threads where said, else one.
 *
 *   pipeline --write FILE SAMPLES        the data; needs no device
 *   pipeline DEVICE FILE [PART ...]
 */
#include "gpu.h"

#include <map>
#include <utility>

#include <stoker_cuda.h>

#define WORDS   16384u /* of a sample: 64 KiB */
#define STEP_US 8000.0

static int device;
static const char *path;
static cudaStream_t stream; /* of the trainer */

static __host__ __device__ inline uint32_t word_of(uint64_t sample, uint32_t i)
{
	return ((uint32_t)sample * 2654435761u + i * 40503u) & 0x7fffffffu;
}

/* The data: a field x of WORDS words, and a ragged field t of one token, for the planner. */

static void put_array(FILE *f, uint32_t n, bool offsets)
{
	for (uint64_t i = 0; i < n + (offsets ? 1u : 0u); i++) {
		uint32_t token = (uint32_t)i + 1;

		NEED(fwrite(offsets ? (void *)&i : (void *)&token, offsets ? 8 : 4, 1, f) == 1);
	}
}

static int write_data(const char *file, uint32_t n)
{
	unsigned long x = (unsigned long)n * WORDS * 4, o = x + 8ul * (n + 1), t = o + 4ul * n;
	std::vector<uint32_t> sample(WORDS);
	char header[1024];
	FILE *f = fopen(file, "wb");
	uint64_t size;

	NEED(f);
	snprintf(header, sizeof(header),
		 "{\"__metadata__\":{\"stoker\":\"ragged=values+offsets;version=1\"},"
		 "\"x\":{\"dtype\":\"I32\",\"shape\":[%u,%u],\"data_offsets\":[0,%lu]},"
		 "\"t.offsets\":{\"dtype\":\"I64\",\"shape\":[%u],\"data_offsets\":[%lu,%lu]},"
		 "\"t.values\":{\"dtype\":\"I32\",\"shape\":[%u],\"data_offsets\":[%lu,%lu]}}",
		 n, WORDS, x, n + 1, x, o, n, o, t);
	while (strlen(header) % 8)
		strcat(header, " ");
	size = strlen(header);
	NEED(fwrite(&size, 8, 1, f) == 1 && fwrite(header, size, 1, f) == 1);
	for (uint32_t s = 0; s < n; s++) {
		for (uint32_t i = 0; i < WORDS; i++)
			sample[i] = word_of(s, i);
		NEED(fwrite(sample.data(), WORDS * 4, 1, f) == 1);
	}
	put_array(f, n, true);
	put_array(f, n, false);
	NEED(fclose(f) == 0);
	return 0;
}

/* Checking on the device. */

static unsigned long long *bad; /* on the device */
static uint64_t *ids;           /* of the batch being checked, on the device */
static uint64_t *ids_host;      /* page-locked, for far more batches than can be under way */

#define IDS_MAX     256u
#define IDS_BATCHES 256u

/* What the batch says of itself is gone with it, and a copy may still be reading. */
static void send_ids(const struct stk_batch_info *info)
{
	static unsigned turn;
	uint64_t *from = ids_host + turn++ % IDS_BATCHES * IDS_MAX;

	NEED(info->nids <= IDS_MAX);
	memcpy(from, info->sample_ids, info->nids * 8);
	CUDA(cudaMemcpyAsync(ids, from, info->nids * 8, cudaMemcpyHostToDevice, stream));
}

static __global__ void check_words(const uint32_t *x, const uint64_t *ids, uint32_t rows,
				   unsigned long long *bad)
{
	size_t n = (size_t)rows * WORDS;

	for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
	     i += (size_t)gridDim.x * blockDim.x)
		if (ids[i / WORDS] != STK_ROW_EMPTY &&
		    x[i] != word_of(ids[i / WORDS], (uint32_t)(i % WORDS)))
			atomicAdd(bad, 1ull);
}

static unsigned long long count_bad()
{
	unsigned long long n;

	CUDA(cudaDeviceSynchronize());
	CUDA(cudaMemcpy(&n, bad, sizeof(n), cudaMemcpyDeviceToHost));
	CUDA(cudaMemset(bad, 0, sizeof(n)));
	return n;
}

/* Clients. */

struct feed {
	struct stk_client *client;
	struct stk_cuda *cuda;
};

static struct feed open_feed(unsigned rows, unsigned epochs, uint32_t flags)
{
	static unsigned serial;
	struct stk_cuda_device where = {};
	struct stk_client_opts opts = {};
	struct stk_cuda_opts cuda = {};
	char a[32], b[32], job[32], error[1024] = "";
	struct feed feed = {};

	snprintf(a, sizeof(a), "rows=%u", rows);
	snprintf(b, sizeof(b), "epochs=%u", epochs);
	snprintf(job, sizeof(job), "gpu-%u", serial++);
	const char *keys[] = {a, b, "group=fixed", "length=t", "fields=[{name: x}]", NULL};
	where.size = sizeof(where);
	if (stk_cuda_device(device, &where, error, sizeof(error)) < 0)
		goto failed;
	opts.size = sizeof(opts);
	opts.path = path;
	opts.keys = keys;
	opts.job = job;
	opts.pci = where.pci;
	opts.host_node = where.host_node;
	if (stk_client_open(&opts, &feed.client, error, sizeof(error)) < 0)
		goto failed;
	cuda.size = sizeof(cuda);
	cuda.device = device;
	cuda.flags = flags;
	if (stk_cuda_open(feed.client, &cuda, &feed.cuda, error, sizeof(error)) < 0)
		goto failed;
	return feed;
failed:
	give_up("cannot open: %s", error);
}

static struct stk_cuda_info info_of(const struct feed *feed)
{
	struct stk_cuda_info info = {};

	info.size = sizeof(info);
	stk_cuda_info(feed->cuda, &info);
	return info;
}

static void close_feed(struct feed *feed)
{
	CUDA(cudaDeviceSynchronize());
	stk_cuda_close(feed->cuda);
	stk_client_close(feed->client);
}

/* The next batch over ends of epochs; NULL at the end of the stream. */
static struct stk_cuda_batch *next(struct feed *feed)
{
	struct stk_cuda_batch *batch;
	int r;

	do
		r = stk_cuda_next(feed->cuda, 60000, stream, &batch);
	while (r == STK_EPOCH_END);
	if (r == STK_STREAM_END)
		return NULL;
	if (r)
		give_up("next: %d: %s", r, stk_cuda_error(feed->cuda));
	return batch;
}

static void check(struct stk_cuda_batch *batch)
{
	struct stk_batch_info info = {};
	struct stk_tensor x;

	info.size = sizeof(info);
	stk_cuda_batch_info(batch, &info);
	NEED(stk_cuda_batch_tensor(batch, "x", &x) == 0);
	send_ids(&info);
	LAUNCH(check_words, 256, 256, stream, (const uint32_t *)x.data, ids, info.rows, bad);
	CUDA(cudaGetLastError());
}

static void epoch(uint32_t flags, const char *what)
{
	struct feed feed = open_feed(16, 1, flags);
	struct stk_cuda_batch *batch;
	struct stk_cuda_info info;
	unsigned long long wrong;

	while ((batch = next(&feed))) {
		check(batch);
		NEED(stk_cuda_release(batch, stream) == 0);
	}
	wrong = count_bad();
	info = info_of(&feed);
	row(what, !wrong && (flags || info.memory == STK_CUDA_MEMORY_REGISTERED),
	    "%lu batches of 1 MiB, %llu wrong words%s%s", (unsigned long)info.batches, wrong,
	    info.reason[0] ? ": " : "", info.reason);
	close_feed(&feed);
}

/* Bandwidth: copies from a slot in place, and from the runtime's own page-locked memory. */

static double copies_gbs(void *dst, const void *src, size_t size)
{
	int rounds = (int)std::max(2 * GIB / size / quick(), 2ul);
	double start;

	CUDA(cudaMemcpyAsync(dst, src, size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	start = now_s();
	for (int i = 0; i < rounds; i++)
		CUDA(cudaMemcpyAsync(dst, src, size, cudaMemcpyHostToDevice, stream));
	CUDA(cudaStreamSynchronize(stream));
	return size * (double)rounds / (now_s() - start) * 1e-9;
}

static void bandwidth(unsigned rows)
{
	struct feed feed = open_feed(rows, 1, STK_CUDA_HOST);
	size_t size = rows * WORDS * 4ul;
	std::vector<double> ours, theirs;
	struct stk_batch_info info = {};
	struct stk_batch *batch;
	void *pinned, *dst;
	char what[64];
	double ratio;

	NEED(stk_cuda_next_host(feed.cuda, 60000, &batch) == 0);
	info.size = sizeof(info);
	stk_batch_info(batch, &info);
	CUDA(cudaHostAlloc(&pinned, size, cudaHostAllocPortable));
	memset(pinned, 1, size);
	CUDA(cudaMalloc(&dst, size));
	for (int i = 0; i < 5; i++) {
		ours.push_back(copies_gbs(dst, info.data, size));
		theirs.push_back(copies_gbs(dst, pinned, size));
	}
	ratio = at(ours, 0.5) / at(theirs, 0.5);
	snprintf(what, sizeof(what), "bandwidth, batches of %u MiB", rows / 16);
	figure("in_place_gbs", at(ours, 0.5));
	figure("host_alloc_gbs", at(theirs, 0.5));
	figure("ratio", ratio);
	row(what, in_time(ratio >= 0.95), "%.1f GB/s in place, %.1f cudaHostAlloc: %.1f %%",
	    at(ours, 0.5), at(theirs, 0.5), 100 * ratio);
	NEED(stk_cuda_release_host(feed.cuda, batch, NULL, 0) == 0);
	CUDA(cudaFree(dst));
	CUDA(cudaFreeHost(pinned));
	close_feed(&feed);
}

/* A trainer whose step takes STEP_US on the device; runs ahead of it by at most two steps. */

struct steps {
	double per_step_us;
	std::vector<double> ahead_us, late_us; /* host time of next() */
	struct stk_cuda_info info;
};

static void throttle(cudaEvent_t *events, unsigned i)
{
	CUDA(cudaEventRecord(events[i % 2], stream));
	if (i)
		CUDA(cudaEventSynchronize(events[(i - 1) % 2]));
}

static struct steps train(struct feed *feed, unsigned n)
{
	cudaEvent_t events[2];
	struct steps s = {};
	uint64_t ahead = 0;
	double start = 0;

	for (cudaEvent_t &e : events)
		CUDA(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
	for (unsigned i = 0; i < n + 10; i++) {
		struct stk_cuda_batch *batch = NULL;

		if (i == 10) { /* warm, and the daemon is ahead */
			CUDA(cudaStreamSynchronize(stream));
			start = now_s();
		}
		if (feed) {
			double t = now_s();

			batch = next(feed);
			t = (now_s() - t) * 1e6;
			s.info = info_of(feed);
			if (i >= 10)
				(s.info.ahead > ahead ? s.ahead_us : s.late_us).push_back(t);
			ahead = s.info.ahead;
		}
		LAUNCH(busy, 1, 1, stream, (unsigned long long)(STEP_US * 1e3));
		if (feed)
			NEED(stk_cuda_release(batch, stream) == 0);
		throttle(events, i);
	}
	CUDA(cudaStreamSynchronize(stream));
	s.per_step_us = (now_s() - start) / n * 1e6;
	for (cudaEvent_t &e : events)
		CUDA(cudaEventDestroy(e));
	return s;
}

static void training()
{
	const unsigned rows = 64, n = 200 / quick() + 10;
	struct feed feed = open_feed(rows, 0, 0);
	double bare, stall, copy_us, size = rows * WORDS * 4.0;
	struct steps s;
	void *pinned, *dst;

	CUDA(cudaHostAlloc(&pinned, (size_t)size, 0));
	CUDA(cudaMalloc(&dst, (size_t)size));
	copy_us = size / (copies_gbs(dst, pinned, (size_t)size) * 1e3);
	bare = train(NULL, n).per_step_us;
	s = train(&feed, n);
	bare = std::min(bare, train(NULL, n).per_step_us);
	stall = s.per_step_us - bare;
	figure("alone_us", bare);
	figure("fed_us", s.per_step_us);
	row("step of a trainer, 4 MiB batches", true, "%.1f us alone, %.1f us fed: %+.1f us", bare,
	    s.per_step_us, stall);
	row("stall per step", in_time(stall < 0.01 * bare), "%.2f %% of the step",
	    100 * stall / bare);
	row("copies overlapped with the step's kernel", true, "%.0f %% of %.0f us each",
	    100 * std::max(0.0, std::min(1.0, 1 - stall / copy_us)), copy_us);
	figure("p50_us", at(s.ahead_us, 0.5));
	figure("p99_us", at(s.ahead_us, 0.99));
	row("next(), copy issued ahead", in_time(at(s.ahead_us, 0.5) < 2),
	    "%zu calls: p50 %.2f us, p99 %.2f us", s.ahead_us.size(), at(s.ahead_us, 0.5),
	    at(s.ahead_us, 0.99));
	figure("p50_us", at(s.late_us, 0.5));
	figure("p99_us", at(s.late_us, 0.99));
	row("next(), copy issued in the call",
	    in_time(s.late_us.empty() || at(s.late_us, 0.5) < 10),
	    "%zu calls: p50 %.2f us, p99 %.2f us", s.late_us.size(), at(s.late_us, 0.5),
	    at(s.late_us, 0.99));
	row("copies ahead, copies behind a late reader", true, "%lu and %lu of %lu",
	    (unsigned long)s.info.ahead, (unsigned long)s.info.lagging,
	    (unsigned long)s.info.batches);
	CUDA(cudaFree(dst));
	CUDA(cudaFreeHost(pinned));
	close_feed(&feed);
}

/* How long a host slot is away: from next() that copies into an idle pipeline to its return. */
static void turnaround()
{
	struct feed feed = open_feed(64, 0, STK_CUDA_HOST);
	std::vector<double> us;
	struct stk_batch *batch;
	void *dst;

	CUDA(cudaMalloc(&dst, 64 * WORDS * 4ul));
	for (int i = 0; i < 100; i++) {
		struct stk_batch_info info = {};
		void *streams[] = {stream};
		double start;
		int r;

		do
			r = stk_cuda_next_host(feed.cuda, 60000, &batch);
		while (r == STK_EPOCH_END);
		NEED(r == 0);
		info.size = sizeof(info);
		stk_batch_info(batch, &info);
		start = now_s();
		CUDA(cudaMemcpyAsync(dst, info.data, info.data_size, cudaMemcpyHostToDevice,
				     stream));
		NEED(stk_cuda_release_host(feed.cuda, batch, streams, 1) == 0);
		while (info_of(&feed).in_flight)
			stk_cuda_poll(feed.cuda);
		us.push_back((now_s() - start) * 1e6);
	}
	figure("p50_us", at(us, 0.5));
	figure("p99_us", at(us, 0.99));
	row("host slot turnaround, 4 MiB", true, "p50 %.0f us, p99 %.0f us", at(us, 0.5),
	    at(us, 0.99));
	CUDA(cudaFree(dst));
	close_feed(&feed);
}

/* A graph for each (device slot, rows), captured when first seen and replayed afterwards. */
static void graphs()
{
	std::map<std::pair<uint32_t, uint32_t>, cudaGraphExec_t> known;
	struct feed feed = open_feed(16, 2, 0);
	struct stk_cuda_batch *batch;
	unsigned long replays = 0;
	unsigned long long wrong;

	while ((batch = next(&feed))) {
		struct stk_batch_info info = {};
		struct stk_tensor x;

		info.size = sizeof(info);
		stk_cuda_batch_info(batch, &info);
		NEED(stk_cuda_batch_tensor(batch, "x", &x) == 0);
		cudaGraphExec_t &graph = known[{stk_cuda_batch_slot(batch), info.rows}];
		if (!graph) {
			cudaGraph_t captured;

			CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
			LAUNCH(check_words, 256, 256, stream, (const uint32_t *)x.data, ids,
			       info.rows, bad);
			CUDA(cudaStreamEndCapture(stream, &captured));
			CUDA(cudaGraphInstantiate(&graph, captured, 0));
			CUDA(cudaGraphDestroy(captured));
		} else {
			replays++;
		}
		send_ids(&info);
		CUDA(cudaGraphLaunch(graph, stream));
		NEED(stk_cuda_release(batch, stream) == 0);
	}
	wrong = count_bad();
	for (auto &entry : known)
		CUDA(cudaGraphExecDestroy(entry.second));
	row("CUDA graphs over batches of one shape class", !wrong && replays > known.size(),
	    "%zu graphs, %lu replays, %llu wrong words", known.size(), replays, wrong);
	close_feed(&feed);
}

static void soak()
{
	struct feed feed = open_feed(256, 0, 0);
	unsigned long bytes = 0, batches = 0;
	unsigned long long wrong;
	double start = now_s();

	while (bytes < 8 * GIB / quick() && now_s() - start < 35) {
		struct stk_cuda_batch *batch = next(&feed);
		struct stk_batch_info info = {};

		info.size = sizeof(info);
		stk_cuda_batch_info(batch, &info);
		check(batch);
		bytes += info.data_size;
		batches++;
		NEED(stk_cuda_release(batch, stream) == 0);
	}
	wrong = count_bad();
	start = now_s() - start;
	figure("bytes", bytes);
	figure("gbs", bytes / start * 1e-9);
	row("soak", !wrong, "%lu batches, %.1f GiB in %.1f s, %.2f GB/s, %llu wrong words", batches,
	    bytes / (double)GIB, start, bytes / start * 1e-9, wrong);
	close_feed(&feed);
}

static void bandwidths()
{
	for (unsigned rows : {16u, 64u, 256u})
		bandwidth(rows);
}

static void epoch_in_place()
{
	epoch(0, "an epoch, each word checked on the device");
}

static void epoch_bounced()
{
	epoch(STK_CUDA_BOUNCE, "the same through pinned buffers");
}

static void epoch_pageable()
{
	epoch(STK_CUDA_PAGEABLE, "the same as pageable memory");
}

static const struct part parts[] = {
	{"epoch", 30, epoch_in_place},    {"bandwidth", 30, bandwidths},
	{"training", 30, training},       {"turnaround", 15, turnaround},
	{"graphs", 20, graphs},           {"bounce", 20, epoch_bounced},
	{"pageable", 20, epoch_pageable}, {"soak", 50, soak},
};

static void begin()
{
	need_device(device);
	CUDA(cudaSetDevice(device));
	CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	CUDA(cudaMalloc(&bad, sizeof(*bad)));
	CUDA(cudaMemset(bad, 0, sizeof(*bad)));
	CUDA(cudaMalloc(&ids, IDS_MAX * sizeof(*ids)));
	CUDA(cudaHostAlloc((void **)&ids_host, IDS_BATCHES * IDS_MAX * sizeof(*ids), 0));
	/* Kernels are loaded at their first use, which is not to be in a measurement or a graph. */
	LAUNCH(check_words, 1, 1, stream, (const uint32_t *)ids, ids, 0u, bad);
	LAUNCH(busy, 1, 1, stream, 1000ull);
	CUDA(cudaGetLastError());
	CUDA(cudaDeviceSynchronize());
}

int main(int argc, char **argv)
{
	const size_t n = sizeof(parts) / sizeof(parts[0]);

	if (argc == 4 && !strcmp(argv[1], "--write"))
		return write_data(argv[2], (uint32_t)atoi(argv[3]));
	if (argc == 2 && !strcmp(argv[1], "--parts"))
		return list_parts(parts, n);
	if (argc < 3)
		return 2;
	device = atoi(argv[1]);
	path = argv[2];
	return run_parts(begin, parts, n, argv + 3);
}
