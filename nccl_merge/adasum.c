/* SPDX-License-Identifier: MIT */
/*
 * adasum.c: adaptive summation by vector halving and distance doubling (Maleki et al. 2021, written
 * from the formula). Two vectors a, b of one tensor become (1 - ab/2aa) a + (1 - ab/2bb) b: the sum
 * where they are orthogonal, the mean where they are parallel. Dots are double, per tensor, over
 * the whole tensor although each host holds a part only.
 */
#include <string.h>
#include "internal.h"

struct span {
	uint64_t lo, hi; /* elements of the arena */
};

struct adasum {
	struct merge_net *net;
	const struct merge_table *table;
	float *v, *other;   /* other: the partner's part, by arena offset */
	double *dots, *all; /* aa, bb, ab per tensor; of every host */
	uint32_t n_dots;
};

static struct span cut(const struct merge_tensor *t, struct span s)
{
	uint64_t lo = t->offset > s.lo ? t->offset : s.lo;
	uint64_t hi = t->offset + t->count < s.hi ? t->offset + t->count : s.hi;

	return (struct span){lo, hi > lo ? hi : lo};
}

static void dots_of(const struct adasum *a, const float *low, const float *high, struct span s)
{
	for (uint32_t i = 0; i < a->table->n; i++) {
		struct span c = cut(&a->table->tensor[i], s);
		double aa = 0, bb = 0, ab = 0;

		if (!a->table->tensor[i].statistic)
			for (uint64_t j = c.lo; j < c.hi; j++) {
				aa += (double)low[j] * (double)low[j];
				bb += (double)high[j] * (double)high[j];
				ab += (double)low[j] * (double)high[j];
			}
		a->dots[3 * i] = aa;
		a->dots[3 * i + 1] = bb;
		a->dots[3 * i + 2] = ab;
	}
}

/* v <- combination; |a| = 0 gives b, |b| = 0 gives a */
static void combine(const struct adasum *a, const float *low, const float *high, struct span s)
{
	for (uint32_t i = 0; i < a->table->n; i++) {
		const struct merge_tensor *t = &a->table->tensor[i];
		const double *d = &a->dots[3 * i];
		double p = d[0] > 0 ? 1 - d[2] / (2 * d[0]) : 0,
		       q = d[1] > 0 ? 1 - d[2] / (2 * d[1]) : 0;
		struct span c = cut(t, s);

		if (t->statistic)
			continue;
		if (t->policy == MERGE_COPIED) {
			p = 1;
			q = 0;
		}
		for (uint64_t j = c.lo; j < c.hi; j++) {
			double x = low[j], y = high[j];

			if (t->policy == MERGE_COUNTER)
				a->v[j] = (float)(x < y ? x : y);
			else
				a->v[j] = (float)(p * x + q * y);
		}
	}
}

static int swap(struct adasum *a, const char *what, uint32_t peer, const void *send,
		size_t send_len, void *recv, size_t recv_len, struct merge_error *error)
{
	struct merge_xfer x = {.peer = peer,
			       .send = send,
			       .send_len = send_len,
			       .recv = recv,
			       .recv_len = recv_len};
	struct merge_round round = {
		.what = what, .merge = a->net->number, .x = &x, .n = send_len || recv_len ? 1 : 0};

	return merge_net_round(a->net, &round, error);
}

/* Dots of the 2d hosts that hold the parts of one pair of vectors, summed in rank order. */
static int sum_dots(struct adasum *a, uint32_t group, bool member, struct merge_error *error)
{
	struct merge_xfer x[MERGE_HOSTS_MAX];
	uint32_t first = a->net->rank / group * group, k = 0;
	size_t bytes = a->n_dots * sizeof(double);
	struct merge_round round = {.what = "adasum dots", .merge = a->net->number, .x = x};
	int rc;

	for (uint32_t p = first; member && p < first + group; p++)
		if (p != a->net->rank)
			x[k++] = (struct merge_xfer){.peer = p,
						     .send = a->dots,
						     .send_len = bytes,
						     .recv = a->all +
							     (size_t)(p - first) * a->n_dots,
						     .recv_len = bytes};
	round.n = bytes ? k : 0;
	rc = merge_net_round(a->net, &round, error);
	if (rc || !member || !bytes)
		return rc;
	memcpy(a->all + (size_t)(a->net->rank - first) * a->n_dots, a->dots, bytes);
	memset(a->dots, 0, bytes);
	for (uint32_t p = 0; p < group; p++)
		for (uint32_t i = 0; i < a->n_dots; i++)
			a->dots[i] += a->all[(size_t)p * a->n_dots + i];
	return 0;
}

