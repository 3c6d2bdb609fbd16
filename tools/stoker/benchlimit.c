/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/stoker/benchlimit.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "daemon/assemble/assembly.h"
#include "daemon/assemble/kernels.h"
#include "daemon/plan/plan.h"
#include "daemon/shard/guard.h"
#include "tools/stoker/bareloop.h"

#define SAMPLES_MAX   (UINT64_C(32) << 20) /* a bare loop looks its rows up in a table of all */
#define ROWS_MAX      (UINT64_C(4) << 20)  /* of the batches that are gone through in turn */
#define HEADER_MAX    UINT64_C(100000000)
#define TURN_S        0.003
#define CLOCK_BATCHES 4  /* a thread's own clock is a system call */
#define CHECKED       16 /* batches that are compared before anything is measured */

struct batch {
	struct stkd_recipe recipe;
	struct stkd_layout layout;
	uint64_t real_tokens;
	uint64_t offsets[BARE_FIELDS_MAX];
};

struct benchlimit {
	struct stk_spec *spec;
	struct stkd_dataset *dataset;
	struct stkd_plan *plan;
	struct stkd_assembly *assembly;
	struct bareloop loop;
	uint64_t *starts[BARE_FIELDS_MAX]; /* by field of the dataset; where its rows lie */
	struct batch *batches;
	uint64_t *ids;
	size_t nbatches, next;
	uint8_t *slots;
	uint64_t slot_size;
	uint32_t nslots;
};

