/* SPDX-License-Identifier: MIT */
/*
 * net.c: how calls on a net behave beside the numbers of one gradient: fewer rows than max_batch,
 * none, accumulation, scale and weights, buckets, foreign parameters, arenas, apply with NaN, wrong
 * calls. Every check runs on each back end.
 */
#include "../../tap.h"
#include "cases.h"

#define USUAL_LOSS                                       \
	{                                                \
		BACKEND_SPARSE_CROSSENTROPY, 0.0f, false \
	}

static const struct op_case norm_net = {"residual", case_residual, USUAL_LOSS, true};
static const struct op_case plain_net = {"conv", case_conv_16_relu_maxpool, USUAL_LOSS, true};
static const struct op_case dropout_net = {"dropout", case_dropout, USUAL_LOSS, true};

static const char *name; /* the back end under test */
static struct build build;

static struct trial opened(const struct op_case *op, uint32_t n, uint32_t max_batch)
{
	struct backend_error error;
	struct trial t;

	if (trial_open(&t, name, op, &build, n, max_batch, NULL, 23, NULL, &error))
		BAIL("%s", error.message);
	return t;
}

static float *gradient_of(struct trial *t, float scale, bool accumulate, struct backend_sums *sums)
{
	float *g = calloc(t->params + 1, sizeof(float));
	struct backend_error error = {""};

	if (!g ||
	    backend_gradient(t->net, &t->batch, scale, accumulate, NULL, NULL, sums, NULL,
			     &error) ||
	    backend_read(t->net, BACKEND_GRAD, 0, t->params, g))
		BAIL("gradient: %s", error.message);
	return g;
}

/* Largest difference relative to the largest value of b. */
static double apart(const float *a, const float *b, uint64_t n)
{
	double worst = 0, largest = 1e-30;

	for (uint64_t i = 0; i < n; i++) {
		worst = fmax(worst, fabs((double)a[i] - b[i]));
		largest = fmax(largest, fabs((double)b[i]));
	}
	return worst / largest;
}

/* The same rows in a net that could take more. */
static void fewer_rows(const struct op_case *op, uint32_t n)
{
	struct trial a = opened(op, n, n), c = opened(op, n, 9);
	struct backend_sums sa, sc;
	float *ga = gradient_of(&a, 1, false, &sa), *gc = gradient_of(&c, 1, false, &sc);
	float *stat_a = calloc(a.stats + 1, 4), *stat_c = calloc(a.stats + 1, 4);

	ok(apart(gc, ga, a.params) < 1e-5, "%s %s: %u rows of 9 give the gradient of %u", name,
	   op->name, n, n);
	near(sc.loss, sa.loss, 1e-5, "  the loss");
	backend_read(a.net, BACKEND_STAT, 0, a.stats, stat_a);
	backend_read(c.net, BACKEND_STAT, 0, a.stats, stat_c);
	ok(apart(stat_c, stat_a, a.stats) < 1e-5, "  and the statistics");
	free(ga);
	free(gc);
	free(stat_a);
	free(stat_c);
	trial_free(&a);
	trial_free(&c);
}

static void no_rows(void)
{
	struct trial t = opened(&norm_net, 4, 4);
	struct backend_sums sums;
	float *before = gradient_of(&t, 1, false, &sums), *after;
	float *stat = calloc(t.stats + 1, 4), *stat_after = calloc(t.stats + 1, 4);
	double largest = 0;

	backend_read(t.net, BACKEND_STAT, 0, t.stats, stat);
	t.batch.n = 0;
	after = gradient_of(&t, 1, true, &sums);
	ok(!memcmp(before, after, t.params * 4), "%s: no rows leave an accumulated gradient", name);
	ok(sums.n == 0 && sums.loss == 0 && sums.weight == 0, "  with empty sums");
	free(after);
	after = gradient_of(&t, 1, false, &sums);
	for (uint64_t i = 0; i < t.params; i++)
		largest = fmax(largest, fabs((double)after[i]));
	ok(largest == 0, "%s: no rows clear the gradient otherwise", name);
	backend_read(t.net, BACKEND_STAT, 0, t.stats, stat_after);
	ok(!memcmp(stat, stat_after, t.stats * 4), "%s: no rows leave the statistics", name);
	t.batch.x = NULL;
	t.batch.label = NULL;
	ok(backend_evaluate(t.net, NULL, NULL, &t.batch, &sums, NULL, NULL) == 0 && sums.n == 0,
	   "%s: no rows are evaluated", name);
	free(before);
	free(after);
	free(stat);
	free(stat_after);
	trial_free(&t);
}

