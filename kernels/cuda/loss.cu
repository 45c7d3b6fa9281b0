/* SPDX-License-Identifier: MIT */
/* loss.cu: launches of the kernels in loss.cuh. */
#include "loss.cuh"
#include "launch.cuh"

int launch_loss(cudaStream_t s, enum cuda_type t, const struct loss_args *a)
{
	return LAUNCH_T(t, loss, at_most(a->n, 1u << 20), 128, s, *a);
}

int launch_loss_sums(cudaStream_t s, const struct loss_sums_args *a)
{
	return LAUNCH(loss_sums, 1, 256, s, *a);
}
