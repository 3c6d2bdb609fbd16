/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a client believes of memory files: the input patches a good control file, seat file and batch
 * descriptor, each patch 11 bytes {which, place u16, value u64}. Whatever passes the checks lies
 * within the files.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/shm.h"
#include "tests/fuzz/fuzz.h"

#define PATCH  11
#define FIELDS 3

struct files {
	struct stk_shm_control *control;
	uint64_t control_size, slots_size;
	struct stk_shm_seat seat;
	uint64_t seat_size;
	struct stk_shm_desc desc;
	struct stk_shm_field fields[STK_SHM_MAX_FIELDS];
};

static void make_files(struct files *f)
{
	const struct stk_shm_geometry geometry = {.nslots = 4,
						  .nfields = FIELDS,
						  .nclasses = 2,
						  .slot_size = 8192,
						  .schema_size = 100,
						  .state_size = 72,
						  .start_size = 30};
	struct stk_shm_control plan;

	if (stk_shm_control_plan(&geometry, &plan) < 0)
		abort();
	f->control_size = plan.file_size;
	f->slots_size = plan.slots_file_size;
	f->control = aligned_alloc(4096, f->control_size);
	if (!f->control)
		abort();
	memset(f->control, 0, f->control_size);
	memcpy(f->control, &plan, offsetof(struct stk_shm_control, ready));
	atomic_store(&f->control->ready, 1);
	f->seat_size = stk_shm_seat_plan(plan.ring_entries, &f->seat);
	memset(&f->desc, 0, sizeof(f->desc));
	f->desc.rows = f->desc.nids = 4;
	f->desc.extent_size = FIELDS * 256;
	f->desc.ids_off = 4096;
	f->desc.lengths_off = 4128;
	memset(f->fields, 0, sizeof(f->fields));
	for (uint32_t i = 0; i < FIELDS; i++)
		f->fields[i] = (struct stk_shm_field){
			.offset = i * 256, .size = 16, .nlead = 1, .lead = {4}};
}

static void patch(struct files *f, const uint8_t *data)
{
	const struct {
		void *bytes;
		size_t size;
	} parts[] = {
		{f->control, sizeof(*f->control)},
		{&f->seat, sizeof(f->seat)},
		{&f->desc, sizeof(f->desc)},
		{f->fields, FIELDS * sizeof(f->fields[0])},
	};
	size_t which = data[0] % STK_ARRAY_SIZE(parts), width = 1u << (data[0] >> 6);
	size_t at = (data[1] | (size_t)data[2] << 8) % (parts[which].size - 7);

	memcpy((uint8_t *)parts[which].bytes + at, data + 3, width);
}

static void must_lie_within(uint64_t off, uint64_t size, uint64_t whole)
{
	uint64_t end;

	if (stk_add_overflow(off, size, &end) || end > whole)
		abort();
}

static void check_control(const struct files *f, const struct stk_shm_control *c)
{
	must_lie_within(c->ring_off, (uint64_t)c->ring_entries * sizeof(struct stk_shm_entry),
			f->control_size);
	for (uint32_t i = 0; i < c->nslots; i++)
		must_lie_within(c->desc_off + (uint64_t)i * c->desc_size,
				sizeof(struct stk_shm_desc) +
					c->nfields * sizeof(struct stk_shm_field),
				f->control_size);
	must_lie_within(c->error_off, STK_SHM_ERROR_SIZE, f->control_size);
	must_lie_within(c->schema_off, c->schema_size, f->control_size);
	must_lie_within(c->state_off, c->state_size, f->control_size);
	must_lie_within(c->start_off, c->start_size, f->control_size);
	if (c->start_size > STK_SHM_CURSOR_MAX)
		abort();
	must_lie_within((uint64_t)(c->nslots - 1) * c->slot_size, c->slot_size, f->slots_size);
	/* The widest accesses that are made there. */
	if (c->ring_off % 8 || c->desc_off % 8 || c->desc_size % 8 || c->ring_entries < c->nslots)
		abort();
}

static void check_desc(const struct files *f, const struct stk_shm_control *c)
{
	const struct stk_shm_desc *d = &f->desc;

	if (d->slot >= c->nslots || d->rows_real > d->rows)
		abort();
	must_lie_within(d->ids_off, (uint64_t)d->nids * 8, c->slot_size);
	must_lie_within(d->lengths_off, (uint64_t)d->nids * 4, c->slot_size);
	must_lie_within(0, d->cursor_size, sizeof(d->cursor));
	for (uint32_t i = 0; i < c->nfields; i++)
		must_lie_within(f->fields[i].offset, f->fields[i].size, d->extent_size);
	must_lie_within(0, d->extent_size, c->slot_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct stk_shm_control copy;
	struct stk_err err;
	struct files f;

	make_files(&f);
	for (; size >= PATCH; data += PATCH, size -= PATCH)
		patch(&f, data);
	if (stk_shm_control_check(f.control, f.control_size, f.slots_size, &copy, &err) == 0) {
		check_control(&f, &copy);
		if (stk_shm_seat_check(&f.seat, f.seat_size, &copy, &err) == 0)
			must_lie_within(f.seat.ring_off, (uint64_t)copy.ring_entries * 8,
					f.seat_size);
		if (stk_shm_desc_check(&f.desc, f.fields, &copy, &err) == 0)
			check_desc(&f, &copy);
	}
	free(f.control);
	return 0;
}
