// SPDX-License-Identifier: MIT
/* lead_request.c: LEAD and MEMBERS: what the coordinator asks of a job's leader. Main thread. */
#include "lead_state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- LEAD ---- */

static int make(struct session *s, const struct ctl_msg *msg, struct lead **out, struct err *err)
{
	struct daemon *d = s->daemon;
	const struct ctl_lead *q = &msg->u.lead;
	struct lead *lead;
	char role[CNND_NAME];
	int rc;

	if (!session_text(q->role, role, sizeof(role)) || !role[0])
		return err_set(err, ERR_PROTOCOL, -EPROTO, "LEAD without an owner's role");
	if (strcmp(role, s->role))
		return err_set(err, ERR_RIGHTS, -EPERM, "a job of role \"%s\" led for role \"%s\"",
			       role, s->role);
	if (d->draining || d->stopping)
		return err_set(err, ERR_DRAINING, -ESHUTDOWN,
			       "the daemon takes no new jobs, nor leads any");
	if (s->lead)
		return err_set(err, ERR_PARAM, -EBUSY, "this connection leads a job already");
	if (lead_find(d->members, msg->job))
		return err_set(err, ERR_PARAM, -EBUSY, "this job is led already");
	rc = members_listen(d->members, err);
	if (rc)
		return rc;
	lead = calloc(1, sizeof(*lead));
	if (!lead || !wire_derive(q->secret, WIRE_MEMBER, lead->key)) {
		free(lead);
		if (!d->members->n_leads)
			members_unlisten(d->members);
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a job to lead");
	}
	lead->members = d->members;
	lead->session = s;
	memcpy(lead->job, msg->job, CTL_ID);
	memcpy(lead->secret, q->secret, CTL_ID);
	memcpy(lead->role, role, sizeof(role));
	LIST_INIT(&lead->list);
	*out = lead;
	return 0;
}

void lead_request(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct ctl_msg m = {.type = CTL_LEAD_OK};
	char address[sizeof(d->members->address)];
	struct lead *lead = NULL;
	struct log_tag tag;
	struct err err = {0};
	int rc;

	memcpy(m.job, msg->job, CTL_ID);
	pthread_mutex_lock(&d->lock);
	rc = make(s, msg, &lead, &err);
	if (!rc) {
		s->lead = lead;
		LIST_INSERT_HEAD(&d->members->leads, lead, link);
		d->members->n_leads++;
		memcpy(address, d->members->address, sizeof(address));
		lead_tag(lead, &tag);
		log_info(&tag, "led at %s", address);
		members_wake(d->members);
	}
	pthread_mutex_unlock(&d->lock);
	if (rc) {
		session_error(s, &err);
		return;
	}
	m.u.lead_ok.address = ctl_str(address, strlen(address));
	session_send(s, &m, NULL, 0);
}

/* ---- MEMBERS ---- */

/* Lines to names; the number of lines is checked. */
static int read_names(struct ctl_str text, uint32_t hosts, char (*name)[64], struct err *err)
{
	const char *p = text.p, *end = p + text.n;

	for (uint32_t i = 0; i < hosts; i++) {
		const char *line = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
		size_t n = (size_t)((line ? line : end) - p);

		if (p >= end || !n || memchr(p, '\0', n))
			return err_set(err, ERR_PROTOCOL, -EPROTO,
				       "MEMBERS without the name of host %u", i);
		snprintf(name[i], sizeof(name[i]), "%.*s", (int)n, p);
		for (char *c = name[i]; *c; c++)
			if ((unsigned char)*c < ' ' || *c == 127)
				*c = '?';
		p = line ? line + 1 : end;
	}
	return p < end ? err_set(err, ERR_PROTOCOL, -EPROTO, "MEMBERS with more names than hosts")
		       : 0;
}

static uint32_t linked(const struct lead *lead)
{
	const struct lead_member *k;
	uint32_t n = 0;

	LIST_FOREACH (k, &lead->list, link)
		n += !k->gone && k->conn;
	return n;
}

static int set_members(struct session *s, const struct ctl_msg *msg, struct err *err)
{
	struct daemon *d = s->daemon;
	const struct ctl_members *q = &msg->u.members;
	struct lead *lead = s->lead;
	char(*name)[64];
	int rc;

	if (!lead || memcmp(lead->job, msg->job, CTL_ID))
		return err_set(err, ERR_PARAM, -EINVAL, "MEMBERS without LEAD on this connection");
	if (memcmp(lead->secret, q->secret, CTL_ID))
		return err_set(err, ERR_RIGHTS, -EPERM, "wrong secret for this job");
	if (lead->epoch)
		return err_set(err, ERR_PARAM, -EBUSY, "the members of this job are known already");
	if (!q->hosts || q->min_hosts > q->hosts)
		return err_set(err, ERR_PARAM, -EINVAL, "%u hosts, of which at least %u", q->hosts,
			       q->min_hosts);
	if (linked(lead) != q->hosts)
		return err_set(err, ERR_LOST, -ENOTCONN, "%u hosts take part, and %u are linked",
			       q->hosts, linked(lead));
	name = calloc(q->hosts, sizeof(*name));
	if (!name)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory");
	rc = read_names(q->names, q->hosts, name, err);
	if (rc) {
		free(name);
		return rc;
	}
	lead->name = name;
	lead->epoch = 1;
	lead->vote.hosts = q->hosts;
	lead->min_hosts = q->min_hosts ? q->min_hosts : q->hosts;
	lead->vote.patience_ms = (uint64_t)d->conf.merge_timeout * 1000;
	for (uint32_t i = 0; i < q->hosts; i++)
		lead->vote.host[i] =
			(struct vote_host){.member = true, .linked = true, .heard_ms = now_ms()};
	lead_beat_all(lead);
	return 0;
}

void lead_members(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct ctl_msg m = {.type = CTL_OK};
	struct err err = {0};
	int rc;

	memcpy(m.job, msg->job, CTL_ID);
	pthread_mutex_lock(&d->lock);
	rc = set_members(s, msg, &err);
	pthread_mutex_unlock(&d->lock);
	if (rc)
		session_error(s, &err);
	else
		session_send(s, &m, NULL, 0);
}
