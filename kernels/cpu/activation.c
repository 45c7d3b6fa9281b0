/* SPDX-License-Identifier: MIT */
/*
 * activation.c: activations that are not fused into the op before them, and dropout. Formulas as in
 * the ref back end, in f32. The derivative is a function of the input; at a kink it is the one from
 * the left.
 */
#include <math.h>

#include "lower.h"
#include "../random.h"

#define SELU_ALPHA 1.6732632423543772f
#define SELU_SCALE 1.0507009873554805f
#define ROOT_HALF 0.70710678118654752f
#define GELU_U 0.79788456080286536f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f
#define DENSITY 0.39894228040143268f /* 1 / sqrt(2 pi) */

static inline float logistic(float x)
{
	return x >= 0.0f ? 1.0f / (1.0f + expf(-x)) : expf(x) / (1.0f + expf(x));
}

static inline float relu_value(const struct backend_node *node, float x)
{
	if (!(x > node->threshold))
		return isnan(x) ? x : node->alpha * (x - node->threshold);
	return isinf(node->max_value) ? x : fminf(fmaxf(x, 0.0f), node->max_value);
}

static inline float relu_slope(const struct backend_node *node, float x)
{
	if (!(x > node->threshold))
		return node->alpha;
	return isinf(node->max_value) || (x > 0.0f && x < node->max_value) ? 1.0f : 0.0f;
}

static float value(const struct backend_node *node, float x)
{
	switch (node->activation) {
	case BACKEND_RELU:
		return relu_value(node, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0f ? x : node->alpha * x;
	case BACKEND_ELU:
		return x > 0.0f ? x : node->alpha * expm1f(x);
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
		return 0.5f * x * erfcf(-x * ROOT_HALF);
	case BACKEND_GELU_TANH: /* (1 + tanh u) / 2 = logistic(2 u) */
		return x * logistic(2.0f * GELU_U * (x + GELU_CUBE * x * x * x));
	case BACKEND_EXPONENTIAL:
		return expf(x);
	default:
		return x;
	}
}

static float slope(const struct backend_node *node, float x)
{
	float s;

	switch (node->activation) {
	case BACKEND_RELU:
		return relu_slope(node, x);
	case BACKEND_LEAKY_RELU:
		return x > 0.0f ? 1.0f : node->alpha;
	case BACKEND_ELU:
		return x > 0.0f ? 1.0f : node->alpha * expf(x);
	case BACKEND_SELU:
		return SELU_SCALE * (x > 0.0f ? 1.0f : SELU_ALPHA * expf(x));
	case BACKEND_SIGMOID:
		return logistic(x) * logistic(-x);
	case BACKEND_HARD_SIGMOID:
		return x > -3.0f && x < 3.0f ? 1.0f / 6.0f : 0.0f;
	case BACKEND_TANH:
		s = tanhf(x);
		return (1.0f - s) * (1.0f + s);
	case BACKEND_SOFTPLUS:
		return logistic(x);
	case BACKEND_SOFTSIGN:
		s = 1.0f + fabsf(x);
		return 1.0f / (s * s);
	case BACKEND_SWISH:
		s = logistic(x);
		return s + x * s * logistic(-x);
	case BACKEND_GELU:
		return 0.5f * erfcf(-x * ROOT_HALF) + x * expf(-0.5f * x * x) * DENSITY;
	case BACKEND_GELU_TANH:
		s = logistic(2.0f * GELU_U * (x + GELU_CUBE * x * x * x));
		return s + x * s * (1.0f - s) * 2.0f * GELU_U * (1.0f + 3.0f * GELU_CUBE * x * x);
	case BACKEND_EXPONENTIAL:
		return expf(x);
	default:
		return 1.0f;
	}
}

/* operands: y, x */
static int value_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	float *y = cpu_at(w, op->buf[0], row);
	const float *x = cpu_at(w, op->buf[1], row);

	if (op->relu) {
		cpu_loops_of(w)->relu(y, x, count);
		return 0;
	}
	for (uint64_t e = 0; e < count; e++)
		y[e] = value(op->node, x[e]);
	return 0;
}

/* operands: dx, dy, x */
static int slope_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	float *dx = cpu_at(w, op->buf[0], row);
	const float *dy = cpu_at(w, op->buf[1], row), *x = cpu_at(w, op->buf[2], row);

	if (op->relu && !op->accumulate) {
		cpu_loops_of(w)->mask(dx, dy, x, count);
		return 0;
	}
	for (uint64_t e = 0; e < count; e++) {
		float g = slope(op->node, x[e]) * dy[e];

		dx[e] = op->accumulate ? dx[e] + g : g;
	}
	return 0;
}

static void softmax_place(const float *x, float *y, uint32_t c, bool logarithm)
{
	float max = -INFINITY;
	double sum = 0;

	for (uint32_t j = 0; j < c; j++)
		max = fmaxf(max, x[j]);
	for (uint32_t j = 0; j < c; j++)
		sum += expf(x[j] - max);
	for (uint32_t j = 0; j < c; j++)
		y[j] = logarithm ? (float)(x[j] - max - log(sum)) : (float)(expf(x[j] - max) / sum);
}

