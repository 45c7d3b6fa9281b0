// SPDX-License-Identifier: MIT
/* lab_hosts.c: see lab_hosts.h. */
#include "lab_hosts.h"

#include <dirent.h>
#include <errno.h>

void lab_hosts_start(struct lab *lab, uint32_t n, const char *more)
{
	for (uint32_t i = 0; i < n; i++)
		lab_open(&lab[i], more);
}

static int lead(struct lab_hosts *h)
{
	struct ctl_msg m;
	int rc;

	lab_message(&h->lead, CTL_LEAD, &m);
	m.u.lead.role = ctl_str(h->lead.role, strlen(h->lead.role));
	rc = lab_call(&h->lead, &m, CTL_LEAD_OK);
	if (!rc)
		snprintf(h->leader, sizeof(h->leader), "%.*s", (int)m.u.lead_ok.address.n,
			 m.u.lead_ok.address.p);
	return rc;
}

static int members(struct lab_hosts *h, uint32_t min_hosts)
{
	struct ctl_msg m;
	char names[16 * LAB_HOSTS] = "";

	for (uint32_t i = 0; i < h->n; i++)
		sprintf(names + strlen(names), "node%u\n", i);
	lab_message(&h->lead, CTL_MEMBERS, &m);
	m.u.members.hosts = h->n;
	m.u.members.min_hosts = min_hosts;
	m.u.members.names = ctl_str(names, strlen(names));
	return lab_call(&h->lead, &m, CTL_OK);
}

static int begin_all(struct lab_hosts *h, const char *spec, uint32_t min_hosts)
{
	int rc = 1, one;

	for (uint32_t i = 0; i < h->n; i++) {
		h->job[i].leader = h->leader;
		one = h->rc[i] = lab_begin(&h->job[i], spec);
		if (one < rc)
			rc = one;
	}
	if (rc == 1)
		return members(h, min_hosts) ? -1 : 1;
	for (uint32_t i = 0; i < h->n; i++)
		if (h->rc[i] == 1)
			lab_end(&h->job[i]);
	return rc;
}

void lab_hosts_init(struct lab_hosts *h, struct lab *lab, uint32_t n, uint8_t kind)
{
	memset(h, 0, sizeof(*h));
	h->n = n;
	h->lab = lab;
	lab_job_init(&h->lead, &lab[0], "alice", kind);
	for (uint32_t i = 0; i < n; i++) {
		h->job[i] = h->lead;
		h->job[i].conn = lab_connect(&lab[i], "alice");
	}
	if (lead(h))
		BAIL("not led: %s", h->lead.err.message);
}

int lab_hosts_again(struct lab_hosts *h, const char *spec, uint32_t min_hosts)
{
	return begin_all(h, spec, min_hosts);
}

int lab_hosts_begin(struct lab_hosts *h, struct lab *lab, uint32_t n, uint8_t kind,
		    const char *spec, uint32_t min_hosts)
{
	lab_hosts_init(h, lab, n, kind);
	return begin_all(h, spec, min_hosts);
}

uint32_t lab_round_robin(uint32_t row, uint32_t n)
{
	return row / 3 % n;
}

uint32_t lab_by_label(uint32_t row, uint32_t n)
{
	return row % 3 % n;
}

void lab_hosts_feed(struct lab_hosts *h, uint8_t set, uint32_t rows,
		    uint32_t (*place)(uint32_t row, uint32_t n))
{
	for (uint32_t i = 0; i < h->n; i++) {
		struct lab_feed feed;

		if (lab_feed_open(&h->job[i], set, &feed))
			BAIL("no feed on host %u: %s", i, h->job[i].err.message);
		for (uint32_t r = 0; r < rows; r++)
			if (place(r, h->n) == i && lab_feed_row(&feed, r))
				BAIL("host %u does not take its rows", i);
		if (lab_feed_close(&feed, NULL))
			BAIL("feed of host %u: %s", i, h->job[i].err.message);
	}
}

