/* SPDX-License-Identifier: MIT */
/*
 * builder.h: small graphs for tests, one call per layer; and a trial: a net of one back end with
 * made-up parameters and a made-up batch, the same for every back end.
 */
#ifndef TEST_BUILDER_H
#define TEST_BUILDER_H

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../kernels/backend.h"

#ifndef BUILD_NODES /* larger graphs define both */
#define BUILD_NODES 64
#define BUILD_TENSORS 64
#endif
#define BUILD_INPUTS 4

struct build {
	struct backend_node node[BUILD_NODES];
	uint32_t in[BUILD_NODES][BUILD_INPUTS];
	struct backend_tensor tensor[BUILD_TENSORS];
	uint32_t n_nodes, n_tensors;
	struct backend_graph graph; /* b_finish */
};

/* ---- numbers ----------------------------------------------------------------------------- */

/* A stream of numbers that is none of the code under test (splitmix64). */
static inline uint64_t made_up(uint64_t *state)
{
	uint64_t z = *state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

static inline float made_up_float(uint64_t *state, float low, float high)
{
	return low + (high - low) * (float)(made_up(state) >> 40) / 16777216.0f;
}

/* ---- nodes ------------------------------------------------------------------------------- */

static inline struct backend_node *b_node(struct build *b, enum backend_op op, int from)
{
	struct backend_node *node = &b->node[b->n_nodes];
	uint32_t *in = b->in[b->n_nodes];

	*node = (struct backend_node){
		.op = op,
		.in = in,
		.n_in = from >= 0,
		.tensor = {-1, -1, -1, -1},
		.window = {1, 1, 1, 1, 1, 1, 0, 0, 0, 0},
		.groups = 1,
		.max_value = INFINITY,
		.scale1 = 1.0f,
		.layer = b->n_nodes,
	};
	snprintf(node->name, sizeof(node->name), "n%u", b->n_nodes);
	if (from >= 0) {
		in[0] = (uint32_t)from;
		node->out = b->node[from].out;
	}
	b->n_nodes++;
	return node;
}

static inline int b_id(const struct build *b)
{
	return (int)b->n_nodes - 1;
}

static inline int b_tensor(struct build *b, const char *what, enum backend_arena arena, uint32_t d0,
			   uint32_t d1, uint32_t d2, uint32_t d3)
{
	struct backend_tensor *t = &b->tensor[b->n_tensors];

	*t = (struct backend_tensor){
		.arena = arena,
		.trainable = arena == BACKEND_PARAM,
		.decay = arena == BACKEND_PARAM,
		.rank = d3   ? 4
			: d2 ? 3
			: d1 ? 2
			     : 1,
		.dim = {d0, d1, d2, d3},
	};
	snprintf(t->name, sizeof(t->name), "n%u/%s", b->n_nodes - 1, what);
	return (int)b->n_tensors++;
}

static inline int b_input(struct build *b, uint32_t h, uint32_t w, uint32_t c)
{
	memset(b, 0, sizeof(*b));
	b_node(b, BACKEND_INPUT, -1)->out = (struct backend_shape){h, w, c};
	return b_id(b);
}

static inline uint32_t b_axis(uint32_t size, uint32_t k, uint32_t s, uint32_t d, uint32_t pad)
{
	return (size + pad - ((k - 1) * d + 1)) / s + 1;
}

static inline void b_window(struct backend_node *node, struct backend_window w)
{
	node->window = w;
	node->out.h = b_axis(node->out.h, w.kh, w.stride_h, w.dilation_h, w.pad_top + w.pad_bottom);
	node->out.w = b_axis(node->out.w, w.kw, w.stride_w, w.dilation_w, w.pad_left + w.pad_right);
}

/* Square window, no padding. */
static inline struct backend_window b_valid(uint32_t k, uint32_t stride)
{
	return (struct backend_window){k, k, stride, stride, 1, 1, 0, 0, 0, 0};
}

/* Square window, Keras' 'same' on an input of h x w. */
static inline struct backend_window b_same(uint32_t k, uint32_t s, uint32_t d, uint32_t h,
					   uint32_t w)
{
	struct backend_window win = {k, k, s, s, d, d, 0, 0, 0, 0};
	int total_h = (int)((h + s - 1) / s - 1) * (int)s + (int)(k - 1) * (int)d + 1 - (int)h;
	int total_w = (int)((w + s - 1) / s - 1) * (int)s + (int)(k - 1) * (int)d + 1 - (int)w;

	win.pad_top = total_h > 0 ? (uint32_t)total_h / 2 : 0;
	win.pad_bottom = total_h > 0 ? (uint32_t)total_h - win.pad_top : 0;
	win.pad_left = total_w > 0 ? (uint32_t)total_w / 2 : 0;
	win.pad_right = total_w > 0 ? (uint32_t)total_w - win.pad_left : 0;
	return win;
}

static inline int b_conv(struct build *b, int from, uint32_t cout, struct backend_window w,
			 uint32_t groups, bool bias)
{
	struct backend_node *node = b_node(b, BACKEND_CONV2D, from);
	uint32_t cin = node->out.c;

	b_window(node, w);
	node->out.c = cout;
	node->groups = groups;
	node->tensor[0] = b_tensor(b, "kernel", BACKEND_PARAM, w.kh, w.kw, cin / groups, cout);
	if (bias)
		node->tensor[1] = b_tensor(b, "bias", BACKEND_PARAM, cout, 0, 0, 0);
	return b_id(b);
}

/* 'same' convolution with bias. */
static inline int b_conv_same(struct build *b, int from, uint32_t cout, uint32_t k, uint32_t stride)
{
	struct backend_shape s = b->node[from].out;

	return b_conv(b, from, cout, b_same(k, stride, 1, s.h, s.w), 1, true);
}

static inline int b_depthwise(struct build *b, int from, uint32_t mult, struct backend_window w,
			      bool bias)
{
	struct backend_node *node = b_node(b, BACKEND_DEPTHWISE, from);
	uint32_t c = node->out.c;

	b_window(node, w);
	node->out.c = c * mult;
	node->multiplier = mult;
	node->tensor[0] = b_tensor(b, "kernel", BACKEND_PARAM, w.kh, w.kw, c, mult);
	if (bias)
		node->tensor[1] = b_tensor(b, "bias", BACKEND_PARAM, c * mult, 0, 0, 0);
	return b_id(b);
}

static inline int b_dense(struct build *b, int from, uint32_t units, bool bias)
{
	struct backend_node *node = b_node(b, BACKEND_DENSE, from);
	uint32_t c = node->out.c;

	node->out.c = units;
	node->tensor[0] = b_tensor(b, "kernel", BACKEND_PARAM, c, units, 0, 0);
	if (bias)
		node->tensor[1] = b_tensor(b, "bias", BACKEND_PARAM, units, 0, 0, 0);
	return b_id(b);
}

static inline int b_pool(struct build *b, int from, enum backend_op op, struct backend_window w)
{
	b_window(b_node(b, op, from), w);
	return b_id(b);
}

static inline int b_global(struct build *b, int from, enum backend_op op)
{
	struct backend_node *node = b_node(b, op, from);

	node->out.h = node->out.w = 1;
	return b_id(b);
}

static inline int b_norm(struct build *b, int from, bool gamma, bool beta, bool frozen)
{
	struct backend_node *node = b_node(b, BACKEND_BATCHNORM, from);
	uint32_t c = node->out.c;

	node->epsilon = 1e-3f;
	node->momentum = 0.9f;
	node->frozen = frozen;
	if (gamma)
		node->tensor[0] = b_tensor(b, "gamma", BACKEND_PARAM, c, 0, 0, 0);
	if (beta)
		node->tensor[1] = b_tensor(b, "beta", BACKEND_PARAM, c, 0, 0, 0);
	node->tensor[2] = b_tensor(b, "moving_mean", BACKEND_STAT, c, 0, 0, 0);
	node->tensor[3] = b_tensor(b, "moving_variance", BACKEND_STAT, c, 0, 0, 0);
	return b_id(b);
}

static inline int b_act(struct build *b, int from, enum backend_activation a, float alpha)
{
	struct backend_node *node = b_node(b, BACKEND_ACTIVATION, from);

	node->activation = a;
	node->alpha = alpha;
	return b_id(b);
}

/* ADD of x, y and, where z >= 0, z. */
static inline int b_add(struct build *b, int x, int y, int z)
{
	struct backend_node *node = b_node(b, BACKEND_ADD, x);

	b->in[b_id(b)][1] = (uint32_t)y;
	b->in[b_id(b)][2] = (uint32_t)z;
	node->n_in = z >= 0 ? 3 : 2;
	return b_id(b);
}

static inline int b_concat(struct build *b, int x, int y, uint32_t axis)
{
	struct backend_node *node = b_node(b, BACKEND_CONCAT, x);
	struct backend_shape s = b->node[y].out;

	b->in[b_id(b)][1] = (uint32_t)y;
	node->n_in = 2;
	node->axis = axis;
	node->out.h += axis == 0 ? s.h : 0;
	node->out.w += axis == 1 ? s.w : 0;
	node->out.c += axis == 2 ? s.c : 0;
	return b_id(b);
}

static inline int b_pad(struct build *b, int from, uint32_t top, uint32_t bottom, uint32_t left,
			uint32_t right)
{
	struct backend_node *node = b_node(b, BACKEND_PAD, from);

	node->window.pad_top = top;
	node->window.pad_bottom = bottom;
	node->window.pad_left = left;
	node->window.pad_right = right;
	node->out.h += top + bottom;
	node->out.w += left + right;
	return b_id(b);
}

static inline int b_upsample(struct build *b, int from, uint32_t fh, uint32_t fw, bool bilinear)
{
	struct backend_node *node = b_node(b, BACKEND_UPSAMPLE, from);

	node->window.stride_h = fh;
	node->window.stride_w = fw;
	node->bilinear = bilinear;
	node->out.h *= fh;
	node->out.w *= fw;
	return b_id(b);
}

static inline int b_reshape(struct build *b, int from, uint32_t h, uint32_t w, uint32_t c)
{
	b_node(b, BACKEND_RESHAPE, from)->out = (struct backend_shape){h, w, c};
	return b_id(b);
}

static inline int b_flatten(struct build *b, int from)
{
	struct backend_shape s = b->node[from].out;

	return b_reshape(b, from, 1, 1, s.h * s.w * s.c);
}

static inline int b_dropout(struct build *b, int from, float rate)
{
	b_node(b, BACKEND_DROPOUT, from)->rate = rate;
	return b_id(b);
}

/* scale, offset: arrays that outlive the graph, or NULL for the two numbers. */
static inline int b_rescale(struct build *b, int from, const float *scale, const float *offset,
			    float scale1, float offset1)
{
	struct backend_node *node = b_node(b, BACKEND_RESCALE, from);

	node->scale = scale;
	node->offset = offset;
	node->scale1 = scale1;
	node->offset1 = offset1;
	return b_id(b);
}

static inline int b_flip(struct build *b, int from, bool horizontal, bool vertical)
{
	struct backend_node *node = b_node(b, BACKEND_FLIP, from);

	node->horizontal = horizontal;
	node->vertical = vertical;
	return b_id(b);
}

static inline int b_shift(struct build *b, int from, float rate, float rate_w)
{
	struct backend_node *node = b_node(b, BACKEND_SHIFT, from);

	node->rate = rate;
	node->rate_w = rate_w;
	return b_id(b);
}

static inline int b_crop(struct build *b, int from, uint32_t h, uint32_t w)
{
	struct backend_node *node = b_node(b, BACKEND_CROP, from);

	node->window.kh = node->out.h = h;
	node->window.kw = node->out.w = w;
	return b_id(b);
}

/* The last node is the output. Returns what backend_layout says. */
static inline int b_finish(struct build *b)
{
	b->graph = (struct backend_graph){
		.n_nodes = b->n_nodes,
		.node = b->node,
		.output = b->n_nodes - 1,
		.n_tensors = b->n_tensors,
		.tensor = b->tensor,
	};
	return backend_layout(b->tensor, b->n_tensors, &b->graph.param_floats,
			      &b->graph.stat_floats);
}

#endif
