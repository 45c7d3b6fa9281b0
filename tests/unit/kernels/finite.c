/* SPDX-License-Identifier: MIT */
/*
 * finite.c: the gradient of ref against central differences of its loss, for every case of the
 * table and for batches of 1 and 3 rows. Loss and activations are doubles, so the difference
 * quotient is good to about 1e-9 of the loss.
 */
#include "../../tap.h"
#include "cases.h"

#define STEP 0x1p-17f
#define CHECKED_PER_TENSOR 40

static double loss_at(struct trial *t, float *param, uint64_t at, float value)
{
	struct backend_sums sums = {0};
	float was = param[at];

	param[at] = value;
	if (backend_write(t->net, BACKEND_PARAM, at, 1, &value) ||
	    backend_gradient(t->net, &t->batch, 1.0f, false, NULL, NULL, &sums, NULL, NULL))
		BAIL("no loss");
	param[at] = was;
	if (backend_write(t->net, BACKEND_PARAM, at, 1, &was))
		BAIL("parameter not restored");
	return sums.loss;
}

/* Largest error over the tensor, relative to the tensor's largest gradient (or 1e-3). */
static double tensor_error(struct trial *t, const struct backend_tensor *tensor, const float *grad)
{
	uint64_t stride = tensor->count / CHECKED_PER_TENSOR + 1;
	double worst = 0, largest = 1e-3;

	for (uint64_t k = 0; k < tensor->count; k += stride) {
		uint64_t at = tensor->offset + k;
		float w = t->param[at], low = w - STEP, high = w + STEP;
		double slope = (loss_at(t, t->param, at, high) - loss_at(t, t->param, at, low)) /
			       ((double)high - low);

		worst = fmax(worst, fabs(slope - grad[at]));
		largest = fmax(largest, fabs(slope));
	}
	return worst / largest;
}

static void check(const struct op_case *op, struct build *b, uint32_t n)
{
	struct backend_error error;
	struct backend_sums sums;
	struct trial t;
	float *grad = NULL;
	int rc = trial_open(&t, "ref", op, b, n, 3, NULL, 17, NULL, &error);

	if (!ok(rc == 0, "%s: compiles", op->name)) {
		printf("# %s\n", error.message);
		goto out;
	}
	grad = calloc(t.params + 1, sizeof(*grad));
	if (!grad)
		BAIL("no memory");
	rc = backend_gradient(t.net, &t.batch, 1.0f, false, NULL, NULL, &sums, NULL, &error);
	if (!rc)
		rc = backend_read(t.net, BACKEND_GRAD, 0, t.params, grad);
	if (!ok(rc == 0, "%s: gradient of %u rows", op->name, n))
		goto out;
	for (uint32_t i = 0; i < b->n_tensors; i++) {
		double e;

		if (b->tensor[i].arena != BACKEND_PARAM)
			continue;
		e = tensor_error(&t, &b->tensor[i], grad);
		if (!ok(e < 2e-6, "%s, %u rows: %s", op->name, n, b->tensor[i].name))
			printf("#   relative error %.3g\n", e);
	}
out:
	free(grad);
	trial_free(&t);
}

int main(void)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	for (size_t i = 0; i < OP_CASES; i++) {
		check(&op_cases[i], b, 3);
		check(&op_cases[i], b, 1);
	}
	free(b);
	return done();
}
