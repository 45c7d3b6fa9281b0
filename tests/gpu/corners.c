/* SPDX-License-Identifier: MIT */
/*
 * corners.c: what the table of cases does not reach, against ref: algorithms that are tried out
 * rather than ranked, sums with an activation of their own, frozen tensors and layers that nobody
 * asks for, logits with a second reader, pooling windows with more than 255 places, batches without
 * rows, rows larger than the bounce buffer, the growth of f16's loss scale; and what is refused.
 */
#include "gpu_trial.h"

static const struct backend_loss_config crossentropy = {BACKEND_SPARSE_CROSSENTROPY, 0, false};

static struct backend_net_options options_of(struct build *b, const struct op_case *op, uint32_t n)
{
	op->build(b);
	if (b_finish(b))
		BAIL("%s: no graph", op->name);
	return trial_options(&b->graph, op, n);
}

/* A gradient, on top of it another one, and an evaluation, in one precision. */
static void try_network(struct build *b, const struct op_case *op, uint32_t n,
			enum backend_precision precision, uint32_t flags, bool deterministic)
{
	const struct backend_options how = {.precision = precision, .flags = flags};
	struct backend_net_options options = options_of(b, op, n);
	struct backend_sums got = {0}, want = {0};
	struct backend_error error = {""};
	bool good = true;
	struct pair p;

	options.deterministic = deterministic;
	if (!pair_open(&p, op, b, n, n, &how, &options)) {
		pair_close(&p);
		return;
	}
	if (precision == BACKEND_PRECISION_F16)
		find_loss_scale(&p);
	/* what lay there is gone, also where nothing is written */
	for (uint64_t k = 0; k < p.gpu.params; k++)
		p.want[k] = 7.0f;
	if (backend_write(p.ref.net, BACKEND_GRAD, 0, p.ref.params, p.want) ||
	    backend_write(p.gpu.net, BACKEND_GRAD, 0, p.gpu.params, p.want))
		BAIL("%s: gradients not written", op->name);
	for (int pass = 0; pass < 4 && good; pass++) {
		if (backend_gradient(p.ref.net, &p.ref.batch, 0.25f, pass & 1, NULL, NULL, &want,
				     p.want, &error) ||
		    backend_gradient(p.gpu.net, &p.gpu.batch, 0.25f, pass & 1, NULL, NULL, &got,
				     p.got, &error))
			BAIL("%s: %s", op->name, error.message);
		good = pair_outputs(&p, "gradient", op->name, n) &&
		       pair_sums(&p, "gradient", op->name, &got, &want) &&
		       pair_arena(&p, "gradient", op->name, BACKEND_GRAD,
				  2 * p.kinks * p.tolerance);
	}
	ok(good, "%s, %s%s%s", op->name, precision_name[precision],
	   flags & BACKEND_NO_FUSION ? ", no fusion" : "",
	   deterministic ? "" : ", not deterministic");
	pair_close(&p);
}

/* ---- networks ------------------------------------------------------------------------------- */

/* Every kind of convolution that the library takes: padded, strided, grouped, with and without
 * bias and activation; shapes that come twice. */
static void convolutions(struct build *b)
{
	int x = b_conv(b, b_input(b, 10, 10, 4), 8, b_same(3, 2, 1, 10, 10), 1, true);

	x = b_act(b, x, BACKEND_RELU, 0);
	for (int k = 0; k < 2; k++)
		x = b_act(b, b_conv(b, x, 8, b_same(3, 1, 1, 5, 5), 2, false), BACKEND_TANH, 0);
	x = b_conv(b, x, 8, b_valid(3, 1), 1, true);
	b_act(b, b_dense(b, b_flatten(b, x), 5, true), BACKEND_SOFTMAX, 0);
}

static void sums(struct build *b)
{
	int x = b_dense(b, b_input(b, 3, 3, 4), 6, true), y = b_dense(b, x, 6, true);

	x = b_act(b, b_add(b, x, y, -1), BACKEND_RELU, 0);
	y = b_act(b, b_add(b, x, y, x), BACKEND_TANH, 0);
	b_act(b, b_dense(b, b_flatten(b, y), 3, true), BACKEND_SOFTMAX, 0);
}

