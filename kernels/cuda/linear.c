/* SPDX-License-Identifier: MIT */
/*
 * linear.c: what convolutions and dense layers have in common (bias, activation, their backward
 * parts), depthwise convolutions, and small helpers on shapes.
 */
#include "cuda.h"

struct window window_of(const struct backend_node *node)
{
	const struct backend_window *w = &node->window;

	return (struct window){w->kh,	      w->kw,	     w->stride_h, w->stride_w,
			       w->dilation_h, w->dilation_w, w->pad_top,  w->pad_left};
}

struct act act_of(const struct cuda_net *net, uint32_t node)
{
	const struct backend_node *n = node == NONE ? NULL : net_node(net, node);

	if (!n)
		return (struct act){.kind = BACKEND_LINEAR};
	return (struct act){(int)n->activation, n->alpha, n->max_value, n->threshold};
}

/* Enough blocks for every multiprocessor to hold a few, and rows enough for every block. Fewer rows
 * may make more chunks than more rows do, up to *most. */
static struct cols cut(const struct cuda_backend *gpu, uint64_t rows, uint32_t c, bool wide,
		       uint64_t *most)
{
	struct cols m = {.rows = rows, .c = c, .vec = wide && c % 4 == 0 ? 4 : 1, .tx = 1};
	uint32_t vectors = c / m.vec, ny, tiles;
	uint64_t steps;

	while (m.tx < 32 && m.tx < vectors)
		m.tx *= 2;
	ny = 256 / m.tx;
	tiles = (vectors + m.tx - 1) / m.tx;
	steps = (rows + ny - 1) / ny;
	steps = steps ? steps : 1;
	*most = (uint64_t)gpu->multiprocessors * 4 / tiles;
	*most = *most < 1 ? 1 : *most > steps ? steps : *most;
	m.chunk = ((steps + *most - 1) / *most) * ny;
	m.chunks = rows ? (uint32_t)((rows + m.chunk - 1) / m.chunk) : 1;
	return m;
}

struct cols cols_of(const struct cuda_backend *gpu, uint64_t rows, uint32_t c, bool wide)
{
	uint64_t most;

	return cut(gpu, rows, c, wide, &most);
}

uint64_t cols_most(const struct cuda_backend *gpu, uint64_t rows, uint32_t c, bool wide)
{
	uint64_t most;

	cut(gpu, rows, c, wide, &most);
	return most;
}

const float *pass_tensor(const struct pass *p, const struct backend_node *node, int k)
{
	const struct backend_tensor *t;

	if (node->tensor[k] < 0)
		return NULL;
	t = &p->net->base.graph.tensor[node->tensor[k]];
	return (t->arena == BACKEND_STAT ? p->w.stat : p->w.param) + t->offset;
}

const void *pass_packed(const struct pass *p, const struct backend_node *node, int k)
{
	uint64_t at;

	if (node->tensor[k] < 0)
		return NULL;
	at = p->net->packed_at[node->tensor[k]];
	if (at == UINT64_MAX)
		return pass_tensor(p, node, k);
	return (const char *)p->w.packed + at * p->net->plan.element;
}

float *pass_gradient(const struct pass *p, const struct group *g, int k, bool *add)
{
	int32_t index = net_node(p->net, g->node)->tensor[k];
	const struct backend_tensor *t;

	*add = p->accumulate || g->add_tensor[k];
	if (index < 0)
		return NULL;
	t = &p->net->base.graph.tensor[index];
	return t->trainable ? p->net->arena[BACKEND_GRAD] + t->offset : NULL;
}

/* ---- bias and activation -------------------------------------------------------------------- */

static uint64_t places_of(const struct backend_node *node, uint32_t n)
{
	return (uint64_t)n * node->out.h * node->out.w;
}

