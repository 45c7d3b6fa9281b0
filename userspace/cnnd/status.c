// SPDX-License-Identifier: MIT
/*
 * status.c: see status.h. A job's owner and administrators see all of it. A database server is told
 * role and figures of every job, with `own` for those of the stated role: membership in roles is
 * known only to it, so the extension decides what its user may see. Anybody else learns that the
 * device is busy, and how much memory is held.
 */
#include "status.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "feed.h"
#include "job.h"
#include "log.h"

static struct ctl_str text(const char *s)
{
	size_t n = s ? strlen(s) : 0;

	return ctl_str(s ? s : "", n < CNND_NAME ? n : CNND_NAME - 1);
}

static void progress_of(const struct job *job, struct train_progress *p)
{
	*p = job->last;
	if (job->train && job->state == JOB_RUNNING)
		train_progress(job->train, p);
}

static uint64_t rows_of(const struct job *job)
{
	const struct feed *f;
	uint64_t rows = job->fed_rows;

	LIST_FOREACH (f, &job->feeds, in_job)
		rows += atomic_load_explicit(&f->rows, memory_order_relaxed);
	return rows;
}

void status_heartbeat(const struct job *job, const struct call *c, struct ctl_heartbeat *out)
{
	struct train_progress p = {0};

	out->loss = NAN;
	out->wait = text(c ? c->wait : "rows");
	if (!job)
		return;
	out->rows = rows_of(job);
	if (job->state != JOB_RUNNING)
		return;
	progress_of(job, &p);
	out->epoch = p.epoch;
	out->epochs = p.epochs;
	out->step = p.step;
	out->steps = p.steps;
	out->loss = p.loss;
}

static void fill(const struct job *job, bool own, bool all, struct ctl_job *e)
{
	struct train_progress p;

	e->kind = (uint8_t)job->kind;
	e->own = own;
	e->memory = memory_used(job->memory);
	e->device = text(job->device.name);
	e->loss = NAN;
	if (!all) {
		e->state = text("busy");
		return;
	}
	progress_of(job, &p);
	memcpy(e->id, job->id, CTL_ID);
	e->epoch = p.epoch;
	e->epochs = job->kind == CTL_TRAIN ? job->config.epochs : 0;
	e->step = p.step;
	e->steps = p.steps;
	e->rows = rows_of(job);
	if (p.step || p.epoch)
		e->loss = p.loss;
	e->seconds = (double)(now_ms() - job->created_ms) / 1000;
	e->role = text(job->role);
	e->database = text(job->database);
	e->state = text(job_state_name(job));
	e->wait = text(job->wait);
	e->model = text(job->model_name);
	e->merges = (uint32_t)job->merges;
	e->checksum = job->merge_checksum;
}

static void fill_ended(const struct history_entry *h, bool own, struct ctl_job *e)
{
	memcpy(e->id, h->id, CTL_ID);
	e->kind = (uint8_t)h->job_kind;
	e->own = own;
	e->ended = 1;
	e->loss = NAN;
	e->seconds = h->seconds;
	e->merges = (uint32_t)h->merges;
	e->checksum = h->merge_checksum;
	e->role = text(h->role);
	e->database = text(h->database);
	e->state = text("ended");
	e->wait = text(h->reason);
	e->device = text(h->device);
	e->model = text(h->model);
}

/* The last ones, newest first, to those who may know of them and have said that they know this
 * list. */
static void ended_jobs(struct session *s)
{
	const struct history_entry *h;
	struct ctl_msg m;

	if (!(s->features & CTL_FEATURE_ENDED))
		return;
	for (unsigned int i = 0; (h = history_at(s->daemon->history, i)); i++) {
		bool own = s->admin || !strcmp(h->role, s->role);

		if (!own && !s->database)
			continue;
		memset(&m, 0, sizeof(m));
		m.type = CTL_JOB;
		fill_ended(h, own, &m.u.entry);
		session_send(s, &m, NULL, 0);
	}
}

void status_jobs(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct ctl_msg m;
	const struct job *job;

	pthread_mutex_lock(&d->lock);
	LIST_FOREACH (job, &d->jobs, link) {
		bool own = s->admin || !strcmp(job->role, s->role);

		memset(&m, 0, sizeof(m));
		m.type = CTL_JOB;
		fill(job, own, own || s->database, &m.u.entry);
		session_send(s, &m, NULL, 0);
	}
	ended_jobs(s);
	pthread_mutex_unlock(&d->lock);
	memset(&m, 0, sizeof(m));
	m.type = CTL_DONE;
	session_send(s, &m, NULL, 0);
}

void status_devices(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct ctl_msg m = {.type = CTL_DEVICE};
	struct ctl_device *e = &m.u.device;
	struct device_view view;

	for (uint32_t i = 0; devices_view(d->devices, i, &view); i++) {
		memset(e, 0, sizeof(*e));
		e->index = view.index;
		e->name = text(view.name);
		e->kind = text(view.kind);
		e->info = text(view.info);
		e->memory = view.memory;
		e->free_memory = view.free_memory;
		e->jobs = view.jobs;
		if (!devices_are_gpus(d->devices)) {
			pthread_mutex_lock(&d->lock);
			e->memory = memory_limit(d->memory);
			e->free_memory = e->memory - memory_total(d->memory);
			e->jobs = job_count(d, ADMIT_TRAINING, true) +
				  job_count(d, ADMIT_PREDICTION, true);
			pthread_mutex_unlock(&d->lock);
		}
		session_send(s, &m, NULL, 0);
	}
	memset(&m, 0, sizeof(m));
	m.type = CTL_DONE;
	session_send(s, &m, NULL, 0);
}

void status_log(struct daemon *d)
{
	const struct history_entry *e;
	const struct job *job;

	pthread_mutex_lock(&d->lock);
	log_info(LOG_CODE("status"),
		 "%u connections, %u jobs, %llu MB of %llu MB memory held, version %s%s",
		 d->n_sessions, d->n_jobs, (unsigned long long)(memory_total(d->memory) >> 20),
		 (unsigned long long)(memory_limit(d->memory) >> 20), CNN_VERSION,
		 d->draining ? ", draining" : "");
	LIST_FOREACH (job, &d->jobs, link) {
		struct log_tag tag = {"status", job->id, job->role, job->wait};

		log_info(&tag, "%s is %s, %llu rows, %llu MB", job_kind_name[job->kind],
			 job_state_name(job), (unsigned long long)rows_of(job),
			 (unsigned long long)(memory_used(job->memory) >> 20));
	}
	for (unsigned int i = 0; (e = history_at(d->history, i)); i++) {
		struct log_tag tag = {"history", e->id, e->role, NULL};
		char sum[24] = "none";

		if (e->has_checksum)
			snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)e->checksum);
		log_info(&tag, "ended after %.1f s: %s; weights %s, merges %llu (%016llx)",
			 e->seconds, e->reason, sum, (unsigned long long)e->merges,
			 (unsigned long long)e->merge_checksum);
	}
	pthread_mutex_unlock(&d->lock);
}
