/* SPDX-License-Identifier: MIT */
/*
 * lower.h: what the operators' files use to turn nodes into ops. Values are graph nodes; a value
 * whose node only passes its input on (Reshape, Dropout in evaluation) is the input's value.
 */
#ifndef CPU_LOWER_H
#define CPU_LOWER_H

#include "cpu.h"

struct lower {
	struct cpu_net *net;
	const struct backend_graph *graph;
	struct cpu_plan *plan;
	struct backend_error *error;
	int rc;		     /* the first error; later calls do nothing */
	uint32_t *alias;     /* [node] whose value this is */
	uint32_t *uses;	     /* [node] live readers of the value */
	uint32_t *relu;	     /* [node] fused ReLU node, 0: none */
	uint32_t *add;	     /* [batch norm] fused Add node, 0: none */
	uint32_t *head;	     /* [node] first node of the fused group that ends here, else itself */
	bool *live;	     /* [node] */
	bool *wants;	     /* [node] the gradient of its value is needed */
	bool *masked;	     /* [node] its reader already applies the ReLU mask to the gradient */
	int32_t *value;	     /* [node] buffer, -1 */
	int32_t *grad;	     /* [node] buffer, -1: nothing there yet */
	int32_t *mask;	     /* [node] buffer that forward leaves for backward */
	uint32_t *tensor_op; /* [tensor] 1 + the last op that writes its gradient; 0: none */
	void **saved;	     /* [node] what forward leaves for backward */
	uint32_t op_room, buffer_room, reduce_room, pack_room;
	struct cpu_op dummy_op; /* handed out after an error */
	struct cpu_reduce dummy_reduce;
	struct cpu_pack dummy_pack;
};

/* Each returns a pointer that holds until the next call; on an error a dummy is returned and
 * l->rc is set. */
struct cpu_op *lower_op(struct lower *l, const struct backend_node *node, enum cpu_mode mode,
			int (*run)(const struct cpu_op *, struct cpu_worker *, uint32_t, uint32_t));
/* Gradient of the tensor = sum over the slots of count floats at sum, after the op just made; run
 * and state may be set to something else. */
struct cpu_reduce *lower_reduce(struct lower *l, int32_t tensor, uint64_t sum, uint64_t count);
struct cpu_pack *lower_pack(struct lower *l, int32_t tensor,
			    int (*run)(const struct cpu_pack *, struct cpu_worker *),
			    const void *state);

/* A new buffer of so many floats a row. */
int32_t lower_buffer(struct lower *l, uint64_t row);
/* Operand k of the op is this buffer (may be -1). */
void lower_use(struct lower *l, struct cpu_op *op, int k, int32_t buffer);

/* Buffer of a node's value, made on the first call. */
int32_t lower_value(struct lower *l, uint32_t node);
/* Buffer of the complete gradient of a node's value; -1: none (nothing downstream). */
int32_t lower_gradient(struct lower *l, uint32_t node);
/* Buffer where a reader of the value puts its part of the gradient; *accumulate: others did. */
int32_t lower_gradient_to(struct lower *l, uint32_t node, bool *accumulate);
bool lower_wants(const struct lower *l, uint32_t node);
bool lower_trainable(const struct lower *l, const struct backend_node *node, int k);
/* The op just made writes the gradient of this tensor. True: another did before, so it adds. */
bool lower_writes(struct lower *l, int32_t tensor);
/* Zeroed memory that lives as long as the plan; class may be NULL. NULL with l->rc set. */
void *lower_state(struct lower *l, size_t bytes, const struct cpu_state_class *class);

/* Node whose value is the output of the group that starts at this node. */
static inline uint32_t lower_end(const struct lower *l, uint32_t node)
{
	uint32_t end = node;

	if (l->add[node])
		end = l->add[node];
	return l->relu[end] ? l->relu[end] : end;
}

static inline const struct backend_node *lower_node(const struct lower *l, uint32_t node)
{
	return &l->graph->node[node];
}

static inline struct backend_shape lower_shape(const struct lower *l, uint32_t node)
{
	return l->graph->node[node].out;
}

/* Mask of a ReLU that ended the group, unless the reader did it: buffer of the gradient before the
 * ReLU. */
int32_t lower_masked(struct lower *l, uint32_t head);

/* Adds the gradient in buffer `from` to that of a value. */
void lower_copy_gradient(struct lower *l, const struct backend_node *node, int32_t from,
			 uint32_t to);

/* Buffer of a value for a reader in backward: made again where that is cheaper than kept. */
int32_t norm_again(struct lower *l, uint32_t node);

/* The operators: forward and backward of the group that starts at `node`. */
typedef void (*lower_fn)(struct lower *l, uint32_t node);
struct lower_operator {
	lower_fn forward, backward;
};
void lower_input(struct lower *l, uint32_t node);
void lower_loss(struct lower *l);
void conv_forward(struct lower *l, uint32_t node);
void conv_backward(struct lower *l, uint32_t node);
/* wino.c: 3x3 convolutions that it does better than conv.c */
bool wino_wanted(const struct lower *l, uint32_t node);
void wino_forward(struct lower *l, uint32_t node);
void wino_backward(struct lower *l, uint32_t node);
void dense_forward(struct lower *l, uint32_t node);
void dense_backward(struct lower *l, uint32_t node);
void pool_forward(struct lower *l, uint32_t node);
void pool_backward(struct lower *l, uint32_t node);
void global_forward(struct lower *l, uint32_t node);
void global_backward(struct lower *l, uint32_t node);
void norm_forward(struct lower *l, uint32_t node);
void norm_backward(struct lower *l, uint32_t node);
void activation_forward(struct lower *l, uint32_t node);
void activation_backward(struct lower *l, uint32_t node);
void dropout_forward(struct lower *l, uint32_t node);
void dropout_backward(struct lower *l, uint32_t node);
void add_forward(struct lower *l, uint32_t node);
void add_backward(struct lower *l, uint32_t node);
void concat_forward(struct lower *l, uint32_t node);
void concat_backward(struct lower *l, uint32_t node);
void pad_forward(struct lower *l, uint32_t node);
void pad_backward(struct lower *l, uint32_t node);
void upsample_forward(struct lower *l, uint32_t node);
void upsample_backward(struct lower *l, uint32_t node);
void rescale_forward(struct lower *l, uint32_t node);
void rescale_backward(struct lower *l, uint32_t node);
void move_forward(struct lower *l, uint32_t node); /* flip, shift, crop */
void move_backward(struct lower *l, uint32_t node);

#endif
