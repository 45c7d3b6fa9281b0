/* SPDX-License-Identifier: MIT */
/*
 * intra.c: the all-reduce of replicas in one process: values, independence of who works, misuse,
 * a replica that does not come.
 */
#include "group.h"

enum { FLOATS = 50000, MAXR = 8, STEPS = 20 };

struct job {
	struct merge_intra *in;
	float *arena[MAXR];
	uint32_t r, n;
	int rc;
	uint64_t bad;
};

static float value(uint32_t r, int step, uint64_t i)
{
	uint64_t s = r * 7919 + (uint64_t)step * 104729 + i;

	return (float)(1e6 * (uniform(&s) - .5));
}

static float wanted(uint32_t n, int step, uint64_t i)
{
	double sum = 0;

	for (uint32_t r = 0; r < n; r++)
		sum += (double)value(r, step, i);
	return (float)sum;
}

/* buckets from the end of the arena to its start, of uneven sizes, as a backward pass makes them */
static int buckets(struct merge_intra *in, uint32_t r, struct merge_error *e)
{
	uint64_t end = FLOATS, size = 17;
	int rc = 0;

	while (end && !rc) {
		uint64_t n = size < end ? size : end;

		rc = merge_intra_bucket(in, r, end - n, n, e);
		end -= n;
		size = size * 3 + 1;
	}
	return rc;
}

static void *replica(void *p)
{
	struct job *j = p;
	float *a = j->arena[j->r];
	struct merge_error e;

	for (int step = 0; step < STEPS && !j->rc; step++) {
		for (uint64_t i = 0; i < FLOATS; i++)
			a[i] = value(j->r, step, i);
		j->rc = buckets(j->in, j->r, &e);
		if (!j->rc)
			j->rc = merge_intra_wait(j->in, j->r, &e);
		for (uint64_t i = step % 7; i < FLOATS && !j->rc; i += 97)
			j->bad += a[i] != wanted(j->n, step, i);
	}
	return NULL;
}

static struct merge_intra *open_intra(uint32_t n, float **arena, uint32_t max, uint32_t timeout_ms)
{
	struct merge_intra_config c = {.replicas = n,
				       .arena = arena,
				       .floats = FLOATS,
				       .buckets_max = max,
				       .timeout_ms = timeout_ms};
	struct merge_intra *in = NULL;

	if (merge_intra_open(&c, &in, NULL))
		BAIL("merge_intra_open");
	return in;
}

static void threads(float **arena)
{
	for (uint32_t n = 1; n <= MAXR; n += n < 4 ? 1 : 4) {
		struct merge_intra *in = open_intra(n, arena, 16, 0);
		struct job j[MAXR];
		pthread_t t[MAXR];
		uint64_t bad = 0;

		for (uint32_t r = 0; r < n; r++) {
			j[r] = (struct job){.in = in, .r = r, .n = n};
			memcpy(j[r].arena, arena, sizeof(j[r].arena));
			pthread_create(&t[r], NULL, replica, &j[r]);
		}
		for (uint32_t r = 0; r < n; r++) {
			pthread_join(t[r], NULL);
			bad += j[r].bad + (uint64_t)(j[r].rc != 0);
		}
		ok(!bad, "%u replicas in threads: f64 sums in replica order, 0 ULP", n);
		merge_intra_close(in);
	}
}

static void in_turn(float **arena)
{
	struct merge_intra *in = open_intra(4, arena, 0, 0);
	uint64_t bad = 0;

	for (uint32_t r = 0; r < 4; r++) {
		for (uint64_t i = 0; i < FLOATS; i++)
			arena[r][i] = value(r, 3, i);
		bad += buckets(in, r, NULL) != 0;
	}
	for (uint32_t r = 0; r < 4; r++)
		bad += merge_intra_wait(in, r, NULL) != 0;
	for (uint64_t i = 0; i < FLOATS; i++)
		for (uint32_t r = 0; r < 4; r++)
			bad += arena[r][i] != wanted(4, 3, i);
	is(bad, 0, "4 replicas in turn on one thread: the same bits");
	merge_intra_close(in);
}

static void misuse(float **arena)
{
	struct merge_intra *in = open_intra(2, arena, 4, 100);
	struct merge_error e;
	int rc = 0;

	is(merge_intra_bucket(in, 0, FLOATS - 1, 2, &e), -EINVAL, "past the end");
	is(merge_intra_bucket(in, 0, UINT64_MAX, 2, &e), -EINVAL, "offset + length wraps round");
	is(merge_intra_bucket(in, 2, 0, 1, &e), -EINVAL, "no such replica");
	is(merge_intra_bucket(in, 0, 0, 10, &e), 0, "replica 0 announces");
	is(merge_intra_wait(in, 0, &e), -ETIMEDOUT, "replica 1 does not come");
	like(e.message, "for replica 1", "the message names it");
	is(merge_intra_bucket(in, 1, 0, 11, &e), -EINVAL, "replica 1 announces another bucket");
	is(merge_intra_wait(in, 0, &e), -ECANCELED, "replica 0 is told");
	merge_intra_close(in);
	in = open_intra(2, arena, 4, 100);
	for (int i = 0; i < 5 && !rc; i++)
		rc = merge_intra_bucket(in, 0, (uint64_t)i, 1, &e);
	is(rc, -ENOSPC, "more buckets than agreed");
	merge_intra_abort(in);
	is(merge_intra_wait(in, 0, &e), -ECANCELED, "abort");
	merge_intra_close(in);
}

int main(void)
{
	float *arena[MAXR];

	for (int r = 0; r < MAXR; r++)
		arena[r] = calloc(FLOATS, sizeof(float));
	threads(arena);
	in_turn(arena);
	misuse(arena);
	for (int r = 0; r < MAXR; r++)
		free(arena[r]);
	return done();
}
