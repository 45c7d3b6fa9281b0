/* SPDX-License-Identifier: MIT */
/*
 * activation.c: Keras 3's activations, y = f(x) and dx += f'(x) dy. At a kink the derivative is the
 * one from the left (0 for ReLU at 0). The two softmaxes work over the last axis.
 */
#include <math.h>

#include "ref.h"

#define SELU_ALPHA 1.6732632423543772
#define SELU_SCALE 1.0507009873554805

static double logistic(double x)
{
	return 1.0 / (1.0 + exp(-x));
}

/* x > threshold: x, cut to [0, max_value] where that is finite; else slope * (x - threshold). */
static double relu(const struct backend_node *node, double x)
{
	if (!(x > node->threshold))
		return isnan(x) ? x : node->alpha * (x - node->threshold);
	return isinf(node->max_value) ? x : fmin(fmax(x, 0.0), node->max_value);
}

static double relu_slope(const struct backend_node *node, double x)
{
	if (!(x > node->threshold))
		return node->alpha;
	return isinf(node->max_value) || (x > 0.0 && x < node->max_value) ? 1.0 : 0.0;
}

/* tanh form: .5 x (1 + tanh(u)), u = sqrt(2/pi) (x + .044715 x^3) */
static double gelu_tanh(double x)
{
	return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_tanh_slope(double x)
{
	double t = tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));

	return 0.5 * (1.0 + t) +
	       0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
}

static double value(const struct backend_node *node, double x)
{
	switch (node->activation) {
	case BACKEND_RELU:
		return relu(node, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0 ? x : node->alpha * x;
	case BACKEND_ELU:
		return x > 0.0 ? x : node->alpha * expm1(x);
	case BACKEND_SELU:
		return SELU_SCALE * (x > 0.0 ? x : SELU_ALPHA * expm1(x));
	case BACKEND_SIGMOID:
		return logistic(x);
	case BACKEND_HARD_SIGMOID:
		return x <= -3.0 ? 0.0 : x >= 3.0 ? 1.0 : (x + 3.0) / 6.0;
	case BACKEND_TANH:
		return tanh(x);
	case BACKEND_SOFTPLUS:
		return fmax(x, 0.0) + log1p(exp(-fabs(x)));
	case BACKEND_SOFTSIGN:
		return x / (1.0 + fabs(x));
	case BACKEND_SWISH:
		return x * logistic(x);
	case BACKEND_GELU:
		return 0.5 * x * (1.0 + erf(x * M_SQRT1_2));
	case BACKEND_GELU_TANH:
		return gelu_tanh(x);
	case BACKEND_EXPONENTIAL:
		return exp(x);
	default:
		return x;
	}
}

static double slope(const struct backend_node *node, double x)
{
	double s;

	switch (node->activation) {
	case BACKEND_RELU:
		return relu_slope(node, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0 ? 1.0 : node->alpha;
	case BACKEND_ELU:
		return x > 0.0 ? 1.0 : node->alpha * exp(x);
	case BACKEND_SELU:
		return SELU_SCALE * (x > 0.0 ? 1.0 : SELU_ALPHA * exp(x));
	case BACKEND_SIGMOID:
		s = logistic(x);
		return s * (1.0 - s);
	case BACKEND_HARD_SIGMOID:
		return x > -3.0 && x < 3.0 ? 1.0 / 6.0 : 0.0;
	case BACKEND_TANH:
		s = tanh(x);
		return 1.0 - s * s;
	case BACKEND_SOFTPLUS:
		return logistic(x);
	case BACKEND_SOFTSIGN:
		s = 1.0 + fabs(x);
		return 1.0 / (s * s);
	case BACKEND_SWISH:
		s = logistic(x);
		return s + x * s * (1.0 - s);
	case BACKEND_GELU: /* Phi(x) + x phi(x) */
		return 0.5 * (1.0 + erf(x * M_SQRT1_2)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
	case BACKEND_GELU_TANH:
		return gelu_tanh_slope(x);
	case BACKEND_EXPONENTIAL:
		return exp(x);
	default:
		return 1.0;
	}
}

/* y_j = e^(x_j - max) / sum, or its logarithm. */
static void softmax_place(const double *x, double *y, uint32_t n, bool logarithm)
{
	double max = -INFINITY, sum = 0;

	for (uint32_t j = 0; j < n; j++)
		max = fmax(max, x[j]);
	for (uint32_t j = 0; j < n; j++)
		sum += exp(x[j] - max);
	for (uint32_t j = 0; j < n; j++)
		y[j] = logarithm ? x[j] - max - log(sum) : exp(x[j] - max) / sum;
}

/* softmax: dx_j += y_j (dy_j - sum dy y);  logarithm: dx_j += dy_j - e^y_j sum dy */
static void softmax_place_backward(const double *y, const double *dy, double *dx, uint32_t n,
				   bool logarithm)
{
	double sum = 0;

	for (uint32_t j = 0; j < n; j++)
		sum += logarithm ? dy[j] : dy[j] * y[j];
	for (uint32_t j = 0; j < n; j++)
		dx[j] += logarithm ? dy[j] - exp(y[j]) * sum : y[j] * (dy[j] - sum);
}

static bool over_axis(const struct backend_node *node)
{
	return node->activation == BACKEND_SOFTMAX || node->activation == BACKEND_LOG_SOFTMAX;
}

static void activation_forward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->in), axis = c->in.c;

	if (over_axis(c->node)) {
		for (uint64_t at = 0; at < count; at += axis)
			softmax_place(c->x + at, c->y + at, c->in.c,
				      c->node->activation == BACKEND_LOG_SOFTMAX);
		return;
	}
	for (uint64_t k = 0; k < count; k++)
		c->y[k] = value(c->node, c->x[k]);
}

static void activation_backward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->in), axis = c->in.c;

	if (over_axis(c->node)) {
		for (uint64_t at = 0; at < count; at += axis)
			softmax_place_backward(c->y + at, c->dy + at, c->dx + at, c->in.c,
					       c->node->activation == BACKEND_LOG_SOFTMAX);
		return;
	}
	for (uint64_t k = 0; k < count; k++)
		c->dx[k] += slope(c->node, c->x[k]) * c->dy[k];
}

const struct ref_op ref_activation = {activation_forward, activation_backward, NULL};
