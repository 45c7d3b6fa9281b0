// SPDX-License-Identifier: MIT
/* lead.c: see lead.h. */
#include "lead_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "log.h"
#include "member_net.h"

void lead_tag(const struct lead *lead, struct log_tag *tag)
{
	*tag = (struct log_tag){.code = "lead", .job = lead->job, .role = lead->role};
}

struct lead *lead_find(const struct members *m, const uint8_t job[CTL_ID])
{
	struct lead *lead;

	LIST_FOREACH (lead, &m->leads, link)
		if (!memcmp(lead->job, job, CTL_ID))
			return lead;
	return NULL;
}

struct lead *lead_next(const struct lead *lead)
{
	return LIST_NEXT(lead, link);
}

const uint8_t *lead_secret(const struct lead *lead)
{
	return lead->key;
}

/* ---- what members are told ---- */

static void fill_beat(const struct lead *lead, struct wire_frame *f)
{
	memset(f, 0, sizeof(*f));
	f->type = WIRE_BEAT;
	f->epoch = lead->epoch;
	f->host = WIRE_NO_HOST;
	f->ready = lead->vote.asked_ms != 0;
	for (uint32_t i = 0; i < lead->vote.hosts; i++)
		if (lead->vote.host[i].member)
			wire_add(f->set, i);
	snprintf(f->text, sizeof(f->text), "%s", lead->why);
}

static void beat(struct lead *lead, struct lead_member *k)
{
	struct wire_frame f;

	fill_beat(lead, &f);
	if (k->conn)
		members_send(lead->members, k->conn, &f);
}

void lead_beat_all(struct lead *lead)
{
	struct lead_member *k;

	LIST_FOREACH (k, &lead->list, link)
		beat(lead, k);
}

static void forget(struct lead *lead, struct lead_member *k)
{
	if (k->conn)
		members_drop(lead->members, k->conn);
	LIST_REMOVE(k, link);
	lead->n_members--;
	free(k);
}

void lead_end(struct lead *lead, enum err_kind kind, const char *why)
{
	struct members *m = lead->members;
	struct wire_frame f = {.type = WIRE_END, .kind = (uint8_t)kind, .host = WIRE_NO_HOST};
	struct lead_member *k;
	struct log_tag tag;

	lead_tag(lead, &tag);
	log_info(&tag, "no more led: %s", why);
	snprintf(f.text, sizeof(f.text), "%s", why);
	while ((k = LIST_FIRST(&lead->list))) {
		if (k->conn)
			members_send(m, k->conn, &f);
		forget(lead, k);
	}
	if (lead->session)
		lead->session->lead = NULL;
	LIST_REMOVE(lead, link);
	m->n_leads--;
	if (!m->n_leads)
		members_unlisten(m);
	explicit_bzero(lead->secret, sizeof(lead->secret));
	explicit_bzero(lead->key, sizeof(lead->key));
	free(lead->name);
	free(lead);
}

void lead_session_closed(struct session *s, const char *why)
{
	char text[WIRE_TEXT];

	if (!s->lead)
		return;
	snprintf(text, sizeof(text), "the coordinator's connection ended: %s", why);
	lead_end(s->lead, ERR_CANCELED, text);
}

/* ---- the vote ---- */

static struct lead_member *of_rank(const struct lead *lead, uint32_t rank)
{
	struct lead_member *k;

	LIST_FOREACH (k, &lead->list, link)
		if (k->rank == rank)
			return k;
	return NULL;
}

static const char *name_of(const struct lead *lead, uint32_t rank)
{
	return rank < lead->vote.hosts ? lead->name[rank] : "(unknown)";
}

/* Why a host is no member any more. */
static void reason_of(const struct lead *lead, uint32_t rank, char text[WIRE_TEXT])
{
	const struct lead_member *k = of_rank(lead, rank);
	uint64_t now = now_ms();

	if (rank == WIRE_NO_HOST)
		snprintf(text, WIRE_TEXT, "%s", lead->why[0] ? lead->why : "a fault of the mesh");
	else if (k && k->gone)
		snprintf(text, WIRE_TEXT, "lost host %s: %.200s", name_of(lead, rank), k->why);
	else if (vote_silent(&lead->vote, rank, now))
		snprintf(text, WIRE_TEXT, "lost host %s: no sign of life for %.1f s",
			 name_of(lead, rank),
			 (double)(now - lead->vote.host[rank].heard_ms) / 1000);
	else
		snprintf(text, WIRE_TEXT, "host %s was left behind: %.200s", name_of(lead, rank),
			 lead->why);
}