static double clock_s(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct benchlimit *benchlimit_free(struct benchlimit *limit)
{
	if (!limit)
		return NULL;
	if (limit->slots)
		munmap(limit->slots, limit->slot_size * limit->nslots);
	for (size_t i = 0; i < BARE_FIELDS_MAX; i++)
		free(limit->starts[i]);
	free(limit->batches);
	free(limit->ids);
	stkd_assembly_free(limit->assembly);
	stkd_plan_free(limit->plan);
	stkd_dataset_free(limit->dataset);
	stk_spec_free(limit->spec);
	free(limit);
	return NULL;
}

static int parse_spec(struct benchlimit *limit, const char *schema, struct stk_err *err)
{
	_cleanup_(stk_tree_freep) struct stk_tree *tree = NULL;
	json_t *json = json_loads(schema, 0, NULL), *spec = json_object_get(json, "spec");
	int r = spec ? stk_tree_from_json("spec", spec, &tree, err)
		     : stk_err_set(err, -EPROTO, "the schema has no spec");

	json_decref(json);
	if (r == 0)
		r = stk_spec_parse(NULL, tree, &limit->spec, err);
	if (r == 0 && limit->spec->ndata != 1)
		r = stk_err_set(err, -ENOTSUP, "%zu datasets", limit->spec->ndata);
	return r;
}

static int open_parts(struct benchlimit *limit, struct stk_err *err)
{
	const struct stkd_shard_limits limits = {.header_max = HEADER_MAX};
	const struct stkd_plan_counts *counts;
	struct stkd_lengths lengths;
	int r = stkd_dataset_open(limit->spec->data[0].path, limit->spec->length, &limits, NULL,
				  &limit->dataset, err);

	if (r < 0)
		return r;
	if (limit->dataset->count > SAMPLES_MAX)
		return stk_err_set(err, -ENOTSUP, "%" PRIu64 " samples", limit->dataset->count);
	lengths = (struct stkd_lengths){limit->dataset->lengths, limit->dataset->count};
	r = stkd_plan_new(limit->spec, &lengths, 1, &limit->plan, err);
	if (r < 0)
		return r;
	counts = stkd_plan_counts(limit->plan);
	limit->loop.lengths = limit->dataset->lengths;
	limit->loop.max_length = counts->max_length;
	return stkd_assembly_new(limit->spec, limit->dataset, counts->max_length, &limit->assembly,
				 err);
}

/* Where each sample's row of a stored field lies, from the start of the one mapping. */
static int find_rows(struct benchlimit *limit, uint32_t stored, struct stk_err *err)
{
	const struct stkd_dataset *dataset = limit->dataset;
	const uint8_t *base = dataset->shards[0]->map;
	const uint16_t field = (uint16_t)stored;

	if (limit->starts[stored])
		return 0;
	limit->starts[stored] = calloc(dataset->count + 1, sizeof(uint64_t));
	if (!limit->starts[stored])
		return stk_err_set(err, -ENOMEM, "no memory for the rows of %" PRIu64 " samples",
				   dataset->count);
	for (uint64_t i = 0; i < dataset->count; i++) {
		struct stkd_want want = {.ids = &i, .nrows = 1, .fields = &field, .nfields = 1};
		struct stkd_extent extent;
		int r = stkd_fetch(dataset, &want, &extent, err);

		if (r < 0)
			return r;
		limit->starts[stored][i] = (uint64_t)((uintptr_t)extent.data - (uintptr_t)base);
	}
	return 0;
}

static int add_copy(struct benchlimit *limit, const struct stk_spec_field *field,
		    struct bare_field *bare, enum stk_dtype *ret_from, struct stk_err *err)
{
	int stored = stkd_dataset_field(limit->dataset, field->from ? field->from : field->name);
	const struct stkd_field *f;
	enum stk_dtype to;
	int r;

	if (stored < 0 || stored >= BARE_FIELDS_MAX)
		return stk_err_set(err, -ENOTSUP, "field \"%s\"", field->name);
	f = &limit->dataset->fields[stored];
	to = field->dtype == STK_DTYPE_NONE ? f->dtype : field->dtype;
	if (field->ops.nscale == 1 && field->ops.nbias == 1 && !f->ragged) {
		/* Of masked rows only padding is written, whatever the source. */
		bare->affine = bareloop_find_affine(f->dtype, to);
		bare->fn = bare->affine ? bareloop_find(to, to) : NULL;
		bare->scale = (float)field->ops.scale[0];
		bare->bias = (float)field->ops.bias[0];
	} else {
		bare->fn = bareloop_find(f->dtype, to);
	}
	if (!bare->fn || (f->ragged && !limit->dataset->aligned[stored]) ||
	    field->side != STK_SIDE_RIGHT)
		return stk_err_set(err, -ENOTSUP, "field \"%s\"", field->name);
	r = find_rows(limit, (uint32_t)stored, err);
	if (r < 0)
		return r;
	bare->base = limit->dataset->shards[0]->map;
	bare->start = limit->starts[stored];
	bare->ragged = f->ragged;
	bare->inner = f->inner_count;
	bare->size = stk_dtype_size(to);
	*ret_from = f->dtype;
	return stkd_value_encode(to, field->pad, field->pad_float, &bare->pad);
}

static int add_field(struct benchlimit *limit, const struct stk_spec_field *field,
		     enum stk_dtype *ret_from, struct stk_err *err)
{
	struct bare_field *bare = &limit->loop.fields[limit->loop.nfields];
	enum stk_dtype to = field->dtype == STK_DTYPE_NONE ? STK_DTYPE_BOOL : field->dtype;

	*bare = (struct bare_field){.inner = 1};
	if (field->make == STK_MAKE_COPY) {
		int r = add_copy(limit, field, bare, ret_from, err);

		if (r < 0)
			return r;
	} else if (field->make == STK_MAKE_MASK && field->side == STK_SIDE_RIGHT) {
		bare->fn = bareloop_find(STK_DTYPE_NONE, to);
		bare->ragged = true;
		bare->size = stk_dtype_size(to);
	} else {
		return stk_err_set(err, -ENOTSUP, "field \"%s\" is made", field->name);
	}
	limit->loop.nfields++;
	return 0;
}

static int add_fields(struct benchlimit *limit, struct stk_err *err)
{
	const struct stkd_dataset *dataset = limit->dataset;
	struct stk_spec_field mask = {.name = (char[]){"attention_mask"}, .make = STK_MAKE_MASK};
	enum stk_dtype from = STK_DTYPE_NONE;
	int r = 0;

	for (size_t i = 0; i < limit->spec->nfields && r == 0; i++)
		r = add_field(limit, &limit->spec->fields[i], &from, err);
	for (uint32_t i = 0; !limit->spec->fields && i < dataset->nfields && r == 0; i++) {
		struct stk_spec_field copy = {.name = dataset->fields[i].name};

		r = add_field(limit, &copy, &from, err);
	}
	if (r == 0 && !limit->spec->fields && stkd_dataset_field(dataset, mask.name) < 0)
		r = add_field(limit, &mask, &from, err);
	bareloop_fuse(&limit->loop, from);
	return r;
}

static int add_batch(struct benchlimit *limit, const struct stkd_step *step, uint64_t *rows)
{
	struct batch *batch = &limit->batches[limit->nbatches];
	struct stkd_part part;

	stkd_step_part(limit->plan, step, 0, 0, &part);
	if (*rows + part.rows_real > ROWS_MAX)
		return 1;
	batch->recipe = (struct stkd_recipe){
		.epoch = step->epoch,
		.step = step->step,
		.shape_class = step->shape_class,
		.rows = part.rows,
		.rows_real = part.rows_real,
		.width = step->width,
		.width2 = step->width2,
		.ids = limit->ids + *rows,
	};
	memcpy(batch->recipe.ids, part.ids, part.rows_real * sizeof(uint64_t));
	*rows += part.rows_real;
	if (stkd_assembly_layout(limit->assembly, part.rows, step->width, step->width2,
				 &batch->layout) < 0)
		return 1;
	for (uint32_t i = 0; i < limit->loop.nfields; i++)
		batch->offsets[i] = batch->layout.fields[i].offset;
	for (uint32_t i = 0; i < part.rows_real; i++)
		batch->real_tokens +=
			STK_MIN(stkd_plan_length(limit->plan, part.ids[i]), step->width);
	limit->nbatches++;
	return 0;
}

/* The first epoch, or as much of it as there is room for. */
static int list_batches(struct benchlimit *limit, struct stk_err *err)
{
	_cleanup_(stkd_iter_freep) struct stkd_iter *iter = NULL;
	uint64_t steps = stkd_plan_counts(limit->plan)->steps, rows = 0;
	struct stkd_step step = {0};
	int r = stkd_iter_new(limit->plan, NULL, 0, &iter, err);

	if (r < 0)
		return r;
	if (stkd_assembly_is_packed(limit->assembly))
		return stk_err_set(err, -ENOTSUP, "packed rows have no bare loop beside them");
	steps = STK_MIN(steps, ROWS_MAX);
	limit->batches = calloc(steps, sizeof(*limit->batches));
	limit->ids = calloc(ROWS_MAX, sizeof(*limit->ids));
	if (!limit->batches || !limit->ids)
		return stk_err_set(err, -ENOMEM, "no memory for %" PRIu64 " batches", steps);
	while (limit->nbatches < steps && !step.last_of_epoch) {
		r = stkd_iter_next(iter, &step);
		if (r < 0)
			return stk_err_set(err, r, "no memory for the samples of a step");
		if (add_batch(limit, &step, &rows))
			break;
	}
	return limit->nbatches ? 0 : stk_err_set(err, -ENOTSUP, "no batch that is small enough");
}

/* As a feed's: the same slots, each as large, all pages there. */
static int make_slots(struct benchlimit *limit, uint32_t slots, uint64_t slot_size,
		      struct stk_err *err)
{
	uint64_t size;
	void *map;

	limit->nslots = slots;
	limit->slot_size = slot_size;
	if (stk_mul_overflow(slot_size, (uint64_t)slots, &size))
		return stk_err_set(err, -EOVERFLOW, "slots of %" PRIu64 " bytes", slot_size);
	map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE,
		   -1, 0);
	if (map == MAP_FAILED)
		return stk_err_set(err, -errno, "slots of %" PRIu64 " bytes: %m", size);
	limit->slots = map;
	return 0;
}

