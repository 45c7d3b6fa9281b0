/* SPDX-License-Identifier: MIT */
/* dnn.h: between dnn.c (descriptors, convolutions) and dnn_find.c (which algorithms there are). */
#ifndef FAKEGPU_DNN_H
#define FAKEGPU_DNN_H

#include "fake.h"

#include <cudnn.h>

struct cudnnContext {
	LIST_ENTRY(cudnnContext) link;
	int device;
	cudaStream_t stream;
};
struct cudnnTensorStruct {
	bool set;
	cudnnDataType_t type;
	int n, c, h, w;
};
struct cudnnFilterStruct {
	bool set;
	cudnnDataType_t type;
	int k, c, h, w;
};
struct cudnnConvolutionStruct {
	bool set;
	int pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups;
	cudnnMathType_t math;
};
struct cudnnActivationStruct {
	bool set;
	cudnnActivationMode_t mode;
};

enum kind { FORWARD, BACKWARD_DATA, BACKWARD_FILTER };

struct conv {
	enum kind kind;
	struct cudnnTensorStruct x, y;
	struct cudnnFilterStruct w;
	struct cudnnConvolutionStruct c;
	const void *in, *in2, *bias, *z; /* FORWARD: x, w; DATA: dy, w; FILTER: x, dy */
	void *out, *workspace;
	size_t workspace_bytes;
	float alpha, beta;
	bool relu, fused;
	int device;
};

/* Descriptors fit each other; else a violation and BAD_PARAM. */
cudnnStatus_t dnn_shapes(const struct conv *v, const char *what);
bool dnn_good(cudnnHandle_t h, const char *what);
size_t dnn_workspace(const struct conv *v, int algo);

/* On the executor: the convolution of op->data. */
cudaError_t dnn_run(struct fake_op *op);

#endif
