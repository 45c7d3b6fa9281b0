/* SPDX-License-Identifier: MIT */
/*
 * other.c: operators without parameters: activations that stand alone, sums, concatenation,
 * pooling, dropout, rescale, moves of pixels.
 */
#include <math.h>

#include "cuda.h"

/* What forward and backward of a node with one input need. */
struct one {
	const struct pass *p;
	struct cuda_net *net;
	const struct backend_node *node;
	const struct group *g;
	enum cuda_type type;
	cudaStream_t stream;
	struct image in, out;
	uint32_t n;
	uint64_t count; /* elements of the output */
	const void *x, *dy;
	void *y, *dx;
	bool add;
};

static struct one one_of(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);

	return (struct one){
		.p = p,
		.net = net,
		.node = node,
		.g = g,
		.type = net->gpu->type,
		.stream = net->stream,
		.in = image_of(net_node(net, node->in[0])->out),
		.out = image_of(node->out),
		.n = p->shape->n,
		.count = p->shape->n * backend_shape_count(node->out),
		.x = net_value(net, node->in[0]),
		.y = net_value(net, g->last),
		.dx = net_gradient(net, node->in[0]),
		.dy = net_gradient(net, g->last),
		.add = net->plan.edge[g->first_edge].add,
	};
}

/* to (+)= from, count elements */
static int copy(const struct one *o, const void *from, void *to, bool add)
{
	struct sum_args a = {.x = {from}, .y = to, .count = o->count, .n_in = 1, .add = add};

	a.act.kind = BACKEND_LINEAR;
	return launch_sum_nodes(o->stream, o->type, &a);
}

/* ---- sums ----------------------------------------------------------------------------------- */

int sum_forward(const struct pass *p, const struct group *g)
{
	struct one o = one_of(p, g);
	uint32_t n_in = o.node->n_in;
	int rc = 0;

	for (uint32_t k = 0; k < n_in && !rc; k += SUM_INPUTS) {
		struct sum_args a = {.y = o.y, .count = o.count, .add = k > 0};
		bool end = k + SUM_INPUTS >= n_in;

		/* a sum of more inputs is activated in a pass of its own */
		a.act = act_of(p->net, end && k == 0 ? g->act : NONE);
		for (; a.n_in < SUM_INPUTS && k + a.n_in < n_in; a.n_in++)
			a.x[a.n_in] = net_value(p->net, o.node->in[k + a.n_in]);
		rc = launch_sum_nodes(o.stream, o.type, &a);
	}
	if (!rc && g->act != NONE && n_in > SUM_INPUTS) {
		struct act_args a = {
			.x = o.y, .y = o.y, .count = o.count, .act = act_of(p->net, g->act)};

		rc = launch_activation(o.stream, o.type, &a);
	}
	return cuda_failed(p->net->gpu, rc, "sum of layers", p->error);
}

/* The slope of a fused ReLU goes into dy first, in place. */
int sum_backward(const struct pass *p, const struct group *g)
{
	const struct edge *edge = &p->net->plan.edge[g->first_edge];
	struct one o = one_of(p, g);
	int rc = 0;

	if (g->act != NONE) {
		/* y > 0 exactly where the sum was: ReLU's slope at y */
		struct act_args a = {.x = o.y,
				     .dy = o.dy,
				     .y = (void *)o.dy,
				     .count = o.count,
				     .act = act_of(p->net, g->act),
				     .backward = 1};

		rc = launch_activation(o.stream, o.type, &a);
	}
	for (uint32_t k = 0; k < o.node->n_in && !rc; k++)
		if (edge[k].want)
			rc = copy(&o, o.dy, net_gradient(p->net, o.node->in[k]), edge[k].add);
	return cuda_failed(p->net->gpu, rc, "backward of a sum", p->error);
}

