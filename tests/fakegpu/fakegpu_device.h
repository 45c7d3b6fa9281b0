/* SPDX-License-Identifier: MIT */
/*
 * fakegpu_device.h: what CUDA's device code takes for granted, for g++: index variables, shared
 * memory, barriers, shuffles, unfused arithmetic. Included by kernels/cuda/device.cuh where no CUDA
 * compiler is at work.
 */
#ifndef FAKEGPU_DEVICE_H
#define FAKEGPU_DEVICE_H

#include <cmath>
#include <cstdint>
#include <cstring>

#include <cuda_runtime_api.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "fakegpu_kernel.h"

#undef __shared__
#define __shared__ static
#undef __global__
#define __global__
#undef __device__
#define __device__

#define threadIdx fakegpu_thread
#define blockIdx fakegpu_block
#define blockDim fakegpu_block_dim
#define gridDim fakegpu_grid_dim

static inline void __syncthreads(void)
{
	fakegpu_barrier();
}

template <class T> static inline T fakegpu_xor(T v, unsigned int mask)
{
	fakegpu_shuffle(&v, sizeof(v), mask);
	return v;
}
static inline float __shfl_xor_sync(unsigned int, float v, int mask)
{
	return fakegpu_xor(v, (unsigned int)mask);
}
static inline double __shfl_xor_sync(unsigned int, double v, int mask)
{
	return fakegpu_xor(v, (unsigned int)mask);
}
static inline uint32_t __shfl_xor_sync(unsigned int, uint32_t v, int mask)
{
	return fakegpu_xor(v, (unsigned int)mask);
}

/* The file is compiled with -ffp-contract=off. */
static inline float __fmul_rn(float a, float b)
{
	return a * b;
}
static inline float __fadd_rn(float a, float b)
{
	return a + b;
}

/* At file scope, before the kernel's body: registers it. */
#define FAKEGPU_KERNEL(name, args_type, sync)                                           \
	extern "C" void name(const args_type);                                          \
	static void fakegpu_thunk_##name(const void *a)                                 \
	{                                                                               \
		name(*static_cast<const args_type *>(a));                               \
	}                                                                               \
	__attribute__((constructor)) static void fakegpu_register_##name(void)          \
	{                                                                               \
		fakegpu_register(#name, fakegpu_thunk_##name, sizeof(args_type), sync); \
	}

#endif
