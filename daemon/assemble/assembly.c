/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recipe and rows -> slot: looks a few rows' extents up, then writes each of their fields once.
 * Built by one thread; immutable after, workers run row ranges of it at the same time.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "daemon/assemble/transform.h"
#include "daemon/shard/guard.h"

#define LOOK_MS    20
#define AHEAD      2    /* rows from the one that is fetched to the one that is written */
#define PREFETCHED 1024 /* bytes */

/* A row as the writers see it; a masked one has no extents. */
struct row {
	const struct stkd_run *run;
	uint32_t index;
	uint64_t sample;                   /* STKD_NO_SAMPLE: masked */
	uint32_t length;                   /* of the length field, cut; 0: masked */
	const struct stkd_extent *extents; /* by column; NULL: masked */
};

int stkd_assembly_new(const struct stk_spec *spec, const struct stkd_dataset *dataset,
		      uint32_t max_length, struct stkd_assembly **ret, struct stk_err *err)
{
	_cleanup_(stkd_assembly_freep) struct stkd_assembly *assembly =
		calloc(1, sizeof(*assembly));
	int r;

	if (!assembly)
		return stk_err_set(err, -ENOMEM, "fields of a batch: no memory");
	assembly->dataset = dataset;
	assembly->max_length = max_length ? max_length : UINT32_MAX;
	assembly->seed = spec->seed;
	if (spec->on_bad_sample == STK_ON_BAD_QUARANTINE) {
		assembly->quarantine = stkd_quarantine_new();
		if (!assembly->quarantine)
			return stk_err_set(err, -ENOMEM, "fields of a batch: no memory");
	}
	r = stkd_fields_compile(assembly, spec, err);
	if (r < 0)
		return r;
	*ret = STK_STEAL(assembly);
	return 0;
}

struct stkd_assembly *stkd_assembly_free(struct stkd_assembly *assembly)
{
	if (!assembly)
		return NULL;
	for (uint32_t i = 0; i < assembly->nops; i++) {
		free(assembly->ops[i].name);
		free(assembly->ops[i].transform);
	}
	stkd_quarantine_free(assembly->quarantine);
	free(assembly);
	return NULL;
}

uint32_t stkd_assembly_nfields(const struct stkd_assembly *assembly)
{
	return assembly->nops;
}

bool stkd_assembly_is_packed(const struct stkd_assembly *assembly)
{
	return assembly->packed;
}

/* Elements of a row in a ragged field, cut to its width. */
static uint32_t elements(const struct stkd_op *op, uint32_t width, const struct row *row)
{
	uint64_t n = row->length;

	if (!op->aligned)
		n = row->extents ? row->extents[op->column].count : 0;
	return (uint32_t)STK_MIN(n, width);
}

/* Both rows of a pair; the other one is as wide. */
static void write_twins(const struct stkd_op *op, uint8_t *dst, uint8_t *slot,
			const struct row *row, uint32_t n, uint32_t width)
{
	const struct stkd_op *twin = &row->run->assembly->ops[op->twin];
	uint64_t start = row->run->layout->fields[op->twin].offset;

	op->twins(dst, slot + start + row->index * (width * twin->size),
		  row->extents ? row->extents[op->column].data : NULL, n * op->inner_count,
		  width * op->inner_count, op->pad, twin->pad);
}

/* A row in ascending order: stores that step back cost a quarter of the bandwidth. */
static void write_copy(const struct stkd_op *op, const struct stk_shm_field *field, uint8_t *slot,
		       const struct row *row)
{
	uint32_t width = op->ragged ? field->lead[1] : 1;
	uint32_t n = op->ragged ? elements(op, width, row) : row->extents != NULL;
	uint32_t before = op->left ? width - n : 0, skipped = op->shift && n;
	uint8_t *dst = slot + field->offset + row->index * (width * op->size);

	if (op->twin) {
		write_twins(op, dst, slot, row, n, width);
		return;
	}
	if (op->row) {
		op->row(dst, row->extents ? row->extents[op->column].data : NULL,
			n * op->inner_count, width * op->inner_count, op->pad);
		return;
	}
	n -= skipped;
	op->fill(dst, op->pad, before * op->inner_count);
	dst += before * op->size;
	if (n)
		stkd_run_values(row->run, op, dst, row->extents, skipped, n, row->sample);
	op->fill(dst + n * op->size, op->pad, (width - before - n) * op->inner_count);
}

