/* SPDX-License-Identifier: MIT */
/* norm.cu: launches of the kernels in norm.cuh. */
#include "norm.cuh"
#include "launch.cuh"

int launch_norm_stats(cudaStream_t s, enum cuda_type t, const struct norm_stats_args *a)
{
	return LAUNCH_T(t, norm_stats, cols_grid(&a->m), 256, s, *a);
}

int launch_norm_finish(cudaStream_t s, const struct norm_finish_args *a)
{
	return LAUNCH(norm_finish, ceil_div(a->c, 32), 256, s, *a);
}

int launch_norm_apply(cudaStream_t s, enum cuda_type t, const struct norm_apply_args *a)
{
	return LAUNCH_T(t, norm_apply, cols_grid(&a->m), 256, s, *a);
}

int launch_norm_back_sums(cudaStream_t s, enum cuda_type t, const struct norm_back_args *a)
{
	return LAUNCH_T(t, norm_back_sums, cols_grid(&a->m), 256, s, *a);
}

int launch_norm_sums(cudaStream_t s, const struct norm_sums_args *a)
{
	return LAUNCH(norm_sums, ceil_div(a->c, 32), 256, s, *a);
}

int launch_norm_back(cudaStream_t s, enum cuda_type t, const struct norm_back_args *a)
{
	return LAUNCH_T(t, norm_back, cols_grid(&a->m), 256, s, *a);
}
