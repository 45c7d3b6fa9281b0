/* SPDX-License-Identifier: MIT */
/* loops_avx2.c: the loops for AVX2 and FMA. */
#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,bmi,bmi2")
#define LOOPS_NAME cpu_loops_avx2
#define LOOPS_ISA "avx2"
#include "loops_body.h"
#endif
