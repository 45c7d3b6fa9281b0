/* SPDX-License-Identifier: MIT */
/* shape.c: output shape, attributes and tensors of every operator, each recomputed and checked. */
#include <math.h>
#include <string.h>

#include "shape.h"

#define WINDOW_MAX (1u << 16) /* kernel, stride, dilation, padding of one axis */

struct infer {
	const struct backend_graph *graph;
	const struct backend_node *node;
	struct backend_shape in;  /* of the first input */
	struct backend_shape out; /* the result */
	struct backend_error *error;
};

static int wrong(struct infer *f, const char *what)
{
	return backend_fail(f->error, -EINVAL, "layer %s: %s", f->node->name, what);
}

/* Tensor k of the node must be there with this arena and shape; dim 0 ends the shape. */
static int need(struct infer *f, uint32_t k, enum backend_arena arena, const uint32_t dim[5])
{
	int32_t index = f->node->tensor[k];
	const struct backend_tensor *t;
	uint32_t rank = 0;

	if (index < 0 || (uint32_t)index >= f->graph->n_tensors)
		return backend_fail(f->error, -EINVAL, "layer %s: tensor %u has index %d",
				    f->node->name, k, index);
	t = &f->graph->tensor[index];
	while (rank < 4 && dim[rank])
		rank++;
	if (t->arena != arena)
		return backend_fail(f->error, -EINVAL, "layer %s: tensor %s is in the wrong arena",
				    f->node->name, t->name);
	if (t->rank != rank || memcmp(t->dim, dim, rank * sizeof(*dim)))
		return backend_fail(f->error, -EINVAL,
				    "layer %s: tensor %s does not have the shape of the layer",
				    f->node->name, t->name);
	return 0;
}

static int need_or_none(struct infer *f, uint32_t k, enum backend_arena arena, uint32_t c)
{
	const uint32_t dim[5] = {c};

	return f->node->tensor[k] == -1 ? 0 : need(f, k, arena, dim);
}

/* Tensors from k on must be absent. */
static int none_from(struct infer *f, uint32_t k)
{
	for (; k < 4; k++)
		if (f->node->tensor[k] != -1)
			return wrong(f, "has a tensor that its operator does not know");
	return 0;
}

/* One axis of a window; 0: it does not fit. */
static uint32_t window_axis(uint32_t size, uint32_t k, uint32_t stride, uint32_t dilation,
			    uint32_t before, uint32_t after)
{
	uint64_t extent, padded;

	if (k < 1 || stride < 1 || dilation < 1 || k > WINDOW_MAX || stride > WINDOW_MAX ||
	    dilation > WINDOW_MAX || before > WINDOW_MAX || after > WINDOW_MAX)
		return 0;
	extent = (uint64_t)(k - 1) * dilation + 1;
	padded = (uint64_t)size + before + after;
	return extent > padded ? 0 : (uint32_t)((padded - extent) / stride + 1);
}

static int infer_window(struct infer *f)
{
	const struct backend_window *w = &f->node->window;

	f->out.h =
		window_axis(f->in.h, w->kh, w->stride_h, w->dilation_h, w->pad_top, w->pad_bottom);
	f->out.w =
		window_axis(f->in.w, w->kw, w->stride_w, w->dilation_w, w->pad_left, w->pad_right);
	if (f->out.h == 0 || f->out.w == 0)
		return wrong(f, "the window does not fit its input");
	return 0;
}

static int infer_conv(struct infer *f)
{
	const struct backend_node *node = f->node;
	uint32_t cout = node->out.c, groups = node->groups;
	uint32_t dim[5] = {node->window.kh, node->window.kw, 0, cout};
	int rc = infer_window(f);

	if (rc)
		return rc;
	if (groups < 1 || f->in.c % groups || cout % groups)
		return wrong(f, "groups do not divide the channels");
	dim[2] = f->in.c / groups;
	f->out.c = cout;
	rc = need(f, 0, BACKEND_PARAM, dim);
	if (!rc)
		rc = need_or_none(f, 1, BACKEND_PARAM, cout);
	return rc ? rc : none_from(f, 2);
}

