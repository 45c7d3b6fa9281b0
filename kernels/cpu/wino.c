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

struct wino {
	const struct backend_node *node;
	uint32_t c, k;
	bool bias, weights, data; /* what backward has to do; bias: to sum dy */
	struct wino_image in, out;
	uint32_t tw, tiles; /* of an image, on the output */
	uint32_t group;	    /* tiles at a time */
	size_t c_plane, k_plane;
	uint64_t packed, packed_back; /* transformed kernel, in plan->packed */
	uint64_t sum, sum_bias;	      /* in w->sum */
};

/* The tiles [at, at + n) of consecutive images, image by image. */
struct walk {
	uint32_t image, n; /* n: tiles of this piece */
	struct wino_tiles tiles;
};

static void walk_piece(const struct wino *s, uint32_t at, uint32_t end, struct walk *piece)
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

static uint32_t group_end(const struct wino *s, uint32_t at, uint32_t all)
{
	return all - at < s->group ? all : at + s->group;
}

static size_t image_floats(const struct wino_image *s)
{
	return (size_t)s->h * s->w * s->c;
}

/* operands: y, x */
static int forward_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct wino_loops *loops = loops_of(w);
	const struct wino *s = op->state;
	const float *x = cpu_at(w, op->buf[1], row), *bias = cpu_param(w, s->node, 1);
	float *y = cpu_at(w, op->buf[0], row);
	float *v = w->scratch, *m = v + s->c_plane * WINO_PLANES;
	uint32_t all = n * s->tiles;
	struct walk p;

	for (uint32_t at = 0, end; at < all; at = end) {
		end = group_end(s, at, all);
		for (uint32_t t = at; t < end; t += p.tiles.n) {
			walk_piece(s, t, end, &p);
			loops->input(v + (size_t)(t - at) * s->c, s->c_plane,
				     x + p.image * image_floats(&s->in), &s->in, &p.tiles);
		}
		loops->multiply(m, s->k_plane, v, s->c_plane, w->plan->packed + s->packed, end - at,
				s->c, s->k);
		for (uint32_t t = at; t < end; t += p.tiles.n) {
			walk_piece(s, t, end, &p);
			loops->output(y + p.image * image_floats(&s->out),
				      m + (size_t)(t - at) * s->k, s->k_plane, &s->out, &p.tiles,
				      bias, op->relu);
		}
	}
	return 0;
}

/* Tiles [at, end) of backward: x, dy and dx are the chunk's; x or dx may be NULL. */
static void backward_group(const struct cpu_worker *w, const struct wino *s, uint32_t at,
			   uint32_t end, const float *x, const float *dy, float *dx, bool add)
{
	const struct wino_loops *loops = loops_of(w);
	float *v = w->scratch, *z = v + s->c_plane * WINO_PLANES;
	struct walk p;

	for (uint32_t t = at; t < end; t += p.tiles.n) {
		walk_piece(s, t, end, &p);
		if (x)
			loops->input(v + (size_t)(t - at) * s->c, s->c_plane,
				     x + p.image * image_floats(&s->in), &s->in, &p.tiles);
		loops->gradient(z + (size_t)(t - at) * s->k, s->k_plane,
				dy + p.image * image_floats(&s->out), &s->out, &p.tiles);
	}
	if (x)
		loops->weights(w->sum + s->sum, v, s->c_plane, z, s->k_plane, end - at, s->c, s->k,
			       add);
	if (!dx)
		return;
	/* v is done with: the products towards x take its place */
	loops->multiply(v, s->c_plane, z, s->k_plane, w->plan->packed + s->packed_back, end - at,
			s->k, s->c);
	for (uint32_t t = at; t < end; t += p.tiles.n) {
		walk_piece(s, t, end, &p);
		loops->output_back(dx + p.image * image_floats(&s->in), v + (size_t)(t - at) * s->c,
				   s->c_plane, &s->in, &p.tiles);
	}
}

