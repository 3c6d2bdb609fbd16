/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches that cannot be: fields that are refused, shards and slots that change under the daemon. One
 * thread.
 */
#include <fcntl.h>

#include "daemon/shard/guard.h"
#include "tests/unit/assembly_fixture.h"

/* The error of fields that cannot be compiled. */
static const char *refusal(struct fake_dataset *fake, struct stk_spec_field *fields, size_t n)
{
	static struct stk_err err;
	struct stk_spec spec = {.multiple_of = 8, .fields = fields, .nfields = n};
	struct stkd_assembly *assembly = NULL;

	assert_int_equal(stkd_assembly_new(&spec, &fake->dataset, 16, &assembly, &err), -EINVAL);
	assert_null(assembly);
	return err.text;
}

static void more_fields_than_a_batch_holds_are_refused(void **state)
{
	struct fake_dataset fake;
	struct stkd_assembly *assembly = NULL;
	struct stk_spec spec = {.multiple_of = 1};
	struct stk_err err;

	(void)state;
	fake_init(&fake, 2, 5);
	for (unsigned i = 0; i < STK_SHM_MAX_FIELDS; i++) {
		char name[8];

		snprintf(name, sizeof(name), "f%u", i);
		fake_field(&fake, name, STK_DTYPE_U8, true, 3, 0, 0);
	}
	fake_build(&fake, 1, 0);
	assert_int_equal(stkd_assembly_new(&spec, &fake.dataset, 9, &assembly, &err), -EINVAL);
	assert_string_equal(err.text, "field \"attention_mask\": a batch has at most 64 fields");
	fake_deinit(&fake);
}

#define REFUSED(fake, part, ...)                                                                   \
	do {                                                                                       \
		struct stk_spec_field field_ = {__VA_ARGS__};                                      \
		const char *text_ = refusal(fake, &field_, 1);                                     \
                                                                                                   \
		if (!strstr(text_, part))                                                          \
			fail_msg("\"%s\" does not say \"%s\"", text_, part);                       \
	} while (0)

static void fields_that_cannot_be_made_are_refused_with_what_can(void **state)
{
	struct fake_dataset fake;

	(void)state;
	fake_init(&fake, 5, 5);
	fake_field(&fake, "input_ids", STK_DTYPE_U16, true, 9, 0, 0);
	fake_field(&fake, "image", STK_DTYPE_F32, false, 0, 2, 2);
	fake_field(&fake, "nibbles", STK_DTYPE_F4, false, 0, 2, 0);
	fake_field(&fake, "scale", STK_DTYPE_F8_E8M0, false, 0, 0, 0);
	fake_field(&fake, "wide", STK_DTYPE_I64, true, 9, 0, 0);
	fake_field(&fake, "eights", STK_DTYPE_F8_E4M3, true, 9, 0, 0);
	fake_build(&fake, 1, 0);
	REFUSED(&fake,
		"field \"labels\": fake has no field \"input_id\", did you mean \"input_ids\"?; it "
		"has input_ids, image, nibbles",
		.name = (char *)"labels", .from = (char *)"input_id");
	REFUSED(&fake,
		"field \"input_ids\": stored U16 may lose range as I8; possible: range: error, "
		"range: "
		"saturate, range: wrap, clamp",
		.name = (char *)"input_ids", .dtype = STK_DTYPE_I8);
	REFUSED(&fake, "stored F32 may lose range as I32", .name = (char *)"image",
		.dtype = STK_DTYPE_I32);
	REFUSED(&fake, "stored U16 cannot become C64", .name = (char *)"input_ids",
		.dtype = STK_DTYPE_C64);
	REFUSED(&fake, "stored I64 may lose range as U64", .name = (char *)"wide",
		.dtype = STK_DTYPE_U64);
	REFUSED(&fake, "stored F4 has 4 bits", .name = (char *)"nibbles");
	REFUSED(&fake, "F8_E8M0 has no place in a batch", .name = (char *)"scale");
	REFUSED(&fake, "field \"m\": from: \"image\" has one shape", .name = (char *)"m",
		.make = STK_MAKE_MASK, .from = (char *)"image");
	REFUSED(&fake, "from: \"image\" has one shape", .name = (char *)"n",
		.make = STK_MAKE_LENGTHS, .from = (char *)"image");
	REFUSED(&fake, "possible for a made field: BOOL, U8, I32, I64", .name = (char *)"m",
		.make = STK_MAKE_MASK, .dtype = STK_DTYPE_F32);
	REFUSED(&fake, "possible for a made field: I64", .name = (char *)"s",
		.make = STK_MAKE_SAMPLE_IDS, .dtype = STK_DTYPE_I32);
	REFUSED(&fake, "sample_ids are not made of a field", .name = (char *)"s",
		.make = STK_MAKE_SAMPLE_IDS, .from = (char *)"wide");
	REFUSED(&fake, "padding of a made field is fixed", .name = (char *)"m",
		.make = STK_MAKE_MASK, .pad_set = true, .pad = 1, .pad_float = 1);
	REFUSED(&fake, "pad -100 does not fit U16, whole numbers from 0 to 65535",
		.name = (char *)"input_ids", .pad_set = true, .pad = -100, .pad_float = -100);
	REFUSED(&fake, "pad 0.5 does not fit I64", .name = (char *)"input_ids",
		.dtype = STK_DTYPE_I64, .pad_set = true, .pad_float = 0.5);
	REFUSED(&fake, "pad 1e+39 does not fit F32", .name = (char *)"image", .pad_set = true,
		.pad_float = 1e39);
	REFUSED(&fake, "pad of F8_E4M3 can only be 0", .name = (char *)"eights", .pad_set = true,
		.pad = 1, .pad_float = 1);
	fake_deinit(&fake);
}

