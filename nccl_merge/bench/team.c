/* SPDX-License-Identifier: MIT */
/*
 * team.c: the threads of one process: replicas that are summed in memory, and, as one host of
 * several, the sum between hosts after that.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "perf.h"

struct perf_team {
	pthread_barrier_t barrier;
	uint32_t n; /* replicas here */
	float *arena[PERF_RANKS];
	float *gpu[PERF_RANKS]; /* --gpus: the arenas that are summed */
	struct merge_intra *intra;
	struct perf_rank *host; /* hier: what speaks to the other hosts */
	atomic_int rc;		/* the first error of any thread */
};

static void note(struct perf_rank *k, int rc)
{
	int none = 0;

	if (!rc)
		return;
	atomic_compare_exchange_strong(&k->team->rc, &none, rc);
	/* who waits in the all-reduce is let go; who waits at the barrier is met there */
	if (k->team->intra)
		merge_intra_abort(k->team->intra);
}

static int together(struct perf_rank *k)
{
	pthread_barrier_wait(&k->team->barrier);
	return atomic_load(&k->team->rc);
}

static int team_open(struct perf_rank *k)
{
	struct merge_intra_config c = {.replicas = k->team->n,
				       .arena = k->team->arena,
				       .floats = k->count,
				       .timeout_ms = k->o->timeout * 1000};
	uint32_t device[PERF_RANKS];
	int rc = 0;

	for (uint32_t r = 0; r < PERF_RANKS; r++)
		device[r] = r;
	if (k->o->gpus) {
		c.arena = k->team->gpu;
		c.transport = "nccl";
		c.device = device;
		c.symmetric = true;
	}

	if (k->speaker)
		rc = merge_intra_open(&c, &k->team->intra, &k->error);
	if (k->speaker && !rc && k->team->host) {
		k->team->host->count = k->count;
		k->team->host->op = k->op;
		rc = perf_host_open(k->team->host);
		if (rc)
			k->error = k->team->host->error;
	}
	note(k, rc);
	return together(k);
}

static int team_meet(struct perf_rank *k)
{
	int rc = together(k);

	if (!rc && k->team->host) {
		if (k->speaker)
			note(k, perf_host_meet(k->team->host));
		rc = together(k);
	}
	return rc;
}

/* Sixteen buckets, as a backward pass announces them; a thread stands for `mine` replicas. */
static int sum_replicas(struct perf_rank *k)
{
	uint64_t piece = k->count / 16 > 4096 ? k->count / 16 : 4096;
	uint32_t first = (k->rank * k->mine) % k->team->n;
	int rc = 0;

	for (uint64_t at = 0; at < k->count; at += piece)
		for (uint32_t j = 0; j < k->mine && !rc; j++)
			rc = merge_intra_bucket(k->team->intra, first + j, at,
						k->count - at < piece ? k->count - at : piece,
						&k->error);
	for (uint32_t j = 0; j < k->mine && !rc; j++)
		rc = merge_intra_wait(k->team->intra, first + j, &k->error);
	note(k, rc);
	return rc;
}

/* ---- GPUs ---- */

static int move(struct perf_rank *k, bool to_device)
{
	uint32_t first = (k->rank * k->mine) % k->team->n;
	int rc = 0;

	for (uint32_t j = 0; j < k->mine && !rc; j++) {
		float *device = k->team->gpu[first + j];

		rc = merge_gpu_copy(first + j, to_device ? device : k->own[j],
				    to_device ? k->own[j] : device, k->count * sizeof(float),
				    to_device, &k->error);
	}
	note(k, rc);
	return rc;
}

static int push(struct perf_rank *k)
{
	return move(k, true);
}

static int pull(struct perf_rank *k)
{
	return move(k, false);
}

/* The sum of the GPUs to the host, between hosts, and back to every GPU: all of it is timed. */
static int gpu_hier_run(struct perf_rank *k, bool in_place)
{
	struct perf_team *t = k->team;
	int rc;

	sum_replicas(k);
	rc = together(k);
	if (rc)
		return rc;
	if (k->speaker) {
		rc = pull(k);
		if (!rc) {
			rc = perf_host_run(t->host, true);
			if (rc)
				k->error = t->host->error;
			note(k, rc);
		}
	}
	rc = together(k);
	for (uint32_t j = 0; j < k->mine && !rc; j++)
		if (k->own[j] != t->arena[0])
			memcpy(k->own[j], t->arena[0], k->count * sizeof(float));
	if (!rc)
		push(k);
	return together(k);
}

static int gpu_arenas(struct perf_team *team, const struct perf_options *o)
{
	struct merge_error error = {0};
	int rc = 0;

	for (uint32_t r = 0; r < team->n && !rc; r++)
		rc = merge_gpu_alloc(r, o->max_bytes, (void **)&team->gpu[r], &error);
	if (rc)
		fprintf(stderr, "merge_perf: %s\n", error.message);
	return rc;
}

