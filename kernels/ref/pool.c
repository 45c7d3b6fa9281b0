/* SPDX-License-Identifier: MIT */
/*
 * pool.c: pooling over windows and over the whole image.
 *   max: y = max over the taps inside; the first largest gets the gradient; NaN wins
 *   average: y = sum / number of taps inside; each tap gets dy / number
 */
#include <math.h>

#include "ref.h"

static uint64_t maxpool_extra(const struct backend_node *node, uint32_t n)
{
	return n * backend_shape_count(node->out) * sizeof(uint64_t);
}

/* Position in x of the largest tap of channel ch. */
static uint64_t window_largest(const struct ref_call *c, uint32_t i, uint32_t oy, uint32_t ox,
			       uint32_t ch)
{
	const struct backend_window *w = &c->node->window;
	uint64_t best = UINT64_MAX;

	for (uint32_t ky = 0; ky < w->kh; ky++) {
		int64_t iy = ref_tap(oy, w->stride_h, ky, 1, w->pad_top, c->in.h);

		for (uint32_t kx = 0; kx < w->kw && iy >= 0; kx++) {
			int64_t ix = ref_tap(ox, w->stride_w, kx, 1, w->pad_left, c->in.w);
			uint64_t at;

			if (ix < 0)
				continue;
			at = ref_at(c->in, i, (uint32_t)iy, (uint32_t)ix) + ch;
			if (best == UINT64_MAX || c->x[at] > c->x[best] ||
			    (isnan(c->x[at]) && !isnan(c->x[best])))
				best = at;
		}
	}
	return best;
}

static void maxpool_forward(const struct ref_call *c)
{
	uint64_t *from = c->extra, to = 0;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++)
				for (uint32_t ch = 0; ch < c->out.c; ch++, to++) {
					from[to] = window_largest(c, i, oy, ox, ch);
					c->y[to] = c->x[from[to]];
				}
}

/* dx[where the largest was] += dy */
static void largest_backward(const struct ref_call *c)
{
	const uint64_t *from = c->extra;
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint64_t k = 0; k < count; k++)
		c->dx[from[k]] += c->dy[k];
}

/* Taps inside the image on one axis. */
static uint32_t taps_inside(uint32_t o, uint32_t stride, uint32_t k, uint32_t pad, uint32_t size)
{
	uint32_t count = 0;

	for (uint32_t t = 0; t < k; t++)
		count += ref_tap(o, stride, t, 1, pad, size) >= 0;
	return count;
}

static void avgpool_pixel(const struct ref_call *c, uint32_t i, uint32_t oy, uint32_t ox,
			  bool backward)
{
	const struct backend_window *w = &c->node->window;
	double part = 1.0 / ((double)taps_inside(oy, w->stride_h, w->kh, w->pad_top, c->in.h) *
			     taps_inside(ox, w->stride_w, w->kw, w->pad_left, c->in.w));
	uint64_t out = ref_at(c->out, i, oy, ox);

	for (uint32_t ky = 0; ky < w->kh; ky++) {
		int64_t iy = ref_tap(oy, w->stride_h, ky, 1, w->pad_top, c->in.h);

		for (uint32_t kx = 0; kx < w->kw && iy >= 0; kx++) {
			int64_t ix = ref_tap(ox, w->stride_w, kx, 1, w->pad_left, c->in.w);
			uint64_t at;

			if (ix < 0)
				continue;
			at = ref_at(c->in, i, (uint32_t)iy, (uint32_t)ix);
			for (uint32_t ch = 0; ch < c->out.c; ch++) {
				if (backward)
					c->dx[at + ch] += part * c->dy[out + ch];
				else
					c->y[out + ch] += part * c->x[at + ch];
			}
		}
	}
}

static void avgpool_forward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint64_t k = 0; k < count; k++)
		c->y[k] = 0.0;
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++)
				avgpool_pixel(c, i, oy, ox, false);
}

static void avgpool_backward(const struct ref_call *c)
{
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++)
				avgpool_pixel(c, i, oy, ox, true);
}

static void global_avgpool_forward(const struct ref_call *c)
{
	uint64_t places = (uint64_t)c->in.h * c->in.w;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t ch = 0; ch < c->in.c; ch++) {
			double sum = 0;

			for (uint64_t p = 0; p < places; p++)
				sum += c->x[(i * places + p) * c->in.c + ch];
			c->y[(uint64_t)i * c->in.c + ch] = sum / (double)places;
		}
}

static void global_avgpool_backward(const struct ref_call *c)
{
	uint64_t places = (uint64_t)c->in.h * c->in.w;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint64_t p = 0; p < places; p++)
			for (uint32_t ch = 0; ch < c->in.c; ch++)
				c->dx[(i * places + p) * c->in.c + ch] +=
					c->dy[(uint64_t)i * c->in.c + ch] / (double)places;
}

static void global_maxpool_forward(const struct ref_call *c)
{
	uint64_t places = (uint64_t)c->in.h * c->in.w, *from = c->extra;

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t ch = 0; ch < c->in.c; ch++) {
			uint64_t best = i * places * c->in.c + ch, to = (uint64_t)i * c->in.c + ch;

			for (uint64_t p = 1; p < places; p++) {
				uint64_t at = (i * places + p) * c->in.c + ch;

				if (c->x[at] > c->x[best] ||
				    (isnan(c->x[at]) && !isnan(c->x[best])))
					best = at;
			}
			from[to] = best;
			c->y[to] = c->x[best];
		}
}

const struct ref_op ref_maxpool = {maxpool_forward, largest_backward, maxpool_extra};
const struct ref_op ref_avgpool = {avgpool_forward, avgpool_backward, NULL};
const struct ref_op ref_global_avgpool = {global_avgpool_forward, global_avgpool_backward, NULL};
const struct ref_op ref_global_maxpool = {global_maxpool_forward, largest_backward, maxpool_extra};
