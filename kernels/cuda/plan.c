/* SPDX-License-Identifier: MIT */
/* plan.c: fusion of nodes into groups, lives of values and gradients (plan.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

bool plan_is_dense(const struct backend_node *node)
{
	const struct backend_window *w = &node->window;

	if (node->op == BACKEND_DENSE)
		return true;
	return node->op == BACKEND_CONV2D && node->groups == 1 && w->kh == 1 && w->kw == 1 &&
	       w->stride_h == 1 && w->stride_w == 1 && !w->pad_top && !w->pad_bottom &&
	       !w->pad_left && !w->pad_right;
}

bool plan_is_relu(const struct backend_node *node)
{
	return node->op == BACKEND_ACTIVATION && node->activation == BACKEND_RELU &&
	       node->alpha == 0.0f && node->threshold == 0.0f && isinf(node->max_value);
}

static bool is_elementwise(const struct backend_node *node)
{
	return node->op == BACKEND_ACTIVATION && node->activation != BACKEND_SOFTMAX &&
	       node->activation != BACKEND_LOG_SOFTMAX;
}

/* ---- groups ------------------------------------------------------------------------------- */

/* What fusing looks at. */
struct view {
	struct plan *plan;
	uint32_t *uses; /* [node] inputs that name it, and the loss */
	uint32_t *user; /* [node] the last node that names it */
	uint32_t *head; /* [node] head of the group it was fused into, or NONE */
};

static enum group_kind kind_of(const struct backend_node *node)
{
	if (plan_is_dense(node))
		return GROUP_DENSE;
	switch (node->op) {
	case BACKEND_CONV2D:
		return GROUP_CONV;
	case BACKEND_DEPTHWISE:
		return GROUP_DEPTHWISE;
	case BACKEND_BATCHNORM:
		return GROUP_NORM;
	case BACKEND_ADD:
		return GROUP_SUM;
	default:
		return GROUP_OTHER;
	}
}

/* The only user of a node, if it may be computed with it. */
static uint32_t only_user(const struct view *v, uint32_t node)
{
	return v->uses[node] == 1 && v->user[node] != NONE && v->head[v->user[node]] == NONE
		       ? v->user[node]
		       : NONE;
}

/* norm + add (+ ReLU): the other addend must be there before the group runs, at the ADD's place. */
static void fuse_add(struct view *v, struct group *g)
{
	const struct backend_graph *graph = v->plan->graph;
	uint32_t add = only_user(v, g->last);
	const struct backend_node *node = add == NONE ? NULL : &graph->node[add];

	if (!node || node->op != BACKEND_ADD || node->n_in != 2 || node->in[0] == node->in[1])
		return;
	g->add = add;
	g->other = node->in[0] == g->last ? node->in[1] : node->in[0];
	g->last = add;
	v->head[add] = g->node;
}

static void fuse_act(struct view *v, struct group *g)
{
	const struct backend_graph *graph = v->plan->graph;
	uint32_t act = only_user(v, g->last);
	const struct backend_node *node = act == NONE ? NULL : &graph->node[act];
	bool relu = node && plan_is_relu(node);

	if (!node || !is_elementwise(node))
		return;
	/* the value before the activation is there for convolutions (kept) and batch norm (computed
	 * again), but not for a sum */
	if ((g->kind == GROUP_SUM || g->add != NONE) && !relu)
		return;
	g->act = act;
	g->last = act;
	v->head[act] = g->node;
	if (g->kind == GROUP_NORM)
		g->post = g->add != NONE;
	else
		g->post = relu;
	g->pre = g->kind != GROUP_NORM && !g->post && v->plan->training;
}

static int compare_last(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	return x->last < y->last ? -1 : x->last > y->last;
}

