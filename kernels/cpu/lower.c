/* SPDX-License-Identifier: MIT */
/*
 * lower.c: graph -> list of ops. First the graph is looked over: what is live, who reads what,
 * whose gradient is wanted, which nodes are done in one pass (convolution, dense, batch norm with
 * the ReLU or the sum that follows). Then every group is lowered forward, and, for training,
 * backward in reverse order, each at the place of its last node.
 */
#include <math.h>
#include <stdlib.h>

#include "lower.h"

static const struct lower_operator lower_table[BACKEND_OP_COUNT] = {
	[BACKEND_CONV2D] = {conv_forward, conv_backward},
	[BACKEND_DEPTHWISE] = {conv_forward, conv_backward},
	[BACKEND_DENSE] = {dense_forward, dense_backward},
	[BACKEND_MAXPOOL] = {pool_forward, pool_backward},
	[BACKEND_AVGPOOL] = {pool_forward, pool_backward},
	[BACKEND_GLOBAL_AVGPOOL] = {global_forward, global_backward},
	[BACKEND_GLOBAL_MAXPOOL] = {global_forward, global_backward},
	[BACKEND_BATCHNORM] = {norm_forward, norm_backward},
	[BACKEND_ACTIVATION] = {activation_forward, activation_backward},
	[BACKEND_ADD] = {add_forward, add_backward},
	[BACKEND_CONCAT] = {concat_forward, concat_backward},
	[BACKEND_PAD] = {pad_forward, pad_backward},
	[BACKEND_UPSAMPLE] = {upsample_forward, upsample_backward},
	[BACKEND_DROPOUT] = {dropout_forward, dropout_backward},
	[BACKEND_RESCALE] = {rescale_forward, rescale_backward},
	[BACKEND_FLIP] = {move_forward, move_backward},
	[BACKEND_SHIFT] = {move_forward, move_backward},
	[BACKEND_CROP] = {move_forward, move_backward},
};

/* ---- looking the graph over -------------------------------------------------------------- */

static bool plain_relu(const struct backend_node *n)
{
	return n->op == BACKEND_ACTIVATION && n->activation == BACKEND_RELU && n->alpha == 0.0f &&
	       n->threshold == 0.0f && isinf(n->max_value) && n->max_value > 0.0f;
}

/* The node's value is its input's. */
static bool passes(const struct lower *l, const struct backend_node *n)
{
	switch (n->op) {
	case BACKEND_RESHAPE:
		return true;
	case BACKEND_ACTIVATION:
		return n->activation == BACKEND_LINEAR;
	case BACKEND_DROPOUT:
		return !l->plan->training || n->rate == 0.0f;
	case BACKEND_FLIP:
	case BACKEND_SHIFT:
		return !l->plan->training;
	default:
		return false;
	}
}

static bool has_trainable(const struct lower *l, const struct backend_node *n)
{
	for (int k = 0; k < 4; k++)
		if (lower_trainable(l, n, k))
			return true;
	return false;
}

/* live, alias, wants, uses */
static void lower_look(struct lower *l, uint32_t root)
{
	const struct backend_graph *g = l->graph;

	l->live[root] = true;
	for (uint32_t i = g->n_nodes; i-- > 0;)
		for (uint32_t k = 0; l->live[i] && k < g->node[i].n_in; k++)
			l->live[g->node[i].in[k]] = true;
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		const struct backend_node *n = &g->node[i];

		l->alias[i] = i;
		l->head[i] = i;
		l->value[i] = l->grad[i] = -1;
		if (!l->live[i])
			continue;
		if (n->n_in && passes(l, n)) {
			l->alias[i] = l->alias[n->in[0]];
			continue;
		}
		l->wants[i] = l->plan->training && has_trainable(l, n);
		for (uint32_t k = 0; k < n->n_in; k++) {
			l->uses[l->alias[n->in[k]]]++;
			l->wants[i] = l->wants[i] || l->wants[l->alias[n->in[k]]];
		}
	}
	l->uses[l->alias[root]]++;
}

