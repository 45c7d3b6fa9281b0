/* SPDX-License-Identifier: MIT */
/* merge.cu: launches of the kernels in merge.cuh. */
#include "merge.cuh"
#include "launch.cuh"

int launch_merge_mean(cudaStream_t s, const struct merge_mean_args *a)
{
	return LAUNCH(merge_mean_arenas, flat_grid(a->count, 1), 256, s, *a);
}

int launch_merge_outer(cudaStream_t s, const struct merge_outer_args *a)
{
	return LAUNCH(merge_outer_step, flat_grid(a->count, 1), 256, s, *a);
}

int launch_merge_moments(cudaStream_t s, const struct merge_moments_args *a)
{
	return LAUNCH(merge_pool_moments, flat_grid(a->count, 1), 256, s, *a);
}

int launch_merge_delta(cudaStream_t s, const struct merge_delta_args *a)
{
	return LAUNCH(merge_delta, flat_grid(a->count, 1), 256, s, *a);
}