/* The half that a host keeps at distance d: the lower one where bit d of its rank is 0. */
static struct span half_of(struct span s, bool upper)
{
	uint64_t middle = s.lo + ((s.hi - s.lo) / 2 + 15) / 16 * 16;

	if (middle > s.hi)
		middle = s.hi;
	return upper ? (struct span){middle, s.hi} : (struct span){s.lo, middle};
}

static int halving(struct adasum *a, uint32_t pow2, struct span *path, struct merge_error *error)
{
	uint32_t r = a->net->rank, level = 0;
	bool member = r < pow2;
	int rc = 0;

	for (uint32_t d = 1; d < pow2 && !rc; d *= 2, level++) {
		bool upper = r & d;
		struct span keep = half_of(path[level], upper), give = half_of(path[level], !upper);

		/* the others of a round take part in it without a transfer */
		rc = swap(a, "adasum halving", member ? r ^ d : 0, a->v + give.lo,
			  member ? (give.hi - give.lo) * sizeof(float) : 0, a->other + keep.lo,
			  member ? (keep.hi - keep.lo) * sizeof(float) : 0, error);
		if (rc)
			return rc;
		if (member)
			dots_of(a, upper ? a->other : a->v, upper ? a->v : a->other, keep);
		rc = sum_dots(a, 2 * d, member, error);
		if (!rc && member)
			combine(a, upper ? a->other : a->v, upper ? a->v : a->other, keep);
		path[level + 1] = keep;
	}
	for (uint32_t d = pow2 / 2; d >= 1 && !rc; d /= 2, level--) {
		bool upper = r & d;
		struct span have = path[level], want = half_of(path[level - 1], !upper);

		rc = swap(a, "adasum doubling", member ? r ^ d : 0, a->v + have.lo,
			  member ? (have.hi - have.lo) * sizeof(float) : 0, a->v + want.lo,
			  member ? (want.hi - want.lo) * sizeof(float) : 0, error);
	}
	return rc;
}

/* Hosts past the largest power of two hand their vector to a partner first, and get the result. */
static int fold(struct adasum *a, uint32_t pow2, uint64_t count, bool back,
		struct merge_error *error)
{
	uint32_t r = a->net->rank, rest = a->net->size - pow2;
	bool extra = r >= pow2, host = r < rest;
	uint32_t peer = extra ? r - pow2 : host ? r + pow2 : 0;
	bool sends = back ? host : extra, takes = back ? extra : host;
	float *into = back ? a->v : a->other;
	size_t bytes = count * sizeof(float);
	int rc;

	rc = swap(a, back ? "adasum unfold" : "adasum fold", peer, a->v, sends ? bytes : 0, into,
		  takes ? bytes : 0, error);
	if (rc || back || !host)
		return rc;
	dots_of(a, a->v, a->other, (struct span){0, count});
	combine(a, a->v, a->other, (struct span){0, count});
	return 0;
}

int merge_adasum_all(struct merge_net *net, const struct merge_table *table,
		     const struct merge_adasum *work, float *delta, uint64_t count,
		     struct merge_error *error)
{
	struct adasum a = {.net = net,
			   .table = table,
			   .v = delta,
			   .other = work->other,
			   .dots = work->dots,
			   .all = work->all,
			   .n_dots = 3 * table->n};
	struct span path[10] = {{0, count}};
	uint32_t pow2 = 1;
	int rc = 0;

	if (net->size == 1)
		return 0;
	while (pow2 * 2 <= net->size)
		pow2 *= 2;
	if (net->size > pow2)
		rc = fold(&a, pow2, count, false, error);
	if (!rc)
		rc = halving(&a, pow2, path, error);
	if (!rc && net->size > pow2)
		rc = fold(&a, pow2, count, true, error);
	return rc;
}
