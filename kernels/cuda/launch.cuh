/* SPDX-License-Identifier: MIT */
/* launch.cuh: the only way to start a kernel, and sizes of grids. For .cu files. */
#ifndef CUDA_LAUNCH_CUH
#define CUDA_LAUNCH_CUH

#include "launch.h"

/* The value is a cudaError_t. */
#define LAUNCH(name, grid, threads, stream, a) \
	(name<<<grid, threads, 0, stream>>>(a), (int)cudaGetLastError())
#define LAUNCH_T(type, name, grid, threads, stream, a)                         \
	((type) == CUDA_T_F32	? LAUNCH(name##_f32, grid, threads, stream, a) \
	 : (type) == CUDA_T_F16 ? LAUNCH(name##_f16, grid, threads, stream, a) \
				: LAUNCH(name##_bf16, grid, threads, stream, a))

static inline unsigned int ceil_div(uint64_t a, uint64_t b)
{
	return (unsigned int)((a + b - 1) / b);
}

static inline unsigned int at_most(uint64_t a, uint64_t limit)
{
	return (unsigned int)(a > limit ? limit : a);
}

/* Threads that walk count elements, four each or one. */
static inline dim3 flat_grid(uint64_t count, unsigned int each)
{
	return dim3(at_most((count + 256ull * each - 1) / (256ull * each), 1u << 20));
}

/* Blocks that walk the elements of a row, by rows. */
static inline dim3 row_grid(uint64_t count, uint32_t n)
{
	return dim3(at_most((count + 255) / 256, 1u << 20), at_most(n, 65535));
}

static inline dim3 cols_grid(const struct cols *m)
{
	return dim3(ceil_div(m->c, (uint64_t)m->tx * m->vec), m->chunks);
}

#endif
