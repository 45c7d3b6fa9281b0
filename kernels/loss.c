/* SPDX-License-Identifier: MIT */
/*
 * loss.c: losses of Keras 3 and their gradients, one row at a time, in double.
 *
 * cross-entropy, logits z:	  l = sum_j y_j * (log sum_k e^z_k - z_j)  dl/dz_j = p_j sum(y) -
 * y_j cross-entropy, probabilities:  l = -sum_j y_j log clip(q_j), q_j = p_j / sum p binary,
 * logits:		  l = mean(max(z,0) - z y + log(1 + e^-|z|))	 dl/dz = (s(z) - y) / c
 * binary, probabilities:	  l = -mean(y log clip(p) + (1 - y) log(1 - clip(p)))
 * mse: mean((p - y)^2)		  mae: mean(|p - y|)
 * label smoothing s: y = y (1 - s) + s / c; binary: y (1 - s) + s / 2
 */
#include <math.h>

#include "loss.h"
#include "ops.h"

#define LOSS_EPSILON 1e-7 /* keras.backend.epsilon() */

static const char *const loss_name[BACKEND_LOSS_COUNT] = {
	"sparse_categorical_crossentropy",
	"categorical_crossentropy",
	"binary_crossentropy",
	"mean_squared_error",
	"mean_absolute_error",
};

/* The activation that pairs with the loss. */
static enum backend_activation loss_pair(enum backend_loss loss)
{
	switch (loss) {
	case BACKEND_SPARSE_CROSSENTROPY:
	case BACKEND_CATEGORICAL_CROSSENTROPY:
		return BACKEND_SOFTMAX;
	case BACKEND_BINARY_CROSSENTROPY:
		return BACKEND_SIGMOID;
	default:
		return BACKEND_LINEAR;
	}
}

static int loss_check(const struct backend_node *output, const struct backend_loss_config *config,
		      struct backend_error *error)
{
	enum backend_activation pair;

	if ((unsigned int)config->loss >= BACKEND_LOSS_COUNT)
		return backend_fail(error, -EINVAL, "unknown loss %d", (int)config->loss);
	pair = loss_pair(config->loss);
	if (!(config->label_smoothing >= 0.0f && config->label_smoothing <= 1.0f))
		return backend_fail(error, -EINVAL, "label_smoothing is not in 0..1");
	if (pair == BACKEND_LINEAR && (config->label_smoothing != 0.0f || config->from_logits))
		return backend_fail(error, -EINVAL, "loss %s has no label_smoothing or from_logits",
				    loss_name[config->loss]);
	if (config->loss == BACKEND_SPARSE_CROSSENTROPY &&
	    (output->out.h != 1 || output->out.w != 1))
		return backend_fail(error, -EINVAL,
				    "loss %s wants a flat output, layer %s gives (%u,%u,%u)",
				    loss_name[config->loss], output->name, output->out.h,
				    output->out.w, output->out.c);
	if (config->from_logits && output->op == BACKEND_ACTIVATION &&
	    (output->activation == BACKEND_SOFTMAX || output->activation == BACKEND_LOG_SOFTMAX ||
	     output->activation == BACKEND_SIGMOID))
		return backend_fail(error, -EINVAL,
				    "from_logits, but layer %s already applies its activation",
				    output->name);
	return 0;
}

int loss_plan(const struct backend_graph *graph, const struct backend_loss_config *config,
	      struct loss_plan *plan, struct backend_error *error)
{
	const struct backend_node *output = &graph->node[graph->output];
	enum backend_activation pair;
	int rc = loss_check(output, config, error);

	if (rc)
		return rc;
	pair = loss_pair(config->loss);
	*plan = (struct loss_plan){
		.loss = config->loss,
		.label_smoothing = config->label_smoothing,
		.activation = BACKEND_LINEAR,
		.node = graph->output,
		.places = output->out.h * output->out.w,
		.c = output->out.c,
	};
	if (pair == BACKEND_LINEAR)
		return 0;
	if (config->from_logits) {
		plan->activation = pair;
	} else if (output->op == BACKEND_ACTIVATION && output->activation == pair) {
		plan->activation = pair;
		plan->node = output->in[0];
		plan->skip_output = true;
	}
	return 0;
}

/* A row of f32 or of double; one of the two pointers is NULL, known at compile time. */
struct row {
	float *f;
	double *d;
};

#define INLINE static inline __attribute__((always_inline))

INLINE bool row_there(struct row r)
{
	return r.f || r.d;
}

INLINE double row_get(struct row r, uint64_t i)
{
	return r.d ? r.d[i] : r.f[i];
}

INLINE void row_set(struct row r, uint64_t i, double v)
{
	if (r.d)
		r.d[i] = v;
	else if (r.f)
		r.f[i] = (float)v;
}

/* Target j of a place, smoothed. */
INLINE double target_at(const struct loss_plan *plan, const float *target, int32_t label,
			uint64_t at, uint32_t j)
{
	double y = target ? target[at] : (double)(label == (int32_t)j);

	return y * (1.0 - plan->label_smoothing) + (double)plan->label_smoothing / plan->c;
}

/* Logits z[at .. at + c): l = sum_j y_j (logsum - z_j). */
INLINE double place_softmax(const struct loss_plan *plan, struct row z, uint64_t at, int32_t label,
			    const float *target, double factor, struct row output,
			    struct row gradient)
{
	bool want = target || label >= 0;
	double max = -INFINITY, sum = 0, y_sum = 0, loss = 0;