/* Without batch norm: rows 0..3 at once = rows 0..1, then 2..3 added, with dropout's positions. */
static void accumulation(const struct op_case *op)
{
	struct trial t = opened(op, 4, 4);
	struct backend_batch whole = t.batch;
	struct backend_sums all, first, second;
	float *at_once = gradient_of(&t, 0.25f, false, &all), *parts;

	t.batch.n = 2;
	free(gradient_of(&t, 0.25f, false, &first));
	t.batch.x += 2;
	t.batch.hash += 2;
	t.batch.label += 2;
	t.batch.weight += 2;
	t.batch.position += 2;
	parts = gradient_of(&t, 0.25f, true, &second);
	ok(apart(parts, at_once, t.params) < 1e-5, "%s %s: two halves add up", name, op->name);
	near(first.loss + second.loss, all.loss, 1e-5, "  the loss too");
	near(first.weight + second.weight, all.weight, 1e-5, "  and the weight");
	t.batch = whole;
	free(parts);
	parts = gradient_of(&t, 0.5f, false, &second);
	for (uint64_t i = 0; i < t.params; i++)
		parts[i] *= 0.5f;
	ok(apart(parts, at_once, t.params) < 1e-6, "%s: the gradient is linear in scale", name);
	near(second.loss, all.loss, 1e-9, "the loss does not know the scale");
	free(parts);
	free(at_once);
	trial_free(&t);
}

/* A row of weight 0 does not count; weight 2 counts as twice the row (no batch norm). */
static void weights(void)
{
	struct trial t = opened(&plain_net, 3, 4);
	struct backend_sums a, c;
	float *ga, *gc;
	int32_t label[4];
	const void *row[4];

	t.weight[0] = 2;
	t.weight[1] = 0;
	t.weight[2] = 1;
	ga = gradient_of(&t, 1, false, &a);
	for (int i = 0; i < 3; i++) {
		row[i] = t.row[i == 1 ? 0 : i];
		label[i] = t.label[i == 1 ? 0 : i];
	}
	t.batch.x = row;
	t.batch.label = label;
	t.batch.weight = NULL;
	gc = gradient_of(&t, 1, false, &c);
	ok(apart(ga, gc, t.params) < 1e-5, "%s: weights 2, 0, 1 are rows 0, 0, 2", name);
	near(a.loss, c.loss, 1e-5, "  the loss");
	ok(a.n == 3 && a.weight == 3 && c.weight == 3, "  the sums");
	free(ga);
	free(gc);
	trial_free(&t);
}

struct buckets {
	struct trial *t;
	const float *want; /* NULL: not compared */
	uint32_t calls;
	int fail_at;
	uint64_t floats;
	uint64_t order; /* a hash of what was called */
	bool overlap, wrong;
	uint8_t *seen;
};

static int on_bucket(void *context, uint64_t offset, uint64_t length, void *ready)
{
	struct buckets *k = context;
	float *got = calloc(length + 1, 4);

	if (offset + length > k->t->params || ready) {
		k->wrong = true;
		free(got);
		return -ERANGE;
	}
	backend_read(k->t->net, BACKEND_GRAD, offset, length, got);
	if (k->want && memcmp(got, k->want + offset, length * 4))
		k->wrong = true;
	free(got);
	for (uint64_t i = offset; i < offset + length; i++) {
		k->overlap |= k->seen[i];
		k->seen[i] = 1;
	}
	k->floats += length;
	k->order = k->order * 31 + offset * 7 + length;
	return (int)k->calls++ == k->fail_at ? -ECANCELED : 0;
}