static void make_groups(struct view *v, bool fuse)
{
	struct plan *p = v->plan;
	const struct backend_graph *graph = p->graph;

	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		struct group *g = &p->group[p->n_groups];

		if (v->head[i] != NONE || (p->loss.skip_output && i == graph->output))
			continue;
		*g = (struct group){.kind = kind_of(&graph->node[i]),
				    .node = i,
				    .add = NONE,
				    .other = NONE,
				    .act = NONE,
				    .last = i,
				    .extra = NONE};
		v->head[i] = i;
		if (fuse && g->kind == GROUP_NORM)
			fuse_add(v, g);
		if (fuse && g->kind != GROUP_OTHER)
			fuse_act(v, g);
		p->n_groups++;
	}
	/* a group runs where its last node stands: all that it needs is before that */
	qsort(p->group, p->n_groups, sizeof(*p->group), compare_last);
}

static int find_groups(struct plan *p, bool fuse)
{
	const struct backend_graph *graph = p->graph;
	uint32_t n = graph->n_nodes;
	struct view v = {.plan = p};

	v.uses = calloc(n, sizeof(*v.uses));
	v.user = malloc(n * sizeof(*v.user));
	v.head = malloc(n * sizeof(*v.head));
	p->group = calloc(n, sizeof(*p->group));
	if (v.uses && v.user && v.head && p->group) {
		memset(v.user, 0xff, n * sizeof(*v.user));
		memset(v.head, 0xff, n * sizeof(*v.head));
		for (uint32_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < graph->node[i].n_in; k++) {
				v.uses[graph->node[i].in[k]]++;
				v.user[graph->node[i].in[k]] = i;
			}
		v.uses[p->loss.node] += 2; /* never inside a group */
		make_groups(&v, fuse);
	}
	free(v.uses);
	free(v.user);
	free(v.head);
	return p->n_groups ? 0 : -ENOMEM;
}

/* ---- what takes part in backward ------------------------------------------------------------ */

static uint32_t inputs_of(const struct plan *p, const struct group *g)
{
	return p->graph->node[g->node].n_in + (g->other != NONE);
}

/* Input k of a group; the last one may be the ADD's other. */
static uint32_t input_of(const struct plan *p, const struct group *g, uint32_t k)
{
	const struct backend_node *node = &p->graph->node[g->node];

	return k < node->n_in ? node->in[k] : g->other;
}

static bool trainable(const struct plan *p, int32_t tensor)
{
	return tensor >= 0 && p->graph->tensor[tensor].arena == BACKEND_PARAM &&
	       p->graph->tensor[tensor].trainable;
}

/* need[v]: something trainable stands at or before the value v. */
static void find_needs(const struct plan *p, uint8_t *need)
{
	for (uint32_t i = 0; i < p->n_groups; i++) {
		const struct group *g = &p->group[i];
		const struct backend_node *node = &p->graph->node[g->node];
		bool any = trainable(p, node->tensor[0]) || trainable(p, node->tensor[1]);

		for (uint32_t k = 0; k < inputs_of(p, g); k++)
			any |= need[input_of(p, g, k)];
		need[g->last] = any;
	}
}

/* Backward order: who writes a gradient first, and who adds. */
static void find_edges(struct plan *p, const uint8_t *need, uint8_t *reached, uint8_t *written)
{
	const struct backend_graph *graph = p->graph;

	reached[p->loss.node] = 1;
	for (uint32_t i = p->n_groups; i-- > 0;) {
		struct group *g = &p->group[i];
		const struct backend_node *node = &graph->node[g->node];

		g->backward = reached[g->last] && need[g->last];
		for (uint32_t k = 0; g->backward && k < inputs_of(p, g); k++) {
			uint32_t from = input_of(p, g, k);
			struct edge *e = &p->edge[g->first_edge + k];

			e->want = need[from];
			e->add = e->want && reached[from];
			reached[from] |= e->want;
		}
		for (int k = 0; g->backward && k < 2; k++) {
			if (!trainable(p, node->tensor[k]))
				continue;
			g->add_tensor[k] = written[node->tensor[k]];
			written[node->tensor[k]] = 1;
		}
	}
	for (uint32_t t = 0; t < graph->n_tensors; t++)
		p->unreached[t] = trainable(p, (int32_t)t) && !written[t];
}

