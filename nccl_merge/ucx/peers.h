/* SPDX-License-Identifier: MIT */
/*
 * peers.h: the inside of the UCX back end, shared by open.c (context, worker, endpoints) and
 * round.c (messages). The thread that merges works here; between rounds the control thread does,
 * while a flush is owed. Who works here holds `use`.
 */
#ifndef MERGE_UCX_PEERS_H
#define MERGE_UCX_PEERS_H

#include <pthread.h>
#include <stdatomic.h>
#include "lib.h"

#define UCX_FRAME (512u << 10) /* payload of a message */
#define UCX_WINDOW 4	       /* messages on their way to or from one peer */

/* A frame is two messages: header and tag as on a TCP stream, then the payload where it belongs. */
struct ucx_head {
	struct tcp_header header;
	uint8_t tag[TCP_TAG];
};

struct ucx_slot {
	struct ucx_head head;
	void *head_request, *body_request; /* NULL: complete */
	void *payload;
	size_t length;
};

struct ucx_lane {
	struct ucx_slot slot[UCX_WINDOW];
	uint32_t first, n; /* slots in use */
	uint64_t seq;	   /* of the next frame, part of its tag */
	size_t posted;	   /* bytes of the exchange at hand */
};

struct ucx_peer {
	ucp_ep_h ep;
	struct ucx *ucx;
	ucs_status_t status; /* what the error handler was told, UCS_OK: nothing */
	struct ucx_lane out, in;
};

struct ucx {
	struct ucx_lib lib;
	ucp_context_h context;
	ucp_worker_h worker;
	int efd;	     /* of the worker; it owns it */
	pthread_mutex_t use; /* the control thread only tries it */
	void *flush;	     /* request of a flush under way */
	atomic_bool owed;    /* the last round left a flush behind */
	bool more;	     /* and another is due when it is over */
	double owed_since;
	bool has_worker;		       /* worker and endpoints are there */
	struct ucx_peer peer[MERGE_HOSTS_MAX]; /* by identity */
};

/* By force; buffers of the caller are not touched any more when this returns. Holding `use`. */
void ucx_break(struct ucx *u);
/* Drives the library once; true: no flush is owed (any more). Holding `use`. */
bool ucx_flushed(struct ucx *u);
/* A round whose peers may be quiet for so many seconds. */
int ucx_round_within(struct tcp_net *t, struct merge_round *round, double quiet,
		     struct merge_error *error);

#endif
