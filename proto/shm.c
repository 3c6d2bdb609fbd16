/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/shm.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

#define PAGE UINT64_C(4096)

uint32_t stk_shm_ring_entries(uint32_t nslots)
{
	uint32_t n = 4;

	while (n < 2 * nslots + 2)
		n *= 2;
	return n;
}

int stk_shm_control_plan(const struct stk_shm_geometry *g, struct stk_shm_control *ret)
{
	struct stk_shm_control c = {
		.magic = STK_SHM_MAGIC_CONTROL,
		.major = STK_SHM_MAJOR,
		.minor = STK_SHM_MINOR,
		.header_size = sizeof(struct stk_shm_control),
		.nslots = g->nslots,
		.nfields = g->nfields,
		.nclasses = g->nclasses,
		.slot_size = g->slot_size,
		.schema_size = g->schema_size,
		.state_size = g->state_size,
		.start_size = g->start_size,
	};

	if (!g->nslots || g->nslots > STK_SHM_MAX_SLOTS || !g->nfields ||
	    g->nfields > STK_SHM_MAX_FIELDS || !g->slot_size || g->schema_size > UINT32_MAX ||
	    g->state_size > UINT16_MAX || g->start_size > STK_SHM_CURSOR_MAX)
		return -EINVAL;
	if (stk_mul_overflow(g->slot_size, (uint64_t)g->nslots, &c.slots_file_size))
		return -EOVERFLOW;
	c.ring_entries = stk_shm_ring_entries(g->nslots);
	c.desc_size = (uint32_t)stk_align_up(sizeof(struct stk_shm_desc) +
						     g->nfields * sizeof(struct stk_shm_field),
					     STK_SHM_FIELD_ALIGN);
	c.ring_off = stk_align_up(sizeof(c), PAGE);
	c.desc_off = stk_align_up(
		c.ring_off + (uint64_t)c.ring_entries * sizeof(struct stk_shm_entry), PAGE);
	c.error_off = c.desc_off + (uint64_t)c.desc_size * c.nslots;
	c.state_off = c.error_off + STK_SHM_ERROR_SIZE;
	c.start_off = c.state_off + c.state_size;
	c.schema_off = stk_align_up(c.start_off + c.start_size, 64);
	c.file_size = stk_align_up(c.schema_off + c.schema_size, PAGE);
	memcpy(ret, &c, sizeof(c));
	return 0;
}

uint64_t stk_shm_seat_plan(uint32_t ring_entries, struct stk_shm_seat *ret)
{
	memset(ret, 0, sizeof(*ret));
	ret->magic = STK_SHM_MAGIC_SEAT;
	ret->major = STK_SHM_MAJOR;
	ret->minor = STK_SHM_MINOR;
	ret->ring_entries = ring_entries;
	ret->ring_off = PAGE;
	ret->file_size = stk_align_up(PAGE + (uint64_t)ring_entries * sizeof(uint64_t), PAGE);
	return ret->file_size;
}

/* True when [off, off + len) lies inside size bytes. */
static bool inside(uint64_t off, uint64_t len, uint64_t size)
{
	return len <= size && off <= size - len;
}

static int check_magic(uint32_t magic, uint32_t want, uint16_t major, struct stk_err *err)
{
	if (magic != want)
		return stk_err_set(err, -EPROTO,
				   "shared memory: magic %08" PRIx32 ", want %08" PRIx32, magic,
				   want);
	if (major != STK_SHM_MAJOR)
		return stk_err_set(err, -EPROTO,
				   "shared memory: layout version %u of stokerd, %u of libstoker",
				   major, STK_SHM_MAJOR);
	return 0;
}

int stk_shm_control_check(const void *map, uint64_t size, uint64_t slots_size,
			  struct stk_shm_control *ret_copy, struct stk_err *err)
{
	const struct stk_shm_control *shm = map;
	struct stk_shm_control c;
	uint64_t need;
	int r;

