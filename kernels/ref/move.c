/* SPDX-License-Identifier: MIT */
/*
 * move.c: operators that move, copy, scale or drop values: add, concat, pad, reshape, flip, shift,
 * crop, dropout, rescale. (Upsampling: upsample.c.)
 */
#include <string.h>

#include "../random.h"
#include "ref.h"

/* y = sum_k x_k;  dx_k += dy */
static void add_forward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint64_t e = 0; e < count; e++) {
		double sum = 0;

		for (uint32_t k = 0; k < c->node->n_in; k++)
			sum += ref_value(c, k)[e];
		c->y[e] = sum;
	}
}

static void add_backward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint32_t k = 0; k < c->node->n_in; k++)
		for (uint64_t e = 0; e < count; e++)
			ref_gradient(c, k)[e] += c->dy[e];
}

/* Input k begins at `start` of the axis. Element (i, y, x, ch) of it goes to that plus start. */
static void concat_walk(const struct ref_call *c, bool backward)
{
	uint32_t start[3] = {0, 0, 0}; /* h, w, c */

	for (uint32_t k = 0; k < c->node->n_in; k++) {
		struct backend_shape s = ref_shape(c, k);
		const uint32_t size[3] = {s.h, s.w, s.c};

		for (uint32_t i = 0; i < c->n; i++)
			for (uint32_t y = 0; y < s.h; y++)
				for (uint32_t x = 0; x < s.w; x++) {
					uint64_t in = ref_at(s, i, y, x);
					uint64_t out =
						ref_at(c->out, i, y + start[0], x + start[1]) +
						start[2];

					for (uint32_t ch = 0; ch < s.c; ch++) {
						if (backward)
							ref_gradient(c, k)[in + ch] +=
								c->dy[out + ch];
						else
							c->y[out + ch] = ref_value(c, k)[in + ch];
					}
				}
		start[c->node->axis] += size[c->node->axis];
	}
}

static void concat_forward(const struct ref_call *c)
{
	concat_walk(c, false);
}

static void concat_backward(const struct ref_call *c)
{
	concat_walk(c, true);
}

/*
 * Output pixel (y, x) of row i shows input pixel (sy, sx); outside it is zero. Serves pad (sy = y
 * - pad_top) and the random geometries.
 */
static bool source_pixel(const struct ref_call *c, const struct random_geometry *g, uint32_t y,
			 uint32_t x, uint32_t *sy, uint32_t *sx)
{
	int64_t ty = g->mirror_y ? (int64_t)c->in.h - 1 - y : y;
	int64_t tx = g->mirror_x ? (int64_t)c->in.w - 1 - x : x;

	ty += g->dy;
	tx += g->dx;
	if (ty < 0 || ty >= c->in.h || tx < 0 || tx >= c->in.w)
		return false;
	*sy = (uint32_t)ty;
	*sx = (uint32_t)tx;
	return true;
}

static void move_row(const struct ref_call *c, const struct random_geometry *g, uint32_t i,
		     bool backward)
{
	for (uint32_t y = 0; y < c->out.h; y++)
		for (uint32_t x = 0; x < c->out.w; x++) {
			uint64_t out = ref_at(c->out, i, y, x), in;
			uint32_t sy = 0, sx = 0;
			bool there = source_pixel(c, g, y, x, &sy, &sx);

			in = ref_at(c->in, i, sy, sx);
			for (uint32_t ch = 0; ch < c->out.c; ch++) {
				if (!backward)
					c->y[out + ch] = there ? c->x[in + ch] : 0.0;
				else if (there)
					c->dx[in + ch] += c->dy[out + ch];
			}
		}
}

static void pad_rows(const struct ref_call *c, bool backward)
{
	const struct random_geometry g = {.dy = -(int32_t)c->node->window.pad_top,
					  .dx = -(int32_t)c->node->window.pad_left};

	for (uint32_t i = 0; i < c->n; i++)
		move_row(c, &g, i, backward);
}

static void pad_forward(const struct ref_call *c)
{
	pad_rows(c, false);
}

static void pad_backward(const struct ref_call *c)
{
	pad_rows(c, true);
}

static void geometry_rows(const struct ref_call *c, bool backward)
{
	const struct backend_batch *b = c->pass->batch;
	struct random_geometry g;

	for (uint32_t i = 0; i < c->n; i++) {
		random_geometry(c->node, c->in, c->pass->training, b->seed, b->step,
				b->position + i, &g);
		move_row(c, &g, i, backward);
	}
}

static void geometry_forward(const struct ref_call *c)
{
	geometry_rows(c, false);
}

static void geometry_backward(const struct ref_call *c)
{
	geometry_rows(c, true);
}

static void reshape_forward(const struct ref_call *c)
{
	memcpy(c->y, c->x, c->n * backend_shape_count(c->out) * sizeof(*c->y));
}

static void reshape_backward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint64_t e = 0; e < count; e++)
		c->dx[e] += c->dy[e];
}

/* to[e] += (or =) factor[e] from[e]; the factors are drawn again in backward */
static void dropout_rows(const struct ref_call *c, const double *from, double *to, bool add)
{
	const struct backend_batch *b = c->pass->batch;
	uint64_t count = backend_shape_count(c->out);
	float factor[64];

	for (uint32_t i = 0; i < c->n; i++)
		for (uint64_t e = 0; e < count; e++) {
			uint64_t at = i * count + e;

			if (e % 64 == 0)
				random_dropout(b->seed, b->step, b->position + i, c->node->layer,
					       c->node->rate, (uint32_t)e,
					       (uint32_t)(count - e < 64 ? count : e + 64), factor);
			to[at] = (add ? to[at] : 0.0) + factor[e % 64] * from[at];
		}
}

static void dropout_forward(const struct ref_call *c)
{
	if (c->pass->training)
		dropout_rows(c, c->x, c->y, false);
	else
		reshape_forward(c);
}

static void dropout_backward(const struct ref_call *c)
{
	dropout_rows(c, c->dy, c->dx, true);
}

/* y = x scale + offset;  dx += scale dy */
static void rescale_forward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);
	const struct backend_node *node = c->node;

	for (uint64_t e = 0; e < count; e++) {
		double scale = node->scale ? node->scale[e % c->in.c] : node->scale1;

		c->y[e] = c->x[e] * scale +
			  (node->offset ? node->offset[e % c->in.c] : node->offset1);
	}
}

static void rescale_backward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);
	const struct backend_node *node = c->node;

	for (uint64_t e = 0; e < count; e++)
		c->dx[e] += c->dy[e] * (node->scale ? node->scale[e % c->in.c] : node->scale1);
}

const struct ref_op ref_add = {add_forward, add_backward, NULL};
const struct ref_op ref_concat = {concat_forward, concat_backward, NULL};
const struct ref_op ref_pad = {pad_forward, pad_backward, NULL};
const struct ref_op ref_geometry = {geometry_forward, geometry_backward, NULL};
const struct ref_op ref_reshape = {reshape_forward, reshape_backward, NULL};
const struct ref_op ref_dropout = {dropout_forward, dropout_backward, NULL};
const struct ref_op ref_rescale = {rescale_forward, rescale_backward, NULL};
