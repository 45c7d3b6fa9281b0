/* SPDX-License-Identifier: MIT */
/* elementwise.cu: launches of the kernels in elementwise.cuh. */
#include "elementwise.cuh"
#include "launch.cuh"

int launch_activation(cudaStream_t s, enum cuda_type t, const struct act_args *a)
{
	return LAUNCH_T(t, activation, flat_grid(a->count, 4), 256, s, *a);
}

int launch_softmax(cudaStream_t s, enum cuda_type t, const struct softmax_args *a)
{
	return LAUNCH_T(t, softmax, at_most((a->rows + 3) / 4, 1u << 20), 128, s, *a);
}

int launch_sum_nodes(cudaStream_t s, enum cuda_type t, const struct sum_args *a)
{
	return LAUNCH_T(t, sum_nodes, flat_grid(a->count, 4), 256, s, *a);
}

int launch_rescale(cudaStream_t s, enum cuda_type t, const struct rescale_args *a)
{
	return LAUNCH_T(t, rescale, flat_grid(a->count, 1), 256, s, *a);
}

int launch_dropout(cudaStream_t s, enum cuda_type t, const struct dropout_args *a)
{
	return LAUNCH_T(t, dropout, row_grid((a->count + 3) / 4, a->n), 256, s, *a);
}