static void write_mask(const struct stkd_op *op, const struct stk_shm_field *field, uint8_t *slot,
		       const struct row *row)
{
	uint32_t width = field->lead[1], n = elements(op, width, row);
	uint32_t before = op->left ? width - n : 0;
	uint8_t *dst = slot + field->offset + row->index * (width * op->size);

	if (op->row) {
		op->row(dst, NULL, n, width, 0);
		return;
	}
	op->fill(dst, 0, before);
	op->fill(dst + before * op->size, 1, n);
	op->fill(dst + (before + n) * op->size, 0, width - before - n);
}

static void write_length(const struct stkd_op *op, const struct stk_shm_field *field, uint8_t *slot,
			 const struct row *row)
{
	/* The batch's width has cut row->length already. */
	uint32_t width = op->aligned    ? UINT32_MAX
			 : op->aligned2 ? row->run->recipe->width2
					: op->width;

	op->fill(slot + field->offset + row->index * op->size, elements(op, width, row), 1);
}

static void write_sample_id(const struct stkd_op *op, const struct stk_shm_field *field,
			    uint8_t *slot, const struct row *row)
{
	static_assert(STKD_NO_SAMPLE == (uint64_t)-1, "a masked row reads as -1");
	op->fill(slot + field->offset + row->index * op->size, row->sample, 1);
}

static void write_random_key(const struct stkd_op *op, const struct stk_shm_field *field,
			     uint8_t *slot, const struct row *row)
{
	bool masked = row->sample == STKD_NO_SAMPLE;

	op->fill(slot + field->offset + row->index * op->size,
		 masked ? 0 : stkd_run_key(row->run, row->sample), 1);
}

typedef void (*write_fn)(const struct stkd_op *op, const struct stk_shm_field *field, uint8_t *slot,
			 const struct row *row);

static const write_fn writers[] = {
	[STK_MAKE_COPY] = write_copy,
	[STK_MAKE_MASK] = write_mask,
	[STK_MAKE_LENGTHS] = write_length,
	[STK_MAKE_SAMPLE_IDS] = write_sample_id,
	[STK_MAKE_RANDOM_KEY] = write_random_key,
};

static void write_row(const struct stkd_run *run, const struct row *row)
{
	uint64_t id = row->sample;
	uint32_t length = row->length;

	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		const struct stkd_op *op = &run->assembly->ops[i];

		if (!op->by_twin)
			writers[op->make](op, &run->layout->fields[i], run->slot, row);
	}
	memcpy(run->slot + run->layout->ids_off + row->index * sizeof(id), &id, sizeof(id));
	memcpy(run->slot + run->layout->lengths_off + row->index * sizeof(length), &length,
	       sizeof(length));
}

static int refuse_row(const struct stkd_run *run, uint64_t sample, uint32_t column, uint64_t found,
		      uint64_t expected, const char *unit)
{
	const struct stkd_dataset *dataset = run->assembly->dataset;
	uint64_t row;
	size_t shard;

	stkd_dataset_locate(dataset, sample, &shard, &row);
	return stk_err_set(run->err, -EBADMSG,
			   "%s: sample %" PRIu64 " (row %" PRIu64 "): field \"%s\" has %" PRIu64
			   " %s %" PRIu64 " when it was opened",
			   dataset->shards[shard]->path, sample, row,
			   dataset->fields[run->assembly->columns[column]].name, found, unit,
			   expected);
}

/* The file may have changed since its lengths were read: nothing in an extent is taken on trust. */
int stkd_run_check_extent(const struct stkd_run *run, uint64_t sample, uint32_t column,
			  const struct stkd_extent *extent)
{
	const struct stkd_dataset *dataset = run->assembly->dataset;
	uint16_t stored = run->assembly->columns[column];
	uint64_t count = 1, size;

	if (dataset->fields[stored].ragged) {
		count = extent->count;
		if (dataset->aligned[stored] || stored == dataset->length_field) {
			if (count != dataset->lengths[sample])
				return refuse_row(run, sample, column, count,
						  dataset->lengths[sample], "elements,");
		} else if (dataset->aligned2[stored]) {
			if (count != dataset->lengths2[sample])
				return refuse_row(run, sample, column, count,
						  dataset->lengths2[sample], "elements,");
		} else if (count > dataset->longest[stored]) {
			return refuse_row(run, sample, column, count, dataset->longest[stored],
					  "elements, at most");
		}
	}
	if (stk_mul_overflow(count, run->assembly->element_size[column], &size) ||
	    extent->size != size)
		return refuse_row(run, sample, column, extent->size, size, "bytes,");
	return 0;
}

