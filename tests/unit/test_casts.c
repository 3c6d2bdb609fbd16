/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/assemble/chain.h"
#include "tests/unit/fence.h"

#define N 1200

static const enum stk_dtype sources[] = {
	STK_DTYPE_BOOL, STK_DTYPE_U8,  STK_DTYPE_I8,  STK_DTYPE_U16, STK_DTYPE_I16,
	STK_DTYPE_U32,  STK_DTYPE_I32, STK_DTYPE_U64, STK_DTYPE_I64, STK_DTYPE_F16,
	STK_DTYPE_BF16, STK_DTYPE_F32, STK_DTYPE_F64,
};
static const enum stk_dtype targets[] = {
	STK_DTYPE_BOOL, STK_DTYPE_U8,  STK_DTYPE_I8,  STK_DTYPE_U16,     STK_DTYPE_I16,
	STK_DTYPE_U32,  STK_DTYPE_I32, STK_DTYPE_U64, STK_DTYPE_I64,     STK_DTYPE_F16,
	STK_DTYPE_BF16, STK_DTYPE_F32, STK_DTYPE_F64, STK_DTYPE_F8_E4M3, STK_DTYPE_F8_E5M2,
};

static uint64_t random_bits(void)
{
	uint64_t bits = 0;

	for (int i = 0; i < 5; i++)
		bits = bits << 13 ^ (uint64_t)rand();
	return bits;
}

/* Random bytes, with small numbers, ends of ranges, ties and the special floats among them. */
static void fill_random(uint8_t *bytes, enum stk_dtype dtype, size_t n)
{
	size_t size = stk_dtype_size(dtype);
	bool is_float = stk_dtype_class(dtype) == STK_DTYPE_IS_FLOAT;

	for (size_t i = 0; i < n; i++) {
		uint64_t bits = random_bits();
		double real = ((double)rand() / RAND_MAX - 0.5) * exp2(rand() % 40 - 8);
		float small = (float)(rint(real * 2) / 2);

		if (is_float && size == 8 && i % 3)
			memcpy(&bits, &(double){i % 2 ? real : rint(real) + 0.5}, 8);
		if (dtype == STK_DTYPE_F32 && i % 3)
			memcpy(&bits, &(float){i % 2 ? (float)real : small}, 4);
		if (!is_float && i % 4 == 1)
			bits = (uint64_t)(rand() % 600) - 300;
		if (i % 50 == 7)
			bits = UINT64_C(1) << rand() % 64;
		if (i % 50 == 8)
			bits = ~UINT64_C(0) << rand() % 64;
		if (i % 50 == 9)
			bits = ~(~UINT64_C(0) << rand() % 64);
		memcpy(bytes + i * size, &bits, size);
	}
}

/* Exact: 64 bits of a whole number fit the mantissa of a long double. */
static long double decode_small(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_inf)
{
	int bias = (1 << (exponent_bits - 1)) - 1, top = (1 << exponent_bits) - 1;
	int exponent = (int)(bits >> mantissa_bits) & top;
	long double mantissa = bits & ((1u << mantissa_bits) - 1), value;

	if (has_inf && exponent == top)
		value = mantissa != 0 ? (long double)NAN : (long double)INFINITY;
	else if (exponent == 0)
		value = ldexpl(mantissa, 1 - bias - mantissa_bits);
	else
		value = ldexpl(mantissa + (1u << mantissa_bits), exponent - bias - mantissa_bits);
	return bits >> (exponent_bits + mantissa_bits) & 1 ? -value : value;
}

static long double decode(enum stk_dtype dtype, const uint8_t *bytes)
{
	uint64_t bits = 0;
	float f;
	double d;

	memcpy(&bits, bytes, stk_dtype_size(dtype));
	switch (dtype) {
	case STK_DTYPE_BOOL:
		return bits != 0;
	case STK_DTYPE_I8:
		return (int8_t)bits;
	case STK_DTYPE_I16:
		return (int16_t)bits;
	case STK_DTYPE_I32:
		return (int32_t)bits;
	case STK_DTYPE_I64:
		return (int64_t)bits;
	case STK_DTYPE_F16:
		return decode_small((uint32_t)bits, 5, 10, true);
	case STK_DTYPE_BF16:
		return decode_small((uint32_t)bits, 8, 7, true);
	case STK_DTYPE_F32:
		memcpy(&f, bytes, sizeof(f));
		return f;
	case STK_DTYPE_F64:
		memcpy(&d, bytes, sizeof(d));
		return d;
	default:
		return bits;
	}
}