int lab_hosts_agree(struct lab_hosts *h, struct agree_block *agreed)
{
	struct agree_block part[LAB_HOSTS];
	int rc = 0;

	memset(part, 0, sizeof(part));
	memset(agreed, 0, sizeof(*agreed));
	for (uint32_t i = 0; i < h->n && !rc; i++)
		rc = lab_part(&h->job[i], &part[i]);
	if (!rc)
		rc = agree_merge(part, h->n, agreed, &h->job[0].err);
	for (uint32_t i = 0; i < h->n; i++)
		agree_free(&part[i]);
	return rc;
}

static int worst(const struct lab_hosts *h)
{
	int rc = 0;

	for (uint32_t i = 0; i < h->n; i++)
		if (h->rc[i] < rc)
			rc = h->rc[i];
	return rc;
}

void lab_hosts_send_apply(struct lab_hosts *h, const struct agree_block *agreed, bool reshuffle)
{
	char peers[128 * LAB_HOSTS] = "";
	struct ctl_msg m;
	uint8_t *blob;
	long n = agree_encode(agreed, &blob);

	if (n < 0)
		BAIL("agree_encode");
	for (uint32_t i = 0; i < h->n; i++)
		sprintf(peers + strlen(peers), "node%u %s\n", i, h->job[i].address);
	for (uint32_t i = 0; i < h->n; i++) {
		lab_message(&h->job[i], CTL_APPLY, &m);
		m.u.apply.blob = ctl_str((char *)blob, (size_t)n);
		m.u.apply.rank = i;
		m.u.apply.hosts = h->n;
		m.u.apply.reshuffle = reshuffle;
		m.u.apply.peers = ctl_str(peers, strlen(peers));
		h->rc[i] = lab_send(&h->job[i], &m);
	}
	free(blob);
}

int lab_hosts_wait_apply(struct lab_hosts *h)
{
	struct ctl_msg m;

	for (uint32_t i = 0; i < h->n; i++) {
		if (!h->rc[i])
			h->rc[i] = lab_wait(&h->job[i], &m, CTL_APPLY_OK);
		if (!h->rc[i])
			h->applied[i] = m.u.apply_ok;
	}
	return worst(h);
}

int lab_hosts_apply(struct lab_hosts *h, const struct agree_block *agreed, bool reshuffle)
{
	lab_hosts_send_apply(h, agreed, reshuffle);
	return lab_hosts_wait_apply(h);
}

void lab_hosts_send_run(struct lab_hosts *h, uint32_t first, uint32_t count)
{
	struct ctl_msg m;

	for (uint32_t i = 0; i < h->n; i++) {
		lab_message(&h->job[i], CTL_RUN, &m);
		m.u.run.first_epoch = first;
		m.u.run.count = count;
		m.u.run.lr_factor = 1;
		h->rc[i] = lab_send(&h->job[i], &m);
	}
}

int lab_hosts_wait_run(struct lab_hosts *h)
{
	struct ctl_msg m;

	for (uint32_t i = 0; i < h->n; i++) {
		if (!h->rc[i])
			h->rc[i] = lab_wait(&h->job[i], &m, CTL_RUN_ROW);
		if (h->rc[i])
			continue;
		h->row[i] = m.u.run_row;
		snprintf(h->note[i], sizeof(h->note[i]), "%.*s", (int)m.u.run_row.note.n,
			 m.u.run_row.note.p);
	}
	return worst(h);
}

int lab_hosts_run(struct lab_hosts *h, uint32_t first, uint32_t count)
{
	lab_hosts_send_run(h, first, count);
	return lab_hosts_wait_run(h);
}

void lab_hosts_drop(struct lab_hosts *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		lab_job_free(&h->job[i]);
	lab_job_free(&h->lead);
}

void lab_hosts_end(struct lab_hosts *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		lab_end(&h->job[i]);
	lab_hosts_drop(h);
}

