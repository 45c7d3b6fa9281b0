/* SPDX-License-Identifier: MIT */
/*
 * act.cuh: Keras 3's element-wise activations and their slopes, in f32 (kernels/ref/activation.c
 * has the same in double). At a kink the slope is the one from the left.
 */
#ifndef CUDA_ACT_CUH
#define CUDA_ACT_CUH

#include "device.cuh"

#define SELU_ALPHA 1.6732632423543772f
#define SELU_SCALE 1.0507009873554805f
#define SQRT_HALF 0.70710678118654752f
#define SQRT_2_PI 0.79788456080286536f /* sqrt(2 / pi) */
#define INV_SQRT_2PI 0.39894228040143268f

DEVICE float logistic(float x)
{
	return 1.0f / (1.0f + expf(-x));
}

/* x > threshold: x, cut to [0, max_value] where that is finite; else slope * (x - threshold). */
DEVICE float relu(const struct act &p, float x)
{
	if (!(x > p.threshold))
		return isnan(x) ? x : p.alpha * (x - p.threshold);
	return isinf(p.max_value) ? x : fminf(fmaxf(x, 0.0f), p.max_value);
}

DEVICE float relu_slope(const struct act &p, float x)
{
	if (!(x > p.threshold))
		return p.alpha;
	return isinf(p.max_value) || (x > 0.0f && x < p.max_value) ? 1.0f : 0.0f;
}

DEVICE float gelu_tanh_inner(float x)
{
	return tanhf(SQRT_2_PI * (x + 0.044715f * x * x * x));
}

DEVICE float act_value(const struct act &p, float x)
{
	switch (p.kind) {
	case BACKEND_RELU:
		return relu(p, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0f ? x : p.alpha * x;
	case BACKEND_ELU:
		return x > 0.0f ? x : p.alpha * expm1f(x);
	case BACKEND_SELU:
		return SELU_SCALE * (x > 0.0f ? x : SELU_ALPHA * expm1f(x));
	case BACKEND_SIGMOID:
		return logistic(x);
	case BACKEND_HARD_SIGMOID:
		return x <= -3.0f ? 0.0f : x >= 3.0f ? 1.0f : (x + 3.0f) / 6.0f;
	case BACKEND_TANH:
		return tanhf(x);
	case BACKEND_SOFTPLUS:
		return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
	case BACKEND_SOFTSIGN:
		return x / (1.0f + fabsf(x));
	case BACKEND_SWISH:
		return x * logistic(x);
	case BACKEND_GELU:
		return 0.5f * x * (1.0f + erff(x * SQRT_HALF));
	case BACKEND_GELU_TANH:
		return 0.5f * x * (1.0f + gelu_tanh_inner(x));
	case BACKEND_EXPONENTIAL:
		return expf(x);
	default:
		return x;
	}
}

DEVICE float gelu_tanh_slope(float x)
{
	float t = gelu_tanh_inner(x);

	return 0.5f * (1.0f + t) +
	       0.5f * x * (1.0f - t * t) * SQRT_2_PI * (1.0f + 3.0f * 0.044715f * x * x);
}

DEVICE float act_slope(const struct act &p, float x)
{
	float s;

	switch (p.kind) {
	case BACKEND_RELU:
		return relu_slope(p, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0f ? 1.0f : p.alpha;
	case BACKEND_ELU:
		return x > 0.0f ? 1.0f : p.alpha * expf(x);
	case BACKEND_SELU:
		return SELU_SCALE * (x > 0.0f ? 1.0f : SELU_ALPHA * expf(x));
	case BACKEND_SIGMOID:
		s = logistic(x);
		return s * (1.0f - s);
	case BACKEND_HARD_SIGMOID:
		return x > -3.0f && x < 3.0f ? 1.0f / 6.0f : 0.0f;
	case BACKEND_TANH:
		s = tanhf(x);
		return 1.0f - s * s;
	case BACKEND_SOFTPLUS:
		return logistic(x);
	case BACKEND_SOFTSIGN:
		s = 1.0f + fabsf(x);
		return 1.0f / (s * s);
	case BACKEND_SWISH:
		s = logistic(x);
		return s + x * s * (1.0f - s);
	case BACKEND_GELU: /* Phi(x) + x phi(x) */
		return 0.5f * (1.0f + erff(x * SQRT_HALF)) + x * expf(-0.5f * x * x) * INV_SQRT_2PI;
	case BACKEND_GELU_TANH:
		return gelu_tanh_slope(x);
	case BACKEND_EXPONENTIAL:
		return expf(x);
	default:
		return 1.0f;
	}
}

#endif
