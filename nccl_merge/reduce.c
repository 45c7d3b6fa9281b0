/* SPDX-License-Identifier: MIT */
/*
 * reduce.c: what the owner of a shard does with the inputs of all hosts. Sums are f64 in rank
 * order, so every owner, instruction set and block size gives the same bits.
 */
#include <math.h>
#include <string.h>
#include "internal.h"

#define BLOCK 512u

uint16_t merge_to_bf16(float x)
{
	uint32_t u;

	memcpy(&u, &x, sizeof(u));
	if ((u & 0x7fffffffu) > 0x7f800000u)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

float merge_from_bf16(uint16_t x)
{
	uint32_t u = (uint32_t)x << 16;
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

MERGE_CLONES static void add_scaled(double *acc, const float *in, double w, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		acc[i] += w * (double)in[i];
}

MERGE_CLONES static void add_plain(double *acc, const float *in, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		acc[i] += (double)in[i];
}

MERGE_CLONES static void divide(float *out, const double *acc, double by, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		out[i] = (float)(acc[i] / by);
}

MERGE_CLONES static void narrow(float *out, const double *acc, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		out[i] = (float)acc[i];
}

static double total_of(uint32_t k, const uint64_t n[])
{
	uint64_t sum = 0;

	for (uint32_t i = 0; n && i < k; i++)
		if (__builtin_add_overflow(sum, n[i], &sum))
			return 0x1p64;
	return (double)sum;
}

/*
 * n_i x_i is exact below 2^29 samples, so hosts that hold equal values keep them bit by bit. A host
 * without samples takes no part: its weights may be anything.
 */
static void block_mean(uint32_t k, const float *const in[], const uint64_t n[], float *out,
		       uint64_t at, uint64_t count)
{
	double acc[BLOCK] = {0}, total = total_of(k, n);

	for (uint32_t i = 0; i < k; i++) {
		if (total > 0 && !n[i])
			continue;
		if (total > 0)
			add_scaled(acc, in[i] + at, (double)n[i], count);
		else
			add_plain(acc, in[i] + at, count);
	}
	divide(out + at, acc, total > 0 ? total : k, count);
}

void merge_mean(uint32_t k, const float *const in[], const uint64_t n[], float *out, uint64_t count)
{
	for (uint64_t at = 0; at < count; at += BLOCK)
		block_mean(k, in, n, out, at, count - at < BLOCK ? count - at : BLOCK);
}

static void block_sum(uint32_t k, const float *const in[], float *out, uint64_t at, uint64_t count)
{
	double acc[BLOCK] = {0};

	for (uint32_t i = 0; i < k; i++)
		add_plain(acc, in[i] + at, count);
	narrow(out + at, acc, count);
}

static void range_extreme(uint32_t k, const float *const in[], bool largest, float *out,
			  uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		float best = in[0][i];

		for (uint32_t j = 1; j < k; j++)
			if (largest ? in[j][i] > best : in[j][i] < best)
				best = in[j][i];
		out[i] = best;
	}
}

/* NaN sorts last, so that one broken host cannot take the place of the middle. */
static bool before(float a, float b)
{
	return a < b || (isnan(b) && !isnan(a));
}

static void range_sorted(uint32_t k, const float *const in[], uint32_t drop, float *out,
			 uint64_t count)
{
	float v[MERGE_HOSTS_MAX];

	for (uint64_t i = 0; i < count; i++) {
		double sum = 0;

		for (uint32_t j = 0; j < k; j++) {
			float x = in[j][i];
			uint32_t at = j;

			for (; at && before(x, v[at - 1]); at--)
				v[at] = v[at - 1];
			v[at] = x;
		}
		for (uint32_t j = drop; j < k - drop; j++)
			sum += (double)v[j];
		out[i] = (float)(sum / (k - 2 * drop));
	}
}

static void reduce_floats(const struct merge_reduce *r, enum merge_reduction op,
			  const float *const in[], float *out, uint64_t count)
{
	uint64_t at;

	switch (op) {
	case MERGE_REDUCE_SUM:
		for (at = 0; at < count; at += BLOCK)
			block_sum(r->n, in, out, at, count - at < BLOCK ? count - at : BLOCK);
		break;
	case MERGE_REDUCE_MEAN:
		merge_mean(r->n, in, r->weight, out, count);
		break;
	case MERGE_REDUCE_MAX:
	case MERGE_REDUCE_MIN:
		range_extreme(r->n, in, op == MERGE_REDUCE_MAX, out, count);
		break;
	case MERGE_REDUCE_FIRST:
		memcpy(out, in[0], count * sizeof(float));
		break;
	case MERGE_REDUCE_MEDIAN: /* the middle one, or the mean of the middle two */
		range_sorted(r->n, in, (r->n - 1) / 2, out, count);
		break;
	case MERGE_REDUCE_TRIMMED:
		range_sorted(r->n, in, r->trim, out, count);
		break;
	}
}

static enum merge_reduction policy_op(const struct merge_reduce *r, enum merge_policy policy)
{
	if (policy == MERGE_COPIED)
		return MERGE_REDUCE_FIRST;
	if (policy == MERGE_COUNTER)
		return r->delta ? MERGE_REDUCE_MIN : MERGE_REDUCE_MAX;
	return r->op;
}

/* The range, cut where the policy changes. Gaps between tensors go with the merge function. */
static void reduce_by_policy(const struct merge_reduce *r, uint64_t offset, uint64_t count,
			     const float *const in[], float *out)
{
	uint64_t at = offset, end = offset + count;
	const float *part[MERGE_HOSTS_MAX];

	for (uint32_t i = 0; r->table && i <= r->table->n && at < end; i++) {
		const struct merge_tensor *t = i < r->table->n ? &r->table->tensor[i] : NULL;
		enum merge_reduction op = t ? policy_op(r, t->policy) : r->op;
		uint64_t from = t ? t->offset : end, to = t ? t->offset + t->count : end;

		if (t && (t->statistic || op == r->op || to <= at))
			continue;
		from = from < at ? at : from > end ? end : from;
		to = to > end ? end : to;
		for (uint32_t k = 0; k < r->n; k++)
			part[k] = in[k] + (at - offset);
		reduce_floats(r, r->op, part, out + (at - offset), from - at);
		if (to <= from)
			break;
		for (uint32_t k = 0; k < r->n; k++)
			part[k] = in[k] + (from - offset);
		reduce_floats(r, op, part, out + (from - offset), to - from);
		at = to;
	}
	if (!r->table)
		reduce_floats(r, r->op, in, out, count);
}

/* bf16: the owner adds the residual of its last rounding and keeps the new one. */
static void reduce_bf16(const struct merge_reduce *r, uint64_t offset, uint64_t count,
			const void *const in[], uint16_t *out)
{
	float wide[MERGE_HOSTS_MAX][64], sum[64];
	const float *part[MERGE_HOSTS_MAX];

	for (uint64_t at = 0; at < count; at += 64) {
		uint64_t n = count - at < 64 ? count - at : 64;

		for (uint32_t k = 0; k < r->n; k++) {
			const uint16_t *p = (const uint16_t *)in[k] + at;

			for (uint64_t i = 0; i < n; i++)
				wide[k][i] = merge_from_bf16(p[i]);
			part[k] = wide[k];
		}
		reduce_by_policy(r, offset + at, n, part, sum);
		for (uint64_t i = 0; i < n; i++) {
			float v = sum[i] + (r->carry_in ? r->carry_in[offset + at + i] : 0);
			float rest;

			out[at + i] = merge_to_bf16(v);
			rest = v - merge_from_bf16(out[at + i]);
			if (r->carry_out)
				r->carry_out[offset + at + i] = isfinite(rest) ? rest : 0;
		}
	}
}

void merge_reduce_range(const struct merge_reduce *r, uint64_t offset, uint64_t count,
			const void *const in[], void *out)
{
	const float *f[MERGE_HOSTS_MAX];

	if (r->bf16) {
		reduce_bf16(r, offset, count, in, out);
		return;
	}
	for (uint32_t k = 0; k < r->n; k++)
		f[k] = in[k];
	reduce_by_policy(r, offset, count, f, out);
}
