/* SPDX-License-Identifier: MIT */
/*
 * device.cuh: what every kernel is written with: the macros that define kernels, element types,
 * loads of four, sums over warps and blocks, random numbers. README.md has the rules.
 */
#ifndef CUDA_DEVICE_CUH
#define CUDA_DEVICE_CUH

#include <stdint.h>

#ifdef __CUDACC__
#define FAKEGPU_KERNEL(name, args, sync)
#define GLOBAL __global__ void __launch_bounds__(512)
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#else
#include <fakegpu_device.h>
#define GLOBAL void
#define DEVICE static inline
#define DEVICE_MEMBER inline
#endif

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>

#include "../backend.h"
#include "params.h"

#define KERNEL(name, args)                    \
	extern "C" GLOBAL name(const args a); \
	FAKEGPU_KERNEL(name, args, 0)         \
	extern "C" GLOBAL name(const args a)
#define KERNEL_SYNC(name, args)               \
	extern "C" GLOBAL name(const args a); \
	FAKEGPU_KERNEL(name, args, 1)         \
	extern "C" GLOBAL name(const args a)
/* The three kernels of a body template <class T> DEVICE void name(const args &a). */
#define KERNEL_OF_TYPES(KIND, name, args) \
	KIND(name##_f32, args)            \
	{                                 \
		name<float>(a);           \
	}                                 \
	KIND(name##_f16, args)            \
	{                                 \
		name<__half>(a);          \
	}                                 \
	KIND(name##_bf16, args)           \
	{                                 \
		name<__nv_bfloat16>(a);   \
	}
#define KERNEL_TYPES(name, args) KERNEL_OF_TYPES(KERNEL, name, args)
#define KERNEL_SYNC_TYPES(name, args) KERNEL_OF_TYPES(KERNEL_SYNC, name, args)

/* ---- elements ---------------------------------------------------------------------------- */

DEVICE float get(float v)
{
	return v;
}
DEVICE float get(__half v)
{
	return __half2float(v);
}
DEVICE float get(__nv_bfloat16 v)
{
	return __bfloat162float(v);
}
DEVICE void put(float *p, float v)
{
	*p = v;
}
DEVICE void put(__half *p, float v)
{
	*p = __float2half_rn(v);
}
DEVICE void put(__nv_bfloat16 *p, float v)
{
	*p = __float2bfloat16_rn(v);
}

template <class T> struct alignas(4 * sizeof(T)) four {
	T v[4];
};

/* VEC consecutive elements; VEC = 4 needs a pointer at a multiple of four elements. */
template <int VEC, class T> DEVICE void load(const T *p, float *v)
{
	if (VEC == 4) {
		const four<T> f = *(const four<T> *)p;

		for (int k = 0; k < VEC; k++)
			v[k] = get(f.v[k]);
	} else {
		v[0] = get(*p);
	}
}

template <int VEC, class T> DEVICE void store(T *p, const float *v)
{
	if (VEC == 4) {
		four<T> f;

		for (int k = 0; k < VEC; k++)
			put(&f.v[k], v[k]);
		*(four<T> *)p = f;
	} else {
		put(p, v[0]);
	}
}

/* p = v, or p += v */
template <int VEC, class T> DEVICE void store_add(T *p, const float *v, bool add)
{
	float sum[4];

	if (!add) {
		store<VEC>(p, v);
		return;
	}
	load<VEC>(p, sum);
	for (int k = 0; k < VEC; k++)
		sum[k] += v[k];
	store<VEC>(p, sum);
}

/* ---- sums -------------------------------------------------------------------------------- */

template <class V> DEVICE V warp_sum(V v)
{
	for (int mask = 16; mask > 0; mask >>= 1)
		v += __shfl_xor_sync(0xffffffffu, v, mask);
	return v;
}

DEVICE float warp_max(float v)
{
	for (int mask = 16; mask > 0; mask >>= 1)
		v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, mask));
	return v;
}

/* Of all threads of the block, known to all of them; the order does not vary. */
DEVICE double block_sum(double v)
{
	__shared__ double part[16];
	double sum = 0;

	v = warp_sum(v);
	__syncthreads();
	if (threadIdx.x % 32 == 0)
		part[threadIdx.x / 32] = v;
	__syncthreads();
	for (unsigned int w = 0; w < blockDim.x / 32; w++)
		sum += part[w];
	return sum;
}

/* ---- random numbers ---------------------------------------------------------------------- */

/* Philox4x32-10, as kernels/philox.c. */
DEVICE void philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key, uint32_t *out)
{
	uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);

	for (int round = 0; round < 10; round++) {
		uint64_t p0 = (uint64_t)0xD2511F53u * c0;
		uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;

		c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
		c1 = (uint32_t)p1;
		c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
		c3 = (uint32_t)p0;
		k0 += 0x9E3779B9u;
		k1 += 0xBB67AE85u;
	}
	out[0] = c0;
	out[1] = c1;
	out[2] = c2;
	out[3] = c3;
}

/* Words of elements 4 block .. 4 block + 3 of row i (kernels/random.h). */
DEVICE void philox_layer(const struct step_block *b, uint32_t i, uint32_t purpose, uint32_t layer,
			 uint32_t block, uint32_t *out)
{
	philox(block, (uint32_t)(b->position + i), (uint32_t)b->step, purpose | layer, b->seed,
	       out);
}

/* backend_uniform: 24 bits to [0, 1) */
DEVICE float uniform(uint32_t bits)
{
	return (float)(bits >> 8) * (1.0f / 16777216.0f);
}

/* ---- columns ----------------------------------------------------------------------------- */

/*
 * struct cols (params.h): a matrix of `rows` rows and c columns, walked by blocks of 256 threads:
 * tx threads side by side, each with vec (1 or 4) columns, the others below each other. Block (x,
 * y) takes columns [x tx vec, ..) and rows [y chunk, (y + 1) chunk).
 */
struct walk {
	uint32_t col, ty, ny; /* first column of this thread, its row within a step, rows a step */
	uint64_t begin, end;  /* rows of the block */
	bool inside;	      /* the columns exist */
};

DEVICE struct walk walk_of(const struct cols &m)
{
	struct walk w;
	uint64_t end;

	w.col = (blockIdx.x * m.tx + threadIdx.x % m.tx) * m.vec;
	w.ty = threadIdx.x / m.tx;
	w.ny = blockDim.x / m.tx;
	w.begin = (uint64_t)blockIdx.y * m.chunk;
	end = w.begin + m.chunk;
	w.end = end < m.rows ? end : m.rows;
	w.inside = w.col < m.c;
	return w;
}

/* Sums v[VEC] over the threads below each other; the topmost ones hold the result. */
template <int VEC> DEVICE void walk_sum(const struct walk &w, float *v)
{
	__shared__ float part[256 * VEC];
	const unsigned int tx = blockDim.x / w.ny;

	__syncthreads();
	for (int k = 0; k < VEC; k++)
		part[threadIdx.x * VEC + k] = v[k];
	for (unsigned int s = w.ny / 2; s > 0; s >>= 1) {
		__syncthreads();
		if (w.ty < s)
			for (int k = 0; k < VEC; k++)
				part[threadIdx.x * VEC + k] +=
					part[(threadIdx.x + s * tx) * VEC + k];
	}
	for (int k = 0; k < VEC; k++)
		v[k] = part[threadIdx.x * VEC + k];
}

#endif