static const struct small {
	enum stk_dtype dtype;
	int exponent, mantissa;
	uint32_t largest, over, nan;
} smalls[] = {
	{STK_DTYPE_F16, 5, 10, 0x7bff, 0x7c00, 0},
	{STK_DTYPE_BF16, 8, 7, 0x7f7f, 0x7f80, 0},
	{STK_DTYPE_F8_E4M3, 4, 3, 0x7e, 0x7f, 0x7f},
	{STK_DTYPE_F8_E5M2, 5, 2, 0x7b, 0x7c, 0x7f},
};

/* The nearest of all codes, found by halving; of two equally near ones the even one. */
static uint32_t nearest_code(const struct small *s, long double magnitude)
{
	uint32_t low = 0, high = s->largest + 1;
	long double below, above;

	/* One above the largest stands for the number that would come next. */
	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (decode_small(middle, s->exponent, s->mantissa, false) <= magnitude)
			low = middle;
		else
			high = middle;
	}
	below = magnitude - decode_small(low, s->exponent, s->mantissa, false);
	above = decode_small(high, s->exponent, s->mantissa, false) - magnitude;
	return below < above || (below == above && low % 2 == 0) ? low : high;
}

/* Value and what it became; NaN is compared by being one. */
static bool is_right_float(const struct small *s, long double value, uint64_t got, bool saturate)
{
	uint32_t sign = 1u << (s->exponent + s->mantissa), code;

	if (isnan(value))
		return s->nan ? (got & ~sign) == s->nan
			      : isnan(decode_small((uint32_t)got, s->exponent, s->mantissa, true));
	code = isinf(value) ? s->over : nearest_code(s, fabsl(value));
	if (code > s->largest)
		code = saturate && (!isinf(value) || s->dtype == STK_DTYPE_F8_E4M3) ? s->largest
										    : s->over;
	return got == (code | (signbit(value) ? sign : 0));
}

static bool is_right_whole(enum stk_dtype to, long double value, uint64_t got, bool saturate)
{
	long double low = (long double)stk_dtype_min(to);
	long double high = to == STK_DTYPE_U64 ? 0x1p64L - 1 : (long double)stk_dtype_max(to);
	long double whole = rintl(value), clamped = whole < low ? low : whole > high ? high : whole;
	uint64_t mask =
		stk_dtype_size(to) == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * stk_dtype_size(to)) - 1;
	uint64_t expected;

	if (isnan(value))
		return got == 0;
	if (!saturate)
		clamped = whole;
	if (!saturate && whole >= 0x1p63L && whole < 0x1p64L)
		return true; /* from U64: looked at by itself */
	if (!saturate && !(whole >= -0x1p63L && whole < 0x1p63L))
		clamped = 0;
	expected = clamped < 0 ? 0 - (uint64_t)-clamped : (uint64_t)clamped;
	return got == (expected & mask);
}

static bool is_right(enum stk_dtype to, long double value, uint64_t got, bool saturate)
{
	double d;
	float f;

	for (size_t i = 0; i < STK_ARRAY_SIZE(smalls); i++)
		if (smalls[i].dtype == to)
			return is_right_float(&smalls[i], value, got, saturate);
	if (to == STK_DTYPE_BOOL)
		return got == (value != 0);
	if (to == STK_DTYPE_F32) {
		memcpy(&f, &got, sizeof(f));
		if (saturate && isfinite(value) && isinf((float)value))
			return fabsf(f) == 0x1.fffffep127f && !signbit(f) == !signbit(value);
		return isnan(value) ? isnan(f) : f == (float)value;
	}
	if (to == STK_DTYPE_F64) {
		memcpy(&d, &got, sizeof(d));
		return isnan(value) ? isnan(d) : d == (double)value;
	}
	return is_right_whole(to, value, got, saturate);
}

static bool is_whole(enum stk_dtype dtype)
{
	return stk_dtype_class(dtype) != STK_DTYPE_IS_FLOAT && dtype != STK_DTYPE_F8_E4M3 &&
	       dtype != STK_DTYPE_F8_E5M2;
}

