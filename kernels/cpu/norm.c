/* SPDX-License-Identifier: MIT */
/*
 * norm.c: batch norm, with the Add and the ReLU that follow done in the same pass. In training the
 * workers meet between the statistics and their use, forward and backward.
 *
 * Statistics of a chunk are taken relative to its first pixel (f32 blocks, double sums) and merged
 * in slot order as (count, mean, sum of squared deviations) (Chan, Golub, LeVeque 1983), so a large
 * mean costs no digits.
 */
#include <math.h>

#include "lower.h"

struct norm {
	const struct backend_node *node;
	uint32_t c;
	uint64_t pixels; /* of a row */
	bool batch;	 /* statistics of the batch, else the moving ones */
	/* offsets in w->sum; the first five are doubles */
	uint64_t count, mean, m2;      /* forward, of the worker's rows */
	uint64_t sg, sq;	       /* backward, likewise */
	uint64_t part;		       /* double[2 * c]: of one chunk */
	uint64_t mean_f, scale, shift; /* values in use */
	uint64_t rstd, k1, k2, k3;
};

static double *norm_d(const struct cpu_worker *w, uint64_t offset)
{
	return (double *)(w->sum + offset);
}

static struct loops_norm norm_values(const struct norm *s, const struct cpu_worker *w)
{
	return (struct loops_norm){w->sum + s->mean_f, w->sum + s->scale, w->sum + s->shift};
}

/* ---- forward ----------------------------------------------------------------------------- */

/* (n, mean, m2) += (m, mean_b, m2_b) */
static void norm_merge(double n, double *mean, double *m2, double m, double mean_b, double m2_b)
{
	double delta = mean_b - *mean, total = n + m;

	*mean += delta * (m / total);
	*m2 += m2_b + delta * delta * (n * m / total);
}

static int stats_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct norm *s = op->state;
	const float *x = cpu_at(w, op->buf[0], row);
	double *a = norm_d(w, s->part), *b = a + s->c, *count = norm_d(w, s->count);
	double *mean = norm_d(w, s->mean), *m2 = norm_d(w, s->m2), m = (double)(s->pixels * n);

	cpu_loops_of(w)->norm_stats(x, s->pixels * n, s->c, a, b);
	if (w->first)
		*count = 0;
	for (uint32_t k = 0; k < s->c; k++) {
		double mean_b = x[k] + a[k] / m, m2_b = b[k] - a[k] * (a[k] / m);

		m2_b = m2_b > 0 ? m2_b : m2_b == m2_b ? 0 : m2_b;
		if (*count == 0) {
			mean[k] = mean_b;
			m2[k] = m2_b;
		} else {
			norm_merge(*count, &mean[k], &m2[k], m, mean_b, m2_b);
		}
	}
	*count += m;
	return 0;
}

/* Mean and variance of channel k over all slots. */
static void norm_pool(const struct norm *s, const struct cpu_worker *w, uint32_t k, double *mean,
		      double *variance)
{
	double n = 0, m2 = 0;

	*mean = 0;
	for (uint32_t t = 0; t < w->count; t++) {
		const struct cpu_worker *o = &w->net->worker[t];

		if (!cpu_has_rows(w, t))
			continue;
		if (n == 0) {
			*mean = norm_d(o, s->mean)[k];
			m2 = norm_d(o, s->m2)[k];
		} else {
			norm_merge(n, mean, &m2, *norm_d(o, s->count), norm_d(o, s->mean)[k],
				   norm_d(o, s->m2)[k]);
		}
		n += *norm_d(o, s->count);
	}
	*variance = m2 / n;
}

static void norm_move(const struct cpu_worker *w, const struct backend_node *node, int tensor,
		      uint32_t k, double value)
{
	float *moving =
		w->net->run.stat_out + w->net->base.graph.tensor[node->tensor[tensor]].offset;

	moving[k] = (float)(moving[k] * (double)node->momentum +
			    value * (1.0 - (double)node->momentum));
}

static int apply_enter(const struct cpu_op *op, struct cpu_worker *w)
{
	const struct norm *s = op->state;
	const float *gamma = cpu_param(w, s->node, 0), *beta = cpu_param(w, s->node, 1);

	for (uint32_t k = 0; k < s->c; k++) {
		double mean, variance, rstd;

		if (s->batch) {
			norm_pool(s, w, k, &mean, &variance);
			if (w->index == 0) {
				norm_move(w, s->node, 2, k, mean);
				norm_move(w, s->node, 3, k, variance);
			}
		} else {
			mean = cpu_stat(w, s->node, 2)[k];
			variance = cpu_stat(w, s->node, 3)[k];
		}
		rstd = 1.0 / sqrt(variance + (double)s->node->epsilon);
		(w->sum + s->mean_f)[k] = (float)mean;
		(w->sum + s->rstd)[k] = (float)rstd;
		(w->sum + s->scale)[k] = (float)((gamma ? gamma[k] : 1.0) * rstd);
		(w->sum + s->shift)[k] = beta ? beta[k] : 0.0f;
	}
	return 0;
}

