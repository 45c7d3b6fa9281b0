/* SPDX-License-Identifier: MIT */
/*
 * loops_body.h: source of loops.h's loops, included once for each instruction set with LOOPS_NAME,
 * LOOPS_ISA and the target set. Written with GCC's vectors of 16 floats, which the compiler splits
 * where registers are narrower. Sums over many pixels are made in blocks, so that the rounding
 * error grows with the block length, not with the number of pixels.
 */
#include <math.h>
#include <string.h>

#include "loops.h"

#pragma GCC diagnostic ignored "-Wpsabi" /* vectors never cross a function that is not inlined */

/* values, and the same in memory of any alignment */
typedef float vec __attribute__((vector_size(64)));
typedef int32_t ivec __attribute__((vector_size(64)));
typedef double dvec __attribute__((vector_size(64)));
typedef uint8_t bvec __attribute__((vector_size(16)));
typedef float vec_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef float half_at __attribute__((vector_size(32), aligned(4), may_alias));
typedef double dvec_at __attribute__((vector_size(64), aligned(8), may_alias));
typedef uint8_t bvec_at __attribute__((vector_size(16), aligned(1), may_alias));

#define LANES 16
#define BLOCK 64 /* pixels summed in f32 before they go into a double */
#define INLINE static inline __attribute__((always_inline))
#define LOAD(p) ((vec)(*(const vec_at *)(p)))
#define STORE(p, v) (*(vec_at *)(p) = (v))
/* condition ? v : 0 */
#define KEEP(condition, v) ((vec)((ivec)(v) & (ivec)(condition)))
#define POSITIVE(v) ((v) > 0.0f)
/* ReLU keeps NaN, so that a diverged network shows */
#define RELU(v) KEEP(~((v) <= 0.0f), v)
#define RELU_ONE(v) ((v) <= 0.0f ? 0.0f : (v))

static void loop_add(float *to, const float *from, size_t n)
{
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		STORE(to + i, LOAD(to + i) + LOAD(from + i));
	for (; i < n; i++)
		to[i] += from[i];
}

static void loop_sum2(float *y, const float *a, const float *b, size_t n, bool relu)
{
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		vec v = LOAD(a + i) + LOAD(b + i);

		STORE(y + i, relu ? RELU(v) : v);
	}
	for (; i < n; i++) {
		float v = a[i] + b[i];

		y[i] = relu ? RELU_ONE(v) : v;
	}
}

static void loop_relu(float *y, const float *x, size_t n)
{
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		vec v = LOAD(x + i);

		STORE(y + i, RELU(v));
	}
	for (; i < n; i++)
		y[i] = RELU_ONE(x[i]);
}

static void loop_mask(float *d, const float *g, const float *y, size_t n)
{
	size_t i = 0;

	for (; i + LANES <= n; i += LANES)
		STORE(d + i, KEEP(POSITIVE(LOAD(y + i)), LOAD(g + i)));
	for (; i < n; i++)
		d[i] = y[i] > 0.0f ? g[i] : 0.0f;
}

static void loop_bias(float *y, const float *bias, size_t rows, size_t c, bool relu)
{
	for (size_t r = 0; r < rows; r++, y += c) {
		size_t k = 0;

		for (; k + LANES <= c; k += LANES) {
			vec v = LOAD(y + k);

			if (bias)
				v += LOAD(bias + k);
			STORE(y + k, relu ? RELU(v) : v);
		}
		for (; k < c; k++) {
			float v = y[k] + (bias ? bias[k] : 0.0f);

			y[k] = relu ? RELU_ONE(v) : v;
		}
	}
}

static void loop_columns(float *sum, const float *x, size_t rows, size_t c, bool add)
{
	size_t k = 0;

	for (; k + LANES <= c; k += LANES) {
		vec total = {0};

		for (size_t r = 0; r < rows; r += BLOCK) {
			size_t end = r + BLOCK < rows ? r + BLOCK : rows;
			vec part = {0};

			for (size_t i = r; i < end; i++)
				part += LOAD(x + i * c + k);
			total += part;
		}
		STORE(sum + k, add ? LOAD(sum + k) + total : total);
	}
	for (; k < c; k++) {
		double total = 0;

		for (size_t r = 0; r < rows; r++)
			total += x[r * c + k];
		sum[k] = (add ? sum[k] : 0.0f) + (float)total;
	}
}

#include "loops_norm.h"

/* ---- max pooling ------------------------------------------------------------------------- */

/* The part of a window that lies inside the image. */
struct window {
	uint32_t y0, y1, x0, x1; /* source rows and columns */
	int32_t top, left;	 /* source place of window element 0 */
};

INLINE struct window window_at(const struct loops_pool *p, uint32_t oy, uint32_t ox)
{
	struct window v;

	v.top = (int32_t)(oy * p->stride_h) - (int32_t)p->pad_top;
	v.left = (int32_t)(ox * p->stride_w) - (int32_t)p->pad_left;
	v.y0 = v.top < 0 ? 0 : (uint32_t)v.top;
	v.x0 = v.left < 0 ? 0 : (uint32_t)v.left;
	v.y1 = (uint32_t)(v.top + (int32_t)p->kh);
	v.x1 = (uint32_t)(v.left + (int32_t)p->kw);
	v.y1 = v.y1 > p->h ? p->h : v.y1;
	v.x1 = v.x1 > p->w ? p->w : v.x1;
	return v;
}