static void check_cast(enum stk_dtype from, enum stk_dtype to, int range)
{
	static uint8_t src[8 * N + 1];
	static _Alignas(8) uint8_t dst[8 * (N + 1)];
	size_t in = stk_dtype_size(from), out = stk_dtype_size(to);
	struct stk_spec_ops ops = {.range = range};
	struct stkd_chain chain;
	struct stk_err err;

	if (stkd_chain_init(&chain, from, to, &ops, &err) < 0)
		fail_msg("%s", err.text);
	fill_random(src + 1, from, N);
	memset(dst, 0xAA, sizeof(dst));
	stkd_chain_run(&chain, dst, src + 1, N, STKD_ANY_CHANNEL);
	for (size_t i = 0; i < N; i++) {
		long double value = decode(from, src + 1 + i * in);
		uint64_t got = 0;

		memcpy(&got, dst + i * out, out);
		if (!is_right(to, value, got, range == STK_RANGE_SATURATE))
			fail_msg("%s %.20Lg became %s 0x%llx", stk_dtype_name(from), value,
				 stk_dtype_name(to), (unsigned long long)got);
	}
	assert_int_equal(dst[N * out], 0xAA);
}

static void every_cast_gives_the_nearest_value_ties_to_even(void **state)
{
	(void)state;
	srand(7);
	for (size_t f = 0; f < STK_ARRAY_SIZE(sources); f++) {
		for (size_t t = 0; t < STK_ARRAY_SIZE(targets); t++) {
			check_cast(sources[f], targets[t], STK_RANGE_SATURATE);
			if (is_whole(targets[t]))
				check_cast(sources[f], targets[t], STK_RANGE_WRAP);
		}
	}
}

/* Every F16 and BF16 there is, and every tie between two of them. */
static void every_small_float_survives_a_round_trip(void **state)
{
	static const struct stk_spec_ops none;
	struct stkd_chain up, down;
	struct stk_err err;

	(void)state;
	for (int k = 0; k < 2; k++) {
		enum stk_dtype dtype = k ? STK_DTYPE_BF16 : STK_DTYPE_F16;

		assert_int_equal(stkd_chain_init(&up, dtype, STK_DTYPE_F32, &none, &err), 0);
		assert_int_equal(stkd_chain_init(&down, STK_DTYPE_F32, dtype, &none, &err), 0);
		for (uint32_t bits = 0; bits < 0x10000; bits++) {
			uint16_t code = (uint16_t)bits, back = 0;
			float wide = 0;

			assert_true(stkd_chain_run(&up, &wide, &code, 1, STKD_ANY_CHANNEL));
			assert_true(stkd_chain_run(&down, &back, &wide, 1, STKD_ANY_CHANNEL));
			if (isnan(wide))
				assert_true(isnan(decode(dtype, (uint8_t *)&back)));
			else
				assert_int_equal(back, code);
		}
	}
}

static size_t block_size(int domain)
{
	return domain == STKD_F32 ? 4 : 8;
}

/* A place for n values: right before the fence, or anywhere; never at a certain alignment. */
static uint8_t *place(const struct fence *fence, size_t size)
{
	return rand() % 2 ? fence->end - size : fence->start + rand() % 64;
}

/* Bits a kernel leaves behind, and whether it saw something out of range; from any address to any that
 * is aligned to its type, reading and writing nothing else. */
static void compare_tables(const struct stkd_casts *a, const struct stkd_casts *b, int domain,
			   enum stk_dtype from, enum stk_dtype to, size_t n)
{
	static _Alignas(64) uint8_t x[8 * N + 128], y[8 * N + 128], block_x[8 * N], block_y[8 * N];
	struct fence memory = fence_new(8 * N);
	size_t offset = (size_t)(rand() % 8) * stk_dtype_size(to);
	uint8_t *src = place(&memory, n * stk_dtype_size(from));

	fill_random(src, from, n);
	memset(block_x, 0, sizeof(block_x));
	memset(block_y, 0, sizeof(block_y));
	a->load[domain][from](block_x, src, n);
	b->load[domain][from](block_y, src, n);
	assert_memory_equal(block_x, block_y, sizeof(block_x));
	/* Stores take the place of the source where the block would hold the same bytes. */
	src = place(&memory, n * block_size(domain));
	memcpy(src, block_x, n * block_size(domain));
	for (int beyond = 0; beyond < STKD_NBEYOND; beyond++) {
		memset(x, 0xAA, sizeof(x));
		memset(y, 0xAA, sizeof(y));
		assert_int_equal(a->store[domain][to][beyond](x + offset, src, n),
				 b->store[domain][to][beyond](y + offset, block_y, n));
		assert_memory_equal(x, y, sizeof(x));
		for (size_t i = offset + n * stk_dtype_size(to); i < sizeof(x); i++)
			assert_int_equal(x[i], 0xAA);
	}
	fence_free(&memory);
}

