/* SPDX-License-Identifier: MIT */
/* case_layers.h: the cases of convolution, dense, pooling and normalisation layers (cases.h). */
#ifndef TEST_CASE_LAYERS_H
#define TEST_CASE_LAYERS_H

#include "trial.h"

#define CASE(name) static inline void case_##name(struct build *b)

/* ---- convolutions ------------------------------------------------------------------------ */

/* Flat output of a few classes behind node x. */
static inline void tail(struct build *b, int x)
{
	b_act(b, b_dense(b, b_global(b, x, BACKEND_GLOBAL_AVGPOOL), 3, true), BACKEND_SOFTMAX, 0);
}

/* A first layer that makes c channels. */
static inline int head(struct build *b, uint32_t h, uint32_t w, uint32_t c)
{
	return b_act(b, b_conv(b, b_input(b, h, w, 2), c, b_valid(1, 1), 1, true), BACKEND_TANH, 0);
}

/* head, one convolution, a non-linear function of it, tail */
static inline void conv_case(struct build *b, uint32_t h, uint32_t w, uint32_t cin, uint32_t cout,
			     struct backend_window window, uint32_t groups, bool bias)
{
	int x = b_conv(b, head(b, h, w, cin), cout, window, groups, bias);

	tail(b, b_act(b, x, BACKEND_TANH, 0));
}

CASE(conv_1x1)
{
	conv_case(b, 5, 6, 3, 4, b_valid(1, 1), 1, true);
}
CASE(conv_1x1_stride2)
{
	conv_case(b, 6, 7, 3, 4, b_valid(1, 2), 1, false);
}
CASE(conv_3x3_valid)
{
	conv_case(b, 6, 5, 3, 4, b_valid(3, 1), 1, true);
}
CASE(conv_3x3_same)
{
	conv_case(b, 5, 7, 4, 3, b_same(3, 1, 1, 5, 7), 1, true);
}
CASE(conv_3x3_same_nobias)
{
	conv_case(b, 5, 7, 4, 3, b_same(3, 1, 1, 5, 7), 1, false);
}
CASE(conv_3x3_same_stride2_even) /* pads 0 before, 1 after */
{
	conv_case(b, 8, 6, 3, 5, b_same(3, 2, 1, 8, 6), 1, true);
}
CASE(conv_3x3_same_stride2_odd)
{
	conv_case(b, 7, 9, 3, 5, b_same(3, 2, 1, 7, 9), 1, true);
}
CASE(conv_3x3_stride3)
{
	conv_case(b, 8, 8, 2, 3, b_valid(3, 3), 1, true);
}
CASE(conv_5x5_same)
{
	conv_case(b, 6, 7, 2, 3, b_same(5, 1, 1, 6, 7), 1, true);
}
CASE(conv_7x7_same_stride2)
{
	conv_case(b, 8, 9, 3, 4, b_same(7, 2, 1, 8, 9), 1, false);
}
CASE(conv_2x2_same) /* pads after only */
{
	conv_case(b, 5, 5, 3, 3, b_same(2, 1, 1, 5, 5), 1, true);
}
CASE(conv_3x2_stride_2_1)
{
	conv_case(b, 7, 6, 3, 4, (struct backend_window){3, 2, 2, 1, 1, 1, 1, 0, 0, 1}, 1, true);
}
CASE(conv_dilation2_same)
{
	conv_case(b, 7, 6, 3, 4, b_same(3, 1, 2, 7, 6), 1, true);
}
CASE(conv_dilation_3_2_valid)
{
	conv_case(b, 9, 8, 2, 3, (struct backend_window){3, 3, 1, 1, 3, 2, 0, 0, 0, 0}, 1, true);
}
CASE(conv_groups2)
{
	conv_case(b, 5, 5, 4, 6, b_same(3, 1, 1, 5, 5), 2, true);
}
CASE(conv_groups_all)
{
	conv_case(b, 5, 5, 3, 6, b_same(3, 2, 1, 5, 5), 3, true);
}
CASE(conv_window_of_whole_image)
{
	conv_case(b, 4, 5, 3, 4, (struct backend_window){4, 5, 1, 1, 1, 1, 0, 0, 0, 0}, 1, true);
}
CASE(conv_wide_padding) /* a pad as large as the window */
{
	conv_case(b, 3, 4, 2, 3, (struct backend_window){3, 3, 1, 1, 1, 1, 3, 2, 1, 4}, 1, true);
}
CASE(conv_one_pixel)
{
	conv_case(b, 1, 1, 3, 4, b_same(3, 1, 1, 1, 1), 1, true);
}

