/* SPDX-License-Identifier: MIT */
/* lead_state.h: what lead.c (links, decisions) and lead_request.c (LEAD, MEMBERS) share. */
#ifndef CNND_LEAD_STATE_H
#define CNND_LEAD_STATE_H

#include "lead.h"
#include "log.h"
#include "vote.h"

struct lead_member {
	LIST_ENTRY(lead_member) link;
	uint8_t uuid[CTL_ID];
	struct member_conn *conn; /* NULL: its path is cut, or it is gone */
	char address[CONF_ADDRESS];
	uint32_t rank;	 /* WIRE_NO_HOST until APPLY */
	bool gone, left; /* left: ended by its owner */
	uint64_t heard_ms;
	char why[WIRE_TEXT]; /* of its end */
};

struct lead {
	LIST_ENTRY(lead) link;
	struct members *members;
	struct session *session;
	uint8_t job[CTL_ID], secret[CTL_ID], key[WIRE_KEY];
	char role[CNND_NAME];
	LIST_HEAD(, lead_member) list;
	unsigned int n_members;
	uint32_t min_hosts;
	uint32_t epoch;	     /* of the membership; 0 until MEMBERS */
	char why[WIRE_TEXT]; /* of the last decision, and of the fault that is voted on */
	struct vote vote;
	char (*name)[64]; /* by rank */
};

void lead_tag(const struct lead *lead, struct log_tag *tag);
/* The membership to all. */
void lead_beat_all(struct lead *lead);

#endif
