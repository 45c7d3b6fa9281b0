/* SPDX-License-Identifier: MIT */
/*
 * merge.cuh: the arithmetic of a merge on device memory, in double and in the order of the inputs,
 * as nccl_merge/ does it on the host.
 */
#include "device.cuh"

#define FOR_ALL(i, count)                                                               \
	for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < (count); \
	     i += (uint64_t)gridDim.x * blockDim.x)

KERNEL(merge_mean_arenas, struct merge_mean_args)
{
	FOR_ALL(i, a.count)
	{
		double sum = 0;

		for (uint32_t k = 0; k < a.n; k++)
			if (a.weight[k] != 0)
				sum += a.weight[k] * (double)a.in[k][i];
		a.out[i] = (float)(sum / a.total);
	}
}

KERNEL(merge_outer_step, struct merge_outer_args)
{
	const bool plain = a.eta == 1 && a.mu == 0; /* averaging: no rounding on the way */

	FOR_ALL(i, a.count)
	{
		double x = a.x[i], delta = x - (double)a.mean[i], v;

		a.m[i] = (float)(plain ? delta : a.mu * (double)a.m[i] + delta);
		v = a.m[i]; /* the rounded momentum is what the next merge will see */
		if (a.nesterov)
			v = delta + a.mu * v;
		a.x[i] = plain ? a.mean[i] : (float)(x - a.eta * v);
	}
}

KERNEL(merge_pool_moments, struct merge_moments_args)
{
	FOR_ALL(i, a.count)
	{
		double first = a.mean[0][i], mu = 0, var = 0;

		for (uint32_t k = 0; k < a.n; k++)
			if (a.weight[k] > 0)
				mu += a.weight[k] * ((double)a.mean[k][i] - first);
		mu += first;
		for (uint32_t k = 0; k < a.n; k++) {
			double d = (double)a.mean[k][i] - mu;

			if (a.weight[k] > 0)
				var += a.weight[k] * ((double)a.var[k][i] + d * d);
		}
		a.mean_out[i] = (float)mu;
		a.var_out[i] = (float)var;
	}
}

/* Round to nearest even; NaN stays NaN. */
DEVICE uint16_t bf16_bits(float x)
{
	union {
		float f;
		uint32_t u;
	} v = {x};

	if ((v.u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(v.u >> 16 | 0x40);
	return (uint16_t)((v.u + 0x7fffu + (v.u >> 16 & 1)) >> 16);
}

DEVICE float bf16_value(uint16_t b)
{
	union {
		uint32_t u;
		float f;
	} v = {(uint32_t)b << 16};

	return v.f;
}

KERNEL(merge_delta, struct merge_delta_args)
{
	FOR_ALL(i, a.count)
	{
		float d, rest;

		if (a.decode) {
			a.x[i] = a.start[i] - bf16_value(a.wire[i]);
			continue;
		}
		d = a.start[i] - a.from[i] + a.carry[i];
		a.wire[i] = bf16_bits(d);
		rest = d - bf16_value(a.wire[i]);
		a.carry[i] = isfinite(rest) ? rest : 0.0f;
	}
}
