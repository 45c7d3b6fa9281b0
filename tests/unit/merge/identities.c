/* SPDX-License-Identifier: MIT */
/*
 * identities.c: what equals what, and what does not, on a noisy least squares problem. Each side
 * runs the library on threads; the plain optimizer is written out here. Sizes of the exceptions are
 * recorded in docs/merge.md.
 */
#include "group.h"

enum { D = 5, ROWS = 64, N = 4, STEPS = 60, BATCH = 4 };

static double A[ROWS][D], Y[ROWS];

enum way { SYNC, AVERAGE };

struct run {
	enum way way;
	const char *preset;
	double lr, mu, clip;
	bool nesterov, uneven;
	enum merge_momentum momentum;
	double eta, outer_mu;
	bool outer_nesterov, free_outer; /* eta, outer_mu, outer_nesterov instead of the preset's */
	uint32_t h, n, steps, batch;
	float w[8][D];
};

static void problem(void)
{
	uint64_t s = 1;

	for (int i = 0; i < ROWS; i++) {
		for (int d = 0; d < D; d++)
			A[i][d] = normal(&s);
		Y[i] = normal(&s);
	}
}

/* rows that rank r takes at step t: a cut of the step's rows, so that R ranks of B are one of RB */
static int row_of(uint32_t t, uint64_t position)
{
	uint64_t s = ((uint64_t)t << 20) + position;

	return (int)(uniform(&s) * ROWS);
}

static uint32_t rows_of(const struct run *u, uint32_t t, uint32_t r)
{
	return u->uneven ? 1 + (t * 3 + r * 5) % 7 : u->batch;
}

static void gradient(const struct run *u, const float *w, uint32_t t, uint32_t r, double seed,
		     float *g)
{
	double sum[D] = {0};
	uint64_t first = 0;

	for (uint32_t k = 0; k < r; k++)
		first += rows_of(u, t, k);
	for (uint32_t b = 0; b < rows_of(u, t, r); b++) {
		int i = row_of(t, first + b);
		double e = -Y[i];

		for (int d = 0; d < D; d++)
			e += A[i][d] * (double)w[d];
		for (int d = 0; d < D; d++)
			sum[d] += seed * e * A[i][d];
	}
	for (int d = 0; d < D; d++)
		g[d] = (float)sum[d];
}

static void step(const struct run *u, float *w, float *v, const float *g)
{
	double norm = 0, scale = 1;

	for (int d = 0; d < D; d++)
		norm += (double)g[d] * (double)g[d];
	if (u->clip > 0 && sqrt(norm) > u->clip)
		scale = u->clip / sqrt(norm);
	for (int d = 0; d < D; d++) {
		double p = scale * (double)g[d];

		v[d] = (float)(u->mu * (double)v[d] - u->lr * p);
		w[d] = (float)((double)w[d] +
			       (u->nesterov ? u->mu * (double)v[d] - u->lr * p : v[d]));
	}
}

static void one_rank(struct rank *k)
{
	struct run *u = k->arg;
	struct merge_tensor tensor;
	struct merge_table table = one_tensor(&tensor, D);
	struct merge_config c;
	struct merge *m = NULL;
	float *w = u->w[k->r], g[D], v[D] = {0}, *slot = v;
	struct merge_arenas a = {.param = w, .grad = g, .slot = &slot, .n_slots = 1};
	uint64_t since = 0;

	k->rc = merge_preset(u->preset, k->n, &c, &k->error);
	c.momentum = u->momentum;
	if (u->free_outer) {
		c.eta = u->eta;
		c.mu = u->outer_mu;
		c.nesterov = u->outer_nesterov;
	}
	if (!k->rc)
		k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	for (int d = 0; d < D; d++)
		w[d] = .1f;
	if (!k->rc)
		merge_start(m, w);
	for (uint32_t t = 0; t < u->steps && !k->rc; t++) {
		uint32_t mine = rows_of(u, t, k->r), total = 0;

		for (uint32_t r = 0; r < k->n; r++)
			total += rows_of(u, t, r);
		gradient(u, w, t, k->r, u->way == SYNC ? 1. / total : 1. / mine, g);
		if (u->way == SYNC)
			k->rc = merge_run_gradient(m, k->net, &a, mine, 0, NULL, &k->error);
		step(u, w, v, g);
		since += mine;
		if (u->way == SYNC || (t + 1) % u->h)
			continue;
		k->rc = merge_run(m, k->net, &a, since, u->lr, 0, NULL, &k->error);
		since = 0;
	}
	merge_close(m);
}

static struct run base(enum way way)
{
	return (struct run){.way = way,
			    .preset = way == SYNC ? "gradient" : "average",
			    .lr = .05,
			    .h = 1,
			    .n = N,
			    .steps = STEPS,
			    .batch = BATCH};
}

static double apart(struct run *a, struct run *b)
{
	double worst = 0;

	if (group_run(a->n, one_rank, a) || group_run(b->n, one_rank, b))
		return INFINITY;
	for (int d = 0; d < D; d++)
		worst = fmax(worst, fabs((double)a->w[0][d] - (double)b->w[0][d]));
	return worst;
}

static void expect(double got, bool same, const char *what)
{
	if (!ok(same ? got < 5e-6 : got > 1e-3 && got < 1e3, "%s", what))
		printf("#   apart by %g\n", got);
	else if (!same)
		printf("#   apart by %.3g\n", got);
}