/* One row of each sample of a set of two files. */
struct fault_fixture {
	struct fake_dataset fake;
	struct stkd_assembly *assembly;
	struct stkd_layout layout;
	struct stkd_recipe recipe;
	uint64_t ids[8];
	uint8_t *slot; /* mapping of `slot_fd` */
	int slot_fd;
	struct stk_err err;
};

static int set_up(void **state)
{
	static struct stk_spec_field fields[] = {{.name = (char *)"x"}, {.name = (char *)"y"}};
	struct fault_fixture *f = calloc(1, sizeof(*f));
	uint64_t map_size = 1 << 20;

	fake_init(&f->fake, 8, 5);
	fake_field(&f->fake, "x", STK_DTYPE_I32, true, 3, 0, 0);
	fake_field(&f->fake, "y", STK_DTYPE_U8, true, 9000, 0, 0);
	for (unsigned i = 0; i < 8; i++) {
		f->fake.counts[0][i] = 3;
		f->fake.counts[1][i] = 9000;
		f->ids[i] = i;
	}
	fake_build(&f->fake, 2, 0);
	f->assembly = compile(&f->fake, fields, 2, 8);
	f->recipe = (struct stkd_recipe){.rows = 8, .rows_real = 8, .width = 8, .ids = f->ids};
	f->slot_fd = memfd_create("slot", MFD_CLOEXEC);
	*state = f;
	if (stkd_assembly_layout(f->assembly, 8, 8, 0, &f->layout) < 0 ||
	    ftruncate(f->slot_fd, (off_t)map_size) < 0)
		return -1;
	f->slot = mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_SHARED, f->slot_fd, 0);
	return f->slot == MAP_FAILED ? -1 : 0;
}

static int tear_down(void **state)
{
	struct fault_fixture *f = *state;

	munmap(f->slot, 1 << 20);
	close(f->slot_fd);
	stkd_assembly_free(f->assembly);
	fake_deinit(&f->fake);
	free(f);
	return 0;
}

static int assemble(struct fault_fixture *f)
{
	struct stkd_rows_result result = {.max_length = 77};
	int r;

	/* cmocka takes SIGBUS for itself before each test. */
	assert_int_equal(stkd_guard_install(), 0);
	r = stkd_assembly_rows(f->assembly, &f->layout, &f->recipe, f->slot, 0, 8, &result,
			       &f->err);

	assert_int_equal(result.max_length == 77, r < 0);
	return r;
}

static void a_shard_cut_under_its_mapping_is_an_error_that_names_it(void **state)
{
	struct fault_fixture *f = *state;
	const struct stkd_shard *shard = f->fake.dataset.shards[1];
	char part[128];

	assert_int_equal(assemble(f), 0);
	assert_int_equal(truncate(shard->path, 4096 * 3), 0);
	assert_int_equal(assemble(f), -EBADMSG);
	snprintf(part, sizeof(part), "sample 5: %s: has 12288 bytes, had %u", shard->path,
		 (unsigned)shard->file_size);
	if (!strstr(f->err.text, part))
		fail_msg("\"%s\" does not say \"%s\"", f->err.text, part);
	/* Others of the set can still be read. */
	f->recipe.rows_real = 4;
	assert_int_equal(assemble(f), 0);
}

/* The last page reads as zeros, without a signal. */
static void a_cut_within_the_last_page_is_seen_after_copying(void **state)
{
	struct fault_fixture *f = *state;
	const struct stkd_shard *shard = f->fake.dataset.shards[0];

	assert_int_equal(truncate(shard->path, (off_t)shard->file_size - 1), 0);
	assert_int_equal(assemble(f), -EBADMSG);
	assert_non_null(strstr(f->err.text, shard->path));
}

static void a_slot_whose_memory_was_taken_away_is_told_from_a_shard(void **state)
{
	struct fault_fixture *f = *state;

	assert_int_equal(ftruncate(f->slot_fd, 4096), 0);
	assert_int_equal(assemble(f), -EFAULT);
	assert_non_null(strstr(f->err.text, "slot: byte 4096 of"));
}

static void a_row_that_changed_its_length_is_an_error(void **state)
{
	struct fault_fixture *f = *state;

	f->fake.lie_sample = 6;
	f->fake.lie_field = 0;
	for (f->fake.lie_count = 0; f->fake.lie_count < 8; f->fake.lie_count++) {
		if (f->fake.lie_count == 3)
			continue;
		assert_int_equal(assemble(f), -EBADMSG);
		assert_non_null(strstr(f->err.text, ": sample 6 (row 2): field \"x\" has "));
		assert_non_null(strstr(f->err.text, " elements, 3 when it was opened"));
	}
	f->fake.lie_field = 1;
	f->fake.lie_count = 9001;
	assert_int_equal(assemble(f), -EBADMSG);
	assert_non_null(strstr(f->err.text, "9001 elements, at most 9000 when it was opened"));
	f->fake.lie_count = UINT64_MAX;
	assert_int_equal(assemble(f), -EBADMSG);
}

#define FAULT_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(more_fields_than_a_batch_holds_are_refused),
		cmocka_unit_test(fields_that_cannot_be_made_are_refused_with_what_can),
		FAULT_TEST(a_shard_cut_under_its_mapping_is_an_error_that_names_it),
		FAULT_TEST(a_cut_within_the_last_page_is_seen_after_copying),
		FAULT_TEST(a_slot_whose_memory_was_taken_away_is_told_from_a_shard),
		FAULT_TEST(a_row_that_changed_its_length_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
