/* SPDX-License-Identifier: MIT */
/*
 * shaky.h: a net of threads that breaks where a test wants it to: a rank may fail to learn that a
 * round took place, which all others have learnt, or leave for good between two rounds. Whoever
 * waits then, or comes later, fails too, until all that are left have met in recover.
 */
#ifndef TRAIN_SHAKY_H
#define TRAIN_SHAKY_H

#include <time.h>

#include "../../../nccl_merge/internal.h"
#include "group.h"

struct shaky_group {
	pthread_mutex_t lock;
	pthread_cond_t turn;
	uint32_t n, alive, arrived, meeting;
	uint64_t generation, meetings, fault;
	bool gone[GROUP_MAX];
	uint32_t rank[GROUP_MAX]; /* of an identity, after the last recovery */
	uint32_t culprit;
	struct merge_round *posted[GROUP_MAX]; /* by rank */
};

struct shaky {
	struct merge_net net;
	struct shaky_group *g;
	uint32_t self;
	uint64_t rounds, fail_at, seen;
};

static inline void shaky_wait(struct shaky_group *g)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 100;
	if (pthread_cond_timedwait(&g->turn, &g->lock, &until))
		BAIL("the hosts wait for each other in different places");
}

/* False where a fault came instead. With the lock. */
static inline bool shaky_meet(struct shaky *s)
{
	struct shaky_group *g = s->g;
	uint64_t mine = g->generation;

	if (g->fault != s->seen)
		return false;
	if (++g->arrived == g->alive) {
		g->arrived = 0;
		g->generation++;
		pthread_cond_broadcast(&g->turn);
		return true;
	}
	while (g->generation == mine && g->fault == s->seen)
		shaky_wait(g);
	return g->generation != mine;
}

static inline void shaky_copy(struct shaky *s, struct merge_round *round, bool second)
{
	for (uint32_t i = 0; i < round->n; i++) {
		struct merge_xfer *x = &round->x[i];
		const struct merge_round *other = s->g->posted[x->peer];

		for (uint32_t k = 0; k < other->n; k++) {
			if (other->x[k].peer != s->net.rank)
				continue;
			if (second && x->recv2_len)
				memcpy(x->recv2, other->x[k].send2, x->recv2_len);
			if (!second && x->recv_len && other->x[k].send_len) {
				if (other->x[k].send_len != x->recv_len)
					BAIL("%s: %zu bytes, wanted are %zu", round->what,
					     other->x[k].send_len, x->recv_len);
				memcpy(x->recv, other->x[k].send, x->recv_len);
				x->received = x->recv_len;
			}
		}
	}
}

static inline void shaky_fault(struct shaky *s)
{
	s->g->fault++;
	s->g->culprit = s->self;
	s->g->arrived = 0;
	pthread_cond_broadcast(&s->g->turn);
}

static int shaky_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	struct shaky *s = (struct shaky *)net;
	struct shaky_group *g = s->g;
	uint32_t culprit;
	bool good;

	pthread_mutex_lock(&g->lock);
	g->posted[net->rank] = round;
	s->rounds++;
	good = shaky_meet(s);
	pthread_mutex_unlock(&g->lock);
	if (good) {
		shaky_copy(s, round, false);
		for (uint32_t i = 0; i < round->n; i++)
			net->sent += round->x[i].send_len + round->x[i].send2_len;
		if (round->progress)
			round->progress(round->context);
	}
	pthread_mutex_lock(&g->lock);
	/* nobody breaks while others copy: faults come at the end of a round */
	if (good)
		good = shaky_meet(s);
	pthread_mutex_unlock(&g->lock);
	if (good && round->two_parts)
		shaky_copy(s, round, true);
	pthread_mutex_lock(&g->lock);
	if (good)
		good = shaky_meet(s);
	if (good && s->rounds == s->fail_at) {
		shaky_fault(s);
		good = false;
	}
	culprit = g->culprit;
	pthread_mutex_unlock(&g->lock);
	return good ? 0 : merge_fail(error, -ECONNRESET, culprit, "made to fail");
}

/* There was a fault that this host has not heard of. */
static inline bool shaky_broken(struct merge_net *net)
{
	struct shaky *s = (struct shaky *)net;
	bool broken;

	pthread_mutex_lock(&s->g->lock);
	broken = s->g->fault != s->seen;
	pthread_mutex_unlock(&s->g->lock);
	return broken;
}

static int shaky_recover(struct merge_net *net, struct merge_error *error)
{
	struct shaky *s = (struct shaky *)net;
	struct shaky_group *g = s->g;
	uint64_t mine;

	pthread_mutex_lock(&g->lock);
	mine = g->meetings;
	if (++g->meeting == g->alive) {
		uint32_t rank = 0;

		for (uint32_t i = 0; i < g->n; i++)
			g->rank[i] = g->gone[i] ? MERGE_NO_HOST : rank++;
		g->meeting = g->arrived = 0;
		g->meetings++;
		pthread_cond_broadcast(&g->turn);
	}
	while (g->meetings == mine)
		shaky_wait(g);
	s->seen = g->fault;
	net->rank = g->rank[s->self];
	net->size = g->alive;
	net->epoch++;
	pthread_mutex_unlock(&g->lock);
	return 0;
}

/* This rank is gone; called on its thread, between two rounds. */
static inline void shaky_leave(struct merge_net *net)
{
	struct shaky *s = (struct shaky *)net;

	pthread_mutex_lock(&s->g->lock);
	s->g->gone[s->self] = true;
	s->g->alive--;
	shaky_fault(s);
	pthread_mutex_unlock(&s->g->lock);
}

static void shaky_close(struct merge_net *net)
{
	free(net->scratch);
	free(net);
}

static const struct merge_net_ops shaky_ops = {
	.round = shaky_round, .recover = shaky_recover, .close = shaky_close};

static inline void shaky_nets(struct group *g, struct shaky_group *group)
{
	memset(group, 0, sizeof(*group));
	pthread_mutex_init(&group->lock, NULL);
	pthread_cond_init(&group->turn, NULL);
	group->n = group->alive = g->n;
	for (uint32_t i = 0; i < g->n; i++) {
		struct shaky *s = calloc(1, sizeof(*s));

		s->net = (struct merge_net){.ops = &shaky_ops, .rank = i, .size = g->n, .epoch = 1};
		s->g = group;
		s->self = i;
		g->rig[i].net = &s->net;
	}
}

#endif
