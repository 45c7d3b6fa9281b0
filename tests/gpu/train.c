/* SPDX-License-Identifier: MIT */
/*
 * train.c: trajectories of a device's back end against ref: every optimizer with its options over
 * some steps, whole networks over steps of different sizes in every precision, captured graphs
 * against none (learning rate plan, Adam, dropout, ragged batches), a gradient that is not finite,
 * the loss scale of f16, parameters from elsewhere in evaluation.
 */
#include "gpu_trial.h"

#define STEPS 4

static void small_net(struct build *b)
{
	int x = b_conv(b, b_input(b, 6, 6, 2), 8, b_valid(3, 1), 1, true);

	x = b_act(b, x, BACKEND_TANH, 0);
	x = b_dense(b, b_reshape(b, x, 1, 1, 128), 5, true);
	b_act(b, x, BACKEND_SOFTMAX, 0);
	b->tensor[0].l2 = 0.01f;
	b->tensor[1].l1 = 0.02f;
	b->tensor[3].decay = false;
}

/* Keras' example in small: convolutions with ReLU, max pooling, dropout, two dense layers. */
static void small_cnn(struct build *b)
{
	int x = b_conv(b, b_input(b, 12, 12, 1), 8, b_valid(3, 1), 1, true);

	x = b_act(b, x, BACKEND_RELU, 0);
	x = b_act(b, b_conv(b, x, 16, b_valid(3, 1), 1, true), BACKEND_RELU, 0);
	x = b_dropout(b, b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2)), 0.25f);
	x = b_act(b, b_dense(b, b_reshape(b, x, 1, 1, 256), 32, true), BACKEND_RELU, 0);
	b_act(b, b_dense(b, b_dropout(b, x, 0.5f), 10, true), BACKEND_SOFTMAX, 0);
}

static int block(struct build *b, int x, uint32_t c, uint32_t stride)
{
	int y = b_norm(b, b_conv_same(b, x, c, 3, stride), true, true, false);

	y = b_norm(b, b_conv_same(b, b_act(b, y, BACKEND_RELU, 0), c, 3, 1), true, true, false);
	if (stride > 1)
		x = b_norm(b, b_conv_same(b, x, c, 1, stride), true, true, false);
	return b_act(b, b_add(b, y, x, -1), BACKEND_RELU, 0);
}

static void residual_net(struct build *b)
{
	int x = b_norm(b, b_conv_same(b, b_input(b, 12, 12, 3), 8, 3, 1), true, true, false);

	x = block(b, b_act(b, x, BACKEND_RELU, 0), 8, 1);
	x = block(b, x, 16, 2);
	b_act(b, b_dense(b, b_global(b, x, BACKEND_GLOBAL_AVGPOOL), 10, true), BACKEND_SOFTMAX, 0);
}

static const struct backend_loss_config sparse = {BACKEND_SPARSE_CROSSENTROPY, 0, false};

/* One step of each; sizes differ from step to step. */
static bool steps(struct pair *p, const char *name, double lr, int n_steps, bool whole)
{
	struct backend_applied got = {0}, want = {0};
	struct backend_error error = {""};
	struct backend_sums sums_got, sums_want;

	for (int k = 0; k < n_steps; k++) {
		struct backend_batch b = p->ref.batch, c = p->gpu.batch;
		uint32_t n = p->ref.n - (uint32_t)k % p->ref.n;
		float scale = 1.0f / (float)(n * (1 + k));

		b.n = c.n = n;
		b.step = c.step = 41 + (uint64_t)k;
		if (backend_step(p->ref.net, &b, scale, lr, k + 1, &sums_want, NULL, &want, &error))
			BAIL("%s: ref: %s", name, error.message);
		if (whole ? backend_step(p->gpu.net, &c, scale, lr, k + 1, &sums_got, NULL, &got,
					 &error)
			  : backend_gradient(p->gpu.net, &c, scale, false, NULL, NULL, &sums_got,
					     NULL, &error) ||
				    backend_apply(p->gpu.net, lr, k + 1, &got, &error))
			return ok(false, "%s: step %d: %s", name, k, error.message);
		ok(got.finite && fabs(got.grad_norm - want.grad_norm) <=
					 100 * p->tolerance * (1e-3 + want.grad_norm),
		   "%s: norm of the gradient, step %d: %.6g, %.6g", name, k, got.grad_norm,
		   want.grad_norm);
		ok(fabs(sums_got.loss - sums_want.loss) <=
			   100 * p->tolerance * (1 + fabs(sums_want.loss)),
		   "%s: loss, step %d: %.6f, %.6f", name, k, sums_got.loss, sums_want.loss);
	}
	return true;
}