void lab_hosts_explain(const struct lab_hosts *h)
{
	for (uint32_t i = 0; i < h->n; i++)
		if (h->job[i].err.kind)
			printf("# host %u: %s (%s)\n", i, h->job[i].err.message,
			       err_kind_name(h->job[i].err.kind));
	if (h->lead.err.kind)
		printf("# lead: %s\n", h->lead.err.message);
}

int lab_hosts_prepare(struct lab_hosts *h, struct lab *lab, uint32_t n, const char *spec,
		      uint32_t rows, uint32_t min_hosts)
{
	int rc = lab_hosts_begin(h, lab, n, CTL_TRAIN, spec, min_hosts);

	if (rc != 1)
		return rc ? rc : -EBUSY;
	return lab_hosts_ready(h, rows);
}

int lab_hosts_ready(struct lab_hosts *h, uint32_t rows)
{
	struct agree_block agreed;
	int rc;

	lab_hosts_feed(h, ROW_TRAIN, rows, lab_round_robin);
	rc = lab_hosts_agree(h, &agreed);
	if (!rc)
		rc = lab_hosts_apply(h, &agreed, false);
	agree_free(&agreed);
	return rc;
}

/* Calls look for every job of the list until it returns true. */
static bool status(const struct lab *lab, bool (*look)(const struct ctl_job *e, void *context),
		   void *context)
{
	struct ctl_conn *conn = NULL;
	struct ctl_msg m = {.type = CTL_STATUS};
	struct err err = {0};
	bool found = false;
	int rc = ctl_open(lab->socket, (unsigned int)-1, "test", "alice", &conn, &err);

	if (rc)
		return false;
	rc = ctl_call(conn, &m, &m, 5000, &err);
	while (!rc && m.type != CTL_DONE) {
		found = found || look(&m.u.entry, context);
		rc = ctl_wait(conn, &m, 5000, &err);
	}
	ctl_conn_free(conn);
	return found;
}

struct wanted {
	const uint8_t *id;
	struct ctl_job *out;
	char *reason;
};

static bool is_ended(const struct ctl_job *e, void *context)
{
	struct wanted *w = context;

	if (!e->ended || memcmp(e->id, w->id, CTL_ID))
		return false;
	*w->out = *e;
	snprintf(w->reason, 257, "%.*s", (int)e->wait.n, e->wait.p);
	return true;
}

bool lab_ended(const struct lab *lab, const uint8_t id[CTL_ID], struct ctl_job *out,
	       char reason[257])
{
	struct wanted w = {id, out, reason};

	return status(lab, is_ended, &w);
}

static bool is_running(const struct ctl_job *e, void *context)
{
	*(uint32_t *)context = e->merges;
	return !e->ended;
}

uint32_t lab_merges(const struct lab *lab)
{
	uint32_t merges = 0;

	return status(lab, is_running, &merges) ? merges : 0;
}

static bool take_wait(const struct ctl_job *e, void *context)
{
	snprintf(context, 257, "%.*s", (int)e->wait.n, e->wait.p);
	return !e->ended;
}

bool lab_waits(const struct lab *lab, char wait[257])
{
	return status(lab, take_wait, wait);
}

struct progress {
	uint64_t steps;
	char *wait;
};

static bool take_steps(const struct ctl_job *e, void *context)
{
	struct progress *p = context;

	p->steps = e->epoch * e->steps + e->step;
	snprintf(p->wait, 257, "%.*s", (int)e->wait.n, e->wait.p);
	return !e->ended;
}

uint64_t lab_steps(const struct lab *lab, char wait[257])
{
	struct progress p = {0, wait};

	return status(lab, take_steps, &p) ? p.steps : 0;
}

unsigned int lab_count(const struct lab *lab, const char *what)
{
	char path[64];
	unsigned int n = 0;
	struct dirent *e;
	DIR *d;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)lab->pid, what);
	d = opendir(path);
	while (d && (e = readdir(d)))
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}