static void each_instruction_set_gives_the_same_bits(void **state)
{
	const struct stkd_casts *list[3];
	size_t n = stkd_casts_list(list);

	(void)state;
	srand(11);
	for (size_t i = 0; i + 1 < n; i++)
		for (int d = 0; d < STKD_NDOMAINS; d++)
			for (size_t f = 0; f < STK_ARRAY_SIZE(sources); f++)
				for (size_t t = 0; t < STK_ARRAY_SIZE(targets); t++)
					if (list[i]->load[d][sources[f]] &&
					    list[i]->store[d][targets[t]][0])
						for (int round = 0; round < 4; round++)
							compare_tables(
								list[i], list[n - 1], d, sources[f],
								targets[t],
								(size_t)rand() %
									(round ? 90 : STKD_BLOCK));
}

static void compare_pixels(const struct stkd_casts *a, const struct stkd_casts *b,
			   const struct fence *memory, enum stk_dtype to)
{
	static float scale[STKD_BLOCK], bias[STKD_BLOCK];
	static uint32_t x[STKD_BLOCK], y[STKD_BLOCK];
	size_t n = (size_t)rand() % STKD_BLOCK;
	const uint8_t *src = place(memory, n);

	for (size_t i = 0; i < STKD_BLOCK; i++) {
		scale[i] = (float)rand() / 3e5f * (rand() % 2 ? 1 : 1e-12f);
		bias[i] = -(float)rand() / 1e9f;
	}
	memset(x, 0xAA, sizeof(x));
	memset(y, 0xAA, sizeof(y));
	a->pixels[to].all(x, src, n, scale[0], bias[0]);
	b->pixels[to].all(y, src, n, scale[0], bias[0]);
	assert_memory_equal(x, y, sizeof(x));
	a->pixels[to].in_turn(x, src, n, scale, bias);
	b->pixels[to].in_turn(y, src, n, scale, bias);
	assert_memory_equal(x, y, sizeof(x));
}

static void pixels_have_the_same_bits_from_each_instruction_set(void **state)
{
	static const enum stk_dtype floats[] = {STK_DTYPE_F16, STK_DTYPE_BF16, STK_DTYPE_F32};
	struct fence memory = fence_new(STKD_BLOCK + 64);
	const struct stkd_casts *list[3];
	size_t n = stkd_casts_list(list);

	(void)state;
	srand(17);
	fill_random(memory.start, STK_DTYPE_U8, (size_t)(memory.end - memory.start));
	for (size_t i = 0; i + 1 < n; i++)
		for (int round = 0; round < 300; round++)
			compare_pixels(list[i], list[n - 1], &memory, floats[round % 3]);
	fence_free(&memory);
}

static void compare_arithmetic(const struct stkd_casts *a, const struct stkd_casts *b)
{
	float scale[67], bias[67], x[67], y[67];
	double scales[67], biases[67], u[67], v[67];
	int64_t i[67], j[67];

	for (size_t k = 0; k < 67; k++) {
		x[k] = y[k] = (float)rand() / 3e8f;
		u[k] = v[k] = (double)rand() / 3e8;
		scales[k] = scale[k] = (float)rand() / 1e9f;
		biases[k] = bias[k] = -(float)rand() / 7e8f;
		i[k] = j[k] = (int64_t)(((uint64_t)rand() << 33) ^ (uint64_t)rand());
	}
	a->affines_f32(x, scale, bias, 67);
	b->affines_f32(y, scale, bias, 67);
	a->affine_f32(x, scale[0], bias[0], 66);
	b->affine_f32(y, scale[0], bias[0], 66);
	a->clamp_f32(x, -1, 1, 65);
	b->clamp_f32(y, -1, 1, 65);
	assert_memory_equal(x, y, sizeof(x));
	a->affines_f64(u, scales, biases, 67);
	b->affines_f64(v, scales, biases, 67);
	a->affine_f64(u, scales[0], biases[0], 66);
	b->affine_f64(v, scales[0], biases[0], 66);
	a->clamp_f64(u, -1, 1, 65);
	b->clamp_f64(v, -1, 1, 65);
	assert_memory_equal(u, v, sizeof(u));
	a->clamp_i64(i, INT64_MIN / 2, INT64_MAX / 2, 67);
	b->clamp_i64(j, INT64_MIN / 2, INT64_MAX / 2, 67);
	a->modulo_i64(i, 1000003, 66);
	b->modulo_i64(j, 1000003, 66);
	a->clamp_u64((uint64_t *)i, 10, UINT64_MAX / 3, 65);
	b->clamp_u64((uint64_t *)j, 10, UINT64_MAX / 3, 65);
	a->modulo_u64((uint64_t *)i, 999983, 64);
	b->modulo_u64((uint64_t *)j, 999983, 64);
	assert_memory_equal(i, j, sizeof(i));
}

