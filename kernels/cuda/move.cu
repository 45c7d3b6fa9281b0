/* SPDX-License-Identifier: MIT */
/* move.cu: launches of the kernels in move.cuh. */
#include "move.cuh"
#include "launch.cuh"

int launch_strided(cudaStream_t s, enum cuda_type t, const struct strided_args *a)
{
	dim3 grid(at_most((a->width + 255) / 256, 1u << 20), at_most(a->outer, 65535));

	return LAUNCH_T(t, strided, grid, 256, s, *a);
}

int launch_place(cudaStream_t s, enum cuda_type t, const struct place_args *a)
{
	const struct image *to = a->inverse ? &a->in : &a->out;

	return LAUNCH_T(t, place, row_grid((uint64_t)to->h * to->w * to->c, a->n), 256, s, *a);
}

int launch_upsample(cudaStream_t s, enum cuda_type t, const struct upsample_args *a)
{
	uint64_t count = (uint64_t)a->in.h * a->in.w * a->in.c;

	if (!a->backward)
		count *= (uint64_t)a->fh * a->fw;
	return LAUNCH_T(t, upsample, row_grid(count, a->n), 256, s, *a);
}
