/* SPDX-License-Identifier: MIT */
/*
 * gpu_trial.h: the same case on ref and on a device's back end, and how far apart they may be. ref
 * sums in double; a result that is reached through sums of up to L terms of numbers rounded to a
 * relative eps has an error of about eps * sqrt(L), measured against the largest value of its
 * tensor, and a network of some layers adds a number of them. eps is that of the precision.
 *
 * CNN_TEST_BACKEND names the back end (cuda).
 */
#ifndef TEST_GPU_TRIAL_H
#define TEST_GPU_TRIAL_H

#include <unistd.h>

#include "../tap.h"
#include "../unit/kernels/trial.h"

static inline const char *gpu_backend(void)
{
	const char *name = getenv("CNN_TEST_BACKEND");

	return name && *name ? name : "cuda";
}

/* Ends the program with a SKIP where there is no device to test. Where the driver is there, what
 * keeps the back end from its devices is a failure. */
static inline void gpu_needed(void)
{
	struct backend_device device[1];
	struct backend_error error = {""};
	uint32_t n = 0;
	int rc = backend_devices(gpu_backend(), device, 1, &n, &error);

	if (!strcmp(gpu_backend(), "ref") || !strcmp(gpu_backend(), "cpu") || (!rc && n))
		return;
	if (rc && (!access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK)))
		BAIL("there is a driver, but no GPU: %s", error.message);
	printf("1..0 # SKIP no GPU: %s\n", rc ? error.message : "the driver lists no device");
	exit(0);
}

static const char *const precision_name[] = {"f32", "tf32", "bf16", "f16"};

static inline double precision_eps(enum backend_precision p)
{
	static const double eps[] = {0x1p-24, 0x1p-11, 0x1p-8, 0x1p-11};

	return eps[p];
}

struct pair {
	struct trial ref, gpu;
	struct build *b;
	double tolerance, kinks;
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

static inline double gpu_tolerance(const struct backend_graph *g, uint32_t n,
				   enum backend_precision p)
{
	if (p == BACKEND_PRECISION_F32)
		return precision_eps(p) * (128 + 8 * sqrt(longest_sum(g, n)));
	return precision_eps(p) * (12 + 4 * sqrt(longest_sum(g, n)));
}

/* Rounding moves a value over a kink, or makes another one the largest: the gradient jumps. */
static inline double kink_factor(const struct backend_graph *g, enum backend_precision p)
{
	for (uint32_t i = 1; i < g->n_nodes && p != BACKEND_PRECISION_F32; i++) {
		const struct backend_node *v = &g->node[i];

		if (v->op == BACKEND_MAXPOOL || v->op == BACKEND_GLOBAL_MAXPOOL ||
		    (v->op == BACKEND_ACTIVATION &&
		     (v->activation == BACKEND_RELU || v->activation == BACKEND_LEAKY_RELU ||
		      v->activation == BACKEND_HARD_SIGMOID)))
			return 5;
	}
	return 1;
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
	trial_free(&p->gpu);
	free(p->got);
	free(p->want);
}

/* n rows of max_batch on both; options: NULL for the usual ones. */
static inline bool pair_open(struct pair *p, const struct op_case *op, struct build *b, uint32_t n,
			     uint32_t max_batch, const struct backend_options *how,
			     struct backend_net_options *options)
{
	struct backend_error error = {""};
	uint64_t size;
	int rc;

	*p = (struct pair){.b = b};
	rc = trial_open(&p->ref, "ref", op, b, n, max_batch, NULL, 17, options, &error);
	if (!rc)
		rc = trial_open(&p->gpu, gpu_backend(), op, b, n, max_batch, how, 17, options,
				&error);
	size = p->ref.params + p->ref.stats + (n + 1) * p->ref.outputs;
	p->got = calloc(size, sizeof(float));
	p->want = calloc(size, sizeof(float));
	p->tolerance = gpu_tolerance(&b->graph, n, how ? how->precision : BACKEND_PRECISION_F32);
	p->kinks = kink_factor(&b->graph, how ? how->precision : BACKEND_PRECISION_F32);
	if (rc || !p->got || !p->want) {
		ok(false, "%s, %u of %u rows: compiles", op->name, n, max_batch);
		printf("# %s (%d)\n", error.message, rc);
		return false;
	}
	return true;
}

/* One arena of both. */
static inline bool pair_arena(struct pair *p, const char *what, const char *name, int arena,
			      double tolerance)
{
	const struct backend_graph *g = &p->b->graph;
	uint64_t n = arena == BACKEND_STAT ? p->ref.stats : p->ref.params;
	uint32_t worst = 0;
	double d;

	if (backend_read(p->ref.net, arena, 0, n, p->want) ||
	    backend_read(p->gpu.net, arena, 0, n, p->got))
		BAIL("%s: arena not read", name);
	d = arena_distance(g, arena, p->got, p->want, &worst);
	if (d <= tolerance)
		return true;
	printf("# %s: %s: %s: distance %.3g, allowed %.3g\n", name, what, g->tensor[worst].name, d,
	       tolerance);
	return false;
}

static inline bool pair_sums(const struct pair *p, const char *what, const char *name,
			     const struct backend_sums *got, const struct backend_sums *want)
{
	if (got->n == want->n && fabs(got->weight - want->weight) < 1e-6 * (1 + want->weight) &&
	    fabs(got->loss - want->loss) <= p->tolerance * (1 + fabs(want->loss)))
		return true;
	printf("# %s: %s: loss %.9g, wanted %.9g; weight %.9g, wanted %.9g\n", name, what,
	       got->loss, want->loss, got->weight, want->weight);
	return false;
}

static inline bool pair_outputs(struct pair *p, const char *what, const char *name, uint32_t n)
{
	double d = distance(p->got, p->want, n * p->ref.outputs);

	if (d <= p->tolerance)
		return true;
	printf("# %s: %s: outputs: distance %.3g, allowed %.3g\n", name, what, d, p->tolerance);
	return false;
}

/* f16 begins with a loss scale that may be too large: steps of no length until one is finite. */
static inline void find_loss_scale(struct pair *p)
{
	struct trial *t = &p->gpu;

	for (int k = 0; k < 20; k++) {
		struct backend_applied applied = {0};

		if (backend_gradient(t->net, &t->batch, 1.0f, false, NULL, NULL, NULL, NULL,
				     NULL) ||
		    backend_apply(t->net, 0.0, 1, &applied, NULL))
			BAIL("no step of length 0");
		if (applied.finite)
			break;
	}
	if (backend_write(t->net, BACKEND_STAT, 0, t->stats, t->stat))
		BAIL("statistics not written");
}

#endif