/* Members that the mesh cannot be built without: all, until all have come through APPLY. */
static uint32_t needed(const struct lead *lead)
{
	for (uint32_t i = 0; i < lead->vote.hosts; i++)
		if (lead->vote.host[i].member && !lead->vote.host[i].ready)
			return lead->vote.hosts;
	return lead->min_hosts;
}

/* Until APPLY nobody knows which rank a link has: one that is lost then ends the job. */
static const struct lead_member *lost_before(struct lead *lead, uint64_t now)
{
	const struct lead_member *k;

	LIST_FOREACH (k, &lead->list, link) {
		if (k->rank != WIRE_NO_HOST || k->left)
			continue;
		if (k->gone || !k->conn || now > k->heard_ms + VOTE_SILENT_MS)
			return k;
	}
	for (uint32_t i = 0; i < lead->vote.hosts; i++)
		if (!of_rank(lead, i))
			lead->vote.host[i].heard_ms = now;
	return NULL;
}

/* May end the job, and the lead with it: its last use by the caller. */
static void decide(struct lead *lead)
{
	uint8_t set[WIRE_SET];
	char text[WIRE_TEXT], all[WIRE_TEXT];
	uint32_t left, blamed;
	uint64_t now = now_ms();
	struct log_tag tag;
	enum vote_result r;
	const struct lead_member *lost;

	if (!lead->epoch)
		return;
	lost = lost_before(lead, now);
	if (lost) {
		snprintf(all, sizeof(all), "lost the host at %s before the job ran: %.160s",
			 lost->address, lost->gone ? lost->why : "no sign of life");
		lead_end(lead, ERR_LOST, all);
		return;
	}
	lead->vote.need = needed(lead);
	r = vote_decide(&lead->vote, now, set, &left, &blamed);
	if (r == VOTE_WAIT)
		return;
	reason_of(lead, blamed, text);
	if (r == VOTE_END) {
		if (lead->vote.need > lead->min_hosts)
			snprintf(all, sizeof(all), "%.240s, before the job ran", text);
		else
			snprintf(all, sizeof(all),
				 "%.220s; %u of %u hosts are left, min_hosts is %u", text, left,
				 lead->vote.hosts, lead->vote.need);
		lead_end(lead, ERR_LOST, all);
		return;
	}
	vote_settle(&lead->vote, set, now);
	lead->epoch++;
	snprintf(lead->why, sizeof(lead->why), "%s", text);
	lead_tag(lead, &tag);
	log_warn(&tag, "membership %u: %u of %u hosts go on: %s", lead->epoch, left,
		 lead->vote.hosts, text);
	lead_beat_all(lead);
}

/* ---- links ---- */

static struct lead_member *find_member(const struct lead *lead, const uint8_t uuid[CTL_ID])
{
	struct lead_member *k;

	LIST_FOREACH (k, &lead->list, link)
		if (!memcmp(k->uuid, uuid, CTL_ID))
			return k;
	return NULL;
}

static void sync_vote(struct lead *lead, const struct lead_member *k)
{
	struct vote_host *h;

	if (k->rank >= lead->vote.hosts)
		return;
	h = &lead->vote.host[k->rank];
	h->gone = k->gone;
	h->left = k->left;
	h->linked = k->conn;
	h->heard_ms = k->heard_ms;
}

