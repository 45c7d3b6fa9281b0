/* SPDX-License-Identifier: MIT */
/*
 * vote.h: the leader's decision after a fault: who goes on. Pure: knows the members' last signs of
 * life and what they ask, not sockets nor clocks.
 *
 * A fault of the mesh makes every member ask, as soon as it wants something of the others: at once
 * when it waits in a merge, else when its local steps are done. So the leader waits for those that
 * live, as long as `patience_ms`, and VOTE_GRACE_MS for one that others say is lost. Whoever has
 * not asked by then, is gone or is silent is no member any more. Members that all live and blame
 * each other mesh once more, unless one had been silent to the other; if the same pair fails again,
 * the one with more accusers leaves, of two the higher rank. As soon as fewer than `need` can be
 * left, the job ends.
 */
#ifndef CNND_VOTE_H
#define CNND_VOTE_H

#include "wire.h"

#define VOTE_SILENT_MS CTL_SILENCE_MS
#define VOTE_DOUBT_MS 2500u /* silence that makes an accused host lost */
#define VOTE_GRACE_MS 3000u
#define VOTE_AGAIN_MS 20000u /* a second fault so soon may be the first one again */

struct vote_host {
	bool member;	   /* of the present epoch */
	bool gone;	   /* its process or its job has ended */
	bool left;	   /* gone, ended by its owner: missed only when somebody asks */
	bool linked;	   /* its link stands */
	bool ready;	   /* it has come through APPLY */
	uint64_t heard_ms; /* its last sign of life */
	bool asks;
	bool sure;		  /* whom it blames was silent for too long */
	uint8_t lost[WIRE_SET];	  /* whom it blames now, */
	uint8_t before[WIRE_SET]; /* and whom it blamed before the last decision */
};

struct vote {
	uint32_t hosts, need;
	uint64_t patience_ms;
	uint64_t asked_ms;   /* when the first one asked, 0: nobody */
	uint64_t decided_ms; /* the last decision, 0: none */
	struct vote_host host[CTL_HOSTS_MAX];
};

enum vote_result {
	VOTE_WAIT = 0,
	VOTE_GO, /* with the members in set */
	VOTE_END /* fewer than `need` are left */
};

/* *blamed: a host that is not among the members any more, WIRE_NO_HOST: none. *left: members. */
enum vote_result vote_decide(const struct vote *v, uint64_t now, uint8_t set[WIRE_SET],
			     uint32_t *left, uint32_t *blamed);
/* After VOTE_GO: the members are those in set, nobody asks any more. */
void vote_settle(struct vote *v, const uint8_t set[WIRE_SET], uint64_t now);
bool vote_silent(const struct vote *v, uint32_t host, uint64_t now);

#endif
