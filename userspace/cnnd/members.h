/* SPDX-License-Identifier: MIT */
/*
 * members.h: the membership of jobs on several hosts: one thread with one epoll set for the links
 * of all jobs, those that this daemon leads (lead.c) and those where it is a member (link.c). The
 * thread accepts, dials, greets, sends a heartbeat each second and keeps the deadlines; lead.c and
 * link.c decide what a frame, an end or a silence means.
 *
 * daemon.lock guards everything here; sockets do not block. Connections are closed by the thread
 * alone, after its batch of events.
 */
#ifndef CNND_MEMBERS_H
#define CNND_MEMBERS_H

#include "daemon.h"
#include "wire.h"

#define MEMBERS_BEAT_MS 1000u
#define MEMBERS_GREET_MS 5000u /* for a greeting, and for the first link of a job */
#define MEMBERS_PENDING 16u    /* unauthenticated connections */

struct members;
struct lead;
struct link;
struct lead_member;

struct member_conn {
	LIST_ENTRY(member_conn) link;
	int fd;
	bool dialing; /* connect() is in progress */
	bool dead;    /* the thread closes and frees it */
	uint64_t born_ms, beat_ms;
	struct wire wire;
	struct link *mine;	    /* member's side; NULL: the job has let go */
	struct lead *lead;	    /* leader's side, once the greeting is done */
	struct lead_member *member; /* leader's side, once the greeting is done */
};

struct members {
	struct daemon *daemon;
	pthread_t thread;
	bool quit;
	int epoll_fd, wake_fd, listen_fd;
	char address[CONF_ADDRESS + 8]; /* 'address port' of the listener */
	uint64_t ticked_ms;
	unsigned int n_pending, n_leads, n_links;
	uint64_t refused; /* greetings that failed */
	LIST_HEAD(, member_conn) conns;
	LIST_HEAD(, lead) leads;
	LIST_HEAD(, link) links;
};

int members_create(struct daemon *d, struct members **out);
/* No job and no lead is left. */
void members_free(struct members *m);

/* ---- daemon.lock held ---- */

/* The listener stands while there is a lead. */
int members_listen(struct members *m, struct err *err);
void members_unlisten(struct members *m);
/* Begins to dial; NULL with err. */
struct member_conn *members_dial(struct members *m, struct link *link, const char *address,
				 uint16_t port, struct err *err);
/* Sends a frame; a connection that does not take it is dead. */
void members_send(struct members *m, struct member_conn *c, const struct wire_frame *frame);
/* The thread will close it; what was sent goes out before. */
void members_drop(struct members *m, struct member_conn *c);
void members_wake(struct members *m);
/* 'address port', numeric. False: malformed. */
bool members_address(struct ctl_str text, char address[CONF_ADDRESS], uint16_t *port);

#endif
