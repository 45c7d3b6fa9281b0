/* SPDX-License-Identifier: MIT */
/* feed.c: the two ends of a pass: stored rows to the input node, and the loss. */
#include <stdlib.h>

#include "lower.h"

/* Scaling of bytes is looked up: 256 values a channel, made by the shared definition itself. */
int cpu_input_table(struct cpu_net *net)
{
	const struct backend_input *in = &net->base.options.input;
	uint32_t c = in->shape.c;

	if (in->dtype != BACKEND_U8 || c > 16)
		return 0;
	net->table = malloc(256 * (size_t)c * sizeof(float));
	if (!net->table)
		return -ENOMEM;
	for (uint32_t v = 0; v < 256; v++)
		for (uint32_t k = 0; k < c; k++) {
			struct backend_input one = {.dtype = BACKEND_U8,
						    .shape = {1, 1, 1},
						    .mul = in->mul + k,
						    .add = in->add + k};
			uint8_t byte = (uint8_t)v;

			backend_input_row(&one, &byte, false, 0, 0, 0, &net->table[v * c + k]);
		}
	return 0;
}

static void input_bytes(const struct cpu_net *net, const uint8_t *from, float *to, uint64_t pixels)
{
	const float *table = net->table;
	uint32_t c = net->base.options.input.shape.c;

	if (c == 1) {
		for (uint64_t p = 0; p < pixels; p++)
			to[p] = table[from[p]];
		return;
	}
	for (uint64_t p = 0; p < pixels; p++, from += c, to += c)
		for (uint32_t k = 0; k < c; k++)
			to[k] = table[from[k] * c + k];
}

static int input_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct cpu_net *net = w->net;
	const struct backend_input *in = &net->base.options.input;
	const struct backend_batch *b = net->run.batch;
	bool augment = w->plan->training && (in->flip || in->pad || in->cutout);

	for (uint32_t i = row; i < row + n; i++) {
		float *to = cpu_at(w, op->buf[0], i);

		if (net->table && !augment)
			input_bytes(net, b->x[i], to, (uint64_t)in->shape.h * in->shape.w);
		else
			backend_input_row(in, b->x[i], augment, b->seed, b->epoch,
					  b->hash ? b->hash[i] : 0, to);
	}
	return 0;
}

void lower_input(struct lower *l, uint32_t node)
{
	struct cpu_op *op = lower_op(l, lower_node(l, node), CPU_ROWS, input_run);

	lower_use(l, op, 0, lower_value(l, node));
}

/* operands: gradient (training), logits or outputs */
static int loss_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct cpu_net *net = w->net;
	const struct cpu_run *run = &net->run;
	const struct backend_batch *b = run->batch;
	uint64_t count = net->base.outputs;

	for (uint32_t i = row; i < row + n; i++) {
		const float *z = cpu_at(w, op->buf[1], i);
		double weight = b->weight ? b->weight[i] : 1.0;
		float *output = run->outputs ? run->outputs + i * count : NULL;
		int32_t label = run->want_loss && b->label ? b->label[i] : -1;
		const float *target = run->want_loss && b->target ? b->target + i * count : NULL;

		w->loss += weight * loss_row_f32(&net->loss, z, label, target, run->scale * weight,
						 output, cpu_operand(op, w, 0, i));
		w->weight += weight;
	}
	return 0;
}

void lower_loss(struct lower *l)
{
	uint32_t node = l->net->loss.node;
	struct cpu_op *op = lower_op(l, lower_node(l, node), CPU_ROWS, loss_run);
	bool accumulate;

	lower_use(l, op, 1, lower_value(l, node));
	if (lower_wants(l, node))
		lower_use(l, op, 0, lower_gradient_to(l, node, &accumulate));
}
