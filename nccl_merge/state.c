/* SPDX-License-Identifier: MIT */
/*
 * state.c: what is not a weight: batch-norm moments, and copies for evaluation.
 */
#include <math.h>
#include "internal.h"

static double share(uint32_t k, const uint64_t n[], uint32_t i)
{
	double total = 0;

	for (uint32_t j = 0; j < k; j++)
		total += (double)n[j];
	return total > 0 ? (double)n[i] / total : 1. / k;
}

void merge_moments(uint32_t k, const float *const mean[], const float *const variance[],
		   const uint64_t n[], float *mean_out, float *variance_out, uint64_t count)
{
	double p[MERGE_HOSTS_MAX];
	uint32_t first = 0;

	for (uint32_t j = 0; j < k; j++)
		p[j] = share(k, n, j);
	while (!(p[first] > 0) && first + 1 < k)
		first++;
	for (uint64_t i = 0; i < count; i++) {
		double mu = 0, var = 0;

		/* relative to the first, so that equal means stay equal to the last bit */
		for (uint32_t j = 0; j < k; j++)
			if (p[j] > 0)
				mu += p[j] * ((double)mean[j][i] - (double)mean[first][i]);
		mu += (double)mean[first][i];
		for (uint32_t j = 0; j < k; j++) {
			double d = (double)mean[j][i] - mu;

			if (p[j] > 0)
				var += p[j] * ((double)variance[j][i] + d * d);
		}
		mean_out[i] = (float)mu;
		variance_out[i] = (float)var;
	}
}

void merge_statistics(const struct merge_table *table, uint32_t k, const float *const stat[],
		      const uint64_t n[], float *out)
{
	const float *a[MERGE_HOSTS_MAX], *b[MERGE_HOSTS_MAX];

	for (uint32_t i = 0; i < table->n; i++) {
		const struct merge_tensor *t = &table->tensor[i];
		struct merge_reduce r = {.op = MERGE_REDUCE_MEAN, .n = k, .weight = n};
		const void *in[MERGE_HOSTS_MAX];

		if (!t->statistic || t->policy == MERGE_VARIANCE)
			continue;
		for (uint32_t j = 0; j < k; j++)
			in[j] = a[j] = stat[j] + t->offset;
		if (t->policy == MERGE_MEAN) {
			const struct merge_tensor *v = &table->tensor[t->pair];

			for (uint32_t j = 0; j < k; j++)
				b[j] = stat[j] + v->offset;
			merge_moments(k, a, b, n, out + t->offset, out + v->offset, t->count);
			continue;
		}
		if (t->policy == MERGE_COPIED)
			r.op = MERGE_REDUCE_FIRST;
		if (t->policy == MERGE_COUNTER)
			r.op = MERGE_REDUCE_MAX;
		merge_reduce_range(&r, 0, t->count, in, out + t->offset);
	}
}

void merge_ema(float *copy, const float *x, uint64_t count, double d, uint64_t t)
{
	double early = (1. + (double)t) / (10. + (double)t), keep = early < d ? early : d;

	for (uint64_t i = 0; i < count; i++)
		copy[i] = (float)(keep * (double)copy[i] + (1 - keep) * (double)x[i]);
}

void merge_swa(float *copy, const float *x, uint64_t count, uint64_t k)
{
	for (uint64_t i = 0; i < count; i++)
		copy[i] = (float)((double)copy[i] +
				  ((double)x[i] - (double)copy[i]) / ((double)k + 1));
}