int lead_join(struct lead *lead, struct member_conn *c, const uint8_t uuid[CTL_ID], struct err *err)
{
	struct lead_member *k = find_member(lead, uuid);

	if (!k) {
		if (lead->epoch)
			return err_set(err, ERR_PARAM, -EPERM, "a member that nobody named");
		if (lead->n_members >= CTL_HOSTS_MAX)
			return err_set(err, ERR_LIMIT, -ENOSPC, "more than %u members",
				       CTL_HOSTS_MAX);
		k = calloc(1, sizeof(*k));
		if (!k)
			return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
		memcpy(k->uuid, uuid, CTL_ID);
		k->rank = WIRE_NO_HOST;
		LIST_INSERT_HEAD(&lead->list, k, link);
		lead->n_members++;
	}
	if (k->conn)
		members_drop(lead->members, k->conn);
	/* it is back after a cut, before anybody decided without it */
	k->gone = k->left = false;
	k->conn = c;
	member_net_peer(c->fd, k->address);
	k->heard_ms = now_ms();
	c->lead = lead;
	c->member = k;
	sync_vote(lead, k);
	beat(lead, k);
	return 0;
}

/* Rank and readiness. False: it is no good member. */
static bool take_rank(struct lead *lead, struct lead_member *k, const struct wire_frame *f)
{
	struct lead_member *other;

	if (f->type != WIRE_BEAT || f->host == WIRE_NO_HOST || !lead->epoch)
		return true;
	if (f->host >= lead->vote.hosts || (k->rank != WIRE_NO_HOST && k->rank != f->host))
		return false;
	other = of_rank(lead, f->host);
	if (other && other != k)
		return false;
	k->rank = f->host;
	lead->vote.host[k->rank].ready |= f->ready;
	return true;
}

static void take_question(struct lead *lead, struct lead_member *k, const struct wire_frame *f)
{
	struct vote_host *h;
	struct log_tag tag;

	if (k->rank >= lead->vote.hosts || f->epoch != lead->epoch) {
		beat(lead, k); /* decided already */
		return;
	}
	h = &lead->vote.host[k->rank];
	if (h->asks)
		return;
	h->asks = h->ready = true;
	h->sure = f->silent;
	memcpy(h->lost, f->set, WIRE_SET);
	if (!lead->vote.asked_ms) {
		lead->vote.asked_ms = now_ms();
		snprintf(lead->why, sizeof(lead->why), "%s", f->text);
		lead_beat_all(lead); /* who has nothing to do now would not notice */
	}
	lead_tag(lead, &tag);
	log_info(&tag, "host %s asks who goes on: %s", name_of(lead, k->rank), f->text);
}

static void set_gone(struct lead *lead, struct lead_member *k, const char *why)
{
	k->gone = true;
	if (k->conn)
		members_drop(lead->members, k->conn);
	k->conn = NULL;
	snprintf(k->why, sizeof(k->why), "%s", why);
	if (!lead->epoch)
		forget(lead, k); /* it was admitted, and another host was busy */
	else
		sync_vote(lead, k);
}

void lead_frame(struct lead *lead, struct lead_member *k, const struct wire_frame *f)
{
	char why[WIRE_TEXT];

	k->heard_ms = now_ms();
	if (!take_rank(lead, k, f)) {
		set_gone(lead, k, "it claims another rank");
	} else if (f->type == WIRE_BYE) {
		/* nobody misses who was ended by its owner, before somebody asks for it */
		snprintf(why, sizeof(why), "its job has ended: %.240s", f->text);
		k->left = f->kind == ERR_CANCELED;
		set_gone(lead, k, why);
	} else {
		sync_vote(lead, k);
		if (f->type == WIRE_ASK)
			take_question(lead, k, f);
	}
	decide(lead);
}

void lead_conn_ended(struct lead *lead, struct lead_member *k, int code)
{
	if (code == ETIMEDOUT || code == EHOSTUNREACH || code == ENETUNREACH) {
		/* the path is cut; it may come back by another connection */
		members_drop(lead->members, k->conn);
		k->conn = NULL;
		sync_vote(lead, k);
	} else {
		set_gone(lead, k, code ? strerror(code) : "its daemon closed the connection");
	}
	decide(lead);
}

void lead_tick(struct lead *lead, uint64_t now, bool stopped)
{
	struct lead_member *k;

	LIST_FOREACH (k, &lead->list, link) {
		if (stopped)
			k->heard_ms = now;
		sync_vote(lead, k);
		if (k->conn && now >= k->conn->beat_ms + MEMBERS_BEAT_MS)
			beat(lead, k);
	}
	decide(lead);
}
