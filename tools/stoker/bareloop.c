/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops as the compiler likes them: no alias, loads through memcpy() at any address, one loop for
 * the values and one for the padding.
 */
#include "tools/stoker/bareloop.h"

#include <string.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#ifdef __has_feature
#define HAS_SANITIZER (__has_feature(thread_sanitizer) || __has_feature(address_sanitizer))
#else
#define HAS_SANITIZER 0
#endif

/* As wide as the processor allows; a sanitizer's start-up does not bear that choice. */
#if defined(__x86_64__) && defined(__OPTIMIZE__) && !defined(__SANITIZE_THREAD__) &&               \
	!defined(__SANITIZE_ADDRESS__) && !HAS_SANITIZER
#define CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define CLONES
#endif
#define AHEAD 2 /* rows whose first lines are fetched before they are needed */

#define DEFINE_LOOP(from, to)                                                                      \
	static inline void from##_to_##to(void *restrict dst, const void *restrict src, size_t n,  \
					  size_t width, uint64_t pad)                              \
	{                                                                                          \
		const uint8_t *s = src;                                                            \
		to *d = dst;                                                                       \
                                                                                                   \
		for (size_t i = 0; i < n; i++) {                                                   \
			from value;                                                                \
                                                                                                   \
			memcpy(&value, s + i * sizeof(value), sizeof(value));                      \
			d[i] = (to)value;                                                          \
		}                                                                                  \
		for (size_t i = n; i < width; i++)                                                 \
			d[i] = (to)pad;                                                            \
	}

#define DEFINE_ONES(to)                                                                            \
	static inline void ones_##to(void *restrict dst, const void *restrict src, size_t n,       \
				     size_t width, uint64_t pad)                                   \
	{                                                                                          \
		to *d = dst;                                                                       \
                                                                                                   \
		(void)src;                                                                         \
		for (size_t i = 0; i < n; i++)                                                     \
			d[i] = 1;                                                                  \
		for (size_t i = n; i < width; i++)                                                 \
			d[i] = (to)pad;                                                            \
	}

DEFINE_LOOP(uint8_t, uint8_t)
DEFINE_LOOP(uint8_t, uint16_t)
DEFINE_LOOP(uint8_t, uint32_t)
DEFINE_LOOP(uint8_t, uint64_t)
DEFINE_LOOP(uint16_t, uint16_t)
DEFINE_LOOP(uint16_t, uint32_t)
DEFINE_LOOP(uint16_t, uint64_t)
DEFINE_LOOP(uint32_t, uint32_t)
DEFINE_LOOP(uint64_t, uint64_t)
DEFINE_LOOP(int8_t, int16_t)
DEFINE_LOOP(int8_t, int32_t)
DEFINE_LOOP(int8_t, int64_t)
DEFINE_LOOP(int16_t, int32_t)
DEFINE_LOOP(int16_t, int64_t)
DEFINE_LOOP(int32_t, int64_t)
DEFINE_ONES(uint8_t)
DEFINE_ONES(uint16_t)
DEFINE_ONES(uint32_t)
DEFINE_ONES(uint64_t)

/* By the logarithms of the sizes. */
static const bare_fn unsigned_loops[4][4] = {
	{uint8_t_to_uint8_t, uint8_t_to_uint16_t, uint8_t_to_uint32_t, uint8_t_to_uint64_t},
	{NULL, uint16_t_to_uint16_t, uint16_t_to_uint32_t, uint16_t_to_uint64_t},
	{NULL, NULL, uint32_t_to_uint32_t, NULL},
	{NULL, NULL, NULL, uint64_t_to_uint64_t},
};
static const bare_fn signed_loops[4][4] = {
	{NULL, int8_t_to_int16_t, int8_t_to_int32_t, int8_t_to_int64_t},
	{NULL, NULL, int16_t_to_int32_t, int16_t_to_int64_t},
	{NULL, NULL, NULL, int32_t_to_int64_t},
};
static const bare_fn ones[4] = {ones_uint8_t, ones_uint16_t, ones_uint32_t, ones_uint64_t};

