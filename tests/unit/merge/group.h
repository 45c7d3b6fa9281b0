/* SPDX-License-Identifier: MIT */
/*
 * group.h: runs one function on n threads, each a rank of a net in this process, and a small table
 * of tensors. Tests judge on the main thread, after all have ended.
 */
#ifndef GROUP_H
#define GROUP_H

#include <pthread.h>
#include <errno.h>
#include <stdint.h>
#include <time.h>
#include "../../../nccl_merge/merge.h"
#include "../../tap.h"

enum group_kind { GROUP_LOCAL, GROUP_TCP, GROUP_UCX, GROUP_KINDS };

static inline const char *group_name(enum group_kind kind)
{
	return kind == GROUP_LOCAL ? "threads" : kind == GROUP_TCP ? "TCP" : "UCX";
}

/* false, with a skip that says why: this kind cannot be had here */
static inline bool group_has(enum group_kind kind)
{
	struct merge_tcp_config c = {
		.listen = "127.0.0.1", .transport = MERGE_TRANSPORT_UCX, .ucx_tls = "tcp,self"};
	struct merge_net *net = NULL;
	struct merge_error e;
	int rc = kind == GROUP_UCX ? merge_tcp_open(&c, &net, &e) : 0;

	merge_net_close(net);
	if (rc == -ENOTSUP)
		printf("ok %d - the same over UCX # SKIP no UCX: %s\n", ++tap_count, e.message);
	else if (rc)
		BAIL("%s", e.message);
	return !rc;
}

struct rank {
	struct merge_net *net;
	uint32_t r, n;
	void *arg;
	struct merge_error error;
	int rc;
	void (*run)(struct rank *);
	const struct merge_host *list; /* of a TCP net, to be connected */
};

static inline void *group_thread(void *p)
{
	struct rank *k = p;
	struct timespec nap = {0, 20000000};
	uint32_t met[MERGE_HOSTS_MAX];

	if (k->list)
		k->rc = merge_tcp_connect(k->net, k->list, k->n, 1, &k->error);
	/* nobody makes a fault while others still mesh */
	if (!k->rc && k->list)
		k->rc = merge_all_gather(k->net, &k->r, sizeof(k->r), met, &k->error);
	if (k->list)
		nanosleep(&nap, NULL);
	if (!k->rc)
		k->run(k);
	merge_net_close(k->net);
	return NULL;
}

/* Meshes over loopback; what of config is given beyond the usual holds for all. */
static inline void group_open(uint32_t n, const struct merge_tcp_config *config,
			      struct merge_net *net[], struct merge_host *list)
{
	for (uint32_t i = 0; i < n; i++) {
		struct merge_tcp_config c = *config;
		struct merge_error e;

		c.listen = "127.0.0.1";
		c.self = i;
		memset(c.secret, 7, sizeof(c.secret));
		if (merge_tcp_open(&c, &net[i], &e))
			BAIL("%s", e.message);
		list[i] =
			(struct merge_host){.address = "127.0.0.1", .port = merge_tcp_port(net[i])};
		snprintf(list[i].name, sizeof(list[i].name), "alpha%u", i);
	}
}

/* The first error of a rank, or 0. */
static inline int group_run_on(enum group_kind kind, uint32_t n, void (*run)(struct rank *),
			       void *arg)
{
	struct merge_tcp_config usual = {.transport = kind == GROUP_UCX ? MERGE_TRANSPORT_UCX
									: MERGE_TRANSPORT_TCP,
					 .ucx_tls = "tcp,self"};
	struct merge_net *net[MERGE_HOSTS_MAX];
	struct merge_host list[MERGE_HOSTS_MAX];
	struct rank k[MERGE_HOSTS_MAX];
	pthread_t t[MERGE_HOSTS_MAX];
	int rc = 0;

	if (kind != GROUP_LOCAL)
		group_open(n, &usual, net, list);
	else if (merge_local_open(n, net, NULL))
		BAIL("no group of %u", n);
	for (uint32_t i = 0; i < n; i++) {
		k[i] = (struct rank){.net = net[i], .r = i, .n = n, .arg = arg, .run = run};
		k[i].list = kind == GROUP_LOCAL ? NULL : list;
		if (pthread_create(&t[i], NULL, group_thread, &k[i]))
			BAIL("no thread");
	}
	for (uint32_t i = 0; i < n; i++) {
		pthread_join(t[i], NULL);
		if (k[i].rc && !rc) {
			rc = k[i].rc;
			printf("# rank %u: %s\n", i, k[i].error.message);
		}
	}
	return rc;
}

static inline int group_run(uint32_t n, void (*run)(struct rank *), void *arg)
{
	return group_run_on(GROUP_LOCAL, n, run, arg);
}

static inline struct merge_table one_tensor(struct merge_tensor *t, uint64_t count)
{
	*t = (struct merge_tensor){.name = "w", .count = count};
	return (struct merge_table){.tensor = t, .n = 1, .param_floats = count};
}

/* A generator of the test's own: splitmix64, and a sum of uniforms that is normal enough. */
static inline double uniform(uint64_t *s)
{
	uint64_t z = *s += 0x9e3779b97f4a7c15u;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static inline double normal(uint64_t *s)
{
	double sum = -6;

	for (int i = 0; i < 12; i++)
		sum += uniform(s);
	return sum;
}

#endif
