/* SPDX-License-Identifier: MIT */
/* loops_avx512.c: the loops for AVX-512 (F, BW, DQ, VL). */
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512")
#define LOOPS_NAME cpu_loops_avx512
#define LOOPS_ISA "avx512"
#include "loops_body.h"
#endif
