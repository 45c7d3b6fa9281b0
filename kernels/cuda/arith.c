/* SPDX-License-Identifier: MIT */
/* arith.c: merge arithmetic on the device's memory (merge.cuh). */
#include <string.h>

#include "cuda.h"

_Static_assert(MERGE_INPUTS == BACKEND_MERGE_INPUTS, "inputs of a merge");

static int mean(cudaStream_t s, const struct backend_merge *m)
{
	struct merge_mean_args a = {.total = m->total, .out = m->out, .count = m->count, .n = m->n};

	memcpy(a.in, m->in, sizeof(a.in));
	memcpy(a.weight, m->weight, sizeof(a.weight));
	return launch_merge_mean(s, &a);
}

static int moments(cudaStream_t s, const struct backend_merge *m)
{
	struct merge_moments_args a = {
		.mean_out = m->out, .var_out = m->out2, .count = m->count, .n = m->n};

	memcpy(a.mean, m->in, sizeof(a.mean));
	memcpy(a.var, m->in2, sizeof(a.var));
	memcpy(a.weight, m->weight, sizeof(a.weight));
	return launch_merge_moments(s, &a);
}

static int launch(cudaStream_t s, const struct backend_merge *m)
{
	const struct merge_outer_args outer = {.mean = m->in[0],
					       .x = m->out,
					       .m = m->out2,
					       .count = m->count,
					       .eta = m->eta,
					       .mu = m->mu,
					       .nesterov = m->nesterov};
	const struct merge_delta_args delta = {.start = m->in[0],
					       .from = m->in[1],
					       .x = m->out,
					       .carry = m->out2,
					       .wire = m->wire,
					       .count = m->count,
					       .decode = m->kind == BACKEND_MERGE_DECODE};

	switch (m->kind) {
	case BACKEND_MERGE_MEAN:
		return mean(s, m);
	case BACKEND_MERGE_OUTER:
		return launch_merge_outer(s, &outer);
	case BACKEND_MERGE_MOMENTS:
		return moments(s, m);
	default:
		return launch_merge_delta(s, &delta);
	}
}

int cuda_merge(struct backend *backend, const struct backend_merge *m, struct backend_error *error)
{
	struct cuda_backend *gpu = (struct cuda_backend *)backend;
	cudaStream_t stream = NULL;
	cudaEvent_t end = NULL;
	int rc = cuda_enter(gpu, error);

	if (rc || !m->count)
		return rc;
	rc = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
	if (!rc)
		rc = cudaEventCreateWithFlags(&end, cudaEventDisableTiming);
	if (!rc)
		rc = launch(stream, m);
	if (!rc)
		rc = cudaEventRecord(end, stream);
	rc = rc ? cuda_failed(gpu, rc, "merge", error) : cuda_wait(gpu, end, "merge", error);
	if (end)
		cudaEventDestroy(end);
	if (stream)
		cudaStreamDestroy(stream);
	return rc;
}
