/* SPDX-License-Identifier: MIT */
/*
 * rank.c: what one rank does for each row: warm up, time, check. The check has a run of its own,
 * with inputs whose reduction is known exactly.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "perf.h"

static double clock_of(clockid_t id)
{
	struct timespec t;

	clock_gettime(id, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Small integers: every sum of 64 of them is exact. Adasum gets equal ones: it returns them. */
static float input(const struct perf_rank *k, uint32_t rank, uint64_t i)
{
	if (k->o->merge && !strcmp(k->o->merge, "adasum"))
		rank = 0;
	return (float)((i * 7 + rank * 13 + i / 1000) % 61 + 1);
}

const char *perf_op_name(enum merge_op op)
{
	static const char *const name[] = {"sum", "max", "min", "avg"};

	return name[op];
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* What a host brings to the others: the sum of its replicas. */
static double host_input(const struct perf_rank *k, uint32_t host, uint64_t i)
{
	double v = 0;

	for (uint32_t r = 0; r < k->per_host; r++)
		v += (double)input(k, host * k->per_host + r, i);
	return v;
}

static double reduced(const struct perf_rank *k, enum merge_op op, uint64_t i)
{
	double v = host_input(k, 0, i);

	for (uint32_t h = 1; h < k->hosts; h++) {
		double x = host_input(k, h, i);

		v = op == MERGE_OP_MAX ? fmax(v, x) : op == MERGE_OP_MIN ? fmin(v, x) : v + x;
	}
	return op == MERGE_OP_AVG ? v / k->hosts : v;
}

static double middle(const struct perf_rank *k, uint32_t drop, uint64_t i)
{
	double v[PERF_RANKS], sum = 0;

	for (uint32_t h = 0; h < k->hosts; h++)
		v[h] = host_input(k, h, i);
	qsort(v, k->hosts, sizeof(*v), compare);
	for (uint32_t h = drop; h < k->hosts - drop; h++)
		sum += v[h];
	return sum / (k->hosts - 2 * drop);
}

/* After the first merge from a common start of zero. */
static double merged(const struct perf_rank *k, const struct merge_config *c, uint64_t i)
{
	double mean = reduced(k, MERGE_OP_AVG, i);

	switch (c->kind) {
	case MERGE_GRADIENT:
		return reduced(k, MERGE_OP_SUM, i);
	case MERGE_OUTER:
		return c->eta * (c->nesterov ? 1 + c->mu : 1) * mean;
	case MERGE_EASGD:
		return (1 - c->b / k->hosts) * host_input(k, k->rank * k->mine / k->per_host, i);
	case MERGE_TRIMMED:
		return middle(k, c->trim, i);
	case MERGE_MEDIAN:
		return middle(k, (k->hosts - 1) / 2, i);
	default:
		return mean;
	}
}

static bool within_ulp(float got, double want, int ulp)
{
	float w = (float)want;

	return got == w ||
	       fabs((double)got - want) <= ulp * fabs((double)nextafterf(w, INFINITY) - w);
}

static uint64_t wrong_values(const struct perf_rank *k, const float *out)
{
	struct merge_config c = {.kind = MERGE_NONE};
	uint64_t wrong = 0;

	if (k->o->merge)
		merge_preset(k->o->merge, k->hosts, &c, NULL);
	for (uint64_t i = 0; i < k->count; i++) {
		double want = k->o->merge ? merged(k, &c, i) : reduced(k, k->op, i);
		bool exact = !k->o->merge && k->op != MERGE_OP_AVG;

		/* bf16 rounds twice to 8 bits */
		if (k->o->wire == MERGE_BF16)
			wrong += !(fabs((double)out[i] - want) <= fabs(want) / 64);
		else
			wrong += !within_ulp(out[i], want, exact ? 0 : 2);
	}
	return wrong;
}

static void fill(struct perf_rank *k, bool zero)
{
	for (uint32_t j = 0; j < k->mine; j++)
		for (uint64_t i = 0; i < k->count; i++)
			k->own[j][i] = zero ? 0 : input(k, k->rank * k->mine + j, i);
}

static int repeat(struct perf_rank *k, bool in_place, uint64_t n)
{
	int rc = 0;

	for (uint64_t i = 0; i < n * k->o->aggregate && !rc; i++)
		rc = k->ops->run(k, in_place);
	return rc;
}

/* A run of its own, with values that are known. */
static int check(struct perf_rank *k, bool in_place, uint64_t *wrong)
{
	int rc;

	fill(k, false);
	if (k->ops->fresh)
		k->ops->fresh(k);
	/* nobody starts while another still fills or looks; an error is met there */
	if (k->ops->push)
		k->ops->push(k);
	rc = k->ops->meet(k);
	if (!rc)
		rc = k->ops->run(k, in_place);
	if (!rc && k->ops->pull)
		rc = k->ops->pull(k);
	for (uint32_t j = 0; j < k->mine && !rc; j++)
		*wrong += wrong_values(k, in_place ? k->own[j] : k->out);
	if (!rc)
		rc = k->ops->meet(k);
	return rc;
}

static int measure(struct perf_rank *k, bool in_place)
{
	struct perf_sample *s = &k->shared->sample[k->rank][in_place];
	/* the first thread of a process accounts for all of it, the control thread too */
	clockid_t id = k->o->level != PERF_INTRA && k->speaker ? CLOCK_PROCESS_CPUTIME_ID
							       : CLOCK_THREAD_CPUTIME_ID;
	double wall, cpu;
	int rc;

	/* zeros do not overflow, whatever is added up how often */
	fill(k, true);
	if (k->ops->push)
		k->ops->push(k);
	rc = k->ops->meet(k);
	if (!rc)
		rc = repeat(k, in_place, k->o->warmup);
	if (!rc)
		rc = k->ops->meet(k);
	if (rc)
		return rc;
	wall = clock_of(CLOCK_MONOTONIC);
	cpu = clock_of(id);
	rc = repeat(k, in_place, k->o->iters);
	if (rc)
		return rc;
	s->wall = clock_of(CLOCK_MONOTONIC) - wall;
	s->cpu = clock_of(id) - cpu;
	s->seconds = (k->o->cpu_time ? s->cpu : s->wall) / (double)(k->o->iters * k->o->aggregate);
	s->wrong = 0;
	for (uint64_t i = 0; i < k->o->check && !rc; i++)
		rc = check(k, in_place, &s->wrong);
	return rc;
}

static double pick(const struct perf_rank *k, int place)
{
	double sum = 0, least = INFINITY, most = 0;

	for (uint32_t r = 0; r < k->ranks; r++) {
		double s = k->shared->sample[r][place].seconds;

		sum += s;
		least = fmin(least, s);
		most = fmax(most, s);
	}
	switch (k->o->average) {
	case 0:
		return k->shared->sample[0][place].seconds;
	case 2:
		return least;
	case 3:
		return most;
	default:
		return sum / k->ranks;
	}
}

static void report(struct perf_rank *k)
{
	struct perf_row row = {.bytes = k->count * sizeof(float),
			       .count = k->count,
			       .redop = k->o->merge ? k->o->merge : perf_op_name(k->op)};
	/* inside a host the replicas count, between hosts the hosts */
	uint32_t n = k->o->level == PERF_INTRA ? k->per_host : k->hosts;
	double factor = 2. * (n - 1) / n, cpu = 0, wall = 0;

	for (int place = 0; place < 2; place++) {
		row.has[place] = k->ops->place[place];
		if (!row.has[place])
			continue;
		row.place[place].seconds = pick(k, place);
		for (uint32_t r = 0; r < k->ranks; r++) {
			row.place[place].wrong += k->shared->sample[r][place].wrong;
			/* hier: that of the first thread of a host is that of all */
			if (k->o->level != PERF_HIER || r % k->o->threads == 0)
				cpu += k->shared->sample[r][place].cpu;
		}
		wall += k->shared->sample[0][place].wall;
		row.algbw[place] = (double)row.bytes / 1e9 / row.place[place].seconds;
		row.busbw[place] = row.algbw[place] * factor;
	}
	row.cores = wall > 0 ? cpu / wall : 0;
	k->row(k->context, &row);
}

static int run_row(struct perf_rank *k)
{
	int rc = k->ops->open(k);

	for (int place = 0; place < 2 && !rc; place++)
		if (k->ops->place[place])
			rc = measure(k, place);
	if (!rc)
		rc = k->ops->meet(k);
	if (!rc && k->rank == 0)
		report(k);
	/* nobody overwrites the samples before they are printed */
	if (!rc)
		rc = k->ops->meet(k);
	k->ops->close(k);
	return rc;
}

int perf_rank_run(struct perf_rank *k)
{
	const struct perf_options *o = k->o;
	int rc = 0;

	for (uint64_t cycle = 0; (!o->cycles || cycle < o->cycles) && !rc; cycle++)
		for (int op = (int)o->op_first; op <= (int)o->op_last && !rc; op++)
			for (uint64_t bytes = o->min_bytes; bytes <= o->max_bytes && !rc;
			     bytes = o->step_factor > 1 ? bytes * o->step_factor
							: bytes + o->step_bytes) {
				k->count = bytes / sizeof(float);
				k->op = (enum merge_op)op;
				rc = run_row(k);
			}
	return rc;
}
