/* SPDX-License-Identifier: MIT */
/*
 * move.c: operators that move, copy or scale values: add, concat, pad, flip, shift, crop, rescale,
 * upsampling. Rows of pixels are copied; nothing here is hot except add.
 */
#include <math.h>

#include "lower.h"
#include "../random.h"

/* to = from, or += */
static inline void put(float *to, const float *from, uint64_t n, bool add)
{
	if (!add) {
		memcpy(to, from, n * sizeof(float));
		return;
	}
	for (uint64_t k = 0; k < n; k++)
		to[k] += from[k];
}

/* ---- add --------------------------------------------------------------------------------- */

/* operands: y, a, b; b absent: y = relu(a) */
static int add_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	cpu_loops_of(w)->sum2(cpu_at(w, op->buf[0], row), cpu_at(w, op->buf[1], row),
			      cpu_at(w, op->buf[2], row), w->plan->buffer[op->buf[0]].row * n,
			      op->relu);
	return 0;
}

/* Sums of more than two are made pair by pair. */
void add_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	uint32_t end = lower_end(l, node);
	int32_t sum = lower_value(l, n->in[0]);

	for (uint32_t k = 1; k < n->n_in; k++) {
		bool last = k + 1 == n->n_in;
		int32_t to =
			last ? lower_value(l, end) : lower_buffer(l, backend_shape_count(n->out));
		struct cpu_op *op = lower_op(l, n, CPU_ROWS, add_run);

		op->relu = last && end != node;
		lower_use(l, op, 1, sum);
		lower_use(l, op, 2, lower_value(l, n->in[k]));
		lower_use(l, op, 0, to);
		op->share_to = 0;
		op->share_of = 1;
		sum = to;
	}
}

void add_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	int32_t g = lower_masked(l, node);

	for (uint32_t k = 0; k < n->n_in; k++)
		if (lower_wants(l, n->in[k]))
			lower_copy_gradient(l, n, g, n->in[k]);
}

/* ---- concat ------------------------------------------------------------------------------ */

/* One input's part of the output: `runs` pieces of `length` floats, `stride` apart from `start`. */
struct concat {
	uint64_t start, length, stride, runs;
};

/* operands: the part, the whole (forward: whole, part) */
static int concat_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct concat *s = op->state;

	for (uint32_t i = row; i < row + n; i++) {
		float *whole = cpu_at(w, op->buf[0], i) + s->start;
		const float *part = cpu_at(w, op->buf[1], i);

		for (uint64_t k = 0; k < s->runs; k++)
			put(whole + k * s->stride, part + k * s->length, s->length, false);
	}
	return 0;
}

static int concat_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct concat *s = op->state;

	for (uint32_t i = row; i < row + n; i++) {
		float *part = cpu_at(w, op->buf[0], i);
		const float *whole = cpu_at(w, op->buf[1], i) + s->start;

		for (uint64_t k = 0; k < s->runs; k++)
			put(part + k * s->length, whole + k * s->stride, s->length, op->accumulate);
	}
	return 0;
}

/* Floats of one step along the axis. */
static uint64_t axis_unit(const struct backend_node *n)
{
	return n->axis == 0 ? (uint64_t)n->out.w * n->out.c : n->axis == 1 ? n->out.c : 1;
}

static uint64_t axis_size(struct backend_shape s, uint32_t axis)
{
	return axis == 0 ? s.h : axis == 1 ? s.w : s.c;
}

static void concat_lower(struct lower *l, uint32_t node, bool backward)
{
	const struct backend_node *n = lower_node(l, node);
	uint64_t start = 0, unit = axis_unit(n), size = axis_size(n->out, n->axis);

	for (uint32_t k = 0; k < n->n_in; k++) {
		struct concat *s = lower_state(l, sizeof(*s), NULL);
		uint64_t length = axis_size(lower_shape(l, n->in[k]), n->axis) * unit;
		struct cpu_op *op;

		if (!s)
			return;
		s->start = start;
		s->length = length;
		s->stride = size * unit;
		s->runs = backend_shape_count(n->out) / s->stride;
		start += length;
		if (backward && !lower_wants(l, n->in[k]))
			continue;
		op = lower_op(l, n, CPU_ROWS, backward ? concat_back_run : concat_run);
		op->state = s;
		if (backward) {
			lower_use(l, op, 1, lower_gradient(l, node));
			lower_use(l, op, 0, lower_gradient_to(l, n->in[k], &op->accumulate));
		} else {
			lower_use(l, op, 1, lower_value(l, n->in[k]));
			lower_use(l, op, 0, lower_value(l, node));
		}
	}
}

