/* SPDX-License-Identifier: MIT */
/* conv.cu: launches of the kernels in conv.cuh. */
#include "conv.cuh"
#include "launch.cuh"

static uint64_t pixels(const struct conv_args *a, const struct image *s)
{
	return (uint64_t)a->n * s->h * s->w;
}

int launch_conv_own(cudaStream_t s, enum cuda_type t, const struct conv_args *a)
{
	dim3 grid(ceil_div(pixels(a, &a->out), TILE), ceil_div(a->out.c / a->groups, TILE),
		  a->groups);

	return LAUNCH_T(t, conv_own, grid, 256, s, *a);
}

int launch_conv_own_data(cudaStream_t s, enum cuda_type t, const struct conv_args *a)
{
	dim3 grid(ceil_div(pixels(a, &a->in), TILE), ceil_div(a->in.c / a->groups, TILE),
		  a->groups);

	return LAUNCH_T(t, conv_own_data, grid, 256, s, *a);
}

int launch_conv_own_filter(cudaStream_t s, enum cuda_type t, const struct conv_args *a)
{
	uint64_t rows = (uint64_t)a->win.kh * a->win.kw * (a->in.c / a->groups);
	dim3 grid(ceil_div(rows, TILE), ceil_div(a->out.c / a->groups, TILE),
		  a->chunks * a->groups);

	return LAUNCH_T(t, conv_own_filter, grid, 256, s, *a);
}

int launch_pack(cudaStream_t s, enum cuda_type t, const struct pack_args *a, uint32_t tiles)
{
	return LAUNCH_T(t, pack, tiles, 256, s, *a);
}

int launch_unpack(cudaStream_t s, enum cuda_type t, const struct unpack_args *a)
{
	dim3 grid(ceil_div(a->cols, 32), ceil_div(a->rows, 32));

	return LAUNCH_T(t, unpack, grid, 256, s, *a);
}
