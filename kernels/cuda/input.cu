/* SPDX-License-Identifier: MIT */
/* input.cu: launches of the kernels in input.cuh. */
#include "input.cuh"
#include "launch.cuh"

int launch_input(cudaStream_t s, enum cuda_type t, const struct input_args *a)
{
	return LAUNCH_T(t, input_rows, row_grid((uint64_t)a->s.h * a->s.w * a->s.c, a->n), 256, s,
			*a);
}
