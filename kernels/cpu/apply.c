/* SPDX-License-Identifier: MIT */
/*
 * apply.c: the optimizer's update on the pool. The trainable tensors are cut into fixed pieces of
 * the arena; sums of squares are added piece by piece in order, whatever the number of threads.
 */
#include <math.h>
#include <stdlib.h>

#include "cpu.h"

#define APPLY_PIECE (1u << 14) /* floats: gradient, slot and parameters of a piece fit into L2 */

struct cpu_piece {
	uint32_t tensor;
	uint64_t begin, count; /* within the tensor */
	double norm2;
};

struct cpu_apply {
	struct cpu_net *net;
	struct update update;
	struct cpu_piece *piece;
	uint32_t n_pieces;
	double *tensor_norm2; /* [tensor] */
	double global_norm2;
	bool finite;
};

static bool takes_part(const struct backend_tensor *t)
{
	return t->arena == BACKEND_PARAM && t->trainable;
}

struct cpu_apply *cpu_apply_create(struct cpu_net *net)
{
	const struct backend_graph *g = &net->base.graph;
	struct cpu_apply *a = calloc(1, sizeof(*a));
	uint64_t n = 0;

	if (!a)
		return NULL;
	for (uint32_t i = 0; i < g->n_tensors; i++)
		n += (g->tensor[i].count + APPLY_PIECE - 1) / APPLY_PIECE;
	a->net = net;
	a->piece = n <= UINT32_MAX ? calloc(n + 1, sizeof(*a->piece)) : NULL;
	a->tensor_norm2 = calloc(g->n_tensors + 1, sizeof(*a->tensor_norm2));
	if (!a->piece || !a->tensor_norm2) {
		cpu_apply_free(a);
		return NULL;
	}
	for (uint32_t i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *t = &g->tensor[i];

		for (uint64_t at = 0; takes_part(t) && at < t->count; at += APPLY_PIECE)
			a->piece[a->n_pieces++] = (struct cpu_piece){
				.tensor = i,
				.begin = at,
				.count = t->count - at < APPLY_PIECE ? t->count - at : APPLY_PIECE,
			};
	}
	return a;
}

void cpu_apply_free(struct cpu_apply *a)
{
	if (!a)
		return;
	free(a->piece);
	free(a->tensor_norm2);
	free(a);
}

static void apply_gather(struct cpu_apply *a, struct cpu_piece *p)
{
	struct backend_net *base = &a->net->base;
	const struct backend_tensor *t = &base->graph.tensor[p->tensor];
	uint64_t at = t->offset + p->begin;

	if (t->l1 == 0.0f && t->l2 == 0.0f)
		p->norm2 = a->net->backend->loops->square_sum(base->arena[BACKEND_GRAD] + at,
							      p->count);
	else
		p->norm2 = update_gather(t, base->arena[BACKEND_PARAM] + at,
					 base->arena[BACKEND_GRAD] + at, p->count);
}

static void apply_piece(struct cpu_apply *a, const struct cpu_piece *p)
{
	const struct backend_optimizer_config *config = &a->update.config;
	struct backend_net *base = &a->net->base;
	const struct backend_tensor *t = &base->graph.tensor[p->tensor];
	uint64_t at = t->offset + p->begin;
	float *w = base->arena[BACKEND_PARAM] + at, *g = base->arena[BACKEND_GRAD] + at;
	float *slot[BACKEND_SLOTS_MAX] = {0};
	float factor = update_clip(&a->update, a->tensor_norm2[p->tensor], a->global_norm2);

	for (uint32_t s = 0; s < base->n_slots; s++)
		slot[s] = base->arena[BACKEND_SLOT] + s * base->graph.param_floats + at;
	if (config->kind == BACKEND_SGD && base->n_slots && factor == 1.0f &&
	    config->clipvalue == 0.0f && (config->weight_decay == 0.0f || !t->decay))
		a->net->backend->loops->momentum(w, slot[0], g, p->count, config->momentum,
						 a->update.lr, config->nesterov);
	else
		update_range(&a->update, t, factor, w, g, slot, p->count);
}

/* Every worker takes the same share of the pieces in both passes. */
static void apply_worker(void *arg, unsigned int index)
{
	struct cpu_apply *a = arg;
	uint32_t count = a->net->workers;
	uint32_t from = cpu_first_row(a->n_pieces, index, count);
	uint32_t to = cpu_first_row(a->n_pieces, index + 1, count);

	for (uint32_t k = from; k < to; k++)
		apply_gather(a, &a->piece[k]);
	pool_barrier(a->net->backend->pool);
	if (index == 0) {
		for (uint32_t k = 0; k < a->n_pieces; k++) {
			a->tensor_norm2[a->piece[k].tensor] += a->piece[k].norm2;
			a->global_norm2 += a->piece[k].norm2;
		}
		a->finite = isfinite(a->global_norm2);
	}
	pool_barrier(a->net->backend->pool);
	for (uint32_t k = from; a->finite && k < to; k++)
		apply_piece(a, &a->piece[k]);
}

int cpu_apply(struct backend_net *base, double lr, uint64_t t, struct backend_applied *applied,
	      struct backend_error *error)
{
	struct cpu_net *net = (struct cpu_net *)base;
	struct cpu_apply *a = net->apply;

	update_prepare(&a->update, &base->options.optimizer, lr, t);
	memset(a->tensor_norm2, 0, base->graph.n_tensors * sizeof(*a->tensor_norm2));
	a->global_norm2 = 0;
	pool_run(net->backend->pool, apply_worker, a);
	applied->finite = a->finite;
	applied->grad_norm = sqrt(a->global_norm2);
	if (a->finite)
		net->version++;
	return 0;
}