/* Six inputs: more than one launch takes. */
static void long_sum(struct build *b)
{
	static uint32_t in[6];
	int first = b_dense(b, b_input(b, 3, 3, 4), 5, true), x;

	in[0] = (uint32_t)first;
	for (uint32_t k = 1; k < 6; k++)
		in[k] = (uint32_t)b_dense(b, first, 5, true);
	x = b_add(b, first, first, -1);
	b->node[x].in = in;
	b->node[x].n_in = 6;
	x = b_act(b, x, BACKEND_RELU, 0);
	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

/* A frozen kernel in the middle, and layers whose values nobody asks for. */
static void frozen(struct build *b)
{
	int x = b_conv_same(b, b_input(b, 6, 6, 3), 4, 3, 1);

	x = b_conv_same(b, x, 4, 3, 1);
	b->tensor[b->node[x].tensor[0]].trainable = false;
	b_dense(b, x, 7, true);
	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

/* The logits are read by a layer that leads nowhere, too. */
static void two_readers(struct build *b)
{
	int x = b_dense(b, b_flatten(b, b_input(b, 4, 4, 2)), 9, true);

	x = b_dense(b, b_act(b, x, BACKEND_TANH, 0), 4, true);
	b_act(b, x, BACKEND_TANH, 0);
	b_act(b, x, BACKEND_SOFTMAX, 0);
}

static void wide_pool(struct build *b)
{
	int x = b_dense(b, b_input(b, 19, 20, 2), 4, true);
	struct backend_window w = b_valid(17, 2);

	w.kw = 16;
	x = b_pool(b, x, BACKEND_MAXPOOL, w);
	b_act(b, b_dense(b, b_flatten(b, x), 3, true), BACKEND_SOFTMAX, 0);
}

static void try_networks(struct build *b)
{
	static const struct op_case op[] = {
		{"algorithms that are tried", convolutions, crossentropy, false},
		{"activated sums", sums, crossentropy, true},
		{"a sum of six", long_sum, crossentropy, false},
		{"frozen and unreached", frozen, crossentropy, false},
		{"logits with two readers", two_readers, crossentropy, false},
		{"pooling of 17 x 16", wide_pool, crossentropy, false},
	};

	for (size_t i = 0; i < sizeof(op) / sizeof(*op); i++)
		for (int p = 0; p < BACKEND_PRECISION_COUNT; p++) {
			try_network(b, &op[i], 3, p, 0, i > 0);
			if (p == BACKEND_PRECISION_BF16)
				try_network(b, &op[i], 3, p, BACKEND_NO_FUSION, i > 0);
		}
}

/* ---- no rows -------------------------------------------------------------------------------- */

/* A step without rows is an update by the gradient 0: momentum goes on. */
static void try_no_rows(struct build *b)
{
	static const struct op_case op = {"no rows", sums, crossentropy, false};
	struct backend_net_options options = options_of(b, &op, 4);
	struct backend_sums of_ref = {.n = 1}, of_gpu = {.n = 1};
	struct backend_error error = {""};
	struct backend_batch none;
	bool good;
	struct pair p;

	options.optimizer.momentum = 0.9f;
	if (!pair_open(&p, &op, b, 4, 4, NULL, &options))
		BAIL("no net");
	none = p.ref.batch;
	none.n = 0;
	good = !backend_step(p.ref.net, &p.ref.batch, 0.25f, 0.1, 1, NULL, NULL, NULL, &error) &&
	       !backend_step(p.gpu.net, &p.gpu.batch, 0.25f, 0.1, 1, NULL, NULL, NULL, &error) &&
	       !backend_step(p.ref.net, &none, 0.25f, 0.1, 2, &of_ref, NULL, NULL, &error) &&
	       !backend_step(p.gpu.net, &none, 0.25f, 0.1, 2, &of_gpu, NULL, NULL, &error);
	ok(good && of_gpu.n == 0 && of_gpu.loss == 0 &&
		   pair_arena(&p, "step", "no rows", BACKEND_PARAM, 4 * p.tolerance),
	   "a step without rows %s", error.message);
	of_gpu.n = 1;
	ok(!backend_evaluate(p.gpu.net, NULL, NULL, &none, &of_gpu, NULL, &error) && !of_gpu.n,
	   "an evaluation without rows %s", error.message);
	pair_close(&p);
}

/* ---- large rows ----------------------------------------------------------------------------- */

static void large(struct build *b)
{
	int x = b_global(b, b_input(b, 1100, 1000, 1), BACKEND_GLOBAL_MAXPOOL);

	b_act(b, b_dense(b, x, 3, true), BACKEND_SOFTMAX, 0);
}

static void try_large_rows(struct build *b)
{
	static const struct op_case op = {"large rows", large, crossentropy, false};
	static const uint32_t index[2] = {1, 0};
	const void *row[2], *many[200];
	struct backend_error error = {""};
	struct backend_sums sums = {0};
	bool good;
	struct pair p;
	int rc;

	if (!pair_open(&p, &op, b, 2, 2, NULL, NULL))
		BAIL("no net");
	for (int k = 0; k < 2; k++)
		row[k] = p.gpu.batch.x[1 - k];
	p.gpu.batch.index = index;
	good = !backend_resident(p.gpu.net, row, 2, &error) &&
	       !backend_evaluate(p.gpu.net, NULL, NULL, &p.gpu.batch, &sums, p.got, &error) &&
	       !backend_evaluate(p.ref.net, NULL, NULL, &p.ref.batch, &sums, p.want, &error);
	ok(good && pair_outputs(&p, "evaluation", op.name, 2), "rows of 4.4 MB lie on the device");
	for (int k = 0; k < 200; k++)
		many[k] = row[0];
	rc = backend_resident(p.gpu.net, many, 200, &error);
	ok(!rc || (rc == -ENOSPC && strstr(error.message, "free")),
	   "more rows than there is room for: %d %s", rc, rc ? error.message : "(there is)");
	p.gpu.batch.index = NULL;
	ok(!backend_evaluate(p.gpu.net, NULL, NULL, &p.gpu.batch, &sums, p.got, &error) &&
		   pair_outputs(&p, "evaluation", op.name, 2),
	   "rows from the host all the same");
	pair_close(&p);
}

/* ---- f16 ------------------------------------------------------------------------------------ */

static void linear(struct build *b)
{
	b_dense(b, b_flatten(b, b_input(b, 1, 1, 2)), 1, false);
}

/*
 * y = w x, the squared error of one row: dw = 2 (w x - y) x. The loss scale begins at 2^15 and
 * doubles after 2000 good steps; a scaled gradient beyond 65504 is Inf in f16: the step is left out
 * and the scale halved.
 */
static void try_loss_scale(struct build *b)
{
	static const struct op_case op = {"loss scale", linear, {BACKEND_MSE, 0, false}, false};
	const struct backend_options how = {.precision = BACKEND_PRECISION_F16};
	struct backend_applied applied = {0};
	struct backend_error error = {""};
	int good = 0, left_out = -1;
	struct trial t;

	if (trial_open(&t, gpu_backend(), &op, b, 1, 1, &how, 5, NULL, &error))
		BAIL("%s", error.message);
	t.x[0] = t.x[1] = 1.0f;
	t.param[0] = t.param[1] = 0.0f;
	t.target[0] = 0.7f; /* d loss / d y = 2 (0 - 0.7): 45,875 times 2^15 in all, 91,750 after */
	if (backend_write(t.net, BACKEND_PARAM, 0, t.params, t.param))
		BAIL("parameters not written");
	for (int k = 0; k < 2010; k++) {
		if (backend_step(t.net, &t.batch, 1.0f, 0.0, (uint64_t)good + 1, NULL, NULL,
				 &applied, &error))
			BAIL("%s", error.message);
		good += applied.finite;
		if (!applied.finite && left_out < 0)
			left_out = k;
	}
	is(left_out, 2000, "f16: the loss scale doubles after 2000 good steps");
	is(good, 2009, "and one step later it is halved again");
	trial_free(&t);
}

/* ---- refused -------------------------------------------------------------------------------- */

/* Without a stride it is a product of matrices, whose filter is packed in another way. */
static void shared_filter(struct build *b)
{
	int x = b_conv(b, b_input(b, 4, 4, 4), 4, b_valid(1, 2), 1, false), y;

	y = b_conv(b, x, 4, b_valid(1, 1), 1, false);
	b->node[y].tensor[0] = b->node[x].tensor[0];
	b->n_tensors--;
	b_act(b, b_flatten(b, y), BACKEND_SOFTMAX, 0);
}

static void many_groups(struct build *b)
{
	int x = b_conv(b, b_input(b, 2, 2, 65536), 65536, b_valid(2, 1), 65536, false);

	b_act(b, b_dense(b, x, 2, true), BACKEND_SOFTMAX, 0);
}

static void try_refused(struct build *b)
{
	static const struct op_case op[] = {
		{"different kinds", shared_filter, crossentropy, false},
		{"65,535 groups", many_groups, crossentropy, false},
	};

	for (size_t i = 0; i < sizeof(op) / sizeof(*op); i++) {
		static float channel[65536];
		const struct backend_options how = {.precision = BACKEND_PRECISION_F16};
		struct backend_net_options options = options_of(b, &op[i], 1);
		struct backend_error error = {""};
		struct backend_net *net = NULL;
		struct backend *backend;
		int rc;

		options.input.mul = options.input.add = channel;
		if (backend_open(gpu_backend(), &how, &backend, &error))
			BAIL("%s", error.message);
		rc = backend_compile(backend, &b->graph, &options, &net, &error);
		is(rc, -EOPNOTSUPP, op[i].name);
		like(error.message, op[i].name, "and it says why");
		backend_net_free(rc ? NULL : net);
		backend_close(backend);
	}
}

int main(void)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	gpu_needed();
	try_networks(b);
	try_no_rows(b);
	try_large_rows(b);
	try_loss_scale(b);
	try_refused(b);
	free(b);
	return done();
}
