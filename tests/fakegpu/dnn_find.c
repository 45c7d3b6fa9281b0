// SPDX-License-Identifier: MIT
/*
 * dnn_find.c: which algorithms the simulated cuDNN has: two for each direction. Of the backward
 * filter ones, number 0 is not deterministic, as in the library. FAKEGPU_DNN_REFUSE=1 makes it
 * refuse every convolution, so that the fallback runs.
 */
#define _GNU_SOURCE
#include "dnn.h"

#include <stdlib.h>

static bool refused(const char *what)
{
	const char *all = getenv("FAKEGPU_DNN_REFUSE");

	return (all && *all == '1') || fake_fault(what) == FAKE_UNSUPPORTED;
}

static cudnnStatus_t look(cudnnHandle_t h, const struct conv *v, const char *what)
{
	cudnnStatus_t st = dnn_shapes(v, what);

	if (st)
		return st;
	if (!dnn_good(h, what))
		return CUDNN_STATUS_BAD_PARAM;
	return refused(what) ? CUDNN_STATUS_NOT_SUPPORTED : CUDNN_STATUS_SUCCESS;
}

/* Fills at most `room` results, the fastest first. */
#define FILL(perf_, algo_t, first, second, random_)                                                \
	do {                                                                                       \
		const int algo_[2] = {first, second};                                              \
		int n_ = room < 2 ? room : 2;                                                      \
		for (int i_ = 0; i_ < n_; i_++) {                                                  \
			(perf_)[i_].algo = (algo_t)algo_[i_];                                      \
			(perf_)[i_].status = CUDNN_STATUS_SUCCESS;                                 \
			(perf_)[i_].time = 1.0f + (float)i_;                                       \
			(perf_)[i_].memory = dnn_workspace(&v, algo_[i_]);                         \
			(perf_)[i_].determinism = algo_[i_] == (random_) ? CUDNN_NON_DETERMINISTIC \
									 : CUDNN_DETERMINISTIC;    \
			(perf_)[i_].mathType = v.c.math;                                           \
		}                                                                                  \
		*found = n_;                                                                       \
	} while (0)