static int softmax_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	uint32_t c = op->in.c;

	for (uint64_t e = 0; e < count; e += c)
		softmax_place(cpu_at(w, op->buf[1], row) + e, cpu_at(w, op->buf[0], row) + e, c,
			      op->node->activation == BACKEND_LOG_SOFTMAX);
	return 0;
}

/* softmax: dx_j = y_j (dy_j - sum dy y);  logarithm: dx_j = dy_j - e^y_j sum dy. Operands: dx, dy,
 * y. */
static int softmax_slope_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row,
			     uint32_t n)
{
	bool logarithm = op->node->activation == BACKEND_LOG_SOFTMAX;
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	float *dx = cpu_at(w, op->buf[0], row);
	const float *dy = cpu_at(w, op->buf[1], row), *y = cpu_at(w, op->buf[2], row);
	uint32_t c = op->in.c;

	for (uint64_t e = 0; e < count; e += c) {
		double sum = 0;

		for (uint32_t j = 0; j < c; j++)
			sum += logarithm ? dy[e + j] : (double)dy[e + j] * y[e + j];
		for (uint32_t j = 0; j < c; j++) {
			double g = logarithm ? dy[e + j] - expf(y[e + j]) * sum
					     : y[e + j] * (dy[e + j] - sum);

			dx[e + j] = (op->accumulate ? dx[e + j] : 0.0f) + (float)g;
		}
	}
	return 0;
}

static bool over_axis(const struct backend_node *n)
{
	return n->activation == BACKEND_SOFTMAX || n->activation == BACKEND_LOG_SOFTMAX;
}

static bool plain(const struct backend_node *n)
{
	return n->activation == BACKEND_RELU && n->alpha == 0.0f && n->threshold == 0.0f &&
	       isinf(n->max_value);
}

void activation_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, over_axis(n) ? softmax_run : value_run);

	op->relu = plain(n);
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
	op->share_to = 0;
	op->share_of = 1;
}

void activation_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, over_axis(n) ? softmax_slope_run : slope_run);

	op->relu = plain(n);
	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 2, lower_value(l, over_axis(n) ? node : n->in[0]));
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	op->share_to = op->accumulate ? -1 : 0;
	op->share_of = 1;
}

/* ---- dropout ----------------------------------------------------------------------------- */

#define DROP_BLOCK 256

/* operands: y, x, mask (a byte an element) */
static int drop_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct backend_batch *b = w->net->run.batch;
	uint64_t count = w->plan->buffer[op->buf[0]].row;
	float factor[DROP_BLOCK];

	for (uint32_t i = row; i < row + n; i++) {
		float *y = cpu_at(w, op->buf[0], i);
		const float *x = cpu_at(w, op->buf[1], i);
		uint8_t *mask = (uint8_t *)cpu_operand(op, w, 2, i);

		for (uint64_t e = 0; e < count; e += DROP_BLOCK) {
			uint64_t m = count - e < DROP_BLOCK ? count - e : DROP_BLOCK;

			random_dropout(b->seed, b->step, b->position + i, op->node->layer,
				       op->node->rate, (uint32_t)e, (uint32_t)(e + m), factor);
			for (uint64_t k = 0; k < m; k++)
				y[e + k] = factor[k] * x[e + k];
			for (uint64_t k = 0; mask && k < m; k++)
				mask[e + k] = factor[k] != 0.0f;
		}
	}
	return 0;
}

/* operands: dx, dy, mask */
static int drop_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const float keep = 1.0f / (1.0f - op->node->rate);
	uint64_t count = w->plan->buffer[op->buf[0]].row;

	for (uint32_t i = row; i < row + n; i++) {
		float *dx = cpu_at(w, op->buf[0], i);
		const float *dy = cpu_at(w, op->buf[1], i);
		const uint8_t *mask = (const uint8_t *)cpu_at(w, op->buf[2], i);

		if (op->accumulate)
			for (uint64_t e = 0; e < count; e++)
				dx[e] += mask[e] ? keep * dy[e] : 0.0f;
		else
			for (uint64_t e = 0; e < count; e++)
				dx[e] = mask[e] ? keep * dy[e] : 0.0f;
	}
	return 0;
}

void dropout_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, drop_run);

	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
	op->share_to = 0;
	op->share_of = 1;
	if (lower_wants(l, n->in[0])) {
		int32_t mask = lower_buffer(l, (backend_shape_count(n->out) + 3) / 4);

		lower_use(l, op, 2, mask);
		l->mask[node] = mask;
	}
}

void dropout_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, drop_back_run);

	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 2, l->mask[node]);
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	op->share_to = op->accumulate ? -1 : 0;
	op->share_of = 1;
}
