/* SPDX-License-Identifier: MIT */
/*
 * pooling.c: max and average pooling over windows and over the whole image. The max remembers the
 * place of the first largest in its window, a byte each (four where a window has more places).
 */
#include <math.h>

#include "lower.h"

struct pooling {
	struct loops_pool p;
	bool wide;  /* index of 4 bytes */
	bool tiled; /* every pixel is in exactly one window */
};

/* The taps of output (oy, ox) that lie inside the image. */
struct taps {
	uint32_t y0, y1, x0, x1;
};

static struct taps taps_at(const struct loops_pool *p, uint32_t oy, uint32_t ox)
{
	int64_t top = (int64_t)oy * p->stride_h - p->pad_top;
	int64_t left = (int64_t)ox * p->stride_w - p->pad_left;
	struct taps t = {.y0 = top < 0 ? 0 : (uint32_t)top, .x0 = left < 0 ? 0 : (uint32_t)left};

	t.y1 = (uint32_t)(top + p->kh > p->h ? p->h : top + p->kh);
	t.x1 = (uint32_t)(left + p->kw > p->w ? p->w : left + p->kw);
	return t;
}

/* ---- max --------------------------------------------------------------------------------- */

/* Large windows: index is the place in the image. */
static void pool_index(const struct pooling *s, const float *x, float *y, uint32_t *index)
{
	const struct loops_pool *p = &s->p;
	uint64_t o = 0;

	for (uint32_t oy = 0; oy < p->out_h; oy++)
		for (uint32_t ox = 0; ox < p->out_w; ox++) {
			struct taps t = taps_at(p, oy, ox);

			for (uint32_t k = 0; k < p->c; k++, o++) {
				uint64_t best = ((uint64_t)t.y0 * p->w + t.x0) * p->c + k;

				for (uint32_t sy = t.y0; sy < t.y1; sy++)
					for (uint32_t sx = t.x0; sx < t.x1; sx++) {
						uint64_t at = ((uint64_t)sy * p->w + sx) * p->c + k;

						if (x[at] > x[best] ||
						    (isnan(x[at]) && !isnan(x[best])))
							best = at;
					}
				y[o] = x[best];
				if (index)
					index[o] = (uint32_t)best;
			}
		}
}

/* operands: y, x, index */
static int max_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct pooling *s = op->state;

	for (uint32_t i = row; i < row + n; i++) {
		float *y = cpu_at(w, op->buf[0], i), *index = cpu_operand(op, w, 2, i);
		const float *x = cpu_at(w, op->buf[1], i);

		if (s->wide)
			pool_index(s, x, y, (uint32_t *)index);
		else
			cpu_loops_of(w)->max_pool(y, (uint8_t *)index, x, &s->p);
	}
	return 0;
}

/* operands: dx, dy, index, y (where the ReLU before is masked here) */
static int max_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct pooling *s = op->state;
	uint64_t count = w->plan->buffer[op->buf[1]].row;

	for (uint32_t i = row; i < row + n; i++) {
		float *dx = cpu_at(w, op->buf[0], i);
		const float *dy = cpu_at(w, op->buf[1], i), *index = cpu_at(w, op->buf[2], i);
		const float *y = cpu_operand(op, w, 3, i);

		bool set = s->tiled && !s->wide && !op->accumulate;

		if (!op->accumulate && !set)
			memset(dx, 0, w->plan->buffer[op->buf[0]].row * sizeof(float));
		if (!s->wide) {
			cpu_loops_of(w)->max_pool_back(dx, dy, (const uint8_t *)index, y, &s->p,
						       op->relu, set);
			continue;
		}
		for (uint64_t o = 0; o < count; o++)
			if (!op->relu || y[o] > 0.0f)
				dx[((const uint32_t *)index)[o]] += dy[o];
	}
	return 0;
}

/* ---- average ----------------------------------------------------------------------------- */

/* to (c) += part * from (c) */
static inline void axpy(float *to, const float *from, float part, uint32_t c)
{
	for (uint32_t k = 0; k < c; k++)
		to[k] += part * from[k];
}

static void average_row(const struct loops_pool *p, float *image, float *out, bool backward)
{
	for (uint32_t oy = 0; oy < p->out_h; oy++)
		for (uint32_t ox = 0; ox < p->out_w; ox++, out += p->c) {
			struct taps t = taps_at(p, oy, ox);
			float part = 1.0f / (float)((t.y1 - t.y0) * (t.x1 - t.x0));

			for (uint32_t sy = t.y0; sy < t.y1; sy++)
				for (uint32_t sx = t.x0; sx < t.x1; sx++) {
					float *at = image + ((uint64_t)sy * p->w + sx) * p->c;

					if (backward)
						axpy(at, out, part, p->c);
					else
						axpy(out, at, part, p->c);
				}
		}
}

