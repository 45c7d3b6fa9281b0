/* SPDX-License-Identifier: MIT */
/*
 * wino.c: convolutions 3x3 by Winograd's transforms (wino.h), where the processor has the loops and
 * the shape gains by it; everything else is conv.c's. A worker takes the tiles of its chunk in
 * groups whose transforms stay in the L2 cache together with the transformed kernel.
 */
#include "lower.h"
#include "wino.h"

#define WINO_CACHE (240u << 10)	  /* floats of L2 for transforms and kernel */
#define WINO_KERNEL (128u * 128u) /* c * k up to which the transformed kernel is no burden */

/* One product: images on both sides of the 36 planes. */
struct wino_side {
	struct wino_image from, to;
	uint32_t tw, tiles; /* of an image */
	uint32_t group;	    /* tiles at a time */
	size_t from_plane, to_plane;
	uint64_t packed; /* transformed kernel, in plan->packed */
};

struct wino {
	const struct backend_node *node;
	uint32_t c, k;
	bool bias;
	struct wino_side forward, data;
	uint64_t sum, sum_bias; /* in w->sum */
};

/* The tiles [at, at + n) of consecutive images, image by image. */
struct walk {
	uint32_t image, n; /* n: tiles of this piece */
	struct wino_tiles tiles;
};

static void walk_piece(const struct wino_side *s, uint32_t at, uint32_t end, struct walk *piece)
{
	piece->image = at / s->tiles;
	piece->tiles.tw = s->tw;
	piece->tiles.first = at % s->tiles;
	piece->tiles.n = s->tiles - piece->tiles.first;
	if (piece->tiles.n > end - at)
		piece->tiles.n = end - at;
}

static const struct wino_loops *loops_of(const struct cpu_worker *w)
{
	return w->net->backend->wino;
}

static uint32_t group_end(const struct wino_side *s, uint32_t at, uint32_t all)
{
	return all - at < s->group ? all : at + s->group;
}

/* y (+)= conv(x) over the rows, with the transformed kernel u. */
static void wino_conv(const struct cpu_worker *w, const struct wino_side *s, const float *x,
		      float *y, uint32_t rows, const float *bias, bool relu, bool add)
{
	const struct wino_loops *loops = loops_of(w);
	size_t from = (size_t)s->from.h * s->from.w * s->from.c;
	size_t to = (size_t)s->to.h * s->to.w * s->to.c;
	float *v = w->scratch, *m = v + s->from_plane * WINO_PLANES;
	uint32_t all = rows * s->tiles;
	struct walk p;

	for (uint32_t at = 0, end; at < all; at = end) {
		end = group_end(s, at, all);
		for (uint32_t t = at; t < end; t += p.tiles.n) {
			walk_piece(s, t, end, &p);
			loops->input(v + (size_t)(t - at) * s->from.c, s->from_plane,
				     x + p.image * from, &s->from, &p.tiles);
		}
		loops->multiply(m, s->to_plane, v, s->from_plane, w->plan->packed + s->packed,
				end - at, s->from.c, s->to.c);
		for (uint32_t t = at; t < end; t += p.tiles.n) {
			walk_piece(s, t, end, &p);
			loops->output(y + p.image * to, m + (size_t)(t - at) * s->to.c, s->to_plane,
				      &s->to, &p.tiles, bias, relu, add);
		}
	}
}

/* operands: y, x */
static int forward_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct wino *s = op->state;

	wino_conv(w, &s->forward, cpu_at(w, op->buf[1], row), cpu_at(w, op->buf[0], row), n,
		  cpu_param(w, s->node, 1), op->relu, false);
	return 0;
}

/* operands: dx, dy */
static int data_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct wino *s = op->state;

	wino_conv(w, &s->data, cpu_at(w, op->buf[1], row), cpu_at(w, op->buf[0], row), n, NULL,
		  false, op->accumulate);
	return 0;
}

/* operands: x, dy */
static int weights_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct wino_loops *loops = loops_of(w);
	const struct wino *s = op->state;
	const struct wino_side *f = &s->forward;
	size_t from = (size_t)f->from.h * f->from.w * f->from.c;
	size_t to = (size_t)f->to.h * f->to.w * f->to.c;
	const float *x = cpu_at(w, op->buf[0], row), *dy = cpu_at(w, op->buf[1], row);
	float *v = w->scratch, *z = v + f->from_plane * WINO_PLANES;
	uint32_t all = n * f->tiles;
	struct walk p;

	if (s->bias)
		cpu_loops_of(w)->columns(w->sum + s->sum_bias, dy, to / s->k * n, s->k, !w->first);
	for (uint32_t at = 0, end; at < all; at = end) {
		end = group_end(f, at, all);
		for (uint32_t t = at; t < end; t += p.tiles.n) {
			walk_piece(f, t, end, &p);
			loops->input(v + (size_t)(t - at) * s->c, f->from_plane, x + p.image * from,
				     &f->from, &p.tiles);
			loops->gradient(z + (size_t)(t - at) * s->k, f->to_plane, dy + p.image * to,
					&f->to, &p.tiles);
		}
		loops->weights(w->sum + s->sum, v, f->from_plane, z, f->to_plane, end - at, s->c,
			       s->k, !w->first || at > 0);
	}
	return 0;
}