int linear_finish(const struct pass *p, const struct group *g, bool bias)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	bool f32 = net->plan.logits_f32 && g->last == net->plan.loss.node;
	struct bias_act_args a = {
		.m = cols_of(net->gpu, places_of(node, p->shape->n), node->out.c, true),
		.y = net_value(net, g->last),
		.bias = bias ? pass_tensor(p, node, 1) : NULL,
		.act = act_of(net, g->act),
	};

	a.x = g->pre ? net_value(net, g->node) : a.y;
	if (!a.bias && g->act == NONE)
		return 0;
	if (g->pre && a.bias)
		a.pre = net_value(net, g->node);
	return cuda_failed(net->gpu,
			   launch_bias_act(net->stream, f32 ? CUDA_T_F32 : net->gpu->type, &a),
			   "bias", p->error);
}

uint64_t linear_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n)
{
	return cols_most(net->gpu, places_of(node, n), node->out.c, true) * node->out.c *
	       sizeof(float);
}

int linear_begin_backward(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	struct linear_back_args a = {
		.m = cols_of(net->gpu, places_of(node, p->shape->n), node->out.c, true),
		.dy = net_gradient(net, g->last),
		.dz = net_gradient(net, g->last),
		.act = act_of(net, g->act),
		.post = g->post,
	};
	struct partial_args sum = {
		.block = net->device_block, .count = a.m.c, .chunks = a.m.chunks};
	bool add;
	int rc;

	sum.out = pass_gradient(p, g, 1, &add);
	if (g->act != NONE)
		a.from = net_value(net, g->post ? g->last : g->node);
	if (!a.from && !sum.out)
		return 0;
	if (sum.out)
		sum.partial = a.partial = (float *)net->scratch;
	rc = launch_linear_back(net->stream, net->gpu->type, &a);
	if (!rc && sum.out) {
		sum.add = add;
		rc = launch_partial_sum(net->stream, &sum);
	}
	return cuda_failed(net->gpu, rc, "gradient of the bias", p->error);
}

/* ---- depthwise ------------------------------------------------------------------------------ */

static struct depthwise_args depthwise_args(const struct pass *p, const struct group *g)
{
	const struct backend_node *node = net_node(p->net, g->node);

	return (struct depthwise_args){
		.x = net_value(p->net, node->in[0]),
		.dy = net_gradient(p->net, g->last),
		.w = pass_tensor(p, node, 0),
		.in = image_of(net_node(p->net, node->in[0])->out),
		.out = image_of(node->out),
		.win = window_of(node),
		.n = p->shape->n,
		.mult = node->multiplier,
		.m = cols_of(p->net->gpu, places_of(node, p->shape->n), node->out.c, false),
	};
}

int depthwise_forward(const struct pass *p, const struct group *g)
{
	struct depthwise_args a = depthwise_args(p, g);
	struct cuda_net *net = p->net;
	int rc;

	a.y = net_value(net, g->pre ? g->node : g->last);
	rc = cuda_failed(net->gpu, launch_depthwise(net->stream, net->gpu->type, &a),
			 "depthwise convolution", p->error);
	return rc ? rc : linear_finish(p, g, true);
}

uint64_t depthwise_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n)
{
	uint64_t taps = (uint64_t)node->window.kh * node->window.kw;

	return cols_most(net->gpu, places_of(node, n), node->out.c, false) * taps * node->out.c *
	       sizeof(float);
}

int depthwise_backward(const struct pass *p, const struct group *g)
{
	const struct edge *edge = &p->net->plan.edge[g->first_edge];
	struct depthwise_args a = depthwise_args(p, g);
	struct partial_args sum = {.block = p->net->device_block, .chunks = a.m.chunks};
	struct cuda_net *net = p->net;
	bool add;
	int rc = linear_begin_backward(p, g);

	if (rc)
		return rc;
	sum.out = pass_gradient(p, g, 0, &add);
	sum.add = add;
	sum.count = (uint64_t)a.win.kh * a.win.kw * a.out.c;
	sum.partial = a.partial = (float *)net->scratch;
	if (sum.out) {
		rc = launch_depthwise_filter(net->stream, net->gpu->type, &a);
		if (!rc)
			rc = launch_partial_sum(net->stream, &sum);
	}
	if (!rc && edge->want) {
		a.y = net_gradient(net, net_node(net, g->node)->in[0]);
		a.add = edge->add;
		rc = launch_depthwise_data(net->stream, net->gpu->type, &a);
	}
	return cuda_failed(net->gpu, rc, "backward of a depthwise convolution", p->error);
}
