/* SPDX-License-Identifier: MIT */
/*
 * cpu_trial.h: the same case on ref and on cpu, and how far apart they may be. ref sums in double,
 * so what differs is the rounding of f32: a result that is reached through sums of up to L terms
 * has a relative error of about eps * sqrt(L), measured against the largest value of its tensor,
 * and a network of some layers adds a hundred of them at most.
 */
#ifndef TEST_CPU_TRIAL_H
#define TEST_CPU_TRIAL_H

#include "../../tap.h"
#include "trial.h"

#define CPU_EPS 0x1p-24

struct pair {
	struct trial ref, cpu;
	struct build *b;
	double tolerance;
	float *got, *want;
};

/* The longest sum of the network: a window of input channels, or all places of the batch. */
static inline double longest_sum(const struct backend_graph *g, uint32_t n)
{
	double longest = 1;

	for (uint32_t i = 1; i < g->n_nodes; i++) {
		const struct backend_node *v = &g->node[i];
		struct backend_shape in = g->node[v->in[0]].out;

		longest = fmax(longest, (double)n * v->out.h * v->out.w);
		longest = fmax(longest, (double)in.h * in.w);
		longest = fmax(longest, (double)v->window.kh * v->window.kw * in.c);
	}
	return longest;
}

/*
 * Largest difference over the tensors of an arena, each relative to its largest value; but not to
 * less than 1/8 of the arena's largest: a gradient that is zero but for rounding (a bias before a
 * batch norm) is a difference of terms of that size.
 */
static inline double arena_distance(const struct backend_graph *g, int arena, const float *got,
				    const float *want, uint32_t *worst)
{
	uint64_t size = arena == BACKEND_STAT ? g->stat_floats : g->param_floats;
	double distance = 0, floor = 1e-4;

	for (uint64_t k = 0; k < size; k++)
		floor = fmax(floor, fabs(want[k]) / 8);

	for (uint32_t i = 0; i < g->n_tensors; i++) {
		const struct backend_tensor *t = &g->tensor[i];
		double largest = floor, d = 0;

		if ((t->arena == BACKEND_STAT) != (arena == BACKEND_STAT))
			continue;
		for (uint64_t k = t->offset; k < t->offset + t->count; k++) {
			largest = fmax(largest, fabs(want[k]));
			d = isnan(got[k]) ? INFINITY : fmax(d, fabs((double)got[k] - want[k]));
		}
		if (d / largest > distance) {
			distance = d / largest;
			*worst = i;
		}
	}
	return distance;
}

static inline double distance(const float *got, const float *want, uint64_t n)
{
	double largest = 1e-4, d = 0;

	for (uint64_t k = 0; k < n; k++) {
		largest = fmax(largest, fabs(want[k]));
		d = isnan(got[k]) ? INFINITY : fmax(d, fabs((double)got[k] - want[k]));
	}
	return d / largest;
}

static inline void pair_close(struct pair *p)
{
	trial_free(&p->ref);
	trial_free(&p->cpu);
	free(p->got);
	free(p->want);
}

/* n rows of max_batch on both; options: NULL for the usual ones. */
static inline bool pair_open(struct pair *p, const struct op_case *op, struct build *b, uint32_t n,
			     uint32_t max_batch, struct backend_pool *pool,
			     struct backend_net_options *options)
{
	const struct backend_options backend = {.pool = pool};
	struct backend_error error = {""};
	uint64_t size;
	int rc;

	*p = (struct pair){.b = b};
	rc = trial_open(&p->ref, "ref", op, b, n, max_batch, NULL, 17, options, &error);
	if (!rc)
		rc = trial_open(&p->cpu, "cpu", op, b, n, max_batch, &backend, 17, options, &error);
	size = p->ref.params + p->ref.stats + (n + 1) * p->ref.outputs;
	p->got = calloc(size, sizeof(float));
	p->want = calloc(size, sizeof(float));
	p->tolerance = CPU_EPS * (128 + 8 * sqrt(longest_sum(&b->graph, n)));
	if (!ok(rc == 0 && p->got && p->want, "%s, %u of %u rows: compiles", op->name, n,
		max_batch)) {
		printf("# %s (%d)\n", error.message, rc);
		return false;
	}
	return true;
}

/* One arena of both. */
static inline void pair_arena(struct pair *p, const char *what, const char *name, int arena,
			      double tolerance)
{
	const struct backend_graph *g = &p->b->graph;
	uint64_t n = arena == BACKEND_STAT ? p->ref.stats : p->ref.params;
	uint32_t worst = 0;
	double d;

	if (backend_read(p->ref.net, arena, 0, n, p->want) ||
	    backend_read(p->cpu.net, arena, 0, n, p->got))
		BAIL("%s: arena not read", name);
	d = arena_distance(g, arena, p->got, p->want, &worst);
	if (!ok(d <= tolerance, "%s: %s", name, what))
		printf("#   %s: distance %.3g, allowed %.3g\n", g->tensor[worst].name, d,
		       tolerance);
}

static inline void pair_sums(const struct pair *p, const char *what, const char *name,
			     const struct backend_sums *got, const struct backend_sums *want)
{
	if (!ok(got->n == want->n && fabs(got->weight - want->weight) < 1e-9 * (1 + want->weight) &&
			fabs(got->loss - want->loss) <= p->tolerance * (1 + fabs(want->loss)),
		"%s: %s: sums", name, what))
		printf("#   loss %.9g, wanted %.9g\n", got->loss, want->loss);
}

#endif
