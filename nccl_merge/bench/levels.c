/* SPDX-License-Identifier: MIT */
/*
 * levels.c: how ranks are made and what one operation is: threads with the all-reduce of replicas,
 * or processes, each in its network namespace, with the TCP mesh.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "perf.h"

/* ---- inter -------------------------------------------------------------------------------------
 */

static int inter_open(struct perf_rank *k)
{
	struct merge_config c;
	int rc;

	if (!k->o->merge)
		return 0;
	rc = merge_preset(k->o->merge, k->ranks, &c, &k->error);
	if (rc)
		return rc;
	c.wire = k->o->wire;
	k->tensor = (struct merge_tensor){.name = "arena", .count = k->count};
	k->table = (struct merge_table){.tensor = &k->tensor, .n = 1, .param_floats = k->count};
	rc = merge_open(&c, &k->table, k->ranks, &k->merge, &k->error);
	if (!rc)
		merge_start(k->merge, k->in);
	return rc;
}

static int inter_run(struct perf_rank *k, bool in_place)
{
	struct merge_arenas a = {.param = k->in, .grad = k->in};

	if (k->merge)
		return merge_run(k->merge, k->net, &a, 1, .1, 0, NULL, &k->error);
	return merge_all_reduce(k->net, k->in, in_place ? k->in : k->out, k->count, k->o->op,
				&k->error);
}

static int inter_meet(struct perf_rank *k)
{
	uint8_t mine = 1, all[PERF_RANKS];

	return merge_all_gather(k->net, &mine, 1, all, &k->error);
}

static void inter_close(struct perf_rank *k)
{
	merge_close(k->merge);
	k->merge = NULL;
}

static const struct perf_level_ops inter_ops = {
	inter_open, inter_run, inter_meet, inter_close, {true, true}};
/* a merge works on the arena where it lies */
static const struct perf_level_ops merge_ops = {
	inter_open, inter_run, inter_meet, inter_close, {false, true}};

static bool item(const char *list, uint32_t i, char *out, size_t size)
{
	size_t n;

	while (i-- && list)
		list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
	n = list ? strcspn(list, ",") : 0;
	if (!n || n >= size)
		return false;
	memcpy(out, list, n);
	out[n] = 0;
	return true;
}