/* The only reader of node i's value is this node's value itself, not a Reshape of it. */
static bool only_reader(const struct lower *l, uint32_t i, const struct backend_node *reader)
{
	for (uint32_t k = 0; k < reader->n_in; k++)
		if (l->alias[reader->in[k]] == i)
			return l->uses[i] == 1;
	return false;
}

/* Fused groups: {conv, dense, batch norm, add} + ReLU, batch norm + add (+ ReLU). */
static void lower_fuse(struct lower *l)
{
	const struct backend_graph *g = l->graph;

	for (uint32_t i = 0; i < g->n_nodes; i++) {
		const struct backend_node *n = &g->node[i];

		if (!l->live[i] || l->alias[i] != i || n->op != BACKEND_ADD || n->n_in != 2 ||
		    !l->plan->training)
			continue;
		for (uint32_t k = 2; k-- > 0;) {
			uint32_t bn = l->alias[n->in[k]];

			if (g->node[bn].op != BACKEND_BATCHNORM || g->node[bn].frozen ||
			    l->uses[bn] != 1 || l->alias[n->in[0]] == l->alias[n->in[1]])
				continue;
			l->add[bn] = i;
			l->head[i] = bn;
			break;
		}
	}
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		const struct backend_node *n = &g->node[i];
		uint32_t from;

		if (!l->live[i] || l->alias[i] != i || !plain_relu(n))
			continue;
		from = l->alias[n->in[0]];
		if (!only_reader(l, from, n))
			continue;
		switch (g->node[from].op) {
		case BACKEND_CONV2D:
		case BACKEND_DEPTHWISE:
		case BACKEND_DENSE:
		case BACKEND_BATCHNORM:
		case BACKEND_ADD:
			l->relu[from] = i;
			l->head[i] = l->head[from];
			break;
		default:
			break;
		}
	}
	/* max pooling masks at its own, smaller resolution */
	for (uint32_t i = 0; i < g->n_nodes; i++) {
		const struct backend_node *n = &g->node[i];
		uint32_t from;

		if (!l->live[i] || n->op != BACKEND_MAXPOOL)
			continue;
		from = l->alias[n->in[0]];
		if (l->uses[from] == 1 && l->head[from] != from && plain_relu(&g->node[from]) &&
		    g->node[l->head[from]].op != BACKEND_BATCHNORM)
			l->masked[from] = true;
	}
}

/* Node i starts a group whose place is elsewhere. */
static bool lower_is_inner(const struct lower *l, uint32_t i)
{
	return l->relu[i] || l->add[i];
}

/* ---- services for the operators ---------------------------------------------------------- */

/* Room for one more; on failure l->rc is set and the array stays. */
static bool lower_room(struct lower *l, void **array, uint32_t used, uint32_t *room, size_t size)
{
	void *more;

	if (l->rc)
		return false;
	if (used < *room)
		return true;
	more = reallocarray(*array, *room ? *room * 2 : 64, size);
	if (!more) {
		l->rc = backend_fail(l->error, -ENOMEM, "no memory to compile the network");
		return false;
	}
	*array = more;
	*room = *room ? *room * 2 : 64;
	return true;
}

struct cpu_op *lower_op(struct lower *l, const struct backend_node *node, enum cpu_mode mode,
			int (*run)(const struct cpu_op *, struct cpu_worker *, uint32_t, uint32_t))
{
	struct cpu_plan *p = l->plan;
	struct cpu_op *op = &l->dummy_op;

	if (lower_room(l, (void **)&p->op, p->n_ops, &l->op_room, sizeof(*p->op)))
		op = &p->op[p->n_ops++];
	*op = (struct cpu_op){.run = run, .node = node, .mode = mode};
	for (int k = 0; k < CPU_OPERANDS; k++)
		op->buf[k] = -1;
	op->share_to = op->share_of = -1;
	if (node && node->n_in)
		op->in = l->graph->node[node->in[0]].out;
	return op;
}

