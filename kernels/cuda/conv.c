/* SPDX-License-Identifier: MIT */
/*
 * conv.c: convolutions through cuDNN's classic calls, NHWC, filters packed as KRSC in the type of
 * the activations; own kernels (conv.cuh) where cuDNN refuses. cuDNN pads both sides alike: where a
 * layer does not, its input is copied with the zeros around it. The choice of algorithms:
 * conv_choose.c.
 */
#include <stdlib.h>

#include "cuda.h"

#define OWN_PARTIAL_MAX (64ull << 20) /* bytes of an own filter gradient's partial sums */

static const float one = 1.0f, zero = 0.0f;

static cudnnDataType_t dnn_type(const struct cuda_net *net)
{
	switch (net->gpu->type) {
	case CUDA_T_F16:
		return CUDNN_DATA_HALF;
	case CUDA_T_BF16:
		return CUDNN_DATA_BFLOAT16;
	default:
		return CUDNN_DATA_FLOAT;
	}
}

/* ---- descriptors ---------------------------------------------------------------------------- */

/* Output of one axis with the same padding on both sides. */
static uint32_t symmetric_out(uint32_t size, uint32_t k, uint32_t dilation, uint32_t stride,
			      uint32_t pad)
{
	uint64_t extent = (uint64_t)(k - 1) * dilation + 1, padded = (uint64_t)size + 2 * pad;

	return padded < extent ? 0 : (uint32_t)((padded - extent) / stride + 1);
}

/* What lies beyond the last window does not matter, so unequal padding need not show. */
static bool is_symmetric(const struct backend_node *node, struct backend_shape in)
{
	const struct backend_window *w = &node->window;

	return symmetric_out(in.h, w->kh, w->dilation_h, w->stride_h, w->pad_top) == node->out.h &&
	       symmetric_out(in.w, w->kw, w->dilation_w, w->stride_w, w->pad_left) == node->out.w;
}

static cudnnStatus_t describe(const struct cuda_net *net, const struct backend_node *node,
			      struct conv *c)
{
	const struct backend_window *w = &node->window;
	cudnnDataType_t type = dnn_type(net);
	cudnnStatus_t rc;

	c->math = CUDNN_TENSOR_OP_MATH;
	if (type == CUDNN_DATA_FLOAT)
		c->math = net->gpu->base.options.precision == BACKEND_PRECISION_TF32
				  ? CUDNN_DEFAULT_MATH
				  : CUDNN_FMA_MATH;
	rc = cudnnCreateFilterDescriptor(&c->filter);
	if (!rc)
		rc = cudnnCreateConvolutionDescriptor(&c->conv);
	if (!rc)
		rc = cudnnCreateTensorDescriptor(&c->bias);
	if (!rc)
		rc = cudnnSetFilter4dDescriptor(c->filter, type, CUDNN_TENSOR_NHWC,
						(int)node->out.c, (int)(c->in.c / node->groups),
						(int)w->kh, (int)w->kw);
	if (!rc)
		rc = cudnnSetConvolution2dDescriptor(
			c->conv, c->padded ? 0 : (int)w->pad_top, c->padded ? 0 : (int)w->pad_left,
			(int)w->stride_h, (int)w->stride_w, (int)w->dilation_h, (int)w->dilation_w,
			CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT);
	if (!rc)
		rc = cudnnSetConvolutionGroupCount(c->conv, (int)node->groups);
	if (!rc)
		rc = cudnnSetConvolutionMathType(c->conv, c->math);
	if (!rc)
		rc = cudnnSetTensor4dDescriptor(c->bias, CUDNN_TENSOR_NHWC, type, 1,
						(int)node->out.c, 1, 1);
	return rc;
}

