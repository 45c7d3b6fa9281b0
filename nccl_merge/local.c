/* SPDX-License-Identifier: MIT */
/*
 * local.c: a net of n threads in one process. A round posts pointers, meets the others, copies, and
 * meets them again. It is what unit tests run the merge functions on.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "internal.h"

#define LOCAL_SECONDS 60

struct group {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint32_t n, open, arrived;
	uint64_t generation;
	bool broken;
	struct merge_round *posted[MERGE_HOSTS_MAX];
};

struct local {
	struct merge_net net;
	struct group *group;
};

static int meet(struct group *g)
{
	struct timespec until;
	uint64_t mine;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOCAL_SECONDS;
	pthread_mutex_lock(&g->lock);
	mine = g->generation;
	if (++g->arrived == g->n) {
		g->arrived = 0;
		g->generation++;
		pthread_cond_broadcast(&g->turn);
	}
	while (!rc && !g->broken && g->generation == mine)
		rc = pthread_cond_timedwait(&g->turn, &g->lock, &until);
	if (g->generation == mine) {
		g->broken = true;
		pthread_cond_broadcast(&g->turn);
	}
	rc = g->generation == mine ? -ETIMEDOUT : 0;
	pthread_mutex_unlock(&g->lock);
	return rc;
}

static void copy_second(struct group *g, uint32_t rank, struct merge_round *round)
{
	for (uint32_t i = 0; i < round->n; i++) {
		struct merge_xfer *x = &round->x[i];
		const struct merge_round *other = g->posted[x->peer];

		for (uint32_t k = 0; k < other->n; k++)
			if (other->x[k].peer == rank && x->recv2_len)
				memcpy(x->recv2, other->x[k].send2, x->recv2_len);
	}
}

static const struct merge_xfer *partner(const struct merge_round *other, uint32_t rank, bool sends)
{
	for (uint32_t i = 0; i < other->n; i++)
		if (other->x[i].peer == rank &&
		    (sends ? other->x[i].send_len : other->x[i].recv_len))
			return &other->x[i];
	return NULL;
}

static int local_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	struct group *g = ((struct local *)net)->group;
	int rc;

	g->posted[net->rank] = round;
	if (meet(g))
		return merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST,
				  "a thread did not come to the %s", round->what);
	for (uint32_t i = 0; i < round->n; i++) {
		struct merge_xfer *x = &round->x[i];
		const struct merge_xfer *from = partner(g->posted[x->peer], net->rank, true);

		if (!x->recv_len)
			continue;
		if (!from || from->send_len != x->recv_len) {
			rc = merge_fail(error, -EPROTO, x->peer,
					"rank %u sends %zu bytes, wanted are %zu", x->peer,
					from ? from->send_len : 0, x->recv_len);
			pthread_mutex_lock(&g->lock);
			g->broken = true;
			pthread_cond_broadcast(&g->turn);
			pthread_mutex_unlock(&g->lock);
			return rc;
		}
		memcpy(x->recv, from->send, x->recv_len);
		x->received = x->recv_len;
	}
	for (uint32_t i = 0; i < round->n; i++)
		net->sent += round->x[i].send_len + round->x[i].send2_len;
	if (round->progress)
		round->progress(round->context);
	if (round->two_parts) {
		if (meet(g))
			return merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST,
					  "a thread did not come to the second part of the %s",
					  round->what);
		copy_second(g, net->rank, round);
	}
	if (meet(g))
		return merge_fail(error, -ETIMEDOUT, MERGE_NO_HOST, "a thread did not end the %s",
				  round->what);
	return 0;
}

static int local_recover(struct merge_net *net, struct merge_error *error)
{
	return merge_fail(error, -ENOTSUP, MERGE_NO_HOST, "threads of one process do not recover");
}

static void local_close(struct merge_net *net)
{
	struct group *g = ((struct local *)net)->group;
	bool last;

	pthread_mutex_lock(&g->lock);
	last = --g->open == 0;
	pthread_mutex_unlock(&g->lock);
	if (last) {
		pthread_cond_destroy(&g->turn);
		pthread_mutex_destroy(&g->lock);
		free(g);
	}
	free(net);
}

static const struct merge_net_ops local_ops = {local_round, local_recover, local_close};

int merge_local_open(uint32_t n, struct merge_net *out[], struct merge_error *error)
{
	struct local *l[MERGE_HOSTS_MAX] = {NULL};
	pthread_condattr_t attr;
	struct group *g;

	if (!n || n > MERGE_HOSTS_MAX)
		return merge_fail(error, -EINVAL, MERGE_NO_HOST, "%u ranks, allowed are 1 to %u", n,
				  MERGE_HOSTS_MAX);
	g = calloc(1, sizeof(*g));
	for (uint32_t i = 0; g && i < n; i++) {
		l[i] = calloc(1, sizeof(*l[i]));
		if (l[i])
			continue;
		while (i--)
			free(l[i]);
		free(g);
		g = NULL;
	}
	if (!g)
		return merge_fail(error, -ENOMEM, MERGE_NO_HOST, "no memory for %u ranks", n);
	pthread_mutex_init(&g->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&g->turn, &attr);
	pthread_condattr_destroy(&attr);
	g->n = g->open = n;
	for (uint32_t i = 0; i < n; i++) {
		l[i]->net = (struct merge_net){.ops = &local_ops, .rank = i, .size = n, .epoch = 1};
		l[i]->group = g;
		out[i] = &l[i]->net;
	}
	return 0;
}
