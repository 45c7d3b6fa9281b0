// SPDX-License-Identifier: MIT
/* link.c: see link.h. */
#include "link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "log.h"
#include "work.h"

#define FIRST_REDIAL_MS 50u /* its leader had no place for a greeting */
#define REDIAL_MS 500u

struct link {
	LIST_ENTRY(link) link;
	struct members *members;
	struct job *job;
	struct member_conn *conn; /* NULL: none at present */
	char address[CONF_ADDRESS];
	uint16_t port;
	uint8_t key[WIRE_KEY];
	enum link_state state;
	struct err err; /* FAILED: why; DIALING: of the last try */
	uint64_t born_ms, dialed_ms, heard_ms;
	bool greeted; /* conn's greeting is done */
	uint32_t rank;
	bool ready, silent;
	bool vote; /* the others ask the leader who goes on */

	/* the leader's last word */
	uint32_t epoch;
	uint8_t set[WIRE_SET];
	char why[WIRE_TEXT];

	/* what it is asked */
	bool asking;
	struct wire_frame question;
};

static void tag_of(const struct link *link, struct log_tag *tag)
{
	job_log_tag(link->job, tag, "member");
}

struct link *link_next(const struct link *link)
{
	return LIST_NEXT(link, link);
}

/* ---- sending ---- */

static void send_beat(struct link *link)
{
	struct wire_frame f = {
		.type = WIRE_BEAT, .ready = link->ready, .epoch = link->epoch, .host = link->rank};

	if (link->conn && link->greeted)
		members_send(link->members, link->conn, &f);
}

static void send_question(struct link *link)
{
	if (link->conn && link->greeted && link->asking)
		members_send(link->members, link->conn, &link->question);
}

static void dial(struct link *link)
{
	link->dialed_ms = now_ms();
	link->greeted = false;
	link->conn = members_dial(link->members, link, link->address, link->port, &link->err);
}

bool link_hello(struct link *link, struct wire *w, uint8_t out[WIRE_HELLO])
{
	return wire_dial(w, link->key, link->job->id, link->members->daemon->uuid, out);
}

void link_greeted(struct link *link)
{
	link->greeted = true;
	send_beat(link);
	send_question(link);
}

/* ---- ends ---- */

static void fail(struct link *link, enum err_kind kind, int code, const char *why)
{
	link->state = LINK_FAILED;
	err_set(&link->err, kind, code, "the job's leader at %s port %u: %s", link->address,
		link->port, why);
	pthread_cond_broadcast(&link->job->wake);
}

void link_refused(struct link *link, int code, const struct err *err)
{
	if (link->state == LINK_DIALING)
		fail(link, err->kind, code, err->message);
	else
		job_end(link->job, err->kind, "the job's leader at %s port %u: %s", link->address,
			link->port, err->message);
}

void link_close(struct job *job)
{
	struct link *link = job->uplink;
	struct wire_frame f = {.type = WIRE_BYE, .host = WIRE_NO_HOST};

	if (!link)
		return;
	job->uplink = NULL;
	f.kind = (uint8_t)job->end.kind;
	snprintf(f.text, sizeof(f.text), "%.*s", WIRE_TEXT - 1, job->end.message);
	if (link->conn) {
		if (link->greeted)
			members_send(link->members, link->conn, &f);
		members_drop(link->members, link->conn);
	}
	LIST_REMOVE(link, link);
	link->members->n_links--;
	explicit_bzero(link->key, sizeof(link->key));
	free(link);
}

static bool cut(int code)
{
	return code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH || code == ENETDOWN;
}

void link_conn_ended(struct link *link, int code)
{
	bool greeted = link->greeted;

	link->conn = NULL;
	link->greeted = false;
	if (link->state == LINK_DIALING) {
		if (code == ECONNREFUSED)
			fail(link, ERR_LOST, -code,
			     !strncmp(link->address, "127.", 4) || !strcmp(link->address, "::1")
				     ? "Connection refused; this address is its own host's alone, "
				       "see merge_listen in its cnnd.conf"
				     : strerror(code));
		else
			err_set(&link->err, ERR_LOST, code ? -code : -ECONNRESET, "%s",
				code ? strerror(code) : "it closed the connection");
		return;
	}
	/* a greeting that failed on the way back is tried again, too */
	if (cut(code) || (!greeted && code != ECONNREFUSED))
		return;
	job_end(link->job, ERR_LOST, "lost the daemon that leads the job, at %s port %u: %s",
		link->address, link->port, code ? strerror(code) : "it closed the connection");
}