static void arithmetic_is_rounded_alike_by_each_instruction_set(void **state)
{
	const struct stkd_casts *list[3];
	size_t n = stkd_casts_list(list);

	(void)state;
	srand(13);
	for (size_t k = 0; k + 1 < n; k++)
		for (int round = 0; round < 200; round++)
			compare_arithmetic(list[k], list[n - 1]);
}

static bool runs_clean(enum stk_dtype from, enum stk_dtype to, const void *value)
{
	struct stk_spec_ops ops = {.range = STK_RANGE_ERROR};
	struct stkd_chain chain;
	struct stk_err err;
	uint64_t out[100];
	uint8_t in[100 * 8] = {0};

	memcpy(in + 83 * stk_dtype_size(from), value, stk_dtype_size(from));
	if (stkd_chain_init(&chain, from, to, &ops, &err) < 0)
		fail_msg("%s", err.text);
	return stkd_chain_run(&chain, out, in, 100, STKD_ANY_CHANNEL);
}

static void a_value_out_of_range_is_seen_wherever_it_stands(void **state)
{
	(void)state;
	assert_true(runs_clean(STK_DTYPE_I64, STK_DTYPE_I32, &(int64_t){INT32_MAX}));
	assert_false(runs_clean(STK_DTYPE_I64, STK_DTYPE_I32, &(int64_t){INT64_C(1) << 31}));
	assert_false(runs_clean(STK_DTYPE_I64, STK_DTYPE_U64, &(int64_t){-1}));
	assert_false(runs_clean(STK_DTYPE_U64, STK_DTYPE_I64, &(uint64_t){UINT64_MAX}));
	assert_true(runs_clean(STK_DTYPE_F32, STK_DTYPE_U8, &(float){255.4f}));
	assert_false(runs_clean(STK_DTYPE_F32, STK_DTYPE_U8, &(float){255.6f}));
	assert_false(runs_clean(STK_DTYPE_F32, STK_DTYPE_I16, &(float){NAN}));
	assert_false(runs_clean(STK_DTYPE_F64, STK_DTYPE_I64, &(double){0x1p63}));
	assert_true(runs_clean(STK_DTYPE_F32, STK_DTYPE_F16, &(float){65519}));
	assert_false(runs_clean(STK_DTYPE_F32, STK_DTYPE_F16, &(float){65520}));
	assert_true(runs_clean(STK_DTYPE_F32, STK_DTYPE_F16, &(float){INFINITY}));
	assert_true(runs_clean(STK_DTYPE_F32, STK_DTYPE_F8_E4M3, &(float){464}));
	assert_false(runs_clean(STK_DTYPE_F32, STK_DTYPE_F8_E4M3, &(float){465}));
	assert_false(runs_clean(STK_DTYPE_F64, STK_DTYPE_F32, &(double){1e39}));
	assert_false(runs_clean(STK_DTYPE_F64, STK_DTYPE_BF16, &(double){1e300}));
}

static void whole_numbers_wrap_as_their_bits_do(void **state)
{
	struct stk_spec_ops ops = {.range = STK_RANGE_WRAP};
	const uint64_t value = UINT64_C(0xfedcba9876543210);
	struct stkd_chain chain;
	struct stk_err err;
	int32_t out = 0;

	(void)state;
	assert_int_equal(stkd_chain_init(&chain, STK_DTYPE_U64, STK_DTYPE_I32, &ops, &err), 0);
	assert_true(stkd_chain_run(&chain, &out, &value, 1, STKD_ANY_CHANNEL));
	assert_int_equal(out, 0x76543210);
}