/* Nearest, ties to even; NaN stays one. */
static inline __attribute__((always_inline)) void
f32_to_bf16_any(void *restrict dst, const void *restrict src, size_t n, size_t width, uint64_t pad)
{
	const uint8_t *s = src;
	uint16_t *d = dst;

	for (size_t i = 0; i < n; i++) {
		uint32_t bits;

		memcpy(&bits, s + 4 * i, sizeof(bits));
		d[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000
					  ? bits >> 16 | 0x40
					  : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
	for (size_t i = n; i < width; i++)
		d[i] = (uint16_t)pad;
}

static void f32_to_bf16(void *restrict dst, const void *restrict src, size_t n, size_t width,
			uint64_t pad)
{
	f32_to_bf16_any(dst, src, n, width, pad);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void
f32_to_bf16_avx2(void *restrict dst, const void *restrict src, size_t n, size_t width, uint64_t pad)
{
	f32_to_bf16_any(dst, src, n, width, pad);
}
#endif

#ifdef __x86_64__
__attribute__((target("avx2,f16c"))) static void
u8_to_f16(void *restrict dst, const void *restrict src, size_t n, float scale, float bias)
{
	const uint8_t *s = src;
	uint16_t *d = dst;
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		__m256 x = _mm256_cvtepi32_ps(
			_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(s + i))));

		x = _mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(scale)), _mm256_set1_ps(bias));
		_mm_storeu_si128((void *)(d + i), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
	}
	for (; i < n; i++)
		d[i] = _cvtss_sh((float)s[i] * scale + bias, _MM_FROUND_TO_NEAREST_INT);
}
#endif

bare_fn bareloop_find(enum stk_dtype from, enum stk_dtype to)
{
	size_t in = stk_dtype_size(from), out = stk_dtype_size(to);

	if (!out || out > 8 || in > 8)
		return NULL;
	if (from == STK_DTYPE_NONE)
		return ones[__builtin_ctzll(out)];
	if (!in)
		return NULL;
#ifdef __x86_64__
	if (from == STK_DTYPE_F32 && to == STK_DTYPE_BF16 && __builtin_cpu_supports("avx2"))
		return f32_to_bf16_avx2;
#endif
	if (from == STK_DTYPE_F32 && to == STK_DTYPE_BF16)
		return f32_to_bf16;
	if (from == to)
		return unsigned_loops[__builtin_ctzll(in)][__builtin_ctzll(in)];
	if (stk_dtype_class(from) != STK_DTYPE_IS_INT || stk_dtype_class(to) != STK_DTYPE_IS_INT)
		return NULL;
	return (stk_dtype_min(from) < 0
			? signed_loops
			: unsigned_loops)[__builtin_ctzll(in)][__builtin_ctzll(out)];
}

bare_affine_fn bareloop_find_affine(enum stk_dtype from, enum stk_dtype to)
{
#ifdef __x86_64__
	/* Whoever has AVX2 and FMA has F16C, which clang has no name for here. */
	if (from == STK_DTYPE_U8 && to == STK_DTYPE_F16 && __builtin_cpu_supports("avx2") &&
	    __builtin_cpu_supports("fma"))
		return u8_to_f16;
#endif
	(void)from;
	(void)to;
	return NULL;
}

static inline void prefetch(const uint8_t *row)
{
	for (int line = 0; line < 4; line++)
		__builtin_prefetch(row + 64 * line);
}

static inline size_t length_of(const struct bareloop *loop, const struct bare_batch *batch,
			       uint32_t row)
{
	uint32_t n = row < batch->rows_real ? loop->lengths[batch->ids[row]] : 0;

	return STK_MIN(STK_MIN(n, loop->max_length), batch->width);
}