/* Input k of a concatenation lies in pieces of `width` in pieces of the output. */
static int concat(const struct one *o, bool backward)
{
	const uint32_t axis = o->node->axis;
	const struct edge *edge = &o->net->plan.edge[o->g->first_edge];
	uint64_t start = 0, inner = axis == 0	? (uint64_t)o->out.w * o->out.c
				    : axis == 1 ? o->out.c
						: 1;
	const uint32_t out[3] = {o->out.h, o->out.w, o->out.c};
	uint64_t outer = o->n;
	int rc = 0;

	for (uint32_t a = 0; a < axis; a++)
		outer *= out[a];
	for (uint32_t k = 0; k < o->node->n_in && !rc; k++) {
		struct backend_shape s = net_node(o->net, o->node->in[k])->out;
		const uint32_t size[3] = {s.h, s.w, s.c};
		struct strided_args a = {.outer = outer, .width = size[axis] * inner};
		char *whole = (char *)(backward ? o->dy : o->y) + start * o->net->plan.element;

		start += a.width;
		a.from_stride = backward ? out[axis] * inner : a.width;
		a.to_stride = backward ? a.width : out[axis] * inner;
		a.from = backward ? whole : net_value(o->net, o->node->in[k]);
		a.to = backward ? net_gradient(o->net, o->node->in[k]) : whole;
		a.add = backward && edge[k].add;
		if (!backward || edge[k].want)
			rc = launch_strided(o->stream, o->type, &a);
	}
	return rc;
}

/* ---- one input ------------------------------------------------------------------------------ */

static int activation(const struct one *o, bool backward)
{
	bool logarithm = o->node->activation == BACKEND_LOG_SOFTMAX;

	if (logarithm || o->node->activation == BACKEND_SOFTMAX) {
		struct softmax_args a = {.x = backward ? o->y : o->x,
					 .dy = o->dy,
					 .y = backward ? o->dx : o->y,
					 .rows = o->count / o->out.c,
					 .c = o->out.c,
					 .logarithm = logarithm,
					 .backward = backward,
					 .add = backward && o->add};

		return launch_softmax(o->stream, o->type, &a);
	}
	struct act_args a = {.x = o->x,
			     .dy = o->dy,
			     .y = backward ? o->dx : o->y,
			     .count = o->count,
			     .act = act_of(o->net, o->g->node),
			     .backward = backward,
			     .add = backward && o->add};

	return launch_activation(o->stream, o->type, &a);
}

static int pool(const struct one *o, bool backward)
{
	bool max = o->node->op == BACKEND_MAXPOOL;
	struct pool_args a = {
		.from = backward ? o->dy : o->x,
		.to = backward ? o->dx : o->y,
		.index = max && o->p->training ? net_buffer(o->net, o->g->extra) : NULL,
		.in = o->in,
		.out = o->out,
		.w = window_of(o->node),
		.n = o->n,
		.wide = o->node->window.kh * (uint64_t)o->node->window.kw > 255,
		.add = backward && o->add,
	};

	if (max)
		return (backward ? launch_maxpool_back : launch_maxpool)(o->stream, o->type, &a);
	return (backward ? launch_avgpool_back : launch_avgpool)(o->stream, o->type, &a);
}

static int global_pool(const struct one *o, bool backward)
{
	bool max = o->node->op == BACKEND_GLOBAL_MAXPOOL;
	struct global_args a = {
		.from = backward ? o->dy : o->x,
		.to = backward ? o->dx : o->y,
		.index = max && o->p->training ? net_buffer(o->net, o->g->extra) : NULL,
		.n = o->n,
		.places = o->in.h * o->in.w,
		.c = o->in.c,
		.max = max,
		.add = backward && o->add,
	};

	return (backward ? launch_global_back : launch_global_pool)(o->stream, o->type, &a);
}

static int upsample(const struct one *o, bool backward)
{
	struct upsample_args a = {
		.from = backward ? o->dy : o->x,
		.to = backward ? o->dx : o->y,
		.in = o->in,
		.n = o->n,
		.fh = o->node->window.stride_h,
		.fw = o->node->window.stride_w,
		.bilinear = o->node->bilinear,
		.backward = backward,
		.add = backward && o->add,
	};

	return launch_upsample(o->stream, o->type, &a);
}

/* PAD, FLIP, SHIFT, CROP. */
static int place(const struct one *o, bool backward)
{
	const struct backend_node *node = o->node;
	bool random = node->op != BACKEND_PAD && o->p->training;
	struct place_args a = {
		.block = o->net->device_block,
		.from = backward ? o->dy : o->x,
		.to = backward ? o->dx : o->y,
		.in = o->in,
		.out = o->out,
		.n = o->n,
		.add = backward && o->add,
		.inverse = backward,
		.random = random ? node->op : 0,
		.layer = node->layer,
		.horizontal = node->horizontal,
		.vertical = node->vertical,
		.my = (uint32_t)lrint((double)node->rate * o->in.h),
		.mx = (uint32_t)lrint((double)node->rate_w * o->in.w),
	};

	if (node->op == BACKEND_PAD) {
		a.dy = -(int32_t)node->window.pad_top;
		a.dx = -(int32_t)node->window.pad_left;
	} else if (node->op == BACKEND_CROP) {
		a.dy = (int32_t)((o->in.h - o->out.h) / 2);
		a.dx = (int32_t)((o->in.w - o->out.w) / 2);
	}
	return launch_place(o->stream, o->type, &a);
}

