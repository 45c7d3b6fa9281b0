/* SPDX-License-Identifier: MIT */
/* exec.c: the passes over a net's groups. All of it only enqueues work on the net's stream. */
#include "cuda.h"

int exec_forward(const struct pass *p)
{
	const struct plan *plan = &p->net->plan;
	int rc = 0;

	for (uint32_t i = 0; i < plan->n_groups && !rc; i++) {
		const struct group *g = &plan->group[i];

		switch (g->kind) {
		case GROUP_CONV:
			rc = conv_forward(p, i);
			break;
		case GROUP_DEPTHWISE:
			rc = depthwise_forward(p, g);
			break;
		case GROUP_DENSE:
			rc = dense_forward(p, i);
			break;
		case GROUP_NORM:
			rc = norm_forward(p, g);
			break;
		case GROUP_SUM:
			rc = sum_forward(p, g);
			break;
		default:
			rc = other_forward(p, g);
			break;
		}
	}
	return rc;
}

int exec_backward(const struct pass *p, uint32_t first, uint32_t last)
{
	const struct plan *plan = &p->net->plan;
	int rc = 0;

	for (uint32_t i = first; i + 1 > last && !rc; i--) {
		const struct group *g = &plan->group[i];

		if (!g->backward)
			continue;
		switch (g->kind) {
		case GROUP_CONV:
			rc = conv_backward(p, i);
			break;
		case GROUP_DEPTHWISE:
			rc = depthwise_backward(p, g);
			break;
		case GROUP_DENSE:
			rc = dense_backward(p, i);
			break;
		case GROUP_NORM:
			rc = norm_backward(p, g);
			break;
		case GROUP_SUM:
			rc = sum_backward(p, g);
			break;
		default:
			rc = other_backward(p, g);
			break;
		}
	}
	return rc;
}

int exec_loss(const struct pass *p, bool gradient)
{
	struct cuda_net *net = p->net;
	const struct loss_plan *loss = &net->plan.loss;
	struct loss_args a = {
		.block = net->device_block,
		.z = net_value(net, loss->node),
		.gradient = gradient ? net_gradient(net, loss->node) : NULL,
		.output = p->outputs ? net->outputs : NULL,
		.row_loss = net->row_loss,
		.n = p->shape->n,
		.places = loss->places,
		.c = loss->c,
		.loss = loss->loss,
		.activation = loss->activation,
		.z_f32 = net->plan.logits_f32,
		.smoothing = loss->label_smoothing,
	};
	struct loss_sums_args s = {.block = net->device_block,
				   .row_loss = net->row_loss,
				   .result = net->device_result,
				   .n = p->shape->n};
	int rc = launch_loss(net->stream, net->gpu->type, &a);

	if (!rc)
		rc = launch_loss_sums(net->stream, &s);
	return cuda_failed(net->gpu, rc, "loss", p->error);
}

int exec_clear(const struct pass *p)
{
	struct cuda_net *net = p->net;
	const struct backend_graph *graph = &net->base.graph;

	for (uint32_t i = 0; i < graph->n_tensors && !p->accumulate; i++) {
		const struct backend_tensor *t = &graph->tensor[i];
		int rc;

		if (t->arena != BACKEND_PARAM || (t->trainable && !net->plan.unreached[i]))
			continue;
		rc = cudaMemsetAsync(net->arena[BACKEND_GRAD] + t->offset, 0,
				     t->count * sizeof(float), net->stream);
		if (rc)
			return cuda_failed(net->gpu, rc, "clearing a gradient", p->error);
	}
	return 0;
}

int exec_pack(struct cuda_net *net, const struct weights *w, struct backend_error *error)
{
	struct pack_args a = {.from = w->param, .to = w->packed, .tile = net->tiles};

	if (!net->n_tiles)
		return 0;
	return cuda_failed(net->gpu, launch_pack(net->stream, net->gpu->type, &a, net->n_tiles),
			   "packing of parameters", error);
}

int exec_update(const struct pass *p)
{
	struct cuda_net *net = p->net;
	int rc = cuda_failed(net->gpu, launch_update(net->stream, &net->update), "optimizer",
			     p->error);

	return rc ? rc : exec_pack(net, &net->own, p->error);
}
