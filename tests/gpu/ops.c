/* SPDX-License-Identifier: MIT */
/*
 * ops.c: a device's back end against ref for every case of the table (every layer, activation and
 * loss) in every precision: outputs in training and evaluation, losses, gradients, statistics,
 * accumulation; batches smaller than max_batch, of one row and of none; with and without fusion,
 * captured graphs and the convolution library; buckets; and twice the same bits.
 *
 * ops [precision [case...]]
 */
#include "../unit/kernels/cases.h"
#include "gpu_trial.h"

struct bucket_count {
	uint64_t floats;
	uint32_t calls;
};

static int count_bucket(void *context, uint64_t offset, uint64_t length, void *ready)
{
	struct bucket_count *c = context;

	c->floats += length;
	c->calls++;
	return 0;
}

static bool evaluate(struct pair *p, const char *name)
{
	struct backend_sums got = {0}, want = {0};
	struct backend_error error = {""};

	if (backend_evaluate(p->ref.net, NULL, NULL, &p->ref.batch, &want, p->want, &error))
		BAIL("%s: ref: %s", name, error.message);
	if (backend_evaluate(p->gpu.net, NULL, NULL, &p->gpu.batch, &got, p->got, &error)) {
		printf("# %s: evaluation: %s\n", name, error.message);
		return false;
	}
	return pair_outputs(p, "evaluation", name, p->ref.n) &&
	       pair_sums(p, "evaluation", name, &got, &want);
}

/* pass 0: a gradient; 1: on top of it; 2: anew, in buckets. */
static bool gradient(struct pair *p, const char *name, int pass)
{
	static const char *const whats[] = {"gradient", "gradient, accumulated",
					    "gradient in buckets"};
	struct backend_sums got = {0}, want = {0};
	struct backend_error error = {""};
	struct bucket_count buckets = {0};
	const float scale = pass == 1 ? 0.5f : 0.25f;
	const char *what = whats[pass];

	if (backend_gradient(p->ref.net, &p->ref.batch, scale, pass == 1, NULL, NULL, &want,
			     p->want, &error))
		BAIL("%s: ref: %s", name, error.message);
	if (backend_gradient(p->gpu.net, &p->gpu.batch, scale, pass == 1,
			     pass == 2 ? count_bucket : NULL, &buckets, &got, p->got, &error)) {
		printf("# %s: %s: %s\n", name, what, error.message);
		return false;
	}
	if (pass == 2 && buckets.floats != p->gpu.params) {
		printf("# %s: %llu of %llu floats in buckets\n", name,
		       (unsigned long long)buckets.floats, (unsigned long long)p->gpu.params);
		return false;
	}
	return pair_outputs(p, what, name, p->ref.n) && pair_sums(p, what, name, &got, &want) &&
	       pair_arena(p, what, name, BACKEND_GRAD, 2 * p->kinks * p->tolerance) &&
	       pair_arena(p, what, name, BACKEND_STAT, p->tolerance);
}

/* The same call from the same state: the same bits, by graphs or not. */
static bool again(struct pair *p, const char *name)
{
	struct trial *t = &p->gpu;

	for (int pass = 0; pass < 4; pass++) {
		if (backend_write(t->net, BACKEND_STAT, 0, t->stats, t->stat) ||
		    backend_gradient(t->net, &t->batch, 1.0f, false, NULL, NULL, NULL, NULL,
				     NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, pass ? p->got : p->want))
			BAIL("%s: no gradient", name);
		if (pass && memcmp(p->got, p->want, t->params * sizeof(float))) {
			printf("# %s: call %d gave another gradient\n", name, pass);
			return false;
		}
	}
	return true;
}

static void try_case(const struct op_case *op, struct build *b, uint32_t n, uint32_t max_batch,
		     enum backend_precision precision, uint32_t flags)
{
	const struct backend_options how = {
		.precision = precision, .flags = flags, .bucket_bytes = 256};
	char name[160];
	struct pair p;

	snprintf(name, sizeof(name), "%s, %s, %u of %u rows%s%s%s", op->name,
		 precision_name[precision], n, max_batch,
		 flags & BACKEND_NO_GRAPHS ? ", no graphs" : "",
		 flags & BACKEND_NO_FUSION ? ", no fusion" : "",
		 flags & BACKEND_NO_LIBRARY ? ", own convolutions" : "");
	if (pair_open(&p, op, b, n, max_batch, &how, NULL)) {
		bool good;

		if (precision == BACKEND_PRECISION_F16)
			find_loss_scale(&p);
		good = evaluate(&p, name) && gradient(&p, name, 0) && gradient(&p, name, 1) &&
		       gradient(&p, name, 2) && evaluate(&p, name) && (n == 1 || again(&p, name));

		ok(good, "%s", name);
	}
	pair_close(&p);
}

/* No rows: the gradient is cleared, or left; every bucket is told. */
static void try_none(const struct op_case *op, struct build *b)
{
	struct bucket_count buckets = {0};
	struct backend_sums sums = {.n = 9};
	struct backend_batch none;
	bool left = true, zero = true;
	struct pair p;

	if (pair_open(&p, op, b, 4, 4, NULL, NULL)) {
		struct trial *t = &p.gpu;

		none = t->batch;
		none.n = 0;
		if (backend_gradient(t->net, &t->batch, 1, false, NULL, NULL, NULL, NULL, NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.want) ||
		    backend_gradient(t->net, &none, 1, true, NULL, NULL, NULL, NULL, NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.got))
			BAIL("%s: no gradient", op->name);
		left = !memcmp(p.got, p.want, t->params * sizeof(float));
		if (backend_gradient(t->net, &none, 1, false, count_bucket, &buckets, &sums, NULL,
				     NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.got))
			BAIL("%s: no gradient of nothing", op->name);
		for (uint64_t k = 0; k < t->params; k++)
			zero = zero && p.got[k] == 0.0f;
		ok(left && zero && sums.n == 0 && sums.loss == 0.0 && buckets.floats == t->params,
		   "%s: a batch without rows", op->name);
	}
	pair_close(&p);
}

static bool named(const char *name, char **list, int n)
{
	for (int k = 0; k < n; k++)
		if (!strcmp(list[k], name))
			return true;
	return n <= 0;
}

int main(int argc, char **argv)
{
	struct build *b = malloc(sizeof(*b));

	if (!b)
		BAIL("no memory");
	gpu_needed();
	for (size_t i = 0; i < OP_CASES; i++) {
		const struct op_case *op = &op_cases[i];

		if (!named(op->name, argv + 2, argc - 2))
			continue;
		for (int p = 0; p < BACKEND_PRECISION_COUNT; p++) {
			if (argc > 1 && strcmp(argv[1], precision_name[p]))
				continue;
			try_case(op, b, 5, 5, p, 0);
			if (p == BACKEND_PRECISION_TF32)
				continue;
			try_case(op, b, 6, 9, p, BACKEND_NO_FUSION | BACKEND_NO_LIBRARY);
			if (p != BACKEND_PRECISION_F32)
				continue;
			try_case(op, b, 1, 6, p, 0);
			try_case(op, b, 37, 40, p, BACKEND_NO_GRAPHS);
			try_none(op, b);
		}
	}
	free(b);
	return done();
}
