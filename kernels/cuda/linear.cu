/* SPDX-License-Identifier: MIT */
/* linear.cu: launches of the kernels in linear.cuh. */
#include "linear.cuh"
#include "launch.cuh"

int launch_bias_act(cudaStream_t s, enum cuda_type t, const struct bias_act_args *a)
{
	return LAUNCH_T(t, bias_act, cols_grid(&a->m), 256, s, *a);
}

int launch_linear_back(cudaStream_t s, enum cuda_type t, const struct linear_back_args *a)
{
	return LAUNCH_T(t, linear_back, cols_grid(&a->m), 256, s, *a);
}

int launch_partial_sum(cudaStream_t s, const struct partial_args *a)
{
	return LAUNCH(partial_sum, ceil_div(a->count, 32), 256, s, *a);
}
