// SPDX-License-Identifier: MIT
/*
 * hosts.c: the daemons that take part in a job: their membership at the coordinator's own daemon,
 * which of several segments of one daemon speaks for it, where they find each other, and what
 * becomes of the job when one is lost.
 */
#include "gpu_cnn.h"

/* ---- membership ---- */

static bool is_loopback(const char *address)
{
	return !strncmp(address, "127.", 4) || !strncmp(address, "::1 ", 4) ||
	       !strncmp(address, "localhost ", 10);
}

static void raise_loopback(const char *whose, const char *other)
{
	ereport(ERROR,
		(errcode(ERRCODE_CONFIG_FILE_ERROR),
		 errmsg("the daemon of host \"%s\" can be reached from its own machine only, not "
			"from host \"%s\"",
			whose, other),
		 errhint("Set merge_listen in its cnnd.conf to an address that the other hosts "
			 "reach.")));
}

void hosts_lead(struct driver *d)
{
	struct ctl_msg m;
	int i, n = driver_segments(d);

	if (!d->nodes && !COMPAT_GREENPLUM)
		return;
	daemon_message(&m, CTL_LEAD, &d->job);
	m.u.lead.role = str_of(compat_user_name(GetUserId()));
	daemon_call(d->watch, &m, &m, CTL_LEAD_OK, "lead");
	d->leads = true;
	d->leader = cstring_of(m.u.lead_ok.address);
	for (i = 0; d->nodes && is_loopback(d->leader) && i < n; i++) {
		const char *machine = nodes_machine(d->nodes, i);

		if (machine && strcmp(machine, d->machine))
			raise_loopback(d->machine, machine);
	}
}

/* One name a line. */
static char *one_line(const char *text)
{
	char *s = pstrdup(text), *p;

	for (p = s; *p; p++)
		if ((unsigned char)*p < ' ')
			*p = '_';
	return s;
}

static char *all_names(const struct driver *d)
{
	StringInfoData s;
	int i;

	initStringInfo(&s);
	for (i = 0; i < d->n_hosts; i++)
		appendStringInfo(&s, "%s%s", i ? "\n" : "", one_line(d->host[i].name));
	return pg_server_to_any(s.data, s.len, PG_UTF8);
}

static void send_members(struct driver *d)
{
	struct ctl_msg m;

	if (!d->leads)
		return;
	daemon_message(&m, CTL_MEMBERS, &d->job);
	m.u.members.hosts = (uint32)d->n_hosts;
	m.u.members.min_hosts = (uint32)(d->min_hosts ? d->min_hosts : d->n_hosts);
	m.u.members.names = str_of(all_names(d));
	daemon_call(d->watch, &m, &m, CTL_OK, "members");
}

/* ---- hosts ---- */

static const struct host *find_uuid(const struct driver *d, const uint8 *uuid)
{
	int i;

	for (i = 0; i < d->n_hosts; i++)
		if (!memcmp(d->host[i].uuid, uuid, CTL_ID))
			return &d->host[i];
	return NULL;
}

/* Several daemons of one machine are told apart by their segments. */
static void name_machines(struct driver *d)
{
	int i, k;

	for (i = 0; i < d->n_hosts; i++) {
		struct host *h = &d->host[i];

		h->name = h->machine;
		for (k = 0; k < d->n_hosts; k++)
			if (k != i && !strcmp(d->host[k].machine, h->machine))
				break;
		if (k < d->n_hosts)
			h->name = psprintf("%s (segment %d)", h->machine, h->segindex);
	}
}

static void set_speakers(struct driver *d)
{
	Datum *v = palloc(sizeof(Datum) * (size_t)(d->n_hosts + 1));
	MemoryContext old = MemoryContextSwitchTo(d->context);
	int i, n = 0;

	for (i = 0; i < d->n_hosts; i++)
		if (!d->host[i].lost)
			v[n++] = Int32GetDatum(d->host[i].segindex);
	d->speakers = construct_array(v, n, INT4OID, sizeof(int32), true, 'i');
	MemoryContextSwitchTo(old);
}

static void check_hosts(const struct driver *d)
{
	int i, k;

	for (i = 0; i < d->n_hosts; i++)
		for (k = 0; k < d->n_hosts; k++)
			if (is_loopback(d->host[i].address) &&
			    strcmp(d->host[i].machine, d->host[k].machine))
				raise_loopback(d->host[i].name, d->host[k].name);
	if (d->min_hosts > d->n_hosts)
		ereport(ERROR, (errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				errmsg("min_hosts is %d, but there %s %d host%s", d->min_hosts,
				       d->n_hosts == 1 ? "is" : "are", d->n_hosts,
				       d->n_hosts == 1 ? "" : "s")));
}

void hosts_found(struct driver *d, const struct answer *a)
{
	int i;

	d->host = palloc0(sizeof(*d->host) * (size_t)(a->n + 1));
	d->n_hosts = d->n_lost = 0;
	for (i = 0; i < a->n; i++) {
		bytea *uuid = answer_bytes(a, i, BEGIN_UUID);
		struct host *h = &d->host[d->n_hosts];

		if (VARSIZE_ANY_EXHDR(uuid) != CTL_ID)
			elog(ERROR, "malformed answer to begin");
		if (find_uuid(d, (uint8 *)VARDATA_ANY(uuid)))
			continue;
		memcpy(h->uuid, VARDATA_ANY(uuid), CTL_ID);
		h->segindex = (int)answer_int(a, i, BEGIN_SEGINDEX);
		h->machine = answer_text(a, i, BEGIN_HOST);
		h->address = answer_text(a, i, BEGIN_ADDRESS);
		if (!h->machine || !h->address)
			elog(ERROR, "malformed answer to begin");
		if (d->nodes)
			h->name = pstrdup(nodes_name(d->nodes, h->segindex));
		d->n_hosts++;
	}
	if (!d->nodes)
		name_machines(d);
	check_hosts(d);
	set_speakers(d);
	send_members(d);
}

int hosts_left(const struct driver *d)
{
	return d->n_hosts - d->n_lost;
}

char *hosts_peers(const struct driver *d)
{
	StringInfoData s;
	int i;

	initStringInfo(&s);
	for (i = 0; d->n_hosts > 1 && i < d->n_hosts; i++)
		appendStringInfo(&s, "%s%s %s", i ? "\n" : "", one_line(d->host[i].name),
				 one_line(d->host[i].address));
	return s.data;
}

/* ---- a host is lost ---- */

void hosts_lose(struct driver *d, int rank, const char *why)
{
	struct host *h = &d->host[rank];
	int least = d->min_hosts ? d->min_hosts : d->n_hosts;

	h->lost = true;
	d->n_lost++;
	if (hosts_left(d) < least || !hosts_left(d) ||
	    /* it alone can say who is left */
	    !memcmp(h->uuid, d->uuid, CTL_ID))
		ereport(ERROR, (errcode(ERRCODE_CONNECTION_FAILURE),
				d->n_hosts == 1 ? errmsg("%s", why)
						: errmsg("host \"%s\" is lost: %s", h->name, why),
				errhint("cnnd may have been stopped or killed; its log says why. "
					"The database is not affected.")));
	ereport(WARNING, (errmsg("host \"%s\" is lost, the training goes on with %d of %d hosts",
				 h->name, hosts_left(d), d->n_hosts),
			  errdetail("%s", why)));
	set_speakers(d);
}
