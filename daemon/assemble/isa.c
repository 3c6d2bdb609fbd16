/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this processor runs. No state but what the compiler's library keeps; any thread. */
#include "daemon/assemble/casts_isa.h"

/* All of the level that a file was compiled for, not one of its parts. Best ones first. */
#if defined(__x86_64__)
static bool has_first(void)
{
	return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
	       __builtin_cpu_supports("avx512vl");
}

static bool has_second(void)
{
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	       __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
}

#define OF(kind)                                                                                   \
	{                                                                                          \
		&stkd_##kind##_avx512, &stkd_##kind##_avx2, &stkd_##kind##_portable                \
	}
#else
static bool has_first(void)
{
	return false;
}

#ifdef __aarch64__
static bool has_second(void)
{
	return true; /* no processor of the kind is without NEON */
}

#define OF(kind)                                                                                   \
	{                                                                                          \
		NULL, &stkd_##kind##_neon, &stkd_##kind##_portable                                 \
	}
#else
static bool has_second(void)
{
	return false;
}

#define OF(kind)                                                                                   \
	{                                                                                          \
		NULL, NULL, &stkd_##kind##_portable                                                \
	}
#endif
#endif

static size_t list(const void *const all[3], const void *ret[3])
{
	size_t n = 0;

	if (has_first())
		ret[n++] = all[0];
	if (has_second())
		ret[n++] = all[1];
	ret[n++] = all[2];
	return n;
}

size_t stkd_casts_list(const struct stkd_casts *ret[3])
{
	static const void *const all[3] = OF(casts);
	const void *found[3];
	size_t n = list(all, found);

	for (size_t i = 0; i < n; i++)
		ret[i] = found[i];
	return n;
}

const struct stkd_casts *stkd_casts_best(void)
{
	const struct stkd_casts *found[3];

	stkd_casts_list(found);
	return found[0];
}

size_t stkd_rows_list(const struct stkd_rows *ret[3])
{
	static const void *const all[3] = OF(rows);
	const void *found[3];
	size_t n = list(all, found);

	for (size_t i = 0; i < n; i++)
		ret[i] = found[i];
	return n;
}

size_t stkd_planes_list(const struct stkd_planes *ret[3])
{
	static const void *const all[3] = OF(planes);
	const void *found[3];
	size_t n = list(all, found);

	for (size_t i = 0; i < n; i++)
		ret[i] = found[i];
	return n;
}

static unsigned size_index(enum stk_dtype dtype)
{
	size_t size = stk_dtype_size(dtype);

	return size == 1 ? 0 : size == 2 ? 1 : size == 4 ? 2 : size == 8 ? 3 : STKD_NSIZES;
}

/* Of both types; false: there is no row function for them. */
static bool find_row(enum stk_dtype from, enum stk_dtype to, unsigned *ret_in, unsigned *ret_out,
		     bool *ret_signed)
{
	unsigned in = *ret_in = size_index(from), out = *ret_out = size_index(to);

	*ret_signed = false;
	if (in == STKD_NSIZES || out == STKD_NSIZES)
		return false;
	if (from == to)
		return true;
	*ret_signed = stk_dtype_class(from) == STK_DTYPE_IS_INT && stk_dtype_min(from) < 0;
	return stk_dtype_class(from) == STK_DTYPE_IS_INT &&
	       stk_dtype_class(to) == STK_DTYPE_IS_INT && in < out &&
	       !(*ret_signed && stk_dtype_min(to) == 0);
}

stkd_row_fn stkd_row_find(enum stk_dtype from, enum stk_dtype to)
{
	const struct stkd_rows *found[3];
	unsigned in, out;
	bool is_signed;

	stkd_rows_list(found);
	if (!find_row(from, to, &in, &out, &is_signed))
		return NULL;
	return (is_signed ? found[0]->signed_ : found[0]->unsigned_)[in][out];
}

stkd_twins_fn stkd_twins_find(enum stk_dtype from, enum stk_dtype to)
{
	const struct stkd_rows *found[3];
	unsigned in, out;
	bool is_signed;

	stkd_rows_list(found);
	if (!find_row(from, to, &in, &out, &is_signed))
		return NULL;
	return (is_signed ? found[0]->signed_twins : found[0]->unsigned_twins)[in][out];
}

stkd_row_fn stkd_row_ones(enum stk_dtype to)
{
	const struct stkd_rows *found[3];

	stkd_rows_list(found);
	return found[0]->ones[size_index(to)];
}