int conv_prepare(struct cuda_net *net, struct backend_error *error)
{
	struct plan *plan = &net->plan;

	net->conv = calloc(plan->n_groups, sizeof(*net->conv));
	if (!net->conv)
		return backend_fail(error, -ENOMEM, "no memory for convolutions");
	for (uint32_t i = 0; i < plan->n_groups; i++) {
		const struct backend_node *node = net_node(net, plan->group[i].node);
		const struct backend_window *w = &node->window;
		struct conv *c = &net->conv[i];
		cudnnStatus_t rc;

		if (plan->group[i].kind != GROUP_CONV)
			continue;
		if (node->groups > 65535)
			return backend_fail(error, -EOPNOTSUPP,
					    "layer %s: more than 65,535 groups on a GPU",
					    node->name);
		c->in = image_of(net_node(net, node->in[0])->out);
		c->padded = !is_symmetric(node, net_node(net, node->in[0])->out);
		if (c->padded) {
			c->in.h += w->pad_top + w->pad_bottom;
			c->in.w += w->pad_left + w->pad_right;
		}
		rc = describe(net, node, c);
		if (rc)
			return cudnn_failed(net->gpu, rc, "description of a convolution", error);
	}
	return 0;
}

void conv_release(struct cuda_net *net)
{
	for (uint32_t i = 0; net->conv && i < net->plan.n_groups; i++) {
		struct conv *c = &net->conv[i];

		if (c->filter)
			cudnnDestroyFilterDescriptor(c->filter);
		if (c->conv)
			cudnnDestroyConvolutionDescriptor(c->conv);
		if (c->bias)
			cudnnDestroyTensorDescriptor(c->bias);
	}
	free(net->conv);
	net->conv = NULL;
}

/* cuDNN counts elements in int. */
static bool counts_fit(const struct conv *c, const struct backend_node *node, uint32_t n)
{
	uint64_t in = (uint64_t)c->in.h * c->in.w * c->in.c * n;

	return in <= INT32_MAX && backend_shape_count(node->out) * n <= INT32_MAX &&
	       (uint64_t)node->window.kh * node->window.kw * c->in.c * node->out.c <= INT32_MAX;
}

int conv_shape_make(struct cuda_net *net, struct shape *shape, uint32_t group,
		    struct backend_error *error)
{
	const struct backend_node *node = net_node(net, net->plan.group[group].node);
	struct conv_shape *s = &shape->conv[group];
	const struct conv *c = &net->conv[group];
	cudnnStatus_t rc;

	if (net->gpu->base.options.flags & BACKEND_NO_LIBRARY || !counts_fit(c, node, shape->n))
		return 0;
	rc = cudnnCreateTensorDescriptor(&s->x);
	if (!rc)
		rc = cudnnCreateTensorDescriptor(&s->y);
	if (!rc)
		rc = cudnnSetTensor4dDescriptor(s->x, CUDNN_TENSOR_NHWC, dnn_type(net),
						(int)shape->n, (int)c->in.c, (int)c->in.h,
						(int)c->in.w);
	if (!rc)
		rc = cudnnSetTensor4dDescriptor(s->y, CUDNN_TENSOR_NHWC, dnn_type(net),
						(int)shape->n, (int)node->out.c, (int)node->out.h,
						(int)node->out.w);
	if (rc)
		return cudnn_failed(net->gpu, rc, "description of a convolution's tensors", error);
	return conv_choose(net, shape, group, error);
}

void conv_shape_free(struct conv_shape *s)
{
	if (s->x)
		cudnnDestroyTensorDescriptor(s->x);
	if (s->y)
		cudnnDestroyTensorDescriptor(s->y);
	s->x = s->y = NULL;
}

/* ---- scratch -------------------------------------------------------------------------------- */

static uint64_t align(uint64_t bytes)
{
	return (bytes + 255) & ~255ull;
}

/* x with its zeros comes first, then the packed filter gradient. */
uint64_t conv_padded_bytes(const struct cuda_net *net, const struct backend_node *node, uint32_t n)
{
	struct backend_shape in = net_node(net, node->in[0])->out;
	const struct backend_window *w = &node->window;

	if (is_symmetric(node, in))
		return 0;
	in.h += w->pad_top + w->pad_bottom;
	in.w += w->pad_left + w->pad_right;
	return align(backend_shape_count(in) * n * net->plan.element);
}