/* H = 1: averaging weights after each step, and summing gradients before it */
static void every_step(double mu, bool nesterov, const char *name)
{
	struct run s = base(SYNC), a = base(AVERAGE);
	char text[128];

	s.mu = a.mu = mu;
	s.nesterov = a.nesterov = nesterov;
	snprintf(text, sizeof(text), "%s: averaging every step = gradients, even rows", name);
	expect(apart(&s, &a), true, text);
	a.momentum = MERGE_AVERAGE_SLOTS;
	snprintf(text, sizeof(text), "%s: the same with averaged momenta", name);
	expect(apart(&s, &a), true, text);
	s.uneven = a.uneven = true;
	snprintf(text, sizeof(text), "%s: uneven rows and averaged momenta", name);
	if (mu > 0) {
		/* p_i of this step weigh momenta that were averaged before: all equal, so exact */
		expect(apart(&s, &a), true, text);
		a.momentum = MERGE_KEEP;
		snprintf(text, sizeof(text), "%s: uneven rows and kept momenta differ", name);
		expect(apart(&s, &a), false, text);
		a = base(AVERAGE);
		s = base(SYNC);
		a.mu = s.mu = mu;
		a.nesterov = s.nesterov = nesterov;
		a.momentum = MERGE_RESET;
		snprintf(text, sizeof(text), "%s: momenta reset differ", name);
		expect(apart(&s, &a), false, text);
	} else {
		expect(apart(&s, &a), true, text);
	}
	s = base(SYNC);
	a = base(AVERAGE);
	s.mu = a.mu = mu;
	s.nesterov = a.nesterov = nesterov;
	s.clip = a.clip = .5;
	snprintf(text, sizeof(text), "%s: clipped gradients differ", name);
	expect(apart(&s, &a), false, text);
}

static void replicas(void)
{
	struct run one = base(SYNC), four = base(SYNC);

	one.n = 1;
	one.batch = N * BATCH;
	one.mu = four.mu = .9;
	expect(apart(&one, &four), true, "4 replicas of batch B = one of batch 4 B");
	one.batch = N * BATCH - 1;
	expect(apart(&one, &four), false, "one row less differs (the test can fail)");
}

static void outer_identities(void)
{
	struct run a = base(AVERAGE), b = base(AVERAGE);

	a.h = b.h = 3;
	b.preset = "outer";
	b.free_outer = true;
	b.eta = 1;
	expect(apart(&a, &b), true, "outer with eta 1, mu 0 = average");
	a.preset = "slowmo";
	b.preset = "bmuf";
	a.free_outer = true;
	a.eta = b.eta = .9;
	a.outer_mu = b.outer_mu = .5;
	expect(apart(&a, &b), true, "slowmo at a constant learning rate = bmuf");
	b.outer_mu = .3;
	expect(apart(&a, &b), false, "another mu differs");
}

/*
 * SlowMo as published: u <- b u + (x - xbar)/lr, x <- x - a lr u; heavy ball: x' = x - a delta +
 * b (x - x_before). BMUF with Nesterov's block momentum starts each block at x + b Delta. Local SGD
 * of one rank is enough: the merge sees xbar only.
 */
static void local_steps(const struct run *u, double *w, uint32_t *t)
{
	for (uint32_t h = 0; h < u->h; h++, ++*t) {
		double g[D] = {0};

		for (uint64_t p = 0; p < (uint64_t)u->batch * u->n; p++) {
			int i = row_of(*t, p);
			double e = -Y[i];

			for (int d = 0; d < D; d++)
				e += A[i][d] * w[d];
			for (int d = 0; d < D; d++)
				g[d] += e * A[i][d] / (u->batch * u->n);
		}
		for (int d = 0; d < D; d++)
			w[d] -= u->lr * g[d];
	}
}

static void published_forms(void)
{
	struct run u = base(AVERAGE);
	double worst[3] = {0};

	u.n = 1;
	u.h = 3;
	u.preset = "outer";
	u.free_outer = true;
	u.eta = .4;
	u.outer_mu = .5;
	for (int form = 0; form < 3; form++) {
		double x[D], before[D], m[D] = {0}, block[D] = {0}, y[D];
		uint32_t t = 0;

		u.outer_nesterov = form == 2;
		if (group_run(1, one_rank, &u))
			worst[form] = INFINITY;
		for (int d = 0; d < D; d++)
			x[d] = before[d] = y[d] = .1f;
		while (t < u.steps) {
			double w[D], old;

			memcpy(w, x, sizeof(w));
			local_steps(&u, w, &t);
			for (int d = 0; d < D; d++) {
				old = x[d];
				if (form == 0) {
					m[d] = u.outer_mu * m[d] + (x[d] - w[d]) / u.lr;
					x[d] -= u.eta * u.lr * m[d];
				} else if (form == 1) {
					x[d] += u.outer_mu * (x[d] - before[d]) -
						u.eta * (x[d] - w[d]);
				} else {
					block[d] = u.outer_mu * block[d] + u.eta * (w[d] - x[d]);
					y[d] += block[d];
					x[d] = y[d] + u.outer_mu * block[d];
				}
				before[d] = old;
			}
		}
		for (int d = 0; d < D; d++)
			worst[form] = fmax(worst[form], fabs((double)u.w[0][d] - x[d]));
	}
	expect(worst[0], true, "outer = SlowMo as published, at a constant learning rate");
	expect(worst[1], true, "outer = heavy ball");
	expect(worst[2], true, "outer with Nesterov = BMUF with Nesterov's block momentum");
}

int main(void)
{
	problem();
	every_step(0, false, "SGD");
	every_step(.9, false, "momentum");
	every_step(.9, true, "Nesterov");
	replicas();
	outer_identities();
	published_forms();
	return done();
}
