/* SPDX-License-Identifier: MIT */
/*
 * collective.c: all-reduce, direct and ring, for odd sizes and numbers of hosts; policies inside a
 * parameter arena; bf16 residuals.
 */
#include "../../../nccl_merge/internal.h"
#include "group.h"

enum { MOST = 40000, MAXN = 9 };

struct job {
	uint64_t count, ring_from;
	enum merge_op op;
	float in[MAXN][MOST], out[MAXN][MOST];
	uint32_t gathered[MAXN][MAXN];
};

static void reduce(struct rank *k)
{
	struct job *j = k->arg;

	k->net->ring_from = j->ring_from;
	k->rc = merge_all_reduce(k->net, j->in[k->r], j->out[k->r], j->count, j->op, &k->error);
	if (!k->rc)
		k->rc = merge_all_gather(k->net, &k->r, sizeof(k->r), j->gathered[k->r], &k->error);
}

static float wanted(const struct job *j, uint32_t n, uint64_t i)
{
	double v = j->in[0][i];

	for (uint32_t r = 1; r < n; r++)
		v = j->op == MERGE_OP_MAX   ? fmax(v, j->in[r][i])
		    : j->op == MERGE_OP_MIN ? fmin(v, j->in[r][i])
					    : v + (double)j->in[r][i];
	return (float)(j->op == MERGE_OP_AVG ? v / n : v);
}

static void sizes(struct job *j, const char *name)
{
	static const uint64_t count[] = {0, 1, 15, 16, 17, 33, 1000, MOST};

	for (uint32_t n = 1; n <= MAXN; n += n < 5 ? 1 : 2) {
		uint64_t bad = 0, apart = 0;

		for (size_t c = 0; c < sizeof(count) / sizeof(count[0]); c++) {
			j->count = count[c];
			memset(j->out, 0xff, sizeof(j->out));
			bad += group_run(n, reduce, j) != 0;
			for (uint64_t i = 0; i < j->count; i++) {
				float w = wanted(j, n, i);

				bad += fabsf(j->out[0][i] - w) > (j->ring_from == 1 ? 2e-6f : 0);
				for (uint32_t r = 1; r < n; r++)
					apart += memcmp(&j->out[r][i], &j->out[0][i], 4) != 0;
			}
			for (uint32_t r = 0; r < n; r++)
				for (uint32_t p = 0; p < n; p++)
					bad += j->gathered[r][p] != p;
		}
		ok(!bad && !apart, "%s, %u ranks, 0 to %d floats", name, n, MOST);
	}
}

/* ---- policies ------------------------------------------------------------------------------- */

static struct merge_tensor mixed[4] = {
	{.name = "w", .count = 40},
	{.name = "frozen", .policy = MERGE_COPIED, .offset = 48, .count = 5},
	{.name = "steps", .policy = MERGE_COUNTER, .offset = 64, .count = 1},
	{.name = "v", .offset = 80, .count = 20},
};
static const struct merge_table mixed_table = {.tensor = mixed, .n = 4, .param_floats = 100};

struct policy_job {
	const char *preset;
	enum merge_wire wire;
	float x[3][100];
};

static void policies_run(struct rank *k)
{
	struct policy_job *j = k->arg;
	struct merge_config c;
	struct merge *m = NULL;
	float *x = j->x[k->r], start[100] = {0};
	struct merge_arenas a = {.param = x};

	k->rc = merge_preset(j->preset, k->n, &c, &k->error);
	c.wire = j->wire;
	for (int i = 0; i < 100; i++)
		start[i] = i >= 48 && i < 53 ? 7 : i == 64 ? 2 : 0;
	if (!k->rc)
		k->rc = merge_open(&c, &mixed_table, k->n, &m, &k->error);
	if (k->rc)
		return;
	merge_start(m, start);
	for (int i = 0; i < 100; i++)
		x[i] = i < 40 || i >= 80 ? (float)(1 + k->r) : start[i];
	x[64] = (float)(4 + 4 * k->r);
	k->rc = merge_run(m, k->net, &a, 1, .1, 0, NULL, &k->error);
	merge_close(m);
}

