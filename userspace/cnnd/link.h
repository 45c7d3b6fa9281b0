/* SPDX-License-Identifier: MIT */
/*
 * link.h: the member's side of a job on several hosts: the link to the job's leader, from BEGIN to
 * the job's end. Its end ends the job at once. While the leader is silent the job makes no step
 * (link_hold); after rejoin_timeout it ends. A member that has lost others asks who goes on, and
 * goes on only as the leader says.
 */
#ifndef CNND_LINK_H
#define CNND_LINK_H

#include "members.h"

enum link_state { LINK_DIALING = 0, LINK_UP, LINK_FAILED };

struct link;

/* ---- a job's own thread, no lock held; every wait ends with the job ---- */

/* Dials the leader ('address port') and waits for the greeting. Once per job. */
int link_open(struct job *job, struct ctl_str leader, struct err *err);
/* This daemon's rank, told to the leader; ready: APPLY is through. */
void link_rank(struct job *job, uint32_t rank, bool ready);
/*
 * The mesh of `epoch` has failed: asks the leader and waits for its word. lost: by rank; silent:
 * they were, for too long. 0 with the new epoch and its members; else the job has ended.
 */
int link_ask(struct job *job, uint32_t epoch, const uint8_t lost[CTL_HOSTS_MAX], uint32_t blamed,
	     bool silent, const char *why, uint32_t *next, uint8_t set[WIRE_SET]);
/* Waits while the leader is silent. */
void link_hold(struct job *job);

/* ---- daemon.lock held ---- */

/* The job has ended: tells the leader why and lets the link go. */
void link_close(struct job *job);
struct link *link_next(const struct link *link);
/* The other members have met a fault and wait until this one asks the leader, too. */
bool link_vote(const struct link *link);
bool link_hello(struct link *link, struct wire *w, uint8_t out[WIRE_HELLO]);
void link_greeted(struct link *link);
/* code: of wire_step. */
void link_refused(struct link *link, int code, const struct err *err);
/* These may end the job, and the link with it. */
void link_frame(struct link *link, const struct wire_frame *f);
void link_conn_ended(struct link *link, int code);
void link_tick(struct link *link, uint64_t now, bool stopped);

#endif
