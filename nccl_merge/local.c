/* SPDX-License-Identifier: MIT */
/*
 * local.c: a net of n threads in one process. A round posts pointers, meets the others, copies, and
 * meets them again. It is what unit tests run the merge functions on.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "internal.h"

#define LOCAL_SECONDS 60

struct group {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint32_t n, open, arrived;
	uint32_t copying; /* threads that may read what others posted */
	uint64_t generation;
	int broken; /* why nobody meets any more, 0: they do */
	uint32_t culprit;
	char text[128];
	struct merge_round *posted[MERGE_HOSTS_MAX];
};

struct local {
	struct merge_net net;
	struct group *group;
};

static void break_locked(struct group *g, int code, uint32_t culprit, const char *text)
{
	if (!g->broken) {
		g->broken = code;
		g->culprit = culprit;
		snprintf(g->text, sizeof(g->text), "%s", text);
	}
	pthread_cond_broadcast(&g->turn);
}

/* A thread that leaves for good takes its posted round along: others must be done with it. */
static int leave_locked(struct group *g, struct merge_error *error)
{
	while (g->copying)
		pthread_cond_wait(&g->turn, &g->lock);
	return merge_fail(error, g->broken, g->culprit, "%s", g->text);
}

/* Until all have come. copied: this thread has read others' posts; copies: it will. */
static int meet(struct group *g, bool copied, bool copies, const char *what,
		struct merge_error *error)
{
	struct timespec until;
	uint64_t mine;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LOCAL_SECONDS;
	pthread_mutex_lock(&g->lock);
	if (copied && !--g->copying && g->broken)
		pthread_cond_broadcast(&g->turn);
	mine = g->generation;
	if (!g->broken && ++g->arrived == g->n) {
		g->arrived = 0;
		g->generation++;
		g->copying = copies ? g->n : 0;
		pthread_cond_broadcast(&g->turn);
	}
	while (!rc && !g->broken && g->generation == mine)
		rc = pthread_cond_timedwait(&g->turn, &g->lock, &until);
	rc = 0;
	if (g->generation == mine) {
		char text[128];

		snprintf(text, sizeof(text), "a thread did not come to the %s", what);
		break_locked(g, -ETIMEDOUT, MERGE_NO_HOST, text);
		rc = leave_locked(g, error);
	}
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
	char text[128];
	int rc;

	g->posted[net->rank] = round;
	rc = meet(g, false, true, round->what, error);
	if (rc)
		return rc;
	for (uint32_t i = 0; i < round->n; i++) {
		struct merge_xfer *x = &round->x[i];
		const struct merge_xfer *from = partner(g->posted[x->peer], net->rank, true);

		if (!x->recv_len)
			continue;
		if (!from || from->send_len != x->recv_len) {
			snprintf(text, sizeof(text), "rank %u sends %zu bytes, wanted are %zu",
				 x->peer, from ? from->send_len : 0, x->recv_len);
			pthread_mutex_lock(&g->lock);
			g->copying--;
			break_locked(g, -EPROTO, x->peer, text);
			rc = leave_locked(g, error);
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
		rc = meet(g, true, true, "second part of a round", error);
		if (rc)
			return rc;
		copy_second(g, net->rank, round);
	}
	return meet(g, true, false, "end of a round", error);
}

static void local_fault(struct merge_net *net, int code, uint32_t rank, const char *text)
{
	struct group *g = ((struct local *)net)->group;
	char line[128];

	snprintf(line, sizeof(line), "rank %u: %.100s", rank, text);
	pthread_mutex_lock(&g->lock);
	break_locked(g, code, rank, line);
	pthread_mutex_unlock(&g->lock);
}

/* The others wait for this one: they are ended with it. */
static void local_abort(struct merge_net *net)
{
	struct group *g = ((struct local *)net)->group;

	pthread_mutex_lock(&g->lock);
	break_locked(g, -ECANCELED, MERGE_NO_HOST, "the merge was ended by another thread");
	g->broken = -ECANCELED;
	pthread_mutex_unlock(&g->lock);
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

static const struct merge_net_ops local_ops = {.round = local_round,
					       .recover = local_recover,
					       .close = local_close,
					       .abort = local_abort,
					       .fault = local_fault};

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
