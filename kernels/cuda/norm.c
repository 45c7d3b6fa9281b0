/* SPDX-License-Identifier: MIT */
/* norm.c: batch normalisation with what is fused behind it (norm.cuh). */
#include "cuda.h"

/* The group's extra buffer: mean, scale, sum of dz, sum of dz xh. */
static float *saved(const struct pass *p, const struct group *g, int which)
{
	return (float *)net_buffer(p->net, g->extra) +
	       (size_t)which * net_node(p->net, g->node)->out.c;
}

static struct cols norm_cols(const struct cuda_net *net, const struct backend_node *node,
			     uint32_t n)
{
	return cols_of(net->gpu, (uint64_t)n * node->out.h * node->out.w, node->out.c, true);
}

static bool frozen(const struct pass *p, const struct backend_node *node)
{
	return !p->training || node->frozen;
}

uint64_t norm_scratch(const struct cuda_net *net, const struct backend_node *node, uint32_t n)
{
	uint64_t rows = (uint64_t)n * node->out.h * node->out.w;

	return 2 * cols_most(net->gpu, rows, node->out.c, true) * node->out.c * sizeof(float);
}

static int statistics(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	struct norm_stats_args a = {
		.m = norm_cols(net, node, p->shape->n),
		.x = net_value(net, node->in[0]),
		.partial = (float *)net->scratch,
	};
	struct norm_finish_args f = {
		.partial = a.partial,
		.moving_mean = (float *)pass_tensor(p, node, 2),
		.moving_var = (float *)pass_tensor(p, node, 3),
		.mean = saved(p, g, 0),
		.scale = saved(p, g, 1),
		.rows = a.m.rows,
		.chunk = a.m.chunk,
		.chunks = a.m.chunks,
		.c = a.m.c,
		.frozen = frozen(p, node),
		.epsilon = node->epsilon,
		.momentum = node->momentum,
	};
	int rc = 0;

	if (!f.frozen)
		rc = launch_norm_stats(net->stream, net->gpu->type, &a);
	if (!rc)
		rc = launch_norm_finish(net->stream, &f);
	return cuda_failed(net->gpu, rc, "batch statistics", p->error);
}

int norm_forward(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	struct norm_apply_args a = {
		.m = norm_cols(net, node, p->shape->n),
		.x = net_value(net, node->in[0]),
		.other = g->other == NONE ? NULL : net_value(net, g->other),
		.y = net_value(net, g->last),
		.mean = saved(p, g, 0),
		.scale = saved(p, g, 1),
		.gamma = pass_tensor(p, node, 0),
		.beta = pass_tensor(p, node, 1),
		.act = act_of(net, g->act),
	};
	int rc = statistics(p, g);

	if (rc)
		return rc;
	return cuda_failed(net->gpu, launch_norm_apply(net->stream, net->gpu->type, &a),
			   "batch normalisation", p->error);
}

int norm_backward(const struct pass *p, const struct group *g)
{
	struct cuda_net *net = p->net;
	const struct backend_node *node = net_node(net, g->node);
	const struct edge *edge = &net->plan.edge[g->first_edge];
	struct norm_back_args a = {
		.m = norm_cols(net, node, p->shape->n),
		.x = net_value(net, node->in[0]),
		.dy = net_gradient(net, g->last),
		.y = net_value(net, g->last),
		.dx = net_gradient(net, node->in[0]),
		.mean = saved(p, g, 0),
		.scale = saved(p, g, 1),
		.gamma = pass_tensor(p, node, 0),
		.beta = pass_tensor(p, node, 1),
		.partial = (float *)net->scratch,
		.sums = saved(p, g, 2),
		.act = act_of(net, g->act),
		.post = g->post,
		.add = edge[0].add,
		.frozen = frozen(p, node),
	};
	struct norm_sums_args s = {
		.block = net->device_block,
		.partial = a.partial,
		.sums = saved(p, g, 2),
		.chunks = a.m.chunks,
		.c = a.m.c,
	};
	bool add[2];
	int rc;

	s.dgamma = pass_gradient(p, g, 0, &add[0]);
	s.dbeta = pass_gradient(p, g, 1, &add[1]);
	s.add_gamma = add[0];
	s.add_beta = add[1];
	if (g->other != NONE && edge[1].want) {
		a.other = net_gradient(net, g->other);
		a.add_other = edge[1].add;
	}
	rc = launch_norm_back_sums(net->stream, net->gpu->type, &a);
	if (!rc)
		rc = launch_norm_sums(net->stream, &s);
	if (!rc && edge[0].want)
		rc = launch_norm_back(net->stream, net->gpu->type, &a);
	return cuda_failed(net->gpu, rc, "backward of batch normalisation", p->error);
}