static uint64_t filter_floats(const struct cuda_net *net, const struct backend_node *node)
{
	uint32_t cin = net_node(net, node->in[0])->out.c / node->groups;

	return (uint64_t)node->window.kh * node->window.kw * cin * node->out.c;
}

/* Output pixels are shared out among enough blocks, within bounds of memory. Returns the most
 * chunks that any number of rows is cut into. */
static uint64_t own_chunks(const struct cuda_net *net, const struct backend_node *node, uint32_t n,
			   struct conv_args *a)
{
	uint64_t pixels = (uint64_t)n * node->out.h * node->out.w,
		 floats = filter_floats(net, node);
	uint64_t tiles = (floats / node->out.c + 63) / 64 *
			 ((node->out.c / node->groups + 63) / 64) * node->groups;
	uint64_t chunks = (uint64_t)net->gpu->multiprocessors * 2 / tiles + 1;

	if (chunks > OWN_PARTIAL_MAX / (floats * sizeof(float)))
		chunks = OWN_PARTIAL_MAX / (floats * sizeof(float));
	if (chunks * node->groups > 65535)
		chunks = 65535 / node->groups;
	chunks = chunks ? chunks : 1;
	a->chunk = (pixels + chunks - 1) / chunks;
	a->chunk = a->chunk ? a->chunk : 1;
	a->chunks = (uint32_t)((pixels + a->chunk - 1) / a->chunk);
	return chunks;
}

uint64_t conv_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n)
{
	uint64_t floats = filter_floats(net, node), own, dnn;
	struct conv_args a;

	dnn = conv_padded_bytes(net, node, n);
	if (!net->plan.training)
		return dnn;
	own = own_chunks(net, node, n, &a) * floats * sizeof(float);
	dnn += align(floats * net->plan.element);
	return own > dnn ? own : dnn;
}

/* ---- forward -------------------------------------------------------------------------------- */

static struct conv_args own_args(const struct pass *p, const struct group *g)
{
	const struct backend_node *node = net_node(p->net, g->node);

	return (struct conv_args){
		.x = net_value(p->net, node->in[0]),
		.w = pass_packed(p, node, 0),
		.dy = net_gradient(p->net, g->last),
		.in = image_of(net_node(p->net, node->in[0])->out),
		.out = image_of(node->out),
		.win = window_of(node),
		.n = p->shape->n,
		.groups = node->groups,
	};
}

/* Between an image and the same with zeros around it. */
static int pad_image(const struct pass *p, const struct group *g, const void *from, void *to,
		     bool inverse, bool add)
{
	const struct backend_node *node = net_node(p->net, g->node);
	struct place_args a = {
		.from = from,
		.to = to,
		.in = image_of(net_node(p->net, node->in[0])->out),
		.n = p->shape->n,
		.dy = -(int32_t)node->window.pad_top,
		.dx = -(int32_t)node->window.pad_left,
		.inverse = inverse,
		.add = add,
	};

	a.out = p->net->conv[g - p->net->plan.group].in;
	return cuda_failed(p->net->gpu, launch_place(p->net->stream, p->net->gpu->type, &a),
			   "padding of a convolution's input", p->error);
}

/* x as cuDNN is to see it. */
static int padded_input(const struct pass *p, const struct group *g, const struct conv *c,
			const void **x)
{
	*x = net_value(p->net, net_node(p->net, g->node)->in[0]);
	if (!c->padded)
		return 0;
	if (pad_image(p, g, *x, p->net->scratch, false, false))
		return -EIO;
	*x = p->net->scratch;
	return 0;
}

static bool refused(cudnnStatus_t rc)
{
	return (int)rc / 1000 == CUDNN_STATUS_NOT_SUPPORTED / 1000;
}