void concat_forward(struct lower *l, uint32_t node)
{
	concat_lower(l, node, false);
}

void concat_backward(struct lower *l, uint32_t node)
{
	concat_lower(l, node, true);
}

/* ---- pad, flip, shift, crop -------------------------------------------------------------- */

/* Where row i of the batch takes its pixels from (random.h). */
static struct random_geometry geometry(const struct cpu_op *op, const struct cpu_worker *w,
				       uint32_t i)
{
	const struct backend_batch *b = w->net->run.batch;
	struct random_geometry g = {0};

	if (op->node->op == BACKEND_PAD) {
		g.dy = -(int32_t)op->node->window.pad_top;
		g.dx = -(int32_t)op->node->window.pad_left;
	} else {
		random_geometry(op->node, op->in, w->plan->training, b->seed, b->step,
				b->position + i, &g);
	}
	return g;
}

/* Pixel of the input that output (y, x) shows, or -1. */
static int64_t source(const struct cpu_op *op, const struct random_geometry *g, uint32_t y,
		      uint32_t x)
{
	int64_t sy = (g->mirror_y ? (int64_t)op->in.h - 1 - y : y) + g->dy;
	int64_t sx = (g->mirror_x ? (int64_t)op->in.w - 1 - x : x) + g->dx;

	if (sy < 0 || sy >= op->in.h || sx < 0 || sx >= op->in.w)
		return -1;
	return sy * op->in.w + sx;
}

static int move_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	struct backend_shape out = op->node->out;

	for (uint32_t i = row; i < row + n; i++) {
		struct random_geometry g = geometry(op, w, i);
		float *y = cpu_at(w, op->buf[0], i);
		const float *x = cpu_at(w, op->buf[1], i);

		for (uint32_t p = 0; p < out.h * out.w; p++, y += out.c) {
			int64_t from = source(op, &g, p / out.w, p % out.w);

			if (from < 0)
				memset(y, 0, out.c * sizeof(float));
			else
				put(y, x + (uint64_t)from * out.c, out.c, false);
		}
	}
	return 0;
}

static int move_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	struct backend_shape out = op->node->out;

	for (uint32_t i = row; i < row + n; i++) {
		struct random_geometry g = geometry(op, w, i);
		float *dx = cpu_at(w, op->buf[0], i);
		const float *dy = cpu_at(w, op->buf[1], i);

		if (!op->accumulate)
			memset(dx, 0, backend_shape_count(op->in) * sizeof(float));
		for (uint32_t p = 0; p < out.h * out.w; p++, dy += out.c) {
			int64_t to = source(op, &g, p / out.w, p % out.w);

			if (to >= 0)
				put(dx + (uint64_t)to * out.c, dy, out.c, true);
		}
	}
	return 0;
}

static void simple_forward(struct lower *l, uint32_t node,
			   int (*run)(const struct cpu_op *, struct cpu_worker *, uint32_t,
				      uint32_t))
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, run);

	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, node));
}

static void simple_backward(struct lower *l, uint32_t node,
			    int (*run)(const struct cpu_op *, struct cpu_worker *, uint32_t,
				       uint32_t))
{
	const struct backend_node *n = lower_node(l, node);
	struct cpu_op *op;

	if (!lower_wants(l, n->in[0]))
		return;
	op = lower_op(l, n, CPU_ROWS, run);
	lower_use(l, op, 1, lower_gradient(l, node));
	lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
}

void pad_forward(struct lower *l, uint32_t node)
{
	simple_forward(l, node, move_run);
}

void pad_backward(struct lower *l, uint32_t node)
{
	simple_backward(l, node, move_back_run);
}

void move_forward(struct lower *l, uint32_t node)
{
	simple_forward(l, node, move_run);
}

