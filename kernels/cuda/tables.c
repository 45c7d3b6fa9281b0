/* SPDX-License-Identifier: MIT */
/*
 * tables.c: what lies on the device beside arenas and activations: the optimizer's table of chunks,
 * start values of its slots, scaling of the input, constants of RESCALE nodes.
 */
#include <stdlib.h>

#include "cuda.h"

#define CHUNK 4096u /* floats of the arena for one block of threads */

static uint64_t align(uint64_t bytes)
{
	return (bytes + 255) & ~255ull;
}

static bool takes_part(const struct backend_tensor *t)
{
	return t->arena == BACKEND_PARAM && t->trainable;
}

void tables_count(struct cuda_net *net)
{
	const struct backend_graph *graph = &net->base.graph;

	for (uint32_t i = 0; i < graph->n_tensors && net->plan.training; i++) {
		if (!takes_part(&graph->tensor[i]))
			continue;
		net->update.tensors++;
		net->update.chunks += (uint32_t)((graph->tensor[i].count + CHUNK - 1) / CHUNK);
	}
}

/* Fills tables of the sizes that count_chunks found. */
static void fill_chunks(const struct cuda_net *net, struct param_chunk *chunk,
			struct param_tensor *tensor)
{
	const struct backend_graph *graph = &net->base.graph;
	uint32_t n = 0, c = 0;

	for (uint32_t i = 0; i < graph->n_tensors && net->plan.training; i++) {
		const struct backend_tensor *t = &graph->tensor[i];

		if (!takes_part(t))
			continue;
		tensor[n] = (struct param_tensor){t->l1, t->l2, t->decay, c, 0};
		for (uint64_t at = 0; at < t->count; at += CHUNK) {
			uint64_t left = t->count - at;

			chunk[c++] = (struct param_chunk){t->offset + at,
							  left < CHUNK ? (uint32_t)left : CHUNK, n};
		}
		tensor[n].chunks = c - tensor[n].first;
		n++;
	}
}

void tables_use(struct cuda_net *net)
{
	const struct backend_optimizer_config *o = &net->base.options.optimizer;
	struct update_args *u = &net->update;

	u->block = net->device_block;
	u->result = net->device_result;
	u->w = net->arena[BACKEND_PARAM];
	u->g = net->arena[BACKEND_GRAD];
	for (uint32_t s = 0; s < net->base.n_slots; s++)
		u->slot[s] = net->arena[BACKEND_SLOT] + s * net->base.graph.param_floats;
	u->o = (struct optimizer){
		(int)o->kind, o->momentum,  o->beta1,	       o->beta2,    o->rho,
		o->epsilon,   o->nesterov,  o->amsgrad,	       o->centered, o->weight_decay,
		o->clipnorm,  o->clipvalue, o->global_clipnorm};
}

static int upload_update(struct cuda_net *net, struct backend_error *error)
{
	struct update_args *u = &net->update;
	struct param_chunk *chunk = calloc(u->chunks + 1, sizeof(*chunk));
	struct param_tensor *tensor = calloc(u->tensors + 1, sizeof(*tensor));
	int rc;

	if (!chunk || !tensor) {
		rc = backend_fail(error, -ENOMEM, "no memory for the optimizer's tables");
	} else {
		fill_chunks(net, chunk, tensor);
		rc = cuda_upload(net, (void *)u->chunk, chunk, u->chunks * sizeof(*chunk), error);
		if (!rc)
			rc = cuda_upload(net, (void *)u->tensor, tensor,
					 u->tensors * sizeof(*tensor), error);
	}
	free(chunk);
	free(tensor);
	return rc;
}

/* Scales and offsets of RESCALE nodes. */
static int upload_rescale(struct cuda_net *net, struct backend_error *error)
{
	float *to = net->rescale_table;
	int rc = 0;

	net->rescale = calloc(net->base.graph.n_nodes, sizeof(*net->rescale));
	if (!net->rescale)
		return backend_fail(error, -ENOMEM, "no memory for the net");
	for (uint32_t i = 0; i < net->base.graph.n_nodes && !rc; i++) {
		const struct backend_node *node = net_node(net, i);
		uint64_t bytes = node->out.c * sizeof(float);

		if (node->op != BACKEND_RESCALE)
			continue;
		net->rescale[i] = to;
		if (node->scale)
			rc = cuda_upload(net, to, node->scale, bytes, error);
		if (!rc && node->offset)
			rc = cuda_upload(net, to + node->out.c, node->offset, bytes, error);
		to += align(2 * bytes) / sizeof(float);
	}
	return rc;
}

/* Start values of the optimizer's slots; only Adagrad's are not zero. */
static int upload_slots(struct cuda_net *net, struct backend_error *error)
{
	uint64_t floats = net->base.graph.param_floats * net->base.n_slots;
	float *slot;
	int rc;

	if (!floats || net->base.options.optimizer.kind != BACKEND_ADAGRAD)
		return 0;
	slot = malloc(floats * sizeof(*slot));
	if (!slot)
		return backend_fail(error, -ENOMEM, "no memory for the optimizer's slots");
	backend_net_init_slots(&net->base, slot);
	rc = cuda_upload(net, net->arena[BACKEND_SLOT], slot, floats * sizeof(*slot), error);
	free(slot);
	return rc;
}

int tables_upload(struct cuda_net *net, const struct pack_tile *tile, struct backend_error *error)
{
	const struct backend_input *in = &net->base.options.input;
	uint64_t c = in->shape.c * sizeof(float);
	int rc = cuda_upload(net, net->tiles, tile, net->n_tiles * sizeof(*tile), error);

	if (!rc)
		rc = cuda_upload(net, net->input_scaling, in->mul, c, error);
	if (!rc)
		rc = cuda_upload(net, net->input_scaling + in->shape.c, in->add, c, error);
	if (!rc)
		rc = upload_rescale(net, error);
	if (!rc)
		rc = upload_slots(net, error);
	return rc ? rc : upload_update(net, error);
}
