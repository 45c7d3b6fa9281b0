/* SPDX-License-Identifier: MIT */
/*
 * hosts.c: hosts as processes, each in its network namespace if wanted, with a mesh between them,
 * and what one operation of theirs is.
 */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "perf.h"

int perf_host_open(struct perf_rank *k)
{
	struct merge_config c;
	int rc;

	if (!k->o->merge)
		return 0;
	rc = merge_preset(k->o->merge, k->hosts, &c, &k->error);
	if (rc)
		return rc;
	c.wire = k->o->wire;
	k->tensor = (struct merge_tensor){.name = "arena", .count = k->count};
	k->table = (struct merge_table){.tensor = &k->tensor, .n = 1, .param_floats = k->count};
	rc = merge_open(&c, &k->table, k->hosts, &k->merge, &k->error);
	if (!rc)
		merge_start(k->merge, k->in);
	return rc;
}

int perf_host_run(struct perf_rank *k, bool in_place)
{
	struct merge_arenas a = {.param = k->in, .grad = k->in};

	if (k->merge)
		return merge_run(k->merge, k->net, &a, 1, .1, 0, NULL, &k->error);
	return merge_all_reduce(k->net, k->in, in_place ? k->in : k->out, k->count, k->op,
				&k->error);
}

int perf_host_meet(struct perf_rank *k)
{
	uint8_t mine = 1, all[PERF_RANKS];

	return merge_all_gather(k->net, &mine, 1, all, &k->error);
}

void perf_host_close(struct perf_rank *k)
{
	merge_close(k->merge);
	k->merge = NULL;
}

void perf_host_fresh(struct perf_rank *k)
{
	if (!k->merge)
		return;
	memset(k->out, 0, k->count * sizeof(float));
	merge_start(k->merge, k->out);
}

static const struct perf_level_ops inter_ops = {
	perf_host_open,	 perf_host_run, perf_host_meet, perf_host_close,
	perf_host_fresh, {true, true},	NULL,		NULL};
/* a merge works on the arena where it lies */
static const struct perf_level_ops merge_ops = {
	perf_host_open,	 perf_host_run, perf_host_meet, perf_host_close,
	perf_host_fresh, {false, true}, NULL,		NULL};

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

/* Each host its own processor, as hosts have: else how the scheduler places them is measured too.
 */
static int settle_on_cpu(struct perf_rank *k)
{
	uint32_t n = 1;
	char name[16], *end;
	unsigned long cpu;
	cpu_set_t set;

	if (!k->o->cpus)
		return 0;
	for (const char *p = k->o->cpus; *p; p++)
		n += *p == ',';
	if (!item(k->o->cpus, k->rank % n, name, sizeof(name)))
		return -EINVAL;
	cpu = strtoul(name, &end, 10);
	if (*end || cpu >= CPU_SETSIZE)
		return -EINVAL;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

static int mesh(struct perf_rank *k)
{
	struct merge_host list[PERF_RANKS] = {0};
	struct timespec nap = {0, 5000000};
	struct merge_tcp_config c = {.self = k->rank,
				     .no_mac = k->o->no_mac,
				     .ring_from = k->o->ring_from,
				     .transport = k->o->transport,
				     .ucx_tls = k->o->ucx_tls,
				     .ucx_net_devices = k->o->ucx_devices,
				     .merge_timeout_ms = k->o->timeout * 1000};
	int rc;

	for (uint32_t r = 0; r < k->hosts; r++) {
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
	for (uint32_t r = 0, tries = 0; r < k->hosts; tries++) {
		if (k->shared->failed || tries > 2000)
			return -ECONNABORTED;
		list[r].port = (uint16_t)k->shared->port[r];
		if (list[r].port)
			r++;
		else
			nanosleep(&nap, NULL);
	}
	return merge_tcp_connect(k->net, list, k->hosts, 1, &k->error);
}

static int inter_rank(struct perf_rank *k)
{
	int rc = enter(k);

	if (rc)
		snprintf(k->error.message, sizeof(k->error.message), "network namespace: %s",
			 strerror(-rc));
	else if ((rc = settle_on_cpu(k)))
		snprintf(k->error.message, sizeof(k->error.message), "processor of host %u: %s",
			 k->rank, strerror(-rc));
	k->in = aligned_alloc(64, (k->o->max_bytes + 127) / 64 * 64);
	k->out = aligned_alloc(64, (k->o->max_bytes + 127) / 64 * 64);
	if (!rc && (!k->in || !k->out))
		rc = -ENOMEM;
	if (!rc)
		rc = mesh(k);
	k->own = &k->in;
	if (!rc)
		rc = k->o->level == PERF_HIER ? perf_team_run(k->o, *k, true) : perf_rank_run(k);
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

int perf_hosts_start(const struct perf_options *o, struct perf_rank k)
{
	pid_t pid[PERF_RANKS] = {0};
	int rc, status;

	k.ranks = k.hosts = o->hosts;
	k.mine = k.per_host = 1;
	k.speaker = true;
	k.ops = o->merge ? &merge_ops : &inter_ops;
	fflush(stdout);
	for (uint32_t r = 1; r < o->hosts; r++) {
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
	for (uint32_t r = 1; r < o->hosts; r++) {
		if (waitpid(pid[r], &status, 0) == pid[r] && status && !rc)
			rc = -EIO;
	}
	return rc;
}
