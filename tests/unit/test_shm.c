/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory layout: what is planned is believed, what is damaged is not. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/shm.h"

#define SLOTS  3u
#define FIELDS 2u

struct fixture {
	struct stk_shm_control *control; /* a whole control file */
	struct stk_shm_control copy;
	struct stk_shm_desc desc;
	struct stk_shm_field fields[FIELDS];
	struct stk_err err;
};

static const struct stk_shm_geometry geometry = {.nslots = SLOTS,
						 .nfields = FIELDS,
						 .nclasses = 2,
						 .slot_size = 4096,
						 .schema_size = 100,
						 .state_size = 72,
						 .start_size = 30};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct stk_shm_control plan;

	assert_int_equal(stk_shm_control_plan(&geometry, &plan), 0);
	f->control = aligned_alloc(4096, plan.file_size);
	memset(f->control, 0, plan.file_size);
	memcpy(f->control, &plan, offsetof(struct stk_shm_control, ready));
	atomic_store(&f->control->ready, 1);
	f->copy = plan;
	f->desc = (struct stk_shm_desc){.slot = 1,
					.shape_class = 1,
					.rows = 4,
					.rows_real = 3,
					.nids = 4,
					.extent_size = 1024,
					.ids_off = 1024,
					.lengths_off = 1056};
	f->fields[0] =
		(struct stk_shm_field){.offset = 0, .size = 512, .nlead = 2, .lead = {4, 32}};
	f->fields[1] =
		(struct stk_shm_field){.offset = 512, .size = 16, .nlead = 1, .lead = {4, 0}};
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	free(f->control);
	free(f);
	return 0;
}

static int check(struct fixture *f)
{
	return stk_shm_control_check(f->control, f->copy.file_size, f->copy.slots_file_size,
				     &f->copy, &f->err);
}

static void a_planned_control_file_is_believed(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(check(f), 0);
	assert_int_equal(f->copy.nslots, SLOTS);
	assert_true(f->copy.ring_entries >= 2 * SLOTS + 2);
	assert_int_equal(f->copy.ring_entries & (f->copy.ring_entries - 1), 0);
}

static void parts_of_a_plan_do_not_overlap(void **state)
{
	const struct stk_shm_control *c = &((struct fixture *)*state)->copy;

	assert_true(c->ring_off >= sizeof(*c));
	assert_true(c->desc_off >=
		    c->ring_off + (uint64_t)c->ring_entries * sizeof(struct stk_shm_entry));
	assert_true(c->error_off >= c->desc_off + (uint64_t)c->desc_size * c->nslots);
	assert_true(c->state_off >= c->error_off + STK_SHM_ERROR_SIZE);
	assert_true(c->start_off >= c->state_off + c->state_size);
	assert_true(c->schema_off >= c->start_off + c->start_size);
	assert_true(c->file_size >= c->schema_off + c->schema_size);
}

static void impossible_geometries_are_refused(void **state)
{
	struct stk_shm_geometry g = geometry;
	struct stk_shm_control plan;

	(void)state;
	g.nslots = 0;
	assert_int_equal(stk_shm_control_plan(&g, &plan), -EINVAL);
	g.nslots = STK_SHM_MAX_SLOTS + 1;
	assert_int_equal(stk_shm_control_plan(&g, &plan), -EINVAL);
	g = geometry;
	g.nfields = STK_SHM_MAX_FIELDS + 1;
	assert_int_equal(stk_shm_control_plan(&g, &plan), -EINVAL);
	g = geometry;
	g.start_size = STK_SHM_CURSOR_MAX + 1;
	assert_int_equal(stk_shm_control_plan(&g, &plan), -EINVAL);
	g = geometry;
	g.slot_size = UINT64_MAX / 2;
	assert_int_equal(stk_shm_control_plan(&g, &plan), -EOVERFLOW);
}

static void a_file_still_being_built_is_not_ready(void **state)
{
	struct fixture *f = *state;

	atomic_store(&f->control->ready, 0);
	assert_int_equal(check(f), -EAGAIN);
}

static void another_layout_version_names_both(void **state)
{
	struct fixture *f = *state;

	f->control->major = 7;
	assert_int_equal(check(f), -EPROTO);
	assert_non_null(strstr(f->err.text, "7 of stokerd"));
	assert_non_null(strstr(f->err.text, "1 of libstoker"));
}

static void sizes_that_differ_from_the_files_are_refused_with_both(void **state)
{
	struct fixture *f = *state;
	uint64_t size = f->copy.file_size;

	f->control->file_size = size + 4096;
	assert_int_equal(
		stk_shm_control_check(f->control, size, f->copy.slots_file_size, &f->copy, &f->err),
		-EPROTO);
	assert_non_null(strstr(f->err.text, "by fstat"));
	f->control->file_size = size;
	assert_int_equal(stk_shm_control_check(f->control, size, 4096, &f->copy, &f->err), -EPROTO);
	assert_int_equal(stk_shm_control_check(f->control, 100, 4096, &f->copy, &f->err), -EPROTO);
}

/* Writes one damaged number into the header, expects a refusal, and puts the old one back. */
#define REFUSES(field, value)                                                                      \
	do {                                                                                       \
		__typeof__(f->control->field) saved_ = f->control->field;                          \
		f->control->field = (value);                                                       \
		assert_int_equal(stk_shm_control_check(f->control, size, slots, &copy, &f->err),   \
				 -EPROTO);                                                         \
		f->control->field = saved_;                                                        \
	} while (0)

