/* SPDX-License-Identifier: MIT */
/*
 * team.h: the replicas of a host on threads of their own, one for each device. The thread of the
 * training gives all of them the same order and waits until all are back; between two orders they
 * rest, and it may use their nets. Nothing is allocated after team_open.
 *
 * The first fault ends the all-reduce for all, so that nobody waits for a replica that does not
 * come; after it the team is of no more use.
 */
#ifndef TRAIN_TEAM_H
#define TRAIN_TEAM_H

#include "internal.h"

#define TEAM_GRADIENT 1u /* of the rows of this step */
#define TEAM_SUM 2u	 /* over the replicas; keep: to the host arena of replica 0 only */
#define TEAM_TAKE 4u	 /* the gradient becomes what is in that arena */
#define TEAM_APPLY 8u
#define TEAM_ROWS 16u	 /* devices keep the rows x[0 .. n) */
#define TEAM_COMPILE 32u /* makes the net with *options, where there is none */
#define TEAM_PUT 64u	 /* host arenas `arenas` to the devices */

struct team_order {
	uint32_t what; /* TEAM_*, done in this order */
	bool accumulate, keep;
	float scale;
	double lr;
	uint64_t t;
	const void *const *x;
	uint32_t n;
	const struct backend_net_options *options;
	uint32_t arenas;   /* 1 << enum backend_arena */
	uint32_t patience; /* timeouts of a device that it may take; 0: 4 */
};

/* Of one replica: what it gets, and what came of it. */
struct team_part {
	struct batch_part rows;
	struct backend_sums sums;
	struct backend_applied applied;
	bool kept; /* TEAM_ROWS: they fit */
};

int train_team_open(struct train *train, struct err *err);
/* Joins the threads; the nets are still there. */
void train_team_close(struct train *train);
/* The replica's, while the team rests. */
struct team_part *train_team_part(struct train *train, uint32_t k);
/* Every start is followed by a wait. */
void train_team_start(struct train *train, const struct team_order *order);
/*
 * Until all are back, a cancel or the deadline. The error is that of the replica where it began,
 * and names its device.
 */
int train_team_wait(struct train *train, struct err *err);
int train_team_run(struct train *train, const struct team_order *order, struct err *err);
/* After a fault: the nets are not to be used, only freed. */
bool train_team_broken(const struct train *train);

#endif
