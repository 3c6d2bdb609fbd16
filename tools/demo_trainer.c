/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A trainer rank of tools/demo: takes batches as a trainer would, with the public header alone,
 * looks at every byte of them, and writes what it got: "sample ID LENGTH HASH" for each row and
 * "figure NAME VALUE" at the end. One thread.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "client/stoker.h"

#define LATENCIES_MAX (1u << 20)
#define BUSY_S        200e-6
#define IGNORED       INT64_C(-100) /* label of a padded token */

struct trainer {
	struct stk_client_opts opts;
	struct stk_client *client;
	FILE *out;
	uint64_t step_us; /* a step takes this long */
	double seconds; /* 0: one epoch; else whole epochs until so much time has gone, data unread */
	uint8_t *bytes; /* of one row */
	uint64_t room;
	/* Figures. */
	uint64_t samples, real, padded, batches, epochs;
	uint32_t *latency_ns;
	uint64_t nlatencies, waits;
	double first_batch_s, run_s;
};

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static int fail(const char *what, uint64_t sample, uint32_t column)
{
	fprintf(stderr, "demo_trainer: sample %" PRIu64 ", column %" PRIu32 ": %s\n", sample,
		column, what);
	return -EBADMSG;
}

struct row {
	const int32_t *ids;
	const int64_t *labels;
	const uint8_t *mask;
	uint64_t sample;
	uint32_t length, width;
};

/* Real tokens are bytes, the same in ids and labels, and marked; all the rest is padding. */
static int check_row(struct trainer *t, const struct row *r)
{
	if (r->length > r->width || r->length > t->room)
		return fail("longer than its row", r->sample, r->length);
	for (uint32_t i = 0; i < r->length; i++) {
		if (r->ids[i] < 0 || r->ids[i] > 255 || r->labels[i] != r->ids[i])
			return fail("a token is no byte, or its label is another", r->sample, i);
		if (r->mask[i] != 1)
			return fail("a token is not marked", r->sample, i);
		t->bytes[i] = (uint8_t)r->ids[i];
	}
	for (uint32_t i = r->length; i < r->width; i++)
		if (r->ids[i] != 0 || r->labels[i] != IGNORED || r->mask[i] != 0)
			return fail("padding is not 0, -100, 0", r->sample, i);
	if (r->sample != STK_ROW_EMPTY)
		fprintf(t->out, "sample %" PRIu64 " %" PRIu32 " %016" PRIx64 "\n", r->sample,
			r->length, (uint64_t)XXH3_64bits(t->bytes, r->length));
	else if (r->length)
		return fail("a masked row has tokens", r->sample, 0);
	return 0;
}

static int tensor(const struct stk_batch *batch, const char *name, uint32_t element,
		  const struct stk_batch_info *info, const void **ret)
{
	struct stk_tensor t;
	int r = stk_batch_tensor(batch, name, &t);

	if (r < 0 || t.element != element || t.ndim != 2 || t.shape[0] != info->rows ||
	    t.shape[1] != info->width) {
		fprintf(stderr, "demo_trainer: tensor %s is not as asked for\n", name);
		return r < 0 ? r : -EBADMSG;
	}
	*ret = t.data;
	return 0;
}

static int check_batch(struct trainer *t, const struct stk_batch *batch,
		       const struct stk_batch_info *info)
{
	const void *ids, *labels, *mask;
	uint64_t real = 0;
	int r;

	r = tensor(batch, "input_ids", STK_I32, info, &ids);
	if (r == 0)
		r = tensor(batch, "labels", STK_I64, info, &labels);
	if (r == 0)
		r = tensor(batch, "attention_mask", STK_BOOL, info, &mask);
	for (uint32_t i = 0; r == 0 && i < info->rows; i++) {
		uint64_t start = (uint64_t)i * info->width;

		r = check_row(t, &(struct row){
					 .ids = (const int32_t *)ids + start,
					 .labels = (const int64_t *)labels + start,
					 .mask = (const uint8_t *)mask + start,
					 .sample = info->sample_ids[i],
					 .length = info->lengths[i],
					 .width = info->width,
				 });
		real += info->lengths[i];
	}
	if (r == 0 && (real != info->real_tokens ||
		       info->padded_tokens != info->rows * (uint64_t)info->width))
		return fail("the batch's counts of tokens are wrong", 0, 0);
	return r;
}

static int take(struct trainer *t, struct stk_batch *batch)
{
	struct stk_batch_info info = {.size = sizeof(info)};
	int r = stk_batch_info(batch, &info);

	if (r < 0)
		return r;
	t->batches++;
	t->samples += info.rows_real;
	t->real += info.real_tokens;
	t->padded += info.padded_tokens;
	return t->seconds > 0 ? 0 : check_batch(t, batch, &info);
}

/* A trainer at work: asleep while the device computes, then busy for a moment. */
static void train_until(double end)
{
	double rest = end - now() - BUSY_S;

	if (rest > 0)
		nanosleep(&(struct timespec){.tv_nsec = (long)(rest * 1e9)}, NULL);
	while (now() < end)
		;
}

/* The next batch. A call that finds it ready is timed, one that has to wait is counted. */
static int next(struct trainer *t, struct stk_batch **ret)
{
	double start = now(), took;
	int r = stk_client_next(t->client, 0, ret);

	took = now() - start;
	if (r == 0 && t->nlatencies < LATENCIES_MAX)
		t->latency_ns[t->nlatencies++] = (uint32_t)(took < 4 ? took * 1e9 : 4e9);
	if (r != STK_TIMEOUT)
		return r;
	t->waits++;
	return stk_client_next(t->client, -1, ret);
}