/* Two 3x3 convolutions wide enough for blocked kernels, ReLU and pooling between: the first layers
 * of the usual small networks. */
CASE(conv_16_relu_maxpool)
{
	int x = b_act(b, b_conv_same(b, head(b, 8, 8, 16), 16, 3, 1), BACKEND_RELU, 0);

	x = b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2));
	tail(b, b_act(b, b_conv(b, x, 32, b_valid(3, 1), 1, true), BACKEND_RELU, 0));
}
CASE(conv_33_channels)
{
	int x = b_act(b, b_conv_same(b, head(b, 7, 9, 17), 33, 3, 1), BACKEND_RELU, 0);

	tail(b, x);
}
CASE(conv_on_input) /* nothing before it: no gradient towards the input is needed */
{
	int x = b_act(b, b_conv(b, b_input(b, 10, 9, 1), 8, b_valid(3, 1), 1, true), BACKEND_RELU,
		      0);

	x = b_flatten(b, b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2)));
	b_act(b, b_dense(b, x, 4, true), BACKEND_SOFTMAX, 0);
}

static inline void depthwise_case(struct build *b, uint32_t h, uint32_t w, uint32_t c,
				  uint32_t mult, struct backend_window window, bool bias)
{
	int x = b_depthwise(b, head(b, h, w, c), mult, window, bias);

	tail(b, b_act(b, x, BACKEND_TANH, 0));
}

CASE(depthwise_3x3_same)
{
	depthwise_case(b, 5, 6, 4, 1, b_same(3, 1, 1, 5, 6), true);
}
CASE(depthwise_multiplier2)
{
	depthwise_case(b, 6, 5, 3, 2, b_valid(3, 1), true);
}
CASE(depthwise_stride2_even)
{
	depthwise_case(b, 6, 8, 3, 1, b_same(3, 2, 1, 6, 8), false);
}
CASE(depthwise_dilation2)
{
	depthwise_case(b, 7, 7, 2, 3, b_same(3, 1, 2, 7, 7), true);
}
CASE(separable)
{
	int x = b_depthwise(b, head(b, 6, 6, 4), 2, b_same(3, 1, 1, 6, 6), false);

	tail(b, b_act(b, b_conv(b, x, 5, b_valid(1, 1), 1, true), BACKEND_RELU, 0));
}

/* ---- dense ------------------------------------------------------------------------------- */

CASE(dense)
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 9), 7, true), BACKEND_TANH, 0);

	b_act(b, b_dense(b, x, 4, true), BACKEND_SOFTMAX, 0);
}
CASE(dense_nobias)
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 5), 6, false), BACKEND_TANH, 0);

	b_act(b, b_dense(b, x, 3, false), BACKEND_SOFTMAX, 0);
}
CASE(dense_on_last_axis)
{
	tail(b, b_act(b, b_dense(b, head(b, 3, 4, 5), 4, true), BACKEND_TANH, 0));
}
CASE(dense_shared) /* one layer used twice: gradients add */
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 5), 5, true), BACKEND_TANH, 0);
	int y = b_dense(b, x, 5, true), z;

	z = b_dense(b, b_act(b, y, BACKEND_TANH, 0), 5, true);
	b->n_tensors -= 2;
	memcpy(b->node[z].tensor, b->node[y].tensor, sizeof(b->node[z].tensor));
	b_act(b, z, BACKEND_SOFTMAX, 0);
}
CASE(dense_wide) /* large enough to be split over threads */
{
	int x = b_act(b, b_dense(b, b_input(b, 4, 4, 64), 48, true), BACKEND_RELU, 0);

	x = b_act(b, b_dense(b, b_flatten(b, x), 130, true), BACKEND_RELU, 0);
	b_act(b, b_dense(b, x, 10, true), BACKEND_SOFTMAX, 0);
}

