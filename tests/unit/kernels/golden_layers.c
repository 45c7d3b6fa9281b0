/* SPDX-License-Identifier: MIT */
/*
 * golden_layers.c: outputs, losses, gradients and moving statistics of every back end against Keras
 * 3, for every layer, activation and loss that Keras and the graph share.
 */
#include "golden.h"

static const char *name; /* the back end under test */
static double tolerance; /* the files hold f32 */

struct probe {
	struct golden_case *c;
	struct backend *backend;
	struct backend_net *net;
	struct backend_batch batch;
	const void *row[8];
	int32_t label[8];
	float *got; /* as large as the largest item */
};

static void compare(struct probe *p, const char *what, const float *got)
{
	const struct golden_item *want = golden_get(p->c, what, 0);
	double d = golden_distance(got, want->data, want->count);

	if (!ok(d < tolerance, "%s, %s: %s", name, p->c->name, what))
		printf("#   distance %.3g\n", d);
}

static void compare_loss(struct probe *p, const char *what, const struct backend_sums *sums)
{
	double want = golden_get(p->c, what, 0)->value;

	ok(fabs(sums->loss / p->c->rows - want) < 0.1 * tolerance * fmax(1, fabs(want)),
	   "%s, %s: %s", name, p->c->name, what);
}

static void make_batch(struct probe *p)
{
	struct golden_case *c = p->c;
	const struct golden_item *x = golden_get(c, "input", 0), *y = golden_get(c, "label", 0);

	for (uint32_t i = 0; i < c->rows; i++) {
		p->row[i] = x->data + i * (x->count / c->rows);
		p->label[i] = y ? (int32_t)y->data[i] : 0;
	}
	p->batch = (struct backend_batch){.n = c->rows, .x = p->row};
	if (y)
		p->batch.label = p->label;
	else
		p->batch.target = golden_get(c, "target", 0)->data;
	if (golden_get(c, "weight", 0))
		p->batch.weight = golden_get(c, "weight", 0)->data;
}

static int start(struct probe *p, struct backend_error *error)
{
	const int own[2] = {BACKEND_PARAM, BACKEND_STAT};
	const struct op_case op = {.loss = p->c->loss};
	struct backend_net_options options;
	uint64_t largest = 1;
	int rc;

	if (b_finish(p->c->build))
		return -EINVAL;
	for (uint32_t i = 0; i < p->c->n_items; i++)
		if (p->c->item[i].count > largest)
			largest = p->c->item[i].count;
	p->got = calloc(largest, sizeof(float));
	rc = backend_open(name, NULL, &p->backend, error);
	if (rc)
		return rc;
	options = trial_options(&p->c->build->graph, &op, p->c->rows);
	rc = backend_compile(p->backend, &p->c->build->graph, &options, &p->net, error);
	if (rc)
		return rc;
	make_batch(p);
	return golden_move(p->net, &p->c->build->graph, own, false,
			   golden_get(p->c, "values", 0)->data);
}

static void check(struct golden_case *c)
{
	const int own[2] = {BACKEND_PARAM, BACKEND_STAT}, grad[2] = {BACKEND_GRAD, -1};
	struct probe p = {.c = c};
	struct backend_error error = {""};
	struct backend_sums sums;
	int rc = start(&p, &error);

	if (!ok(rc == 0, "%s, %s: compiles", name, c->name)) {
		printf("# %s\n", error.message);
		goto out;
	}
	rc = backend_evaluate(p.net, NULL, NULL, &p.batch, &sums, p.got, &error);
	ok(rc == 0, "%s, %s: evaluates", name, c->name);
	compare(&p, "evaluate", p.got);
	compare_loss(&p, "evaluate_loss", &sums);
	rc = backend_gradient(p.net, &p.batch, 1.0f / (float)c->rows, false, NULL, NULL, &sums,
			      p.got, &error);
	ok(rc == 0, "%s, %s: takes the gradient", name, c->name);
	compare(&p, "train", p.got);
	compare_loss(&p, "train_loss", &sums);
	memset(p.got, 0, golden_get(c, "gradient", 0)->count * sizeof(float));
	golden_move(p.net, &c->build->graph, grad, true, p.got);
	compare(&p, "gradient", p.got);
	golden_move(p.net, &c->build->graph, own, true, p.got);
	compare(&p, "after", p.got);
out:
	backend_net_free(p.net);
	backend_close(p.backend);
	free(p.got);
}

int main(void)
{
	for (int i = 0; trial_backends[i]; i++) {
		struct golden g;
		int cases = 0;

		name = trial_backends[i];
		tolerance = strcmp(name, "ref") ? 1e-4 : 1e-5;
		golden_open(&g, "layers");
		for (; golden_next(&g); cases++)
			check(&g.now);
		golden_close(&g);
		ok(cases > 80, "%s: %d networks", name, cases);
	}
	return done();
}
