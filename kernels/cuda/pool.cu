/* SPDX-License-Identifier: MIT */
/* pool.cu: launches of the kernels in pool.cuh. */
#include "pool.cuh"
#include "launch.cuh"

static uint64_t elements(const struct image *s)
{
	return (uint64_t)s->h * s->w * s->c;
}

int launch_maxpool(cudaStream_t s, enum cuda_type t, const struct pool_args *a)
{
	return LAUNCH_T(t, maxpool, row_grid(elements(&a->out), a->n), 256, s, *a);
}

int launch_maxpool_back(cudaStream_t s, enum cuda_type t, const struct pool_args *a)
{
	return LAUNCH_T(t, maxpool_back, row_grid(elements(&a->in), a->n), 256, s, *a);
}

int launch_avgpool(cudaStream_t s, enum cuda_type t, const struct pool_args *a)
{
	return LAUNCH_T(t, avgpool, row_grid(elements(&a->out), a->n), 256, s, *a);
}

int launch_avgpool_back(cudaStream_t s, enum cuda_type t, const struct pool_args *a)
{
	return LAUNCH_T(t, avgpool_back, row_grid(elements(&a->in), a->n), 256, s, *a);
}

int launch_global_pool(cudaStream_t s, enum cuda_type t, const struct global_args *a)
{
	return LAUNCH_T(t, global_pool, row_grid(a->c, a->n), 256, s, *a);
}

int launch_global_back(cudaStream_t s, enum cuda_type t, const struct global_args *a)
{
	return LAUNCH_T(t, global_back, row_grid((uint64_t)a->places * a->c, a->n), 256, s, *a);
}
