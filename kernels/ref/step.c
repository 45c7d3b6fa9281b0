/* SPDX-License-Identifier: MIT */
/* step.c: one pass over the graph: forward, loss, backward, optimizer. */
#include <math.h>
#include <string.h>

#include "../update.h"
#include "ref.h"

const struct ref_op *ref_op_find(enum backend_op op)
{
	static const struct ref_op *const table[BACKEND_OP_COUNT] = {
		[BACKEND_CONV2D] = &ref_conv2d,
		[BACKEND_DEPTHWISE] = &ref_depthwise,
		[BACKEND_DENSE] = &ref_dense,
		[BACKEND_MAXPOOL] = &ref_maxpool,
		[BACKEND_AVGPOOL] = &ref_avgpool,
		[BACKEND_GLOBAL_AVGPOOL] = &ref_global_avgpool,
		[BACKEND_GLOBAL_MAXPOOL] = &ref_global_maxpool,
		[BACKEND_BATCHNORM] = &ref_batchnorm,
		[BACKEND_ACTIVATION] = &ref_activation,
		[BACKEND_ADD] = &ref_add,
		[BACKEND_CONCAT] = &ref_concat,
		[BACKEND_PAD] = &ref_pad,
		[BACKEND_UPSAMPLE] = &ref_upsample,
		[BACKEND_RESHAPE] = &ref_reshape,
		[BACKEND_DROPOUT] = &ref_dropout,
		[BACKEND_RESCALE] = &ref_rescale,
		[BACKEND_FLIP] = &ref_geometry,
		[BACKEND_SHIFT] = &ref_geometry,
		[BACKEND_CROP] = &ref_geometry,
	};

	return table[op]; /* NULL: the input */
}

/* ---- forward ----------------------------------------------------------------------------- */

static void call_tensors(struct ref_call *c)
{
	struct ref_net *net = c->pass->net;

	for (int k = 0; k < 4; k++) {
		const struct backend_tensor *t;

		if (c->node->tensor[k] < 0)
			continue;
		t = &net->base.graph.tensor[c->node->tensor[k]];
		if (t->arena == BACKEND_STAT) {
			c->tensor[k] = c->pass->stat + t->offset;
			if (c->pass->training)
				c->moving[k] = net->base.arena[BACKEND_STAT] + t->offset;
		} else {
			c->tensor[k] = c->pass->param + t->offset;
			if (c->pass->training)
				c->dtensor[k] = net->param_grad + t->offset;
		}
	}
}

static struct ref_call call_of(const struct ref_pass *pass, uint32_t i)
{
	struct ref_net *net = pass->net;
	const struct backend_node *node = &net->base.graph.node[i];
	uint32_t from = node->in[0];
	struct ref_call c = {
		.pass = pass,
		.node = node,
		.n = pass->batch->n,
		.in = net->base.graph.node[from].out,
		.out = node->out,
		.x = net->value[from],
		.y = net->value[i],
		.dx = net->gradient ? net->gradient[from] : NULL,
		.dy = net->gradient ? net->gradient[i] : NULL,
		.extra = net->extra[i],
	};

	call_tensors(&c);
	return c;
}

static void forward(const struct ref_pass *pass)
{
	const struct backend_net *base = &pass->net->base;
	const struct backend_batch *b = pass->batch;
	uint64_t in = backend_shape_count(base->graph.node[0].out);

	for (uint32_t i = 0; i < b->n; i++) {
		backend_input_row(&base->options.input, b->x[i], pass->training, b->seed, b->epoch,
				  b->hash ? b->hash[i] : 0, pass->net->row);
		for (uint64_t k = 0; k < in; k++)
			pass->net->value[0][i * in + k] = pass->net->row[k];
	}
	for (uint32_t i = 1; i < base->graph.n_nodes; i++) {
		struct ref_call c = call_of(pass, i);

		ref_op_find(c.node->op)->forward(&c);
	}
}

/* ---- loss -------------------------------------------------------------------------------- */

/* Sums and activated outputs, both may be NULL; scale: of the gradient of node loss.node, written
 * where the pass trains. */
static void losses(const struct ref_pass *pass, float scale, struct backend_sums *sums,
		   float *outputs)
{
	struct ref_net *net = pass->net;
	const struct backend_batch *b = pass->batch;
	uint64_t count = net->base.outputs;
	struct backend_sums total = {.n = b->n};

	for (uint32_t i = 0; i < b->n; i++) {
		double w = b->weight ? b->weight[i] : 1.0;
		double *g = pass->training ? net->gradient[net->loss.node] + i * count : NULL;

		total.loss += w * loss_row(&net->loss, net->value[net->loss.node] + i * count,
					   sums && b->label ? b->label[i] : -1,
					   sums && b->target ? b->target + i * count : NULL,
					   scale * w, net->output, g);
		total.weight += w;
		for (uint64_t k = 0; outputs && k < count; k++)
			outputs[i * count + k] = (float)net->output[k];
	}
	if (sums)
		*sums = total;
}

