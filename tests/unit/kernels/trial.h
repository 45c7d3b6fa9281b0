/* SPDX-License-Identifier: MIT */
/*
 * trial.h: a net of one back end on one case, with made-up parameters, statistics and a made-up
 * batch that depend on the case and the seed only: two back ends get the same.
 */
#ifndef TEST_TRIAL_H
#define TEST_TRIAL_H

#include "builder.h"

#define TRIAL_CHANNELS 64 /* most channels of an input */

/* The back ends that a test of all of them runs on, NULL at the end. */
static const char *const trial_backends[] = {"ref", "cpu", NULL};

struct op_case {
	const char *name;
	void (*build)(struct build *b);
	struct backend_loss_config loss;
	bool weights; /* sample weights */
};

struct trial {
	struct backend *backend;
	struct backend_net *net;
	uint32_t n;
	uint64_t outputs, params, stats;
	struct backend_batch batch;
	const void **row;
	float *x, *target, *weight;
	int32_t *label;
	uint64_t *hash;
	float *param, *stat; /* start values, arena layout */
};

static inline void trial_free(struct trial *t)
{
	backend_net_free(t->net);
	backend_close(t->backend);
	free(t->row);
	free(t->x);
	free(t->target);
	free(t->weight);
	free(t->label);
	free(t->hash);
	free(t->param);
	free(t->stat);
	memset(t, 0, sizeof(*t));
}

static inline bool trial_ends(const char *name, const char *end)
{
	size_t n = strlen(name), m = strlen(end);

	return n >= m && !strcmp(name + n - m, end);
}

/* Kernels of variance 1 / fan-in, gamma and variance around 1, the rest small. */
static inline void trial_values(const struct backend_graph *graph, uint64_t *state, float *param,
				float *stat)
{
	for (uint32_t i = 0; i < graph->n_tensors; i++) {
		const struct backend_tensor *t = &graph->tensor[i];
		float *to = (t->arena == BACKEND_STAT ? stat : param) + t->offset;
		float low = -0.3f, high = 0.3f;

		if (trial_ends(t->name, "/gamma") || trial_ends(t->name, "/moving_variance")) {
			low = 0.5f;
			high = 1.5f;
		} else if (trial_ends(t->name, "/kernel")) {
			uint32_t last = t->dim[t->rank - 1];

			high = sqrtf(3.0f * (float)last / (float)t->count);
			low = -high;
		}
		for (uint64_t k = 0; k < t->count; k++)
			to[k] = made_up_float(state, low, high);
	}
}

static inline void trial_batch(struct trial *t, const struct backend_graph *graph,
			       const struct op_case *op, uint64_t *state)
{
	struct backend_shape in = graph->node[0].out, out = graph->node[graph->output].out;
	uint64_t pixels = (uint64_t)in.h * in.w * in.c;

	for (uint64_t k = 0; k < t->n * pixels; k++)
		t->x[k] = made_up_float(state, -1.0f, 1.0f);
	for (uint32_t i = 0; i < t->n; i++) {
		t->row[i] = t->x + i * pixels;
		t->hash[i] = made_up(state);
		t->label[i] = (int32_t)(made_up(state) % out.c);
		t->weight[i] = made_up_float(state, 0.2f, 2.0f);
	}
	for (uint64_t k = 0; k < t->n * t->outputs; k += out.c) {
		float sum = 0.0f;

		for (uint32_t j = 0; j < out.c; j++) {
			t->target[k + j] = made_up_float(state, 0.0f, 1.0f);
			sum += t->target[k + j];
		}
		if (op->loss.loss == BACKEND_CATEGORICAL_CROSSENTROPY)
			for (uint32_t j = 0; j < out.c; j++)
				t->target[k + j] /= sum;
	}
	t->batch = (struct backend_batch){
		.n = t->n,
		.x = t->row,
		.hash = t->hash,
		.label = t->label,
		.target = t->target,
		.weight = op->weights ? t->weight : NULL,
		.seed = 0x123456789abcdefull,
		.epoch = 3,
		.step = 41,
		.position = 7,
	};
}

static inline int trial_allocate(struct trial *t, const struct backend_graph *graph)
{
	struct backend_shape in = graph->node[0].out, out = graph->node[graph->output].out;
	size_t rows = t->n ? t->n : 1;

	t->outputs = (uint64_t)out.h * out.w * out.c;
	t->params = graph->param_floats;
	t->stats = graph->stat_floats;
	t->row = calloc(rows, sizeof(*t->row));
	t->x = calloc(rows * in.h * in.w * in.c, sizeof(*t->x));
	t->target = calloc(rows * t->outputs, sizeof(*t->target));
	t->weight = calloc(rows, sizeof(*t->weight));
	t->label = calloc(rows, sizeof(*t->label));
	t->hash = calloc(rows, sizeof(*t->hash));
	t->param = calloc(t->params + 1, sizeof(*t->param));
	t->stat = calloc(t->stats + 1, sizeof(*t->stat));
	return t->row && t->x && t->target && t->weight && t->label && t->hash && t->param &&
			       t->stat
		       ? 0
		       : -1;
}

/* Everything of a net that is not the graph: f32 rows as they are, plain SGD. */
static inline struct backend_net_options trial_options(const struct backend_graph *graph,
						       const struct op_case *op, uint32_t max_batch)
{
	static float mul[TRIAL_CHANNELS], add[TRIAL_CHANNELS];

	for (int k = 0; k < TRIAL_CHANNELS; k++)
		mul[k] = 1.0f;
	return (struct backend_net_options){
		.max_batch = max_batch,
		.input = {.dtype = BACKEND_F32,
			  .shape = graph->node[0].out,
			  .mul = mul,
			  .add = add},
		.loss = op->loss,
		.optimizer = {.kind = BACKEND_SGD, .epsilon = 1e-7f},
		.deterministic = true,
	};
}

/*
 * Opens back end `name` on the case with n rows of max_batch. options: NULL for trial_options.
 * Returns 0, or -errno with the message in error; trial_free either way.
 */
static inline int trial_open(struct trial *t, const char *name, const struct op_case *op,
			     struct build *b, uint32_t n, uint32_t max_batch,
			     const struct backend_options *backend_options, uint64_t seed,
			     const struct backend_net_options *options, struct backend_error *error)
{
	struct backend_net_options usual;
	uint64_t state = seed;
	int rc;

	memset(t, 0, sizeof(*t));
	error->message[0] = 0;
	op->build(b);
	rc = b_finish(b);
	if (rc)
		return rc;
	t->n = n;
	if (trial_allocate(t, &b->graph))
		return -ENOMEM;
	usual = trial_options(&b->graph, op, max_batch);
	trial_values(&b->graph, &state, t->param, t->stat);
	trial_batch(t, &b->graph, op, &state);
	rc = backend_open(name, backend_options, &t->backend, error);
	if (rc)
		return rc;
	rc = backend_compile(t->backend, &b->graph, options ? options : &usual, &t->net, error);
	if (rc)
		return rc;
	rc = backend_write(t->net, BACKEND_PARAM, 0, t->params, t->param);
	return rc ? rc : backend_write(t->net, BACKEND_STAT, 0, t->stats, t->stat);
}

#endif
