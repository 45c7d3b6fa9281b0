/* SPDX-License-Identifier: MIT */
/*
 * conv.c: convolutions (groups, dilation, depthwise) through oneDNN, on NHWC activations. Kernels
 * are packed into the library's layout once per update; gradients of kernels are summed over a
 * worker's chunks in that layout and reordered to HWIO once per step.
 *
 * A primitive is made for a fixed number of rows: one for the chunk of the phase, and smaller ones
 * for what is left at the end of a worker's rows.
 */
#include <stdlib.h>

#include "lower.h"

#define CONV_SIZES 3
#define CONV_MEMORIES 5

/* A primitive with each worker's memory objects; arg -1 ends the list. */
struct conv_call {
	dnnl_primitive_t primitive;
	int n, arg[CONV_MEMORIES];
	dnnl_memory_t *memory; /* [worker][CONV_MEMORIES] */
};

struct conv_size {
	uint32_t rows;
	struct dnn_md x, y;
	dnnl_primitive_desc_t hint; /* of forward; only while preparing */
	struct conv_call forward, data, weights;
};

struct conv {
	const struct backend_node *node;
	struct backend_shape in;
	uint32_t workers;
	bool bias, relu, want_weights, want_data;
	int nd; /* of the kernel: 5 with groups */
	dnnl_dims_t dim;
	struct dnn_md kernel, bias_md; /* as in the arena */
	struct dnn_md packed_md, packed_data_md, sum_md;
	uint64_t packed, packed_data; /* in plan->packed */
	uint64_t sum, sum_bias;	      /* in w->sum */
	uint64_t temp;		      /* in w->scratch, after the primitives' part */
	uint32_t n_sizes;
	struct conv_size size[CONV_SIZES];
	struct conv_call pack, pack_data, unpack; /* each used by one worker at a time */
};

/* ---- calls ------------------------------------------------------------------------------- */

static int call_run(const struct conv_call *c, const struct cpu_worker *w, uint32_t index,
		    void *const handle[CONV_MEMORIES])
{
	dnnl_exec_arg_t arg[CONV_MEMORIES];
	dnnl_status_t status;

	for (int k = 0; k < c->n; k++) {
		arg[k].arg = c->arg[k];
		arg[k].memory = c->memory[index * CONV_MEMORIES + k];
		status = dnnl_memory_set_data_handle(arg[k].memory, handle[k]);
		if (status)
			return dnn_rc(status);
	}
	return dnn_rc(dnnl_primitive_execute(c->primitive, w->stream, c->n, arg));
}

static void call_free(struct conv_call *c, uint32_t workers)
{
	for (uint32_t k = 0; c->memory && k < workers * CONV_MEMORIES; k++)
		if (c->memory[k])
			dnnl_memory_destroy(c->memory[k]);
	free(c->memory);
	if (c->primitive)
		dnnl_primitive_destroy(c->primitive);
	memset(c, 0, sizeof(*c));
}

/* Memory objects without memory: the handles are set at each call. */
static int call_memory(struct conv_call *c, dnnl_engine_t engine, uint32_t workers,
		       dnn_md_ref md[CONV_MEMORIES])
{
	c->memory = calloc((size_t)workers * CONV_MEMORIES, sizeof(*c->memory));
	if (!c->memory)
		return -ENOMEM;
	for (uint32_t w = 0; w < workers; w++)
		for (int k = 0; k < c->n; k++) {
			int rc = dnn_rc(dnnl_memory_create(&c->memory[w * CONV_MEMORIES + k], md[k],
							   engine, DNNL_MEMORY_NONE));
			if (rc)
				return rc;
		}
	return 0;
}

static int call_reorder(struct conv_call *c, dnnl_engine_t engine, const struct dnn_md *from,
			const struct dnn_md *to)
{
	dnn_md_ref md[CONV_MEMORIES] = {dnn_ref(from), dnn_ref(to)};
	int rc = dnn_reorder(&c->primitive, engine, from, to);

	c->n = 2;
	c->arg[0] = DNNL_ARG_FROM;
	c->arg[1] = DNNL_ARG_TO;
	return rc ? rc : call_memory(c, engine, 1, md);
}

