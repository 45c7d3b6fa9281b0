/* SPDX-License-Identifier: MIT */
/* net.c: the ref back end's table, and the memory of a net. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ref.h"

static int ref_open(const struct backend_options *options, struct backend **out,
		    struct backend_error *error)
{
	struct backend *backend = calloc(1, sizeof(*backend));

	if (!backend)
		return backend_fail(error, -ENOMEM, "no memory for the back end");
	snprintf(backend->info, sizeof(backend->info), "plain C, sums in double, one thread");
	*out = backend;
	return 0;
}

static void ref_close(struct backend *backend)
{
	free(backend);
}

/* ---- memory ------------------------------------------------------------------------------ */

/* A zeroed block at a multiple of BACKEND_ALIGN; never of size 0. */
static void *block(uint64_t count, size_t size, uint64_t *bytes)
{
	uint64_t n;
	void *p;

	if (__builtin_mul_overflow(count, size, &n) || n > SIZE_MAX - BACKEND_ALIGN)
		return NULL;
	n = (n + BACKEND_ALIGN) & ~(uint64_t)(BACKEND_ALIGN - 1);
	p = aligned_alloc(BACKEND_ALIGN, n);
	if (p)
		memset(p, 0, n);
	*bytes += n;
	return p;
}

static uint64_t extra_bytes(const struct backend_node *node, uint32_t n)
{
	const struct ref_op *op = ref_op_find(node->op);

	return op && op->extra ? op->extra(node, n) : 0;
}

static int ref_estimate(struct backend *backend, const struct backend_graph *graph,
			const struct backend_net_options *options, uint64_t *bytes)
{
	const char *name[BACKEND_SLOTS_MAX];
	uint32_t slots = backend_optimizer_slots(&options->optimizer, name), n = options->max_batch;
	uint64_t sum = graph->stat_floats * 4 + graph->param_floats * 4;

	if (!options->inference)
		sum += graph->param_floats * (4ull * (1 + slots) + 8);
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		const struct backend_node *node = &graph->node[i];

		sum += n * backend_shape_count(node->out) * (options->inference ? 8 : 16);
		sum += extra_bytes(node, n);
	}
	*bytes = sum + backend_shape_count(graph->node[0].out) * 4 +
		 backend_shape_count(graph->node[graph->output].out) * 8;
	return 0;
}

static void ref_free(struct backend_net *base)
{
	struct ref_net *net = (struct ref_net *)base;

	for (uint32_t i = 0; i < base->graph.n_nodes; i++) {
		if (net->value)
			free(net->value[i]);
		if (net->gradient)
			free(net->gradient[i]);
		if (net->extra)
			free(net->extra[i]);
	}
	free(net->value);
	free(net->gradient);
	free(net->extra);
	free(net->param_grad);
	free(net->last_use);
	free(net->row);
	free(net->output);
	for (int a = 0; a < 4; a++)
		free(base->arena[a]);
	backend_net_fini(base);
	free(net);
}

static int allocate_nodes(struct ref_net *net)
{
	const struct backend_graph *graph = &net->base.graph;
	uint32_t n = net->base.options.max_batch;
	uint64_t *bytes = &net->base.bytes;

	net->value = calloc(graph->n_nodes, sizeof(*net->value));
	net->extra = calloc(graph->n_nodes, sizeof(*net->extra));
	if (!net->base.options.inference)
		net->gradient = calloc(graph->n_nodes, sizeof(*net->gradient));
	if (!net->value || !net->extra || (!net->gradient && !net->base.options.inference))
		return -ENOMEM;
	for (uint32_t i = 0; i < graph->n_nodes; i++) {
		uint64_t count = n * backend_shape_count(graph->node[i].out);

		net->value[i] = block(count, sizeof(double), bytes);
		net->extra[i] = block(extra_bytes(&graph->node[i], n), 1, bytes);
		if (net->gradient)
			net->gradient[i] = block(count, sizeof(double), bytes);
		if (!net->value[i] || !net->extra[i] || (net->gradient && !net->gradient[i]))
			return -ENOMEM;
	}
	return 0;
}

static int allocate(struct ref_net *net)
{
	struct backend_net *base = &net->base;
	const struct backend_graph *graph = &base->graph;
	int arenas = base->options.inference ? BACKEND_STAT : BACKEND_SLOT;

	for (int a = 0; a <= arenas; a++) {
		base->arena[a] = block(backend_net_floats(base, a), sizeof(float), &base->bytes);
		if (!base->arena[a])
			return -ENOMEM;
	}
	net->row = block(backend_shape_count(graph->node[0].out), sizeof(float), &base->bytes);
	net->output = block(base->outputs, sizeof(double), &base->bytes);
	net->last_use = block(graph->n_tensors, sizeof(uint32_t), &base->bytes);
	net->param_grad = block(base->options.inference ? 0 : graph->param_floats, sizeof(double),
				&base->bytes);
	if (!net->row || !net->output || !net->last_use || !net->param_grad)
		return -ENOMEM;
	return allocate_nodes(net);
}

/* The lowest node that uses a tensor is the last that adds to its gradient. */
static void find_last_uses(struct ref_net *net)
{
	const struct backend_graph *graph = &net->base.graph;

	memset(net->last_use, 0xff, graph->n_tensors * sizeof(uint32_t));
	for (uint32_t i = graph->n_nodes - 1; i > 0; i--)
		for (int k = 0; k < 4; k++)
			if (graph->node[i].tensor[k] >= 0)
				net->last_use[graph->node[i].tensor[k]] = i;
}

static int ref_compile(struct backend *backend, const struct backend_graph *graph,
		       const struct backend_net_options *options, struct backend_net **out,
		       struct backend_error *error)
{
	struct ref_net *net = calloc(1, sizeof(*net));
	int rc;

	if (!net)
		return backend_fail(error, -ENOMEM, "no memory for the net");
	rc = backend_net_init(&net->base, backend, graph, options, error);
	if (rc) {
		free(net);
		return rc;
	}
	rc = loss_plan(&net->base.graph, &options->loss, &net->loss, error);
	if (!rc && allocate(net))
		rc = backend_fail(error, -ENOMEM, "no memory for a batch of %u rows",
				  options->max_batch);
	if (rc) {
		ref_free(&net->base);
		return rc;
	}
	find_last_uses(net);
	if (!options->inference)
		backend_net_init_slots(&net->base, net->base.arena[BACKEND_SLOT]);
	*out = &net->base;
	return 0;
}

const struct backend_ops backend_ref_ops = {
	.version = BACKEND_OPS_VERSION,
	.name = "ref",
	.open = ref_open,
	.close = ref_close,
	.estimate = ref_estimate,
	.compile = ref_compile,
	.free = ref_free,
	.gradient = ref_gradient_call,
	.apply = ref_apply,
	.evaluate = ref_evaluate,
};