static int enter(struct perf_rank *k)
{
	char name[64], path[128];
	int fd;

	if (!k->o->netns)
		return 0;
	if (!item(k->o->netns, k->rank, name, sizeof(name)) || strchr(name, '/'))
		return -EINVAL;
	snprintf(path, sizeof(path), "/run/netns/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET))
		return -errno;
	close(fd);
	return 0;
}

static int mesh(struct perf_rank *k)
{
	struct merge_host list[PERF_RANKS] = {0};
	struct timespec nap = {0, 5000000};
	struct merge_tcp_config c = {.self = k->rank,
				     .no_mac = k->o->no_mac,
				     .ring_from = k->o->ring_from,
				     .merge_timeout_ms = k->o->timeout * 1000};
	int rc;

	for (uint32_t r = 0; r < k->ranks; r++) {
		snprintf(list[r].name, sizeof(list[r].name), "rank%u", r);
		snprintf(list[r].address, sizeof(list[r].address), "127.0.0.1");
		if (k->o->address &&
		    !item(k->o->address, r, list[r].address, sizeof(list[r].address))) {
			snprintf(k->error.message, sizeof(k->error.message),
				 "no address of rank %u", r);
			return -EINVAL;
		}
	}
	c.listen = list[k->rank].address;
	/* one secret per run: the ranks are children of one process */
	memset(c.secret, 1, sizeof(c.secret));
	rc = merge_tcp_open(&c, &k->net, &k->error);
	if (rc)
		return rc;
	k->shared->port[k->rank] = merge_tcp_port(k->net);
	for (uint32_t r = 0, tries = 0; r < k->ranks; tries++) {
		if (k->shared->failed || tries > 2000)
			return -ECONNABORTED;
		list[r].port = (uint16_t)k->shared->port[r];
		if (list[r].port)
			r++;
		else
			nanosleep(&nap, NULL);
	}
	return merge_tcp_connect(k->net, list, k->ranks, 1, &k->error);
}

static int inter_rank(struct perf_rank *k)
{
	int rc = enter(k);

	if (rc)
		snprintf(k->error.message, sizeof(k->error.message), "network namespace: %s",
			 strerror(-rc));
	k->in = aligned_alloc(64, (k->o->max_bytes + 127) / 64 * 64);
	k->out = aligned_alloc(64, (k->o->max_bytes + 127) / 64 * 64);
	if (!rc && (!k->in || !k->out))
		rc = -ENOMEM;
	if (!rc)
		rc = mesh(k);
	k->own = &k->in;
	if (!rc)
		rc = perf_rank_run(k);
	if (rc) {
		k->shared->failed = 1;
		snprintf(k->shared->error[k->rank], sizeof(k->shared->error[0]), "%s",
			 k->error.message[0] ? k->error.message : strerror(-rc));
	}
	merge_net_close(k->net);
	free(k->in);
	free(k->out);
	return rc;
}

static int start_inter(const struct perf_options *o, struct perf_rank k)
{
	pid_t pid[PERF_RANKS] = {0};
	int rc, status;

	k.ranks = k.replicas = o->hosts;
	k.mine = 1;
	k.ops = o->merge ? &merge_ops : &inter_ops;
	fflush(stdout);
	for (uint32_t r = 1; r < k.ranks; r++) {
		pid[r] = fork();
		if (pid[r] < 0)
			return -errno;
		if (pid[r])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		k.rank = r;
		_exit(inter_rank(&k) ? 1 : 0);
	}
	rc = inter_rank(&k);
	for (uint32_t r = 1; r < k.ranks; r++) {
		if (waitpid(pid[r], &status, 0) == pid[r] && status && !rc)
			rc = -EIO;
	}
	return rc;
}

/* ---- intra -------------------------------------------------------------------------------------
 */

struct perf_team {
	pthread_barrier_t barrier;
	float *arena[PERF_RANKS];
	struct merge_intra *intra;
};

static int intra_meet(struct perf_rank *k)
{
	pthread_barrier_wait(&k->team->barrier);
	return 0;
}

static int intra_open(struct perf_rank *k)
{
	struct merge_intra_config c = {.replicas = k->replicas,
				       .arena = k->team->arena,
				       .floats = k->count,
				       .timeout_ms = k->o->timeout * 1000};

	if (k->rank == 0 && merge_intra_open(&c, &k->team->intra, &k->error))
		k->team->intra = NULL;
	intra_meet(k);
	return k->team->intra ? 0 : -ENOMEM;
}

/* Sixteen buckets, as a backward pass announces them; a thread stands for `mine` replicas. */
static int intra_run(struct perf_rank *k, bool in_place)
{
	uint64_t piece = k->count / 16 > 4096 ? k->count / 16 : 4096;
	uint32_t first = k->rank * k->mine;
	int rc = 0;

	for (uint64_t at = 0; at < k->count; at += piece)
		for (uint32_t j = 0; j < k->mine && !rc; j++)
			rc = merge_intra_bucket(k->team->intra, first + j, at,
						k->count - at < piece ? k->count - at : piece,
						&k->error);
	for (uint32_t j = 0; j < k->mine && !rc; j++)
		rc = merge_intra_wait(k->team->intra, first + j, &k->error);
	return rc;
}

static void intra_close(struct perf_rank *k)
{
	intra_meet(k);
	if (k->rank)
		return;
	merge_intra_close(k->team->intra);
	k->team->intra = NULL;
}

static const struct perf_level_ops intra_ops = {
	intra_open, intra_run, intra_meet, intra_close, {false, true}};

static void *intra_main(void *context)
{
	struct perf_rank *k = context;

	/* one that fails ends the others by its abort: they wait in the all-reduce, not here */
	if (perf_rank_run(k)) {
		k->shared->failed = 1;
		snprintf(k->shared->error[k->rank], sizeof(k->shared->error[0]), "%s",
			 k->error.message[0] ? k->error.message : "out of memory");
	}
	return NULL;
}

static int start_intra(const struct perf_options *o, struct perf_rank base)
{
	static struct perf_rank k[PERF_RANKS];
	struct perf_team team = {.intra = NULL};
	pthread_t thread[PERF_RANKS];
	uint32_t n = o->threads * o->per_thread;

	pthread_barrier_init(&team.barrier, NULL, o->threads);
	for (uint32_t r = 0; r < n; r++) {
		team.arena[r] = aligned_alloc(64, (o->max_bytes + 127) / 64 * 64);
		if (!team.arena[r])
			return -ENOMEM;
	}
	for (uint32_t r = 0; r < o->threads; r++) {
		k[r] = base;
		k[r].rank = r;
		k[r].ranks = o->threads;
		k[r].replicas = n;
		k[r].mine = o->per_thread;
		k[r].own = &team.arena[r * o->per_thread];
		k[r].team = &team;
		k[r].ops = &intra_ops;
		if (pthread_create(&thread[r], NULL, intra_main, &k[r]))
			return -EAGAIN;
	}
	for (uint32_t r = 0; r < o->threads; r++)
		pthread_join(thread[r], NULL);
	for (uint32_t r = 0; r < n; r++)
		free(team.arena[r]);
	pthread_barrier_destroy(&team.barrier);
	return base.shared->failed ? -EIO : 0;
}

int perf_start(const struct perf_options *o, struct perf_shared *shared,
	       void (*row)(void *context, struct perf_row *row), void *context)
{
	struct perf_rank k = {.o = o, .shared = shared, .row = row, .context = context};

	return o->level == PERF_INTRA ? start_intra(o, k) : start_inter(o, k);
}
