/* SPDX-License-Identifier: MIT */
/*
 * linear.cuh: what follows a convolution or a dense layer: bias and activation forward; slope of
 * the activation and gradient of the bias backward; sums of partial sums.
 */
#include "act.cuh"

template <class T, int VEC> DEVICE void bias_act_walk(const struct bias_act_args &a)
{
	const struct walk w = walk_of(a.m);
	float bias[VEC] = {0};

	if (!w.inside)
		return;
	for (int k = 0; a.bias && k < VEC; k++)
		bias[k] = a.bias[w.col + k];
	for (uint64_t r = w.begin + w.ty; r < w.end; r += w.ny) {
		const uint64_t at = r * a.m.c + w.col;
		float v[VEC];

		load<VEC>((const T *)a.x + at, v);
		for (int k = 0; k < VEC; k++)
			v[k] += bias[k];
		if (a.pre)
			store<VEC>((T *)a.pre + at, v);
		for (int k = 0; k < VEC; k++)
			v[k] = act_value(a.act, v[k]);
		if (a.y)
			store<VEC>((T *)a.y + at, v);
	}
}

template <class T> DEVICE void bias_act(const struct bias_act_args &a)
{
	if (a.m.vec == 4)
		bias_act_walk<T, 4>(a);
	else
		bias_act_walk<T, 1>(a);
}
KERNEL_TYPES(bias_act, struct bias_act_args)

template <class T, int VEC> DEVICE void linear_back_walk(const struct linear_back_args &a)
{
	const struct walk w = walk_of(a.m);
	float sum[VEC] = {0};

	for (uint64_t r = w.begin + w.ty; w.inside && r < w.end; r += w.ny) {
		const uint64_t at = r * a.m.c + w.col;
		float v[VEC], f[VEC];

		load<VEC>((const T *)a.dy + at, v);
		if (a.from) {
			load<VEC>((const T *)a.from + at, f);
			for (int k = 0; k < VEC; k++)
				v[k] *= a.post ? (f[k] > 0.0f ? 1.0f : 0.0f)
					       : act_slope(a.act, f[k]);
			store<VEC>((T *)a.dz + at, v);
			/* the sums are of what is stored */
			load<VEC>((const T *)a.dz + at, v);
		}
		for (int k = 0; k < VEC; k++)
			sum[k] += v[k];
	}
	if (!a.partial)
		return;
	walk_sum<VEC>(w, sum);
	for (int k = 0; w.inside && w.ty == 0 && k < VEC; k++)
		a.partial[(uint64_t)blockIdx.y * a.m.c + w.col + k] = sum[k];
}

template <class T> DEVICE void linear_back(const struct linear_back_args &a)
{
	if (a.m.vec == 4)
		linear_back_walk<T, 4>(a);
	else
		linear_back_walk<T, 1>(a);
}
KERNEL_SYNC_TYPES(linear_back, struct linear_back_args)

/* Blocks of 32 columns by 8 threads that share the chunks; valid in the first row of threads. */
DEVICE double chunk_sum(const float *partial, uint64_t stride, uint64_t chunks, uint64_t col,
			uint64_t count)
{
	__shared__ double part[256];
	double sum = 0;

	for (uint64_t k = threadIdx.x / 32; col < count && k < chunks; k += 8)
		sum += partial[k * stride + col];
	__syncthreads();
	part[threadIdx.x] = sum;
	__syncthreads();
	for (int k = 1; threadIdx.x < 32 && k < 8; k++)
		sum += part[threadIdx.x + 32 * k];
	return sum;
}

KERNEL_SYNC(partial_sum, struct partial_args)
{
	uint64_t col = (uint64_t)blockIdx.x * 32 + threadIdx.x % 32;
	double sum = chunk_sum(a.partial, a.count, a.chunks, col, a.count);

	if (threadIdx.x >= 32 || col >= a.count)
		return;
	sum *= a.block ? a.block->unscale : 1.0f;
	a.out[col] = a.add ? a.out[col] + (float)sum : (float)sum;
}