static int infer_depthwise(struct infer *f)
{
	const struct backend_node *node = f->node;
	const uint32_t dim[5] = {node->window.kh, node->window.kw, f->in.c, node->multiplier};
	int rc = infer_window(f);

	if (rc)
		return rc;
	if (node->multiplier < 1 || node->multiplier > WINDOW_MAX ||
	    (uint64_t)f->in.c * node->multiplier > UINT32_MAX)
		return wrong(f, "depth multiplier out of range");
	f->out.c = f->in.c * node->multiplier;
	rc = need(f, 0, BACKEND_PARAM, dim);
	if (!rc)
		rc = need_or_none(f, 1, BACKEND_PARAM, f->out.c);
	return rc ? rc : none_from(f, 2);
}

static int infer_dense(struct infer *f)
{
	const uint32_t dim[5] = {f->in.c, f->node->out.c};
	int rc = need(f, 0, BACKEND_PARAM, dim);

	f->out = f->in;
	f->out.c = f->node->out.c;
	if (!rc)
		rc = need_or_none(f, 1, BACKEND_PARAM, f->out.c);
	return rc ? rc : none_from(f, 2);
}

/* A pooling window must not lie in the padding alone. */
static int infer_pool(struct infer *f)
{
	const struct backend_window *w = &f->node->window;
	int rc = infer_window(f);

	if (rc)
		return rc;
	if (w->dilation_h != 1 || w->dilation_w != 1)
		return wrong(f, "pooling has no dilation");
	if (w->pad_top >= w->kh || w->pad_bottom >= w->kh || w->pad_left >= w->kw ||
	    w->pad_right >= w->kw)
		return wrong(f, "the padding is as large as the pooling window");
	f->out.c = f->in.c;
	return none_from(f, 0);
}

static int infer_global(struct infer *f)
{
	f->out = (struct backend_shape){1, 1, f->in.c};
	return none_from(f, 0);
}

static int infer_batchnorm(struct infer *f)
{
	const struct backend_node *node = f->node;
	const uint32_t dim[5] = {f->in.c};
	int rc;

	f->out = f->in;
	if (!(node->epsilon >= 0.0f) || isinf(node->epsilon))
		return wrong(f, "epsilon out of range");
	if (!(node->momentum >= 0.0f && node->momentum <= 1.0f))
		return wrong(f, "momentum is not in 0..1");
	rc = need_or_none(f, 0, BACKEND_PARAM, f->in.c);
	if (!rc)
		rc = need_or_none(f, 1, BACKEND_PARAM, f->in.c);
	if (!rc)
		rc = need(f, 2, BACKEND_STAT, dim);
	return rc ? rc : need(f, 3, BACKEND_STAT, dim);
}

static int infer_activation(struct infer *f)
{
	const struct backend_node *node = f->node;

	f->out = f->in;
	if ((unsigned int)node->activation >= BACKEND_ACTIVATION_COUNT)
		return wrong(f, "unknown activation");
	if (!isfinite(node->alpha))
		return wrong(f, "alpha or negative_slope out of range");
	if (node->activation == BACKEND_RELU &&
	    (!(node->max_value >= 0.0f) || !isfinite(node->threshold)))
		return wrong(f, "max_value or threshold out of range");
	return none_from(f, 0);
}

static int infer_add(struct infer *f)
{
	f->out = f->in;
	for (uint32_t k = 1; k < f->node->n_in; k++) {
		struct backend_shape s = f->graph->node[f->node->in[k]].out;

		if (s.h != f->in.h || s.w != f->in.w || s.c != f->in.c)
			return wrong(f, "adds inputs of different shapes");
	}
	return none_from(f, 0);
}

static int infer_concat(struct infer *f)
{
	uint32_t axis = f->node->axis;
	uint64_t sum[3] = {f->in.h, f->in.w, f->in.c};

	if (axis > 2)
		return wrong(f, "concatenates over an axis that is not h, w or c");
	for (uint32_t k = 1; k < f->node->n_in; k++) {
		struct backend_shape s = f->graph->node[f->node->in[k]].out;
		const uint32_t dim[3] = {s.h, s.w, s.c};

		for (uint32_t a = 0; a < 3; a++) {
			if (a == axis)
				sum[a] += dim[a];
			else if (dim[a] != sum[a])
				return wrong(f, "concatenates inputs of different shapes");
		}
	}
	if (sum[axis] > UINT32_MAX)
		return wrong(f, "the concatenation is too large");
	f->out = (struct backend_shape){(uint32_t)sum[0], (uint32_t)sum[1], (uint32_t)sum[2]};
	return none_from(f, 0);
}

