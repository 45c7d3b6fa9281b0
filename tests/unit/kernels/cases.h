/* SPDX-License-Identifier: MIT */
/*
 * cases.h: the table of small networks that every back end is tried on: every operator, activation
 * and loss, with the shapes that go wrong. A layer with parameters stands before the operator of
 * interest, so that its gradient towards the input is seen too. One table for all back ends:
 * finite differences on ref, the others against ref.
 */
#ifndef TEST_CASES_H
#define TEST_CASES_H

#include "case_layers.h"

/* ---- activations ------------------------------------------------------------------------- */

/* Values well spread over both sides of the kinks. */
static inline void activation_case(struct build *b, enum backend_activation a, float alpha,
				   float max_value, float threshold)
{
	int x = b_dense(b, b_input(b, 2, 2, 4), 6, true);

	x = b_act(b, b_rescale(b, x, NULL, NULL, 2.5f, 0.1f), a, alpha);
	b->node[x].max_value = max_value;
	b->node[x].threshold = threshold;
	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

#define ACTIVATION(name, which, alpha)                            \
	CASE(name)                                                \
	{                                                         \
		activation_case(b, which, alpha, INFINITY, 0.0f); \
	}
ACTIVATION(linear, BACKEND_LINEAR, 0.0f)
ACTIVATION(relu, BACKEND_RELU, 0.0f)
ACTIVATION(relu_slope, BACKEND_RELU, 0.2f)
ACTIVATION(leaky_relu, BACKEND_LEAKY_RELU, 0.3f)
ACTIVATION(elu, BACKEND_ELU, 0.8f)
ACTIVATION(selu, BACKEND_SELU, 0.0f)
ACTIVATION(sigmoid, BACKEND_SIGMOID, 0.0f)
ACTIVATION(hard_sigmoid, BACKEND_HARD_SIGMOID, 0.0f)
ACTIVATION(tanh, BACKEND_TANH, 0.0f)
ACTIVATION(softplus, BACKEND_SOFTPLUS, 0.0f)
ACTIVATION(softsign, BACKEND_SOFTSIGN, 0.0f)
ACTIVATION(swish, BACKEND_SWISH, 0.0f)
ACTIVATION(gelu, BACKEND_GELU, 0.0f)
ACTIVATION(gelu_tanh, BACKEND_GELU_TANH, 0.0f)
ACTIVATION(exponential, BACKEND_EXPONENTIAL, 0.0f)
ACTIVATION(softmax_inside, BACKEND_SOFTMAX, 0.0f)
ACTIVATION(log_softmax_inside, BACKEND_LOG_SOFTMAX, 0.0f)
CASE(relu6)
{
	activation_case(b, BACKEND_RELU, 0.0f, 1.0f, 0.0f);
}
CASE(relu_all) /* slope, cap and threshold at once */
{
	activation_case(b, BACKEND_RELU, 0.1f, 1.5f, 0.5f);
}

/* ---- the rest ---------------------------------------------------------------------------- */

CASE(add_three)
{
	int x = head(b, 3, 4, 3), y = b_conv_same(b, x, 3, 3, 1), z = b_dense(b, x, 3, true);

	tail(b, b_act(b, b_add(b, x, y, z), BACKEND_TANH, 0));
}
CASE(add_to_itself)
{
	int x = head(b, 3, 4, 3);

	tail(b, b_act(b, b_add(b, x, x, -1), BACKEND_TANH, 0));
}
CASE(residual)
{
	int x = head(b, 6, 6, 4), y, z;

	y = b_act(b, b_norm(b, b_conv_same(b, x, 8, 3, 2), true, true, false), BACKEND_RELU, 0);
	y = b_norm(b, b_conv_same(b, y, 8, 3, 1), true, true, false);
	z = b_norm(b, b_conv_same(b, x, 8, 1, 2), true, true, false);
	tail(b, b_act(b, b_add(b, y, z, -1), BACKEND_RELU, 0));
}
CASE(concat_h)
{
	int x = head(b, 3, 4, 3), y;

	y = b_conv(b, x, 3, (struct backend_window){2, 1, 1, 1, 1, 1, 0, 0, 0, 0}, 1, true);
	b_act(b, b_dense(b, b_flatten(b, b_concat(b, x, y, 0)), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(concat_w)
{
	int x = head(b, 3, 4, 3), y;

	y = b_conv(b, x, 3, (struct backend_window){1, 3, 1, 1, 1, 1, 0, 0, 0, 0}, 1, true);
	b_act(b, b_dense(b, b_flatten(b, b_concat(b, x, y, 1)), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(concat_c)
{
	int x = head(b, 3, 4, 3), y = b_conv_same(b, x, 5, 3, 1);

	tail(b, b_act(b, b_concat(b, y, x, 2), BACKEND_TANH, 0));
}
CASE(pad)
{
	int x = b_conv(b, b_pad(b, head(b, 4, 3, 3), 1, 2, 0, 3), 4, b_valid(3, 1), 1, true);

	tail(b, b_act(b, x, BACKEND_TANH, 0));
}
CASE(upsample_nearest)
{
	int x = b_upsample(b, head(b, 3, 2, 3), 2, 3, false);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(upsample_bilinear)
{
	int x = b_upsample(b, head(b, 3, 4, 2), 3, 2, true);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(reshape)
{
	int x = b_reshape(b, head(b, 4, 3, 4), 2, 12, 2);

	tail(b, b_act(b, b_conv(b, x, 4, b_valid(2, 1), 1, true), BACKEND_TANH, 0));
}
CASE(dropout)
{
	int x = b_dropout(b, b_flatten(b, head(b, 3, 3, 7)), 0.4f); /* 63: not a multiple of 4 */

	x = b_act(b, b_dense(b, x, 6, true), BACKEND_TANH, 0);
	b_act(b, b_dense(b, b_dropout(b, x, 0.25f), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(dropout_image)
{
	tail(b, b_act(b, b_dropout(b, head(b, 5, 4, 3), 0.3f), BACKEND_TANH, 0));
}
CASE(rescale_channels)
{
	static const float scale[3] = {0.5f, -2.0f, 1.5f}, offset[3] = {0.1f, 0.2f, -0.3f};

	tail(b,
	     b_act(b, b_rescale(b, head(b, 3, 3, 3), scale, offset, 9.0f, 9.0f), BACKEND_TANH, 0));
}
CASE(rescale_scalar)
{
	int x = b_rescale(b, b_input(b, 4, 4, 2), NULL, NULL, 1.5f, -0.5f);

	tail(b, b_act(b, b_conv_same(b, x, 3, 3, 1), BACKEND_TANH, 0));
}
CASE(flip)
{
	int x = b_flip(b, head(b, 3, 4, 2), true, true);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(shift)
{
	int x = b_shift(b, head(b, 5, 6, 2), 0.4f, 0.3f);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}
CASE(crop)
{
	int x = b_crop(b, b_pad(b, head(b, 5, 4, 2), 1, 1, 1, 1), 4, 5);

	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

/* ---- losses ------------------------------------------------------------------------------ */

static inline int loss_head(struct build *b, uint32_t outputs)
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 6), 5, true), BACKEND_TANH, 0);

	return b_dense(b, x, outputs, true);
}

CASE(loss_logits)
{
	loss_head(b, 4);
}
CASE(loss_softmax)
{
	b_act(b, loss_head(b, 4), BACKEND_SOFTMAX, 0);
}
CASE(loss_probabilities) /* a softmax that the loss does not see */
{
	b_reshape(b, b_act(b, loss_head(b, 4), BACKEND_SOFTMAX, 0), 1, 1, 4);
}
CASE(loss_sigmoid)
{
	b_act(b, loss_head(b, 3), BACKEND_SIGMOID, 0);
}
CASE(loss_sigmoid_values)
{
	b_reshape(b, b_act(b, loss_head(b, 3), BACKEND_SIGMOID, 0), 1, 1, 3);
}
CASE(loss_one_logit)
{
	loss_head(b, 1);
}
CASE(loss_image)
{
	b_conv_same(b, head(b, 3, 4, 3), 2, 3, 1);
}
CASE(loss_image_softmax)
{
	b_act(b, b_conv_same(b, head(b, 3, 4, 3), 3, 3, 1), BACKEND_SOFTMAX, 0);
}
CASE(loss_image_probabilities)
{
	b_reshape(b, b_act(b, b_conv_same(b, head(b, 3, 4, 3), 3, 3, 1), BACKEND_SOFTMAX, 0), 4, 3,
		  3);
}

#define USUAL                                            \
	{                                                \
		BACKEND_SPARSE_CROSSENTROPY, 0.0f, false \
	}
#define OP(name)                                 \
	{                                        \
#name, case_##name, USUAL, false \
	}
#define LOSS(title, name, ...)                          \
	{                                               \
		title, case_##name, {__VA_ARGS__}, true \
	}

static const struct op_case op_cases[] = {
	OP(conv_1x1),
	OP(conv_1x1_stride2),
	OP(conv_3x3_valid),
	OP(conv_3x3_same),
	OP(conv_3x3_same_nobias),
	OP(conv_3x3_same_stride2_even),
	OP(conv_3x3_same_stride2_odd),
	OP(conv_3x3_stride3),
	OP(conv_5x5_same),
	OP(conv_7x7_same_stride2),
	OP(conv_2x2_same),
	OP(conv_3x2_stride_2_1),
	OP(conv_dilation2_same),
	OP(conv_dilation_3_2_valid),
	OP(conv_groups2),
	OP(conv_groups_all),
	OP(conv_window_of_whole_image),
	OP(conv_wide_padding),
	OP(conv_one_pixel),
	OP(conv_16_relu_maxpool),
	OP(conv_33_channels),
	OP(conv_on_input),
	OP(depthwise_3x3_same),
	OP(depthwise_multiplier2),
	OP(depthwise_stride2_even),
	OP(depthwise_dilation2),
	OP(separable),
	OP(dense),
	OP(dense_nobias),
	OP(dense_on_last_axis),
	OP(dense_shared),
	OP(dense_wide),
	OP(maxpool_2x2),
	OP(maxpool_3x3_stride2_same_even),
	OP(maxpool_3x3_stride1_same),
	OP(maxpool_2x3_stride_1_2),
	OP(maxpool_negative),
	OP(avgpool_2x2),
	OP(avgpool_3x3_stride2_same_even),
	OP(avgpool_3x3_stride1_same),
	OP(global_avgpool),
	OP(global_maxpool),
	OP(batchnorm),
	OP(batchnorm_nogamma),
	OP(batchnorm_nobeta),
	OP(batchnorm_frozen),
	OP(batchnorm_flat),
	OP(conv_norm_relu),
	OP(linear),
	OP(relu),
	OP(relu_slope),
	OP(leaky_relu),
	OP(elu),
	OP(selu),
	OP(sigmoid),
	OP(hard_sigmoid),
	OP(tanh),
	OP(softplus),
	OP(softsign),
	OP(swish),
	OP(gelu),
	OP(gelu_tanh),
	OP(exponential),
	OP(softmax_inside),
	OP(log_softmax_inside),
	OP(relu6),
	OP(relu_all),
	OP(add_three),
	OP(add_to_itself),
	OP(residual),
	OP(concat_h),
	OP(concat_w),
	OP(concat_c),
	OP(pad),
	OP(upsample_nearest),
	OP(upsample_bilinear),
	OP(reshape),
	OP(dropout),
	OP(dropout_image),
	OP(rescale_channels),
	OP(rescale_scalar),
	OP(flip),
	OP(shift),
	OP(crop),
	LOSS("sparse, softmax", loss_softmax, BACKEND_SPARSE_CROSSENTROPY, 0.0f, false),
	LOSS("sparse, softmax, smoothed", loss_softmax, BACKEND_SPARSE_CROSSENTROPY, 0.1f, false),
	LOSS("sparse, logits", loss_logits, BACKEND_SPARSE_CROSSENTROPY, 0.0f, true),
	LOSS("sparse, probabilities", loss_probabilities, BACKEND_SPARSE_CROSSENTROPY, 0.0f, false),
	LOSS("sparse, probabilities, smoothed", loss_probabilities, BACKEND_SPARSE_CROSSENTROPY,
	     0.2f, false),
	LOSS("sparse, linear output as probabilities", loss_sigmoid_values,
	     BACKEND_SPARSE_CROSSENTROPY, 0.0f, false),
	LOSS("categorical, softmax", loss_softmax, BACKEND_CATEGORICAL_CROSSENTROPY, 0.0f, false),
	LOSS("categorical, softmax, smoothed", loss_softmax, BACKEND_CATEGORICAL_CROSSENTROPY, 0.1f,
	     false),
	LOSS("categorical, logits, smoothed", loss_logits, BACKEND_CATEGORICAL_CROSSENTROPY, 0.1f,
	     true),
	LOSS("categorical, probabilities", loss_probabilities, BACKEND_CATEGORICAL_CROSSENTROPY,
	     0.0f, false),
	LOSS("categorical, image, softmax", loss_image_softmax, BACKEND_CATEGORICAL_CROSSENTROPY,
	     0.1f, false),
	LOSS("categorical, image, logits", loss_image, BACKEND_CATEGORICAL_CROSSENTROPY, 0.0f,
	     true),
	LOSS("categorical, image, probabilities", loss_image_probabilities,
	     BACKEND_CATEGORICAL_CROSSENTROPY, 0.0f, false),
	LOSS("binary, sigmoid", loss_sigmoid, BACKEND_BINARY_CROSSENTROPY, 0.0f, false),
	LOSS("binary, sigmoid, smoothed", loss_sigmoid, BACKEND_BINARY_CROSSENTROPY, 0.2f, false),
	LOSS("binary, logits", loss_logits, BACKEND_BINARY_CROSSENTROPY, 0.0f, true),
	LOSS("binary, one logit", loss_one_logit, BACKEND_BINARY_CROSSENTROPY, 0.0f, true),
	LOSS("binary, probabilities", loss_sigmoid_values, BACKEND_BINARY_CROSSENTROPY, 0.0f,
	     false),
	LOSS("binary, probabilities, smoothed", loss_sigmoid_values, BACKEND_BINARY_CROSSENTROPY,
	     0.1f, false),
	LOSS("mean squared error", loss_logits, BACKEND_MSE, 0.0f, false),
	LOSS("mean squared error, image", loss_image, BACKEND_MSE, 0.0f, false),
	LOSS("mean absolute error", loss_logits, BACKEND_MAE, 0.0f, false),
};
#define OP_CASES (sizeof(op_cases) / sizeof(*op_cases))

#endif