/* One thread of a measurement: batches first, first + stride, ... into slots of its own. */
struct runner {
	struct benchlimit *limit;
	pthread_t thread;
	size_t first, stride, done;
	double end;
	struct {
		double bytes, real_tokens, batches, seconds;
	} sums[BENCHLIMIT_NWHATS];
	int r;
	struct stk_err err;
};

static void bareloop_batch(const struct benchlimit *limit, const struct batch *batch, uint8_t *slot)
{
	struct bare_batch bare = {
		.ids = batch->recipe.ids,
		.rows_real = batch->recipe.rows_real,
		.rows = batch->recipe.rows,
		.width = batch->recipe.width,
		.offsets = batch->offsets,
	};

	bareloop_run(&limit->loop, &bare, slot);
}

static int run_batch(struct runner *runner, enum benchlimit_what what, const struct batch *batch,
		     uint8_t *slot)
{
	struct stkd_rows_result result;

	if (what == BENCHLIMIT_ASSEMBLY)
		return stkd_assembly_rows(runner->limit->assembly, &batch->layout, &batch->recipe,
					  slot, 0, batch->recipe.rows, &result, &runner->err);
	bareloop_batch(runner->limit, batch, slot);
	return 0;
}

/* A yardstick that writes other bytes measures something else. */
static int check_bytes(struct benchlimit *limit, struct stk_err *err)
{
	_cleanup_(stk_freep) uint8_t *copy = malloc(limit->slot_size);
	struct runner runner = {.limit = limit};

	if (!copy)
		return stk_err_set(err, -ENOMEM, "no memory for a slot");
	for (size_t i = 0; i < STK_MIN(limit->nbatches, CHECKED); i++) {
		const struct batch *batch = &limit->batches[i];

		if (run_batch(&runner, BENCHLIMIT_ASSEMBLY, batch, limit->slots) < 0)
			return stk_err_set(err, runner.err.code, "%s", runner.err.text);
		memcpy(copy, limit->slots, batch->layout.extent_size);
		bareloop_batch(limit, batch, copy);
		if (memcmp(copy, limit->slots, batch->layout.extent_size))
			return stk_err_set(err, -ENOTSUP, "it would not write the same bytes");
	}
	return 0;
}