/* operands: y, x, other summand */
static int apply_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct norm *s = op->state;
	struct loops_norm values = norm_values(s, w);

	cpu_loops_of(w)->norm_apply(cpu_at(w, op->buf[0], row), cpu_at(w, op->buf[1], row),
				    cpu_operand(op, w, 2, row), s->pixels * n, s->c, &values,
				    op->relu);
	return 0;
}

static uint64_t norm_room(struct lower *l, uint64_t floats)
{
	return l->rc ? 0 : cpu_plan_sum(l->plan, floats);
}

static struct norm *norm_state(struct lower *l, uint32_t node)
{
	struct norm *s = lower_state(l, sizeof(*s), NULL);
	struct backend_shape shape = lower_shape(l, node);
	uint32_t c = shape.c;

	if (!s)
		return NULL;
	s->node = lower_node(l, node);
	s->c = c;
	s->pixels = (uint64_t)shape.h * shape.w;
	s->batch = l->plan->training && !s->node->frozen;
	if (l->plan->training) {
		s->count = norm_room(l, 2);
		s->mean = norm_room(l, 2 * c);
		s->m2 = norm_room(l, 2 * c);
		s->sg = norm_room(l, 2 * c);
		s->sq = norm_room(l, 2 * c);
		s->part = norm_room(l, 4 * c);
		s->k1 = norm_room(l, c);
		s->k2 = norm_room(l, c);
		s->k3 = norm_room(l, c);
	}
	s->mean_f = norm_room(l, c);
	s->rstd = norm_room(l, c);
	s->scale = norm_room(l, c);
	s->shift = norm_room(l, c);
	return s;
}

/* The summand of a fused Add that is not this batch norm. */
static uint32_t norm_other(const struct lower *l, uint32_t node)
{
	const struct backend_node *add = lower_node(l, l->add[node]);

	return l->alias[add->in[0]] == node ? l->alias[add->in[1]] : l->alias[add->in[0]];
}

void norm_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct norm *s = norm_state(l, node);
	uint32_t end = lower_end(l, node);
	struct cpu_op *op;

	if (!s)
		return;
	l->saved[node] = s;
	if (s->batch) {
		op = lower_op(l, n, CPU_ROWS, stats_run);
		op->state = s;
		lower_use(l, op, 0, lower_value(l, n->in[0]));
	}
	op = lower_op(l, n, CPU_ROWS, apply_run);
	op->enter = apply_enter;
	op->state = s;
	op->sync = s->batch;
	op->relu = lower_node(l, end)->op == BACKEND_ACTIVATION;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	if (l->add[node])
		lower_use(l, op, 2, lower_value(l, norm_other(l, node)));
	lower_use(l, op, 0, lower_value(l, end));
	op->share_to = 0;
	op->share_of = 1;
}

/*
 * The value of a batch norm + ReLU once more, for a reader in backward: computing it from x, which
 * backward reads anyway, costs less than keeping it for the whole batch.
 */
int32_t norm_again(struct lower *l, uint32_t node)
{
	uint32_t v = l->alias[node], head = l->head[v];
	const struct backend_node *n = lower_node(l, head);
	int32_t to;
	struct cpu_op *op;

	if (n->op != BACKEND_BATCHNORM || l->add[head] || l->uses[v] != 1)
		return lower_value(l, node);
	to = lower_buffer(l, backend_shape_count(n->out));
	op = lower_op(l, n, CPU_ROWS, apply_run);
	op->state = l->saved[head];
	op->relu = v != head;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, to);
	return to;
}

/* ---- backward ---------------------------------------------------------------------------- */

/* operands: masked gradient (or -1), gradient, x, y of the group (or -1) */
static int sums_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct norm *s = op->state;
	struct loops_norm values = norm_values(s, w);
	double *a = norm_d(w, s->part), *b = a + s->c;
	double *sg = norm_d(w, s->sg), *sq = norm_d(w, s->sq);

	cpu_loops_of(w)->norm_sums(cpu_operand(op, w, 0, row), cpu_at(w, op->buf[1], row),
				   cpu_at(w, op->buf[2], row), cpu_operand(op, w, 3, row),
				   s->pixels * n, s->c, &values, op->relu, a, b);
	for (uint32_t k = 0; k < s->c; k++) {
		sg[k] = (w->first ? 0 : sg[k]) + a[k];
		sq[k] = (w->first ? 0 : sq[k]) + b[k];
	}
	return 0;
}

static void norm_gradient(const struct cpu_op *op, const struct cpu_worker *w, int tensor,
			  uint32_t k, double value)
{
	const struct norm *s = op->state;
	const struct backend_tensor *t;
	float *g;

	if (s->node->tensor[tensor] < 0)
		return;
	t = &w->net->base.graph.tensor[s->node->tensor[tensor]];
	if (!t->trainable)
		return;
	g = w->net->base.arena[BACKEND_GRAD] + t->offset + k;
	*g = (w->net->run.accumulate || (op->sum >> tensor & 1) ? *g : 0.0f) + (float)value;
}