/* As the library, a search runs the convolution: into the output, with all of the workspace. */
static cudnnStatus_t tried(cudnnHandle_t h, struct conv *v, void *workspace, size_t bytes,
			   const char *what)
{
	if (fake_capturing_here() || !h->stream) {
		fake_violation("%s while a stream is being captured, or without a stream", what);
		return CUDNN_STATUS_BAD_PARAM;
	}
	v->device = h->device;
	v->workspace = workspace;
	v->workspace_bytes = bytes;
	v->alpha = 1;
	if (fake_submit(h->stream, what, dnn_run, NULL, NULL, v, sizeof(*v)) ||
	    cudaStreamSynchronize(h->stream))
		return CUDNN_STATUS_EXECUTION_FAILED;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const cudnnFilterDescriptor_t wd,
	const cudnnConvolutionDescriptor_t cd, const cudnnTensorDescriptor_t yd, const int room,
	int *found, cudnnConvolutionFwdAlgoPerf_t *perf)
{
	struct conv v = {.kind = FORWARD, .x = *xd, .w = *wd, .y = *yd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (st)
		return st;
	FILL(perf, cudnnConvolutionFwdAlgo_t, 1, 0, -1);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionForwardAlgorithmEx(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const void *p1,
	const cudnnFilterDescriptor_t wd, const void *p2, const cudnnConvolutionDescriptor_t cd,
	const cudnnTensorDescriptor_t yd, void *p3, const int room, int *found,
	cudnnConvolutionFwdAlgoPerf_t *perf, void *workspace, size_t bytes)
{
	struct conv v = {.kind = FORWARD,
			 .x = *xd,
			 .w = *wd,
			 .y = *yd,
			 .c = *cd,
			 .in = p1,
			 .in2 = p2,
			 .out = p3};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (!st)
		st = tried(h, &v, workspace, bytes, __func__);
	if (st)
		return st;
	FILL(perf, cudnnConvolutionFwdAlgo_t, 1, 0, -1);
	for (int i = 0; i < *found; i++)
		if (perf[i].memory > bytes)
			perf[i].status = CUDNN_STATUS_ALLOC_FAILED;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const cudnnFilterDescriptor_t wd,
	const cudnnConvolutionDescriptor_t cd, const cudnnTensorDescriptor_t yd,
	cudnnConvolutionFwdAlgo_t algorithm, size_t *bytes)
{
	struct conv v = {.kind = FORWARD, .x = *xd, .w = *wd, .y = *yd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	if (!st)
		*bytes = dnn_workspace(&v, (int)algorithm);
	return st;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
	cudnnHandle_t h, const cudnnFilterDescriptor_t wd, const cudnnTensorDescriptor_t dyd,
	const cudnnConvolutionDescriptor_t cd, const cudnnTensorDescriptor_t dxd, const int room,
	int *found, cudnnConvolutionBwdDataAlgoPerf_t *perf)
{
	struct conv v = {.kind = BACKWARD_DATA, .x = *dxd, .w = *wd, .y = *dyd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (st)
		return st;
	FILL(perf, cudnnConvolutionBwdDataAlgo_t, 1, 0, 0);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionBackwardDataAlgorithmEx(
	cudnnHandle_t h, const cudnnFilterDescriptor_t wd, const void *p1,
	const cudnnTensorDescriptor_t dyd, const void *p2, const cudnnConvolutionDescriptor_t cd,
	const cudnnTensorDescriptor_t dxd, void *p3, const int room, int *found,
	cudnnConvolutionBwdDataAlgoPerf_t *perf, void *workspace, size_t bytes)
{
	struct conv v = {.kind = BACKWARD_DATA,
			 .x = *dxd,
			 .w = *wd,
			 .y = *dyd,
			 .c = *cd,
			 .in = p2,
			 .in2 = p1,
			 .out = p3};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (!st)
		st = tried(h, &v, workspace, bytes, __func__);
	if (st)
		return st;
	FILL(perf, cudnnConvolutionBwdDataAlgo_t, 1, 0, 0);
	for (int i = 0; i < *found; i++)
		if (perf[i].memory > bytes)
			perf[i].status = CUDNN_STATUS_ALLOC_FAILED;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
	cudnnHandle_t h, const cudnnFilterDescriptor_t wd, const cudnnTensorDescriptor_t dyd,
	const cudnnConvolutionDescriptor_t cd, const cudnnTensorDescriptor_t dxd,
	cudnnConvolutionBwdDataAlgo_t algorithm, size_t *bytes)
{
	struct conv v = {.kind = BACKWARD_DATA, .x = *dxd, .w = *wd, .y = *dyd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	if (!st)
		*bytes = dnn_workspace(&v, (int)algorithm);
	return st;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const cudnnTensorDescriptor_t dyd,
	const cudnnConvolutionDescriptor_t cd, const cudnnFilterDescriptor_t dwd, const int room,
	int *found, cudnnConvolutionBwdFilterAlgoPerf_t *perf)
{
	struct conv v = {.kind = BACKWARD_FILTER, .x = *xd, .w = *dwd, .y = *dyd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (st)
		return st;
	FILL(perf, cudnnConvolutionBwdFilterAlgo_t, 0, 1, 0);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnFindConvolutionBackwardFilterAlgorithmEx(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const void *p1,
	const cudnnTensorDescriptor_t dyd, const void *p2, const cudnnConvolutionDescriptor_t cd,
	const cudnnFilterDescriptor_t dwd, void *p3, const int room, int *found,
	cudnnConvolutionBwdFilterAlgoPerf_t *perf, void *workspace, size_t bytes)
{
	struct conv v = {.kind = BACKWARD_FILTER,
			 .x = *xd,
			 .w = *dwd,
			 .y = *dyd,
			 .c = *cd,
			 .in = p1,
			 .in2 = p2,
			 .out = p3};
	cudnnStatus_t st = look(h, &v, __func__);

	*found = 0;
	if (!st)
		st = tried(h, &v, workspace, bytes, __func__);
	if (st)
		return st;
	FILL(perf, cudnnConvolutionBwdFilterAlgo_t, 0, 1, 0);
	for (int i = 0; i < *found; i++)
		if (perf[i].memory > bytes)
			perf[i].status = CUDNN_STATUS_ALLOC_FAILED;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
	cudnnHandle_t h, const cudnnTensorDescriptor_t xd, const cudnnTensorDescriptor_t dyd,
	const cudnnConvolutionDescriptor_t cd, const cudnnFilterDescriptor_t dwd,
	cudnnConvolutionBwdFilterAlgo_t algorithm, size_t *bytes)
{
	struct conv v = {.kind = BACKWARD_FILTER, .x = *xd, .w = *dwd, .y = *dyd, .c = *cd};
	cudnnStatus_t st = look(h, &v, __func__);

	if (!st)
		*bytes = dnn_workspace(&v, (int)algorithm);
	return st;
}