/* Parameters move apart by no more than a part of how far they have gone. */
static void trajectories_agree(struct pair *p, const char *name, double part)
{
	const struct backend_graph *g = &p->b->graph;
	double way = 0, apart = 0;

	if (backend_read(p->ref.net, BACKEND_PARAM, 0, p->ref.params, p->want) ||
	    backend_read(p->gpu.net, BACKEND_PARAM, 0, p->ref.params, p->got))
		BAIL("%s: parameters not read", name);
	for (uint64_t k = 0; k < g->param_floats; k++) {
		way = fmax(way, fabs((double)p->want[k] - p->ref.param[k]));
		apart = fmax(apart, fabs((double)p->want[k] - p->got[k]));
	}
	if (!ok(way > 0 && apart <= part * way, "%s: parameters", name))
		printf("#   apart %.3g, way %.3g\n", apart, way);
}

static void slots_agree(struct pair *p, const char *name)
{
	for (uint32_t s = 0; s < backend_slot_count(p->ref.net); s++) {
		double d;

		if (backend_read(p->ref.net, BACKEND_SLOT, s * p->ref.params, p->ref.params,
				 p->want) ||
		    backend_read(p->gpu.net, BACKEND_SLOT, s * p->ref.params, p->ref.params,
				 p->got))
			BAIL("%s: slot not read", name);
		d = distance(p->got, p->want, p->ref.params);
		if (!ok(d < 1e-4, "%s: slot %s", name, backend_slot_name(p->gpu.net, s)))
			printf("#   distance %.3g\n", d);
	}
}

static const struct optimizer_case {
	const char *name;
	struct backend_optimizer_config config;
	double lr;
} optimizers[] = {
	{"sgd", {.kind = BACKEND_SGD}, 0.05},
	{"sgd momentum", {.kind = BACKEND_SGD, .momentum = 0.9f}, 0.05},
	{"sgd nesterov", {.kind = BACKEND_SGD, .momentum = 0.9f, .nesterov = true}, 0.05},
	{"sgd decay", {.kind = BACKEND_SGD, .momentum = 0.9f, .weight_decay = 0.1f}, 0.05},
	{"sgd clipnorm", {.kind = BACKEND_SGD, .momentum = 0.9f, .clipnorm = 0.01f}, 0.05},
	{"sgd clipvalue", {.kind = BACKEND_SGD, .momentum = 0.9f, .clipvalue = .01f}, 0.05},
	{"sgd global clip", {.kind = BACKEND_SGD, .global_clipnorm = 0.01f}, 0.05},
	{"adam", {.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.999f}, 1e-3},
	/* a short memory and gradients that shrink: the largest is not the last */
	{"amsgrad", {.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.5f, .amsgrad = true}, 1e-3},
	{"adamw",
	 {.kind = BACKEND_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = 0.01f},
	 1e-3},
	{"rmsprop", {.kind = BACKEND_RMSPROP, .rho = 0.9f}, 1e-3},
	{"rmsprop momentum", {.kind = BACKEND_RMSPROP, .rho = 0.9f, .momentum = 0.5f}, 1e-3},
	{"rmsprop centered", {.kind = BACKEND_RMSPROP, .rho = 0.9f, .centered = true}, 1e-3},
	{"rmsprop both",
	 {.kind = BACKEND_RMSPROP, .rho = 0.9f, .momentum = 0.5f, .centered = true},
	 1e-3},
	{"adagrad", {.kind = BACKEND_ADAGRAD, .initial_accumulator = 0.1f}, 0.01},
	{"adadelta", {.kind = BACKEND_ADADELTA, .rho = 0.95f}, 1.0},
};

