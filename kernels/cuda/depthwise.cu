/* SPDX-License-Identifier: MIT */
/* depthwise.cu: launches of the kernels in depthwise.cuh. */
#include "depthwise.cuh"
#include "launch.cuh"

static uint64_t elements(const struct image *s)
{
	return (uint64_t)s->h * s->w * s->c;
}

int launch_depthwise(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a)
{
	return LAUNCH_T(t, depthwise, row_grid(elements(&a->out), a->n), 256, s, *a);
}

int launch_depthwise_data(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a)
{
	return LAUNCH_T(t, depthwise_data, row_grid(elements(&a->in), a->n), 256, s, *a);
}

int launch_depthwise_filter(cudaStream_t s, enum cuda_type t, const struct depthwise_args *a)
{
	dim3 grid = cols_grid(&a->m);

	grid.z = a->win.kh * a->win.kw;
	return LAUNCH_T(t, depthwise_filter, grid, 256, s, *a);
}