/* With bias and activation; a refusal is remembered. */
static int forward_fused(const struct pass *p, const struct group *g, const void *x, void *y,
			 bool *done)
{
	struct cuda_net *net = p->net;
	uint32_t group = (uint32_t)(g - net->plan.group);
	const struct backend_node *node = net_node(net, g->node);
	const struct conv *c = &net->conv[group];
	struct conv_shape *s = &p->shape->conv[group];
	struct algorithm *a = &s->algorithm[FORWARD];
	cudnnStatus_t rc;

	rc = cudnnSetConvolutionMathType(c->conv, a->math);
	if (!rc)
		rc = cudnnConvolutionBiasActivationForward(
			net->gpu->dnn, &one, s->x, x, c->filter, pass_packed(p, node, 0), c->conv,
			(cudnnConvolutionFwdAlgo_t)a->algo, net->workspace, net->workspace_bytes,
			&zero, s->y, y, c->bias, pass_packed(p, node, 1),
			g->act == NONE ? net->gpu->identity : net->gpu->relu, s->y, y);
	*done = !rc;
	if (refused(rc)) {
		a->fused = false;
		return 0;
	}
	return cudnn_failed(net->gpu, rc, "cudnnConvolutionBiasActivationForward", p->error);
}

static int forward_plain(const struct pass *p, const struct group *g, const void *x, void *y,
			 bool *done)
{
	struct cuda_net *net = p->net;
	uint32_t group = (uint32_t)(g - net->plan.group);
	const struct conv *c = &net->conv[group];
	struct conv_shape *s = &p->shape->conv[group];
	struct algorithm *a = &s->algorithm[FORWARD];
	cudnnStatus_t rc;

	rc = cudnnSetConvolutionMathType(c->conv, a->math);
	if (!rc)
		rc = cudnnConvolutionForward(net->gpu->dnn, &one, s->x, x, c->filter,
					     pass_packed(p, net_node(net, g->node), 0), c->conv,
					     (cudnnConvolutionFwdAlgo_t)a->algo, net->workspace,
					     net->workspace_bytes, &zero, s->y, y);
	*done = !rc;
	if (refused(rc)) {
		a->ok = false;
		return 0;
	}
	return cudnn_failed(net->gpu, rc, "cudnnConvolutionForward", p->error);
}

int conv_forward(const struct pass *p, uint32_t group)
{
	struct cuda_net *net = p->net;
	const struct group *g = &net->plan.group[group];
	const struct algorithm *a = &p->shape->conv[group].algorithm[FORWARD];
	void *y = net_value(net, g->pre ? g->node : g->last);
	bool done = false;
	const void *x;
	int rc;

	if (a->ok) {
		rc = padded_input(p, g, &net->conv[group], &x);
		if (rc)
			return rc;
		if (a->fused) {
			rc = forward_fused(p, g, x, y, &done);
			if (rc || done)
				return rc;
		}
		rc = forward_plain(p, g, x, y, &done);
		if (rc)
			return rc;
	}
	if (!done) {
		struct conv_args own = own_args(p, g);

		own.y = y;
		rc = cuda_failed(net->gpu, launch_conv_own(net->stream, net->gpu->type, &own),
				 "convolution", p->error);
		if (rc)
			return rc;
	}
	return linear_finish(p, g, true);
}

/* ---- backward ------------------------------------------------------------------------------- */

static int filter_own(const struct pass *p, const struct group *g, float *to, bool add)
{
	struct cuda_net *net = p->net;
	struct conv_args a = own_args(p, g);
	struct partial_args sum = {.block = net->device_block, .out = to, .add = add};
	int rc;

	own_chunks(net, net_node(net, g->node), p->shape->n, &a);
	a.partial = (float *)net->scratch;
	sum.partial = a.partial;
	sum.chunks = a.chunks;
	sum.count = filter_floats(net, net_node(net, g->node));
	rc = launch_conv_own_filter(net->stream, net->gpu->type, &a);
	if (!rc)
		rc = launch_partial_sum(net->stream, &sum);
	return cuda_failed(net->gpu, rc, "filter gradient of a convolution", p->error);
}