int benchlimit_new(const char *schema, uint32_t slots, uint64_t slot_size, struct benchlimit **ret,
		   struct stk_err *err)
{
	_cleanup_(benchlimit_freep) struct benchlimit *limit = calloc(1, sizeof(*limit));
	int r;

	if (!limit)
		return stk_err_set(err, -ENOMEM, "no memory");
	r = stkd_guard_install();
	if (r < 0)
		return stk_err_set(err, r, "SIGBUS: %s", strerror(-r));
	r = parse_spec(limit, schema, err);
	if (r == 0)
		r = open_parts(limit, err);
	if (r == 0)
		r = add_fields(limit, err);
	if (r == 0)
		r = list_batches(limit, err);
	if (r == 0)
		r = make_slots(limit, slots, slot_size, err);
	if (r == 0)
		r = check_bytes(limit, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(limit);
	return 0;
}

static void run_turn(struct runner *runner, enum benchlimit_what what)
{
	struct benchlimit *limit = runner->limit;
	size_t own = STK_MAX(limit->nslots / runner->stride, 1);
	double start = clock_s(CLOCK_THREAD_CPUTIME_ID), took = 0;

	while (took < TURN_S && runner->r == 0) {
		size_t n = runner->first + runner->done * runner->stride;
		const struct batch *batch = &limit->batches[n % limit->nbatches];
		size_t slot =
			(runner->first % runner->stride * own + runner->done % own) % limit->nslots;

		runner->r = run_batch(runner, what, batch, limit->slots + slot * limit->slot_size);
		runner->sums[what].bytes += (double)batch->layout.extent_size;
		runner->sums[what].real_tokens += (double)batch->real_tokens;
		runner->sums[what].batches++;
		if (++runner->done % CLOCK_BATCHES == 0)
			took = clock_s(CLOCK_THREAD_CPUTIME_ID) - start;
	}
	runner->sums[what].seconds += took;
}

static void *run(void *arg)
{
	struct runner *runner = arg;

	while (clock_s(CLOCK_MONOTONIC) < runner->end && runner->r == 0)
		for (int what = 0; what < BENCHLIMIT_NWHATS; what++)
			run_turn(runner, (enum benchlimit_what)what);
	return NULL;
}

static int join(struct runner *runners, unsigned threads, struct benchlimit_rate *rates,
		size_t *done, struct stk_err *err)
{
	int r = 0;

	for (unsigned i = 0; i < threads; i++) {
		pthread_join(runners[i].thread, NULL);
		*done += runners[i].done;
		for (int what = 0; what < BENCHLIMIT_NWHATS; what++) {
			double seconds = runners[i].sums[what].seconds;

			rates[what].bytes += runners[i].sums[what].bytes / seconds;
			rates[what].real_tokens += runners[i].sums[what].real_tokens / seconds;
			rates[what].batches += runners[i].sums[what].batches / seconds;
		}
		if (runners[i].r < 0 && r == 0) {
			r = runners[i].r;
			*err = runners[i].err;
		}
	}
	return r;
}

int benchlimit_measure(struct benchlimit *limit, unsigned threads, double seconds,
		       struct benchlimit_rate ret[BENCHLIMIT_NWHATS], struct stk_err *err)
{
	_cleanup_(stk_freep) struct runner *runners = calloc(threads, sizeof(*runners));
	unsigned started = 0;
	size_t done = 0;
	int r, failed = 0;

	if (!runners)
		return stk_err_set(err, -ENOMEM, "no memory");
	for (; started < threads && !failed; started += !failed) {
		runners[started] = (struct runner){
			.limit = limit,
			.first = limit->next + started,
			.stride = threads,
			.end = clock_s(CLOCK_MONOTONIC) + seconds,
		};
		failed = pthread_create(&runners[started].thread, NULL, run, &runners[started]);
	}
	memset(ret, 0, BENCHLIMIT_NWHATS * sizeof(ret[0]));
	r = join(runners, started, ret, &done, err);
	limit->next += done;
	return failed ? stk_err_set(err, -failed, "thread: %s", strerror(failed)) : r;
}
