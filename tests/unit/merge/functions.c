/* SPDX-License-Identifier: MIT */
/*
 * functions.c: each merge function over ten merges with made-up local work, against a second
 * implementation in double that knows nothing of rounds, shards or arenas; all hosts bitwise equal.
 */
#include "../../../nccl_merge/internal.h"
#include "group.h"

enum { P = 83, ROUNDS = 10, MAXN = 7 };

struct job {
	struct merge_config c;
	uint32_t n;
	float x[MAXN][P], model[MAXN][P], slot[MAXN][P];
	uint64_t checksum[MAXN];
	double distance[MAXN];
	uint64_t ring_from;
	bool no_samples;
	enum group_kind kind;
};

static uint64_t samples_of(uint32_t r, int round)
{
	return r == 2 && round == 3 ? 0 : 10 + 7 * r + (uint64_t)round % 3;
}

static double lr_of(int round)
{
	return round < 5 ? .1 : round < 7 ? .05 : 0;
}

/* what a host does to coordinate i between two merges: it shrinks and gets noise of its own */
static double local_work(double x, uint32_t r, int round, int i)
{
	uint64_t s = (uint64_t)r * 1000003 + (uint64_t)round * 1009 + (uint64_t)i;

	return .9 * x + .1 * normal(&s);
}

static double start(int i)
{
	uint64_t s = 77 + (uint64_t)i;

	return (float)normal(&s);
}

