/* SPDX-License-Identifier: MIT */
/*
 * conv.c: convolutions. With iy = oy * stride + ky * dilation - pad, and ix likewise,
 *   conv2d:	y[i,oy,ox,o] = b[o] + sum_{ky,kx,c in group(o)} x[i,iy,ix,c] k[ky,kx,c,o]
 *   depthwise:	y[i,oy,ox,c*m+j] = b[c*m+j] + sum_{ky,kx} x[i,iy,ix,c] k[ky,kx,c,j]
 *   dk = sum x dy,  dx = sum k dy,  db = sum dy
 */
#include "ref.h"

/*
 * One tap of one output pixel: cin input channels against cout outputs. A depthwise convolution is
 * a grouped one with a group per input channel; only the kernel's layout differs, and not even
 * that: (kh,kw,c,m) with o = c*m + j is (kh,kw,1,c*m).
 */
struct tap {
	uint32_t groups, cin_g, cout_g, cout;
};

static struct tap tap_of(const struct ref_call *c)
{
	bool depthwise = c->node->op == BACKEND_DEPTHWISE;
	uint32_t groups = depthwise ? c->in.c : c->node->groups;

	return (struct tap){groups, c->in.c / groups, c->out.c / groups, c->out.c};
}

/* y[o] += sum_c x[c] k[c,o] */
static void tap_forward(const struct tap *t, const double *x, const float *k, double *y)
{
	for (uint32_t g = 0; g < t->groups; g++)
		for (uint32_t ci = 0; ci < t->cin_g; ci++) {
			double v = x[g * t->cin_g + ci];
			const float *kc = k + (uint64_t)ci * t->cout + g * t->cout_g;

			for (uint32_t o = 0; o < t->cout_g; o++)
				y[g * t->cout_g + o] += v * kc[o];
		}
}

/* dk[c,o] += x[c] dy[o];  dx[c] += sum_o k[c,o] dy[o] */
static void tap_backward(const struct tap *t, const double *x, const float *k, const double *dy,
			 double *dx, double *dk)
{
	for (uint32_t g = 0; g < t->groups; g++)
		for (uint32_t ci = 0; ci < t->cin_g; ci++) {
			uint64_t at = (uint64_t)ci * t->cout + g * t->cout_g;
			double v = x[g * t->cin_g + ci], sum = 0;

			for (uint32_t o = 0; o < t->cout_g; o++) {
				dk[at + o] += v * dy[g * t->cout_g + o];
				sum += (double)k[at + o] * dy[g * t->cout_g + o];
			}
			dx[g * t->cin_g + ci] += sum;
		}
}

/* Walks the taps of output pixel (i, oy, ox). */
static void pixel(const struct ref_call *c, const struct tap *t, uint32_t i, uint32_t oy,
		  uint32_t ox, bool backward)
{
	const struct backend_window *w = &c->node->window;
	uint64_t out = ref_at(c->out, i, oy, ox), k_size = (uint64_t)t->cin_g * t->cout;

	for (uint32_t ky = 0; ky < w->kh; ky++) {
		int64_t iy = ref_tap(oy, w->stride_h, ky, w->dilation_h, w->pad_top, c->in.h);

		for (uint32_t kx = 0; kx < w->kw && iy >= 0; kx++) {
			int64_t ix =
				ref_tap(ox, w->stride_w, kx, w->dilation_w, w->pad_left, c->in.w);
			uint64_t at, k = ((uint64_t)ky * w->kw + kx) * k_size;

			if (ix < 0)
				continue;
			at = ref_at(c->in, i, (uint32_t)iy, (uint32_t)ix);
			if (backward)
				tap_backward(t, c->x + at, c->tensor[0] + k, c->dy + out,
					     c->dx + at, c->dtensor[0] + k);
			else
				tap_forward(t, c->x + at, c->tensor[0] + k, c->y + out);
		}
	}
}

static void conv_forward(const struct ref_call *c)
{
	struct tap t = tap_of(c);

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++) {
				double *y = c->y + ref_at(c->out, i, oy, ox);

				for (uint32_t o = 0; o < c->out.c; o++)
					y[o] = c->tensor[1] ? c->tensor[1][o] : 0.0;
				pixel(c, &t, i, oy, ox, false);
			}
}

static void conv_backward(const struct ref_call *c)
{
	struct tap t = tap_of(c);

	for (uint32_t i = 0; i < c->n; i++)
		for (uint32_t oy = 0; oy < c->out.h; oy++)
			for (uint32_t ox = 0; ox < c->out.w; ox++) {
				const double *dy = c->dy + ref_at(c->out, i, oy, ox);

				for (uint32_t o = 0; c->tensor[1] && o < c->out.c; o++)
					c->dtensor[1][o] += dy[o];
				pixel(c, &t, i, oy, ox, true);
			}
}

const struct ref_op ref_conv2d = {conv_forward, conv_backward, NULL};
const struct ref_op ref_depthwise = {conv_forward, conv_backward, NULL};