static void try_optimizer(struct build *b, const struct optimizer_case *o)
{
	const struct op_case op = {o->name, small_net, sparse, true};
	struct backend_net_options options;
	struct pair p;

	small_net(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, 9);
	options.optimizer = o->config;
	options.optimizer.epsilon = 1e-7f;
	if (pair_open(&p, &op, b, 9, 9, NULL, &options) && steps(&p, o->name, o->lr, STEPS, true)) {
		trajectories_agree(&p, o->name, 2e-3);
		slots_agree(&p, o->name);
		near(backend_penalty(p.gpu.net), backend_penalty(p.ref.net), 1e-6, "penalty");
	}
	pair_close(&p);
}

static struct backend_net_options momentum_options(struct build *b, const struct op_case *op,
						   uint32_t n)
{
	struct backend_net_options options;

	op->build(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, op, n);
	options.optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_SGD, .momentum = 0.9f, .epsilon = 1e-7f};
	return options;
}

/* How far trajectories may part, in the precision: relative to the way they have gone. */
static const double part_of[] = {5e-3, 5e-2, 0.3, 5e-2};

static void try_network(struct build *b, const char *title, void (*build)(struct build *),
			uint32_t n, enum backend_precision precision, uint32_t flags)
{
	const struct op_case op = {title, build, sparse, true};
	const struct backend_options how = {.precision = precision, .flags = flags};
	struct backend_net_options options = momentum_options(b, &op, n);
	struct backend_sums got, want;
	char name[96];
	struct pair p;

	snprintf(name, sizeof(name), "%s, %s, flags %u", title, precision_name[precision], flags);
	if (!pair_open(&p, &op, b, n, n, &how, &options))
		goto out;
	if (precision == BACKEND_PRECISION_F16)
		find_loss_scale(&p);
	if (steps(&p, name, 0.01, 3, false)) {
		trajectories_agree(&p, name, part_of[precision]);
		/* the start values, from outside; then the net's own again */
		if (backend_evaluate(p.ref.net, p.ref.param, p.ref.stat, &p.ref.batch, &want,
				     p.want, NULL) ||
		    backend_evaluate(p.gpu.net, p.gpu.param, p.gpu.stat, &p.gpu.batch, &got, p.got,
				     NULL))
			BAIL("%s: no evaluation", name);
		ok(pair_sums(&p, "evaluation of other parameters", name, &got, &want),
		   "%s: other parameters", name);
		steps(&p, name, 0.01, 2, true);
		trajectories_agree(&p, name, part_of[precision]);
	}
out:
	pair_close(&p);
}

/* ---- graphs --------------------------------------------------------------------------------- */

/* Twelve steps of changing size, rate, position; every third in two calls. */
static bool drive(struct trial *t, float *losses)
{
	for (int k = 0; k < 12; k++) {
		struct backend_batch b = t->batch;
		struct backend_sums sums;
		double lr = 1e-2 / (1 + k % 5);
		int rc;

		b.n = t->n - (k % 4 == 3 ? 2 : 0);
		b.step = 100 + (uint64_t)k;
		b.position = (uint64_t)k * 3;
		if (k % 3 == 2)
			rc = backend_gradient(t->net, &b, 0.2f, false, NULL, NULL, &sums, NULL,
					      NULL) ||
			     backend_apply(t->net, lr, k + 1, NULL, NULL);
		else
			rc = backend_step(t->net, &b, 0.2f, lr, k + 1, &sums, NULL, NULL, NULL);
		if (rc)
			return false;
		losses[k] = (float)sums.loss;
	}
	return true;
}