/* ---- backward ---------------------------------------------------------------------------- */

/* Every gradient that is final once node i is done: into the arena, and told to the caller. */
static int finish_tensors(struct ref_net *net, uint32_t i, bool accumulate,
			  backend_bucket_fn on_bucket, void *context)
{
	const struct backend_graph *graph = &net->base.graph;
	int rc = 0;

	for (uint32_t k = graph->n_tensors; k-- > 0 && !rc;) {
		const struct backend_tensor *t = &graph->tensor[k];
		float *g = net->base.arena[BACKEND_GRAD] + t->offset;
		const double *from = net->param_grad + t->offset;
		uint64_t padded = (t->count + BACKEND_ALIGN_FLOATS - 1) &
				  ~(uint64_t)(BACKEND_ALIGN_FLOATS - 1);

		if (t->arena != BACKEND_PARAM || net->last_use[k] != i)
			continue;
		for (uint64_t e = 0; e < t->count; e++) {
			float add = t->trainable ? (float)from[e] : 0.0f;

			g[e] = accumulate ? g[e] + add : add;
		}
		if (on_bucket)
			rc = on_bucket(context, t->offset, padded, NULL);
	}
	return rc;
}

static void backward_node(const struct ref_pass *pass, uint32_t i)
{
	struct ref_call c = call_of(pass, i);

	ref_op_find(c.node->op)->backward(&c);
}

int ref_gradient_call(struct backend_net *base, const struct backend_batch *batch, float scale,
		      bool accumulate, backend_bucket_fn on_bucket, void *context,
		      struct backend_sums *sums, float *outputs, struct backend_error *error)
{
	struct ref_net *net = (struct ref_net *)base;
	const struct backend_graph *graph = &base->graph;
	const struct ref_pass pass = {net, batch, base->arena[BACKEND_PARAM],
				      base->arena[BACKEND_STAT], true};
	int rc;

	memset(net->param_grad, 0, graph->param_floats * sizeof(double));
	for (uint32_t i = 0; i < graph->n_nodes; i++)
		memset(net->gradient[i], 0,
		       batch->n * backend_shape_count(graph->node[i].out) * sizeof(double));
	forward(&pass);
	losses(&pass, scale, sums, outputs);
	rc = finish_tensors(net, UINT32_MAX, accumulate, on_bucket, context);
	for (uint32_t i = graph->n_nodes - 1; i > 0 && !rc; i--) {
		if (i <= net->loss.node)
			backward_node(&pass, i);
		rc = finish_tensors(net, i, accumulate, on_bucket, context);
	}
	return rc ? backend_fail(error, rc, "the gradient was not taken") : 0;
}

/* ---- evaluate ---------------------------------------------------------------------------- */

int ref_evaluate(struct backend_net *base, const float *param, const float *stat,
		 const struct backend_batch *batch, struct backend_sums *sums, float *outputs,
		 struct backend_error *error)
{
	const struct ref_pass pass = {(struct ref_net *)base, batch,
				      param ? param : base->arena[BACKEND_PARAM],
				      stat ? stat : base->arena[BACKEND_STAT], false};

	forward(&pass);
	losses(&pass, 0.0f, sums, outputs);
	return 0;
}

/* ---- apply ------------------------------------------------------------------------------- */

static bool takes_part(const struct backend_tensor *t)
{
	return t->arena == BACKEND_PARAM && t->trainable;
}

static void apply_tensor(struct backend_net *net, const struct update *u,
			 const struct backend_tensor *t, double global)
{
	float *w = net->arena[BACKEND_PARAM] + t->offset;
	const float *g = net->arena[BACKEND_GRAD] + t->offset;
	float *slot[BACKEND_SLOTS_MAX] = {0};
	double own = 0;

	for (uint32_t s = 0; s < net->n_slots; s++)
		slot[s] = net->arena[BACKEND_SLOT] + s * net->graph.param_floats + t->offset;
	for (uint64_t e = 0; e < t->count; e++)
		own += (double)g[e] * g[e];
	update_range(u, t, update_clip(u, own, global), w, g, slot, t->count);
}

int ref_apply(struct backend_net *net, double lr, uint64_t t, struct backend_applied *applied,
	      struct backend_error *error)
{
	const struct backend_graph *graph = &net->graph;
	struct update u;
	double global = 0;

	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const struct backend_tensor *tensor = &graph->tensor[i];

		if (takes_part(tensor))
			global += update_gather(tensor, net->arena[BACKEND_PARAM] + tensor->offset,
						net->arena[BACKEND_GRAD] + tensor->offset,
						tensor->count);
	}
	*applied = (struct backend_applied){isfinite(global), sqrt(global)};
	if (!applied->finite)
		return 0;
	update_prepare(&u, &net->options.optimizer, lr, t);
	for (uint32_t i = 0; i < graph->n_tensors; i++)
		if (takes_part(&graph->tensor[i]))
			apply_tensor(net, &u, &graph->tensor[i], global);
	return 0;
}
