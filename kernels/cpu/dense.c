/* SPDX-License-Identifier: MIT */
/*
 * dense.c: y = x k + b on the last axis, by dnnl_sgemm, which picks its kernel by processor. A
 * large kernel is read once for all rows of a worker, and its gradient is not summed over workers:
 * each computes a block of input features over all rows of the batch, straight into the arena.
 */
#include "lower.h"

#define DENSE_WIDE (1u << 16) /* elements of a large kernel */
#define DENSE_BLOCK 16	      /* features: multiple of a worker's share */

struct dense {
	const struct backend_node *node;
	uint32_t in, out;
	uint64_t places; /* h * w of a row */
	bool wide, again;
	uint64_t sum, sum_bias; /* in w->sum */
};

static int sgemm(char ta, char tb, uint64_t m, uint64_t n, uint64_t k, const float *a, uint64_t lda,
		 const float *b, uint64_t ldb, float beta, float *c, uint64_t ldc)
{
	return dnn_rc(dnnl_sgemm(ta, tb, (dnnl_dim_t)m, (dnnl_dim_t)n, (dnnl_dim_t)k, 1.0f, a,
				 (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, c, (dnnl_dim_t)ldc));
}

/* operands: y, x */
static int forward_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct dense *s = op->state;
	float *y = cpu_at(w, op->buf[0], row);
	uint64_t places = s->places * n;
	int rc;

	if (!places)
		return 0;
	rc = sgemm('N', 'N', places, s->out, s->in, cpu_at(w, op->buf[1], row), s->in,
		   cpu_param(w, s->node, 0), s->out, 0.0f, y, s->out);
	cpu_loops_of(w)->bias(y, cpu_param(w, s->node, 1), places, s->out, op->relu);
	return rc;
}

/* operands: dx, dy */
static int data_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct dense *s = op->state;

	if (!n)
		return 0;
	return sgemm('N', 'T', s->places * n, s->in, s->out, cpu_at(w, op->buf[1], row), s->out,
		     cpu_param(w, s->node, 0), s->out, op->accumulate ? 1.0f : 0.0f,
		     cpu_at(w, op->buf[0], row), s->in);
}

/* operands: x, dy. Small kernel: sum over the worker's rows. */
static int weights_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct dense *s = op->state;
	const float *dy = cpu_at(w, op->buf[1], row);

	cpu_loops_of(w)->columns(w->sum + s->sum_bias, dy, s->places * n, s->out, !w->first);
	return sgemm('T', 'N', s->in, s->out, s->places * n, cpu_at(w, op->buf[0], row), s->in, dy,
		     s->out, w->first ? 0.0f : 1.0f, w->sum + s->sum, s->out);
}

/* Large kernel: the worker's block of features over all rows, into the arena. */
static int split_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct dense *s = op->state;
	const struct backend_net *base = &w->net->base;
	float *g = base->arena[BACKEND_GRAD] + base->graph.tensor[s->node->tensor[0]].offset;
	uint32_t blocks = (s->in + DENSE_BLOCK - 1) / DENSE_BLOCK;
	uint64_t from = (uint64_t)cpu_first_row(blocks, w->index, w->count) * DENSE_BLOCK;
	uint64_t to = (uint64_t)cpu_first_row(blocks, w->index + 1, w->count) * DENSE_BLOCK;
	bool add = s->again || w->net->run.accumulate;

	to = to > s->in ? s->in : to;
	if (from >= to)
		return 0;
	return sgemm('T', 'N', to - from, s->out, s->places * n, cpu_at(w, op->buf[0], row) + from,
		     s->in, cpu_at(w, op->buf[1], row), s->out, add ? 1.0f : 0.0f,
		     g + from * s->out, s->out);
}

/* The bias of a large kernel, likewise by blocks of the worker's rows: operand dy. */
static int bias_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct dense *s = op->state;

	cpu_loops_of(w)->columns(w->sum + s->sum_bias, cpu_at(w, op->buf[0], row), s->places * n,
				 s->out, !w->first);
	return 0;
}

void dense_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct dense *s = lower_state(l, sizeof(*s), NULL);
	uint32_t end = lower_end(l, node);
	struct cpu_op *op;

	if (!s)
		return;
	l->saved[node] = s;
	s->node = n;
	s->in = lower_shape(l, n->in[0]).c;
	s->out = n->out.c;
	s->places = (uint64_t)n->out.h * n->out.w;
	s->wide = (uint64_t)s->in * s->out >= DENSE_WIDE;
	op = lower_op(l, n, s->wide ? CPU_WIDE : CPU_ROWS, forward_run);
	op->state = s;
	op->relu = end != node;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, end));
}

static void dense_backward_kernel(struct lower *l, const struct backend_node *n, struct dense *s,
				  int32_t x, int32_t g)
{
	bool kernel = lower_trainable(l, n, 0), bias = lower_trainable(l, n, 1);
	struct cpu_op *op;

	if (!kernel && !bias)
		return;
	s->sum_bias = cpu_plan_sum(l->plan, s->out);
	if (s->wide || !kernel) {
		if (bias) {
			op = lower_op(l, n, CPU_ROWS, bias_run);
			op->state = s;
			lower_use(l, op, 0, g);
			lower_reduce(l, n->tensor[1], s->sum_bias, s->out);
		}
		if (!kernel)
			return;
		op = lower_op(l, n, CPU_SPLIT, split_run);
		op->state = s;
		s->again = lower_writes(l, n->tensor[0]);
	} else {
		s->sum = cpu_plan_sum(l->plan, (uint64_t)s->in * s->out);
		op = lower_op(l, n, CPU_ROWS, weights_run);
		op->state = s;
		lower_reduce(l, n->tensor[0], s->sum, (uint64_t)s->in * s->out);
		if (bias)
			lower_reduce(l, n->tensor[1], s->sum_bias, s->out);
	}
	lower_use(l, op, 0, x);
	lower_use(l, op, 1, g);
}

void dense_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct dense *s = l->saved[node];
	int32_t g = lower_masked(l, node);
	struct cpu_op *op;

	if (lower_wants(l, n->in[0])) {
		op = lower_op(l, n, s->wide ? CPU_WIDE : CPU_ROWS, data_run);
		op->state = s;
		lower_use(l, op, 1, g);
		lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	}
	dense_backward_kernel(l, n, s, lower_value(l, n->in[0]), g);
}
