/* SPDX-License-Identifier: MIT */
/*
 * cpu_ops.c: the cpu back end against ref for every case of the table: outputs in training and
 * evaluation, losses, gradients, statistics, accumulation; batches smaller than max_batch, of one
 * row and of none; one thread and two; and twice the same bits.
 */
#include "cases.h"
#include "cpu_trial.h"

static struct backend_batch of_rows(const struct trial *t, uint32_t n)
{
	struct backend_batch b = t->batch;

	b.n = n;
	return b;
}

static void outputs_agree(struct pair *p, const char *name, const char *what, uint32_t n)
{
	double d = distance(p->got, p->want, n * p->ref.outputs);

	if (!ok(d <= p->tolerance, "%s: %s", name, what))
		printf("#   distance %.3g, allowed %.3g\n", d, p->tolerance);
}

static void try_evaluate(struct pair *p, const char *name)
{
	struct backend_sums got = {0}, want = {0};
	struct backend_error error = {""};
	int rc;

	if (backend_evaluate(p->ref.net, NULL, NULL, &p->ref.batch, &want, p->want, &error))
		BAIL("%s: ref: %s", name, error.message);
	rc = backend_evaluate(p->cpu.net, NULL, NULL, &p->cpu.batch, &got, p->got, &error);
	if (!ok(rc == 0, "%s: evaluates", name))
		printf("# %s\n", error.message);
	outputs_agree(p, name, "outputs in evaluation", p->ref.n);
	pair_sums(p, "evaluation", name, &got, &want);
}

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

static void try_gradient(struct pair *p, const char *name, bool accumulate)
{
	const char *what = accumulate ? "gradient, accumulated" : "gradient";
	struct backend_sums got = {0}, want = {0};
	struct backend_error error = {""};
	struct bucket_count buckets = {0};
	const float scale = accumulate ? 0.5f : 0.25f;
	int rc;

	if (backend_gradient(p->ref.net, &p->ref.batch, scale, accumulate, NULL, NULL, &want,
			     p->want, &error))
		BAIL("%s: ref: %s", name, error.message);
	rc = backend_gradient(p->cpu.net, &p->cpu.batch, scale, accumulate, count_bucket, &buckets,
			      &got, p->got, &error);
	if (!ok(rc == 0, "%s: takes the gradient", name))
		printf("# %s\n", error.message);
	outputs_agree(p, name, "outputs in training", p->ref.n);
	pair_sums(p, what, name, &got, &want);
	pair_arena(p, what, name, BACKEND_GRAD, p->tolerance);
	pair_arena(p, "statistics", name, BACKEND_STAT, p->tolerance);
	ok(buckets.floats == p->cpu.params, "%s: every float is in a bucket, once (%u)", name,
	   buckets.calls);
}

/* The same call from the same state once more: the same bits. */
static void try_again(struct pair *p, const char *name)
{
	struct trial *t = &p->cpu;
	bool same = true;

	for (int pass = 0; pass < 3; pass++) {
		if (backend_write(t->net, BACKEND_STAT, 0, t->stats, t->stat) ||
		    backend_gradient(t->net, &t->batch, 1.0f, false, NULL, NULL, NULL, NULL,
				     NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, pass ? p->got : p->want))
			BAIL("%s: no gradient", name);
		same = same && (!pass || !memcmp(p->got, p->want, t->params * sizeof(float)));
	}
	ok(same, "%s: three times the same gradient, bit for bit", name);
}

static void try_case(const struct op_case *op, struct build *b, uint32_t n, uint32_t max_batch,
		     struct backend_pool *pool)
{
	char name[160];
	struct pair p;

	snprintf(name, sizeof(name), "%s, %u of %u rows, %u threads", op->name, n, max_batch,
		 pool ? backend_pool_threads(pool) : 1);
	if (pair_open(&p, op, b, n, max_batch, pool, NULL)) {
		try_evaluate(&p, name);
		try_gradient(&p, name, false);
		try_gradient(&p, name, true);
		try_evaluate(&p, name);
		if (n > 1)
			try_again(&p, name);
	}
	pair_close(&p);
}

/* No rows: the gradient is cleared, or left; every bucket is told. */
static void try_none(const struct op_case *op, struct build *b, struct backend_pool *pool)
{
	struct bucket_count buckets = {0};
	struct backend_sums sums = {.n = 9};
	struct backend_batch none;
	bool left = true, zero = true;
	struct pair p;

	if (pair_open(&p, op, b, 4, 4, pool, NULL)) {
		struct trial *t = &p.cpu;

		none = of_rows(t, 0);
		if (backend_gradient(t->net, &t->batch, 1, false, NULL, NULL, NULL, NULL, NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.want) ||
		    backend_gradient(t->net, &none, 1, true, NULL, NULL, NULL, NULL, NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.got))
			BAIL("%s: no gradient", op->name);
		left = !memcmp(p.got, p.want, t->params * sizeof(float));
		if (backend_gradient(t->net, &none, 1, false, count_bucket, &buckets, &sums, NULL,
				     NULL) ||
		    backend_read(t->net, BACKEND_GRAD, 0, t->params, p.got))
			BAIL("%s: no gradient", op->name);
		for (uint64_t k = 0; k < t->params; k++)
			zero = zero && p.got[k] == 0.0f;
		ok(left && zero, "%s: no rows leave or clear the gradient", op->name);
		ok(buckets.floats == t->params && sums.n == 0 && sums.loss == 0,
		   "%s: no rows: buckets and sums", op->name);
	}
	pair_close(&p);
}

int main(int argc, char **argv)
{
	struct build *b = malloc(sizeof(*b));
	struct backend_pool *two, *three;

	if (!b || backend_pool_create(2, &two) || backend_pool_create(3, &three))
		BAIL("no pool");
	for (size_t i = 0; i < OP_CASES; i++) {
		static const char *const isa[] = {"plain", "avx2"};

		if (argc > 1 && strcmp(argv[1], op_cases[i].name))
			continue;
		try_case(&op_cases[i], b, 5, 5, NULL);
		try_case(&op_cases[i], b, 1, 6, NULL);
		try_case(&op_cases[i], b, 37, 40, two);
		try_case(&op_cases[i], b, 2, 2, three);
		try_none(&op_cases[i], b, two);
		/* the loops of other processors, and the library where own kernels are faster */
		for (int k = 0; k < 2; k++) {
			setenv("CNN_CPU_ISA", isa[k], 1);
			try_case(&op_cases[i], b, 4, 4, NULL);
		}
		unsetenv("CNN_CPU_ISA");
	}
	backend_pool_free(two);
	backend_pool_free(three);
	free(b);
	return done();
}
