/* SPDX-License-Identifier: MIT */
/*
 * elementwise.cuh: activations by themselves, softmax over the last axis, sums of nodes, rescale,
 * dropout.
 */
#include "act.cuh"

#define FOR_FOURS(e, count)                                                                   \
	for (uint64_t e = ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4; e < (count); \
	     e += (uint64_t)gridDim.x * blockDim.x * 4)

/* Up to four elements from e on; all buffers start at a multiple of four elements. */
template <class T> DEVICE void load_some(const void *p, uint64_t e, uint64_t count, float *v)
{
	if (e + 4 <= count) {
		load<4>((const T *)p + e, v);
		return;
	}
	for (int k = 0; k < 4; k++)
		v[k] = e + k < count ? get(((const T *)p)[e + k]) : 0.0f;
}

template <class T>
DEVICE void store_some(void *p, uint64_t e, uint64_t count, const float *v, bool add)
{
	if (e + 4 <= count) {
		store_add<4>((T *)p + e, v, add);
		return;
	}
	for (uint64_t k = 0; e + k < count; k++)
		store_add<1>((T *)p + e + k, v + k, add);
}

template <class T> DEVICE void activation(const struct act_args &a)
{
	FOR_FOURS(e, a.count)
	{
		float v[4], d[4];

		load_some<T>(a.x, e, a.count, v);
		if (a.backward)
			load_some<T>(a.dy, e, a.count, d);
		for (int k = 0; k < 4; k++)
			v[k] = a.backward ? act_slope(a.act, v[k]) * d[k] : act_value(a.act, v[k]);
		store_some<T>(a.y, e, a.count, v, a.add);
	}
}
KERNEL_TYPES(activation, struct act_args)

/* y_j = e^(x_j - max) / sum, or its logarithm; one warp a row */
template <class T> DEVICE void softmax_row(const struct softmax_args &a, uint64_t at, uint32_t lane)
{
	const T *x = (const T *)a.x + at;
	float max = -INFINITY, sum = 0;

	for (uint32_t j = lane; j < a.c; j += 32)
		max = fmaxf(max, get(x[j]));
	max = warp_max(max);
	for (uint32_t j = lane; j < a.c; j += 32)
		sum += expf(get(x[j]) - max);
	sum = warp_sum(sum);
	for (uint32_t j = lane; j < a.c; j += 32) {
		float v = get(x[j]) - max;

		put((T *)a.y + at + j, a.logarithm ? v - logf(sum) : expf(v) / sum);
	}
}

/* dx_j = y_j (dy_j - sum dy y); logarithm: dy_j - e^y_j sum dy */
template <class T>
DEVICE void softmax_row_back(const struct softmax_args &a, uint64_t at, uint32_t lane)
{
	const T *y = (const T *)a.x + at, *dy = (const T *)a.dy + at;
	float sum = 0;

	for (uint32_t j = lane; j < a.c; j += 32)
		sum += a.logarithm ? get(dy[j]) : get(dy[j]) * get(y[j]);
	sum = warp_sum(sum);
	for (uint32_t j = lane; j < a.c; j += 32) {
		float v = get(y[j]), d = get(dy[j]);

		v = a.logarithm ? d - expf(v) * sum : v * (d - sum);
		store_add<1>((T *)a.y + at + j, &v, a.add);
	}
}

template <class T> DEVICE void softmax(const struct softmax_args &a)
{
	const uint32_t warps = blockDim.x / 32;

	for (uint64_t r = (uint64_t)blockIdx.x * warps + threadIdx.x / 32; r < a.rows;
	     r += (uint64_t)gridDim.x * warps) {
		if (a.backward)
			softmax_row_back<T>(a, r * a.c, threadIdx.x % 32);
		else
			softmax_row<T>(a, r * a.c, threadIdx.x % 32);
	}
}
KERNEL_SYNC_TYPES(softmax, struct softmax_args)

template <class T> DEVICE void sum_nodes(const struct sum_args &a)
{
	FOR_FOURS(e, a.count)
	{
		float v[4] = {0}, x[4];

		for (uint32_t i = 0; i < a.n_in; i++) {
			load_some<T>(a.x[i], e, a.count, x);
			for (int k = 0; k < 4; k++)
				v[k] += x[k];
		}
		for (int k = 0; a.act.kind != BACKEND_LINEAR && k < 4; k++)
			v[k] = act_value(a.act, v[k]);
		store_some<T>(a.y, e, a.count, v, a.add);
	}
}
KERNEL_TYPES(sum_nodes, struct sum_args)

template <class T> DEVICE void rescale(const struct rescale_args &a)
{
	for (uint64_t e = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; e < a.count;
	     e += (uint64_t)gridDim.x * blockDim.x) {
		uint32_t ch = (uint32_t)(e % a.c);
		float v = get(((const T *)a.x)[e]);

		v = v * (a.scale ? a.scale[ch] : a.scale1) + (a.offset ? a.offset[ch] : a.offset1);
		store_add<1>((T *)a.y + e, &v, a.add);
	}
}
KERNEL_TYPES(rescale, struct rescale_args)

/* Word e % 4 of block e / 4 decides over element e of a row: dropped when uniform < rate. */
template <class T> DEVICE void dropout(const struct dropout_args &a)
{
	const float keep = 1.0f / (1.0f - a.rate);
	const uint32_t fours = (a.count + 3) / 4;

	for (uint32_t i = blockIdx.y; i < a.n; i += gridDim.y)
		for (uint32_t q = blockIdx.x * blockDim.x + threadIdx.x; q < fours;
		     q += gridDim.x * blockDim.x) {
			uint32_t word[4];

			philox_layer(a.block, i, BACKEND_RANDOM_DROPOUT, a.layer, q, word);
			for (uint32_t k = 0; k < 4 && 4 * q + k < a.count; k++) {
				uint64_t at = (uint64_t)i * a.count + 4 * q + k;
				float factor = uniform(word[k]) < a.rate ? 0.0f : keep;
				/* a zero that was dropped has no sign */
				float v = 0.0f + factor * get(((const T *)a.x)[at]);

				store_add<1>((T *)a.y + at, &v, a.add);
			}
		}
}
KERNEL_TYPES(dropout, struct dropout_args)
