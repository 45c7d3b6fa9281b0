/* SPDX-License-Identifier: MIT */
/*
 * intra.c: all-reduce of the replicas of one process over the memory that they share. A bucket is
 * ready when every replica has announced it; its slices are then taken by whoever comes by, in
 * merge_intra_bucket while there is backward work left, in merge_intra_wait at the end. Nobody
 * spins: with more replicas than cores the others need the processor.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "intra.h"

#define SLICE 8192u  /* floats: what R replicas read and write of it stays in the second cache */
#define ON_THE_WAY 4 /* slices that an announcement may reduce */

struct bucket {
	uint64_t offset, length;
	uint32_t arrived;
	uint64_t slices, claimed, done;
};

struct shared {
	struct merge_intra base;
	pthread_mutex_t lock;
	pthread_cond_t change;
	uint32_t max, timeout_ms;
	float **arena;
	uint64_t *next;	       /* per replica: buckets announced so far */
	uint64_t *waited;      /* per replica: buckets at its last wait */
	uint64_t claim, done;  /* first bucket with slices to take; all before `done` are reduced */
	struct bucket *bucket; /* by number modulo max */
	bool aborted;
};

static int shared_open(const struct merge_intra_config *c, struct merge_intra **out,
		       struct merge_error *error)
{
	pthread_condattr_t attr;
	struct shared *in;

	in = calloc(1, sizeof(*in));
	if (in) {
		in->base.replicas = c->replicas;
		in->max = c->buckets_max ? c->buckets_max : 4096;
		in->timeout_ms = c->timeout_ms ? c->timeout_ms : 60000;
		in->arena = calloc(c->replicas, sizeof(*in->arena));
		in->next = calloc(c->replicas, sizeof(*in->next));
		in->waited = calloc(c->replicas, sizeof(*in->waited));
		in->bucket = calloc(in->max, sizeof(*in->bucket));
	}
	if (!in || !in->arena || !in->next || !in->waited || !in->bucket) {
		if (in) {
			free(in->arena);
			free(in->next);
			free(in->waited);
			free(in->bucket);
		}
		free(in);
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for %u replicas",
				  c->replicas);
	}
	memcpy(in->arena, c->arena, c->replicas * sizeof(*in->arena));
	pthread_mutex_init(&in->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&in->change, &attr);
	pthread_condattr_destroy(&attr);
	*out = &in->base;
	return 0;
}

static void shared_close(struct merge_intra *base)
{
	struct shared *in = (struct shared *)base;

	pthread_cond_destroy(&in->change);
	pthread_mutex_destroy(&in->lock);
	free(in->arena);
	free(in->next);
	free(in->waited);
	free(in->bucket);
	free(in);
}

static void shared_abort(struct merge_intra *base)
{
	struct shared *in = (struct shared *)base;

	pthread_mutex_lock(&in->lock);
	in->aborted = true;
	pthread_cond_broadcast(&in->change);
	pthread_mutex_unlock(&in->lock);
}

#define CHUNK 256u

MERGE_CLONES static void add(double *restrict acc, const float *restrict x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		acc[i] += (double)x[i];
}

MERGE_CLONES static void widen(double *restrict acc, const float *restrict x, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		acc[i] = (double)x[i];
}

MERGE_CLONES static void store(float *restrict out, const double *restrict acc, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		out[i] = (float)acc[i];
}

static void sum_slice(const struct shared *in, uint64_t offset, uint64_t length)
{
	double acc[CHUNK];

	for (uint64_t at = offset; at < offset + length; at += CHUNK) {
		uint64_t left = offset + length - at;
		uint32_t n = left < CHUNK ? (uint32_t)left : CHUNK;

		widen(acc, in->arena[0] + at, n);
		for (uint32_t r = 1; r < in->base.replicas; r++)
			add(acc, in->arena[r] + at, n);
		store(in->arena[0] + at, acc, n);
		for (uint32_t r = 1; r < in->base.replicas; r++)
			memcpy(in->arena[r] + at, in->arena[0] + at, n * sizeof(float));
	}
}

