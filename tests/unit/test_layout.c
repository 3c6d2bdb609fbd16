/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "daemon/assemble/assembly.h"
#include "tests/unit/fake_dataset.h"

/* ids: I32 ragged (the length field), notes: U8 ragged of its own lengths, image: U8 [3, 5]. */
static void make_set(struct fake_dataset *fake)
{
	uint32_t ids;

	fake_init(fake, 20, 3);
	ids = fake_field(fake, "ids", STK_DTYPE_I32, true, 9, 0, 0);
	fake_field(fake, "notes", STK_DTYPE_U8, true, 30, 0, 0);
	fake->counts[1][7] = 30;
	fake_field(fake, "image", STK_DTYPE_U8, false, 0, 3, 5);
	fake_build(fake, 2, ids);
}

static struct stkd_assembly *compile(struct fake_dataset *fake, struct stk_spec_field *fields,
				     size_t n)
{
	struct stk_spec spec = {.multiple_of = 8, .fields = fields, .nfields = n};
	struct stkd_assembly *assembly = NULL;
	struct stk_err err;

	if (stkd_assembly_new(&spec, &fake->dataset, 16, &assembly, &err) < 0)
		fail_msg("%s", err.text);
	return assembly;
}

static struct stk_spec_field all_kinds[] = {
	{.name = (char *)"ids", .dtype = STK_DTYPE_I64},
	{.name = (char *)"notes"},
	{.name = (char *)"image"},
	{.name = (char *)"mask", .make = STK_MAKE_MASK},
	{.name = (char *)"notes_mask", .make = STK_MAKE_MASK, .from = (char *)"notes"},
	{.name = (char *)"n", .make = STK_MAKE_LENGTHS},
	{.name = (char *)"id", .make = STK_MAKE_SAMPLE_IDS},
};

static void fields_lie_in_order_each_aligned_and_lists_behind_them(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout l = {.size = 0}, again = l; /* zeros, also behind the fields there are */
	/* notes are 30 long, rounded up to 32 */
	static const uint64_t sizes[] = {3 * 12 * 8, 3 * 32, 3 * 15, 3 * 12, 3 * 32, 3 * 4, 3 * 8};
	static const uint32_t widths[] = {12, 32, 0, 12, 32, 0, 0};
	uint64_t end = 0;

	(void)state;
	make_set(&fake);
	assembly = compile(&fake, all_kinds, STK_ARRAY_SIZE(all_kinds));
	assert_int_equal(stkd_assembly_nfields(assembly), STK_ARRAY_SIZE(all_kinds));
	assert_int_equal(stkd_assembly_layout(assembly, 3, 12, 0, &l), 0);
	for (size_t i = 0; i < STK_ARRAY_SIZE(all_kinds); i++) {
		assert_int_equal(l.fields[i].offset, (end + 255) / 256 * 256);
		assert_int_equal(l.fields[i].size, sizes[i]);
		assert_int_equal(l.fields[i].nlead, widths[i] ? 2 : 1);
		assert_int_equal(l.fields[i].lead[0], 3);
		assert_int_equal(l.fields[i].lead[1], widths[i]);
		end = l.fields[i].offset + l.fields[i].size;
	}
	assert_int_equal(l.extent_size, end);
	assert_int_equal(l.ids_off, (end + 255) / 256 * 256);
	assert_int_equal(l.lengths_off, l.ids_off + 3 * 8);
	assert_int_equal(l.size, l.lengths_off + 3 * 4);
	assert_int_equal(stkd_assembly_layout(assembly, 3, 12, 0, &again), 0);
	assert_memory_equal(&l, &again, sizeof(l));
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void a_layout_that_does_not_fit_64_bits_is_refused(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout l = {.size = 77};

	(void)state;
	make_set(&fake);
	assembly = compile(&fake, all_kinds, STK_ARRAY_SIZE(all_kinds));
	assert_int_equal(stkd_assembly_layout(assembly, UINT32_MAX, UINT32_MAX, 0, &l), -EOVERFLOW);
	assert_int_equal(l.size, 77);
	assert_int_equal(stkd_assembly_layout(assembly, UINT32_MAX, 1, 0, &l), 0);
	assert_int_equal(l.fields[0].size, UINT64_C(8) * UINT32_MAX);
	assert_int_equal(stkd_assembly_layout(assembly, 0, 0, 0, &l), 0);
	assert_int_equal(l.extent_size, 0);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void sums_of_fields_are_checked_too(void **state)
{
	struct stk_spec_field huge[STK_SHM_MAX_FIELDS];
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout l;

	(void)state;
	make_set(&fake);
	for (size_t i = 0; i < STK_ARRAY_SIZE(huge); i++)
		huge[i] = (struct stk_spec_field){.name = (char *)"ids"};
	assembly = compile(&fake, huge, STK_ARRAY_SIZE(huge));
	/* Each field has 2^59 bytes; 32 of them do not fit. */
	assert_int_equal(stkd_assembly_layout(assembly, 1u << 29, 1u << 28, 0, &l), -EOVERFLOW);
	stkd_assembly_free(assembly);
	assembly = compile(&fake, huge, 16);
	assert_int_equal(stkd_assembly_layout(assembly, 1u << 29, 1u << 28, 0, &l), 0);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

static void the_schema_names_type_kind_and_inner_shape(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	json_t *schema;
	char *text;

	(void)state;
	make_set(&fake);
	assembly = compile(&fake, all_kinds, STK_ARRAY_SIZE(all_kinds));
	schema = stkd_assembly_schema(assembly);
	text = json_dumps(schema, JSON_COMPACT);
	assert_string_equal(
		text,
		"[{\"name\":\"ids\",\"dtype\":\"I64\",\"kind\":\"ragged\",\"shape\":[]},"
		"{\"name\":\"notes\",\"dtype\":\"U8\",\"kind\":\"ragged\",\"shape\":[]},"
		"{\"name\":\"image\",\"dtype\":\"U8\",\"kind\":\"fixed\",\"shape\":[3,5]},"
		"{\"name\":\"mask\",\"dtype\":\"BOOL\",\"kind\":\"ragged\",\"shape\":[]},"
		"{\"name\":\"notes_mask\",\"dtype\":\"BOOL\",\"kind\":\"ragged\",\"shape\":[]},"
		"{\"name\":\"n\",\"dtype\":\"I32\",\"kind\":\"row\",\"shape\":[]},"
		"{\"name\":\"id\",\"dtype\":\"I64\",\"kind\":\"row\",\"shape\":[]}]");
	free(text);
	json_decref(schema);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fields_lie_in_order_each_aligned_and_lists_behind_them),
		cmocka_unit_test(a_layout_that_does_not_fit_64_bits_is_refused),
		cmocka_unit_test(sums_of_fields_are_checked_too),
		cmocka_unit_test(the_schema_names_type_kind_and_inner_shape),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
