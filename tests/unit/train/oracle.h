/* SPDX-License-Identifier: MIT */
/*
 * oracle.h: softmax regression in double on the rows of several hosts, by momentum SGD: step by
 * step synchronous or each host for itself with means of weights and momenta by samples. Of the
 * product it uses only the order of rows, and the first weights.
 */
#ifndef TRAIN_ORACLE_H
#define TRAIN_ORACLE_H

#include "group.h"

#define WIDTH 6
#define CLASSES 3
#define SIZE ((WIDTH + 1) * CLASSES)
#define ORACLE_SEED 3

struct oracle {
	struct group *g;
	struct data_reader *reader[GROUP_MAX];
	double w[GROUP_MAX][SIZE], v[GROUP_MAX][SIZE]; /* kernel (in, out), bias */
	uint64_t samples[GROUP_MAX], rows[GROUP_MAX], all, steps;
	double lr, mu;
	bool gone[GROUP_MAX];
};

static inline void oracle_open(struct oracle *o, struct group *g, double lr, double mu)
{
	uint64_t bytes;
	struct err err;

	memset(o, 0, sizeof(*o));
	o->g = g;
	o->lr = lr;
	o->mu = mu;
	o->steps = g->rig[0].train->steps;
	for (uint32_t i = 0; i < g->n; i++) {
		float *start = (float *)rig_get(&g->rig[i], CTL_WEIGHTS, &bytes);

		if (bytes != SIZE * sizeof(float))
			BAIL("%llu bytes of weights", (unsigned long long)bytes);
		for (uint32_t k = 0; k < SIZE; k++)
			o->w[i][k] = start[k];
		free(start);
		o->rows[i] = data_rows(g->rig[i].data, ROW_TRAIN);
		o->all += o->rows[i];
		if (o->rows[i] &&
		    data_reader_open(g->rig[i].data, ROW_TRAIN, 512, true, &o->reader[i], &err))
			BAIL("%s", err.message);
	}
}

static inline void oracle_close(struct oracle *o)
{
	for (uint32_t i = 0; i < o->g->n; i++)
		if (o->reader[i])
			data_reader_close(o->reader[i]);
}

static inline uint64_t oracle_place(const struct oracle *o, uint32_t host, uint64_t s)
{
	return s * o->rows[host] / o->steps;
}

/* sum of the gradients of host's rows in step s, at weights w */
static inline uint64_t oracle_gradient(struct oracle *o, uint32_t host, uint32_t epoch, uint64_t s,
				       const double *w, double *sum)
{
	uint64_t first = oracle_place(o, host, s), n = oracle_place(o, host, s + 1) - first;
	struct backend_batch b;
	struct err err;

	if (!n)
		return 0;
	if (data_reader_epoch(o->reader[host], ORACLE_SEED, epoch) ||
	    data_reader_batch(o->reader[host], first, (uint32_t)n, &b, &err))
		BAIL("rows of step %llu", (unsigned long long)s);
	for (uint32_t r = 0; r < n; r++) {
		const float *in = b.x[r];
		double z[CLASSES], top = -INFINITY, total = 0;

		for (int c = 0; c < CLASSES; c++) {
			z[c] = w[WIDTH * CLASSES + c];
			for (int j = 0; j < WIDTH; j++)
				z[c] += in[j] * w[j * CLASSES + c];
			top = fmax(top, z[c]);
		}
		for (int c = 0; c < CLASSES; c++)
			total += z[c] = exp(z[c] - top);
		for (int c = 0; c < CLASSES; c++) {
			double d = z[c] / total - (b.label[r] == c);

			for (int j = 0; j < WIDTH; j++)
				sum[j * CLASSES + c] += d * in[j];
			sum[WIDTH * CLASSES + c] += d;
		}
	}
	return n;
}

static inline void oracle_apply(struct oracle *o, uint32_t host, const double *sum, uint64_t n)
{
	for (int k = 0; k < SIZE; k++) {
		o->v[host][k] = o->mu * o->v[host][k] - o->lr * sum[k] / (double)n;
		o->w[host][k] += o->v[host][k];
	}
}

/* Steps of an epoch, step by step synchronous, or each host for itself. */
static inline void oracle_step(struct oracle *o, uint32_t epoch, uint64_t s, bool synchronous)
{
	double sum[SIZE] = {0};
	uint64_t n = 0;

	for (uint32_t i = 0; i < o->g->n; i++) {
		uint64_t m;

		if (o->gone[i])
			continue;
		if (!synchronous)
			memset(sum, 0, sizeof(sum));
		m = oracle_gradient(o, i, epoch, s, o->w[i], sum);
		n += m;
		o->samples[i] += m;
		if (!synchronous && m)
			oracle_apply(o, i, sum, m);
	}
	for (uint32_t i = 0; synchronous && n && i < o->g->n; i++)
		oracle_apply(o, i, sum, n);
}

static inline void oracle_merge(struct oracle *o)
{
	double mean[SIZE] = {0}, momentum[SIZE] = {0};
	uint64_t n = 0;

	for (uint32_t i = 0; i < o->g->n; i++)
		n += o->gone[i] ? 0 : o->samples[i];
	if (!n)
		return;
	for (int k = 0; k < SIZE; k++)
		for (uint32_t i = 0; i < o->g->n; i++) {
			double p = o->gone[i] ? 0 : (double)o->samples[i] / (double)n;

			mean[k] += p ? p * o->w[i][k] : 0;
			momentum[k] += p ? p * o->v[i][k] : 0;
		}
	for (uint32_t i = 0; i < o->g->n; i++) {
		memcpy(o->w[i], mean, sizeof(mean));
		memcpy(o->v[i], momentum, sizeof(momentum));
		o->samples[i] = 0;
	}
}

static inline double oracle_distance(struct oracle *o, uint32_t host)
{
	uint64_t bytes;
	float *got = (float *)rig_get(&o->g->rig[host], CTL_WEIGHTS, &bytes);
	double worst = 0;

	for (int k = 0; k < SIZE; k++)
		worst = got[k] - o->w[host][k] <= worst && o->w[host][k] - got[k] <= worst
				? worst
				: fabs(got[k] - o->w[host][k]);
	free(got);
	return worst;
}

#endif
