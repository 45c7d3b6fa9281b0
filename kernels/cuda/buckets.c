/* SPDX-License-Identifier: MIT */
/*
 * buckets.c: the gradient arena in pieces, in the order in which the backward pass makes them
 * final. The order follows from the graph alone, so it is the same on every replica.
 */
#include <stdlib.h>

#include "plan.h"

/* The group whose backward part is the last to add to a tensor's gradient; n_groups: none. */
static void find_last_uses(const struct plan *p, uint32_t *last)
{
	for (uint32_t t = 0; t < p->graph->n_tensors; t++)
		last[t] = p->n_groups;
	for (uint32_t i = p->n_groups; i-- > 0;)
		for (int k = 0; k < 2; k++) {
			int32_t t = p->graph->node[p->group[i].node].tensor[k];

			if (p->group[i].backward && t >= 0)
				last[t] = i;
		}
}

static void take(struct plan *p, struct bucket *open, uint32_t after, uint64_t offset,
		 uint64_t length, uint64_t least)
{
	bool below = offset + length == open->offset, above = offset == open->offset + open->length;

	if (open->length && !below && !above) {
		p->bucket[p->n_buckets++] = *open;
		open->length = 0;
	}
	if (!open->length || below)
		open->offset = offset;
	open->length += length;
	open->after = after;
	if (open->length >= least) {
		p->bucket[p->n_buckets++] = *open;
		open->length = 0;
	}
}

int plan_buckets(struct plan *p, uint64_t least)
{
	const struct backend_graph *graph = p->graph;
	const uint64_t align = BACKEND_ALIGN_FLOATS - 1;
	uint32_t *last = malloc((graph->n_tensors + 1) * sizeof(*last));
	struct bucket open = {0};

	p->bucket = calloc(graph->n_tensors + 1, sizeof(*p->bucket));
	if (!last || !p->bucket) {
		free(last);
		return -ENOMEM;
	}
	find_last_uses(p, last);
	for (uint32_t i = p->n_groups + 1; i-- > 0;)
		for (uint32_t t = graph->n_tensors; t-- > 0;) {
			const struct backend_tensor *tensor = &graph->tensor[t];

			if (tensor->arena == BACKEND_PARAM && last[t] == i)
				take(p, &open, i, tensor->offset, (tensor->count + align) & ~align,
				     least);
		}
	if (open.length)
		p->bucket[p->n_buckets++] = open;
	free(last);
	return 0;
}