/* ---- run --------------------------------------------------------------------------------- */

/* The largest primitive that fits into n rows. */
static const struct conv_size *conv_fit(const struct conv *s, uint32_t n)
{
	uint32_t k = 0;

	while (s->size[k].rows > n)
		k++;
	return &s->size[k];
}

/* operands: y, x */
static int forward_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct conv *s = op->state;
	int rc = 0;

	while (n && !rc) {
		const struct conv_size *z = conv_fit(s, n);
		void *const handle[CONV_MEMORIES] = {
			cpu_at(w, op->buf[1], row), w->plan->packed + s->packed,
			cpu_at(w, op->buf[0], row), w->scratch, (void *)cpu_param(w, s->node, 1)};

		rc = call_run(&z->forward, w, w->index, handle);
		row += z->rows;
		n -= z->rows;
	}
	return rc;
}

/* operands: dx, dy */
static int data_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct conv *s = op->state;
	uint64_t row_floats = w->plan->buffer[op->buf[0]].row;
	int rc = 0;

	while (n && !rc) {
		const struct conv_size *z = conv_fit(s, n);
		float *to = cpu_at(w, op->buf[0], row);
		float *out = op->accumulate ? w->scratch + s->temp : to;
		void *const handle[CONV_MEMORIES] = {cpu_at(w, op->buf[1], row),
						     w->plan->packed + s->packed_data, out,
						     w->scratch};

		rc = call_run(&z->data, w, w->index, handle);
		if (op->accumulate)
			cpu_loops_of(w)->add(to, out, row_floats * z->rows);
		row += z->rows;
		n -= z->rows;
	}
	return rc;
}

/* operands: x, dy */
static int weights_run(const struct cpu_op *op, struct cpu_worker *w, uint32_t row, uint32_t n)
{
	const struct conv *s = op->state;
	uint64_t count = dnn_md_bytes(&s->sum_md) / sizeof(float);
	uint32_t cout = s->node->out.c, begin = row;
	float *sum = w->sum + s->sum, *sum_bias = w->sum + s->sum_bias;
	int rc = 0;

	while (n && !rc) {
		const struct conv_size *z = conv_fit(s, n);
		bool first = w->first && row == begin;
		float *dk = first ? sum : w->scratch + s->temp;
		float *db = first ? sum_bias : dk + (count + CPU_ALIGN - 1) / CPU_ALIGN * CPU_ALIGN;
		void *const handle[CONV_MEMORIES] = {
			cpu_at(w, op->buf[0], row), cpu_at(w, op->buf[1], row), dk, w->scratch, db};

		rc = call_run(&z->weights, w, w->index, handle);
		if (!first)
			cpu_loops_of(w)->add(sum, dk, count);
		if (!first && s->bias)
			cpu_loops_of(w)->add(sum_bias, db, cout);
		row += z->rows;
		n -= z->rows;
	}
	return rc;
}

static int conv_pack(const struct cpu_pack *p, struct cpu_worker *w)
{
	const struct conv *s = p->state;
	void *const handle[CONV_MEMORIES] = {(void *)cpu_param(w, s->node, 0),
					     w->plan->packed + s->packed};
	void *const handle_data[CONV_MEMORIES] = {(void *)cpu_param(w, s->node, 0),
						  w->plan->packed + s->packed_data};
	int rc = call_run(&s->pack, w, 0, handle);

	if (!rc && s->want_data)
		rc = call_run(&s->pack_data, w, 0, handle_data);
	return rc;
}

