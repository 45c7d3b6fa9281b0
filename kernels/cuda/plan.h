/* SPDX-License-Identifier: MIT */
/*
 * plan.h: what a net does, in which order and in which memory, worked out from the graph alone:
 * nodes fused into groups, who needs which value and gradient until when, buffers laid over each
 * other where their lives do not meet, buckets of the gradient arena. No device is touched.
 */
#ifndef CUDA_PLAN_H
#define CUDA_PLAN_H

#include "../loss.h"
#include "../ops.h"
#include "params.h"

enum group_kind { GROUP_CONV, GROUP_DEPTHWISE, GROUP_DENSE, GROUP_NORM, GROUP_SUM, GROUP_OTHER };

#define NONE UINT32_MAX

/* One step of the forward order: a node, and the nodes that are computed with it. */
struct group {
	enum group_kind kind;
	uint32_t node;	/* the head */
	uint32_t add;	/* GROUP_NORM: the ADD behind it, or NONE */
	uint32_t other; /* the ADD's other input */
	uint32_t act;	/* the ACTIVATION behind it, or NONE */
	uint32_t last;	/* the node whose value comes out */
	bool post;	/* the slope of the activation is taken from the value that comes out */
	bool pre;	/* the value before the activation is kept, as the head's value */
	bool alias;	/* reshape: value (and, same_grad, gradient) are the input's */
	bool same_grad;
	bool backward;	     /* takes part */
	uint32_t extra;	     /* buffer: pooling index; batch norm mean, scale, sums; or NONE */
	uint32_t first_edge; /* in plan->edge, one per input of the head, then `other` */
	bool add_tensor[2];  /* the gradient of tensor 0, 1 is added to an earlier use's */
};

/* Use of a value by a group. */
struct edge {
	bool want; /* its gradient is needed */
	bool add;  /* another group has written to it before */
};

struct buffer {
	uint64_t bytes, offset;
	uint32_t begin, end; /* of its life; begin > end: not used */
};

/* After the backward part of group `after` (n_groups: before all) this range is final. */
struct bucket {
	uint32_t after;
	uint64_t offset, length;
};

struct plan {
	const struct backend_graph *graph;
	struct loss_plan loss;
	uint32_t max_batch;
	size_t element; /* bytes of an activation */
	bool training;
	bool logits_f32; /* the value of loss.node is f32 */
	uint32_t n_groups, n_buffers, n_buckets, n_edges;
	struct group *group;
	struct edge *edge;
	struct buffer *buffer;
	struct bucket *bucket;
	uint32_t *value;      /* [node] buffer or NONE */
	uint32_t *gradient;   /* [node] buffer or NONE */
	uint32_t *maker;      /* [node] group whose `last` it is, or NONE */
	uint8_t *unreached;   /* [tensor] trainable, but no gradient comes to it */
	uint64_t value_bytes; /* of all buffers */
};

struct plan_options {
	uint32_t max_batch;
	size_t element;
	bool training, fuse;
	uint64_t bucket_floats;
};

/* A 1 x 1 convolution without stride, padding and groups is a dense layer. */
bool plan_is_dense(const struct backend_node *node);
/* The activation only tells positive from not positive: max(x, 0). */
bool plan_is_relu(const struct backend_node *node);

int plan_make(const struct backend_graph *graph, const struct backend_loss_config *loss,
	      const struct plan_options *options, struct plan *out, struct backend_error *error);
void plan_free(struct plan *plan);
/* buckets.c: of at least so many floats each, but where neighbours end */
int plan_buckets(struct plan *plan, uint64_t least);
/* buffers.c: offsets of the buffers, and their sum. */
void plan_place(struct plan *plan);

#endif
