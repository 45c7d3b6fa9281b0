/* SPDX-License-Identifier: MIT */
/*
 * engine.c: one merge on one host: tell the others what is coming, reduce, compute the next state
 * in staging copies. Nothing that the caller or a later merge can see changes before the commit.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "engine.h"

/* Places in one block; without a base only counted. */
struct layout {
	float *base;
	uint64_t used;
};

static float *place(struct layout *l, uint64_t floats)
{
	uint64_t at = l->used;

	l->used += (floats + 15) / 16 * 16;
	return l->base ? l->base + at : NULL;
}

static void lay_state(struct merge *m, struct layout *l)
{
	uint64_t p = m->table.param_floats, s = m->table.stat_floats;
	struct merge_stage *g = &m->stage;

	m->x = place(l, p);
	g->x = place(l, p);
	g->param = place(l, p);
	g->stat = place(l, s);
	if (m->config.kind == MERGE_ADASUM || m->config.kind == MERGE_EASGD)
		m->delta = place(l, p);
	if (m->config.kind == MERGE_OUTER) {
		m->m = place(l, p);
		g->m = place(l, p);
	}
	if (m->config.wire == MERGE_BF16) {
		m->carry = place(l, p);
		m->carry_owner = place(l, p);
		g->carry = place(l, p);
		g->carry_owner = place(l, p);
		m->half = (uint16_t *)place(l, p / 2 + 1);
		m->half_out = (uint16_t *)place(l, p / 2 + 1);
	}
	if (m->config.momentum == MERGE_AVERAGE_SLOTS)
		for (uint32_t i = 0; i < m->config.slots; i++)
			g->slot[i] = place(l, p);
}

static void lay_work(struct merge *m, uint32_t hosts, struct layout *l)
{
	uint64_t p = m->table.param_floats, dots = 3ull * m->table.n * sizeof(double);
	size_t one = sizeof(struct merge_info) + m->table.stat_floats * sizeof(float);
	uint32_t pow2 = 1;

	while (pow2 * 2 <= hosts)
		pow2 *= 2;
	m->told = (char *)place(l, one * (hosts + 1ull) / sizeof(float));
	m->scratch = place(l, merge_reduce_scratch(p, hosts) / sizeof(float));
	if (m->config.kind != MERGE_ADASUM)
		return;
	m->adasum.other = place(l, p);
	m->adasum.dots = (double *)place(l, dots / sizeof(float));
	m->adasum.all = (double *)place(l, dots * pow2 / sizeof(float));
}

int merge_work(struct merge *m, uint32_t n, struct merge_error *error)
{
	struct layout l = {NULL, 0};

	if (n <= m->hosts)
		return 0;
	lay_work(m, n, &l);
	free(m->work);
	l.base = m->work = merge_floats(l.used);
	l.used = 0;
	m->hosts = m->work ? n : 0;
	if (!m->work)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory to merge with %u hosts",
				  n);
	lay_work(m, n, &l);
	return 0;
}

uint64_t merge_memory(const struct merge_config *config, const struct merge_table *table,
		      uint32_t hosts)
{
	struct merge m = {.config = *config, .table = *table};
	struct layout l = {NULL, 0};

	lay_state(&m, &l);
	lay_work(&m, hosts, &l);
	/* two blocks of floats and what merge_floats adds to each */
	return l.used * sizeof(float) + 2ull * 64 + sizeof(m) +
	       (table->n + 1ull) * sizeof(*table->tensor);
}

static uint64_t hash_config(const struct merge_config *c)
{
	double facts[] = {c->kind, c->eta,  c->mu,	 c->nesterov, c->scale_by_lr,
			  c->b,	   c->trim, c->momentum, c->wire};

	return merge_hash(0, facts, sizeof(facts));
}

int merge_open(const struct merge_config *config, const struct merge_table *table, uint32_t hosts,
	       struct merge **out, struct merge_error *error)
{
	struct layout l = {NULL, 0};
	struct merge_tensor *tensor;
	struct merge *m;
	int rc = merge_config_check(config, hosts, error);

	if (!rc)
		rc = merge_table_check(table, error);
	if (rc)
		return rc;
	m = calloc(1, sizeof(*m));
	tensor = calloc(table->n + 1, sizeof(*tensor));
	if (!m || !tensor) {
		free(tensor);
		free(m);
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for a merge");
	}
	if (table->n)
		memcpy(tensor, table->tensor, table->n * sizeof(*tensor));
	m->config = *config;
	m->table = *table;
	m->table.tensor = tensor;
	m->config_hash = hash_config(config);
	lay_state(m, &l);
	l.base = m->block = merge_floats(l.used);
	l.used = 0;
	rc = m->block ? merge_work(m, hosts, error)
		      : merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory to merge %llu floats",
				   (unsigned long long)table->param_floats);
	if (rc) {
		merge_close(m);
		return rc;
	}
	lay_state(m, &l);
	*out = m;
	return 0;
}

void merge_close(struct merge *m)
{
	if (!m)
		return;
	for (int i = 0; i < MERGE_MAX_SLOTS; i++)
		free(m->more_slot[i]);
	free(m->block);
	free(m->work);
	free((void *)m->table.tensor);
	free(m);
}

void merge_start(struct merge *m, const float *param)
{
	uint64_t bytes = m->table.param_floats * sizeof(float);

	memcpy(m->x, param, bytes);
	if (m->m)
		memset(m->m, 0, bytes);
	if (m->carry) {
		memset(m->carry, 0, bytes);
		memset(m->carry_owner, 0, bytes);
	}
	m->lr_previous = 0;
	m->started = true;
}

const float *merge_model(const struct merge *m)
{
	return m->started ? m->x : NULL;
}