static const char *refusal(enum stk_dtype from, enum stk_dtype to, const struct stk_spec_ops *ops)
{
	static struct stk_err err;
	struct stkd_chain chain;

	err.text[0] = '\0';
	return stkd_chain_init(&chain, from, to, ops, &err) < 0 ? err.text : NULL;
}

static void a_cast_that_may_lose_range_is_refused_unless_something_bounds_it(void **state)
{
	const struct stk_spec_ops none = {0};
	const struct stk_spec_ops clamp = {.clamp_set = true, .clamp = {-5, 100}};
	const struct stk_spec_ops wide = {.clamp_set = true, .clamp = {-5, 300}};
	const struct stk_spec_ops modulo = {.modulo = 256}, above = {.modulo = 257};

	(void)state;
	assert_non_null(strstr(refusal(STK_DTYPE_I64, STK_DTYPE_I32, &none), "may lose range"));
	assert_non_null(refusal(STK_DTYPE_I8, STK_DTYPE_U64, &none));
	assert_non_null(refusal(STK_DTYPE_F32, STK_DTYPE_I64, &none));
	assert_non_null(refusal(STK_DTYPE_U16, STK_DTYPE_F16, &none));
	assert_non_null(refusal(STK_DTYPE_F32, STK_DTYPE_F8_E4M3, &none));
	assert_non_null(refusal(STK_DTYPE_I64, STK_DTYPE_I8, &wide));
	assert_non_null(refusal(STK_DTYPE_I64, STK_DTYPE_U8, &above));
	assert_null(refusal(STK_DTYPE_I64, STK_DTYPE_I8, &clamp));
	assert_null(refusal(STK_DTYPE_I64, STK_DTYPE_U8, &modulo));
	assert_null(refusal(STK_DTYPE_F32, STK_DTYPE_F16, &none));
	assert_null(refusal(STK_DTYPE_U8, STK_DTYPE_F16, &none));
	assert_null(refusal(STK_DTYPE_I64, STK_DTYPE_BF16, &none));
	assert_null(refusal(STK_DTYPE_F64, STK_DTYPE_BOOL, &none));
}

static void an_op_on_the_wrong_type_is_refused_with_the_type(void **state)
{
	const struct stk_spec_ops modulo = {.modulo = 7};
	const struct stk_spec_ops both = {.modulo = 7, .nscale = 1, .scale = {2}};
	const struct stk_spec_ops uneven = {.nscale = 3, .nbias = 2};
	const struct stk_spec_ops huge = {.nscale = 1, .scale = {1}, .nbias = 1, .bias = {-1e39}};
	const struct stk_spec_ops wrap = {.range = STK_RANGE_WRAP};
	const struct stk_spec_ops none = {0};

	(void)state;
	assert_non_null(strstr(refusal(STK_DTYPE_F32, STK_DTYPE_F32, &modulo), "modulo"));
	assert_non_null(strstr(refusal(STK_DTYPE_I32, STK_DTYPE_I32, &both), "modulo"));
	assert_non_null(strstr(refusal(STK_DTYPE_F32, STK_DTYPE_F32, &uneven), "scale has 3"));
	assert_non_null(strstr(refusal(STK_DTYPE_F32, STK_DTYPE_F16, &wrap), "wrap"));
	assert_non_null(strstr(refusal(STK_DTYPE_BOOL, STK_DTYPE_U8, &modulo), "BOOL"));
	assert_string_equal(
		refusal(STK_DTYPE_U8, STK_DTYPE_BF16, &huge),
		"scale or bias is beyond what F32 holds, in which stored U8 becomes BF16");
	assert_null(refusal(STK_DTYPE_U8, STK_DTYPE_F64, &huge));
	assert_non_null(strstr(refusal(STK_DTYPE_C64, STK_DTYPE_F32, &none), "C64"));
	assert_non_null(strstr(refusal(STK_DTYPE_F8_E4M3, STK_DTYPE_F32, &none), "targets only"));
}