static void buckets(void)
{
	struct trial t = opened(&norm_net, 3, 4);
	struct backend_sums sums;
	struct backend_error error = {""};
	struct buckets k = {.t = &t, .fail_at = -1, .seen = calloc(t.params, 1)};
	float *want = gradient_of(&t, 1, false, &sums);
	uint64_t order;

	k.want = want;
	is(backend_gradient(t.net, &t.batch, 1, false, on_bucket, &k, &sums, NULL, &error), 0,
	   "a gradient with buckets");
	ok(!k.wrong, "%s: a bucket is final when it is called", name);
	ok(!k.overlap && k.floats == t.params, "%s: the buckets are the arena, each float once",
	   name);
	order = k.order;
	k.order = k.calls = 0;
	k.want = NULL;
	t.batch.n = 0;
	is(backend_gradient(t.net, &t.batch, 1, false, on_bucket, &k, &sums, NULL, &error), 0,
	   "no rows, with buckets");
	ok(k.order == order, "%s: in the same order without rows", name);
	k.calls = 0;
	k.fail_at = 0;
	t.batch.n = 3;
	is(backend_gradient(t.net, &t.batch, 1, false, on_bucket, &k, &sums, NULL, &error),
	   -ECANCELED, "an error of the callback comes back");
	is(k.calls, 1, "  at once");
	free(k.seen);
	free(want);
	trial_free(&t);
}

/* evaluate with foreign parameters: as a net that owns them, and without a trace. */
static void foreign(void)
{
	struct trial t = opened(&norm_net, 4, 4), other;
	struct backend_sums own, want, got;
	struct backend_error error;
	float *out = calloc(4 * t.outputs, 4), *wanted = calloc(4 * t.outputs, 4);
	float *param, *stat, *before, *after;

	if (trial_open(&other, name, &norm_net, &build, 4, 4, NULL, 99, NULL, &error))
		BAIL("%s", error.message);
	param = other.param;
	stat = other.stat;
	backend_evaluate(other.net, NULL, NULL, &t.batch, &want, wanted, NULL);
	before = gradient_of(&t, 1, false, &own);
	backend_write(t.net, BACKEND_STAT, 0, t.stats, t.stat);
	backend_evaluate(t.net, NULL, NULL, &t.batch, &own, NULL, NULL);
	is(backend_evaluate(t.net, param, stat, &t.batch, &got, out, &error), 0,
	   "evaluates with foreign parameters");
	near(got.loss, want.loss, 1e-5, "  the loss of the net that owns them");
	ok(fabs(own.loss - want.loss) > 1e-3, "  which is another loss than its own");
	ok(apart(out, wanted, 4 * t.outputs) < 1e-5, "  the outputs too");
	backend_evaluate(t.net, NULL, NULL, &t.batch, &got, NULL, NULL);
	ok(got.loss == own.loss, "%s: its own parameters are still there", name);
	after = calloc(t.params + 1, 4);
	backend_read(t.net, BACKEND_GRAD, 0, t.params, after);
	ok(!memcmp(before, after, t.params * 4), "%s: so is its gradient", name);
	backend_read(t.net, BACKEND_STAT, 0, t.stats, after);
	ok(!memcmp(t.stat, after, t.stats * 4), "%s: and its statistics", name);
	t.batch.label = NULL;
	memset(out, 0, 4 * t.outputs * 4);
	is(backend_evaluate(t.net, param, stat, &t.batch, NULL, out, &error), 0,
	   "outputs without labels");
	ok(apart(out, wanted, 4 * t.outputs) < 1e-5, "  the same outputs");
	is(backend_evaluate(t.net, param, NULL, &t.batch, NULL, out, &error), -EINVAL,
	   "parameters without statistics");
	free(out);
	free(wanted);
	free(before);
	free(after);
	trial_free(&t);
	trial_free(&other);
}