/* Where a field's bytes lie in their shard. */
static uint64_t offset_in(const struct stkd_shard *shard, const struct stkd_extent *extent)
{
	uint64_t at = (uint64_t)((uintptr_t)extent->data - (uintptr_t)shard->map);

	return shard->map && at < shard->file_size ? at : STKD_NO_OFFSET;
}

int stkd_run_bad_sample(struct stkd_run *run, uint64_t sample, const struct stkd_extent *extents)
{
	const struct stkd_assembly *assembly = run->assembly;
	const struct stkd_op *op = *run->bad;
	const struct stkd_shard *shard;
	char place[32] = "";
	uint64_t row, offset;
	size_t s;

	stkd_dataset_locate(assembly->dataset, sample, &s, &row);
	shard = assembly->dataset->shards[s];
	offset = offset_in(shard, &extents[op->column]);
	if (assembly->quarantine) {
		stkd_quarantine_note(assembly->quarantine,
				     &(struct stkd_bad){.sample = sample,
							.offset = offset,
							.op = (uint32_t)(op - assembly->ops)});
		run->result.rows_bad++;
		*run->bad = NULL;
		return 0;
	}
	if (offset != STKD_NO_OFFSET)
		snprintf(place, sizeof(place), "byte %" PRIu64 ", ", offset);
	return stk_err_set(run->err, -EBADMSG,
			   "%s: %ssample %" PRIu64 " (row %" PRIu64
			   "): field \"%s\": a value of stored %s does not fit %s (range: error)",
			   shard->path, place, sample, row, op->name, stk_dtype_name(op->from),
			   stk_dtype_name(op->to));
}

static int copy_row(struct stkd_run *run, uint32_t index, const struct stkd_extent *extents)
{
	const struct stkd_assembly *assembly = run->assembly;
	uint64_t sample = run->recipe->ids[index];
	struct row row = {.run = run, .index = index, .sample = sample, .extents = extents};
	uint32_t length;

	assert(sample < assembly->dataset->count);
	length = assembly->dataset->lengths[sample];
	for (uint32_t c = 0; c < assembly->ncolumns; c++) {
		int r = stkd_run_check_extent(run, sample, c, &extents[c]);

		if (r < 0)
			return r;
	}
	row.length = STK_MIN(STK_MIN(length, assembly->max_length), run->recipe->width);
	run->sample = sample;
	write_row(run, &row);
	if (*run->bad) {
		int r = stkd_run_bad_sample(run, sample, extents);

		if (r == 0)
			write_row(run, &(struct row){.run = run,
						     .index = index,
						     .sample = STKD_NO_SAMPLE});
		return r;
	}
	run->result.real_tokens += row.length;
	run->result.max_length = STK_MAX(run->result.max_length, row.length);
	return 0;
}

/* The beginning of a row that comes soon; the processor finds the rest by itself. */
static void prefetch(const struct stkd_extent *extents, uint32_t ncolumns)
{
	for (uint32_t c = 0; c < ncolumns; c++)
		for (uint64_t at = 0; at < STK_MIN(extents[c].size, PREFETCHED); at += 64)
			__builtin_prefetch((const uint8_t *)extents[c].data + at);
}

/* Rows [first, first + n) that hold samples; n is small enough for the extents. */
static int copy_rows(struct stkd_run *run, uint32_t first, uint32_t n)
{
	const struct stkd_assembly *assembly = run->assembly;
	struct stkd_want want = {
		.ids = run->recipe->ids + first,
		.nrows = n,
		.fields = assembly->columns,
		.nfields = assembly->ncolumns,
	};
	int r = 0;

	run->sample = STKD_NO_SAMPLE;
	if (assembly->ncolumns)
		r = stkd_fetch(assembly->dataset, &want, run->extents, run->err);
	for (uint32_t i = 0; r == 0 && i < n; i++) {
		if (i + AHEAD < n)
			prefetch(&run->extents[(i + AHEAD) * assembly->ncolumns],
				 assembly->ncolumns);
		r = copy_row(run, first + i, &run->extents[i * assembly->ncolumns]);
	}
	if (r == 0 && assembly->ncolumns)
		run->ends |= stkd_fetch_probe(assembly->dataset, &want, run->extents);
	return r;
}

