/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Assembles one small batch with fields of every kind into fresh memory and prints where that is, for
 * one_write.py, which counts the stores. Each byte of the extent is to be stored once.
 */
#include "daemon/assemble/assembly.h"
#include "daemon/shard/guard.h"
#include "tests/unit/fake_dataset.h"

#define UNUSED ((void *)0x2000000000)
#define ROWS   6
#define WIDTH  40

static struct stk_spec_field fields[] = {
	{.name = (char *)"ids", .dtype = STK_DTYPE_I64},
	{.name = (char *)"mask", .make = STK_MAKE_MASK},
	{.name = (char *)"again", .from = (char *)"ids", .dtype = STK_DTYPE_I64},
	{.name = (char *)"labels",
	 .from = (char *)"ids",
	 .dtype = STK_DTYPE_I32,
	 .pad_set = true,
	 .pad = -100,
	 .pad_float = -100,
	 .shift = true,
	 .ops = {.where = (char *)"label_mask"}},
	{.name = (char *)"left",
	 .from = (char *)"ids",
	 .dtype = STK_DTYPE_U32,
	 .side = STK_SIDE_LEFT},
	{.name = (char *)"feats", .dtype = STK_DTYPE_BF16},
	{.name = (char *)"image",
	 .dtype = STK_DTYPE_F16,
	 .ops = {.nscale = 3,
		 .scale = {0.5, 0.25, 0.125},
		 .crop = {8, 12},
		 .crop_at = STK_CROP_RANDOM,
		 .flip = STK_FLIP_RANDOM,
		 .ntranspose = 3,
		 .transpose = {2, 0, 1}}},
	{.name = (char *)"lengths", .make = STK_MAKE_LENGTHS},
	{.name = (char *)"key", .make = STK_MAKE_RANDOM_KEY},
};

int main(void)
{
	uint64_t ids[ROWS] = {3, 1, 4, 15, 9};
	struct stkd_recipe recipe = {.rows = ROWS, .rows_real = 5, .width = WIDTH, .ids = ids};
	struct stk_spec spec = {
		.multiple_of = 8, .fields = fields, .nfields = STK_ARRAY_SIZE(fields)};
	struct stkd_assembly *assembly = NULL;
	struct stkd_rows_result result;
	struct stkd_layout layout;
	struct fake_dataset fake;
	struct stk_err err = {.text = ""};
	void *slot;

	fake_init(&fake, 16, 3);
	fake_field(&fake, "ids", STK_DTYPE_U16, true, WIDTH, 0, 0);
	fake_field(&fake, "label_mask", STK_DTYPE_BOOL, true, WIDTH, 0, 0);
	fake_field(&fake, "feats", STK_DTYPE_F32, true, WIDTH, 5, 0);
	fake_field(&fake, "image", STK_DTYPE_U8, false, 0, 9, 13);
	fake.fields[3].inner[2] = 3;
	fake.fields[3].ndims = 3;
	fake.fields[3].inner_count *= 3;
	fake_align(&fake, 1, 0);
	fake_align(&fake, 2, 0);
	fake_build(&fake, 1, 0);
	if (stkd_guard_install() < 0 ||
	    stkd_assembly_new(&spec, &fake.dataset, WIDTH, &assembly, &err) < 0 ||
	    stkd_assembly_layout(assembly, ROWS, WIDTH, 0, &layout) < 0) {
		fprintf(stderr, "one_write: %s\n", err.text);
		return 1;
	}
	/* Where nothing was before: the trace begins with the program. */
	slot = mmap(UNUSED, stk_align_up(layout.size, 4096), PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (slot == MAP_FAILED)
		return 1;
	if (stkd_assembly_rows(assembly, &layout, &recipe, slot, 0, ROWS, &result, &err) < 0) {
		fprintf(stderr, "one_write: %s\n", err.text);
		return 1;
	}
	printf("%zu %zu %zu\n", (size_t)slot, (size_t)layout.extent_size, (size_t)layout.size);
	stkd_assembly_free(assembly);
	fake_deinit(&fake);
	return 0;
}