void move_backward(struct lower *l, uint32_t node)
{
	simple_backward(l, node, move_back_run);
}

/* ---- rescale: y = x * scale + offset ----------------------------------------------------- */

static int rescale_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct backend_node *node = op->node;
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	float *y = cpu_at(w, op->buf[0], row);
	const float *x = cpu_at(w, op->buf[1], row);

	for (uint64_t e = 0; e < count; e++) {
		uint64_t k = e % op->in.c;

		y[e] = x[e] * (node->scale ? node->scale[k] : node->scale1) +
		       (node->offset ? node->offset[k] : node->offset1);
	}
	return 0;
}

static int rescale_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct backend_node *node = op->node;
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;
	float *dx = cpu_at(w, op->buf[0], row);
	const float *dy = cpu_at(w, op->buf[1], row);

	for (uint64_t e = 0; e < count; e++)
		dx[e] = (op->accumulate ? dx[e] : 0.0f) +
			dy[e] * (node->scale ? node->scale[e % op->in.c] : node->scale1);
	return 0;
}

void rescale_forward(struct lower *l, uint32_t node)
{
	simple_forward(l, node, rescale_run);
}

void rescale_backward(struct lower *l, uint32_t node)
{
	simple_backward(l, node, rescale_back_run);
}

/* ---- upsampling -------------------------------------------------------------------------- */

/* The one or two source positions of an output position on one axis, with their parts. */
struct blend {
	uint32_t at[2];
	double part[2];
};

static uint32_t cut(double v, uint32_t size)
{
	return v < 0.0 ? 0 : v > size - 1.0 ? size - 1 : (uint32_t)v;
}

/* Bilinear, pixel centres at halves: s = (o + .5) / f - .5 between floor s and floor s + 1. */
static struct blend blend_of(uint32_t o, uint32_t factor, uint32_t size, bool bilinear)
{
	double s = (o + 0.5) / factor - 0.5, low = floor(s);

	if (!bilinear)
		return (struct blend){{o / factor, o / factor}, {1.0, 0.0}};
	return (struct blend){{cut(low, size), cut(low + 1.0, size)}, {1.0 - (s - low), s - low}};
}

static void upsample_row(const struct cpu_op *op, float *image, float *out, bool backward)
{
	const struct backend_node *node = op->node;
	uint32_t c = op->in.c;

	for (uint32_t oy = 0; oy < node->out.h; oy++) {
		struct blend by = blend_of(oy, node->window.stride_h, op->in.h, node->bilinear);

		for (uint32_t ox = 0; ox < node->out.w; ox++, out += c) {
			struct blend bx =
				blend_of(ox, node->window.stride_w, op->in.w, node->bilinear);

			for (int q = 0; q < 4; q++) {
				float part = (float)(by.part[q / 2] * bx.part[q % 2]);
				float *at = image +
					    ((uint64_t)by.at[q / 2] * op->in.w + bx.at[q % 2]) * c;

				if (part == 0.0f)
					continue;
				for (uint32_t k = 0; k < c; k++) {
					if (backward)
						at[k] += part * out[k];
					else
						out[k] += part * at[k];
				}
			}
		}
	}
}

static int upsample_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	for (uint32_t i = row; i < row + n; i++) {
		float *y = cpu_at(w, op->buf[0], i);

		memset(y, 0, w->plan->buffer[op->buf[0]].row * sizeof(float));
		upsample_row(op, cpu_at(w, op->buf[1], i), y, false);
	}
	return 0;
}

static int upsample_back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row,
			     uint32_t n)
{
	for (uint32_t i = row; i < row + n; i++) {
		float *dx = cpu_at(w, op->buf[0], i);

		if (!op->accumulate)
			memset(dx, 0, w->plan->buffer[op->buf[0]].row * sizeof(float));
		upsample_row(op, dx, cpu_at(w, op->buf[1], i), true);
	}
	return 0;
}

void upsample_forward(struct lower *l, uint32_t node)
{
	simple_forward(l, node, upsample_run);
}

void upsample_backward(struct lower *l, uint32_t node)
{
	simple_backward(l, node, upsample_back_run);
}
