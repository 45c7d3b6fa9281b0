/* SPDX-License-Identifier: MIT */
/* loops.c: choice of the loops by what the processor and the kernel offer. */
#include <string.h>

#include "loops.h"

const struct cpu_loops *cpu_loops_best(const char *isa)
{
#if defined(__x86_64__)
	bool avx2 = !isa || !strcmp(isa, "avx2"), avx512 = !isa || !strcmp(isa, "avx512");

	if (avx512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
		return &cpu_loops_avx512;
	if ((avx2 || avx512) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
		return &cpu_loops_avx2;
#endif
	return &cpu_loops_plain;
}