/* 16 channels of one window; index may be NULL. */
INLINE void max_window(float *to, uint8_t *index, const float *x, const struct loops_pool *p,
		       const struct window *v)
{
	vec best = {0};
	ivec at = {0};
	bool first = true;

	for (uint32_t sy = v->y0; sy < v->y1; sy++) {
		for (uint32_t sx = v->x0; sx < v->x1; sx++) {
			int32_t place =
				((int32_t)sy - v->top) * (int32_t)p->kw + (int32_t)sx - v->left;
			vec value = LOAD(x + ((size_t)sy * p->w + sx) * p->c);
			ivec more = (ivec)(~(value <= best) & (best == best)); /* NaN wins */

			if (first)
				more = (ivec){0} - 1;

			best = (vec)(((ivec)value & more) | ((ivec)best & ~more));
			at = (((ivec){0} + place) & more) | (at & ~more);
			first = false;
		}
	}
	STORE(to, best);
	if (index)
		*(bvec_at *)index = __builtin_convertvector(at, bvec);
}

static void loop_max_pool(float *y, uint8_t *index, const float *x, const struct loops_pool *p)
{
	for (uint32_t oy = 0; oy < p->out_h; oy++) {
		for (uint32_t ox = 0; ox < p->out_w; ox++) {
			const struct window v = window_at(p, oy, ox);
			size_t o = ((size_t)oy * p->out_w + ox) * p->c;
			uint32_t k = 0;

			for (; k + LANES <= p->c; k += LANES)
				max_window(y + o + k, index ? index + o + k : NULL, x + k, p, &v);
			for (; k < p->c; k++) {
				float best = 0;
				int32_t at = -1;

				for (uint32_t sy = v.y0; sy < v.y1; sy++)
					for (uint32_t sx = v.x0; sx < v.x1; sx++) {
						float value =
							x[((size_t)sy * p->w + sx) * p->c + k];

						if (at >= 0 && (value <= best || best != best))
							continue;
						best = value;
						at = ((int32_t)sy - v.top) * (int32_t)p->kw +
						     (int32_t)sx - v.left;
					}
				y[o + k] = best;
				if (index)
					index[o + k] = (uint8_t)at;
			}
		}
	}
}

/* 16 channels of one window's gradient. */
INLINE void max_window_back(float *dx, const vec *value, const ivec *at, const struct loops_pool *p,
			    const struct window *v, const bool set)
{
	for (uint32_t sy = v->y0; sy < v->y1; sy++)
		for (uint32_t sx = v->x0; sx < v->x1; sx++) {
			int32_t place =
				((int32_t)sy - v->top) * (int32_t)p->kw + (int32_t)sx - v->left;
			float *to = dx + ((size_t)sy * p->w + sx) * p->c;
			vec part = KEEP(*at == place, *value);

			STORE(to, set ? part : LOAD(to) + part);
		}
}

static void loop_max_pool_back(float *dx, const float *g, const uint8_t *index, const float *y,
			       const struct loops_pool *p, bool relu, bool set)
{
	size_t o = 0;

	if (set && p->c % LANES)
		memset(dx, 0, (size_t)p->h * p->w * p->c * sizeof(*dx));
	for (uint32_t w = 0; w < p->out_h * p->out_w; w++, o += p->c) {
		const struct window v = window_at(p, w / p->out_w, w % p->out_w);
		uint32_t k = 0;

		for (; k + LANES <= p->c; k += LANES) {
			vec value = LOAD(g + o + k);
			ivec at = __builtin_convertvector(*(const bvec_at *)(index + o + k), ivec);

			if (relu)
				value = KEEP(POSITIVE(LOAD(y + o + k)), value);
			if (set)
				max_window_back(dx + k, &value, &at, p, &v, true);
			else
				max_window_back(dx + k, &value, &at, p, &v, false);
		}
		for (; k < p->c; k++) {
			uint32_t at = index[o + k];
			size_t sy = (size_t)(v.top + (int32_t)(at / p->kw));
			size_t sx = (size_t)(v.left + (int32_t)(at % p->kw));

			if (!relu || y[o + k] > 0.0f)
				dx[(sy * p->w + sx) * p->c + k] += g[o + k];
		}
	}
}

/* ---- optimizer --------------------------------------------------------------------------- */

static void loop_momentum(float *w, float *v, const float *g, size_t n, float momentum, float lr,
			  bool nesterov)
{
	size_t i = 0;

	for (; i + LANES <= n; i += LANES) {
		vec step = lr * LOAD(g + i), moved = momentum * LOAD(v + i) - step;

		STORE(v + i, moved);
		STORE(w + i, LOAD(w + i) + (nesterov ? momentum * moved - step : moved));
	}
	for (; i < n; i++) {
		v[i] = momentum * v[i] - lr * g[i];
		w[i] += nesterov ? momentum * v[i] - lr * g[i] : v[i];
	}
}

static double loop_square_sum(const float *g, size_t n)
{
	dvec sum[4] = {{0}};
	double total = 0;
	size_t i = 0;

	for (; i + 32 <= n; i += 32)
		for (int k = 0; k < 4; k++) {
			dvec v = __builtin_convertvector(*(const half_at *)(g + i + 8 * k), dvec);

			sum[k] += v * v;
		}
	sum[0] += sum[1] + (sum[2] + sum[3]);
	for (int k = 0; k < 8; k++)
		total += sum[0][k];
	for (; i < n; i++)
		total += (double)g[i] * g[i];
	return total;
}

const struct cpu_loops LOOPS_NAME = {
	.isa = LOOPS_ISA,
	.add = loop_add,
	.sum2 = loop_sum2,
	.relu = loop_relu,
	.mask = loop_mask,
	.bias = loop_bias,
	.columns = loop_columns,
	.norm_stats = loop_norm_stats,
	.norm_apply = loop_norm_apply,
	.norm_sums = loop_norm_sums,
	.norm_back = loop_norm_back,
	.max_pool = loop_max_pool,
	.max_pool_back = loop_max_pool_back,
	.momentum = loop_momentum,
	.square_sum = loop_square_sum,
};