static int intra_run(struct perf_rank *k, bool in_place)
{
	return sum_replicas(k);
}

/* Inside the host, between hosts by its first replica, and back to the others. */
static int hier_run(struct perf_rank *k, bool in_place)
{
	struct perf_team *t = k->team;
	int rc;

	sum_replicas(k);
	rc = together(k);
	if (rc)
		return rc;
	if (k->speaker) {
		rc = perf_host_run(t->host, true);
		if (rc)
			k->error = t->host->error;
		note(k, rc);
	}
	rc = together(k);
	/* nobody sums again before all have announced, so before all have copied */
	for (uint32_t j = 0; j < k->mine && !rc; j++)
		if (k->own[j] != t->arena[0])
			memcpy(k->own[j], t->arena[0], k->count * sizeof(float));
	return rc;
}

static void team_close(struct perf_rank *k)
{
	together(k);
	if (!k->speaker)
		return;
	merge_intra_close(k->team->intra);
	k->team->intra = NULL;
	if (k->team->host)
		perf_host_close(k->team->host);
}

static void hier_fresh(struct perf_rank *k)
{
	if (k->speaker)
		perf_host_fresh(k->team->host);
}

/* [on GPUs] */
static const struct perf_level_ops intra_ops[2] = {
	{team_open, intra_run, team_meet, team_close, NULL, {false, true}, NULL, NULL},
	{team_open, intra_run, team_meet, team_close, NULL, {false, true}, push, pull}};
static const struct perf_level_ops hier_ops[2] = {
	{team_open, hier_run, team_meet, team_close, hier_fresh, {false, true}, NULL, NULL},
	{team_open, gpu_hier_run, team_meet, team_close, hier_fresh, {false, true}, push, pull}};

static void *team_main(void *context)
{
	struct perf_rank *k = context;
	int rc = perf_rank_run(k);

	if (rc && k->error.message[0]) {
		k->shared->failed = 1;
		snprintf(k->shared->error[k->rank], sizeof(k->shared->error[0]), "%s",
			 k->error.message);
	}
	return NULL;
}

static int start(struct perf_rank *k, uint32_t threads)
{
	pthread_t thread[PERF_RANKS];
	uint32_t n;

	for (n = 0; n < threads; n++)
		if (pthread_create(&thread[n], NULL, team_main, &k[n]))
			break;
	/* the others would wait at the barrier for ever */
	if (n < threads)
		return -EAGAIN;
	for (n = 0; n < threads; n++)
		pthread_join(thread[n], NULL);
	return 0;
}

/* base: of the process; hier: base.rank is the host, and base speaks to the others. */
int perf_team_run(const struct perf_options *o, struct perf_rank base, bool hier)
{
	struct perf_team team = {.n = o->threads * o->per_thread};
	struct perf_rank *k = calloc(o->threads, sizeof(*k));
	int rc = k ? 0 : -ENOMEM;

	pthread_barrier_init(&team.barrier, NULL, o->threads);
	team.host = hier ? &base : NULL;
	for (uint32_t r = 0; r < team.n && !rc; r++) {
		/* the first is what the host sends */
		team.arena[r] =
			hier && !r ? base.in : aligned_alloc(64, (o->max_bytes + 127) / 64 * 64);
		if (!team.arena[r])
			rc = -ENOMEM;
	}
	for (uint32_t r = 0; r < o->threads && !rc; r++) {
		k[r] = base;
		k[r].rank = (hier ? base.rank * o->threads : 0) + r;
		k[r].hosts = hier ? o->hosts : 1;
		k[r].ranks = k[r].hosts * o->threads;
		k[r].per_host = team.n;
		k[r].mine = o->per_thread;
		k[r].speaker = !r;
		k[r].own = &team.arena[r * o->per_thread];
		k[r].team = &team;
		k[r].ops = hier ? &hier_ops[o->gpus] : &intra_ops[o->gpus];
	}
	if (!rc && o->gpus)
		rc = gpu_arenas(&team, o);
	if (!rc)
		rc = start(k, o->threads);
	for (uint32_t r = 0; r < team.n; r++)
		if (team.gpu[r])
			merge_device_release(NULL, team.gpu[r]);
	for (uint32_t r = hier; r < team.n; r++)
		free(team.arena[r]);
	pthread_barrier_destroy(&team.barrier);
	free(k);
	return rc		       ? rc
	       : atomic_load(&team.rc) ? atomic_load(&team.rc)
	       : base.shared->failed   ? -EIO
				       : 0;
}

int perf_start(const struct perf_options *o, struct perf_shared *shared,
	       void (*row)(void *context, struct perf_row *row), void *context)
{
	struct perf_rank k = {.o = o, .shared = shared, .row = row, .context = context};

	return o->level == PERF_INTRA ? perf_team_run(o, k, false) : perf_hosts_start(o, k);
}
