/* SPDX-License-Identifier: MIT */
/*
 * cpu_train.c: trajectories of the cpu back end against ref: every optimizer with its options over
 * some steps, whole networks (Keras' small CNN, a residual network of batch norms) over some steps
 * of different sizes, parameters from elsewhere in evaluation, a gradient that is not finite.
 */
#include "cpu_trial.h"

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

/* Conv 32, conv 64, max pooling, dense 128 (large: split over the workers), dense 10. */
static void keras_cnn(struct build *b)
{
	int x = b_conv(b, b_input(b, 28, 28, 1), 32, b_valid(3, 1), 1, true);

	x = b_act(b, x, BACKEND_RELU, 0);
	x = b_act(b, b_conv(b, x, 64, b_valid(3, 1), 1, true), BACKEND_RELU, 0);
	x = b_pool(b, x, BACKEND_MAXPOOL, b_valid(2, 2));
	x = b_act(b, b_dense(b, b_reshape(b, x, 1, 1, 9216), 128, true), BACKEND_RELU, 0);
	b_act(b, b_dense(b, x, 10, true), BACKEND_SOFTMAX, 0);
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
	int x = b_norm(b, b_conv_same(b, b_input(b, 16, 16, 3), 16, 3, 1), true, true, false);

	x = block(b, b_act(b, x, BACKEND_RELU, 0), 16, 1);
	x = block(b, x, 32, 2);
	x = block(b, x, 64, 2);
	b_act(b, b_dense(b, b_global(b, x, BACKEND_GLOBAL_AVGPOOL), 10, true), BACKEND_SOFTMAX, 0);
}

/* One step of each; sizes differ from step to step. */
static bool steps(struct pair *p, const char *name, double lr, int n_steps, bool whole)
{
	struct backend_applied got = {0}, want = {0};
	struct backend_error error = {""};
	struct backend_sums sums_got, sums_want;

	for (int k = 0; k < n_steps; k++) {
		struct backend_batch b = p->ref.batch, c = p->cpu.batch;
		uint32_t n = p->ref.n - (uint32_t)k % p->ref.n;

		b.n = c.n = n;
		b.step = c.step = 41 + (uint64_t)k;
		if (backend_step(p->ref.net, &b, 1.0f / (float)n, lr, k + 1, &sums_want, NULL,
				 &want, &error))
			BAIL("%s: ref: %s", name, error.message);
		if (whole ? backend_step(p->cpu.net, &c, 1.0f / (float)n, lr, k + 1, &sums_got,
					 NULL, &got, &error)
			  : backend_gradient(p->cpu.net, &c, 1.0f / (float)n, false, NULL, NULL,
					     &sums_got, NULL, &error) ||
				    backend_apply(p->cpu.net, lr, k + 1, &got, &error))
			return ok(false, "%s: step %d: %s", name, k, error.message);
		ok(got.finite && fabs(got.grad_norm - want.grad_norm) <=
					 100 * p->tolerance * (1e-3 + want.grad_norm),
		   "%s: norm of the gradient, step %d", name, k);
		ok(fabs(sums_got.loss - sums_want.loss) <=
			   100 * p->tolerance * (1 + fabs(sums_want.loss)),
		   "%s: loss, step %d: %.6f, %.6f", name, k, sums_got.loss, sums_want.loss);
	}
	return true;
}

/* Parameters move apart by no more than a small part of how far they have gone. */
static void trajectories_agree(struct pair *p, const char *name, double part)
{
	const struct backend_graph *g = &p->b->graph;
	double way = 0, apart = 0;

	if (backend_read(p->ref.net, BACKEND_PARAM, 0, p->ref.params, p->want) ||
	    backend_read(p->cpu.net, BACKEND_PARAM, 0, p->ref.params, p->got))
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
		    backend_read(p->cpu.net, BACKEND_SLOT, s * p->ref.params, p->ref.params,
				 p->got))
			BAIL("%s: slot not read", name);
		d = distance(p->got, p->want, p->ref.params);
		if (!ok(d < 1e-4, "%s: slot %s", name, backend_slot_name(p->cpu.net, s)))
			printf("#   distance %.3g\n", d);
	}
}

static void try_optimizer(struct build *b, const char *name, struct backend_optimizer_config config,
			  double lr, struct backend_pool *pool)
{
	const struct op_case op = {name, small_net, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, true};
	struct backend_net_options options;
	struct pair p;

	config.epsilon = 1e-7f;
	small_net(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, 9);
	options.optimizer = config;
	if (pair_open(&p, &op, b, 9, 9, pool, &options) && steps(&p, name, lr, STEPS, true)) {
		trajectories_agree(&p, name, 2e-3);
		slots_agree(&p, name);
	}
	pair_close(&p);
}

static void try_optimizers(struct build *b, struct backend_pool *pool)
{
	static const struct {
		const char *name;
		struct backend_optimizer_config config;
		double lr;
	} table[] = {
		{"sgd", {.kind = BACKEND_SGD}, 0.05},
		{"sgd momentum", {.kind = BACKEND_SGD, .momentum = 0.9f}, 0.05},
		{"sgd nesterov", {.kind = BACKEND_SGD, .momentum = 0.9f, .nesterov = true}, 0.05},
		{"sgd decay", {.kind = BACKEND_SGD, .momentum = 0.9f, .weight_decay = 0.1f}, 0.05},
		{"sgd clipnorm", {.kind = BACKEND_SGD, .momentum = 0.9f, .clipnorm = 0.01f}, 0.05},
		{"sgd clipvalue", {.kind = BACKEND_SGD, .momentum = 0.9f, .clipvalue = .01f}, 0.05},
		{"sgd global clip", {.kind = BACKEND_SGD, .global_clipnorm = 0.01f}, 0.05},
		{"adam", {.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.999f}, 1e-3},
		{"amsgrad",
		 {.kind = BACKEND_ADAM, .beta1 = 0.9f, .beta2 = 0.999f, .amsgrad = true},
		 1e-3},
		{"adamw",
		 {.kind = BACKEND_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = 0.01f},
		 1e-3},
		{"rmsprop",
		 {.kind = BACKEND_RMSPROP, .rho = 0.9f, .momentum = 0.5f, .centered = true},
		 1e-3},
		{"adagrad", {.kind = BACKEND_ADAGRAD, .initial_accumulator = 0.1f}, 0.01},
		{"adadelta", {.kind = BACKEND_ADADELTA, .rho = 0.95f}, 1.0},
	};

	for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
		try_optimizer(b, table[i].name, table[i].config, table[i].lr, pool);
}