	for (uint32_t j = 0; j < plan->c; j++)
		max = fmax(max, row_get(z, at + j));
	for (uint32_t j = 0; j < plan->c; j++)
		sum += exp(row_get(z, at + j) - max);
	for (uint32_t j = 0; want && j < plan->c; j++) {
		double y = target_at(plan, target, label, at + j, j);

		y_sum += y;
		if (y != 0.0)
			loss += y * (log(sum) - (row_get(z, at + j) - max));
	}
	for (uint32_t j = 0; j < plan->c; j++) {
		double p = exp(row_get(z, at + j) - max) / sum;

		if (want && row_there(gradient))
			row_set(gradient, at + j,
				factor * (p * y_sum - target_at(plan, target, label, at + j, j)));
		row_set(output, at + j, p);
	}
	return loss;
}

/* Probabilities p: q = p / S, l = -sum_j y_j log clip(q_j). */
INLINE double place_probability(const struct loss_plan *plan, struct row z, uint64_t at,
				int32_t label, const float *target, double factor,
				struct row gradient)
{
	double sum = 0, loss = 0, g_q = 0;

	for (uint32_t j = 0; j < plan->c; j++)
		sum += row_get(z, at + j);
	for (uint32_t j = 0; j < plan->c; j++) {
		double q = row_get(z, at + j) / sum;
		double y = target_at(plan, target, label, at + j, j);
		bool clipped = q < LOSS_EPSILON || q > 1.0 - LOSS_EPSILON;

		loss -= y * log(q < LOSS_EPSILON	 ? LOSS_EPSILON
				: q > 1.0 - LOSS_EPSILON ? 1.0 - LOSS_EPSILON
							 : q);
		g_q -= clipped ? 0.0 : y; /* g_j q_j with g_j = dl/dq_j = -y_j / q_j */
	}
	for (uint32_t j = 0; row_there(gradient) && j < plan->c; j++) {
		double q = row_get(z, at + j) / sum;
		bool clipped = q < LOSS_EPSILON || q > 1.0 - LOSS_EPSILON;
		double g = clipped ? 0.0 : -target_at(plan, target, label, at + j, j) / q;

		row_set(gradient, at + j, factor * (g - g_q) / sum);
	}
	return loss;
}

/* One output of the losses that are a mean over outputs; *g = dl/dz. */
INLINE double element_loss(const struct loss_plan *plan, double z, double y, double *g)
{
	double p = z;

	switch (plan->loss) {
	case BACKEND_MSE:
		*g = 2.0 * (z - y);
		return (z - y) * (z - y);
	case BACKEND_MAE:
		*g = (z > y) - (z < y);
		return fabs(z - y);
	default: /* binary cross-entropy */
		y = y * (1.0 - plan->label_smoothing) + 0.5 * plan->label_smoothing;
		if (plan->activation == BACKEND_SIGMOID) {
			*g = 1.0 / (1.0 + exp(-z)) - y;
			return fmax(z, 0.0) - z * y + log1p(exp(-fabs(z)));
		}
		p = p < LOSS_EPSILON	     ? LOSS_EPSILON
		    : p > 1.0 - LOSS_EPSILON ? 1.0 - LOSS_EPSILON
					     : p;
		*g = p != z ? 0.0 : (1.0 - y) / (1.0 - p) - y / p;
		return -(y * log(p) + (1.0 - y) * log(1.0 - p));
	}
}

INLINE double row_elements(const struct loss_plan *plan, struct row z, const float *target,
			   double factor, struct row output, struct row gradient)
{
	uint64_t n = (uint64_t)plan->places * plan->c;
	double loss = 0;

	for (uint64_t i = 0; i < n; i++) {
		double v = row_get(z, i), g = 0;

		if (target) {
			loss += element_loss(plan, v, target[i], &g);
			row_set(gradient, i, factor * g / (double)n);
		}
		row_set(output, i, plan->activation == BACKEND_SIGMOID ? 1.0 / (1.0 + exp(-v)) : v);
	}
	return loss / (double)n;
}

INLINE double row_loss(const struct loss_plan *plan, struct row z, int32_t label,
		       const float *target, double factor, struct row output, struct row gradient)
{
	double loss = 0;

	if (plan->loss == BACKEND_SPARSE_CROSSENTROPY)
		target = NULL;
	else
		label = -1;
	if (plan->loss != BACKEND_SPARSE_CROSSENTROPY &&
	    plan->loss != BACKEND_CATEGORICAL_CROSSENTROPY)
		return row_elements(plan, z, target, factor, output, gradient);
	for (uint32_t k = 0; k < plan->places; k++) {
		uint64_t at = (uint64_t)k * plan->c;

		if (plan->activation == BACKEND_SOFTMAX) {
			loss += place_softmax(plan, z, at, label, target, factor / plan->places,
					      output, gradient);
			continue;
		}
		if (target || label >= 0)
			loss += place_probability(plan, z, at, label, target, factor / plan->places,
						  gradient);
		for (uint32_t j = 0; row_there(output) && j < plan->c; j++)
			row_set(output, at + j, row_get(z, at + j));
	}
	return loss / plan->places;
}

double loss_row(const struct loss_plan *plan, const double *z, int32_t label, const float *target,
		double factor, double *output, double *gradient)
{
	return row_loss(plan, (struct row){.d = (double *)z}, label, target, factor,
			(struct row){.d = output}, (struct row){.d = gradient});
}

double loss_row_f32(const struct loss_plan *plan, const float *z, int32_t label,
		    const float *target, double factor, float *output, float *gradient)
{
	return row_loss(plan, (struct row){.f = (float *)z}, label, target, factor,
			(struct row){.f = output}, (struct row){.f = gradient});
}
