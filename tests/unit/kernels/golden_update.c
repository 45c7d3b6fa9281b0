/* SPDX-License-Identifier: MIT */
/*
 * golden_update.c: the optimizers against Keras 3: given gradients, the parameters after each of
 * six steps, the slots after the last, the norm that is reported. All options: momentum, Nesterov,
 * AMSGrad, centered, decoupled weight decay with an excluded tensor, l1 and l2, three clippings.
 * Then whole trainings of a small network.
 */
#include "golden.h"

static const char *name; /* the back end under test */
static double tolerance; /* f32 arithmetic, six steps */

/* Three tensors of which nothing but the arenas matters here. */
static void three_tensors(struct golden_case *c)
{
	struct build *b = c->build;

	b_input(b, 1, 1, 5);
	b_dense(b, 0, 4, false);
	b_dense(b, 1, 7, true);
	b->tensor[1].trainable = false; /* (4,7): not in the files */
	b_reshape(b, b_dense(b, 2, 36, false), 6, 3, 2);
	b->tensor[3].trainable = false; /* (7,36) */
	b_conv(b, b_id(b), 3, (struct backend_window){3, 2, 1, 1, 1, 1, 0, 0, 0, 0}, 1, false);
	b->tensor[4].decay = false;
	b->tensor[0].l1 = c->l1;
	b->tensor[0].l2 = c->l2;
}

static const uint32_t used[3] = {0, 2, 4}; /* tensors of the files */

static int move(struct backend_net *net, const struct backend_graph *graph, int arena,
		uint64_t slot, bool get, float *blob)
{
	for (int i = 0; i < 3; i++) {
		const struct backend_tensor *t = &graph->tensor[used[i]];
		uint64_t at = slot * graph->param_floats + t->offset;
		int rc = get ? backend_read(net, arena, at, t->count, blob)
			     : backend_write(net, arena, at, t->count, blob);

		if (rc)
			return rc;
		blob += t->count;
	}
	return 0;
}

static void compare(const struct golden_case *c, const struct golden_item *want, const float *got,
		    const char *what, uint32_t k)
{
	double d = golden_distance(got, want->data, want->count);

	if (!ok(d < tolerance, "%s, %s: %s %u", name, c->name, what, k))
		printf("#   distance %.3g\n", d);
}

/* The other tensors of the net must stay what they were: zero. */
static bool untouched(struct backend_net *net, const struct backend_graph *graph)
{
	float v[256];

	for (uint32_t i = 1; i < 4; i += 2) {
		const struct backend_tensor *t = &graph->tensor[i];

		if (t->count > 256 || backend_read(net, BACKEND_PARAM, t->offset, t->count, v))
			return false;
		for (uint64_t k = 0; k < t->count; k++)
			if (v[k] != 0.0f)
				return false;
	}
	return true;
}

static void steps(struct golden_case *c, struct backend_net *net)
{
	const struct backend_graph *graph = &c->build->graph;
	const struct golden_item *g;
	struct backend_applied applied;
	float got[128];

	move(net, graph, BACKEND_PARAM, 0, false, golden_get(c, "start", 0)->data);
	for (uint32_t k = 0; (g = golden_get(c, "gradient", k)); k++) {
		move(net, graph, BACKEND_GRAD, 0, false, g->data);
		if (!ok(backend_apply(net, c->rate[k], k + 1, &applied, NULL) == 0 &&
				applied.finite,
			"%s, %s: step %u", name, c->name, k))
			return;
		near(applied.grad_norm, golden_get(c, "norm", k)->value, 1e-6 * applied.grad_norm,
		     "norm of the gradient");
		move(net, graph, BACKEND_PARAM, 0, true, got);
		compare(c, golden_get(c, "after", k), got, "parameters after step", k);
	}
	for (uint32_t s = 0; (g = golden_get(c, "slot", s)); s++) {
		ok(s < backend_slot_count(net), "%s, %s: slot %u is there", name, c->name, s);
		move(net, graph, BACKEND_SLOT, s, true, got);
		compare(c, g, got, backend_slot_name(net, s), s);
	}
	ok(!golden_get(c, "slot", backend_slot_count(net)) &&
		   (backend_slot_count(net) == 0 ||
		    golden_get(c, "slot", backend_slot_count(net) - 1)),
	   "%s, %s: number of slots", name, c->name);
	ok(untouched(net, graph), "%s, %s: tensors that are not trainable stay", name, c->name);
}