/* operands: dx (or -1), dy, x (or -1) */
static int backward_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct wino *s = op->state;
	const float *dy = cpu_at(w, op->buf[1], row), *x = cpu_operand(op, w, 2, row);
	float *dx = cpu_operand(op, w, 0, row);
	uint32_t all = n * s->tiles;

	if (s->bias)
		cpu_loops_of(w)->columns(w->sum + s->sum_bias, dy, image_floats(&s->out) / s->k * n,
					 s->k, !w->first);
	if (dx && !op->accumulate)
		memset(dx, 0, image_floats(&s->in) * n * sizeof(*dx));
	for (uint32_t at = 0, end; at < all; at = end) {
		end = group_end(s, at, all);
		backward_group(w, s, at, end, x, dy, dx, !w->first || at > 0);
	}
	return 0;
}

static int wino_pack(const struct cpu_pack *p, struct cpu_worker *w)
{
	const struct wino *s = p->state;
	const float *kernel = cpu_param(w, s->node, 0);

	loops_of(w)->kernel(w->plan->packed + s->packed, kernel, s->c, s->k, false);
	if (s->data)
		loops_of(w)->kernel(w->plan->packed + s->packed_back, kernel, s->c, s->k, true);
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

/* Groups of equal size, as many tiles as the cache holds beside the kernel. */
static void wino_group(struct wino *s)
{
	uint64_t kernel = (uint64_t)WINO_PLANES * s->c * s->k;
	uint64_t room = WINO_CACHE > kernel * 3 / 4 ? WINO_CACHE - kernel * 3 / 4 : 0;

	s->group = (uint32_t)(room / ((uint64_t)WINO_PLANES * (s->c + s->k)) / WINO_TILES) *
		   WINO_TILES;
	if (s->group < WINO_TILES)
		s->group = WINO_TILES;
	s->c_plane = (size_t)s->group * s->c + WINO_PAD;
	s->k_plane = (size_t)s->group * s->k + WINO_PAD;
}

void wino_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct backend_shape in = lower_shape(l, n->in[0]), out = n->out;
	struct wino *s = lower_state(l, sizeof(*s), NULL);
	uint32_t end = lower_end(l, node);
	struct cpu_op *op;

	if (!s)
		return;
	l->saved[node] = s;
	s->node = n;
	s->c = in.c;
	s->k = out.c;
	s->bias = l->plan->training && lower_trainable(l, n, 1);
	s->weights = l->plan->training && lower_trainable(l, n, 0);
	s->data = l->plan->training && lower_wants(l, n->in[0]);
	s->in = (struct wino_image){in.h, in.w, in.c, (int32_t)n->window.pad_top,
				    (int32_t)n->window.pad_left};
	s->out = (struct wino_image){out.h, out.w, out.c, 0, 0};
	s->tw = (out.w + WINO_TILE - 1) / WINO_TILE;
	s->tiles = (out.h + WINO_TILE - 1) / WINO_TILE * s->tw;
	wino_group(s);
	s->packed = cpu_plan_packed(l->plan, (uint64_t)WINO_PLANES * s->c * s->k);
	if (s->data)
		s->packed_back = cpu_plan_packed(l->plan, (uint64_t)WINO_PLANES * s->c * s->k);
	cpu_plan_scratch(l->plan, WINO_PLANES * (s->c_plane + s->k_plane));
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
	int32_t g = lower_masked(l, node), x = s->weights ? norm_again(l, n->in[0]) : -1;
	struct cpu_op *op = lower_op(l, n, CPU_ROWS, backward_run);

	op->state = s;
	lower_use(l, op, 1, g);
	lower_use(l, op, 2, x);
	if (s->data)
		lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	if (s->weights) {
		struct cpu_reduce *r = lower_reduce(l, n->tensor[0], 0, 0);

		r->run = wino_reduce;
		r->state = s;
		s->sum = cpu_plan_sum(l->plan, (uint64_t)WINO_PLANES * s->c * s->k);
	}
	if (s->bias) {
		s->sum_bias = cpu_plan_sum(l->plan, s->k);
		lower_reduce(l, n->tensor[1], s->sum_bias, s->k);
	}
}