static void try_graphs(struct build *b, enum backend_precision precision)
{
	const struct op_case op = {"graphs", small_cnn, sparse, true};
	const uint32_t flags[2] = {0, BACKEND_NO_GRAPHS};
	struct backend_net_options options = momentum_options(b, &op, 8);
	float loss[2][12], *w[2];
	struct trial t[2];

	options.optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .epsilon = 1e-7f};
	for (int i = 0; i < 2; i++) {
		const struct backend_options how = {.precision = precision, .flags = flags[i]};
		struct backend_error error = {""};

		if (trial_open(&t[i], gpu_backend(), &op, b, 8, 8, &how, 5, &options, &error))
			BAIL("graphs: %s", error.message);
		if (precision == BACKEND_PRECISION_F16)
			find_loss_scale(&(struct pair){.gpu = t[i]});
		w[i] = calloc(t[i].params, sizeof(float));
		if (!w[i] || !drive(&t[i], loss[i]) ||
		    backend_read(t[i].net, BACKEND_PARAM, 0, t[i].params, w[i]))
			BAIL("graphs: no steps");
	}
	ok(!memcmp(loss[0], loss[1], sizeof(loss[0])), "%s: captured steps: the same losses",
	   precision_name[precision]);
	ok(!memcmp(w[0], w[1], t[0].params * sizeof(float)) &&
		   memcmp(w[0], t[0].param, t[0].params * sizeof(float)),
	   "%s: captured steps: the same parameters", precision_name[precision]);
	for (int i = 0; i < 2; i++) {
		free(w[i]);
		trial_free(&t[i]);
	}
}

/* ---- not finite ----------------------------------------------------------------------------- */

/* A gradient that is not finite changes nothing, and says so. */
static void try_infinite(struct build *b)
{
	const struct op_case op = {"nan", small_net, sparse, false};
	struct backend_applied applied = {.finite = true};
	struct pair p;

	if (pair_open(&p, &op, b, 5, 5, NULL, NULL)) {
		struct trial *t = &p.gpu;

		t->x[40] = NAN;
		if (backend_step(t->net, &t->batch, 1, 0.1, 1, NULL, NULL, &applied, NULL) ||
		    backend_read(t->net, BACKEND_PARAM, 0, t->params, p.got))
			BAIL("no step");
		ok(!applied.finite, "NaN in a row: the gradient is not finite");
		ok(!memcmp(p.got, t->param, t->params * sizeof(float)), "and nothing changed");
		t->x[40] = 0;
		if (backend_step(t->net, &t->batch, 1, 0.1, 1, NULL, NULL, &applied, NULL))
			BAIL("no step");
		ok(applied.finite, "the next step is finite again");
	}
	pair_close(&p);
}

/* ---- losses at their edges ------------------------------------------------------------------ */

static void probabilities(struct build *b)
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 6), 5, true), BACKEND_TANH, 0);

	x = b_rescale(b, b_dense(b, x, 4, true), NULL, NULL, 20.0f, 0.0f);
	b_reshape(b, b_act(b, x, BACKEND_SOFTMAX, 0), 1, 1, 4);
}

static void logits(struct build *b)
{
	b_dense(b, b_input(b, 1, 1, 6), 4, true);
}

