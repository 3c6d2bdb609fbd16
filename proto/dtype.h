/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element types: one table of codes (in shared memory and the public header), names (of
 * safetensors; lower case in specs) and sizes. Constant data, any thread.
 */
#ifndef STK_PROTO_DTYPE_H
#define STK_PROTO_DTYPE_H

#include "proto/base.h"

/* Codes are part of the shared-memory layout: append only. */
enum stk_dtype {
	STK_DTYPE_NONE = 0,
	STK_DTYPE_BOOL = 1,
	STK_DTYPE_U8 = 2,
	STK_DTYPE_I8 = 3,
	STK_DTYPE_U16 = 4,
	STK_DTYPE_I16 = 5,
	STK_DTYPE_U32 = 6,
	STK_DTYPE_I32 = 7,
	STK_DTYPE_U64 = 8,
	STK_DTYPE_I64 = 9,
	STK_DTYPE_F16 = 10,
	STK_DTYPE_BF16 = 11,
	STK_DTYPE_F32 = 12,
	STK_DTYPE_F64 = 13,
	STK_DTYPE_F8_E4M3 = 14,
	STK_DTYPE_F8_E5M2 = 15,
	STK_DTYPE_C64 = 16,
	/* Known to the shard reader, never in a batch. */
	STK_DTYPE_F8_E8M0 = 17,
	STK_DTYPE_F8_E4M3FNUZ = 18,
	STK_DTYPE_F8_E5M2FNUZ = 19,
	STK_DTYPE_F4 = 20,
	STK_DTYPE_F6_E2M3 = 21,
	STK_DTYPE_F6_E3M2 = 22,
	STK_DTYPE_COUNT
};

enum stk_dtype_class {
	STK_DTYPE_IS_OTHER,
	STK_DTYPE_IS_BOOL,
	STK_DTYPE_IS_INT,
	STK_DTYPE_IS_FLOAT
};

/* Name as safetensors writes it ("I32"); "?" for an unknown code. */
const char *stk_dtype_name(enum stk_dtype dtype);
/* Size of one element in bits; 0 for an unknown code. */
unsigned stk_dtype_bits(enum stk_dtype dtype);
/* Size of one element in bytes; 0 when it is not a whole number of bytes or the code is unknown. */
size_t stk_dtype_size(enum stk_dtype dtype);
enum stk_dtype_class stk_dtype_class(enum stk_dtype dtype);
/* Smallest and largest value of an integer type or BOOL; max is capped to INT64_MAX for U64. */
int64_t stk_dtype_min(enum stk_dtype dtype);
int64_t stk_dtype_max(enum stk_dtype dtype);

/* Exact name as in a safetensors header; STK_DTYPE_NONE when unknown. */
enum stk_dtype stk_dtype_from_safetensors(const char *name, size_t len);
/* Name as in a spec ("i32", "bool", "bf16"; case is ignored); STK_DTYPE_NONE when unknown. */
enum stk_dtype stk_dtype_from_spec(const char *name);

#endif
