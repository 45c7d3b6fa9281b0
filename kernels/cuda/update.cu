/* SPDX-License-Identifier: MIT */
/* update.cu: launches of the kernels in update.cuh. */
#include "update.cuh"
#include "launch.cuh"

int launch_update(cudaStream_t s, const struct update_args *a)
{
	int rc = 0;

	if (a->chunks) {
		rc = LAUNCH(optimizer_gather, a->chunks, 256, s, *a);
		if (!rc)
			rc = LAUNCH(optimizer_norms, a->tensors, 256, s, *a);
	}
	if (!rc)
		rc = LAUNCH(optimizer_finish, 1, 256, s, *a);
	if (!rc && a->chunks)
		rc = LAUNCH(optimizer_arena, a->chunks, 256, s, *a);
	return rc;
}

int launch_penalty(cudaStream_t s, const struct update_args *a)
{
	int rc = 0;

	if (a->chunks) {
		rc = LAUNCH(optimizer_penalty, a->chunks, 256, s, *a);
		if (!rc)
			rc = LAUNCH(optimizer_norms, a->tensors, 256, s, *a);
	}
	if (!rc)
		rc = LAUNCH(optimizer_penalty_finish, 1, 256, s, *a);
	return rc;
}