static void arenas(void)
{
	struct trial t = opened(&norm_net, 2, 2);
	float v[4] = {1, 2, 3, 4}, got[4] = {0};

	is(backend_arena_floats(t.net, BACKEND_PARAM), t.params, "floats of the parameters");
	is(backend_arena_floats(t.net, BACKEND_STAT), t.stats, "floats of the statistics");
	is(backend_arena_floats(t.net, BACKEND_SLOT), 0, "no slots for plain sgd");
	is(backend_write(t.net, BACKEND_PARAM, t.params - 4, 4, v), 0, "writes the last floats");
	is(backend_read(t.net, BACKEND_PARAM, t.params - 4, 4, got), 0, "reads them");
	ok(!memcmp(v, got, sizeof(v)), "%s: the same floats", name);
	is(backend_write(t.net, BACKEND_PARAM, t.params - 3, 4, v), -ERANGE, "one float too far");
	is(backend_read(t.net, BACKEND_STAT, UINT64_MAX, 2, got), -ERANGE, "offset that overflows");
	is(backend_read(t.net, BACKEND_STAT, 1, UINT64_MAX, got), -ERANGE, "length that overflows");
	is(backend_read(t.net, BACKEND_SLOT, 0, 1, got), -ERANGE, "a slot that is not there");
	is(backend_read(t.net, (enum backend_arena)9, 0, 1, got), -EINVAL, "no such arena");
	is(backend_read(t.net, BACKEND_PARAM, 0, 1, NULL), -EINVAL, "no place to read to");
	ok(backend_slot_name(t.net, 0) == NULL, "%s: no name of no slot", name);
	trial_free(&t);
}

/* ---- apply ------------------------------------------------------------------------------- */

static void not_finite(float bad, const char *what)
{
	struct trial t = opened(&norm_net, 2, 2);
	struct backend_applied applied = {true, 0};
	struct backend_sums sums;
	float *got = calloc(t.params, 4);

	free(gradient_of(&t, 1, false, &sums));
	backend_write(t.net, BACKEND_GRAD, build.tensor[build.n_tensors - 1].offset + 1, 1, &bad);
	is(backend_apply(t.net, 0.1, 1, &applied, NULL), 0, "apply with a broken gradient");
	ok(!applied.finite, "%s: %s in the gradient is seen", name, what);
	backend_read(t.net, BACKEND_PARAM, 0, t.params, got);
	ok(!memcmp(got, t.param, t.params * 4), "  and no parameter has changed");
	free(got);
	trial_free(&t);
}

/* step = gradient + apply */
static void step(void)
{
	struct trial a = opened(&norm_net, 3, 3), c = opened(&norm_net, 3, 3);
	struct backend_applied aa, ac;
	struct backend_sums sums;
	float *pa = calloc(a.params, 4), *pc = calloc(a.params, 4);

	for (uint64_t t = 1; t <= 3; t++) {
		backend_step(a.net, &a.batch, 0.3f, 0.1, t, &sums, NULL, &aa, NULL);
		free(gradient_of(&c, 0.3f, false, &sums));
		backend_apply(c.net, 0.1, t, &ac, NULL);
	}
	backend_read(a.net, BACKEND_PARAM, 0, a.params, pa);
	backend_read(c.net, BACKEND_PARAM, 0, a.params, pc);
	ok(apart(pa, pc, a.params) < 1e-6, "%s: step is gradient and apply", name);
	ok(apart(pa, a.param, a.params) > 1e-3, "  and it moves");
	free(pa);
	free(pc);
	trial_free(&a);
	trial_free(&c);
}

/* ---- wrong calls ------------------------------------------------------------------------- */

static void wrong_calls(void)
{
	struct trial t = opened(&norm_net, 3, 3);
	struct backend_error error = {""};
	struct backend_batch good = t.batch;
	const void *row[3] = {t.x, NULL, t.x};
	struct backend_sums sums;

#define WRONG(statement, code, text)                                                             \
	do {                                                                                     \
		statement;                                                                       \
		is(backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, &sums, NULL, &error), \
		   code, #statement);                                                            \
		like(error.message, text, "  and the message says so");                          \
		is(backend_evaluate(t.net, NULL, NULL, &t.batch, &sums, NULL, &error), code,     \
		   "  evaluate likewise");                                                       \
		t.batch = good;                                                                  \
		t.label[1] = 0;                                                                  \
	} while (0)
	WRONG(t.batch.n = 4, -EINVAL, "compiled for 3");
	WRONG(t.batch.x = NULL, -EINVAL, "without rows");
	WRONG(t.batch.x = row, -EINVAL, "row 1");
	WRONG(t.batch.label = NULL, -EINVAL, "without labels");
	WRONG(t.label[1] = 3, -ERANGE, "label 3 of row 1");
	WRONG(t.label[1] = -1, -ERANGE, "label -1 of row 1");
	is(backend_apply(t.net, NAN, 1, NULL, &error), -EINVAL, "learning rate NaN");
	is(backend_apply(t.net, 0.1, 0, NULL, &error), -EINVAL, "update 0");
	trial_free(&t);
}

