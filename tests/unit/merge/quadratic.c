/* SPDX-License-Identifier: MIT */
/*
 * quadratic.c: every preset on 82 curvatures lr * lambda from .02 to 1.64 at once (one coordinate
 * each), momentum .9 in the local optimizer. With the preset's own rule for momenta nothing may
 * grow; with bmuf's momenta kept some do, which is why they are reset.
 */
#include "group.h"

enum { CURVES = 82, MERGES = 60 };

struct job {
	struct merge_config c;
	uint32_t h;
	float x[8][CURVES];
};

static void run(struct rank *k)
{
	struct job *j = k->arg;
	struct merge_tensor t;
	struct merge_table table = one_tensor(&t, CURVES);
	struct merge *m = NULL;
	float *x = j->x[k->r], v[CURVES] = {0}, *slot = v;
	struct merge_arenas a = {.param = x, .slot = &slot, .n_slots = 1};

	k->rc = merge_open(&j->c, &table, k->n, &m, &k->error);
	for (int i = 0; i < CURVES; i++)
		x[i] = 1;
	if (!k->rc)
		merge_start(m, x);
	for (int round = 0; round < MERGES && !k->rc; round++) {
		for (uint32_t h = 0; h < j->h; h++)
			for (int i = 0; i < CURVES; i++) {
				v[i] = .9f * v[i] - .02f * (float)(i + 1) * x[i];
				x[i] += v[i];
			}
		k->rc = merge_run(m, k->net, &a, 10, .1, 0, NULL, &k->error);
	}
	if (!k->rc)
		memcpy(x, merge_model(m), CURVES * sizeof(float));
	merge_close(m);
}

static int diverged(struct job *j)
{
	int n = 0;

	if (group_run(4, run, j))
		return CURVES;
	for (int i = 0; i < CURVES; i++)
		n += !(fabsf(j->x[0][i]) < 2);
	return n;
}

int main(void)
{
	struct job j;

	for (uint32_t i = 0; merge_preset_name(i); i++) {
		const char *name = merge_preset_name(i);

		if (merge_preset(name, 4, &j.c, NULL))
			BAIL("%s", name);
		if (j.c.kind == MERGE_GRADIENT || j.c.kind == MERGE_NONE)
			continue;
		j.h = j.c.unit == MERGE_STEPS ? (uint32_t)j.c.every : 8;
		is(diverged(&j), 0, name);
	}
	merge_preset("bmuf", 4, &j.c, NULL);
	j.h = 8;
	is(diverged(&j), 0, "bmuf at H 8, momenta reset");
	j.c.momentum = MERGE_KEEP;
	ok(diverged(&j) > 10, "bmuf at H 8, momenta kept: curvatures diverge");
	return done();
}