/* Fields start at multiples of 256; what lies between two belongs to the published bytes too. */
void stkd_run_zero_gaps(const struct stkd_run *run)
{
	stkd_fill_fn zero = stkd_fill_find(1);
	uint64_t end = 0;

	for (uint32_t i = 0; i < run->assembly->nops; i++) {
		const struct stk_shm_field *field = &run->layout->fields[i];

		zero(run->slot + end, 0, field->offset - end);
		end = field->offset + field->size;
	}
}

/* Runs under the guard: a SIGBUS jumps out of it from anywhere. */
static int run_rows(void *arg)
{
	struct stkd_run *run = arg;
	uint32_t chunk = STKD_EXTENTS_MAX / STK_MAX(run->assembly->ncolumns, 1);
	uint32_t end = run->first + run->n, real = STK_MIN(end, run->recipe->rows_real);

	if (run->first == 0)
		stkd_run_zero_gaps(run);
	for (uint32_t i = run->first; i < real; i += chunk) {
		int r = copy_rows(run, i, STK_MIN(chunk, real - i));

		if (r < 0)
			return r;
	}
	for (uint32_t i = STK_MAX(run->first, real); i < end; i++)
		write_row(run, &(struct row){.run = run, .index = i, .sample = STKD_NO_SAMPLE});
	return 0;
}

/* A fault outside the slot was in a shard's mapping. */
static int explain_fault(const struct stkd_run *run, const void *address)
{
	const struct stkd_dataset *dataset = run->assembly->dataset;
	uintptr_t at = (uintptr_t)address, start = (uintptr_t)run->slot;
	int r = -EBADMSG;

	if (at - start < run->layout->size)
		return stk_err_set(run->err, -EFAULT,
				   "slot: byte %zu of %" PRIu64
				   " cannot be written: its holder took the memory "
				   "away",
				   (size_t)(at - start), run->layout->size);
	stk_err_set(run->err, r, "%s: cannot be read", dataset->path);
	for (size_t i = 0; i < dataset->nshards; i++) {
		const struct stkd_shard *shard = dataset->shards[i];

		start = (uintptr_t)shard->map;
		if (!shard->map || at - start >= shard->file_size)
			continue;
		if (stkd_shard_unchanged(shard, run->err) == 0)
			stk_err_set(run->err, r, "%s: byte %zu cannot be read: I/O error",
				    shard->path, (size_t)(at - start));
		break;
	}
	if (run->err && run->sample != STKD_NO_SAMPLE)
		stk_err_prefix(run->err, "sample %" PRIu64 ": ", run->sample);
	return r;
}

/* Files are looked at by their paths so often by each worker, and no more: it is a system call. */
static bool is_due(void)
{
	static _Thread_local int64_t next_ms;
	struct timespec t;
	int64_t now_ms;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	now_ms = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
	if (now_ms < next_ms)
		return false;
	next_ms = now_ms + LOOK_MS;
	return true;
}

int stkd_assembly_rows(const struct stkd_assembly *assembly, const struct stkd_layout *layout,
		       const struct stkd_recipe *recipe, uint8_t *slot, uint32_t first, uint32_t n,
		       struct stkd_rows_result *ret, struct stk_err *err)
{
	struct stkd_extent extents[STKD_EXTENTS_MAX];
	struct stkd_run run = {
		.extents = extents,
		.assembly = assembly,
		.layout = layout,
		.recipe = recipe,
		.slot = slot,
		.first = first,
		.n = n,
		.err = err,
		.sample = STKD_NO_SAMPLE,
	};
	struct stkd_want want = {
		.ids = assembly->packed ? NULL : recipe->ids + first,
		.fields = assembly->columns,
		.nfields = assembly->ncolumns,
	};
	const struct stkd_op *bad = NULL;
	const void *address = NULL;
	int r;

	run.bad = &bad;
	assert(first <= recipe->rows && n <= recipe->rows - first);
	r = stkd_guard_run(assembly->packed ? stkd_run_packed : run_rows, &run, &address);
	if (r == -EFAULT)
		return explain_fault(&run, address);
	if (r < 0)
		return r;
	if (assembly->packed) {
		r = stkd_run_packed_done(&run);
		if (r < 0)
			return r;
	} else if (assembly->ncolumns && first < recipe->rows_real && (run.ends || is_due())) {
		want.nrows = STK_MIN(n, recipe->rows_real - first);
		r = stkd_fetch_done(assembly->dataset, &want, err);
		if (r < 0)
			return r;
	}
	*ret = run.result;
	return 0;
}
