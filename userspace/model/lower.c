// SPDX-License-Identifier: MIT
/*
 * lower.c: calls to the nodes and tensors of the compute seam. Tensors stand in the order of Keras'
 * get_weights: layer by layer in the order of model.layers, trainable ones first, a batch norm's
 * statistics in their layer's place.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "internal.h"

#define NODES_PER_CALL 4u /* separable convolution with Keras 2's hard_sigmoid */

struct lower {
	struct reader *r;
	struct model *model;
	struct backend_node *node;
	uint32_t n_nodes;
	struct backend_tensor *tensor;
	struct init *init;
	uint32_t n_tensors;
	uint64_t parameters;
};

struct backend_shape shape_lower(const struct shape *s)
{
	if (s->rank == 3)
		return (struct backend_shape){s->dim[0], s->dim[1], s->dim[2]};
	if (s->rank == 2)
		return (struct backend_shape){1, s->dim[0], s->dim[1]};
	return (struct backend_shape){1, 1, s->dim[0]};
}

struct reader *lower_reader(const struct lower *lower)
{
	return lower->r;
}

int lower_fail(struct lower *lower)
{
	return jread_oom(lower->r);
}

uint32_t lower_last(const struct lower *lower)
{
	return lower->n_nodes - 1;
}

const struct call *lower_call(const struct lower *lower, uint32_t call)
{
	return &lower->model->call[call];
}

struct backend_node *lower_node(struct lower *lower, const struct layer *layer, enum backend_op op,
				uint32_t in, struct backend_shape out)
{
	struct backend_node *node = &lower->node[lower->n_nodes];

	node->op = op;
	if (op != BACKEND_INPUT) {
		uint32_t *list = arena_alloc(lower->r->arena, sizeof(*list));

		if (!list)
			return NULL;
		*list = in;
		node->in = list;
		node->n_in = 1;
	}
	lower->n_nodes++;
	node->out = out;
	for (int i = 0; i < 4; i++)
		node->tensor[i] = -1;
	node->max_value = INFINITY;
	node->layer = layer->index;
	snprintf(node->name, sizeof(node->name), "%s", layer->name);
	return node;
}

int lower_activation(struct lower *lower, const struct layer *layer, const struct activation *a,
		     uint32_t *node)
{
	struct backend_shape shape = lower->node[*node].out;
	struct backend_node *n;

	if (a->kind == BACKEND_LINEAR)
		return 0;
	if (a->keras2_hard_sigmoid) { /* clip(.2 x + .5, 0, 1) */
		n = lower_node(lower, layer, BACKEND_RESCALE, *node, shape);
		if (!n)
			return lower_fail(lower);
		n->scale1 = 0.2f;
		n->offset1 = 0.5f;
		*node = lower_last(lower);
	}
	n = lower_node(lower, layer, BACKEND_ACTIVATION, *node, shape);
	if (!n)
		return lower_fail(lower);
	n->activation = a->keras2_hard_sigmoid ? BACKEND_RELU : a->kind;
	n->alpha = a->alpha;
	n->max_value = a->keras2_hard_sigmoid ? 1 : a->max_value;
	n->threshold = a->threshold;
	*node = lower_last(lower);
	return 0;
}

int lower_tensor(struct lower *lower, struct layer *layer, int slot, const char *name,
		 uint32_t rank, const uint32_t *dim, bool trained)
{
	struct backend_tensor *t = &lower->tensor[lower->n_tensors];
	uint64_t count = 1;

	for (uint32_t i = 0; i < rank; i++)
		if (__builtin_mul_overflow(count, dim[i], &count))
			count = UINT64_MAX;
	if (count > MODEL_MAX_PARAMETERS || lower->parameters + count > MODEL_MAX_PARAMETERS) {
		lower->r->layer = layer->name;
		return jread_error(lower->r, layer->path, "the model has more than %llu parameters",
				   MODEL_MAX_PARAMETERS);
	}
	lower->parameters += count;
	layer->parameters += count;
	snprintf(t->name, sizeof(t->name), "%s/%s", layer->name, name);
	t->arena = trained ? BACKEND_PARAM : BACKEND_STAT;
	t->trainable = t->decay = trained && layer->trainable;
	t->rank = rank;
	memcpy(t->dim, dim, rank * sizeof(*dim));
	if (t->trainable) { /* Keras adds no penalty for frozen weights */
		t->l1 = layer->regularizer[slot].l1;
		t->l2 = layer->regularizer[slot].l2;
	}
	lower->init[lower->n_tensors] = layer->init[slot];
	layer->tensor[slot] = (int32_t)lower->n_tensors++;
	if (t->trainable)
		lower->model->info.trainable += count;
	else
		lower->model->info.frozen += count;
	return 0;
}

