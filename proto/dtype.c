/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/dtype.h"

#include <string.h>
#include <strings.h>

static const struct {
	const char *name;
	uint8_t bits;
	uint8_t class;
	int64_t min, max; /* integers and BOOL only */
} table[STK_DTYPE_COUNT] = {
	[STK_DTYPE_NONE] = {"?", 0, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_BOOL] = {"BOOL", 8, STK_DTYPE_IS_BOOL, 0, 1},
	[STK_DTYPE_U8] = {"U8", 8, STK_DTYPE_IS_INT, 0, UINT8_MAX},
	[STK_DTYPE_I8] = {"I8", 8, STK_DTYPE_IS_INT, INT8_MIN, INT8_MAX},
	[STK_DTYPE_U16] = {"U16", 16, STK_DTYPE_IS_INT, 0, UINT16_MAX},
	[STK_DTYPE_I16] = {"I16", 16, STK_DTYPE_IS_INT, INT16_MIN, INT16_MAX},
	[STK_DTYPE_U32] = {"U32", 32, STK_DTYPE_IS_INT, 0, UINT32_MAX},
	[STK_DTYPE_I32] = {"I32", 32, STK_DTYPE_IS_INT, INT32_MIN, INT32_MAX},
	[STK_DTYPE_U64] = {"U64", 64, STK_DTYPE_IS_INT, 0, INT64_MAX},
	[STK_DTYPE_I64] = {"I64", 64, STK_DTYPE_IS_INT, INT64_MIN, INT64_MAX},
	[STK_DTYPE_F16] = {"F16", 16, STK_DTYPE_IS_FLOAT, 0, 0},
	[STK_DTYPE_BF16] = {"BF16", 16, STK_DTYPE_IS_FLOAT, 0, 0},
	[STK_DTYPE_F32] = {"F32", 32, STK_DTYPE_IS_FLOAT, 0, 0},
	[STK_DTYPE_F64] = {"F64", 64, STK_DTYPE_IS_FLOAT, 0, 0},
	[STK_DTYPE_F8_E4M3] = {"F8_E4M3", 8, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F8_E5M2] = {"F8_E5M2", 8, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_C64] = {"C64", 64, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F8_E8M0] = {"F8_E8M0", 8, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F8_E4M3FNUZ] = {"F8_E4M3FNUZ", 8, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F8_E5M2FNUZ] = {"F8_E5M2FNUZ", 8, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F4] = {"F4", 4, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F6_E2M3] = {"F6_E2M3", 6, STK_DTYPE_IS_OTHER, 0, 0},
	[STK_DTYPE_F6_E3M2] = {"F6_E3M2", 6, STK_DTYPE_IS_OTHER, 0, 0},
};

static unsigned index_of(enum stk_dtype dtype)
{
	return (unsigned)dtype < STK_DTYPE_COUNT ? (unsigned)dtype : STK_DTYPE_NONE;
}

const char *stk_dtype_name(enum stk_dtype dtype)
{
	return table[index_of(dtype)].name;
}

unsigned stk_dtype_bits(enum stk_dtype dtype)
{
	return table[index_of(dtype)].bits;
}

size_t stk_dtype_size(enum stk_dtype dtype)
{
	unsigned bits = stk_dtype_bits(dtype);

	return bits % 8 ? 0 : bits / 8;
}

enum stk_dtype_class stk_dtype_class(enum stk_dtype dtype)
{
	return table[index_of(dtype)].class;
}

int64_t stk_dtype_min(enum stk_dtype dtype)
{
	return table[index_of(dtype)].min;
}

int64_t stk_dtype_max(enum stk_dtype dtype)
{
	return table[index_of(dtype)].max;
}

enum stk_dtype stk_dtype_from_safetensors(const char *name, size_t len)
{
	for (unsigned i = 1; i < STK_DTYPE_COUNT; i++)
		if (strlen(table[i].name) == len && !memcmp(table[i].name, name, len))
			return (enum stk_dtype)i;
	return STK_DTYPE_NONE;
}

enum stk_dtype stk_dtype_from_spec(const char *name)
{
	for (unsigned i = 1; i < STK_DTYPE_COUNT; i++)
		if (!strcasecmp(table[i].name, name))
			return (enum stk_dtype)i;
	return STK_DTYPE_NONE;
}
