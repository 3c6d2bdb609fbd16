/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels this processor runs. No state but what the compiler's library keeps; any thread. */
#include "daemon/assemble/casts_isa.h"

size_t stkd_casts_list(const struct stkd_casts *ret[4])
{
	size_t n = 0;

#ifdef __x86_64__
	/* All of the level that the file was compiled for, not one of its parts. */
	if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl"))
		ret[n++] = &stkd_casts_avx512;
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
	    __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2"))
		ret[n++] = &stkd_casts_avx2;
#endif
	ret[n++] = &stkd_casts_portable;
	return n;
}

const struct stkd_casts *stkd_casts_best(void)
{
	const struct stkd_casts *list[4];

	stkd_casts_list(list);
	return list[0];
}