static int filter_dnn(const struct pass *p, const struct group *g, float *to, bool add, bool *done)
{
	struct cuda_net *net = p->net;
	uint32_t group = (uint32_t)(g - net->plan.group);
	const struct backend_node *node = net_node(net, g->node);
	const struct conv *c = &net->conv[group];
	struct conv_shape *s = &p->shape->conv[group];
	struct algorithm *a = &s->algorithm[FILTER];
	void *dw = net->scratch + conv_padded_bytes(net, node, p->shape->n);
	struct unpack_args u = {.block = net->device_block, .from = dw, .to = to, .add = add};
	const void *x;
	cudnnStatus_t rc;

	if (padded_input(p, g, c, &x))
		return -EIO;
	rc = cudnnSetConvolutionMathType(c->conv, a->math);
	if (!rc)
		rc = cudnnConvolutionBackwardFilter(
			net->gpu->dnn, &one, s->x, x, s->y, net_gradient(net, g->last), c->conv,
			(cudnnConvolutionBwdFilterAlgo_t)a->algo, net->workspace,
			net->workspace_bytes, &zero, c->filter, dw);
	*done = !rc;
	if (refused(rc)) {
		a->ok = false;
		return 0;
	}
	if (rc)
		return cudnn_failed(net->gpu, rc, "cudnnConvolutionBackwardFilter", p->error);
	u.cols = node->out.c;
	u.rows = (uint32_t)(filter_floats(net, node) / node->out.c);
	return cuda_failed(net->gpu, launch_unpack(net->stream, net->gpu->type, &u),
			   "filter gradient of a convolution", p->error);
}

static int data_dnn(const struct pass *p, const struct group *g, bool add, bool *done)
{
	struct cuda_net *net = p->net;
	uint32_t group = (uint32_t)(g - net->plan.group);
	const struct backend_node *node = net_node(net, g->node);
	const struct conv *c = &net->conv[group];
	struct conv_shape *s = &p->shape->conv[group];
	struct algorithm *a = &s->algorithm[DATA];
	void *dx = net_gradient(net, node->in[0]), *to = c->padded ? net->scratch : dx;
	cudnnStatus_t rc;

	rc = cudnnSetConvolutionMathType(c->conv, a->math);
	if (!rc)
		rc = cudnnConvolutionBackwardData(
			net->gpu->dnn, &one, c->filter, pass_packed(p, node, 0), s->y,
			net_gradient(net, g->last), c->conv, (cudnnConvolutionBwdDataAlgo_t)a->algo,
			net->workspace, net->workspace_bytes, add && !c->padded ? &one : &zero,
			s->x, to);
	*done = !rc;
	if (refused(rc)) {
		a->ok = false;
		return 0;
	}
	if (rc)
		return cudnn_failed(net->gpu, rc, "cudnnConvolutionBackwardData", p->error);
	return c->padded ? pad_image(p, g, to, dx, true, add) : 0;
}

int conv_backward(const struct pass *p, uint32_t group)
{
	struct cuda_net *net = p->net;
	const struct group *g = &net->plan.group[group];
	const struct edge *edge = &net->plan.edge[g->first_edge];
	const struct algorithm *a = p->shape->conv[group].algorithm;
	bool add, done = false;
	float *to = pass_gradient(p, g, 0, &add);
	int rc = linear_begin_backward(p, g);

	if (!rc && to && a[FILTER].ok)
		rc = filter_dnn(p, g, to, add, &done);
	if (!rc && to && !done)
		rc = filter_own(p, g, to, add);
	done = false;
	if (!rc && edge->want && a[DATA].ok)
		rc = data_dnn(p, g, edge->add, &done);
	if (!rc && edge->want && !done) {
		struct conv_args own = own_args(p, g);

		own.y = net_gradient(net, net_node(net, g->node)->in[0]);
		own.add = edge->add;
		rc = cuda_failed(net->gpu, launch_conv_own_data(net->stream, net->gpu->type, &own),
				 "input gradient of a convolution", p->error);
	}
	return rc;
}
