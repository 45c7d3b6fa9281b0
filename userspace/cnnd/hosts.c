// SPDX-License-Identifier: MIT
/* hosts.c: see hosts.h. */
#include "hosts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job.h"
#include "link.h"
#include "log.h"
#include "members.h"
#include "work.h"

#define MESH_MS 20000u /* the hosts' APPLYs come at once; what they do before is short */

struct hosts {
	uint32_t n, self;
	struct merge_host host[CTL_HOSTS_MAX];
	const char *name[CTL_HOSTS_MAX];
};

int hosts_err(struct err *err, int rc, const struct merge_error *why, const char *what)
{
	enum err_kind kind = rc == -ENOMEM    ? ERR_LIMIT
			     : rc == -EINVAL  ? ERR_INTERNAL
			     : rc == -ENOTSUP ? ERR_PARAM
			     : rc == -EACCES  ? ERR_RIGHTS
			     : rc == -EPROTO  ? ERR_PROTOCOL
					      : ERR_LOST;

	return err_set(err, kind, rc, "%s: %s", what, why->message);
}

/* ---- who goes on, asked by the merge library ---- */

static int confirm(void *context, uint32_t epoch, const uint8_t lost[MERGE_HOSTS_MAX],
		   const struct merge_error *why, struct merge_decision *decision)
{
	struct job *job = context;
	uint8_t set[WIRE_SET];
	int rc;

	work_wait(job, "the hosts that are left");
	rc = link_ask(job, epoch, lost, why->host, why->code == -ETIMEDOUT, why->message,
		      &decision->epoch, set);
	work_wait(job, "training");
	if (rc)
		return rc;
	decision->n = 0;
	for (uint32_t i = 0; i < CTL_HOSTS_MAX; i++)
		if (wire_in(set, i))
			decision->member[decision->n++] = i;
	return 0;
}

static void on_merge(void *context, const struct merge_result *r)
{
	struct job *job = context;
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	job->merges = r->number;
	job->merge_checksum = r->checksum;
	pthread_mutex_unlock(&d->lock);
	link_hold(job);
}

/* Local steps may go on for long without a merge, and their leader may be silent meanwhile. */
static void on_step(void *context)
{
	struct job *job = context;

	if (atomic_load_explicit(&job->leaderless, memory_order_relaxed))
		link_hold(job);
}

/* ---- BEGIN ---- */

static int open_net(struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	struct merge_tcp_config c = {.min_hosts = 1, /* the leader counts */
				     .mesh_timeout_ms = MESH_MS,
				     .confirm = confirm,
				     .context = job};
	char listen[CONF_ADDRESS], congestion[sizeof(d->conf.merge_congestion)];
	char tls[CONF_LIST], devices[CONF_LIST];
	struct merge_net *net = NULL;
	struct merge_error why;
	int rc;

	pthread_mutex_lock(&d->lock);
	memcpy(listen, d->conf.merge_listen, sizeof(listen));
	memcpy(congestion, d->conf.merge_congestion, sizeof(congestion));
	memcpy(tls, d->conf.merge_ucx_tls, sizeof(tls));
	memcpy(devices, d->conf.merge_ucx_devices, sizeof(devices));
	c.port_first = d->conf.merge_ports.first;
	c.port_last = d->conf.merge_ports.last;
	c.no_mac = !d->conf.merge_mac;
	c.merge_timeout_ms = d->conf.merge_timeout * 1000;
	c.transport = d->conf.merge_transport == CONF_TRANSPORT_UCX ? MERGE_TRANSPORT_UCX
								    : MERGE_TRANSPORT_TCP;
	pthread_mutex_unlock(&d->lock);
	c.listen = listen;
	c.congestion = congestion[0] ? congestion : NULL;
	c.ucx_tls = tls[0] ? tls : NULL;
	c.ucx_net_devices = devices[0] ? devices : NULL;
	memcpy(c.job, job->id, CTL_ID);
	if (!wire_derive(job->secret, WIRE_MERGE, c.secret))
		return err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
	rc = merge_tcp_open(&c, &net, &why);
	explicit_bzero(c.secret, sizeof(c.secret));
	if (rc) {
		err_set(err, rc == -ENOTSUP ? ERR_PARAM : ERR_LIMIT, rc,
			"the merges of this job: %s", why.message);
		if (rc == -ENOTSUP)
			err_hint(err, "Install UCX on this host (Debian: libucx0), or set "
				      "merge_transport = tcp in the cnnd.conf of all hosts.");
		else
			err_hint(err,
				 "See merge_listen, merge_ports and merge_ucx_* in cnnd.conf.");
		return rc;
	}
	snprintf(job->merge_address, sizeof(job->merge_address), "%s %u", listen,
		 merge_tcp_port(net));
	pthread_mutex_lock(&d->lock);
	job->net = net;
	if (job->ended)
		merge_net_abort(net);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

int hosts_open(struct job *job, struct err *err)
{
	int rc = link_open(job, ctl_str(job->leader, strlen(job->leader)), err);

	/* predictions need nothing of each other */
	if (!rc && job->kind != CTL_PREDICTION)
		rc = open_net(job, err);
	return rc;
}

void hosts_failed(struct job *job, const struct err *err)
{
	struct daemon *d = job->daemon;

	if (!job->leader[0])
		return;
	pthread_mutex_lock(&d->lock);
	/* the end answers this call, too: its hint goes along */
	if (!job->ended)
		memcpy(job->end.hint, err->hint, sizeof(job->end.hint));
	job_end(job, err->kind ? err->kind : ERR_INTERNAL, "%s", err->message);
	pthread_mutex_unlock(&d->lock);
}

void hosts_close(struct job *job)
{
	struct daemon *d = job->daemon;
	struct merge_net *net;

	pthread_mutex_lock(&d->lock);
	net = job->net;
	job->net = NULL; /* from here on nobody aborts it */
	pthread_mutex_unlock(&d->lock);
	if (net)
		merge_net_close(net);
	free(job->hosts);
	job->hosts = NULL;
}

/* ---- APPLY ---- */

/* A line 'name address port'; names may hold spaces. */
static bool read_peer(const char *p, size_t n, struct merge_host *out)
{
	const char *port = NULL, *address = NULL;

	for (size_t i = n; i-- > 0 && !address;)
		if (p[i] == ' ' && !port)
			port = p + i;
		else if (p[i] == ' ')
			address = p + i;
	if (!address || address == p || memchr(p, '\0', n) ||
	    !members_address(ctl_str(address + 1, (size_t)(p + n - address - 1)), out->address,
			     &out->port))
		return false;
	snprintf(out->name, sizeof(out->name), "%.*s", (int)(address - p), p);
	for (char *c = out->name; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 127)
			*c = '?';
	return true;
}

static int read_peers(const struct ctl_apply *a, struct hosts *h, struct err *err)
{
	const char *p = a->peers.p, *end = p + a->peers.n;

	for (h->n = 0; h->n < a->hosts; h->n++) {
		const char *line = p < end ? memchr(p, '\n', (size_t)(end - p)) : NULL;
		size_t n = (size_t)((line ? line : end) - p);

		if (p >= end || !read_peer(p, n, &h->host[h->n]))
			return err_set(err, ERR_PROTOCOL, -EPROTO,
				       "APPLY: line %u of peers is not 'name address port'", h->n);
		h->name[h->n] = h->host[h->n].name;
		p = line ? line + 1 : end;
	}
	if (p < end)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "APPLY with more peers than hosts");
	return 0;
}

