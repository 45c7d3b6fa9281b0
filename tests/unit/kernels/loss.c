/* SPDX-License-Identifier: MIT */
/*
 * loss.c: losses where they are easily wrong: logits of +-1000, probabilities of exactly 0 and 1,
 * ties of MAE. Wanted values are written out from the formulas.
 */
#include "../../tap.h"
#include "cases.h"

#define C 3

static const char *name; /* the back end under test */

static enum backend_activation last;

/* The logits are x + bias, bias zero: its gradient is the gradient of the loss. */
static void build_output(struct build *b)
{
	int x = b_dense(b, b_input(b, 1, 1, C), C, true);

	if (last != BACKEND_LINEAR)
		x = b_act(b, x, last, 0);
}

struct result {
	double loss;
	float gradient[C], output[C];
};

static struct result one(struct backend_loss_config loss, enum backend_activation activation,
			 const float x[C], int32_t label, const float target[C])
{
	const struct op_case op = {"loss", build_output, loss, false};
	const float kernel[C * C] = {1, 0, 0, 0, 1, 0, 0, 0, 1}, bias[C] = {0};
	const void *row = x;
	struct backend_error error;
	struct backend_sums sums, evaluated;
	struct result r = {0};
	static struct build b;
	struct trial t;

	last = activation;
	if (trial_open(&t, name, &op, &b, 1, 1, NULL, 1, NULL, &error))
		BAIL("%s", error.message);
	t.batch = (struct backend_batch){.n = 1, .x = &row, .label = &label, .target = target};
	backend_write(t.net, BACKEND_PARAM, b.tensor[0].offset, C * C, kernel);
	backend_write(t.net, BACKEND_PARAM, b.tensor[1].offset, C, bias);
	if (backend_evaluate(t.net, NULL, NULL, &t.batch, &evaluated, r.output, &error) ||
	    backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, &sums, NULL, &error))
		BAIL("%s", error.message);
	backend_read(t.net, BACKEND_GRAD, b.tensor[1].offset, C, r.gradient);
	r.loss = sums.loss;
	if (isnan(evaluated.loss) != isnan(sums.loss) ||
	    fabs(evaluated.loss - sums.loss) > 1e-6 * fabs(sums.loss))
		ok(false, "%s: evaluate and gradient have one loss", name);
	trial_free(&t);
	return r;
}

static void is_result(const char *what, const struct result *r, double loss, const float output[C],
		      const float gradient[C])
{
	bool good = fabs(r->loss - loss) <= 1e-5 * fmax(1, fabs(loss));

	for (int k = 0; k < C; k++)
		good &= fabsf(r->output[k] - output[k]) <= 1e-6f &&
			fabsf(r->gradient[k] - gradient[k]) <= 1e-5f * fmaxf(1, fabsf(gradient[k]));
	if (!ok(good, "%s: %s", name, what))
		printf("#   loss %.9g, wanted %.9g; outputs %g %g %g; gradient %g %g %g\n", r->loss,
		       loss, r->output[0], r->output[1], r->output[2], r->gradient[0],
		       r->gradient[1], r->gradient[2]);
}

#define V(...) ((const float[C]){__VA_ARGS__})

static void large_logits(void)
{
	const struct backend_loss_config sparse = {BACKEND_SPARSE_CROSSENTROPY, 0, false};
	const struct backend_loss_config logits = {BACKEND_SPARSE_CROSSENTROPY, 0, true};
	const struct backend_loss_config binary = {BACKEND_BINARY_CROSSENTROPY, 0, false};
	struct result r;

	r = one(sparse, BACKEND_SOFTMAX, V(1000, -1000, 0), 1, NULL);
	is_result("softmax, logits of +-1000", &r, 2000, V(1, 0, 0), V(1, -1, 0));
	r = one(logits, BACKEND_LINEAR, V(1000, -1000, 0), 0, NULL);
	is_result("from_logits, sure and right", &r, 0, V(1, 0, 0), V(0, 0, 0));
	r = one(sparse, BACKEND_SOFTMAX, V(-500, -500, -500), 2, NULL);
	is_result("softmax of equal logits", &r, log(3.0), V(1 / 3.f, 1 / 3.f, 1 / 3.f),
		  V(1 / 3.f, 1 / 3.f, -2 / 3.f));
	r = one(binary, BACKEND_SIGMOID, V(1000, -1000, 0), -1, V(0, 1, 0.5));
	is_result("sigmoid, logits of +-1000", &r, (2000 + log(2.0)) / 3, V(1, 0, 0.5),
		  V(1 / 3.f, -1 / 3.f, 0));
}