bool link_vote(const struct link *link)
{
	return link->vote;
}

/* ---- the leader's word ---- */

static void take_membership(struct link *link, const struct wire_frame *f)
{
	if (f->ready && f->epoch == link->epoch && !link->vote) {
		link->vote = true;
		pthread_cond_broadcast(&link->job->wake);
	}
	if (f->epoch <= link->epoch)
		return;
	link->epoch = f->epoch;
	memcpy(link->set, f->set, WIRE_SET);
	memcpy(link->why, f->text, sizeof(link->why));
	link->asking = link->vote = false;
	pthread_cond_broadcast(&link->job->wake);
	if (link->rank != WIRE_NO_HOST && !wire_in(link->set, link->rank))
		job_end(link->job, ERR_LOST, "the others go on without this host: %s", link->why);
}

void link_frame(struct link *link, const struct wire_frame *f)
{
	struct log_tag tag;

	link->heard_ms = now_ms();
	if (link->silent) {
		tag_of(link, &tag);
		log_info(&tag, "the leader is back");
		link->silent = false;
		atomic_store(&link->job->leaderless, false);
		pthread_cond_broadcast(&link->job->wake);
	}
	if (link->state == LINK_DIALING) {
		link->state = LINK_UP;
		pthread_cond_broadcast(&link->job->wake);
	}
	if (f->type == WIRE_END)
		job_end(link->job, f->kind ? (enum err_kind)f->kind : ERR_LOST, "%s", f->text);
	else if (f->type == WIRE_BEAT)
		take_membership(link, f);
}

/* ---- time ---- */

static void redial(struct link *link, uint64_t now)
{
	bool first = link->state == LINK_DIALING;

	if (first && now > link->born_ms + MEMBERS_GREET_MS) {
		char why[128];

		snprintf(why, sizeof(why), "no link within %u s%s%.90s", MEMBERS_GREET_MS / 1000,
			 link->err.kind ? ": " : "", link->err.message);
		fail(link, ERR_LOST, -ETIMEDOUT, why);
	} else if (!link->conn && now >= link->dialed_ms + (first ? FIRST_REDIAL_MS : REDIAL_MS)) {
		dial(link);
	}
}

static void check_silence(struct link *link, uint64_t now)
{
	uint64_t most = (uint64_t)link->members->daemon->conf.rejoin_timeout * 1000;
	struct log_tag tag;

	if (!link->silent && now > link->heard_ms + CTL_SILENCE_MS) {
		link->silent = true;
		atomic_store(&link->job->leaderless, true);
		tag_of(link, &tag);
		log_warn(&tag,
			 "no sign of life of the leader at %s port %u: no step until it is back",
			 link->address, link->port);
	}
	if (now > link->heard_ms + most)
		job_end(link->job, ERR_LOST,
			"no sign of life of the job's leader at %s port %u for rejoin_timeout = "
			"%llu s",
			link->address, link->port, (unsigned long long)most / 1000);
}

void link_tick(struct link *link, uint64_t now, bool stopped)
{
	if (link->state == LINK_FAILED)
		return;
	if (stopped)
		link->heard_ms = now;
	if (link->conn && link->greeted && now >= link->conn->beat_ms + MEMBERS_BEAT_MS)
		send_beat(link);
	if (!link->conn || link->state == LINK_DIALING)
		redial(link, now);
	if (link->state == LINK_UP)
		check_silence(link, now); /* the link's last use: the job may end */
}

/* ---- the job's thread ---- */

static struct link *make(struct job *job, struct ctl_str leader, struct err *err)
{
	struct members *m = job->daemon->members;
	struct link *link = calloc(1, sizeof(*link));