static int back_enter(const struct cpu_op *op, struct cpu_worker *w)
{
	const struct norm *s = op->state;
	double m = (double)(s->pixels * w->net->run.batch->n);

	for (uint32_t k = 0; k < s->c; k++) {
		double sg = 0, sq = 0, scale = (w->sum + s->scale)[k], rstd = (w->sum + s->rstd)[k];

		for (uint32_t t = 0; op->sync && t < w->count; t++) {
			if (!cpu_has_rows(w, t))
				continue;
			sg += norm_d(&w->net->worker[t], s->sg)[k];
			sq += norm_d(&w->net->worker[t], s->sq)[k];
		}
		(w->sum + s->k1)[k] = (float)scale;
		(w->sum + s->k2)[k] = s->batch ? (float)(-scale * rstd * rstd * sq / m) : 0.0f;
		(w->sum + s->k3)[k] = s->batch ? (float)(-scale * sg / m) : 0.0f;
		if (w->index == 0 && op->sync) {
			norm_gradient(op, w, 0, k, sq * rstd);
			norm_gradient(op, w, 1, k, sg);
		}
	}
	return 0;
}

/* operands: dx (or -1), gradient, x */
static int back_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct norm *s = op->state;
	struct loops_norm values = norm_values(s, w);

	if (op->buf[0] < 0)
		return 0;
	cpu_loops_of(w)->norm_back(cpu_at(w, op->buf[0], row), cpu_at(w, op->buf[1], row),
				   cpu_at(w, op->buf[2], row), s->pixels * n, s->c, &values,
				   w->sum + s->k1, w->sum + s->k2, w->sum + s->k3, op->relu,
				   op->accumulate);
	return 0;
}

static int copy_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	float *to = cpu_at(w, op->buf[0], row);
	const float *from = cpu_at(w, op->buf[1], row);
	uint64_t count = w->plan->buffer[op->buf[0]].row * n;

	if (op->accumulate)
		cpu_loops_of(w)->add(to, from, count);
	else if (to != from)
		memcpy(to, from, count * sizeof(float));
	return 0;
}

void lower_copy_gradient(struct lower *l, const struct backend_node *node, int32_t from,
			 uint32_t to)
{
	bool accumulate;
	int32_t target = lower_gradient_to(l, to, &accumulate);
	struct cpu_op *op = lower_op(l, node, CPU_ROWS, copy_run);

	op->accumulate = accumulate;
	lower_use(l, op, 0, target);
	lower_use(l, op, 1, from);
	if (!accumulate) {
		op->share_to = 0;
		op->share_of = 1;
	}
}

/* The mask of a fused Add + ReLU is by the group's value and its result is kept: both summands
 * want it. Without Add it is recomputed from x. */
void norm_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	const struct norm *s = l->saved[node];
	uint32_t end = lower_end(l, node);
	bool relu = lower_node(l, end)->op == BACKEND_ACTIVATION, add = l->add[node];
	bool sums = s->batch || lower_trainable(l, n, 0) || lower_trainable(l, n, 1);
	int32_t x = lower_value(l, n->in[0]), g = lower_gradient(l, end), d = g;
	struct cpu_op *op;

	if (relu && add && !sums) {
		d = g = lower_masked(l, node);
		relu = false;
	} else if (relu && add) {
		d = lower_buffer(l, backend_shape_count(n->out));
	}
	if (sums) {
		op = lower_op(l, n, CPU_ROWS, sums_run);
		op->state = s;
		op->relu = relu;
		lower_use(l, op, 0, relu && add ? d : -1);
		lower_use(l, op, 1, g);
		lower_use(l, op, 2, x);
		lower_use(l, op, 3, relu && add ? lower_value(l, end) : -1);
		op->share_to = relu && add ? 0 : -1;
		op->share_of = 1;
	}
	op = lower_op(l, n, CPU_ROWS, back_run);
	op->enter = back_enter;
	op->state = s;
	op->sync = sums;
	op->relu = relu && !add;
	for (int k = 0; k < 2; k++)
		if (lower_trainable(l, n, k) && lower_writes(l, n->tensor[k]))
			op->sum |= 1u << k;
	lower_use(l, op, 1, d);
	lower_use(l, op, 2, x);
	if (lower_wants(l, n->in[0])) {
		int32_t dx = lower_gradient_to(l, n->in[0], &op->accumulate);

		lower_use(l, op, 0, dx);
		op->share_to = op->accumulate ? -1 : 0;
		op->share_of = 1;
	}
	if (add && lower_wants(l, norm_other(l, node)))
		lower_copy_gradient(l, lower_node(l, l->add[node]), d, norm_other(l, node));
}