/* operands: y, x */
static int average_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct pooling *s = op->state;

	for (uint32_t i = row; i < row + n; i++) {
		float *y = cpu_at(w, op->buf[0], i);

		memset(y, 0, w->plan->buffer[op->buf[0]].row * sizeof(float));
		average_row(&s->p, cpu_at(w, op->buf[1], i), y, false);
	}
	return 0;
}

/* operands: dx, dy */
static int average_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct pooling *s = op->state;

	for (uint32_t i = row; i < row + n; i++) {
		float *dx = cpu_at(w, op->buf[0], i);

		if (!op->accumulate)
			memset(dx, 0, w->plan->buffer[op->buf[0]].row * sizeof(float));
		average_row(&s->p, dx, cpu_at(w, op->buf[1], i), true);
	}
	return 0;
}

/* ---- over the whole image: means --------------------------------------------------------- */

static int global_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t places = (uint64_t)op->in.h * op->in.w;
	uint32_t c = op->in.c;

	for (uint32_t i = row; i < row + n; i++) {
		float *y = cpu_at(w, op->buf[0], i);

		cpu_loops_of(w)->columns(y, cpu_at(w, op->buf[1], i), places, c, false);
		for (uint32_t k = 0; k < c; k++)
			y[k] /= (float)places;
	}
	return 0;
}

static int global_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t places = (uint64_t)op->in.h * op->in.w;
	float part = 1.0f / (float)places;
	uint32_t c = op->in.c;

	for (uint32_t i = row; i < row + n; i++) {
		float *dx = cpu_at(w, op->buf[0], i);
		const float *dy = cpu_at(w, op->buf[1], i);

		for (uint64_t p = 0; p < places; p++, dx += c)
			for (uint32_t k = 0; k < c; k++)
				dx[k] = (op->accumulate ? dx[k] : 0.0f) + part * dy[k];
	}
	return 0;
}

/* ---- lowering ---------------------------------------------------------------------------- */

static void pool_state(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct backend_shape in = lower_shape(l, n->in[0]);
	struct pooling *s = lower_state(l, sizeof(*s), NULL);
	bool global = n->op == BACKEND_GLOBAL_MAXPOOL;

	l->saved[node] = s;
	if (!s)
		return;
	s->p = (struct loops_pool){
		.h = in.h,
		.w = in.w,
		.c = in.c,
		.out_h = n->out.h,
		.out_w = n->out.w,
		.kh = global ? in.h : n->window.kh,
		.kw = global ? in.w : n->window.kw,
		.stride_h = global ? 1 : n->window.stride_h,
		.stride_w = global ? 1 : n->window.stride_w,
		.pad_top = global ? 0 : n->window.pad_top,
		.pad_left = global ? 0 : n->window.pad_left,
	};
	s->wide = (uint64_t)s->p.kh * s->p.kw > 255;
	s->tiled = s->p.kh == s->p.stride_h && s->p.kw == s->p.stride_w && !s->p.pad_top &&
		   !s->p.pad_left && s->p.kh * s->p.out_h == in.h && s->p.kw * s->p.out_w == in.w;
}

static void max_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	uint64_t count = backend_shape_count(n->out);
	const struct pooling *s;
	struct cpu_op *op;

	pool_state(l, node);
	s = l->saved[node];
	if (!s)
		return;
	op = lower_op(l, n, CPU_ROWS, max_run);
	op->state = s;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
	if (lower_wants(l, n->in[0])) {
		l->mask[node] = lower_buffer(l, s->wide ? count : (count + 3) / 4);
		lower_use(l, op, 2, l->mask[node]);
	}
}

static void max_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, max_back_run);

	op->state = l->saved[node];
	op->relu = l->masked[l->alias[n->in[0]]];
	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 2, l->mask[node]);
	if (op->relu)
		lower_use(l, op, 3, lower_value(l, node));
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
}

void pool_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op;

	if (n->op == BACKEND_MAXPOOL) {
		max_forward(l, node);
		return;
	}
	pool_state(l, node);
	op = lower_op(l, n, CPU_ROWS, average_run);
	op->state = l->saved[node];
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
}

void pool_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op;

	if (n->op == BACKEND_MAXPOOL) {
		max_backward(l, node);
		return;
	}
	op = lower_op(l, n, CPU_ROWS, average_back_run);
	op->state = l->saved[node];
	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
}

void global_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op;

	if (n->op == BACKEND_GLOBAL_MAXPOOL) {
		max_forward(l, node);
		return;
	}
	op = lower_op(l, n, CPU_ROWS, global_run);
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
}

void global_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op;

	if (n->op == BACKEND_GLOBAL_MAXPOOL) {
		max_backward(l, node);
		return;
	}
	op = lower_op(l, n, CPU_ROWS, global_back_run);
	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
}