/* Sums the slots in the library's layout, then brings the sum into HWIO. */
static int conv_reduce(const struct cpu_reduce *r, struct cpu_worker *w)
{
	const struct conv *s = r->state;
	const struct backend_net *base = &w->net->base;
	const struct backend_tensor *t = &base->graph.tensor[r->tensor];
	uint64_t count = dnn_md_bytes(&s->sum_md) / sizeof(float);
	float *out = base->arena[BACKEND_GRAD] + t->offset, *sum = NULL;
	bool add = r->again || w->net->run.accumulate;
	int rc;

	for (uint32_t i = 0; i < w->count; i++) {
		if (!cpu_has_rows(w, i))
			continue;
		if (sum)
			cpu_loops_of(w)->add(sum, w->net->worker[i].sum + s->sum, count);
		else
			sum = w->net->worker[i].sum + s->sum;
	}
	rc = call_run(&s->unpack, w, 0, (void *const[CONV_MEMORIES]){sum, add ? w->scratch : out});
	if (!rc && add)
		cpu_loops_of(w)->add(out, w->scratch, t->count);
	return rc;
}

/* ---- making the primitives --------------------------------------------------------------- */

static int md_activation(struct dnn_md *md, uint32_t n, struct backend_shape s)
{
	const dnnl_dims_t dim = {n, s.c, s.h, s.w};
	const dnnl_dims_t stride = {(dnnl_dim_t)s.h * s.w * s.c, 1, (dnnl_dim_t)s.w * s.c, s.c};

	return dnn_md_strided(md, 4, dim, stride);
}

/* (kh, kw, cin / g, cout), or depthwise (kh, kw, c, multiplier), as (g,) o, i, kh, kw. */
static int md_kernel(struct conv *s)
{
	const struct backend_node *n = s->node;
	bool depthwise = n->op == BACKEND_DEPTHWISE;
	dnnl_dim_t g = depthwise ? s->in.c : n->groups, o = n->out.c / g, i = s->in.c / g;
	dnnl_dim_t kw = n->window.kw, last = depthwise ? o : n->out.c;
	dnnl_dim_t group = depthwise ? g * o : i * last; /* floats of one tap */
	const dnnl_dims_t dim = {g, o, i, n->window.kh, kw};
	const dnnl_dims_t stride = {depthwise ? o : o, 1, last, kw * group, group};
	int skip = g == 1;

	s->nd = 5 - skip;
	memcpy(s->dim, dim + skip, sizeof(dnnl_dim_t) * (size_t)s->nd);
	return dnn_md_strided(&s->kernel, s->nd, s->dim, stride + skip);
}

static void conv_describe(const struct conv *s, struct dnn_conv *d)
{
	const struct backend_window *w = &s->node->window;

	d->bias = s->bias ? &s->bias_md : NULL;
	d->stride[0] = w->stride_h;
	d->stride[1] = w->stride_w;
	d->dilation[0] = (dnnl_dim_t)w->dilation_h - 1;
	d->dilation[1] = (dnnl_dim_t)w->dilation_w - 1;
	d->pad_low[0] = w->pad_top;
	d->pad_low[1] = w->pad_left;
	d->pad_high[0] = w->pad_bottom;
	d->pad_high[1] = w->pad_right;
	d->inference = !s->want_weights && !s->want_data;
}

/* Primitive and memory of one kind and size. layout: the kernel's layout, found by the largest
 * size and then asked for by the others. */
