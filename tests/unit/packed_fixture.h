/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A batch of packed rows for tests of assembly: a made-up data set, segments, a slot with stale bytes. One
 * thread.
 */
#ifndef PACKED_FIXTURE_H
#define PACKED_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/assemble/assembly.h"
#include "tests/unit/fake_dataset.h"

#define STALE      0xa5
#define BEHIND     64
#define ROWS_MAX   6
#define SLOT_BYTES (1 << 20)

struct fixture {
	struct fake_dataset fake;
	struct stk_spec spec;
	struct stkd_assembly *assembly;
	struct stkd_recipe recipe;
	struct stkd_layout layout;
	struct stk_segment segments[1024];
	uint32_t row_first[ROWS_MAX + 1];
	uint8_t *slot;
};

static inline void set_up(struct fixture *f, uint64_t count, uint64_t seed)
{
	memset(f, 0, sizeof(*f));
	fake_init(&f->fake, count, seed);
	f->spec = (struct stk_spec){.group = STK_GROUP_PACK, .multiple_of = 1, .align = 1};
	f->recipe.segments = f->segments;
	f->recipe.row_first = f->row_first;
	f->slot = aligned_alloc(256, SLOT_BYTES);
	assert_non_null(f->slot);
}

static inline void tear_down(struct fixture *f)
{
	stkd_assembly_free(f->assembly);
	fake_deinit(&f->fake);
	free(f->slot);
}

static inline void compile(struct fixture *f, struct stk_spec_field *fields, size_t nfields)
{
	struct stk_err err = {.text = ""};

	f->spec.fields = fields;
	f->spec.nfields = nfields;
	if (stkd_assembly_new(&f->spec, &f->fake.dataset, 0, &f->assembly, &err) < 0)
		fail_msg("%s", err.text);
	assert_true(stkd_assembly_is_packed(f->assembly));
}

/* Assembles in ranges of so many rows. */
static inline struct stkd_rows_result assemble(struct fixture *f, uint32_t range)
{
	struct stkd_rows_result sum = {0}, one;
	struct stk_err err = {.text = ""};

	assert_int_equal(stkd_assembly_layout_packed(f->assembly, f->recipe.rows, f->recipe.width,
						     f->recipe.nsegments, &f->layout),
			 0);
	assert_true(f->layout.size + BEHIND <= SLOT_BYTES);
	memset(f->slot, STALE, f->layout.size + BEHIND);
	for (uint32_t first = 0; first < f->recipe.rows; first += range) {
		uint32_t n = STK_MIN(range, f->recipe.rows - first);

		if (stkd_assembly_rows(f->assembly, &f->layout, &f->recipe, f->slot, first, n, &one,
				       &err) < 0)
			fail_msg("%s", err.text);
		sum.real_tokens += one.real_tokens;
		sum.max_length = STK_MAX(sum.max_length, one.max_length);
	}
	for (uint32_t i = 0; i < BEHIND; i++)
		assert_int_equal(f->slot[f->layout.size + i], STALE);
	return sum;
}

/* Appends a row of whole samples. */
static inline void add_row(struct fixture *f, const uint64_t *ids, uint32_t n)
{
	struct stkd_recipe *r = &f->recipe;

	for (uint32_t i = 0; i < n; i++)
		f->segments[r->nsegments++] = (struct stk_segment){
			.id = ids[i], .length = f->fake.dataset.lengths[ids[i]]};
	f->row_first[++r->rows_real] = r->nsegments;
	r->rows++;
}

static inline const int32_t *i32s(const struct fixture *f, uint32_t field)
{
	return (const int32_t *)(f->slot + f->layout.fields[field].offset);
}

static inline void assert_i32s(const struct fixture *f, uint32_t field, const int32_t *want,
			       size_t n)
{
	assert_int_equal(f->layout.fields[field].size, n * sizeof(*want));
	for (size_t i = 0; i < n; i++)
		if (i32s(f, field)[i] != want[i])
			fail_msg("field %u, value %zu: %d, not %d", field, i, i32s(f, field)[i],
				 want[i]);
}

/* Samples of given lengths whose tokens are 1 + their number. */
static inline void numbered(struct fixture *f, const uint32_t *lengths, uint32_t n)
{
	uint32_t field;

	set_up(f, n, 3);
	field = fake_field(&f->fake, "ids", STK_DTYPE_I32, true, 1, 0, 0);
	for (uint32_t i = 0; i < n; i++)
		f->fake.counts[field][i] = lengths[i];
	fake_build(&f->fake, 1, field);
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t t = 0; t < lengths[i]; t++) {
			int32_t value = (int32_t)i + 1;

			memcpy((uint8_t *)f->fake.dataset.shards[0]->map +
				       f->fake.offsets[field][i] + t * sizeof(value),
			       &value, sizeof(value));
		}
}

#endif