/* ---- from xbar or the mean delta to the next x ----------------------------------------------- */

static bool plain_policy(const struct merge *m, uint64_t i, uint32_t *t)
{
	const struct merge_table *table = &m->table;

	while (*t < table->n && (table->tensor[*t].statistic ||
				 i >= table->tensor[*t].offset + table->tensor[*t].count))
		++*t;
	return *t >= table->n || i < table->tensor[*t].offset ||
	       table->tensor[*t].policy == MERGE_AVERAGED;
}

/* delta = x - xbar; frozen tensors and counters take xbar and no momentum */
static void outer(struct merge *m, const float *xbar, double lr)
{
	const struct merge_config *c = &m->config;
	double mu = c->mu;
	uint32_t t = 0;

	if (c->scale_by_lr && m->lr_previous > 0)
		mu *= lr / m->lr_previous;
	for (uint64_t i = 0; i < m->table.param_floats; i++) {
		double delta = (double)m->x[i] - (double)xbar[i];
		double v = mu * (double)m->m[i] + delta;

		if (!plain_policy(m, i, &t) || (c->eta == 1 && mu == 0)) {
			m->stage.m[i] = (float)delta;
			m->stage.x[i] = xbar[i];
			continue;
		}
		m->stage.m[i] = (float)v;
		/* the rounded momentum is what the next merge will see */
		v = (double)m->stage.m[i];
		m->stage.x[i] =
			(float)((double)m->x[i] - c->eta * (c->nesterov ? delta + mu * v : v));
	}
}

static void elastic(struct merge *m, const float *xi, const float *xbar, uint32_t hosts)
{
	double b = m->config.b, a = b / hosts;
	uint32_t t = 0;

	for (uint64_t i = 0; i < m->table.param_floats; i++) {
		double c = m->x[i];

		if (!plain_policy(m, i, &t)) {
			m->stage.param[i] = m->stage.x[i] = xbar[i];
			continue;
		}
		m->stage.param[i] = (float)((double)xi[i] - a * ((double)xi[i] - c));
		m->stage.x[i] = (float)((1 - b) * c + b * (double)xbar[i]);
	}
}

static enum merge_reduction reduction_of(enum merge_kind kind)
{
	if (kind == MERGE_MEDIAN)
		return MERGE_REDUCE_MEDIAN;
	return kind == MERGE_TRIMMED ? MERGE_REDUCE_TRIMMED : MERGE_REDUCE_MEAN;
}

/* xbar in stage.param, by bf16 deltas from x */
static int mean_bf16(struct merge *m, struct merge_net *net, struct merge_reduce *r,
		     const float *param, struct merge_error *error)
{
	uint64_t n = m->table.param_floats;
	int rc;

	if (m->carry_epoch != net->epoch)
		memset(m->carry_owner, 0, n * sizeof(float));
	for (uint64_t i = 0; i < n; i++) {
		float d = m->x[i] - param[i] + m->carry[i];
		float rest;

		m->half[i] = merge_to_bf16(d);
		rest = d - merge_from_bf16(m->half[i]);
		m->stage.carry[i] = isfinite(rest) ? rest : 0;
	}
	r->bf16 = r->delta = true;
	r->carry_in = m->carry_owner;
	r->carry_out = m->stage.carry_owner;
	rc = merge_reduce_all(net, r, m->half, m->half_out, n, NULL, error);
	if (rc)
		return rc;
	m->carry_epoch = net->epoch;
	for (uint64_t i = 0; i < n; i++)
		m->stage.param[i] = m->x[i] - merge_from_bf16(m->half_out[i]);
	return 0;
}

static int mean_adasum(struct merge *m, struct merge_net *net, const float *param,
		       struct merge_error *error)
{
	uint64_t n = m->table.param_floats;
	int rc;

	for (uint64_t i = 0; i < n; i++)
		m->delta[i] = m->x[i] - param[i];
	rc = merge_adasum_all(net, &m->table, &m->adasum, m->delta, n, error);
	for (uint64_t i = 0; i < n; i++)
		m->stage.param[i] = m->x[i] - m->delta[i];
	return rc;
}

static double distance_squared(const float *a, const float *b, uint64_t n)
{
	double sum = 0;

	for (uint64_t i = 0; i < n; i++) {
		double d = (double)a[i] - (double)b[i];

		sum += d * d;
	}
	return sum;
}

int merge_stage_weights(struct merge *m, struct merge_net *net, const struct merge_arenas *arenas,
			const uint64_t *samples, double lr, double *distance2, bool *ring,
			struct merge_error *error)
{
	uint64_t n = m->table.param_floats;
	struct merge_reduce r = {.op = reduction_of(m->config.kind),
				 .n = net->size,
				 .weight = samples,
				 .trim = m->config.trim,
				 .table = &m->table};
	float *xbar = m->stage.param;
	int rc;

	if (m->config.kind == MERGE_ADASUM)
		rc = mean_adasum(m, net, arenas->param, error);
	else if (m->config.wire == MERGE_BF16)
		rc = mean_bf16(m, net, &r, arenas->param, error);
	else
		rc = merge_reduce_all(net, &r, arenas->param, xbar, n, ring, error);
	if (rc)
		return rc;
	*distance2 = distance_squared(arenas->param, xbar, n);
	m->stage.lr = lr;
	if (m->config.kind == MERGE_OUTER) {
		outer(m, xbar, lr);
	} else if (m->config.kind == MERGE_EASGD) {
		memcpy(m->delta, xbar, n * sizeof(float));
		elastic(m, arenas->param, m->delta, net->size);
	} else {
		memcpy(m->stage.x, xbar, n * sizeof(float));
	}
	return 0;
}
