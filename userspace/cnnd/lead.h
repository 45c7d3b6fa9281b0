/* SPDX-License-Identifier: MIT */
/*
 * lead.h: the leader's side of a job on several hosts: LEAD makes it, MEMBERS says who takes part,
 * the end of the connection that sent LEAD ends it, and with it the links and the jobs of all
 * members. It alone says who goes on after a fault (vote.h).
 */
#ifndef CNND_LEAD_H
#define CNND_LEAD_H

#include "members.h"
#include "session.h"

/* Requests; main thread, no lock held. */
void lead_request(struct session *s, const struct ctl_msg *msg);
void lead_members(struct session *s, const struct ctl_msg *msg);

/* ---- daemon.lock held ---- */

struct lead *lead_find(const struct members *m, const uint8_t job[CTL_ID]);
struct lead *lead_next(const struct lead *lead);
const uint8_t *lead_secret(const struct lead *lead);
/* Ends the job on all members and forgets it. */
void lead_end(struct lead *lead, enum err_kind kind, const char *why);
/* The connection that sent LEAD is over. */
void lead_session_closed(struct session *s, const char *why);
/* A greeted connection; -EBUSY and the like with err. */
int lead_join(struct lead *lead, struct member_conn *c, const uint8_t uuid[CTL_ID],
	      struct err *err);
void lead_frame(struct lead *lead, struct lead_member *member, const struct wire_frame *f);
void lead_conn_ended(struct lead *lead, struct lead_member *member, int code);
/* stopped: this process itself did not run for a while. */
void lead_tick(struct lead *lead, uint64_t now, bool stopped);

#endif