static int wino_pack(const struct cpu_pack *p, struct cpu_worker *w)
{
	const struct wino *s = p->state;
	const float *kernel = cpu_param(w, s->node, 0);

	loops_of(w)->kernel(w->plan->packed + s->forward.packed, kernel, s->c, s->k, false);
	if (s->data.tiles)
		loops_of(w)->kernel(w->plan->packed + s->data.packed, kernel, s->c, s->k, true);
	return 0;
}

/* Sums the slots' transformed gradients, then transforms the sum back. */
static int wino_reduce(const struct cpu_reduce *r, struct cpu_worker *w)
{
	const struct wino *s = r->state;
	const struct backend_net *base = &w->net->base;
	float *out = base->arena[BACKEND_GRAD] + base->graph.tensor[r->tensor].offset;
	float *sum = NULL;

	for (uint32_t t = 0; t < w->count; t++) {
		if (!cpu_has_rows(w, t))
			continue;
		if (sum)
			cpu_loops_of(w)->add(sum, w->net->worker[t].sum + s->sum,
					     (size_t)WINO_PLANES * s->c * s->k);
		else
			sum = w->net->worker[t].sum + s->sum;
	}
	loops_of(w)->kernel_gradient(out, sum, s->c, s->k, r->again || w->net->run.accumulate);
	return 0;
}

/* ---- lowering ---------------------------------------------------------------------------- */

bool wino_wanted(const struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	const struct backend_window *v = &n->window;
	uint64_t c = lower_shape(l, n->in[0]).c, k = n->out.c;
	uint64_t th = (n->out.h + 3) / 4, tw = (n->out.w + 3) / 4;

	return l->net->backend->wino && n->op == BACKEND_CONV2D && n->groups == 1 && v->kh == 3 &&
	       v->kw == 3 && v->stride_h == 1 && v->stride_w == 1 && v->dilation_h == 1 &&
	       v->dilation_w == 1 && v->pad_top <= 2 && v->pad_left <= 2 && v->pad_bottom <= 2 &&
	       v->pad_right <= 2 && c % 16 == 0 && k % 16 == 0 && c * k <= WINO_KERNEL &&
	       2ull * n->out.h * n->out.w >= th * tw * 16;
}

static void side_make(struct lower *l, struct wino_side *s)
{
	uint32_t c = s->from.c, k = s->to.c;
	uint64_t kernel = (uint64_t)WINO_PLANES * c * k;
	uint64_t room = WINO_CACHE > kernel * 3 / 4 ? WINO_CACHE - kernel * 3 / 4 : 0;

	s->tw = (s->to.w + WINO_TILE - 1) / WINO_TILE;
	s->tiles = (s->to.h + WINO_TILE - 1) / WINO_TILE * s->tw;
	s->group = (uint32_t)(room / ((uint64_t)WINO_PLANES * (c + k)) / WINO_TILES) * WINO_TILES;
	if (s->group < WINO_TILES)
		s->group = WINO_TILES;
	s->from_plane = (size_t)s->group * c + WINO_PAD;
	s->to_plane = (size_t)s->group * k + WINO_PAD;
	s->packed = cpu_plan_packed(l->plan, kernel);
	cpu_plan_scratch(l->plan, WINO_PLANES * (s->from_plane + s->to_plane));
}

void wino_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct backend_shape in = lower_shape(l, n->in[0]);
	int32_t top = (int32_t)n->window.pad_top, left = (int32_t)n->window.pad_left;
	struct wino *s = lower_state(l, sizeof(*s), NULL);
	uint32_t end = lower_end(l, node);
	struct cpu_op *op;

	if (!s)
		return;
	l->saved[node] = s;
	s->node = n;
	s->c = in.c;
	s->k = n->out.c;
	s->bias = n->tensor[1] >= 0;
	s->forward.from = (struct wino_image){in.h, in.w, in.c, top, left};
	s->forward.to = (struct wino_image){n->out.h, n->out.w, n->out.c, 0, 0};
	side_make(l, &s->forward);
	if (l->plan->training && lower_wants(l, n->in[0])) {
		s->data.from = (struct wino_image){n->out.h, n->out.w, n->out.c, 2 - top, 2 - left};
		s->data.to = (struct wino_image){in.h, in.w, in.c, 0, 0};
		side_make(l, &s->data);
	}
	lower_pack(l, n->tensor[0], wino_pack, s);
	op = lower_op(l, n, CPU_ROWS, forward_run);
	op->state = s;
	op->relu = end != node;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, end));
}

void wino_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct wino *s = l->saved[node];
	int32_t g = lower_masked(l, node);
	bool kernel = lower_trainable(l, n, 0), bias = lower_trainable(l, n, 1);
	struct cpu_op *op;

	if (kernel || bias) {
		int32_t x = norm_again(l, n->in[0]);

		s->sum = cpu_plan_sum(l->plan, (uint64_t)WINO_PLANES * s->c * s->k);
		s->sum_bias = cpu_plan_sum(l->plan, s->k);
		op = lower_op(l, n, CPU_ROWS, weights_run);
		op->state = s;
		lower_use(l, op, 0, x);
		lower_use(l, op, 1, g);
		if (kernel) {
			struct cpu_reduce *r = lower_reduce(l, n->tensor[0], 0, 0);

			r->run = wino_reduce;
			r->state = s;
		}
		if (bias)
			lower_reduce(l, n->tensor[1], s->sum_bias, s->k);
	}
	if (s->data.tiles) {
		op = lower_op(l, n, CPU_ROWS, data_run);
		op->state = s;
		lower_use(l, op, 1, g);
		lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	}
}
