// SPDX-License-Identifier: MIT
/*
 * average.c: averages over the course of a training, as the model that is evaluated and stored; the
 * training itself never sees them. EMA follows the weights that all hosts hold in common: after
 * each update where they are synchronous, after each merge (with the decay of its updates) where
 * not. SWA is the mean of the weights after each of the last epochs; no batch-norm statistics
 * belong to it, so one pass over the training rows makes them.
 */
#include "hosts.h"

#include <errno.h>
#include <math.h>
#include <string.h>

void train_average_plan(struct train *t, struct arena *arena)
{
	uint64_t p = t->graph->param_floats, s = t->graph->stat_floats;

	if (t->setup.inference || t->setup.config->average == TRAIN_NO_AVERAGE)
		return;
	t->average.mean = train_arena_take(arena, p, sizeof(float));
	t->average.good = train_arena_take(arena, p, sizeof(float));
	if (t->setup.config->average != TRAIN_SWA || !s)
		return;
	t->average.saved = train_arena_take(arena, p + s, sizeof(float));
	t->average.stat = train_arena_take(arena, s, sizeof(float));
}

static uint64_t bytes(const struct train *t)
{
	return t->graph->param_floats * sizeof(float);
}

int train_average_reset(struct train *t, struct err *err)
{
	int rc = 0;

	t->average.n = 0;
	if (t->setup.config->average == TRAIN_EMA)
		rc = backend_read(t->net, BACKEND_PARAM, 0, t->graph->param_floats,
				  t->average.mean);
	return rc ? train_device_err(t, 0, err, rc, "reading weights") : 0;
}

int train_average_step(struct train *t, struct err *err)
{
	int rc;

	if (t->setup.config->average != TRAIN_EMA)
		return 0;
	rc = train_stage_in(t, 0, BACKEND_PARAM, err);
	if (!rc)
		train_average_update(t, train_host_arena(t, 0, BACKEND_PARAM), 1);
	return rc;
}

void train_average_update(struct train *t, const float *param, uint64_t updates)
{
	const struct train_config *c = t->setup.config;

	if (c->average != TRAIN_EMA || !updates)
		return;
	merge_ema(t->average.mean, param, t->graph->param_floats,
		  pow(c->average_decay, (double)updates), t->average.n);
	t->average.n += updates;
}

bool train_average_wants(const struct train *t, uint32_t epochs)
{
	const struct train_config *c = t->setup.config;
	uint32_t start = c->average_start == UINT32_MAX ? (uint32_t)(3ull * c->epochs / 4)
							: c->average_start;

	return c->average == TRAIN_SWA && epochs > start;
}

void train_average_epoch(struct train *t, const float *param)
{
	if (t->average.n)
		merge_swa(t->average.mean, param, t->graph->param_floats, t->average.n);
	else
		memcpy(t->average.mean, param, bytes(t));
	t->average.n++;
}

void train_average_keep(struct train *t)
{
	if (!t->average.mean)
		return;
	memcpy(t->average.good, t->average.mean, bytes(t));
	t->average.good_n = t->average.n;
}

void train_average_back(struct train *t)
{
	if (!t->average.mean)
		return;
	memcpy(t->average.mean, t->average.good, bytes(t));
	t->average.n = t->average.good_n;
}

/* ---- statistics of the mean ---- */

/* From 0, moving statistics are (1 - momentum) times those of the batch. */
static void unscale(const struct train *t, float *stat)
{
	for (uint32_t i = 0; i < t->graph->n_nodes; i++) {
		const struct backend_node *node = &t->graph->node[i];

		for (int k = 2; node->op == BACKEND_BATCHNORM && !node->frozen && k < 4; k++) {
			const struct backend_tensor *tensor = &t->graph->tensor[node->tensor[k]];
			float share = 1 - node->momentum;

			for (uint64_t j = 0; share > 0 && j < tensor->count; j++)
				stat[tensor->offset + j] /= share;
		}
	}
}

/* The moments of one batch, added to those of the rows before it. */
static int add_batch(struct train *t, struct data_reader *reader, uint64_t first, uint32_t n,
		     float *batch_stat, struct err *err)
{
	const float *both[2] = {t->average.stat, batch_stat};
	uint64_t rows[2] = {first, n}, s = t->graph->stat_floats;
	struct backend_error error = {""};
	struct backend_batch batch;
	int rc = train_batch(t, reader, first, n, &batch, NULL, err);

	if (rc)
		return rc;
	batch.seed = t->setup.config->seed;
	memset(batch_stat, 0, s * sizeof(float));
	rc = backend_write(t->net, BACKEND_STAT, 0, s, batch_stat);
	if (rc)
		return train_device_err(t, 0, err, rc, "statistics of the averaged weights");
	rc = backend_gradient(t->net, &batch, 0, false, NULL, NULL, NULL, NULL, &error);
	if (rc)
		return train_backend_err(err, rc, &error, "statistics of the averaged weights");
	rc = backend_read(t->net, BACKEND_STAT, 0, s, batch_stat);
	if (rc)
		return train_device_err(t, 0, err, rc, "statistics of the averaged weights");
	unscale(t, batch_stat);
	merge_statistics(&t->table, 2, both, rows, t->average.stat);
	return 0;
}

static int pass(struct train *t, float *batch_stat, struct err *err)
{
	struct data_reader *reader;
	int rc = t->rows ? train_reader(t, ROW_TRAIN, &reader, err) : 0;

	for (uint64_t first = 0; !rc && first < t->rows; first += t->replica_batch) {
		uint64_t n =
			t->rows - first < t->replica_batch ? t->rows - first : t->replica_batch;

		rc = train_canceled(t, err);
		if (!rc)
			rc = add_batch(t, reader, first, (uint32_t)n, batch_stat, err);
	}
	return rc;
}

/* Replica 0 is borrowed, and gets back what it had. */
static int make_statistics(struct train *t, struct err *err)
{
	uint64_t p = t->graph->param_floats, s = t->graph->stat_floats;
	float *saved = t->average.saved;
	int rc = backend_read(t->net, BACKEND_PARAM, 0, p, saved), back;

	if (!rc)
		rc = backend_read(t->net, BACKEND_STAT, 0, s, saved + p);
	if (!rc)
		rc = backend_write(t->net, BACKEND_PARAM, 0, p, t->average.mean);
	if (rc)
		return train_device_err(t, 0, err, rc, "averaged weights");
	/* tensors that no batch norm owns stay as they are */
	memcpy(t->average.stat, saved + p, s * sizeof(float));
	rc = pass(t, t->pool_stat, err);
	back = backend_write(t->net, BACKEND_PARAM, 0, p, saved);
	if (!back)
		back = backend_write(t->net, BACKEND_STAT, 0, s, saved + p);
	if (!rc && back)
		rc = err_set(err, ERR_INTERNAL, back, "averaged weights: %s", strerror(-back));
	return rc;
}

int train_average_model(struct train *t, struct err *err)
{
	bool equal, swa = t->setup.config->average == TRAIN_SWA;
	int rc = 0;

	if (!t->average.mean || (swa && !t->average.n))
		return 0;
	if (swa && t->graph->stat_floats) {
		rc = make_statistics(t, err);
		if (!rc)
			memcpy(t->pool_stat, t->average.stat,
			       t->graph->stat_floats * sizeof(float));
		if (!rc && t->hosts)
			rc = train_model_pool(t, t->average.mean, t->rows, &equal, err);
		t->model_stat = t->hosts ? t->copy_stat : t->pool_stat;
	}
	t->model_param = t->average.mean;
	return !rc && t->hosts ? train_model_equalize(t, &t->model_param, err) : rc;
}