static void policies(void)
{
	static const char *preset[] = {"average", "diloco", "easgd", "adasum", "median"};

	for (size_t p = 0; p < 6; p++) {
		struct policy_job j = {.preset = preset[p % 5],
				       .wire = p == 5 ? MERGE_BF16 : MERGE_F32};
		bool good = true;

		is(group_run(3, policies_run, &j), 0, j.preset);
		for (int r = 0; r < 3; r++)
			for (int i = 48; i < 53; i++)
				good &= j.x[r][i] == 7;
		ok(good, "%s: a frozen tensor keeps its value", j.preset);
		ok(j.x[0][64] == 12 && j.x[2][64] == 12, "%s: a counter takes the largest",
		   j.preset);
		ok(j.x[0][39] == j.x[0][0] && j.x[0][80] == j.x[0][0] && j.x[0][0] > 0,
		   "%s: tensors on both sides are merged", j.preset);
		ok(j.x[1][45] == 0 && j.x[1][70] == 0, "%s: gaps stay zero", j.preset);
	}
}

/* ---- residuals ------------------------------------------------------------------------------ */

struct carry_job {
	float x[4][64];
	uint64_t rounds;
};

/* Host r moves by 1.003 + r/1000 a round: bf16 would lose the same part each time. */
static void carry_run(struct rank *k)
{
	struct carry_job *j = k->arg;
	struct merge_tensor t;
	struct merge_table table = one_tensor(&t, 64);
	struct merge_config c;
	struct merge *m = NULL;
	float *x = j->x[k->r];
	struct merge_arenas a = {.param = x};

	merge_preset("average", k->n, &c, NULL);
	c.wire = MERGE_BF16;
	k->rc = merge_open(&c, &table, k->n, &m, &k->error);
	memset(x, 0, 64 * sizeof(*x));
	if (!k->rc)
		merge_start(m, x);
	for (uint64_t round = 0; round < j->rounds && !k->rc; round++) {
		for (int i = 0; i < 64; i++)
			x[i] += 1.003f + .001f * (float)k->r;
		k->rc = merge_run(m, k->net, &a, 1, .1, 0, NULL, &k->error);
	}
	merge_close(m);
}

static void residuals(void)
{
	struct carry_job j = {.rounds = 100};

	is(group_run(4, carry_run, &j), 0, "100 merges over bf16");
	/* mean 1.0045 a round; without residuals each round moves by 1 */
	near(j.x[0][5], 100.45, .02, "rounded parts are made good");
	ok(!memcmp(j.x[0], j.x[3], sizeof(j.x[0])), "the owner applies the rounded result too");
}

/* The same over the mesh, fewer of them: each makes a mesh of its own. */
static void over(struct job *j, enum group_kind kind, uint64_t ring_from)
{
	static const uint64_t count[] = {0, 17, MOST};

	if (!group_has(kind))
		return;
	j->ring_from = ring_from;
	for (uint32_t n = 1; n <= 5; n += 2) {
		uint64_t bad = 0;

		for (size_t c = 0; c < 3; c++) {
			j->count = count[c];
			memset(j->out, 0xff, sizeof(j->out));
			bad += group_run_on(kind, n, reduce, j) != 0;
			for (uint64_t i = 0; i < j->count; i++)
				for (uint32_t r = 0; r < n; r++)
					bad += fabsf(j->out[r][i] - wanted(j, n, i)) >
					       (ring_from == 1 ? 2e-6f : 0);
			for (uint32_t r = 0; r < n; r++)
				for (uint32_t p = 0; p < n; p++)
					bad += j->gathered[r][p] != p;
		}
		ok(!bad, "%s, %s, %u ranks", group_name(kind), ring_from == 1 ? "ring" : "direct",
		   n);
	}
}

int main(void)
{
	static struct job j;
	uint64_t s = 9;

	for (int r = 0; r < MAXN; r++)
		for (int i = 0; i < MOST; i++)
			j.in[r][i] = (float)(uniform(&s) - .5);
	j.ring_from = UINT64_MAX;
	sizes(&j, "direct sum");
	j.op = MERGE_OP_AVG;
	sizes(&j, "direct avg");
	j.op = MERGE_OP_MAX;
	sizes(&j, "direct max");
	j.op = MERGE_OP_MIN;
	sizes(&j, "direct min");
	j.op = MERGE_OP_SUM;
	j.ring_from = 1;
	sizes(&j, "ring sum");
	j.op = MERGE_OP_AVG;
	sizes(&j, "ring avg");
	j.op = MERGE_OP_SUM;
	for (int kind = GROUP_TCP; kind < GROUP_KINDS; kind++) {
		over(&j, (enum group_kind)kind, UINT64_MAX);
		over(&j, (enum group_kind)kind, 1);
	}
	policies();
	residuals();
	return done();
}
