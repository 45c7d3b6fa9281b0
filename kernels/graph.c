/* SPDX-License-Identifier: MIT */
/*
 * graph.c: the tensor table of a graph: arena layout and hash; and the deep copy that a net keeps.
 * The checks of a graph are in check.c.
 */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

#define ARENA_FLOATS_MAX (1ull << 40)

static int tensor_count(struct backend_tensor *t)
{
	uint64_t count = 1;

	if (t->rank < 1 || t->rank > 4)
		return -EINVAL;
	for (uint32_t i = 0; i < t->rank; i++) {
		if (t->dim[i] == 0)
			return -EINVAL;
		if (__builtin_mul_overflow(count, t->dim[i], &count) || count > ARENA_FLOATS_MAX)
			return -EOVERFLOW;
	}
	t->count = count;
	return 0;
}

int backend_layout(struct backend_tensor *tensor, uint32_t n, uint64_t *param_floats,
		   uint64_t *stat_floats)
{
	const uint64_t align = BACKEND_ALIGN_FLOATS - 1;
	uint64_t size[2] = {0, 0};

	for (uint32_t i = 0; i < n; i++) {
		struct backend_tensor *t = &tensor[i];
		int rc = tensor_count(t);

		if (rc)
			return rc;
		if (t->arena != BACKEND_PARAM && t->arena != BACKEND_STAT)
			return -EINVAL;
		t->offset = size[t->arena];
		size[t->arena] += (t->count + align) & ~align;
		if (size[t->arena] > ARENA_FLOATS_MAX)
			return -EOVERFLOW;
	}
	*param_floats = size[BACKEND_PARAM];
	*stat_floats = size[BACKEND_STAT];
	return 0;
}

/* ---- hash -------------------------------------------------------------------------------- */

/* FNV-1a over little-endian bytes, so that hosts of any byte order agree. */
static uint64_t hash_u64(uint64_t h, uint64_t v)
{
	for (int i = 0; i < 8; i++, v >>= 8)
		h = (h ^ (v & 0xff)) * 0x100000001b3ull;
	return h;
}

uint64_t backend_graph_hash(const struct backend_graph *graph)
{
	uint64_t h = hash_u64(0xcbf29ce484222325ull, graph->n_tensors);

	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const struct backend_tensor *t = &graph->tensor[i];
		size_t length = strnlen(t->name, BACKEND_NAME_MAX);

		h = hash_u64(h, length);
		for (size_t k = 0; k < length; k++)
			h = (h ^ (uint8_t)t->name[k]) * 0x100000001b3ull;
		h = hash_u64(h, (uint64_t)t->arena << 32 | t->rank);
		for (uint32_t k = 0; k < t->rank && k < 4; k++)
			h = hash_u64(h, t->dim[k]);
		h = hash_u64(h, t->offset);
	}
	h = hash_u64(h, graph->param_floats);
	return hash_u64(h, graph->stat_floats);
}

/* ---- copy -------------------------------------------------------------------------------- */

static size_t rescale_floats(const struct backend_node *node)
{
	return node->op == BACKEND_RESCALE
		       ? ((node->scale ? 1 : 0) + (node->offset ? 1 : 0)) * (size_t)node->out.c
		       : 0;
}

static const float *copy_floats(float **place, const float *from, uint32_t n)
{
	float *to = *place;

	if (!from)
		return NULL;
	memcpy(to, from, n * sizeof(float));
	*place += n;
	return to;
}

int graph_copy(const struct backend_graph *from, struct backend_graph *to)
{
	size_t ins = 0, floats = 0, nodes = from->n_nodes * sizeof(*from->node);
	size_t tensors = from->n_tensors * sizeof(*from->tensor);
	struct backend_tensor *tensor;
	struct backend_node *node;
	uint32_t *in;
	float *value;

	for (uint32_t i = 0; i < from->n_nodes; i++) {
		ins += from->node[i].n_in;
		floats += rescale_floats(&from->node[i]);
	}
	/* one block: nodes, tensors (both hold 8-byte members), then 4-byte items */
	node = calloc(1, nodes + tensors + ins * sizeof(*in) + floats * sizeof(*value));
	if (!node)
		return -ENOMEM;
	tensor = (struct backend_tensor *)((char *)node + nodes);
	in = (uint32_t *)((char *)tensor + tensors);
	value = (float *)(in + ins);
	memcpy(node, from->node, nodes);
	if (tensors)
		memcpy(tensor, from->tensor, tensors);
	for (uint32_t i = 0; i < from->n_nodes; i++) {
		if (node[i].n_in)
			memcpy(in, node[i].in, node[i].n_in * sizeof(*in));
		node[i].in = in;
		in += node[i].n_in;
		if (node[i].op != BACKEND_RESCALE)
			continue;
		node[i].scale = copy_floats(&value, node[i].scale, node[i].out.c);
		node[i].offset = copy_floats(&value, node[i].offset, node[i].out.c);
	}
	*to = *from;
	to->node = node;
	to->tensor = tensor;
	return 0;
}

void graph_copy_free(struct backend_graph *graph)
{
	free((void *)graph->node);
	memset(graph, 0, sizeof(*graph));
}