static void clipped_probabilities(void)
{
	const struct backend_loss_config sparse = {BACKEND_SPARSE_CROSSENTROPY, 0, false};
	const struct backend_loss_config binary = {BACKEND_BINARY_CROSSENTROPY, 0, false};
	struct result r;

	r = one(sparse, BACKEND_LINEAR, V(1, 0, 1), 1, NULL);
	is_result("a probability of 0", &r, -log(1e-7), V(1, 0, 1), V(0, 0, 0));
	r = one(sparse, BACKEND_LINEAR, V(2, 1, 1), 0, NULL); /* q = 1/2: dl/dp = (-2 + 1) / 4 .. */
	is_result("probabilities that do not sum to 1", &r, log(2.0), V(2, 1, 1),
		  V(-0.25, 0.25, 0.25));
	r = one(binary, BACKEND_LINEAR, V(0, 1, 0.25), -1, V(1, 0, 1));
	is_result("binary, 0 and 1 and both wrong", &r, (-2 * log(1e-7) - log(0.25)) / 3,
		  V(0, 1, 0.25), V(0, 0, -4 / 3.f));
}

/* Targets that do not sum to 1: l = sum_j y_j (logsum - z_j), dl/dz = p sum(y) - y. */
static void unnormalised_targets(void)
{
	const struct backend_loss_config plain = {BACKEND_CATEGORICAL_CROSSENTROPY, 0, true};
	const float ln2 = (float)log(2.0);
	struct result r = one(plain, BACKEND_LINEAR, V(ln2, 0, 0), -1, V(2, 1, 1));

	/* p = (1/2, 1/4, 1/4) */
	is_result("targets that sum to 4", &r, 6 * log(2.0), V(0.5, 0.25, 0.25), V(0, 0, 0));
	r = one(plain, BACKEND_LINEAR, V(ln2, 0, 0), -1, V(0, 3, 0));
	is_result("a target of 3", &r, 6 * log(2.0), V(0.5, 0.25, 0.25), V(1.5, -2.25, 0.75));
}

static void regression(void)
{
	const struct backend_loss_config mae = {BACKEND_MAE, 0, false};
	const struct backend_loss_config mse = {BACKEND_MSE, 0, false};
	struct result r;

	r = one(mae, BACKEND_LINEAR, V(1, 2, -3), -1, V(1, 1, 1));
	is_result("mean absolute error, one exact", &r, 5 / 3., V(1, 2, -3),
		  V(0, 1 / 3.f, -1 / 3.f));
	r = one(mse, BACKEND_LINEAR, V(1, 2, -3), -1, V(1, 1, 1));
	is_result("mean squared error", &r, 17 / 3., V(1, 2, -3), V(0, 2 / 3.f, -8 / 3.f));
	r = one(mse, BACKEND_RELU, V(1, 2, -3), -1, V(1, 1, 1));
	is_result("mean squared error behind ReLU", &r, 2 / 3., V(1, 2, 0), V(0, 2 / 3.f, 0));
}

static void not_a_number(void)
{
	const struct backend_loss_config sparse = {BACKEND_SPARSE_CROSSENTROPY, 0, false};
	struct result r = one(sparse, BACKEND_SOFTMAX, V(NAN, 0, 0), 1, NULL);

	ok(isnan(r.loss), "%s: NaN in the input is NaN in the loss", name);
}

int main(void)
{
	for (int i = 0; trial_backends[i]; i++) {
		name = trial_backends[i];
		large_logits();
		clipped_probabilities();
		unnormalised_targets();
		regression();
		not_a_number();
	}
	return done();
}
