// SPDX-License-Identifier: MIT
/* dnn_run.c: the arithmetic of the simulated convolutions: plain loops, sums in f32. */
#define _GNU_SOURCE
#include "dnn.h"

#include <stdlib.h>
#include <string.h>

#include "fakegpu_number.h"

#define ALIGN 16

static size_t size_of(cudnnDataType_t type)
{
	return type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static float *widen(const void *p, size_t n, cudnnDataType_t type)
{
	float *out = malloc((n ? n : 1) * sizeof(float));

	if (!out)
		abort();
	for (size_t i = 0; i < n; i++)
		out[i] = type == CUDNN_DATA_FLOAT  ? ((const float *)p)[i]
			 : type == CUDNN_DATA_HALF ? number_from_half(((const uint16_t *)p)[i])
						   : number_from_bf16(((const uint16_t *)p)[i]);
	return out;
}

static void narrow(void *p, const float *v, size_t n, cudnnDataType_t type, float beta)
{
	for (size_t i = 0; i < n; i++) {
		float r = v[i];

		if (type == CUDNN_DATA_FLOAT)
			((float *)p)[i] = beta != 0 ? r + beta * ((float *)p)[i] : r;
		else if (type == CUDNN_DATA_HALF)
			((uint16_t *)p)[i] = number_to_half(
				beta != 0 ? r + beta * number_from_half(((uint16_t *)p)[i]) : r);
		else
			((uint16_t *)p)[i] = number_to_bf16(
				beta != 0 ? r + beta * number_from_bf16(((uint16_t *)p)[i]) : r);
	}
}

static float dot(const float *a, const float *b, int n)
{
	float s[8] = {0}, sum = 0;
	int i = 0;

	for (; i + 8 <= n; i += 8)
		for (int k = 0; k < 8; k++)
			s[k] += a[i + k] * b[i + k];
	for (; i < n; i++)
		sum += a[i] * b[i];
	for (int k = 0; k < 8; k++)
		sum += s[k];
	return sum;
}

static void axpy(float a, const float *x, float *y, int n)
{
	for (int i = 0; i < n; i++)
		y[i] += a * x[i];
}

/* One (image, output place): x, w and y as the kind has them. */
static void at_place(const struct conv *v, const float *x, float *dx, const float *w, float *dw,
		     float *y, int n, int p, int q)
{
	const struct cudnnConvolutionStruct *c = &v->c;
	int per = v->w.k / c->groups;
	float *out = y + (((size_t)n * v->y.h + p) * v->y.w + q) * v->y.c;

	for (int r = 0; r < v->w.h; r++) {
		int i = p * c->stride_h - c->pad_h + r * c->dilation_h;

		for (int s = 0; s < v->w.w && i >= 0 && i < v->x.h; s++) {
			int j = q * c->stride_w - c->pad_w + s * c->dilation_w;
			size_t at;

			if (j < 0 || j >= v->x.w)
				continue;
			at = (((size_t)n * v->x.h + i) * v->x.w + j) * v->x.c;
			for (int k = 0; k < v->w.k; k++) {
				size_t place = at + (size_t)(k / per) * v->w.c;
				size_t tap = (((size_t)k * v->w.h + r) * v->w.w + s) * v->w.c;

				if (v->kind == FORWARD)
					out[k] += dot(x + place, w + tap, v->w.c);
				else if (v->kind == BACKWARD_DATA)
					axpy(out[k], w + tap, dx + place, v->w.c);
				else
					axpy(out[k], x + place, dw + tap, v->w.c);
			}
		}
	}
}

static void convolve(const struct conv *v, const float *x, float *dx, const float *w, float *dw,
		     float *y)
{
	for (int n = 0; n < v->x.n; n++)
		for (int p = 0; p < v->y.h; p++)
			for (int q = 0; q < v->y.w; q++)
				at_place(v, x, dx, w, dw, y, n, p, q);
}

static size_t elements(const struct cudnnTensorStruct *t)
{
	return (size_t)t->n * (size_t)t->h * (size_t)t->w * (size_t)t->c;
}

static size_t taps(const struct cudnnFilterStruct *w)
{
	return (size_t)w->k * (size_t)w->h * (size_t)w->w * (size_t)w->c;
}

static bool memory_good(const struct conv *v, size_t in, size_t in2, size_t out)
{
	size_t e = size_of(v->x.type);
	const void *p[3] = {v->in, v->in2, v->out};

	for (int i = 0; i < 3; i++)
		if ((uintptr_t)p[i] % ALIGN) {
			fake_violation("a convolution's tensor at %p is not aligned to %d", p[i],
				       ALIGN);
			return false;
		}
	return fake_device_range(v->device, v->in, in * e, "convolution, first input") &&
	       fake_device_range(v->device, v->in2, in2 * e, "convolution, second input") &&
	       fake_device_range(v->device, v->out, out * e, "convolution, output") &&
	       fake_device_range(v->device, v->workspace, v->workspace_bytes,
				 "convolution, workspace");
}

/* y = act(alpha conv + z + bias): the fused call. */
static void finish_fused(const struct conv *v, float *y)
{
	float *bias = widen(v->bias, (size_t)v->y.c, v->y.type);

	for (size_t i = 0; i < elements(&v->y); i++) {
		y[i] += bias[i % (size_t)v->y.c];
		if (v->relu && !(y[i] > 0))
			y[i] = y[i] != y[i] ? y[i] : 0;
	}
	free(bias);
}

cudaError_t dnn_run(struct fake_op *op)
{
	const struct conv *v = (const struct conv *)op->data;
	size_t nx = elements(&v->x), ny = elements(&v->y), nw = taps(&v->w);
	size_t n_in = v->kind == BACKWARD_DATA ? ny : nx,
	       n_in2 = v->kind == BACKWARD_FILTER ? ny : nw;
	size_t n_out = v->kind == FORWARD ? ny : v->kind == BACKWARD_DATA ? nx : nw;
	float *in, *in2, *out;

	if (!memory_good(v, n_in, n_in2, n_out))
		return cudaErrorIllegalAddress;
	if (v->fused && (!fake_device_range(v->device, v->bias, (size_t)v->y.c * size_of(v->y.type),
					    "convolution, bias")))
		return cudaErrorIllegalAddress;
	fake_scribble(v->workspace, v->workspace_bytes);
	in = widen(v->in, n_in, v->x.type);
	in2 = widen(v->in2, n_in2, v->x.type);
	out = calloc(n_out, sizeof(float));
	if (!out)
		abort();
	if (v->kind == FORWARD)
		convolve(v, in, NULL, in2, NULL, out);
	else if (v->kind == BACKWARD_DATA)
		convolve(v, NULL, out, in2, NULL, in);
	else
		convolve(v, in, NULL, NULL, out, in2);
	for (size_t i = 0; i < n_out; i++)
		out[i] *= v->alpha;
	if (v->fused)
		finish_fused(v, out);
	narrow(v->out, out, n_out, v->x.type, v->beta);
	free(in);
	free(in2);
	free(out);
	return cudaSuccess;
}
