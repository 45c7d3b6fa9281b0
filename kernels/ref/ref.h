/* SPDX-License-Identifier: MIT */
/*
 * ref.h: the oracle. Every operator as the textbook writes it: plain loops, activations and sums in
 * double, one thread. Other back ends are compared with it; nobody waits for it.
 *
 * One call of a node sees its tensors as struct ref_call says; backward adds to dx and dtensor.
 */
#ifndef REF_H
#define REF_H

#include "../loss.h"
#include "../ops.h"

struct ref_net {
	struct backend_net base;
	struct loss_plan loss;
	double **value;	    /* [node] (max_batch, h, w, c) */
	double **gradient;  /* [node] the same; NULL: inference */
	void **extra;	    /* [node] what forward keeps for backward */
	double *param_grad; /* parameter arena in double */
	uint32_t *last_use; /* [tensor] node whose backward is the last to add to its gradient */
	float *row;	    /* one input row */
	double *output;	    /* one output row */
};

/* One pass over the graph. */
struct ref_pass {
	struct ref_net *net;
	const struct backend_batch *batch;
	const float *param, *stat;
	bool training;
};

struct ref_call {
	const struct ref_pass *pass;
	const struct backend_node *node;
	uint32_t n;		      /* rows */
	struct backend_shape in, out; /* of the first input, of the node */
	const double *x;	      /* (n, in.h, in.w, in.c) */
	double *y;		      /* (n, out.h, out.w, out.c) */
	double *dx;		      /* as x; added to */
	const double *dy;	      /* as y */
	const float *tensor[4];	      /* NULL: none */
	double *dtensor[4];	      /* parameters only; added to */
	float *moving[4];	      /* statistics to update; NULL unless training */
	void *extra;
};

/* Input k of a node with several: its values, its gradient. */
static inline const double *ref_value(const struct ref_call *c, uint32_t k)
{
	return c->pass->net->value[c->node->in[k]];
}
static inline double *ref_gradient(const struct ref_call *c, uint32_t k)
{
	return c->pass->net->gradient[c->node->in[k]];
}
static inline struct backend_shape ref_shape(const struct ref_call *c, uint32_t k)
{
	return c->pass->net->base.graph.node[c->node->in[k]].out;
}

/* Element (i, y, x, 0) of an NHWC tensor. */
static inline uint64_t ref_at(struct backend_shape s, uint32_t i, uint32_t y, uint32_t x)
{
	return (((uint64_t)i * s.h + y) * s.w + x) * s.c;
}

/* Input position of tap k at output o on one axis; -1: in the padding. */
static inline int64_t ref_tap(uint32_t o, uint32_t stride, uint32_t k, uint32_t dilation,
			      uint32_t pad, uint32_t size)
{
	int64_t at = (int64_t)o * stride + (int64_t)k * dilation - pad;

	return at < 0 || at >= size ? -1 : at;
}

struct ref_op {
	void (*forward)(const struct ref_call *call);
	void (*backward)(const struct ref_call *call);
	/* bytes that forward keeps for backward, for n rows; NULL: none */
	uint64_t (*extra)(const struct backend_node *node, uint32_t n);
};

extern const struct ref_op ref_conv2d, ref_depthwise, ref_dense;
extern const struct ref_op ref_maxpool, ref_avgpool, ref_global_avgpool, ref_global_maxpool;
extern const struct ref_op ref_batchnorm, ref_activation, ref_dropout, ref_rescale;
extern const struct ref_op ref_add, ref_concat, ref_pad, ref_upsample, ref_reshape, ref_geometry;

const struct ref_op *ref_op_find(enum backend_op op);

/* step.c */
int ref_gradient_call(struct backend_net *net, const struct backend_batch *batch, float scale,
		      bool accumulate, backend_bucket_fn on_bucket, void *context,
		      struct backend_sums *sums, float *outputs, struct backend_error *error);
int ref_apply(struct backend_net *net, double lr, uint64_t t, struct backend_applied *applied,
	      struct backend_error *error);
int ref_evaluate(struct backend_net *net, const float *param, const float *stat,
		 const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		 struct backend_error *error);

#endif