static int lower_tensors(struct lower *lower)
{
	struct model *model = lower->model;
	size_t most = (size_t)model->n_layers * LAYER_TENSORS + 1;

	lower->tensor = arena_array(lower->r->arena, most, sizeof(*lower->tensor));
	lower->init = arena_array(lower->r->arena, most, sizeof(*lower->init));
	if (!lower->tensor || !lower->init)
		return lower_fail(lower);
	/* in the order of layers, not of calls; each layer with weights has one call */
	for (uint32_t i = 0; i < model->n_calls; i++)
		model->call[i].layer->parameters = 0;
	for (uint32_t i = 0; i < model->n_layers; i++) {
		struct layer *layer = model->layer[i];
		int rc = layer->cls->tensors ? layer->cls->tensors(lower, layer, &layer->in) : 0;

		if (rc)
			return rc;
	}
	return 0;
}

/* The rows as they lie, then folded to what the architecture declares. */
static int lower_first(struct lower *lower)
{
	struct call *call = &lower->model->call[0];
	struct backend_shape want = shape_lower(&call->out), row = lower->model->input;
	struct layer *layer = call->layer;

	if (!lower_node(lower, layer, BACKEND_INPUT, 0, row))
		return lower_fail(lower);
	if ((row.h != want.h || row.w != want.w || row.c != want.c) &&
	    !lower_node(lower, layer, BACKEND_RESHAPE, 0, want))
		return lower_fail(lower);
	call->node = lower_last(lower);
	return 0;
}

static int finish(struct lower *lower)
{
	struct model *model = lower->model;
	struct backend_graph *g = &model->graph;
	struct backend_error error = {""};
	uint64_t *blob = arena_array(lower->r->arena, lower->n_tensors + 1, sizeof(*blob));
	int rc;

	if (!blob)
		return lower_fail(lower);
	g->n_nodes = lower->n_nodes;
	g->node = lower->node;
	g->output = model->call[model->output].node;
	g->n_tensors = lower->n_tensors;
	g->tensor = lower->tensor;
	rc = backend_layout(lower->tensor, lower->n_tensors, &g->param_floats, &g->stat_floats);
	if (rc)
		return err_set(lower->r->err, ERR_INTERNAL, rc,
			       "the model's tensors cannot be laid out: %s", strerror(-rc));
	rc = backend_graph_check(g, &error);
	if (rc) {
		jread_clean(error.message);
		return err_set(lower->r->err, ERR_ARCH, rc, "architecture: %s", error.message);
	}
	for (uint32_t i = 0; i < lower->n_tensors; i++)
		blob[i + 1] = blob[i] + lower->tensor[i].count;
	model->blob = blob;
	model->init = lower->init;
	return 0;
}

int model_lower(struct reader *r, struct model *model)
{
	struct lower lower = {.r = r, .model = model};
	size_t most = (size_t)model->n_calls * NODES_PER_CALL + 2;
	const struct backend_node *last;
	int rc;

	lower.node = arena_array(r->arena, most, sizeof(*lower.node));
	if (!lower.node)
		return jread_oom(r);
	for (uint32_t i = 0; i < model->n_calls; i++) {
		struct call *call = &model->call[i];

		call->layer->in = model->call[call->n_in ? call->in[0] : i].out;
	}
	rc = lower_tensors(&lower);
	if (!rc)
		rc = lower_first(&lower);
	for (uint32_t i = 1; i < model->n_calls && !rc; i++)
		rc = model->call[i].layer->cls->lower(&lower, model->call[i].layer,
						      &model->call[i]);
	if (!rc)
		rc = finish(&lower);
	if (rc)
		return rc;
	last = &model->graph.node[model->graph.output];
	model->info.last = last->op == BACKEND_ACTIVATION ? last->activation : BACKEND_LINEAR;
	return 0;
}
