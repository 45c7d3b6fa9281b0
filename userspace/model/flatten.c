// SPDX-License-Identifier: MIT
/*
 * flatten.c: the tree of models to one list of layers in Keras' order and one list of calls in
 * topological order. A nested model's InputLayer hands on what the model is called with.
 */
#include <errno.h>
#include <stdlib.h>

#include "internal.h"

#define NO_CALL UINT32_MAX

static int list_layers(struct reader *r, struct model *model, const struct net *net, bool nested)
{
	for (uint32_t i = 0; i < net->n_order; i++) {
		const struct member *m = &net->member[net->order[i]];
		int rc;

		if (m->net) {
			rc = list_layers(r, model, m->net, true);
			if (rc)
				return rc;
			continue;
		}
		/* what Keras' model.layers does not show either */
		if (m->layer->cls == &layer_input && (nested || net->sequential))
			continue;
		m->layer->index = model->n_layers;
		model->layer[model->n_layers++] = m->layer;
	}
	return 0;
}

static int emit_call(struct reader *r, struct model *model, struct layer *layer, bool inference,
		     uint32_t n, const uint32_t *in, uint32_t *out)
{
	struct call *call = &model->call[model->n_calls];

	if (model->n_calls >= MAX_CALLS)
		return jread_error(r, layer->path, "more than %u calls of layers", MAX_CALLS);
	if (layer->calls++ && layer->cls->tensors) {
		r->layer = layer->name;
		return jread_error(r, layer->path,
				   "is called more than once; only layers without weights can be "
				   "shared");
	}
	call->layer = layer;
	call->inference = inference;
	call->previous = layer->calls > 1 ? layer->last_call : model->n_calls;
	layer->last_call = model->n_calls;
	call->n_in = n;
	call->in = arena_array(r->arena, n + 1, sizeof(*call->in));
	if (!call->in)
		return jread_oom(r);
	for (uint32_t i = 0; i < n; i++)
		call->in[i] = in[i];
	*out = model->n_calls++;
	return 0;
}

struct scope {
	const struct net *net;
	uint32_t *base;	  /* first node of each member */
	uint32_t *result; /* call of each node */
	uint32_t *in;
	bool inference; /* the whole model is called so */
};

static int emit_net(struct reader *r, struct model *model, const struct net *net, uint32_t input,
		    bool inference, uint32_t *out);

static int emit_node(struct reader *r, struct model *model, struct scope *s, struct ref ref,
		     uint32_t input)
{
	const struct member *m = &s->net->member[ref.member];
	const struct inbound *node = &m->node[ref.node];
	uint32_t *out = &s->result[s->base[ref.member] + ref.node], n = node->n;
	bool inference = s->inference || node->inference;

	for (uint32_t i = 0; i < n; i++)
		s->in[i] = s->result[s->base[node->ref[i].member] + node->ref[i].node];
	if (ref.member == s->net->input && input != NO_CALL) {
		s->in[0] = input;
		n = 1;
	}
	if (m->net)
		return emit_net(r, model, m->net, s->in[0], inference, out);
	return emit_call(r, model, m->layer, inference, n, s->in, out);
}

static int emit_net(struct reader *r, struct model *model, const struct net *net, uint32_t input,
		    bool inference, uint32_t *out)
{
	struct scope s = {.net = net, .inference = inference};
	size_t nodes = 0, widest = 1;
	int rc = 0;

	s.base = calloc(net->n, sizeof(*s.base));
	for (uint32_t i = 0; s.base && i < net->n; i++) {
		s.base[i] = (uint32_t)nodes;
		nodes += net->member[i].n_nodes;
		for (uint32_t k = 0; k < net->member[i].n_nodes; k++)
			if (net->member[i].node[k].n > widest)
				widest = net->member[i].node[k].n;
	}
	s.result = calloc(nodes + 1, sizeof(*s.result));
	s.in = calloc(widest, sizeof(*s.in));
	if (!s.base || !s.result || !s.in)
		rc = jread_oom(r);
	for (uint32_t i = 0; i < net->n_topo && !rc; i++)
		rc = emit_node(r, model, &s, net->topo[i], input);
	if (!rc)
		*out = s.result[s.base[net->output.member] + net->output.node];
	free(s.base);
	free(s.result);
	free(s.in);
	return rc;
}

/* Uses of layers and their inputs, nested models multiplied out; counting stops past the limits. */
static void count(const struct net *net, uint64_t *calls, uint64_t *inputs)
{
	for (uint32_t i = 0; i < net->n_topo && *calls <= MAX_CALLS && *inputs <= MAX_INPUTS; i++) {
		const struct member *m = &net->member[net->topo[i].member];

		++*calls;
		*inputs += m->node[net->topo[i].node].n;
		if (m->net)
			count(m->net, calls, inputs);
	}
}

int model_flatten(struct reader *r, struct model *model, const struct net *net)
{
	uint64_t calls = 0, inputs = 0;

	count(net, &calls, &inputs);
	if (calls > MAX_CALLS || inputs > MAX_INPUTS)
		return jread_error(r, NULL, "more than %u calls of layers, or %u inputs of them",
				   MAX_CALLS, MAX_INPUTS);
	model->layer = arena_array(r->arena, r->n_layers + 1, sizeof(*model->layer));
	model->call = arena_array(r->arena, calls + 1, sizeof(*model->call));
	if (!model->layer || !model->call)
		return jread_oom(r);
	model->sequential = net->sequential;
	list_layers(r, model, net, false);
	return emit_net(r, model, net, NO_CALL, false, &model->output);
}
