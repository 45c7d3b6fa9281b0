/* SPDX-License-Identifier: MIT */
/*
 * packed.c: which parameters are copied into another form for the libraries (filters as KRSC,
 * anything that is not f32 in the type of the activations), where the copies lie, and the table of
 * tiles that the kernel works through.
 */
#include <stdlib.h>

#include "cuda.h"

static uint64_t align(uint64_t bytes)
{
	return (bytes + 255) & ~255ull;
}

/* A tensor that a group wants packed: filters of convolutions always, what goes into a product of
 * another type than f32 too. */
static bool wants_packed(const struct cuda_net *net, const struct group *g, int k)
{
	if (net_node(net, g->node)->tensor[k] < 0)
		return false;
	if (g->kind == GROUP_CONV && k == 0)
		return true;
	return net->gpu->type != CUDA_T_F32 && (g->kind == GROUP_CONV || g->kind == GROUP_DENSE);
}

static uint32_t tiles_of(const struct backend_tensor *t, bool transposed)
{
	uint64_t cols = t->dim[t->rank - 1], rows = t->count / cols;

	if (!transposed)
		return (uint32_t)((t->count + 1023) / 1024);
	return (uint32_t)(((rows + 31) / 32) * ((cols + 31) / 32));
}

/* use[t]: 0 not packed, 1 copied, 2 transposed */
static int packed_uses(struct cuda_net *net, uint8_t *use, struct backend_error *error)
{
	for (uint32_t i = 0; i < net->plan.n_groups; i++)
		for (int k = 0; k < 2; k++) {
			const struct group *g = &net->plan.group[i];
			int32_t t = net_node(net, g->node)->tensor[k];
			uint8_t how = g->kind == GROUP_CONV && k == 0 ? 2 : 1;

			if (!wants_packed(net, g, k))
				continue;
			if (use[t] && use[t] != how)
				return backend_fail(error, -EOPNOTSUPP,
						    "tensor %s is the filter of layers of "
						    "different kinds",
						    net->base.graph.tensor[t].name);
			use[t] = how;
		}
	return 0;
}

static void add_tiles(struct cuda_net *net, struct pack_tile *tile, uint32_t *n, uint32_t index,
		      bool transposed)
{
	const struct backend_tensor *t = &net->base.graph.tensor[index];
	uint32_t cols = t->dim[t->rank - 1], rows = (uint32_t)(t->count / cols);
	struct pack_tile one = {.from = t->offset, .to = net->packed_at[index]};

	if (!transposed) {
		one.rows = (uint32_t)t->count;
		for (; (uint64_t)one.row * 1024 < t->count; one.row++)
			tile[(*n)++] = one;
		return;
	}
	one.rows = rows;
	one.cols = cols;
	for (one.row = 0; one.row < rows; one.row += 32)
		for (one.col = 0; one.col < cols; one.col += 32)
			tile[(*n)++] = one;
}

/* Offsets of the packed copies and, where tile is given, the table of tiles. */
int packed_plan(struct cuda_net *net, struct pack_tile **tile, struct backend_error *error)
{
	const struct backend_graph *graph = &net->base.graph;
	uint8_t *use = calloc(graph->n_tensors + 1, 1);
	uint32_t n = 0;
	int rc;

	net->packed_at = malloc((graph->n_tensors + 1) * sizeof(*net->packed_at));
	if (!use || !net->packed_at) {
		free(use);
		return backend_fail(error, -ENOMEM, "no memory for the table of tensors");
	}
	rc = packed_uses(net, use, error);
	for (uint32_t t = 0; t < graph->n_tensors && !rc; t++) {
		net->packed_at[t] = UINT64_MAX;
		if (!use[t])
			continue;
		if (graph->tensor[t].count > UINT32_MAX)
			rc = backend_fail(error, -EOPNOTSUPP, "tensor %s is too large for a GPU",
					  graph->tensor[t].name);
		net->packed_at[t] = net->packed_elements;
		net->packed_elements +=
			align(graph->tensor[t].count * net->plan.element) / net->plan.element;
		net->n_tiles += tiles_of(&graph->tensor[t], use[t] == 2);
	}
	*tile = rc ? NULL : malloc((net->n_tiles + 1) * sizeof(**tile));
	for (uint32_t t = 0; *tile && t < graph->n_tensors; t++)
		if (use[t])
			add_tiles(net, *tile, &n, t, use[t] == 2);
	free(use);
	if (!rc && !*tile)
		rc = backend_fail(error, -ENOMEM, "no memory for the table of tiles");
	return rc;
}