	if (!link) {
		err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a link");
		return NULL;
	}
	if (!members_address(leader, link->address, &link->port)) {
		err_set(err, ERR_PARAM, -EINVAL, "leader '%.*s' is not of the form 'address port'",
			(int)(leader.n < 80 ? leader.n : 80), leader.p);
		free(link);
		return NULL;
	}
	if (!wire_derive(job->secret, WIRE_MEMBER, link->key)) {
		err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
		free(link);
		return NULL;
	}
	link->members = m;
	link->job = job;
	link->rank = WIRE_NO_HOST;
	link->born_ms = link->heard_ms = now_ms();
	return link;
}

int link_open(struct job *job, struct ctl_str leader, struct err *err)
{
	struct daemon *d = job->daemon;
	struct link *link = make(job, leader, err);
	int rc = 0;

	if (!link)
		return -EINVAL;
	pthread_mutex_lock(&d->lock);
	if (job->ended) {
		free(link);
		pthread_mutex_unlock(&d->lock);
		return err_set(err, ERR_CANCELED, -ECANCELED, "the job has ended");
	}
	job->uplink = link;
	LIST_INSERT_HEAD(&d->members->links, link, link);
	d->members->n_links++;
	dial(link);
	members_wake(d->members);
	/* its deadline is the thread's: MEMBERS_GREET_MS */
	while (!job->ended && link->state == LINK_DIALING)
		pthread_cond_wait(&job->wake, &d->lock);
	if (job->ended) {
		rc = err_set(err, ERR_CANCELED, -ECANCELED, "the job has ended");
	} else if (link->state == LINK_FAILED) {
		*err = link->err;
		rc = -EHOSTUNREACH;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

void link_rank(struct job *job, uint32_t rank, bool ready)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	if (job->uplink) {
		job->uplink->rank = rank;
		job->uplink->ready = ready;
		send_beat(job->uplink);
	}
	pthread_mutex_unlock(&d->lock);
}

void link_hold(struct job *job)
{
	struct daemon *d = job->daemon;
	bool held = false;

	pthread_mutex_lock(&d->lock);
	/* its deadline is the thread's: rejoin_timeout ends the job */
	while (!job->ended && job->uplink && job->uplink->silent) {
		if (!held && job->running)
			job->wait = job->running->wait = "the job's leader";
		held = true;
		pthread_cond_wait(&job->wake, &d->lock);
	}
	if (held && job->running)
		job->wait = job->running->wait = "training";
	pthread_mutex_unlock(&d->lock);
}

static void fill_question(struct link *link, uint32_t epoch, const uint8_t lost[CTL_HOSTS_MAX],
			  uint32_t blamed, bool silent, const char *why)
{
	struct wire_frame *q = &link->question;

	memset(q, 0, sizeof(*q));
	q->type = WIRE_ASK;
	q->epoch = epoch;
	q->host = blamed;
	q->silent = silent;
	for (uint32_t i = 0; i < CTL_HOSTS_MAX; i++)
		if (lost[i])
			wire_add(q->set, i);
	snprintf(q->text, sizeof(q->text), "%.*s", WIRE_TEXT - 1, why);
	link->asking = true;
}

int link_ask(struct job *job, uint32_t epoch, const uint8_t lost[CTL_HOSTS_MAX], uint32_t blamed,
	     bool silent, const char *why, uint32_t *next, uint8_t set[WIRE_SET])
{
	struct daemon *d = job->daemon;
	struct timespec until;
	int rc = 0;

	pthread_mutex_lock(&d->lock);
	clock_gettime(CLOCK_MONOTONIC, &until);
	/* the leader waits for stragglers, and is waited for when it is silent */
	until.tv_sec += d->conf.merge_timeout + d->conf.rejoin_timeout + 10;
	if (job->uplink && job->uplink->epoch <= epoch) {
		fill_question(job->uplink, epoch, lost, blamed, silent, why);
		send_question(job->uplink);
	}
	while (!rc && !job->ended && job->uplink && job->uplink->epoch <= epoch)
		rc = pthread_cond_timedwait(&job->wake, &d->lock, &until);
	if (rc)
		job_end(job, ERR_LOST, "the job's leader did not say who goes on: %s", why);
	if (!job->ended && job->uplink) {
		*next = job->uplink->epoch;
		memcpy(set, job->uplink->set, WIRE_SET);
		rc = 0;
	} else {
		rc = -ECANCELED;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}