static void inference(void)
{
	struct trial t;
	struct backend_error error = {""};
	struct backend_net_options options;
	struct trial usual = opened(&norm_net, 3, 3);
	struct backend_sums a, c;

	options = trial_options(&build.graph, &norm_net, 3);
	options.inference = true;
	options.optimizer.kind = BACKEND_OPTIMIZER_COUNT; /* nobody looks at it */
	if (trial_open(&t, name, &norm_net, &build, 3, 3, NULL, 23, &options, &error))
		BAIL("%s", error.message);
	backend_evaluate(usual.net, NULL, NULL, &usual.batch, &c, NULL, &error);
	is(backend_evaluate(t.net, NULL, NULL, &t.batch, &a, NULL, &error), 0, "inference");
	near(a.loss, c.loss, 1e-6, "  the loss of a training net");
	is(backend_gradient(t.net, &t.batch, 1, false, NULL, NULL, &a, NULL, &error), -EPERM,
	   "no gradient");
	is(backend_apply(t.net, 0.1, 1, NULL, &error), -EPERM, "no update");
	is(backend_step(t.net, &t.batch, 1, 0.1, 1, NULL, NULL, NULL, &error), -EPERM, "no step");
	is(backend_arena_floats(t.net, BACKEND_GRAD), 0, "no gradient arena");
	ok(backend_net_bytes(t.net) <= backend_net_bytes(usual.net), "%s: and no more memory",
	   name);
	trial_free(&t);
	trial_free(&usual);
}

static void estimate(void)
{
	struct trial t = opened(&plain_net, 4, 64);
	struct backend_net_options options = trial_options(&build.graph, &plain_net, 64);
	uint64_t bytes = 0, held = backend_net_bytes(t.net);

	is(backend_estimate(t.backend, &build.graph, &options, &bytes), 0, "an estimate");
	ok(bytes > held / 2 && bytes < held * 2, "%s: of the right size (%llu, held %llu)", name,
	   (unsigned long long)bytes, (unsigned long long)held);
	ok(backend_info(t.backend)[0] != 0, "%s: %s", name, backend_info(t.backend));
	is_str(backend_name(t.backend), name, "its name");
	trial_free(&t);
}

/* The same call twice gives the same bits. */
static void repeats(void)
{
	struct trial a = opened(&dropout_net, 5, 8), c = opened(&dropout_net, 5, 8);
	struct backend_sums sa, sc;
	float *ga = gradient_of(&a, 1, false, &sa), *gc = gradient_of(&c, 1, false, &sc);

	ok(!memcmp(ga, gc, a.params * 4) && sa.loss == sc.loss, "%s: the same bits again", name);
	free(ga);
	free(gc);
	trial_free(&a);
	trial_free(&c);
}

static void all_checks(void)
{
	fewer_rows(&norm_net, 1);
	fewer_rows(&norm_net, 4);
	fewer_rows(&plain_net, 5);
	no_rows();
	accumulation(&plain_net);
	accumulation(&dropout_net);
	weights();
	buckets();
	foreign();
	arenas();
	not_finite(NAN, "NaN");
	not_finite(INFINITY, "Inf");
	step();
	wrong_calls();
	inference();
	estimate();
	repeats();
}

int main(void)
{
	for (int i = 0; trial_backends[i]; i++) {
		name = trial_backends[i];
		all_checks();
	}
	return done();
}