static int find_backward(struct plan *p)
{
	const struct backend_graph *graph = p->graph;
	uint8_t *flags = calloc(2 * (size_t)graph->n_nodes + graph->n_tensors + 1, 1);
	uint32_t edges = 0;

	for (uint32_t i = 0; i < p->n_groups; i++) {
		p->group[i].first_edge = edges;
		edges += inputs_of(p, &p->group[i]);
	}
	p->n_edges = edges;
	p->edge = calloc(edges ? edges : 1, sizeof(*p->edge));
	p->unreached = calloc(graph->n_tensors ? graph->n_tensors : 1, 1);
	if (flags && p->edge && p->unreached && p->training) {
		uint8_t *reached = flags + graph->n_nodes, *written = reached + graph->n_nodes;

		find_needs(p, flags);
		find_edges(p, flags, reached, written);
	}
	free(flags);
	return flags && p->edge && p->unreached ? 0 : -ENOMEM;
}

/* ---- buffers -------------------------------------------------------------------------------- */

static uint32_t new_buffer(struct plan *p, uint64_t bytes)
{
	p->buffer[p->n_buffers] = (struct buffer){.bytes = bytes, .begin = UINT32_MAX};
	return p->n_buffers++;
}

static void live(struct plan *p, uint32_t buffer, uint32_t when)
{
	struct buffer *b = &p->buffer[buffer];

	if (buffer == NONE)
		return;
	if (when < b->begin)
		b->begin = when;
	if (when > b->end)
		b->end = when;
}

static uint64_t row_bytes(const struct plan *p, uint32_t node, size_t element)
{
	return backend_shape_count(p->graph->node[node].out) * element * p->max_batch;
}

/* Bytes that forward keeps for backward. */
static uint64_t extra_bytes(const struct plan *p, const struct group *g)
{
	const struct backend_node *node = &p->graph->node[g->node];
	uint64_t out = backend_shape_count(node->out) * p->max_batch;

	switch (node->op) {
	case BACKEND_MAXPOOL:
		return p->training
			       ? out * (node->window.kh * (uint64_t)node->window.kw > 255 ? 4 : 1)
			       : 0;
	case BACKEND_GLOBAL_MAXPOOL:
		return p->training ? out * sizeof(uint32_t) : 0;
	case BACKEND_BATCHNORM:
		return 4 * (uint64_t)node->out.c * sizeof(float); /* mean, scale, two sums */
	default:
		return 0;
	}
}

static void make_values(struct plan *p)
{
	for (uint32_t i = 0; i < p->n_groups; i++) {
		struct group *g = &p->group[i];
		const struct backend_node *node = &p->graph->node[g->node];
		bool f32 = p->logits_f32 && g->last == p->loss.node;
		uint64_t extra = extra_bytes(p, g);

		p->maker[g->last] = i;
		if (node->op == BACKEND_RESHAPE) {
			g->alias = true;
			p->value[g->last] = p->value[node->in[0]];
		} else {
			p->value[g->last] =
				new_buffer(p, row_bytes(p, g->last, f32 ? 4 : p->element));
		}
		if (g->pre)
			p->value[g->node] = new_buffer(p, row_bytes(p, g->node, p->element));
		if (extra)
			g->extra = new_buffer(p, extra);
	}
}

/* A reshape whose input nobody else reads takes that one's gradient. uses: groups that read. */
static void make_gradients(struct plan *p, const uint32_t *uses)
{
	for (uint32_t i = 0; i < p->n_groups; i++) {
		struct group *g = &p->group[i];
		uint32_t from = g->alias ? p->graph->node[g->node].in[0] : NONE;

		if (!g->backward)
			continue;
		if (g->alias && uses[from] == 1 && from != p->loss.node &&
		    p->gradient[from] != NONE) {
			g->same_grad = true;
			p->gradient[g->last] = p->gradient[from];
			continue;
		}
		p->gradient[g->last] = new_buffer(p, row_bytes(p, g->last, p->element));
	}
}