/* Targets that do not sum to one; probabilities that are cut at 1e-7. */
static void try_edges(struct build *b)
{
	static const struct op_case edge[] = {
		{"targets of any sum", logits, {BACKEND_CATEGORICAL_CROSSENTROPY, 0, true}, true},
		{"sparse, cut", probabilities, {BACKEND_SPARSE_CROSSENTROPY, .2f, false}, true},
		{"categorical, cut",
		 probabilities,
		 {BACKEND_CATEGORICAL_CROSSENTROPY, 0, false},
		 1},
		{"binary, cut", probabilities, {BACKEND_BINARY_CROSSENTROPY, 0, false}, true},
	};

	for (size_t i = 0; i < sizeof(edge) / sizeof(*edge); i++) {
		struct backend_sums got, want;
		struct pair p;

		if (pair_open(&p, &edge[i], b, 9, 9, NULL, NULL)) {
			/* probabilities near the cut, and 1 - p still more, have few digits in f32 */
			p.tolerance = i == 3 ? 0.02 : 20 * p.tolerance;
			for (uint64_t k = 0; k < 9 * p.ref.outputs && !i; k++)
				p.gpu.target[k] = p.ref.target[k] *= 1.0f + (float)(k % 3);
			if (backend_gradient(p.ref.net, &p.ref.batch, 0.1f, false, NULL, NULL,
					     &want, NULL, NULL) ||
			    backend_gradient(p.gpu.net, &p.gpu.batch, 0.1f, false, NULL, NULL, &got,
					     NULL, NULL))
				BAIL("no gradient");
			ok(pair_sums(&p, "loss", edge[i].name, &got, &want) &&
				   pair_arena(&p, "gradient", edge[i].name, BACKEND_GRAD,
					      p.tolerance),
			   "%s", edge[i].name);
		}
		pair_close(&p);
	}
}

static void far_targets(struct build *b)
{
	int x = b_act(b, b_dense(b, b_input(b, 1, 1, 6), 5, true), BACKEND_TANH, 0);

	b_dense(b, x, 2, true);
}

/* f16: a loss scale that is too large is halved until the gradient fits; the result is right. */
static void try_loss_scale(struct build *b)
{
	const struct backend_options how = {.precision = BACKEND_PRECISION_F16};
	const struct op_case op = {"loss scale", far_targets, {BACKEND_MSE, 0, false}, false};
	struct backend_applied applied = {0};
	int skipped = 0;
	struct pair p;

	if (pair_open(&p, &op, b, 4, 4, &how, NULL)) {
		for (uint64_t k = 0; k < 4 * p.ref.outputs; k++) {
			p.ref.target[k] *= 100.0f;
			p.gpu.target[k] *= 100.0f;
		}
		for (; skipped < 20 && !applied.finite; skipped++)
			if (backend_step(p.gpu.net, &p.gpu.batch, 0.25f, 1e-3, 1, NULL, NULL,
					 &applied, NULL))
				BAIL("no step in f16");
		ok(applied.finite && skipped > 1, "f16: %d steps were left out, then one was made",
		   skipped - 1);
		if (backend_step(p.ref.net, &p.ref.batch, 0.25f, 1e-3, 1, NULL, NULL, &applied,
				 NULL))
			BAIL("no step of ref");
		trajectories_agree(&p, "f16 after the loss scale was found", 2e-2);
	}
	pair_close(&p);
}

/* train optimizers: these alone */
int main(int argc, char **argv)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	gpu_needed();
	for (size_t i = 0; i < sizeof(optimizers) / sizeof(*optimizers); i++)
		try_optimizer(b, &optimizers[i]);
	if (argc > 1) {
		free(b);
		return done();
	}
	for (int p = 0; p < BACKEND_PRECISION_COUNT; p++) {
		try_network(b, "small cnn", small_cnn, 11, p, 0);
		try_network(b, "residual", residual_net, 13, p, 0);
		try_graphs(b, p);
	}
	try_network(b, "residual", residual_net, 13, BACKEND_PRECISION_F32,
		    BACKEND_NO_FUSION | BACKEND_NO_GRAPHS);
	try_network(b, "small cnn", small_cnn, 13, BACKEND_PRECISION_F32,
		    BACKEND_NO_LIBRARY | BACKEND_NO_FUSION);
	try_infinite(b);
	try_edges(b);
	try_loss_scale(b);
	free(b);
	return done();
}