static void check_update(struct golden_case *c)
{
	const struct op_case op = {.loss = {BACKEND_MSE, 0, false}};
	struct backend_net_options options;
	struct backend_error error = {""};
	struct backend *backend = NULL;
	struct backend_net *net = NULL;

	three_tensors(c);
	if (b_finish(c->build) || backend_open(name, NULL, &backend, &error))
		BAIL("no back end");
	options = trial_options(&c->build->graph, &op, 1);
	options.optimizer = c->optimizer;
	if (ok(backend_compile(backend, &c->build->graph, &options, &net, &error) == 0,
	       "%s, %s: compiles", name, c->name))
		steps(c, net);
	else
		printf("# %s\n", error.message);
	backend_net_free(net);
	backend_close(backend);
}

static void train(struct golden_case *c, struct backend_net *net)
{
	const int own[2] = {BACKEND_PARAM, BACKEND_STAT};
	const struct golden_item *x, *y, *after = golden_get(c, "after", 0);
	struct backend_applied applied;
	struct backend_sums sums;
	const void *row[8];
	int32_t label[8];
	float *got = calloc(after->count, sizeof(float));

	golden_move(net, &c->build->graph, own, false, golden_get(c, "values", 0)->data);
	for (uint32_t k = 0; (x = golden_get(c, "input", k)); k++) {
		struct backend_batch batch = {.n = c->rows, .x = row, .label = label};

		y = golden_get(c, "label", k);
		for (uint32_t i = 0; i < c->rows; i++) {
			row[i] = x->data + i * (x->count / c->rows);
			label[i] = (int32_t)y->data[i];
		}
		near(backend_penalty(net), golden_get(c, "penalty", k)->value, 1e-6, "penalty");
		ok(backend_step(net, &batch, 1.0f / (float)c->rows, 0.02f, k + 1, &sums, NULL,
				&applied, NULL) == 0,
		   "%s, %s: step %u", name, c->name, k);
		near(sums.loss / c->rows, golden_get(c, "train_loss", k)->value, 2e-5, "loss");
	}
	golden_move(net, &c->build->graph, own, true, got);
	compare(c, after, got, "weights after step", 5);
	free(got);
}

static void check_training(struct golden_case *c)
{
	const struct op_case op = {.loss = c->loss};
	struct backend_net_options options;
	struct backend_error error = {""};
	struct backend *backend = NULL;
	struct backend_net *net = NULL;

	c->build->tensor[0].l1 = c->l1;
	c->build->tensor[0].l2 = c->l2;
	if (b_finish(c->build) || backend_open(name, NULL, &backend, &error))
		BAIL("no back end");
	options = trial_options(&c->build->graph, &op, c->rows);
	options.optimizer = c->optimizer;
	if (ok(backend_compile(backend, &c->build->graph, &options, &net, &error) == 0,
	       "%s, %s: compiles", name, c->name))
		train(c, net);
	else
		printf("# %s\n", error.message);
	backend_net_free(net);
	backend_close(backend);
}

static void all_cases(void)
{
	struct golden g;
	int cases = 0;

	golden_open(&g, "update");
	for (; golden_next(&g); cases++)
		check_update(&g.now);
	golden_close(&g);
	is(cases, 21, "optimizers");
	golden_open(&g, "train");
	for (cases = 0; golden_next(&g); cases++)
		check_training(&g.now);
	golden_close(&g);
	is(cases, 3, "trainings");
}

int main(void)
{
	for (int i = 0; trial_backends[i]; i++) {
		name = trial_backends[i];
		tolerance = strcmp(name, "ref") ? 1e-4 : 2e-5;
		all_cases();
	}
	return done();
}