static void try_network(struct build *b, const char *name, void (*build)(struct build *),
			uint32_t n, struct backend_pool *pool)
{
	const struct op_case op = {name, build, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, true};
	struct backend_net_options options;
	struct backend_sums got, want;
	struct pair p;

	build(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, n);
	options.optimizer = (struct backend_optimizer_config){
		.kind = BACKEND_SGD, .momentum = 0.9f, .epsilon = 1e-7f};
	if (!pair_open(&p, &op, b, n, n, pool, &options))
		goto out;
	if (backend_gradient(p.ref.net, &p.ref.batch, 0.1f, false, NULL, NULL, &want, p.want,
			     NULL) ||
	    backend_gradient(p.cpu.net, &p.cpu.batch, 0.1f, false, NULL, NULL, &got, p.got, NULL))
		BAIL("%s: no gradient", name);
	pair_sums(&p, "training", name, &got, &want);
	pair_arena(&p, "gradient", name, BACKEND_GRAD, 4 * p.tolerance);
	pair_arena(&p, "statistics", name, BACKEND_STAT, 4 * p.tolerance);
	/* half a batch more on top */
	p.ref.batch.n = p.cpu.batch.n = n / 2;
	if (backend_gradient(p.ref.net, &p.ref.batch, 0.2f, true, NULL, NULL, &want, p.want,
			     NULL) ||
	    backend_gradient(p.cpu.net, &p.cpu.batch, 0.2f, true, NULL, NULL, &got, p.got, NULL))
		BAIL("%s: no gradient", name);
	pair_arena(&p, "gradient, accumulated", name, BACKEND_GRAD, 4 * p.tolerance);
	p.ref.batch.n = p.cpu.batch.n = n;
	if (!steps(&p, name, 0.01, 3, false))
		goto out;
	trajectories_agree(&p, name, 5e-3);
	/* the start values, from outside; then the net's own again */
	if (backend_evaluate(p.ref.net, p.ref.param, p.ref.stat, &p.ref.batch, &want, p.want,
			     NULL) ||
	    backend_evaluate(p.cpu.net, p.cpu.param, p.cpu.stat, &p.cpu.batch, &got, p.got, NULL))
		BAIL("%s: no evaluation", name);
	pair_sums(&p, "evaluation of other parameters", name, &got, &want);
	steps(&p, name, 0.01, 1, true);
	trajectories_agree(&p, name, 5e-3);
out:
	pair_close(&p);
}

/* A net for inference only; its size is what was estimated, and less than that of training. */
static void try_inference(struct build *b, struct backend_pool *pool)
{
	const struct op_case op = {
		"inference", residual_net, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, false};
	struct backend_net_options options;
	uint64_t bytes = 0, training = 0;
	struct backend_sums got, want;
	struct pair p;

	residual_net(b);
	if (b_finish(b))
		BAIL("no graph");
	options = trial_options(&b->graph, &op, 7);
	options.inference = true;
	if (pair_open(&p, &op, b, 7, 7, pool, &options)) {
		struct trial *t = &p.cpu;

		if (backend_evaluate(p.ref.net, NULL, NULL, &p.ref.batch, &want, p.want, NULL) ||
		    backend_evaluate(t->net, NULL, NULL, &t->batch, &got, p.got, NULL))
			BAIL("no evaluation");
		pair_sums(&p, "evaluation", "inference", &got, &want);
		ok(distance(p.got, p.want, 7 * t->outputs) < p.tolerance, "inference: outputs");
		is(backend_gradient(t->net, &t->batch, 1, false, NULL, NULL, NULL, NULL, NULL),
		   -EPERM, "inference: no gradient");
		is(backend_estimate(t->backend, &b->graph, &options, &bytes), 0, "estimated");
		is(bytes, backend_net_bytes(t->net), "the estimate is exact");
		options.inference = false;
		ok(!backend_estimate(t->backend, &b->graph, &options, &training) &&
			   training > bytes,
		   "training takes more");
	}
	pair_close(&p);
}

/* A gradient that is not finite changes nothing, and says so. */
static void try_infinite(struct build *b, struct backend_pool *pool)
{
	const struct op_case op = {
		"nan", small_net, {BACKEND_SPARSE_CROSSENTROPY, 0, false}, false};
	struct backend_applied applied = {.finite = true};
	struct pair p;

	if (pair_open(&p, &op, b, 5, 5, pool, NULL)) {
		struct trial *t = &p.cpu;

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

int main(void)
{
	struct build *b = malloc(sizeof(*b));
	struct backend_pool *two;

	if (!b || backend_pool_create(2, &two))
		BAIL("no pool");
	try_optimizers(b, two);
	try_network(b, "keras_cnn", keras_cnn, 11, two);
	try_network(b, "residual", residual_net, 13, two);
	try_network(b, "residual, one thread", residual_net, 13, NULL);
	try_inference(b, two);
	try_infinite(b, two);
	backend_pool_free(two);
	free(b);
	return done();
}
