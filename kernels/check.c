/* SPDX-License-Identifier: MIT */
/*
 * check.c: backend_graph_check. A graph comes from a user's architecture text: every index, shape
 * and attribute is recomputed from the inputs here, so that back ends may trust it. The shape rules
 * of the operators are in shape.c.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ops.h"
#include "shape.h"

#define NODES_MAX (1u << 16)
#define TENSORS_MAX (1u << 18)
#define LAYERS_MAX (1u << 24)	 /* the layer shares a counter word with the purpose */
#define ROW_MAX (1ull << 30)	 /* elements of one row of a node */
#define SIZE_MAX_AXIS (1u << 24) /* one axis: sums of a few fit int32 */

static int check_tensor_table(const struct backend_graph *graph, struct backend_error *error)
{
	uint64_t param, stat;
	struct backend_tensor *copy;
	int rc;

	copy = malloc(sizeof(*copy) * (graph->n_tensors ? graph->n_tensors : 1));
	if (!copy)
		return backend_fail(error, -ENOMEM, "no memory for the tensor table");
	if (graph->n_tensors)
		memcpy(copy, graph->tensor, sizeof(*copy) * graph->n_tensors);
	rc = backend_layout(copy, graph->n_tensors, &param, &stat);
	if (rc) {
		backend_fail(error, rc, "tensor table: a shape or an arena is wrong, or too large");
		goto out;
	}
	rc = -EINVAL;
	if (param != graph->param_floats || stat != graph->stat_floats) {
		backend_fail(error, rc, "arena sizes do not fit the tensor table");
		goto out;
	}
	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const struct backend_tensor *t = &graph->tensor[i];

		if (!memchr(t->name, 0, sizeof(t->name))) {
			backend_fail(error, rc, "name of tensor %u does not end", i);
			goto out;
		}
		if (t->count != copy[i].count || t->offset != copy[i].offset) {
			backend_fail(error, rc, "tensor %s: count or offset is wrong", t->name);
			goto out;
		}
		if (!(t->l1 >= 0.0f) || !(t->l2 >= 0.0f) || isinf(t->l1) || isinf(t->l2)) {
			backend_fail(error, rc, "tensor %s: regulariser out of range", t->name);
			goto out;
		}
		if (t->arena == BACKEND_STAT && t->trainable) {
			backend_fail(error, rc, "tensor %s: a statistic is not trainable", t->name);
			goto out;
		}
	}
	rc = 0;
out:
	free(copy);
	return rc;
}

static bool node_inputs(const struct backend_node *node)
{
	switch (node->op) {
	case BACKEND_INPUT:
		return node->n_in == 0;
	case BACKEND_ADD:
	case BACKEND_CONCAT:
		return node->n_in >= 2 && node->n_in <= NODES_MAX;
	default:
		return node->n_in == 1;
	}
}

static bool axis_ok(struct backend_shape s)
{
	return s.h >= 1 && s.w >= 1 && s.c >= 1 && s.h <= SIZE_MAX_AXIS && s.w <= SIZE_MAX_AXIS &&
	       s.c <= SIZE_MAX_AXIS;
}

static bool row_ok(struct backend_shape s)
{
	uint64_t n;

	return axis_ok(s) && !__builtin_mul_overflow((uint64_t)s.h * s.w, (uint64_t)s.c, &n) &&
	       n <= ROW_MAX;
}

static int check_node(const struct backend_graph *graph, uint32_t i, struct backend_error *error)
{
	const struct backend_node *node = &graph->node[i];
	struct backend_shape want;
	int rc;

	if (!memchr(node->name, 0, sizeof(node->name)))
		return backend_fail(error, -EINVAL, "name of node %u does not end", i);
	if ((unsigned int)node->op >= BACKEND_OP_COUNT)
		return backend_fail(error, -EINVAL, "layer %s: unknown operator %d", node->name,
				    (int)node->op);
	if ((node->op == BACKEND_INPUT) != (i == 0))
		return backend_fail(error, -EINVAL, "layer %s: the first node is the only input",
				    node->name);
	if (!node_inputs(node) || (node->n_in && !node->in))
		return backend_fail(error, -EINVAL, "layer %s: wrong number of inputs (%u)",
				    node->name, node->n_in);
	for (uint32_t k = 0; k < node->n_in; k++)
		if (node->in[k] >= i)
			return backend_fail(error, -EINVAL,
					    "layer %s: input %u does not stand before it",
					    node->name, node->in[k]);
	if (node->layer >= LAYERS_MAX)
		return backend_fail(error, -EINVAL, "layer %s: layer number %u", node->name,
				    node->layer);
	if (!row_ok(node->out))
		return backend_fail(error, -EOVERFLOW, "layer %s: shape (%u,%u,%u) is too large",
				    node->name, node->out.h, node->out.w, node->out.c);
	if (node->op == BACKEND_INPUT)
		return 0;
	rc = shape_infer(graph, node, &want, error);
	if (rc)
		return rc;
	if (want.h != node->out.h || want.w != node->out.w || want.c != node->out.c)
		return backend_fail(
			error, -EINVAL, "layer %s: shape is (%u,%u,%u), its inputs give (%u,%u,%u)",
			node->name, node->out.h, node->out.w, node->out.c, want.h, want.w, want.c);
	return 0;
}

int backend_graph_check(const struct backend_graph *graph, struct backend_error *error)
{
	int rc;

	if (!graph || !graph->node || graph->n_nodes == 0 || graph->n_nodes > NODES_MAX)
		return backend_fail(error, -EINVAL, "the graph has no nodes, or too many");
	if (graph->n_tensors > TENSORS_MAX || (graph->n_tensors && !graph->tensor))
		return backend_fail(error, -EINVAL, "the graph has no tensor table, or a huge one");
	if (graph->output >= graph->n_nodes)
		return backend_fail(error, -EINVAL, "output node %u of %u", graph->output,
				    graph->n_nodes);
	rc = check_tensor_table(graph, error);
	for (uint32_t i = 0; i < graph->n_nodes && !rc; i++)
		rc = check_node(graph, i, error);
	return rc;
}
