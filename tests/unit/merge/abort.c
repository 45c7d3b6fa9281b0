/* SPDX-License-Identifier: MIT */
/*
 * abort.c: merge_net_abort ends every wait, of threads and of the mesh: in a round, while the mesh
 * is built, while others are waited for after a fault, and every wait that comes later.
 */
#include <time.h>
#include <unistd.h>
#include "../../../nccl_merge/internal.h"
#include "group.h"

enum { N = 3, SOON_MS = 1500 };

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void nap(unsigned int ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

struct job {
	int rc[N], again[N], gather[N];
	double took[N];
	struct merge_error error[N];
};

static void *later(void *net)
{
	nap(200);
	merge_net_abort(net);
	merge_net_abort(net);
	return NULL;
}

/* Rank 2 does not come to the all-reduce; rank 0 is aborted while it waits for it. */
static void one_is_late(struct rank *k)
{
	struct job *j = k->arg;
	float x[1000] = {0};
	double begin = now();
	pthread_t t;

	if (k->r == 2) {
		nap(600);
	} else {
		if (k->r == 0)
			pthread_create(&t, NULL, later, k->net);
		j->rc[k->r] = merge_all_reduce(k->net, x, x, 1000, MERGE_OP_SUM, &j->error[k->r]);
		j->took[k->r] = now() - begin;
		if (k->r == 0)
			pthread_join(t, NULL);
	}
	j->again[k->r] = merge_all_reduce(k->net, x, x, 1000, MERGE_OP_SUM, NULL);
	j->gather[k->r] = merge_all_gather(k->net, &begin, sizeof(begin), x, NULL);
}

static void in_a_round(enum group_kind kind)
{
	static struct job j;
	const char *name = group_name(kind);

	j = (struct job){.rc = {0}};
	is(group_run_on(kind, N, one_is_late, &j), 0, name);
	is(j.rc[0], -ECANCELED, "the wait of the one that was aborted");
	ok(j.took[0] < SOON_MS * 1e-3, "%s: ends at once (%.2f s)", name, j.took[0]);
	is(j.again[0], -ECANCELED, "and so does a later one");
	is(j.gather[0], -ECANCELED, "of any kind");
	ok(j.rc[1] < 0 && j.took[1] < SOON_MS * 1e-3, "%s: who waits with it ends too (%.2f s)",
	   name, j.took[1]);
	if (kind != GROUP_LOCAL) {
		like(j.error[1].message, "alpha0", "and is told by whom");
		ok(j.error[1].host == 0, "the host at fault is named");
	}
	ok(j.again[2] < 0, "%s: the late one does not wait", name);
}

/* ---- without the others --------------------------------------------------------------------- */

static void *connect_main(void *p)
{
	struct rank *k = p;

	k->rc = merge_tcp_connect(k->net, k->list, k->n, 1, &k->error);
	return NULL;
}

static void in_a_mesh(void)
{
	static const struct merge_tcp_config usual;
	struct merge_net *net[2];
	struct merge_host list[2];
	struct merge_error e;
	struct rank k = {.n = 2, .list = list};
	double begin = now();
	pthread_t t;

	group_open(2, &usual, net, list);
	k.net = net[1];
	pthread_create(&t, NULL, connect_main, &k);
	nap(200);
	merge_net_abort(net[1]);
	pthread_join(t, NULL);
	is(k.rc, -ECANCELED, "a mesh that is being built");
	ok(now() - begin < SOON_MS * 1e-3, "ends at once");
	merge_net_abort(net[0]);
	is(merge_tcp_connect(net[0], list, 2, 1, &e), -ECANCELED, "one that has not begun");
	merge_net_close(net[0]);
	merge_net_close(net[1]);
	is(merge_local_open(1, net, NULL), 0, "a net of one");
	merge_net_abort(net[0]);
	is(merge_all_gather(net[0], &begin, sizeof(begin), &begin, &e), -ECANCELED,
	   "nobody to wait for, and yet at an end");
	merge_net_close(net[0]);
}

/* ---- in the middle of a recovery ---------------------------------------------------------------
 */

struct middle {
	struct merge_net *net[N];
	struct merge_host list[N];
	bool in_confirm; /* else while the new mesh is built */
	int rc[N], recovered[N], after[N];
	double took;
	bool untouched[N];
};

struct member {
	struct middle *m;
	uint32_t r;
	pthread_mutex_t lock;
	pthread_cond_t change;
	bool told;
};

/* Two members are confirmed, of whom one never comes to the new mesh. */
static int confirm(void *context, uint32_t epoch, const uint8_t *lost,
		   const struct merge_error *why, struct merge_decision *decision)
{
	struct member *b = context;

	if (b->m->in_confirm) {
		pthread_mutex_lock(&b->lock);
		while (!b->told)
			pthread_cond_wait(&b->change, &b->lock);
		pthread_mutex_unlock(&b->lock);
	}
	*decision = (struct merge_decision){.epoch = epoch + 1, .n = 2, .member = {0, 1}};
	return 0;
}

static void *breaker(void *p)
{
	struct member *b = p;

	nap(400);
	merge_net_abort(b->m->net[0]);
	pthread_mutex_lock(&b->lock);
	b->told = true;
	pthread_cond_broadcast(&b->change);
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

static void *member_main(void *p)
{
	struct member *b = p;
	struct middle *m = b->m;
	struct merge_tensor tensor;
	struct merge_table table = one_tensor(&tensor, 5000);
	float x[5000], copy[5000];
	struct merge_arenas a = {.param = x};
	struct merge *merge = NULL;
	struct merge_config c;
	struct merge_error e;
	pthread_t t;

	for (int i = 0; i < 5000; i++)
		x[i] = copy[i] = (float)(i + (int)b->r);
	m->rc[b->r] = merge_tcp_connect(m->net[b->r], m->list, N, 1, &e);
	merge_preset("average", N, &c, NULL);
	if (m->rc[b->r] || merge_open(&c, &table, N, &merge, &e))
		return NULL;
	merge_start(merge, x);
	/* rank 2 leaves in the merge, rank 1 does not come to the recovery */
	if (b->r == 2) {
		nap(200);
		merge_net_abort(m->net[2]);
	}
	m->rc[b->r] = merge_run(merge, m->net[b->r], &a, 1, .1, 0, NULL, &e);
	if (b->r == 0) {
		double begin = now();

		pthread_create(&t, NULL, breaker, b);
		m->recovered[0] = merge_recover(merge, m->net[0], &a, NULL, &e);
		m->took = now() - begin;
		pthread_join(t, NULL);
		m->after[0] = merge_run(merge, m->net[0], &a, 1, .1, 0, NULL, &e);
	}
	m->untouched[b->r] = !memcmp(x, copy, sizeof(x));
	merge_close(merge);
	return NULL;
}

static void in_a_recovery(bool in_confirm, const char *name)
{
	struct middle m = {.in_confirm = in_confirm};
	struct member b[N];
	pthread_t t[N];

	for (uint32_t i = 0; i < N; i++) {
		struct merge_tcp_config c = {.listen = "127.0.0.1",
					     .self = i,
					     .min_hosts = 2,
					     .confirm = confirm,
					     .context = &b[i]};

		b[i] = (struct member){.m = &m, .r = i};
		pthread_mutex_init(&b[i].lock, NULL);
		pthread_cond_init(&b[i].change, NULL);
		if (merge_tcp_open(&c, &m.net[i], NULL))
			BAIL("no mesh");
		m.list[i] = (struct merge_host){.address = "127.0.0.1",
						.port = merge_tcp_port(m.net[i])};
		snprintf(m.list[i].name, sizeof(m.list[i].name), "alpha%u", i);
	}
	for (uint32_t i = 0; i < N; i++)
		pthread_create(&t[i], NULL, member_main, &b[i]);
	for (uint32_t i = 0; i < N; i++)
		pthread_join(t[i], NULL);
	is(m.rc[2], -ECANCELED, name);
	ok(m.rc[0] < 0 && m.rc[1] < 0, "%s: the others' merge fails", name);
	is(m.recovered[0], -ECANCELED, "a recovery that waits ends");
	ok(m.took < SOON_MS * 1e-3, "%s: at once (%.2f s)", name, m.took);
	is(m.after[0], -ECANCELED, "and so does a merge after it");
	ok(m.untouched[0] && m.untouched[1] && m.untouched[2], "%s: nothing was touched", name);
	for (uint32_t i = 0; i < N; i++) {
		merge_net_close(m.net[i]);
		pthread_cond_destroy(&b[i].change);
		pthread_mutex_destroy(&b[i].lock);
	}
}

int main(void)
{
	in_a_round(GROUP_LOCAL);
	in_a_round(GROUP_TCP);
	if (group_has(GROUP_UCX))
		in_a_round(GROUP_UCX);
	in_a_mesh();
	in_a_recovery(true, "while the coordinator is asked");
	in_a_recovery(false, "while the mesh is built");
	return done();
}
