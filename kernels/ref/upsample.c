/* SPDX-License-Identifier: MIT */
/*
 * upsample.c: by whole factors f. Nearest: y[o] = x[o / f]. Bilinear, pixel centres at halves:
 * s = (o + .5) / f - .5, y = (1 - t) x[floor s] + t x[floor s + 1] with t = s - floor s, indices
 * cut to the image; on both axes.
 */
#include <math.h>

#include "ref.h"

/* The one or two source positions of an output position on one axis. */
struct blend {
	uint32_t at[2];
	double part[2];
};

static uint32_t cut(double v, uint32_t size)
{
	return v < 0.0 ? 0 : v > size - 1.0 ? size - 1 : (uint32_t)v;
}

static struct blend blend_of(uint32_t o, uint32_t factor, uint32_t size, bool bilinear)
{
	double s = (o + 0.5) / factor - 0.5, low = floor(s);

	if (!bilinear)
		return (struct blend){{o / factor, o / factor}, {1.0, 0.0}};
	return (struct blend){{cut(low, size), cut(low + 1.0, size)}, {1.0 - (s - low), s - low}};
}

static void upsample_pixel(const struct ref_call *c, uint32_t i, uint32_t oy, uint32_t ox,
			   bool backward)
{
	struct blend by = blend_of(oy, c->node->window.stride_h, c->in.h, c->node->bilinear);
	struct blend bx = blend_of(ox, c->node->window.stride_w, c->in.w, c->node->bilinear);
	uint64_t out = ref_at(c->out, i, oy, ox);

	for (int k = 0; k < 4; k++) {
		double part = by.part[k / 2] * bx.part[k % 2];
		uint64_t in = ref_at(c->in, i, by.at[k / 2], bx.at[k % 2]);

		for (uint32_t ch = 0; ch < c->in.c && part != 0.0; ch++) {
			if (backward)
				c->dx[in + ch] += part * c->dy[out + ch];
			else
				c->y[out + ch] += part * c->x[in + ch];
		}
	}
}

static void upsample_walk(const struct ref_call *c, bool backward)
{
	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++)
				upsample_pixel(c, i, oy, ox, backward);
}

static void upsample_forward(const struct ref_call *c)
{
	uint64_t count = c->n * backend_shape_count(c->out);

	for (uint64_t e = 0; e < count; e++)
		c->y[e] = 0.0;
	upsample_walk(c, false);
}

static void upsample_backward(const struct ref_call *c)
{
	upsample_walk(c, true);
}

const struct ref_op ref_upsample = {upsample_forward, upsample_backward, NULL};