/* Takes one slice, reduces it without the lock; false if there is none. Called with the lock. */
static bool work(struct shared *in)
{
	struct bucket *b = &in->bucket[in->claim % in->max];
	uint64_t offset, length;

	/* a slot still holds an old, finished bucket until the next one is announced */
	if (in->claim >= in->next[0] || b->arrived < in->base.replicas || b->claimed == b->slices)
		return false;
	offset = b->offset + b->claimed * SLICE;
	length = b->length - b->claimed * SLICE;
	if (++b->claimed == b->slices)
		in->claim++;
	pthread_mutex_unlock(&in->lock);
	sum_slice(in, offset, length < SLICE ? length : SLICE);
	pthread_mutex_lock(&in->lock);
	b->done++;
	while (in->done < in->claim) {
		b = &in->bucket[in->done % in->max];
		if (b->done < b->slices)
			break;
		in->done++;
		pthread_cond_broadcast(&in->change);
	}
	return true;
}

static int announce(struct shared *in, uint32_t replica, uint64_t offset, uint64_t length,
		    struct merge_error *error)
{
	uint64_t number = in->next[replica];
	struct bucket *b = &in->bucket[number % in->max];
	bool first = true;

	if (in->aborted)
		return merge_fail(error, -ECANCELED, MERGE_NO_HOST, "the all-reduce was ended");
	if (number - in->waited[replica] == in->max)
		return merge_fail(error, -ENOSPC, MERGE_NO_HOST,
				  "more than %u buckets before a wait", in->max);
	for (uint32_t r = 0; r < in->base.replicas; r++)
		if (in->next[r] > number)
			first = false;
	if (first)
		*b = (struct bucket){
			.offset = offset, .length = length, .slices = (length + SLICE - 1) / SLICE};
	if (b->offset != offset || b->length != length) {
		in->aborted = true;
		pthread_cond_broadcast(&in->change);
		return merge_fail(error, -EINVAL, MERGE_NO_HOST,
				  "replica %u announces other buckets than the replicas before it",
				  replica);
	}
	in->next[replica]++;
	if (++b->arrived == in->base.replicas)
		pthread_cond_broadcast(&in->change);
	return 0;
}

static int shared_bucket(struct merge_intra *base, uint32_t replica, uint64_t offset,
			 uint64_t length, void *ready, struct merge_error *error)
{
	struct shared *in = (struct shared *)base;
	int rc;

	pthread_mutex_lock(&in->lock);
	rc = announce(in, replica, offset, length, error);
	for (int i = 0; i < ON_THE_WAY && !rc; i++)
		if (!work(in))
			break;
	pthread_mutex_unlock(&in->lock);
	return rc;
}

static int shared_wait(struct merge_intra *base, uint32_t replica, struct merge_error *error)
{
	struct shared *in = (struct shared *)base;
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += in->timeout_ms / 1000;
	until.tv_nsec += (long)(in->timeout_ms % 1000) * 1000000;
	if (until.tv_nsec >= 1000000000) {
		until.tv_sec++;
		until.tv_nsec -= 1000000000;
	}
	pthread_mutex_lock(&in->lock);
	while (!rc && !in->aborted && in->done < in->next[replica])
		if (!work(in))
			rc = pthread_cond_timedwait(&in->change, &in->lock, &until);
	if (in->done >= in->next[replica]) {
		in->waited[replica] = in->next[replica];
		rc = 0;
	} else if (in->aborted) {
		rc = merge_fail(error, -ECANCELED, MERGE_NO_HOST, "the all-reduce was ended");
	} else {
		uint32_t late = 0;

		for (uint32_t r = 0; r < in->base.replicas; r++)
			if (in->next[r] < in->next[late])
				late = r;
		rc = merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST,
				"replica %u waited %u ms for replica %u in the all-reduce", replica,
				in->timeout_ms, late);
	}
	pthread_mutex_unlock(&in->lock);
	return rc;
}

const struct merge_intra_ops merge_intra_shared = {
	.version = MERGE_INTRA_VERSION,
	.open = shared_open,
	.bucket = shared_bucket,
	.wait = shared_wait,
	.abort = shared_abort,
	.close = shared_close,
};
