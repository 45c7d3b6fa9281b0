/* SPDX-License-Identifier: MIT */
/*
 * dense.c: on the last axis, over all r = n*h*w places:
 *   y[r,o] = b[o] + sum_c x[r,c] k[c,o];  dk = x^T dy,  dx = dy k^T,  db = sum_r dy
 */
#include "ref.h"

static void dense_forward(const struct ref_call *c)
{
	uint64_t places = (uint64_t)c->n * c->in.h * c->in.w;

	for (uint64_t r = 0; r < places; r++) {
		const double *x = c->x + r * c->in.c;
		double *y = c->y + r * c->out.c;

		for (uint32_t o = 0; o < c->out.c; o++)
			y[o] = c->tensor[1] ? c->tensor[1][o] : 0.0;
		for (uint32_t i = 0; i < c->in.c; i++)
			for (uint32_t o = 0; o < c->out.c; o++)
				y[o] += x[i] * c->tensor[0][(uint64_t)i * c->out.c + o];
	}
}

static void dense_backward(const struct ref_call *c)
{
	uint64_t places = (uint64_t)c->n * c->in.h * c->in.w;

	for (uint64_t r = 0; r < places; r++) {
		const double *x = c->x + r * c->in.c, *dy = c->dy + r * c->out.c;
		double *dx = c->dx + r * c->in.c;

		for (uint32_t o = 0; c->tensor[1] && o < c->out.c; o++)
			c->dtensor[1][o] += dy[o];
		for (uint32_t i = 0; i < c->in.c; i++) {
			const float *k = c->tensor[0] + (uint64_t)i * c->out.c;
			double *dk = c->dtensor[0] + (uint64_t)i * c->out.c, sum = 0;

			for (uint32_t o = 0; o < c->out.c; o++) {
				dk[o] += x[i] * dy[o];
				sum += (double)k[o] * dy[o];
			}
			dx[i] += sum;
		}
	}
}

const struct ref_op ref_dense = {dense_forward, dense_backward, NULL};
