// SPDX-License-Identifier: MIT
/*
 * dnn.c: the classic convolution calls of cuDNN 9 (NHWC, filters KRSC), in plain C. Checks
 * descriptors, sizes, alignment and workspace as the library does; sums are f32.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dnn.h"

/* ---- handle ---- */

static LIST_HEAD(, cudnnContext) handles = LIST_HEAD_INITIALIZER(handles);

/* Lock held. */
static void drop(cudnnHandle_t h)
{
	LIST_REMOVE(h, link);
	fake.live[FAKE_DNN_HANDLES]--;
	free(h);
}

static void end_device(int device)
{
	cudnnHandle_t h, next;

	for (h = LIST_FIRST(&handles); h; h = next) {
		next = LIST_NEXT(h, link);
		if (h->device == device)
			drop(h);
	}
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
	struct cudnnContext *h;

	fake_init();
	fake_on_reset(end_device);
	if (fake_fault(__func__))
		return CUDNN_STATUS_ALLOC_FAILED;
	h = calloc(1, sizeof(*h));
	if (!h)
		return CUDNN_STATUS_ALLOC_FAILED;
	h->device = *fake_current();
	pthread_mutex_lock(&fake.lock);
	LIST_INSERT_HEAD(&handles, h, link);
	fake.live[FAKE_DNN_HANDLES]++;
	pthread_mutex_unlock(&fake.lock);
	*out = h;
	return CUDNN_STATUS_SUCCESS;
}