static int infer_pad(struct infer *f)
{
	const struct backend_window *w = &f->node->window;

	if (w->pad_top > WINDOW_MAX || w->pad_bottom > WINDOW_MAX || w->pad_left > WINDOW_MAX ||
	    w->pad_right > WINDOW_MAX)
		return wrong(f, "the padding is too large");
	f->out = f->in;
	f->out.h += w->pad_top + w->pad_bottom;
	f->out.w += w->pad_left + w->pad_right;
	return none_from(f, 0);
}

static int infer_upsample(struct infer *f)
{
	uint32_t sh = f->node->window.stride_h, sw = f->node->window.stride_w;

	if (sh < 1 || sw < 1 || sh > WINDOW_MAX || sw > WINDOW_MAX ||
	    (uint64_t)f->in.h * sh > UINT32_MAX || (uint64_t)f->in.w * sw > UINT32_MAX)
		return wrong(f, "the factor is out of range");
	f->out = (struct backend_shape){f->in.h * sh, f->in.w * sw, f->in.c};
	return none_from(f, 0);
}

static int infer_reshape(struct infer *f)
{
	if (backend_shape_count(f->in) != backend_shape_count(f->node->out))
		return wrong(f, "reshapes to another number of elements");
	f->out = f->node->out;
	return none_from(f, 0);
}

static int infer_dropout(struct infer *f)
{
	if (!(f->node->rate >= 0.0f && f->node->rate < 1.0f))
		return wrong(f, "rate is not in 0..1");
	f->out = f->in;
	return none_from(f, 0);
}

static int infer_rescale(struct infer *f)
{
	const struct backend_node *node = f->node;

	for (uint32_t k = 0; k < f->in.c; k++)
		if ((node->scale && !isfinite(node->scale[k])) ||
		    (node->offset && !isfinite(node->offset[k])))
			return wrong(f, "scale or offset out of range");
	if ((!node->scale && !isfinite(node->scale1)) ||
	    (!node->offset && !isfinite(node->offset1)))
		return wrong(f, "scale or offset out of range");
	f->out = f->in;
	return none_from(f, 0);
}

static int infer_flip(struct infer *f)
{
	f->out = f->in;
	return none_from(f, 0);
}

static int infer_shift(struct infer *f)
{
	if (!(f->node->rate >= 0.0f && f->node->rate <= 1.0f) ||
	    !(f->node->rate_w >= 0.0f && f->node->rate_w <= 1.0f))
		return wrong(f, "the share to shift by is not in 0..1");
	f->out = f->in;
	return none_from(f, 0);
}

static int infer_crop(struct infer *f)
{
	uint32_t kh = f->node->window.kh, kw = f->node->window.kw;

	if (kh < 1 || kw < 1 || kh > f->in.h || kw > f->in.w)
		return wrong(f, "crops more than there is");
	f->out = (struct backend_shape){kh, kw, f->in.c};
	return none_from(f, 0);
}

int shape_infer(const struct backend_graph *graph, const struct backend_node *node,
		struct backend_shape *out, struct backend_error *error)
{
	static int (*const infer[BACKEND_OP_COUNT])(struct infer *) = {
		[BACKEND_CONV2D] = infer_conv,
		[BACKEND_DEPTHWISE] = infer_depthwise,
		[BACKEND_DENSE] = infer_dense,
		[BACKEND_MAXPOOL] = infer_pool,
		[BACKEND_AVGPOOL] = infer_pool,
		[BACKEND_GLOBAL_AVGPOOL] = infer_global,
		[BACKEND_GLOBAL_MAXPOOL] = infer_global,
		[BACKEND_BATCHNORM] = infer_batchnorm,
		[BACKEND_ACTIVATION] = infer_activation,
		[BACKEND_ADD] = infer_add,
		[BACKEND_CONCAT] = infer_concat,
		[BACKEND_PAD] = infer_pad,
		[BACKEND_UPSAMPLE] = infer_upsample,
		[BACKEND_RESHAPE] = infer_reshape,
		[BACKEND_DROPOUT] = infer_dropout,
		[BACKEND_RESCALE] = infer_rescale,
		[BACKEND_FLIP] = infer_flip,
		[BACKEND_SHIFT] = infer_shift,
		[BACKEND_CROP] = infer_crop,
	};
	struct infer f = {.graph = graph, .node = node, .error = error};
	int rc;

	f.in = graph->node[node->in[0]].out;
	rc = infer[node->op](&f);
	if (!rc)
		*out = f.out;
	return rc;
}