static void every_damaged_number_of_a_header_is_refused(void **state)
{
	struct fixture *f = *state;
	uint64_t size = f->copy.file_size, slots = f->copy.slots_file_size;
	struct stk_shm_control copy;

	REFUSES(magic, 0x53544b43); /* the other byte order */
	REFUSES(nslots, 0);
	REFUSES(nslots, STK_SHM_MAX_SLOTS + 1);
	REFUSES(nslots, SLOTS + 1);
	REFUSES(nfields, 0);
	REFUSES(nfields, STK_SHM_MAX_FIELDS + 1);
	REFUSES(ring_entries, 5);
	REFUSES(ring_entries, 4);
	REFUSES(ring_entries, 1u << 31);
	REFUSES(desc_size, 64);
	REFUSES(desc_size, UINT32_MAX);
	REFUSES(ring_off, size);
	REFUSES(ring_off, UINT64_MAX - 63);
	REFUSES(ring_off, 4097);
	REFUSES(desc_off, UINT64_MAX - 63);
	REFUSES(error_off, size - 1);
	REFUSES(schema_off, UINT64_MAX);
	REFUSES(schema_size, UINT64_MAX);
	REFUSES(state_off, size);
	REFUSES(state_size, size);
	REFUSES(start_off, size);
	REFUSES(start_off, UINT64_MAX);
	REFUSES(start_size, STK_SHM_CURSOR_MAX + 1);
	REFUSES(start_size, UINT32_MAX);
	REFUSES(slot_size, 8192);
	REFUSES(slot_size, UINT64_MAX / 2);
	assert_int_equal(stk_shm_control_check(f->control, size, slots, &copy, &f->err), 0);
}

static void a_planned_seat_file_is_believed_and_a_damaged_one_is_not(void **state)
{
	struct fixture *f = *state;
	struct stk_shm_seat seat;
	uint64_t size = stk_shm_seat_plan(f->copy.ring_entries, &seat);

	assert_int_equal(stk_shm_seat_check(&seat, size, &f->copy, &f->err), 0);
	assert_int_equal(stk_shm_seat_check(&seat, 100, &f->copy, &f->err), -EPROTO);
	assert_int_equal(stk_shm_seat_check(&seat, 4096, &f->copy, &f->err), -EPROTO);
	seat.ring_entries *= 2;
	assert_int_equal(stk_shm_seat_check(&seat, size, &f->copy, &f->err), -EPROTO);
	stk_shm_seat_plan(f->copy.ring_entries, &seat);
	seat.ring_off = UINT64_MAX - 63;
	assert_int_equal(stk_shm_seat_check(&seat, size, &f->copy, &f->err), -EPROTO);
	stk_shm_seat_plan(f->copy.ring_entries, &seat);
	seat.magic = STK_SHM_MAGIC_CONTROL;
	assert_int_equal(stk_shm_seat_check(&seat, size, &f->copy, &f->err), -EPROTO);
}

#define BAD_DESC(field, value)                                                                     \
	do {                                                                                       \
		struct stk_shm_desc d_ = f->desc;                                                  \
		d_.field = (value);                                                                \
		assert_int_equal(stk_shm_desc_check(&d_, f->fields, &f->copy, &f->err), -EPROTO);  \
	} while (0)

static void every_damaged_number_of_a_descriptor_is_refused(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(stk_shm_desc_check(&f->desc, f->fields, &f->copy, &f->err), 0);
	BAD_DESC(slot, SLOTS);
	BAD_DESC(shape_class, 2);
	BAD_DESC(rows_real, 5);
	BAD_DESC(extent_size, 4097);
	BAD_DESC(extent_size, 100); /* fields lie behind it */
	BAD_DESC(ids_off, 4096);
	BAD_DESC(ids_off, 1);
	BAD_DESC(ids_off, UINT64_MAX - 7);
	BAD_DESC(lengths_off, 4094);
	BAD_DESC(lengths_off, UINT64_MAX - 3);
	BAD_DESC(nids, UINT32_MAX);
	BAD_DESC(cursor_size, STK_SHM_CURSOR_MAX + 1);
	BAD_DESC(memory, STK_SHM_MEMORY_HOST + 1); /* a later release's */
}

#define BAD_FIELD(field, value)                                                                    \
	do {                                                                                       \
		struct stk_shm_field saved_ = f->fields[1];                                        \
		f->fields[1].field = (value);                                                      \
		assert_int_equal(stk_shm_desc_check(&f->desc, f->fields, &f->copy, &f->err),       \
				 -EPROTO);                                                         \
		f->fields[1] = saved_;                                                             \
	} while (0)

static void every_damaged_number_of_a_field_is_refused(void **state)
{
	struct fixture *f = *state;

	BAD_FIELD(offset, 1024);
	BAD_FIELD(offset, 8);
	BAD_FIELD(offset, UINT64_MAX - 255);
	BAD_FIELD(size, UINT64_MAX);
	BAD_FIELD(nlead, 0);
	BAD_FIELD(nlead, 3);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_planned_control_file_is_believed),
		TEST(parts_of_a_plan_do_not_overlap),
		TEST(impossible_geometries_are_refused),
		TEST(a_file_still_being_built_is_not_ready),
		TEST(another_layout_version_names_both),
		TEST(sizes_that_differ_from_the_files_are_refused_with_both),
		TEST(every_damaged_number_of_a_header_is_refused),
		TEST(a_planned_seat_file_is_believed_and_a_damaged_one_is_not),
		TEST(every_damaged_number_of_a_descriptor_is_refused),
		TEST(every_damaged_number_of_a_field_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