	if (size < sizeof(c))
		return stk_err_set(err, -EPROTO,
				   "control file: %" PRIu64 " bytes, at least %zu needed", size,
				   sizeof(c));
	/* Pairs with the daemon's release store when the header was complete. */
	if (!atomic_load_explicit(&shm->ready, memory_order_acquire))
		return stk_err_set(err, -EAGAIN, "control file: not ready");
	memcpy(&c, map, offsetof(struct stk_shm_control, tail));
	r = check_magic(c.magic, STK_SHM_MAGIC_CONTROL, c.major, err);
	if (r < 0)
		return r;
	if (c.file_size != size || c.slots_file_size != slots_size)
		return stk_err_set(err, -EPROTO,
				   "shared memory: control file %" PRIu64
				   " bytes and slots file %" PRIu64 " by header, %" PRIu64
				   " and %" PRIu64 " by fstat",
				   c.file_size, c.slots_file_size, size, slots_size);
	if (!c.nslots || c.nslots > STK_SHM_MAX_SLOTS || !c.nfields ||
	    c.nfields > STK_SHM_MAX_FIELDS || c.ring_entries < stk_shm_ring_entries(c.nslots) ||
	    c.ring_entries > 4 * STK_SHM_MAX_SLOTS || (c.ring_entries & (c.ring_entries - 1)))
		return stk_err_set(err, -EPROTO,
				   "control file: %" PRIu32 " slots, %" PRIu32
				   " fields, ring of %" PRIu32,
				   c.nslots, c.nfields, c.ring_entries);
	need = sizeof(struct stk_shm_desc) + c.nfields * sizeof(struct stk_shm_field);
	if (c.desc_size < need || c.desc_size > need + PAGE || c.desc_size % 8 ||
	    !inside(c.ring_off, (uint64_t)c.ring_entries * sizeof(struct stk_shm_entry), size) ||
	    !inside(c.desc_off, (uint64_t)c.desc_size * c.nslots, size) || c.ring_off % 64 ||
	    c.desc_off % 64 || !inside(c.error_off, STK_SHM_ERROR_SIZE, size) ||
	    !inside(c.schema_off, c.schema_size, size) ||
	    !inside(c.state_off, c.state_size, size) || !inside(c.start_off, c.start_size, size) ||
	    c.start_size > STK_SHM_CURSOR_MAX)
		return stk_err_set(err, -EPROTO,
				   "control file: a part lies outside its %" PRIu64 " bytes", size);
	if (stk_mul_overflow(c.slot_size, (uint64_t)c.nslots, &need) || need != slots_size)
		return stk_err_set(err, -EPROTO,
				   "slots file: %" PRIu32 " slots of %" PRIu64
				   " bytes are not %" PRIu64,
				   c.nslots, c.slot_size, slots_size);
	memcpy(ret_copy, &c, offsetof(struct stk_shm_control, tail));
	return 0;
}

int stk_shm_seat_check(const void *map, uint64_t size, const struct stk_shm_control *control,
		       struct stk_err *err)
{
	const struct stk_shm_seat *seat = map;
	int r;

	if (size < sizeof(*seat))
		return stk_err_set(err, -EPROTO,
				   "seat file: %" PRIu64 " bytes, at least %zu needed", size,
				   sizeof(*seat));
	r = check_magic(seat->magic, STK_SHM_MAGIC_SEAT, seat->major, err);
	if (r < 0)
		return r;
	if (seat->ring_entries != control->ring_entries || seat->ring_off % 64 ||
	    !inside(seat->ring_off, (uint64_t)seat->ring_entries * sizeof(uint64_t), size))
		return stk_err_set(err, -EPROTO,
				   "seat file: ring of %" PRIu32 " entries at %" PRIu64
				   " in %" PRIu64 " bytes, the feed has %" PRIu32,
				   seat->ring_entries, seat->ring_off, size, control->ring_entries);
	return 0;
}

int stk_shm_desc_check(const struct stk_shm_desc *desc, const struct stk_shm_field *fields,
		       const struct stk_shm_control *control, struct stk_err *err)
{
	uint64_t size = control->slot_size;

	if (desc->memory != STK_SHM_MEMORY_HOST)
		return stk_err_set(err, -EPROTO,
				   "batch descriptor: slot %" PRIu32 ": memory of kind %" PRIu32
				   " is unknown to this libstoker",
				   desc->slot, desc->memory);
	if (desc->slot >= control->nslots || desc->cursor_size > STK_SHM_CURSOR_MAX ||
	    desc->shape_class >= control->nclasses || desc->rows_real > desc->rows ||
	    desc->extent_size > size || desc->ids_off % 8 || desc->lengths_off % 4 ||
	    !inside(desc->ids_off, (uint64_t)desc->nids * 8, size) ||
	    !inside(desc->lengths_off, (uint64_t)desc->nids * 4, size) || desc->from_off % 4 ||
	    desc->row_first_off % 4 ||
	    (desc->row_first_off &&
	     (!inside(desc->from_off, (uint64_t)desc->nids * 4, size) ||
	      !inside(desc->row_first_off, ((uint64_t)desc->rows + 1) * 4, size))))
		return stk_err_set(err, -EPROTO, "batch descriptor: slot %" PRIu32 " is damaged",
				   desc->slot);
	for (uint32_t i = 0; i < control->nfields; i++) {
		const struct stk_shm_field *f = &fields[i];

		if (!inside(f->offset, f->size, desc->extent_size) ||
		    f->offset % STK_SHM_FIELD_ALIGN || f->nlead < 1 || f->nlead > 2)
			return stk_err_set(err, -EPROTO,
					   "batch descriptor: field %" PRIu32 " at %" PRIu64
					   "+%" PRIu64 " of %" PRIu64,
					   i, f->offset, f->size, desc->extent_size);
	}
	return 0;
}