static int dropout(const struct one *o, bool backward)
{
	struct dropout_args a = {
		.block = o->net->device_block,
		.x = backward ? o->dy : o->x,
		.y = backward ? o->dx : o->y,
		.n = o->n,
		.count = (uint32_t)(o->count / (o->n ? o->n : 1)),
		.layer = o->node->layer,
		.add = backward && o->add,
		.rate = o->node->rate,
	};

	if (!o->p->training)
		return copy(o, o->x, o->y, false);
	return launch_dropout(o->stream, o->type, &a);
}

static int rescale(const struct one *o, bool backward)
{
	const struct backend_node *node = o->node;
	const float *table = o->net->rescale[o->g->node];
	struct rescale_args a = {
		.x = backward ? o->dy : o->x,
		.y = backward ? o->dx : o->y,
		.scale = node->scale ? table : NULL,
		.scale1 = node->scale1,
		.count = o->count,
		.c = o->out.c,
		.add = backward && o->add,
	};

	if (!backward) {
		a.offset = node->offset ? table + o->out.c : NULL;
		a.offset1 = node->offset1;
	}
	return launch_rescale(o->stream, o->type, &a);
}

static int input(const struct one *o)
{
	const struct backend_input *in = &o->net->base.options.input;
	bool augment = o->p->training;
	struct input_args a = {
		.block = o->net->device_block,
		.y = o->y,
		.mul = o->net->input_scaling,
		.add = o->net->input_scaling + in->shape.c,
		.s = o->out,
		.n = o->n,
		.dtype = in->dtype,
		.pitch = o->net->pitch,
		.flip = augment && in->flip,
		.pad = augment ? in->pad : 0,
		.cutout = augment ? in->cutout : 0,
	};

	return launch_input(o->stream, o->type, &a);
}

static int other(const struct pass *p, const struct group *g, bool backward)
{
	struct one o = one_of(p, g);

	switch (o.node->op) {
	case BACKEND_ACTIVATION:
		return activation(&o, backward);
	case BACKEND_MAXPOOL:
	case BACKEND_AVGPOOL:
		return pool(&o, backward);
	case BACKEND_GLOBAL_AVGPOOL:
	case BACKEND_GLOBAL_MAXPOOL:
		return global_pool(&o, backward);
	case BACKEND_CONCAT:
		return concat(&o, backward);
	case BACKEND_PAD:
	case BACKEND_FLIP:
	case BACKEND_SHIFT:
	case BACKEND_CROP:
		return place(&o, backward);
	case BACKEND_UPSAMPLE:
		return upsample(&o, backward);
	case BACKEND_RESHAPE: /* the value is shared; the gradient is where nobody else wants it */
		return backward && !g->same_grad ? copy(&o, o.dy, o.dx, o.add) : 0;
	case BACKEND_DROPOUT:
		return dropout(&o, backward);
	case BACKEND_RESCALE:
		return rescale(&o, backward);
	default:
		return -EOPNOTSUPP;
	}
}

int other_forward(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	int rc;

	if (node->op == BACKEND_INPUT) {
		struct one o = {.p = p,
				.net = net,
				.y = net_value(net, g->last),
				.out = image_of(node->out),
				.n = p->shape->n,
				.type = net->gpu->type,
				.stream = net->stream};

		rc = input(&o);
	} else {
		rc = other(p, g, false);
	}
	return cuda_failed(net->gpu, rc, node->name, p->error);
}

int other_backward(const struct pass *p, const struct group *g)
{
	const struct backend_node *node = net_node(p->net, g->node);
	bool any = node->op == BACKEND_CONCAT || p->net->plan.edge[g->first_edge].want;

	if (node->op == BACKEND_INPUT || !any)
		return 0;
	return cuda_failed(p->net->gpu, other(p, g, true), node->name, p->error);
}