static int conv_make(struct conv *s, struct conv_size *z, enum dnn_conv_kind kind,
		     struct conv_call *call, struct dnn_md *layout, struct cpu_plan *plan,
		     dnnl_engine_t engine)
{
	static const int arg[3][CONV_MEMORIES] = {
		{DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD, DNNL_ARG_BIAS},
		{DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC, DNNL_ARG_SCRATCHPAD, 0},
		{DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_SCRATCHPAD,
		 DNNL_ARG_DIFF_BIAS}};
	struct dnn_conv d = {.x = &z->x, .y = &z->y};
	bool first = z == &s->size[0];
	dnnl_primitive_desc_t pd = NULL;
	dnnl_primitive_attr_t attr;
	struct dnn_md any = {0};
	int rc = dnn_attr(&attr, kind == DNN_FORWARD && s->relu);

	if (rc)
		return rc;
	conv_describe(s, &d);
	rc = dnn_md_any(&any, s->nd, s->dim);
	d.w = first ? &any : layout;
	if (!rc)
		rc = dnn_conv_pd(&pd, engine, kind, &d, z->hint, attr);
	dnnl_primitive_attr_destroy(attr);
	dnn_md_free(&any);
	if (rc)
		return rc;
	if (first)
		rc = dnn_md_query(layout, pd,
				  kind == DNN_BACKWARD_WEIGHTS ? dnnl_query_diff_weights_md
							       : dnnl_query_weights_md);
	if (!rc)
		rc = dnn_rc(dnnl_primitive_create(&call->primitive, pd));
	if (!rc) {
		dnn_md_ref x = dnn_ref(&z->x), y = dnn_ref(&z->y), k = dnn_ref(layout);
		dnn_md_ref scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
		dnn_md_ref md[3][CONV_MEMORIES] = {{x, k, y, scratch, dnn_ref(d.bias)},
						   {y, k, x, scratch, NULL},
						   {x, y, k, scratch, dnn_ref(d.bias)}};

		memcpy(call->arg, arg[kind], sizeof(call->arg));
		call->n = s->bias && kind != DNN_BACKWARD_DATA ? 5 : 4;
		cpu_plan_scratch(plan, dnn_scratch_bytes(pd) / sizeof(float) + CPU_ALIGN);
		s->temp = dnn_scratch_bytes(pd) > s->temp ? dnn_scratch_bytes(pd) : s->temp;
		rc = call_memory(call, engine, s->workers, md[kind]);
	}
	if (kind == DNN_FORWARD && !rc)
		z->hint = pd;
	else
		dnnl_primitive_desc_destroy(pd);
	return rc;
}

static int conv_make_size(struct conv *s, struct conv_size *z, struct cpu_plan *plan,
			  dnnl_engine_t engine)
{
	int rc = md_activation(&z->x, z->rows, s->in);

	if (!rc)
		rc = md_activation(&z->y, z->rows, s->node->out);
	if (!rc)
		rc = conv_make(s, z, DNN_FORWARD, &z->forward, &s->packed_md, plan, engine);
	if (!rc && s->want_data)
		rc = conv_make(s, z, DNN_BACKWARD_DATA, &z->data, &s->packed_data_md, plan, engine);
	if (!rc && s->want_weights)
		rc = conv_make(s, z, DNN_BACKWARD_WEIGHTS, &z->weights, &s->sum_md, plan, engine);
	if (z->hint)
		dnnl_primitive_desc_destroy(z->hint);
	z->hint = NULL;
	return rc;
}

/* Reorders, and the memory that only now has a size. */
static int conv_make_layouts(struct conv *s, struct cpu_plan *plan, dnnl_engine_t engine)
{
	uint64_t sum = 0, data = 0;
	int rc;

	s->packed = cpu_plan_packed(plan, dnn_md_bytes(&s->packed_md) / sizeof(float));
	rc = call_reorder(&s->pack, engine, &s->kernel, &s->packed_md);
	if (!rc && s->want_data) {
		s->packed_data =
			cpu_plan_packed(plan, dnn_md_bytes(&s->packed_data_md) / sizeof(float));
		rc = call_reorder(&s->pack_data, engine, &s->kernel, &s->packed_data_md);
		data = s->size[0].rows * backend_shape_count(s->in);
	}
	if (!rc && s->want_weights) {
		sum = dnn_md_bytes(&s->sum_md) / sizeof(float);
		s->sum = cpu_plan_sum(plan, sum);
		rc = call_reorder(&s->unpack, engine, &s->sum_md, &s->kernel);
		sum += CPU_ALIGN + s->node->out.c;
	}
	s->temp = (s->temp / sizeof(float) + 2 * CPU_ALIGN) / CPU_ALIGN * CPU_ALIGN;
	cpu_plan_scratch(plan, s->temp + (sum > data ? sum : data));
	return rc;
}

static int conv_prepare(void *state, struct cpu_net *net, struct cpu_plan *plan,
			struct backend_error *error)
{
	struct conv *s = state;
	dnnl_engine_t engine = net->backend->engine;
	uint32_t rows = cpu_plan_rows(net, plan, s);
	const dnnl_dims_t channels = {s->node->out.c}, one = {1};
	int rc = md_kernel(s);