static void ids_fold_to_the_rest_of_a_modulus(void **state)
{
	const struct stk_spec_ops ops = {.modulo = 1000};
	const int64_t in[] = {0, 999, 1000, -1, -1000, INT64_MIN, INT64_MAX};
	const int64_t expected[] = {0, 999, 0, 999, 0, 192, 807};
	uint16_t out[7];
	struct stkd_chain chain;
	struct stk_err err;

	(void)state;
	assert_int_equal(stkd_chain_init(&chain, STK_DTYPE_I64, STK_DTYPE_U16, &ops, &err), 0);
	assert_true(stkd_chain_run(&chain, out, in, 7, STKD_ANY_CHANNEL));
	for (size_t i = 0; i < 7; i++)
		assert_int_equal(out[i], expected[i]);
}

static void channels_take_turns_across_blocks(void **state)
{
	const struct stk_spec_ops ops = {
		.nscale = 3, .scale = {1, 10, 100}, .nbias = 3, .bias = {0.5, 0.25, 0}};
	static uint8_t in[3 * 400];
	static float out[3 * 400];
	struct stkd_chain chain;
	struct stk_err err;

	(void)state;
	for (size_t i = 0; i < sizeof(in); i++)
		in[i] = (uint8_t)i;
	assert_int_equal(stkd_chain_init(&chain, STK_DTYPE_U8, STK_DTYPE_F32, &ops, &err), 0);
	assert_true(stkd_chain_run(&chain, out, in, sizeof(in), STKD_ANY_CHANNEL));
	for (size_t i = 0; i < sizeof(in); i++)
		assert_true(out[i] ==
			    (float)in[i] * (float)ops.scale[i % 3] + (float)ops.bias[i % 3]);
	assert_true(stkd_chain_run(&chain, out, in, sizeof(in), 2));
	for (size_t i = 0; i < sizeof(in); i++)
		assert_true(out[i] == (float)in[i] * 100.0f);
}

/* The straight way against the one through blocks, which range: saturate takes. */
static void pixels_are_what_blocks_make_of_them(void **state)
{
	static const enum stk_dtype floats[] = {STK_DTYPE_F16, STK_DTYPE_BF16, STK_DTYPE_F32};
	struct stk_spec_ops ops = {.nscale = 3, .nbias = 3};
	static uint8_t in[1001];
	static uint32_t a[1000], b[1000];
	struct stkd_chain straight, blocks;
	struct stk_err err;

	(void)state;
	srand(5);
	fill_random(in, STK_DTYPE_U8, sizeof(in));
	for (int round = 0; round < 60; round++) {
		enum stk_dtype to = floats[round % 3];
		uint32_t channel = round % 4 ? (uint32_t)(round % 3) : STKD_ANY_CHANNEL;
		size_t n = (size_t)rand() % 1000;

		for (int i = 0; i < 3; i++) {
			ops.scale[i] = (double)rand() / 3e10;
			ops.bias[i] = -(double)rand() / 1e9;
		}
		ops.range = STK_RANGE_REFUSE;
		assert_int_equal(stkd_chain_init(&straight, STK_DTYPE_U8, to, &ops, &err), 0);
		ops.range = STK_RANGE_SATURATE;
		assert_int_equal(stkd_chain_init(&blocks, STK_DTYPE_U8, to, &ops, &err), 0);
		assert_true(straight.pixels && !blocks.pixels);
		memset(a, 0, sizeof(a));
		memset(b, 0, sizeof(b));
		assert_true(stkd_chain_run(&straight, a, in + 1, n, channel));
		assert_true(stkd_chain_run(&blocks, b, in + 1, n, channel));
		assert_memory_equal(a, b, sizeof(a));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_cast_gives_the_nearest_value_ties_to_even),
		cmocka_unit_test(every_small_float_survives_a_round_trip),
		cmocka_unit_test(each_instruction_set_gives_the_same_bits),
		cmocka_unit_test(pixels_have_the_same_bits_from_each_instruction_set),
		cmocka_unit_test(arithmetic_is_rounded_alike_by_each_instruction_set),
		cmocka_unit_test(a_value_out_of_range_is_seen_wherever_it_stands),
		cmocka_unit_test(whole_numbers_wrap_as_their_bits_do),
		cmocka_unit_test(a_cast_that_may_lose_range_is_refused_unless_something_bounds_it),
		cmocka_unit_test(an_op_on_the_wrong_type_is_refused_with_the_type),
		cmocka_unit_test(ids_fold_to_the_rest_of_a_modulus),
		cmocka_unit_test(channels_take_turns_across_blocks),
		cmocka_unit_test(pixels_are_what_blocks_make_of_them),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
