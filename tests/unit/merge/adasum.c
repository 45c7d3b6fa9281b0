/* SPDX-License-Identifier: MIT */
/*
 * adasum.c: properties of adaptive summation, and its numbers against the formula applied to whole
 * vectors as a tree, for 1 to 9 hosts.
 */
#include "group.h"

enum { P = 150, MAXN = 9 };

static struct merge_tensor tensors[3] = {{.name = "a", .count = 70},
					 {.name = "b", .offset = 80, .count = 33},
					 {.name = "c", .offset = 128, .count = 22}};
static const struct merge_table table = {.tensor = tensors, .n = 3, .param_floats = P};

struct job {
	double delta[MAXN][P]; /* x - x_i, x = 0 */
	float x[MAXN][P];
};

static void run(struct rank *k)
{
	struct job *j = k->arg;
	struct merge_config c;
	struct merge *m = NULL;
	float *x = j->x[k->r], zero[P] = {0};
	struct merge_arenas a = {.param = x};

	k->rc = merge_preset("adasum", k->n, &c, &k->error);
	if (!k->rc)
		k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	if (k->rc)
		return;
	merge_start(m, zero);
	for (int i = 0; i < P; i++)
		x[i] = (float)-j->delta[k->r][i];
	k->rc = merge_run(m, k->net, &a, 1 + k->r, .1, 0, NULL, &k->error);
	merge_close(m);
}

static void pair(double *a, const double *b)
{
	for (int t = 0; t < 3; t++) {
		double aa = 0, bb = 0, ab = 0, p, q;
		uint64_t lo = tensors[t].offset, hi = lo + tensors[t].count;

		for (uint64_t i = lo; i < hi; i++) {
			aa += a[i] * a[i];
			bb += b[i] * b[i];
			ab += a[i] * b[i];
		}
		p = aa > 0 ? 1 - ab / (2 * aa) : 0;
		q = bb > 0 ? 1 - ab / (2 * bb) : 0;
		for (uint64_t i = lo; i < hi; i++)
			a[i] = p * a[i] + q * b[i];
	}
}

static void tree(const struct job *j, uint32_t n, double *out)
{
	static double v[MAXN][P];
	uint32_t pow2 = 1;

	memcpy(v, j->delta, sizeof(v));
	while (2 * pow2 <= n)
		pow2 *= 2;
	for (uint32_t r = pow2; r < n; r++)
		pair(v[r - pow2], v[r]);
	for (uint32_t d = 1; d < pow2; d *= 2)
		for (uint32_t r = 0; r < pow2; r += 2 * d)
			pair(v[r], v[r + d]);
	memcpy(out, v[0], sizeof(v[0]));
}

static void fill(struct job *j, uint64_t s, bool common)
{
	memset(j, 0, sizeof(*j));
	for (int r = 0; r < MAXN; r++)
		for (int t = 0; t < 3; t++)
			for (uint64_t i = 0; i < tensors[t].count; i++) {
				uint64_t shared = 1000 + tensors[t].offset + i;

				j->delta[r][tensors[t].offset + i] =
					(float)(normal(&s) + (common ? normal(&shared) : 0));
			}
}

static double worst_from(const struct job *j, uint32_t n, const double *want, bool *same)
{
	double worst = 0;

	*same = true;
	for (uint32_t r = 0; r < n; r++) {
		*same &= !memcmp(j->x[0], j->x[r], sizeof(j->x[0]));
		for (int i = 0; i < P; i++)
			worst = fmax(worst, fabs(-(double)j->x[r][i] - want[i]));
	}
	return worst;
}

static void numbers(void)
{
	static struct job j;
	double want[P];
	bool same;

	for (uint32_t n = 1; n <= MAXN; n++) {
		fill(&j, n, true);
		is(group_run(n, run, &j), 0, "adasum");
		tree(&j, n, want);
		ok(worst_from(&j, n, want, &same) < 1e-5, "%u hosts: the formula as a tree", n);
		ok(same, "%u hosts: bitwise equal", n);
	}
}

static void properties(void)
{
	static struct job j;
	double want[P];
	bool same;

	fill(&j, 5, false);
	for (int r = 1; r < MAXN; r++)
		memcpy(j.delta[r], j.delta[0], sizeof(j.delta[0]));
	is(group_run(8, run, &j), 0, "parallel");
	ok(worst_from(&j, 8, j.delta[0], &same) < 1e-5, "equal deltas: their mean");
	fill(&j, 6, false);
	for (int r = 0; r < MAXN; r++)
		for (int i = 0; i < P; i++)
			if (i % 4 != r)
				j.delta[r][i] = 0;
	is(group_run(4, run, &j), 0, "orthogonal");
	for (int i = 0; i < P; i++)
		want[i] = j.delta[i % 4][i];
	ok(worst_from(&j, 4, want, &same) < 1e-6, "orthogonal deltas: their sum");
	fill(&j, 7, false);
	memset(j.delta[0], 0, sizeof(j.delta[0]));
	is(group_run(2, run, &j), 0, "a = 0");
	ok(worst_from(&j, 2, j.delta[1], &same) == 0, "|a| = 0 gives b");
	fill(&j, 7, false);
	memset(j.delta[1], 0, sizeof(j.delta[1]));
	is(group_run(2, run, &j), 0, "b = 0");
	ok(worst_from(&j, 2, j.delta[0], &same) == 0, "|b| = 0 gives a");
	fill(&j, 9, true);
	for (int i = 80; i < P; i++)
		j.delta[1][i] *= 1000;
	is(group_run(2, run, &j), 0, "scales");
	tree(&j, 2, want);
	ok(worst_from(&j, 2, want, &same) < 1e-3, "tensors do not mix: one scaled by 1000");
	for (uint64_t i = 0, bad = 0; i < 70; i++) {
		bad += fabs(-(double)j.x[0][i] - want[i]) > 1e-5;
		if (i == 69)
			is(bad, 0, "the other tensor keeps its precision");
	}
}

int main(void)
{
	numbers();
	properties();
	return done();
}
