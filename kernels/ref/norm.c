/* SPDX-License-Identifier: MIT */
/*
 * norm.c: batch normalisation over n, h, w; m = n*h*w places.
 *   mean = sum x / m, var = sum (x - mean)^2 / m (biased), s = 1 / sqrt(var + epsilon)
 *   y = gamma (x - mean) s + beta = gamma xh + beta
 *   moving = moving * momentum + batch * (1 - momentum), for mean and variance
 *   dbeta = sum dy,  dgamma = sum dy xh,  dx = gamma s (dy - dbeta / m - xh dgamma / m)
 * Frozen, and outside training: mean and var are the moving ones, dx = gamma s dy.
 */
#include <math.h>

#include "ref.h"

/* Tensors: 0 gamma, 1 beta, 2 moving mean, 3 moving variance. */
struct norm {
	double mean, s;
};

static uint64_t batchnorm_extra(const struct backend_node *node, uint32_t n)
{
	return node->out.c * sizeof(struct norm);
}

static bool uses_batch(const struct ref_call *c)
{
	return c->pass->training && !c->node->frozen;
}

static void batch_statistics(const struct ref_call *c, uint32_t ch, uint64_t m, double *mean,
			     double *var)
{
	double sum = 0, square = 0;

	for (uint64_t p = 0; p < m; p++)
		sum += c->x[p * c->in.c + ch];
	*mean = sum / (double)m;
	for (uint64_t p = 0; p < m; p++) {
		double d = c->x[p * c->in.c + ch] - *mean;

		square += d * d;
	}
	*var = square / (double)m;
}

static void moving_update(float *moving, double batch, float momentum)
{
	*moving = (float)((double)*moving * momentum + batch * (1.0 - (double)momentum));
}

static void batchnorm_forward(const struct ref_call *c)
{
	uint64_t m = (uint64_t)c->n * c->in.h * c->in.w;
	struct norm *norm = c->extra;

	for (uint32_t ch = 0; ch < c->in.c; ch++) {
		double gamma = c->tensor[0] ? c->tensor[0][ch] : 1.0;
		double beta = c->tensor[1] ? c->tensor[1][ch] : 0.0;
		double mean = c->tensor[2][ch], var = c->tensor[3][ch];

		if (uses_batch(c) && m > 0) {
			batch_statistics(c, ch, m, &mean, &var);
			moving_update(&c->moving[2][ch], mean, c->node->momentum);
			moving_update(&c->moving[3][ch], var, c->node->momentum);
		}
		norm[ch] = (struct norm){mean, 1.0 / sqrt(var + c->node->epsilon)};
		for (uint64_t p = 0; p < m; p++) {
			uint64_t at = p * c->in.c + ch;

			c->y[at] = gamma * (c->x[at] - mean) * norm[ch].s + beta;
		}
	}
}

static void batchnorm_backward(const struct ref_call *c)
{
	uint64_t m = (uint64_t)c->n * c->in.h * c->in.w;
	const struct norm *norm = c->extra;

	for (uint32_t ch = 0; ch < c->in.c; ch++) {
		double gamma = c->tensor[0] ? c->tensor[0][ch] : 1.0;
		double dbeta = 0, dgamma = 0;

		for (uint64_t p = 0; p < m; p++) {
			uint64_t at = p * c->in.c + ch;

			dbeta += c->dy[at];
			dgamma += c->dy[at] * (c->x[at] - norm[ch].mean) * norm[ch].s;
		}
		for (uint64_t p = 0; p < m; p++) {
			uint64_t at = p * c->in.c + ch;
			double xh = (c->x[at] - norm[ch].mean) * norm[ch].s, d = c->dy[at];

			if (uses_batch(c))
				d -= (dbeta + xh * dgamma) / (double)m;
			c->dx[at] += gamma * norm[ch].s * d;
		}
		if (c->tensor[0])
			c->dtensor[0][ch] += dgamma;
		if (c->tensor[1])
			c->dtensor[1][ch] += dbeta;
	}
}

const struct ref_op ref_batchnorm = {batchnorm_forward, batchnorm_backward, batchnorm_extra};