/* ---- pooling, normalisation -------------------------------------------------------------- */

static inline void pool_case(struct build *b, enum backend_op op, uint32_t h, uint32_t w,
			     struct backend_window window)
{
	int x = b_pool(b, head(b, h, w, 3), op, window);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

CASE(maxpool_2x2)
{
	pool_case(b, BACKEND_MAXPOOL, 6, 5, b_valid(2, 2));
}
CASE(maxpool_3x3_stride2_same_even)
{
	pool_case(b, BACKEND_MAXPOOL, 6, 8, b_same(3, 2, 1, 6, 8));
}
CASE(maxpool_3x3_stride1_same)
{
	pool_case(b, BACKEND_MAXPOOL, 4, 5, b_same(3, 1, 1, 4, 5));
}
CASE(maxpool_2x3_stride_1_2)
{
	pool_case(b, BACKEND_MAXPOOL, 4, 7, (struct backend_window){2, 3, 1, 2, 1, 1, 0, 1, 1, 0});
}
CASE(maxpool_negative) /* every value below zero: padding must not win */
{
	int x = b_rescale(b, head(b, 5, 5, 3), NULL, NULL, 0.5f, -4.0f);

	x = b_pool(b, x, BACKEND_MAXPOOL, b_same(3, 2, 1, 5, 5));
	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(avgpool_2x2)
{
	pool_case(b, BACKEND_AVGPOOL, 6, 5, b_valid(2, 2));
}
CASE(avgpool_3x3_stride2_same_even)
{
	pool_case(b, BACKEND_AVGPOOL, 6, 8, b_same(3, 2, 1, 6, 8));
}
CASE(avgpool_3x3_stride1_same)
{
	pool_case(b, BACKEND_AVGPOOL, 4, 5, b_same(3, 1, 1, 4, 5));
}
CASE(global_avgpool)
{
	int x = b_global(b, head(b, 4, 5, 6), BACKEND_GLOBAL_AVGPOOL);

	b_act(b, b_dense(b, x, 3, true), BACKEND_SOFTMAX, 0);
}
CASE(global_maxpool)
{
	int x = b_global(b, head(b, 4, 5, 6), BACKEND_GLOBAL_MAXPOOL);

	b_act(b, b_dense(b, x, 3, true), BACKEND_SOFTMAX, 0);
}

static inline void norm_case(struct build *b, bool gamma, bool beta, bool frozen)
{
	int x = b_norm(b, head(b, 4, 3, 5), gamma, beta, frozen);

	tail(b, b_act(b, x, BACKEND_TANH, 0));
}

CASE(batchnorm)
{
	norm_case(b, true, true, false);
}
CASE(batchnorm_nogamma)
{
	norm_case(b, false, true, false);
}
CASE(batchnorm_nobeta)
{
	norm_case(b, true, false, false);
}
CASE(batchnorm_frozen)
{
	norm_case(b, true, true, true);
}
CASE(batchnorm_flat)
{
	int x = b_norm(b, b_dense(b, b_input(b, 1, 1, 6), 5, false), true, true, false);

	b_act(b, b_dense(b, b_act(b, x, BACKEND_RELU, 0), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(conv_norm_relu) /* what a fast back end fuses */
{
	int x = b_conv(b, head(b, 6, 6, 8), 16, b_same(3, 1, 1, 6, 6), 1, false);

	x = b_act(b, b_norm(b, x, true, true, false), BACKEND_RELU, 0);
	x = b_conv(b, x, 16, b_same(3, 1, 1, 6, 6), 1, false);
	tail(b, b_act(b, b_norm(b, x, true, true, false), BACKEND_RELU, 0));
}

#endif