/* One batch, and the step that trains it. Positive: an outcome of next(). */
static int step(struct trainer *t)
{
	struct stk_batch *batch;
	double start = now();
	int r = next(t, &batch);

	if (r < 0)
		fprintf(stderr, "demo_trainer: next: %s\n", stk_client_error(t->client));
	if (r != 0)
		return r;
	r = take(t, batch);
	train_until(start + (double)t->step_us * 1e-6);
	stk_batch_release(batch);
	return r;
}

static int train(struct trainer *t, double opened)
{
	double start = now();
	int r;

	do {
		r = step(t);
		if (t->batches == 1 && r == 0 && !t->first_batch_s)
			t->first_batch_s = now() - opened;
		t->epochs += r == STK_EPOCH_END;
	} while (r == 0 || (r == STK_EPOCH_END && t->seconds > 0 && now() - start < t->seconds));
	t->run_s = now() - start;
	return r < 0 ? r : 0;
}

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static uint32_t percentile(const struct trainer *t, unsigned percent)
{
	return t->nlatencies ? t->latency_ns[(t->nlatencies - 1) * percent / 100] : 0;
}

static void write_figures(struct trainer *t)
{
	struct stk_client_info info = {.size = sizeof(info)};

	qsort(t->latency_ns, t->nlatencies, sizeof(*t->latency_ns), compare);
	stk_client_info(t->client, &info);
	fprintf(t->out,
		"figure samples %" PRIu64 "\nfigure real_tokens %" PRIu64
		"\nfigure padded_tokens %" PRIu64 "\nfigure batches %" PRIu64
		"\nfigure epochs %" PRIu64 "\n",
		t->samples, t->real, t->padded, t->batches, t->epochs);
	fprintf(t->out,
		"figure waits %" PRIu64 "\nfigure next_p50_ns %" PRIu32
		"\nfigure next_p99_ns %" PRIu32 "\nfigure first_batch_ms %.1f\nfigure run_s %.6f\n",
		t->waits, percentile(t, 50), percentile(t, 99), t->first_batch_s * 1e3, t->run_s);
	fprintf(t->out,
		"figure slots %" PRIu32 "\nfigure slot_bytes %" PRIu64 "\nfigure promoted %" PRIu64
		"\n",
		info.slots, info.slot_size, info.promoted);
}

static int usage(void)
{
	fprintf(stderr,
		"usage: demo_trainer --socket PATH --path SHARDS --job NAME --rank R --world W\n"
		"                    --out FILE [--step-us N] [--seconds S] KEY=VALUE ...\n");
	return 2;
}

static bool parse(struct trainer *t, int argc, char **argv)
{
	static const struct option options[] = {
		{"socket", required_argument, NULL, 's'},
		{"path", required_argument, NULL, 'p'},
		{"job", required_argument, NULL, 'j'},
		{"rank", required_argument, NULL, 'r'},
		{"world", required_argument, NULL, 'w'},
		{"out", required_argument, NULL, 'o'},
		{"step-us", required_argument, NULL, 'u'},
		{"seconds", required_argument, NULL, 't'},
		{0},
	};
	const char *out = NULL;
	int c;

	t->opts.size = sizeof(t->opts);
	t->opts.daemon = STK_DAEMON_SYSTEM;
	while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (c) {
		case 's':
			t->opts.socket = optarg;
			break;
		case 'p':
			t->opts.path = optarg;
			break;
		case 'j':
			t->opts.job = optarg;
			break;
		case 'r':
			t->opts.rank = (uint32_t)atoi(optarg);
			break;
		case 'w':
			t->opts.world = (uint32_t)atoi(optarg);
			break;
		case 'o':
			out = optarg;
			break;
		case 'u':
			t->step_us = strtoull(optarg, NULL, 10);
			break;
		case 't':
			t->seconds = atof(optarg);
			break;
		default:
			return false;
		}
	}
	t->opts.keys = (const char *const *)argv + optind;
	if (!t->opts.socket || !t->opts.path || !t->opts.job || !out || t->step_us >= 1000000)
		return false;
	t->out = fopen(out, "w");
	if (!t->out)
		fprintf(stderr, "demo_trainer: %s: %s\n", out, strerror(errno));
	return t->out;
}

static int room_for_rows(struct trainer *t)
{
	struct stk_shape shapes[256];
	int n = stk_client_shapes(t->client, shapes, 256);

	for (int i = 0; i < n && i < 256; i++)
		if (shapes[i].width_max > t->room)
			t->room = shapes[i].width_max;
	t->bytes = malloc(t->room + 1);
	t->latency_ns = malloc(LATENCIES_MAX * sizeof(*t->latency_ns));
	return n < 0 ? n : t->bytes && t->latency_ns ? 0 : -ENOMEM;
}

int main(int argc, char **argv)
{
	struct trainer t = {0};
	char error[1024] = "";
	double opened = now();
	int r;

	if (!parse(&t, argc, argv))
		return usage();
	r = stk_client_open(&t.opts, &t.client, error, sizeof(error));
	if (r < 0) {
		fprintf(stderr, "demo_trainer: open: %s\n", error);
		return 1;
	}
	r = room_for_rows(&t);
	if (r == 0)
		r = train(&t, opened);
	if (r == 0)
		write_figures(&t);
	stk_client_close(t.client);
	free(t.bytes);
	free(t.latency_ns);
	if (fclose(t.out) != 0 || r < 0) {
		fprintf(stderr, "demo_trainer: %s\n", strerror(r < 0 ? -r : errno));
		return 1;
	}
	return 0;
}
