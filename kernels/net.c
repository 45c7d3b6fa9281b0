/* SPDX-License-Identifier: MIT */
/* net.c: the part of a net that every back end has: copies of graph and options, slots. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

uint32_t backend_optimizer_slots(const struct backend_optimizer_config *config,
				 const char *name[BACKEND_SLOTS_MAX])
{
	uint32_t n = 0;

	switch (config->kind) {
	case BACKEND_SGD:
		if (config->momentum > 0.0f)
			name[n++] = "momentum";
		break;
	case BACKEND_ADAM:
	case BACKEND_ADAMW:
		name[n++] = "momentum";
		name[n++] = "velocity";
		if (config->amsgrad)
			name[n++] = "velocity_hat";
		break;
	case BACKEND_RMSPROP:
		name[n++] = "velocity";
		if (config->momentum > 0.0f)
			name[n++] = "momentum";
		if (config->centered)
			name[n++] = "average_gradient";
		break;
	case BACKEND_ADAGRAD:
		name[n++] = "accumulator";
		break;
	case BACKEND_ADADELTA:
		name[n++] = "accumulated_grad";
		name[n++] = "accumulated_delta_var";
		break;
	default:
		break;
	}
	return n;
}

int backend_net_init(struct backend_net *net, struct backend *backend,
		     const struct backend_graph *graph, const struct backend_net_options *options,
		     struct backend_error *error)
{
	uint32_t c = options->input.shape.c;
	float *scaling;
	int rc;

	rc = graph_copy(graph, &net->graph);
	if (rc)
		return backend_fail(error, rc, "no memory for the graph");
	scaling = malloc(2 * (size_t)c * sizeof(float));
	if (!scaling) {
		graph_copy_free(&net->graph);
		return backend_fail(error, -ENOMEM, "no memory for the input scaling");
	}
	memcpy(scaling, options->input.mul, c * sizeof(float));
	memcpy(scaling + c, options->input.add, c * sizeof(float));
	net->memory = scaling;
	net->backend = backend;
	net->options = *options;
	net->options.input.mul = scaling;
	net->options.input.add = scaling + c;
	net->outputs = backend_shape_count(graph->node[graph->output].out);
	if (!options->inference)
		net->n_slots = backend_optimizer_slots(&options->optimizer, net->slot_name);
	return 0;
}

void backend_net_fini(struct backend_net *net)
{
	graph_copy_free(&net->graph);
	free(net->memory);
	net->memory = NULL;
}

uint64_t backend_net_floats(const struct backend_net *net, enum backend_arena arena)
{
	switch (arena) {
	case BACKEND_PARAM:
	case BACKEND_GRAD:
		return net->graph.param_floats;
	case BACKEND_STAT:
		return net->graph.stat_floats;
	case BACKEND_SLOT:
		return net->graph.param_floats * net->n_slots;
	}
	return 0;
}

void backend_net_init_slots(const struct backend_net *net, float *slot)
{
	const struct backend_optimizer_config *config = &net->options.optimizer;

	memset(slot, 0, net->graph.param_floats * net->n_slots * sizeof(float));
	if (config->kind != BACKEND_ADAGRAD)
		return;
	for (uint32_t i = 0; i < net->graph.n_tensors; i++) {
		const struct backend_tensor *t = &net->graph.tensor[i];

		if (t->arena != BACKEND_PARAM)
			continue;
		for (uint64_t k = 0; k < t->count; k++)
			slot[t->offset + k] = config->initial_accumulator;
	}
}