	s->workers = net->workers;
	if (!rc && s->bias)
		rc = dnn_md_strided(&s->bias_md, 1, channels, one);
	while (!rc && s->n_sizes < CONV_SIZES) {
		struct conv_size *z = &s->size[s->n_sizes++];

		z->rows = s->n_sizes == CONV_SIZES ? 1 : rows;
		rc = conv_make_size(s, z, plan, engine);
		if (z->rows == 1)
			break;
		rows = rows > 4 ? rows / 4 : 1;
	}
	if (!rc)
		rc = conv_make_layouts(s, plan, engine);
	return rc ? backend_fail(error, rc, "layer %s: oneDNN cannot do this convolution (%d)",
				 s->node->name, rc)
		  : 0;
}

static void conv_undo(void *state)
{
	struct conv *s = state;

	for (uint32_t k = 0; k < s->n_sizes; k++) {
		call_free(&s->size[k].forward, s->workers);
		call_free(&s->size[k].data, s->workers);
		call_free(&s->size[k].weights, s->workers);
		dnn_md_free(&s->size[k].x);
		dnn_md_free(&s->size[k].y);
	}
	call_free(&s->pack, 1);
	call_free(&s->pack_data, 1);
	call_free(&s->unpack, 1);
	dnn_md_free(&s->kernel);
	dnn_md_free(&s->bias_md);
	dnn_md_free(&s->packed_md);
	dnn_md_free(&s->packed_data_md);
	dnn_md_free(&s->sum_md);
}

static const struct cpu_state_class conv_class = {conv_prepare, NULL, conv_undo};

/* ---- lowering ---------------------------------------------------------------------------- */

void conv_forward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	uint32_t end = lower_end(l, node);
	struct conv *s;
	struct cpu_op *op;

	if (wino_wanted(l, node)) {
		wino_forward(l, node);
		return;
	}
	s = lower_state(l, sizeof(*s), &conv_class);
	if (!s)
		return;
	l->saved[node] = s;
	s->node = n;
	s->in = lower_shape(l, n->in[0]);
	s->bias = n->tensor[1] >= 0;
	s->relu = end != node;
	s->want_weights =
		l->plan->training && (lower_trainable(l, n, 0) || lower_trainable(l, n, 1));
	s->want_data = l->plan->training && lower_wants(l, n->in[0]);
	lower_pack(l, n->tensor[0], conv_pack, s);
	op = lower_op(l, n, CPU_ROWS, forward_run);
	op->state = s;
	lower_use(l, op, 1, lower_value(l, n->in[0]));
	lower_use(l, op, 0, lower_value(l, end));
}

void conv_backward(struct lower *l, uint32_t node)
{
	const struct backend_node *n = lower_node(l, node);
	struct conv *s = l->saved[node];
	struct cpu_op *op;
	int32_t g;

	if (wino_wanted(l, node)) {
		wino_backward(l, node);
		return;
	}
	g = lower_masked(l, node);
	if (s->want_weights) {
		int32_t x = norm_again(l, n->in[0]);

		op = lower_op(l, n, CPU_ROWS, weights_run);
		op->state = s;
		lower_use(l, op, 0, x);
		lower_use(l, op, 1, g);
		if (lower_trainable(l, n, 0)) {
			struct cpu_reduce *r = lower_reduce(l, n->tensor[0], 0, 0);

			r->run = conv_reduce;
			r->state = s;
			cpu_plan_scratch(l->plan, l->graph->tensor[n->tensor[0]].count);
		}
		if (s->bias) {
			s->sum_bias = cpu_plan_sum(l->plan, n->out.c);
			if (lower_trainable(l, n, 1))
				lower_reduce(l, n->tensor[1], s->sum_bias, n->out.c);
		}
	}
	if (s->want_data) {
		op = lower_op(l, n, CPU_ROWS, data_run);
		op->state = s;
		lower_use(l, op, 1, g);
		lower_use(l, op, 0, lower_gradient_to(l, n->in[0], &op->accumulate));
	}
}