static void run(struct rank *k)
{
	struct job *j = k->arg;
	struct merge_tensor t;
	struct merge_table table = one_tensor(&t, P);
	struct merge *m = NULL;
	float *x = j->x[k->r], *slot = j->slot[k->r];
	struct merge_arenas arenas = {.param = x, .slot = &slot, .n_slots = 1};
	struct merge_result res = {0};

	k->net->ring_from = j->ring_from;
	k->rc = merge_open(&j->c, &table, k->n, &m, &k->error);
	for (int i = 0; i < P; i++) {
		x[i] = (float)start(i);
		slot[i] = (float)k->r;
	}
	if (!k->rc)
		merge_start(m, x);
	for (int round = 0; round < ROUNDS && !k->rc; round++) {
		for (int i = 0; i < P; i++)
			x[i] = (float)local_work(x[i], k->r, round, i);
		k->rc = merge_run(m, k->net, &arenas, j->no_samples ? 0 : samples_of(k->r, round),
				  lr_of(round), 0, &res, &k->error);
	}
	if (!k->rc)
		memcpy(j->model[k->r], merge_model(m), sizeof(j->model[0]));
	j->checksum[k->r] = res.checksum;
	j->distance[k->r] = res.distance;
	merge_close(m);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double centre(const struct job *j, const double *v, int round)
{
	double sum = 0, total = 0, s[MAXN];
	uint32_t n = j->n, drop = j->c.kind == MERGE_MEDIAN ? (n - 1) / 2 : j->c.trim;

	if (j->c.kind == MERGE_MEDIAN || j->c.kind == MERGE_TRIMMED) {
		memcpy(s, v, n * sizeof(*s));
		qsort(s, n, sizeof(*s), compare);
		for (uint32_t r = drop; r < n - drop; r++)
			sum += s[r];
		return sum / (n - 2 * drop);
	}
	for (uint32_t r = 0; r < n; r++) {
		double weight = j->no_samples ? 1 : (double)samples_of(r, round);

		sum += weight * v[r];
		total += weight;
	}
	return sum / total;
}

/* one coordinate through all rounds */
static void naive(const struct job *j, int i, double *model, double *x, double *spread)
{
	double c = start(i), m = 0, before = 0;

	for (uint32_t r = 0; r < j->n; r++)
		x[r] = c;
	for (int round = 0; round < ROUNDS; round++) {
		double bar, d, mu = j->c.mu, lr = lr_of(round);

		for (uint32_t r = 0; r < j->n; r++)
			x[r] = local_work(x[r], r, round, i);
		bar = centre(j, x, round);
		*spread = 0;
		for (uint32_t r = 0; r < j->n; r++) {
			double p = j->no_samples ? 1. : (double)samples_of(r, round), all = 0;

			for (uint32_t k = 0; k < j->n; k++)
				all += j->no_samples ? 1. : (double)samples_of(k, round);
			*spread += p / all * (x[r] - bar) * (x[r] - bar);
		}
		d = c - bar;
		if (j->c.scale_by_lr && before > 0)
			mu *= lr / before;
		before = lr;
		if (j->c.kind == MERGE_EASGD) {
			for (uint32_t r = 0; r < j->n; r++)
				x[r] -= j->c.b / j->n * (x[r] - c);
			c = (1 - j->c.b) * c + j->c.b * bar;
			continue;
		}
		m = mu * m + d;
		if (j->c.kind != MERGE_OUTER)
			c = bar;
		else
			c -= j->c.eta * (j->c.nesterov ? d + mu * m : m);
		for (uint32_t r = 0; r < j->n; r++)
			x[r] = c;
	}
	*model = c;
}

static void check(const char *name, uint32_t n, const char *note, struct job *j, double tolerance)
{
	double worst = 0, model, x[MAXN], spread, distance2 = 0;
	bool same = true;

	j->n = n;
	is(group_run_on(j->kind, n, run, j), 0, name);
	for (int i = 0; i < P; i++) {
		naive(j, i, &model, x, &spread);
		distance2 += spread;
		for (uint32_t r = 0; r < n; r++) {
			worst = fmax(worst, fabs(j->model[r][i] - model));
			worst = fmax(worst, fabs(j->x[r][i] - x[r]));
		}
	}
	if (!ok(worst < tolerance, "%s%s, %u hosts: as the second implementation", name, note, n))
		printf("#   differs by %g\n", worst);
	near(j->distance[0], sqrt(distance2), 1e-5 + tolerance * 20, "distance between replicas");
	for (uint32_t r = 1; r < n; r++)
		same &= !memcmp(j->model[0], j->model[r], sizeof(j->model[0])) &&
			j->checksum[0] == j->checksum[r] && j->distance[0] == j->distance[r];
	ok(same, "%s%s, %u hosts: bitwise equal everywhere", name, note, n);
}

static void all_presets(void)
{
	for (uint32_t p = 0; merge_preset_name(p); p++) {
		const char *name = merge_preset_name(p);

		for (uint32_t n = 1; n <= MAXN; n += 1 + (n == 5)) {
			struct job *j = calloc(1, sizeof(*j));

			if (!merge_preset(name, n, &j->c, NULL) && j->c.kind != MERGE_GRADIENT &&
			    j->c.kind != MERGE_NONE && j->c.kind != MERGE_ADASUM)
				check(name, n, "", j, 2e-6);
			free(j);
		}
	}
}

static void momenta(void)
{
	static const struct {
		enum merge_momentum how;
		const char *name;
		double r0, r1;
	} want[] = {{MERGE_KEEP, "keep", 0, 1},
		    {MERGE_RESET, "reset", 0, 0},
		    /* last round: 10 and 17 samples, so 17/27 */
		    {MERGE_AVERAGE_SLOTS, "average", 17. / 27, 17. / 27}};

	for (int i = 0; i < 3; i++) {
		struct job *j = calloc(1, sizeof(*j));

		merge_preset("average", 2, &j->c, NULL);
		j->c.momentum = want[i].how;
		j->n = 2;
		is(group_run(2, run, j), 0, want[i].name);
		/* every round pulls the first average closer to nothing new: it is a fixed point */
		near(j->slot[1][5], want[i].r1, i == 2 ? .02 : 0, want[i].name);
		ok(j->slot[0][7] == j->slot[1][7] || i == 0, "equal momenta unless kept");
		free(j);
	}
}

/*
 * bf16 deltas: every round loses up to 2^-9 of a delta; with residuals carried the loss is made
 * good in the next, so the error does not add up over rounds.
 */
static void bf16_carry(void)
{
	struct job *j = calloc(1, sizeof(*j));

	merge_preset("average", 4, &j->c, NULL);
	j->c.wire = MERGE_BF16;
	check("average", 4, " over bf16", j, 6e-3);
	free(j);
}

static void ring(void)
{
	struct job *j = calloc(1, sizeof(*j));

	merge_preset("slowmo", 5, &j->c, NULL);
	j->ring_from = 1;
	check("slowmo", 5, " over the ring", j, 5e-6);
	j->no_samples = true;
	check("slowmo", 5, " over the ring, no samples at all", j, 5e-6);
	j->ring_from = 0;
	check("slowmo", 5, ", no samples at all", j, 2e-6);
	free(j);
}

static void over_the_mesh(void)
{
	for (int kind = GROUP_TCP; kind < GROUP_KINDS; kind++) {
		bool has = group_has((enum group_kind)kind);

		for (uint32_t p = 0; has && merge_preset_name(p); p++) {
			struct job *j = calloc(1, sizeof(*j));
			const char *name = merge_preset_name(p);

			j->kind = (enum group_kind)kind;
			if (!merge_preset(name, 3, &j->c, NULL) && j->c.kind != MERGE_GRADIENT &&
			    j->c.kind != MERGE_NONE && j->c.kind != MERGE_ADASUM)
				check(name, 3, kind == GROUP_TCP ? " over TCP" : " over UCX", j,
				      2e-6);
			free(j);
		}
	}
}

int main(void)
{
	all_presets();
	over_the_mesh();
	momenta();
	bf16_carry();
	ring();
	return done();
}