static int lower_reduce_sum(const struct cpu_reduce *r, struct cpu_worker *w)
{
	const struct cpu_net *net = w->net;
	float *out = net->base.arena[BACKEND_GRAD] + net->base.graph.tensor[r->tensor].offset;
	bool add = r->again || net->run.accumulate;

	for (uint32_t t = 0; t < w->count; t++) {
		if (!cpu_has_rows(w, t))
			continue;
		if (add)
			cpu_loops_of(w)->add(out, net->worker[t].sum + r->sum, r->count);
		else
			memcpy(out, net->worker[t].sum + r->sum, r->count * sizeof(float));
		add = true;
	}
	return 0;
}

bool lower_writes(struct lower *l, int32_t tensor)
{
	bool again = l->tensor_op[tensor] != 0;

	l->tensor_op[tensor] = l->plan->n_ops;
	return again;
}

struct cpu_reduce *lower_reduce(struct lower *l, int32_t tensor, uint64_t sum, uint64_t count)
{
	struct cpu_plan *p = l->plan;
	struct cpu_reduce *r = &l->dummy_reduce;

	if (lower_room(l, (void **)&p->reduce, p->n_reduces, &l->reduce_room, sizeof(*p->reduce)))
		r = &p->reduce[p->n_reduces++];
	*r = (struct cpu_reduce){
		.run = lower_reduce_sum,
		.tensor = (uint32_t)tensor,
		.op = p->n_ops - 1,
		.sum = sum,
		.count = count,
		.again = lower_writes(l, tensor),
	};
	return r;
}

struct cpu_pack *lower_pack(struct lower *l, int32_t tensor,
			    int (*run)(const struct cpu_pack *, struct cpu_worker *),
			    const void *state)
{
	struct cpu_plan *p = l->plan;
	struct cpu_pack *pack = &l->dummy_pack;

	if (lower_room(l, (void **)&p->pack, p->n_packs, &l->pack_room, sizeof(*p->pack)))
		pack = &p->pack[p->n_packs++];
	*pack = (struct cpu_pack){.run = run, .state = state, .tensor = (uint32_t)tensor};
	return pack;
}

int32_t lower_buffer(struct lower *l, uint64_t row)
{
	struct cpu_plan *p = l->plan;

	if (!lower_room(l, (void **)&p->buffer, p->n_buffers, &l->buffer_room, sizeof(*p->buffer)))
		return -1;
	p->buffer[p->n_buffers] =
		(struct cpu_buffer){.row = row, .first = -1, .last = -1, .same = -1};
	return (int32_t)p->n_buffers++;
}

void lower_use(struct lower *l, struct cpu_op *op, int k, int32_t buffer)
{
	struct cpu_buffer *b;

	op->buf[k] = buffer;
	if (buffer < 0 || l->rc)
		return;
	b = &l->plan->buffer[buffer];
	b->last = (int32_t)(op - l->plan->op);
	if (b->first < 0)
		b->first = b->last;
}

int32_t lower_value(struct lower *l, uint32_t node)
{
	uint32_t v = l->alias[node];

	if (l->value[v] < 0)
		l->value[v] = lower_buffer(l, backend_shape_count(lower_shape(l, v)));
	return l->value[v];
}

int32_t lower_gradient(struct lower *l, uint32_t node)
{
	return l->grad[l->alias[node]];
}

int32_t lower_gradient_to(struct lower *l, uint32_t node, bool *accumulate)
{
	uint32_t v = l->alias[node];

	*accumulate = l->grad[v] >= 0;
	if (l->grad[v] < 0)
		l->grad[v] = lower_buffer(l, backend_shape_count(lower_shape(l, v)));
	return l->grad[v];
}

bool lower_wants(const struct lower *l, uint32_t node)
{
	return l->wants[l->alias[node]];
}

bool lower_trainable(const struct lower *l, const struct backend_node *node, int k)
{
	int32_t t = node->tensor[k];

	return t >= 0 && l->graph->tensor[t].arena == BACKEND_PARAM &&
	       l->graph->tensor[t].trainable;
}

void *lower_state(struct lower *l, size_t bytes, const struct cpu_state_class *class)
{
	struct cpu_owned *owned;

	if (l->rc)
		return NULL;
	owned = calloc(1, sizeof(*owned) + bytes);
	if (!owned) {
		l->rc = backend_fail(l->error, -ENOMEM, "no memory to compile the network");
		return NULL;
	}
	owned->class = class;
	owned->state = owned + 1;
	owned->next = l->plan->owned;
	l->plan->owned = owned;
	return owned->state;
}