/* A wrong order would merge the right hosts at the wrong places. */
static int check_self(const struct job *job, const struct hosts *h, struct err *err)
{
	const struct merge_host *self = &h->host[h->self];
	char text[CONF_ADDRESS + 8];

	snprintf(text, sizeof(text), "%s %u", self->address, self->port);
	if (strcmp(text, job->merge_address))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "rank %u is said to be at %s, this daemon is at %s", h->self, text,
			       job->merge_address);
	return 0;
}

static int connect_net(struct job *job, struct err *err)
{
	const struct hosts *h = job->hosts;
	struct merge_error why;
	int rc = merge_tcp_identify(job->net, h->self, 0, &why);

	if (!rc)
		rc = merge_tcp_connect(job->net, h->host, h->n, 1, &why);
	return rc ? hosts_err(err, rc, &why, "connecting the hosts") : 0;
}

int hosts_connect(struct job *job, const struct ctl_apply *a, struct err *err)
{
	struct hosts *h;
	int rc;

	if (!job->net)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "APPLY for %u hosts, but this job is on this daemon alone",
			       a->hosts);
	if (a->rank >= a->hosts || a->hosts > CTL_HOSTS_MAX || job->hosts)
		return err_set(err, ERR_PARAM, -EINVAL, "APPLY for rank %u of %u hosts", a->rank,
			       a->hosts);
	h = calloc(1, sizeof(*h));
	if (!h)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for the list of hosts");
	job->hosts = h;
	h->self = a->rank;
	rc = read_peers(a, h, err);
	if (!rc)
		rc = check_self(job, h, err);
	if (rc)
		return rc;
	work_wait(job, "the other hosts");
	link_rank(job, h->self, false);
	return connect_net(job, err);
}

int hosts_set(struct job *job, enum row_set *set, struct err *err)
{
	uint64_t mine = data_rows(job->data, ROW_VALIDATION), all[CTL_HOSTS_MAX], sum = 0;
	struct merge_error why;
	int rc;

	if (!job->hosts) {
		sum = mine;
	} else {
		rc = merge_all_gather(job->net, &mine, sizeof(mine), all, &why);
		if (rc)
			return hosts_err(err, rc, &why, "evaluation");
		for (uint32_t i = 0; i < merge_net_size(job->net); i++)
			sum |= all[i];
	}
	*set = sum ? ROW_VALIDATION : ROW_TRAIN;
	return 0;
}

void hosts_setup(struct job *job, struct train_setup *setup)
{
	if (!job->hosts)
		return;
	setup->net = job->net;
	setup->host_name = job->hosts->name;
	setup->on_merge = on_merge;
	setup->on_step = on_step;
	setup->context = job;
}
