// SPDX-License-Identifier: MIT
/* self_kernels.cc: kernels for self.c: one without barriers, one with, and one that is wrong. */
#include "fakegpu_device.h"

struct self_args {
	float *x;
	uint32_t n;
};

FAKEGPU_KERNEL(self_double, self_args, 0)
extern "C" void self_double(const self_args a)
{
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < a.n)
		a.x[i] *= 2;
}

/* Every element becomes the sum of its block's. */
FAKEGPU_KERNEL(self_sum, self_args, 1)
extern "C" void self_sum(const self_args a)
{
	__shared__ float part[16];
	uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
	float v = i < a.n ? a.x[i] : 0;

	for (int mask = 16; mask; mask >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, mask);
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	v = 0;
	for (uint32_t k = 0; k < blockDim.x / 32; k++)
		v += part[k];
	if (i < a.n)
		a.x[i] = v;
}

FAKEGPU_KERNEL(self_lost_barrier, self_args, 1)
extern "C" void self_lost_barrier(const self_args a)
{
	if (threadIdx.x >= a.n)
		return;
	__syncthreads();
}