/* What the backward part of a group reads of the forward pass. */
static void live_backward(struct plan *p, const struct group *g, uint32_t when)
{
	const struct backend_node *node = &p->graph->node[g->node];

	live(p, p->gradient[g->last], when);
	live(p, g->extra, when);
	if (g->post || node->op == BACKEND_ACTIVATION)
		live(p, p->value[g->last], when); /* a softmax reads its output */
	if (g->pre)
		live(p, p->value[g->node], when);
	if (g->kind == GROUP_CONV || g->kind == GROUP_DEPTHWISE || g->kind == GROUP_DENSE ||
	    g->kind == GROUP_NORM || node->op == BACKEND_ACTIVATION)
		live(p, p->value[node->in[0]], when);
	for (uint32_t k = 0; k < inputs_of(p, g); k++)
		if (p->edge[g->first_edge + k].want)
			live(p, p->gradient[input_of(p, g, k)], when);
}

/* Time: forward of group g at g, the loss at n_groups, backward of g at 2 n_groups - g. */
static void find_lives(struct plan *p)
{
	uint32_t n = p->n_groups;

	for (uint32_t i = 0; i < n; i++) {
		const struct group *g = &p->group[i];

		live(p, p->value[g->last], i);
		live(p, g->extra, i);
		if (g->pre)
			live(p, p->value[g->node], i);
		for (uint32_t k = 0; k < inputs_of(p, g); k++)
			live(p, p->value[input_of(p, g, k)], i);
		if (g->backward)
			live_backward(p, g, 2 * n - i);
	}
	live(p, p->value[p->loss.node], n);
	live(p, p->gradient[p->loss.node], n);
}

static int make_buffers(struct plan *p)
{
	const struct backend_graph *graph = p->graph;
	size_t n = graph->n_nodes;
	uint32_t *uses = calloc(n, sizeof(*uses));

	p->buffer = calloc(4 * n, sizeof(*p->buffer));
	p->value = malloc(n * sizeof(*p->value));
	p->gradient = malloc(n * sizeof(*p->gradient));
	p->maker = malloc(n * sizeof(*p->maker));
	if (!uses || !p->buffer || !p->value || !p->gradient || !p->maker) {
		free(uses);
		return -ENOMEM;
	}
	memset(p->value, 0xff, n * sizeof(*p->value));
	memset(p->gradient, 0xff, n * sizeof(*p->gradient));
	memset(p->maker, 0xff, n * sizeof(*p->maker));
	for (uint32_t i = 0; i < p->n_groups; i++)
		for (uint32_t k = 0; k < inputs_of(p, &p->group[i]); k++)
			uses[input_of(p, &p->group[i], k)]++;
	make_values(p);
	if (p->training)
		make_gradients(p, uses);
	/* the loss always has a place for its gradient */
	if (p->training && p->gradient[p->loss.node] == NONE)
		p->gradient[p->loss.node] = new_buffer(p, row_bytes(p, p->loss.node, p->element));
	free(uses);
	find_lives(p);
	plan_place(p);
	return 0;
}

/* ---- plan ----------------------------------------------------------------------------------- */

int plan_make(const struct backend_graph *graph, const struct backend_loss_config *loss,
	      const struct plan_options *options, struct plan *p, struct backend_error *error)
{
	int rc;

	memset(p, 0, sizeof(*p));
	p->graph = graph;
	p->max_batch = options->max_batch;
	p->element = options->element;
	p->training = options->training;
	rc = loss_plan(graph, loss, &p->loss, error);
	if (rc)
		return rc;
	p->logits_f32 = p->element != sizeof(float) && plan_is_dense(&graph->node[p->loss.node]);
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		for (uint32_t k = 0; k < graph->node[i].n_in; k++)
			if (graph->node[i].in[k] == p->loss.node &&
			    !(p->loss.skip_output && i == graph->output))
				p->logits_f32 = false;
	rc = find_groups(p, options->fuse);
	if (!rc)
		rc = find_backward(p);
	if (!rc)
		rc = make_buffers(p);
	if (!rc && p->training)
		rc = plan_buckets(p, options->bucket_floats);
	if (rc) {
		plan_free(p);
		return backend_fail(error, rc, "no memory for the plan of the network");
	}
	return 0;
}

void plan_free(struct plan *p)
{
	free(p->group);
	free(p->edge);
	free(p->buffer);
	free(p->bucket);
	free(p->value);
	free(p->gradient);
	free(p->maker);
	free(p->unreached);
	memset(p, 0, sizeof(*p));
}
