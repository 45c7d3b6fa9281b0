// SPDX-License-Identifier: MIT
/*
 * order.c: the order of layers in a model, and of calls. Weights are stored in the order of Keras'
 * model.layers: by depth (the longest way to the output, farthest first), within one depth in the
 * order in which a depth-first walk from the output meets them. Layers that do not lead to the
 * output are no part of the model, as in Keras.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"

struct frame {
	uint32_t node, next; /* next input to look at */
};

struct walk {
	struct reader *r;
	struct net *net;
	uint32_t n_nodes;
	uint32_t *base;	 /* first node of each member */
	uint32_t *owner; /* member of each node */
	uint8_t *state;	 /* of nodes: 0 new, 1 in progress, 2 done */
	uint32_t *depth; /* of nodes */
	uint32_t *met;	 /* of members: order of the first visit plus one */
	uint32_t *far;	 /* of members: their depth */
	struct frame *stack;
	uint32_t n_met;
};

static const struct inbound *inbound(const struct walk *w, uint32_t node)
{
	uint32_t m = w->owner[node];

	return &w->net->member[m].node[node - w->base[m]];
}

static uint32_t source(const struct walk *w, uint32_t node, uint32_t i)
{
	struct ref ref = inbound(w, node)->ref[i];

	return w->base[ref.member] + ref.node;
}

static int prepare(struct walk *w)
{
	struct net *net = w->net;
	uint64_t nodes = 0;

	for (uint32_t i = 0; i < net->n; i++)
		nodes += net->member[i].n_nodes;
	if (nodes > MAX_CALLS)
		return jread_error(w->r, net->path, "more than %u calls of layers", MAX_CALLS);
	w->n_nodes = (uint32_t)nodes;
	w->base = calloc(net->n, sizeof(*w->base));
	w->met = calloc(net->n, sizeof(*w->met));
	w->far = calloc(net->n, sizeof(*w->far));
	w->owner = calloc(nodes + 1, sizeof(*w->owner));
	w->state = calloc(nodes + 1, sizeof(*w->state));
	w->depth = calloc(nodes + 1, sizeof(*w->depth));
	w->stack = calloc(nodes + 1, sizeof(*w->stack));
	net->topo = arena_array(w->r->arena, nodes + 1, sizeof(*net->topo));
	net->order = arena_array(w->r->arena, net->n, sizeof(*net->order));
	if (!w->base || !w->met || !w->far || !w->owner || !w->state || !w->depth || !w->stack ||
	    !net->topo || !net->order)
		return jread_oom(w->r);
	nodes = 0;
	for (uint32_t i = 0; i < net->n; i++) {
		w->base[i] = (uint32_t)nodes;
		for (uint32_t k = 0; k < net->member[i].n_nodes; k++)
			w->owner[nodes++] = i;
	}
	return 0;
}

static void enter(struct walk *w, uint32_t *top, uint32_t node)
{
	w->state[node] = 1;
	if (!w->met[w->owner[node]])
		w->met[w->owner[node]] = ++w->n_met;
	w->stack[(*top)++] = (struct frame){node, 0};
}

/* Depth first, without recursion: fills topo with the inputs of every node before it. */
static int visit(struct walk *w)
{
	struct net *net = w->net;
	uint32_t top = 0;

	enter(w, &top, w->base[net->output.member] + net->output.node);
	while (top) {
		struct frame *f = &w->stack[top - 1];
		uint32_t m = w->owner[f->node], from;

		if (f->next == inbound(w, f->node)->n) {
			w->state[f->node] = 2;
			net->topo[net->n_topo++] = (struct ref){m, f->node - w->base[m]};
			top--;
			continue;
		}
		from = source(w, f->node, f->next++);
		if (w->state[from] == 1)
			return jread_error(w->r, net->member[m].path,
					   "layers '%.100s' and '%.100s' are part of a cycle",
					   net->member[m].name, net->member[w->owner[from]].name);
		if (w->state[from] == 0)
			enter(w, &top, from);
	}
	return 0;
}

static void depths(struct walk *w)
{
	for (uint32_t i = w->net->n_topo; i--;) {
		struct ref ref = w->net->topo[i];
		uint32_t node = w->base[ref.member] + ref.node;

		/* a shared layer takes its greatest depth along, as Keras does */
		if (w->depth[node] < w->far[ref.member])
			w->depth[node] = w->far[ref.member];
		w->far[ref.member] = w->depth[node];
		for (uint32_t k = 0; k < inbound(w, node)->n; k++) {
			uint32_t from = source(w, node, k);

			if (w->depth[from] < w->depth[node] + 1)
				w->depth[from] = w->depth[node] + 1;
		}
	}
}

static int compare(const void *a, const void *b, void *context)
{
	const struct walk *w = context;
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	if (w->far[x] != w->far[y])
		return w->far[x] > w->far[y] ? -1 : 1;
	return w->met[x] < w->met[y] ? -1 : w->met[x] > w->met[y];
}

static int check_inputs(const struct walk *w, uint32_t i)
{
	const struct member *m = &w->net->member[i];
	bool merges = m->layer && m->layer->cls->merges;

	for (uint32_t k = 0; k < m->n_nodes; k++) {
		uint32_t n = m->node[k].n;

		if (w->state[w->base[i] + k] == 2 && (merges ? n < 2 : n != 1))
			return jread_error(w->r, m->path, "layer '%.100s' takes %s, not %u",
					   m->name, merges ? "two or more inputs" : "one input", n);
	}
	return 0;
}

static int check(const struct walk *w)
{
	const struct net *net = w->net;
	uint32_t second = net->input;

	for (uint32_t i = 0; i < net->n; i++) {
		const struct layer *layer = net->member[i].layer;
		bool input = layer && layer->cls == &layer_input;
		int rc = w->met[i] && !input ? check_inputs(w, i) : 0;

		if (rc)
			return rc;
		if (w->met[i] && input && i != net->input)
			second = i;
	}
	if (!w->met[net->input])
		return jread_error(w->r, net->member[net->input].path,
				   "the input does not lead to the output");
	if (second != net->input)
		return jread_error(w->r, net->member[second].path,
				   "a second input, '%.100s'; models with one input are supported",
				   net->member[second].name);
	return 0;
}

int net_order(struct reader *r, struct net *net)
{
	struct walk w = {.r = r, .net = net};
	int rc = prepare(&w);

	if (!rc)
		rc = visit(&w);
	if (!rc)
		rc = check(&w);
	if (!rc) {
		depths(&w);
		for (uint32_t i = 0; i < net->n; i++)
			if (w.met[i])
				net->order[net->n_order++] = i;
		qsort_r(net->order, net->n_order, sizeof(*net->order), compare, &w);
	}
	free(w.base);
	free(w.owner);
	free(w.state);
	free(w.depth);
	free(w.met);
	free(w.far);
	free(w.stack);
	return rc;
}