#define DEFINE_TRIPLE(from, to, mask)                                                              \
	CLONES static void triple_##from##_##to##_##mask(                                          \
		const struct bareloop *loop, const struct bare_batch *batch, uint8_t *slot)        \
	{                                                                                          \
		const struct bare_field *f = loop->fields;                                         \
		size_t width = batch->width;                                                       \
                                                                                                   \
		for (uint32_t row = 0; row < batch->rows; row++) {                                 \
			size_t n = length_of(loop, batch, row), at = row * width;                  \
			const uint8_t *src =                                                       \
				n ? f[0].base + f[0].start[batch->ids[row]] : f[0].base;           \
                                                                                                   \
			if (row + AHEAD < batch->rows_real)                                        \
				prefetch(f[0].base + f[0].start[batch->ids[row + AHEAD]]);         \
			from##_to_##to((to *)(slot + batch->offsets[0]) + at, src, n, width,       \
				       f[0].pad);                                                  \
			ones_##mask((mask *)(slot + batch->offsets[1]) + at, NULL, n, width, 0);   \
			from##_to_##to((to *)(slot + batch->offsets[2]) + at, src, n, width,       \
				       f[2].pad);                                                  \
		}                                                                                  \
	}

DEFINE_TRIPLE(uint16_t, uint64_t, uint64_t)
DEFINE_TRIPLE(uint16_t, uint32_t, uint32_t)
DEFINE_TRIPLE(uint16_t, uint32_t, uint8_t)
DEFINE_TRIPLE(uint32_t, uint32_t, uint32_t)
DEFINE_TRIPLE(uint32_t, uint32_t, uint8_t)
DEFINE_TRIPLE(int32_t, int64_t, uint64_t)

static const struct {
	uint8_t from, ids, mask; /* bytes of a value */
	void (*run)(const struct bareloop *loop, const struct bare_batch *batch, uint8_t *slot);
} triples[] = {
	{2, 8, 8, triple_uint16_t_uint64_t_uint64_t}, {2, 4, 4, triple_uint16_t_uint32_t_uint32_t},
	{2, 4, 1, triple_uint16_t_uint32_t_uint8_t},  {4, 4, 4, triple_uint32_t_uint32_t_uint32_t},
	{4, 4, 1, triple_uint32_t_uint32_t_uint8_t},  {4, 8, 8, triple_int32_t_int64_t_uint64_t},
};

void bareloop_fuse(struct bareloop *loop, enum stk_dtype from)
{
	const struct bare_field *f = loop->fields;

	loop->triple = NULL;
	/* Two of one source around a mask, each value of an element of its own. */
	if (loop->nfields != 3 || !f[0].base || f[1].base || f[2].start != f[0].start ||
	    !f[0].ragged || !f[1].ragged || !f[2].ragged || f[0].inner != 1 || f[0].fn != f[2].fn ||
	    (from != STK_DTYPE_U16 && from != STK_DTYPE_I32))
		return;
	for (size_t i = 0; i < STK_ARRAY_SIZE(triples); i++)
		if (triples[i].from == stk_dtype_size(from) && triples[i].ids == f[0].size &&
		    triples[i].mask == f[1].size)
			loop->triple = triples[i].run;
}

void bareloop_run(const struct bareloop *loop, const struct bare_batch *batch, uint8_t *slot)
{
	if (loop->triple) {
		loop->triple(loop, batch, slot);
		return;
	}
	for (uint32_t row = 0; row < batch->rows; row++) {
		size_t length = length_of(loop, batch, row);

		for (uint32_t i = 0; i < loop->nfields; i++) {
			const struct bare_field *f = &loop->fields[i];
			uint64_t width = f->ragged ? batch->width : 1;
			uint64_t n = f->ragged ? length : row < batch->rows_real;
			const uint8_t *src =
				f->base && n ? f->base + f->start[batch->ids[row]] : f->base;

			if (f->base && row + AHEAD < batch->rows_real)
				prefetch(f->base + f->start[batch->ids[row + AHEAD]]);
			if (f->affine && n)
				f->affine(slot + batch->offsets[i] + row * f->inner * f->size, src,
					  f->inner, f->scale, f->bias);
			else
				f->fn(slot + batch->offsets[i] + row * width * f->inner * f->size,
				      src, n * f->inner, width * f->inner, f->pad);
		}
	}
}