bool dnn_good(cudnnHandle_t h, const char *what)
{
	cudnnHandle_t i;

	pthread_mutex_lock(&fake.lock);
	LIST_FOREACH (i, &handles, link)
		if (i == h)
			break;
	pthread_mutex_unlock(&fake.lock);
	if (i)
		return true;
	fake_violation("%s: no live cuDNN handle", what);
	return false;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t h)
{
	if (!dnn_good(h, __func__))
		return CUDNN_STATUS_BAD_PARAM;
	pthread_mutex_lock(&fake.lock);
	drop(h);
	pthread_mutex_unlock(&fake.lock);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t stream)
{
	if (!dnn_good(h, __func__))
		return CUDNN_STATUS_BAD_PARAM;
	if (fake_stream_device(stream, __func__) != h->device) {
		fake_violation("%s: a stream of another device", __func__);
		return CUDNN_STATUS_BAD_PARAM;
	}
	h->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion(void)
{
	return CUDNN_VERSION;
}

const char *cudnnGetErrorString(cudnnStatus_t status)
{
	switch (status) {
	case CUDNN_STATUS_SUCCESS:
		return "CUDNN_STATUS_SUCCESS";
	case CUDNN_STATUS_BAD_PARAM:
		return "CUDNN_STATUS_BAD_PARAM";
	case CUDNN_STATUS_NOT_SUPPORTED:
		return "CUDNN_STATUS_NOT_SUPPORTED";
	case CUDNN_STATUS_ALLOC_FAILED:
		return "CUDNN_STATUS_ALLOC_FAILED";
	default:
		return "CUDNN_STATUS_OTHER";
	}
}

/* ---- descriptors ---- */

#define DESCRIPTOR(Name, type)                            \
	cudnnStatus_t cudnnCreate##Name(type *out)        \
	{                                                 \
		*out = calloc(1, sizeof(**out));          \
		if (!*out)                                \
			return CUDNN_STATUS_ALLOC_FAILED; \
		fake_add(FAKE_DNN_DESCRIPTORS, 1);        \
		return CUDNN_STATUS_SUCCESS;              \
	}                                                 \
	cudnnStatus_t cudnnDestroy##Name(type d)          \
	{                                                 \
		if (!d)                                   \
			return CUDNN_STATUS_BAD_PARAM;    \
		free(d);                                  \
		fake_add(FAKE_DNN_DESCRIPTORS, -1);       \
		return CUDNN_STATUS_SUCCESS;              \
	}
DESCRIPTOR(TensorDescriptor, cudnnTensorDescriptor_t)
DESCRIPTOR(FilterDescriptor, cudnnFilterDescriptor_t)
DESCRIPTOR(ConvolutionDescriptor, cudnnConvolutionDescriptor_t)
DESCRIPTOR(ActivationDescriptor, cudnnActivationDescriptor_t)

static bool type_good(cudnnDataType_t type)
{
	return type == CUDNN_DATA_FLOAT || type == CUDNN_DATA_HALF || type == CUDNN_DATA_BFLOAT16;
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t d, cudnnTensorFormat_t format,
					 cudnnDataType_t type, int n, int c, int h, int w)
{
	if (!d || !type_good(type) || format != CUDNN_TENSOR_NHWC || n < 1 || c < 1 || h < 1 ||
	    w < 1) {
		fake_violation("%s: %d x %d x %d x %d, type %d, format %d", __func__, n, h, w, c,
			       (int)type, (int)format);
		return CUDNN_STATUS_BAD_PARAM;
	}
	*d = (struct cudnnTensorStruct){true, type, n, c, h, w};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t d, cudnnDataType_t type,
					 cudnnTensorFormat_t format, int k, int c, int h, int w)
{
	if (!d || !type_good(type) || format != CUDNN_TENSOR_NHWC || k < 1 || c < 1 || h < 1 ||
	    w < 1) {
		fake_violation("%s: %d x %d x %d x %d", __func__, k, h, w, c);
		return CUDNN_STATUS_BAD_PARAM;
	}
	*d = (struct cudnnFilterStruct){true, type, k, c, h, w};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t d, int pad_h, int pad_w,
					      int stride_h, int stride_w, int dilation_h,
					      int dilation_w, cudnnConvolutionMode_t mode,
					      cudnnDataType_t compute)
{
	if (!d || pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 ||
	    dilation_w < 1 || mode != CUDNN_CROSS_CORRELATION || compute != CUDNN_DATA_FLOAT) {
		fake_violation("%s: a parameter out of range", __func__);
		return CUDNN_STATUS_BAD_PARAM;
	}
	*d = (struct cudnnConvolutionStruct){true,	 pad_h,	   pad_w,
					     stride_h,	 stride_w, dilation_h,
					     dilation_w, 1,	   CUDNN_DEFAULT_MATH};
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t d, cudnnMathType_t math)
{
	if (!d || !d->set)
		return CUDNN_STATUS_BAD_PARAM;
	d->math = math;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t d, int groups)
{
	if (!d || !d->set || groups < 1)
		return CUDNN_STATUS_BAD_PARAM;
	d->groups = groups;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetActivationDescriptor(cudnnActivationDescriptor_t d,
					   cudnnActivationMode_t mode, cudnnNanPropagation_t nan,
					   double coefficient)
{
	(void)nan, (void)coefficient;
	if (!d || (mode != CUDNN_ACTIVATION_RELU && mode != CUDNN_ACTIVATION_IDENTITY))
		return CUDNN_STATUS_BAD_PARAM;
	d->set = true;
	d->mode = mode;
	return CUDNN_STATUS_SUCCESS;
}

/* ---- one convolution: what all calls look at ---- */

static int out_size(int in, int pad, int k, int dilation, int stride)
{
	return (in + 2 * pad - ((k - 1) * dilation + 1)) / stride + 1;
}

cudnnStatus_t dnn_shapes(const struct conv *v, const char *what)
{
	const struct cudnnConvolutionStruct *c = &v->c;

	if (!v->x.set || !v->y.set || !v->w.set || !c->set) {
		fake_violation("%s: a descriptor was not set", what);
		return CUDNN_STATUS_BAD_PARAM;
	}
	if (v->x.type != v->w.type || v->x.type != v->y.type) {
		fake_violation("%s: types %d, %d, %d", what, (int)v->x.type, (int)v->w.type,
			       (int)v->y.type);
		return CUDNN_STATUS_BAD_PARAM;
	}
	if (v->w.k % c->groups || v->x.c != v->w.c * c->groups || v->y.c != v->w.k ||
	    v->y.n != v->x.n ||
	    v->y.h != out_size(v->x.h, c->pad_h, v->w.h, c->dilation_h, c->stride_h) ||
	    v->y.w != out_size(v->x.w, c->pad_w, v->w.w, c->dilation_w, c->stride_w)) {
		fake_violation("%s: x %dx%dx%dx%d, w %dx%dx%dx%d, groups %d do not give y "
			       "%dx%dx%dx%d",
			       what, v->x.n, v->x.h, v->x.w, v->x.c, v->w.k, v->w.h, v->w.w, v->w.c,
			       c->groups, v->y.n, v->y.h, v->y.w, v->y.c);
		return CUDNN_STATUS_BAD_PARAM;
	}
	if (v->x.type == CUDNN_DATA_FLOAT && c->math == CUDNN_TENSOR_OP_MATH)
		fake_violation("%s: TENSOR_OP_MATH with f32 allows conversions", what);
	return CUDNN_STATUS_SUCCESS;
}

size_t dnn_workspace(const struct conv *v, int algo)
{
	if (!algo)
		return 0;
	return 1024 + (size_t)v->w.k * (size_t)v->w.h * (size_t)v->w.w * 8 * (size_t)algo;
}

static cudnnStatus_t submit(cudnnHandle_t h, struct conv *v, size_t need, const char *what)
{
	enum fake_fault f = fake_fault(what);
	cudnnStatus_t st = dnn_shapes(v, what);
	cudaError_t rc;

	if (st)
		return st;
	if (!dnn_good(h, what) || !h->stream) {
		fake_violation("%s: no stream was set", what);
		return CUDNN_STATUS_BAD_PARAM;
	}
	if (f == FAKE_UNSUPPORTED)
		return CUDNN_STATUS_NOT_SUPPORTED;
	if (f == FAKE_ERROR)
		return CUDNN_STATUS_EXECUTION_FAILED;
	if (f == FAKE_ILLEGAL)
		fake_break(h->device, cudaErrorIllegalAddress);
	if (v->workspace_bytes < need || (need && !v->workspace)) {
		fake_violation("%s: workspace of %zu bytes, %zu are needed", what,
			       v->workspace_bytes, need);
		return CUDNN_STATUS_BAD_PARAM;
	}
	v->device = h->device;
	rc = fake_submit(h->stream, what, dnn_run, NULL, NULL, v, sizeof(*v));
	return rc ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnConvolutionForward(cudnnHandle_t h, const void *alpha,
				      const cudnnTensorDescriptor_t xd, const void *x,
				      const cudnnFilterDescriptor_t wd, const void *w,
				      const cudnnConvolutionDescriptor_t cd,
				      cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes,
				      const void *beta, const cudnnTensorDescriptor_t yd, void *y)
{
	struct conv v = {.kind = FORWARD,
			 .x = *xd,
			 .y = *yd,
			 .w = *wd,
			 .c = *cd,
			 .in = x,
			 .in2 = w,
			 .out = y,
			 .workspace = workspace,
			 .workspace_bytes = bytes,
			 .alpha = *(const float *)alpha,
			 .beta = *(const float *)beta};

	return submit(h, &v, dnn_workspace(&v, (int)algo), __func__);
}

cudnnStatus_t cudnnConvolutionBiasActivationForward(
	cudnnHandle_t h, const void *alpha1, const cudnnTensorDescriptor_t xd, const void *x,
	const cudnnFilterDescriptor_t wd, const void *w, const cudnnConvolutionDescriptor_t cd,
	cudnnConvolutionFwdAlgo_t algo, void *workspace, size_t bytes, const void *alpha2,
	const cudnnTensorDescriptor_t zd, const void *z, const cudnnTensorDescriptor_t bd,
	const void *bias, const cudnnActivationDescriptor_t ad, const cudnnTensorDescriptor_t yd,
	void *y)
{
	struct conv v = {.kind = FORWARD,
			 .fused = true,
			 .x = *xd,
			 .y = *yd,
			 .w = *wd,
			 .c = *cd,
			 .in = x,
			 .in2 = w,
			 .bias = bias,
			 .out = y,
			 .workspace = workspace,
			 .workspace_bytes = bytes,
			 .alpha = *(const float *)alpha1,
			 .relu = ad->mode == CUDNN_ACTIVATION_RELU};

	(void)z;
	if (*(const float *)alpha2 != 0 || !zd->set) {
		fake_violation("%s: an added tensor is not simulated", __func__);
		return CUDNN_STATUS_NOT_SUPPORTED;
	}
	if (!ad->set || !bd->set || bd->c != yd->c || bd->n != 1 || bd->h != 1 || bd->w != 1) {
		fake_violation("%s: bias or activation", __func__);
		return CUDNN_STATUS_BAD_PARAM;
	}
	/* as the library: without an activation only this one algorithm */
	if (ad->mode == CUDNN_ACTIVATION_IDENTITY &&
	    algo != CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM)
		return CUDNN_STATUS_NOT_SUPPORTED;
	return submit(h, &v, dnn_workspace(&v, (int)algo), __func__);
}

cudnnStatus_t cudnnConvolutionBackwardData(cudnnHandle_t h, const void *alpha,
					   const cudnnFilterDescriptor_t wd, const void *w,
					   const cudnnTensorDescriptor_t dyd, const void *dy,
					   const cudnnConvolutionDescriptor_t cd,
					   cudnnConvolutionBwdDataAlgo_t algo, void *workspace,
					   size_t bytes, const void *beta,
					   const cudnnTensorDescriptor_t dxd, void *dx)
{
	struct conv v = {.kind = BACKWARD_DATA,
			 .x = *dxd,
			 .y = *dyd,
			 .w = *wd,
			 .c = *cd,
			 .in = dy,
			 .in2 = w,
			 .out = dx,
			 .workspace = workspace,
			 .workspace_bytes = bytes,
			 .alpha = *(const float *)alpha,
			 .beta = *(const float *)beta};

	return submit(h, &v, dnn_workspace(&v, (int)algo), __func__);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(cudnnHandle_t h, const void *alpha,
					     const cudnnTensorDescriptor_t xd, const void *x,
					     const cudnnTensorDescriptor_t dyd, const void *dy,
					     const cudnnConvolutionDescriptor_t cd,
					     cudnnConvolutionBwdFilterAlgo_t algo, void *workspace,
					     size_t bytes, const void *beta,
					     const cudnnFilterDescriptor_t dwd, void *dw)
{
	struct conv v = {.kind = BACKWARD_FILTER,
			 .x = *xd,
			 .y = *dyd,
			 .w = *dwd,
			 .c = *cd,
			 .in = x,
			 .in2 = dy,
			 .out = dw,
			 .workspace = workspace,
			 .workspace_bytes = bytes,
			 .alpha = *(const float *)alpha,
			 .beta = *(const float *)beta};

	return submit(h, &v, dnn_workspace(&v, (int)algo), __func__);
}