static int mask_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;

	cpu_loops_of(w)->mask(cpu_at(w, op->buf[0], row), cpu_at(w, op->buf[1], row),
			      cpu_at(w, op->buf[2], row), count);
	return 0;
}

int32_t lower_masked(struct lower *l, uint32_t head)
{
	uint32_t end = lower_end(l, head);
	int32_t from = lower_gradient(l, end), to;
	struct cpu_op *op;

	if (from < 0 || end == head || l->masked[end] ||
	    lower_node(l, end)->op != BACKEND_ACTIVATION)
		return from;
	to = lower_buffer(l, backend_shape_count(lower_shape(l, end)));
	op = lower_op(l, lower_node(l, end), CPU_ROWS, mask_run);
	lower_use(l, op, 0, to);
	lower_use(l, op, 1, from);
	lower_use(l, op, 2, lower_value(l, end));
	op->share_to = 0;
	op->share_of = 1;
	return to;
}

/* ---- the whole --------------------------------------------------------------------------- */

static int lower_alloc(struct lower *l)
{
	size_t n = l->graph->n_nodes, t = l->graph->n_tensors + 1;

	l->alias = calloc(n, sizeof(*l->alias));
	l->uses = calloc(n, sizeof(*l->uses));
	l->relu = calloc(n, sizeof(*l->relu));
	l->add = calloc(n, sizeof(*l->add));
	l->head = calloc(n, sizeof(*l->head));
	l->live = calloc(n, sizeof(*l->live));
	l->wants = calloc(n, sizeof(*l->wants));
	l->masked = calloc(n, sizeof(*l->masked));
	l->value = calloc(n, sizeof(*l->value));
	l->grad = calloc(n, sizeof(*l->grad));
	l->mask = calloc(n, sizeof(*l->mask));
	l->saved = calloc(n, sizeof(*l->saved));
	l->tensor_op = calloc(t, sizeof(*l->tensor_op));
	if (l->alias && l->uses && l->relu && l->add && l->head && l->live && l->wants &&
	    l->masked && l->value && l->grad && l->mask && l->saved && l->tensor_op)
		return 0;
	return backend_fail(l->error, -ENOMEM, "no memory to compile the network");
}

static void lower_release(struct lower *l)
{
	free(l->alias);
	free(l->uses);
	free(l->relu);
	free(l->add);
	free(l->head);
	free(l->live);
	free(l->wants);
	free(l->masked);
	free(l->value);
	free(l->grad);
	free(l->mask);
	free(l->saved);
	free(l->tensor_op);
}

static void lower_all(struct lower *l)
{
	const struct backend_graph *g = l->graph;

	lower_input(l, 0);
	for (uint32_t i = 1; i < g->n_nodes && !l->rc; i++)
		if (l->live[i] && l->alias[i] == i && !lower_is_inner(l, i) && g->node[i].n_in)
			lower_table[g->node[l->head[i]].op].forward(l, l->head[i]);
	lower_loss(l);
	for (uint32_t i = g->n_nodes; l->plan->training && i-- > 1 && !l->rc;)
		if (l->live[i] && l->alias[i] == i && !lower_is_inner(l, i) && l->wants[i] &&
		    l->grad[i] >= 0)
			lower_table[g->node[l->head[i]].op].backward(l, l->head[i]);
}

int cpu_lower(struct cpu_net *net, struct cpu_plan *plan, struct backend_error *error)
{
	struct lower l = {.net = net, .graph = &net->base.graph, .plan = plan, .error = error};
	uint32_t root = net->loss.skip_output ? net->loss.node : net->base.graph.output;

	l.rc = lower_alloc(&l);
	if (!l.rc) {
		lower_look(&l, root);
		lower_fuse(&l);
		lower_all(&l);
	}
	if (!l.rc && plan->training)
		l.rc = cpu_plan_tensors(plan, l.graph, l.tensor_op, error);
	lower_release(&l);
	return l.rc;
}
