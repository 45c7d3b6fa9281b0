// SPDX-License-Identifier: MIT
/* job.c: see job.h. */
#include "job.h"

#include <errno.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "feed.h"
#include "hosts.h"
#include "lead.h"
#include "link.h"
#include "log.h"
#include "pin.h"
#include "session.h"

const char *const job_kind_name[3] = {"training", "prediction", "evaluation"};

const char *job_state_name(const struct job *job)
{
	static const char *const names[JOB_STATES] = {"begun", "feeding", "agreeing", "ready",
						      "running"};

	return job->ended ? "ending" : names[job->state];
}

void job_log_tag(const struct job *job, struct log_tag *tag, const char *code)
{
	*tag = (struct log_tag){.code = code, .job = job->id, .role = job->role};
}

struct job *job_find(struct daemon *d, const uint8_t id[CTL_ID])
{
	struct job *job;

	LIST_FOREACH (job, &d->jobs, link)
		if (!memcmp(job->id, id, CTL_ID))
			return job;
	return NULL;
}

bool job_secret_fits(const struct job *job, const uint8_t secret[CTL_ID])
{
	volatile uint8_t differ = 0;

	for (int i = 0; i < CTL_ID; i++)
		differ |= (uint8_t)(job->secret[i] ^ secret[i]);
	return !differ;
}

static int no_job(struct daemon *d, const uint8_t id[CTL_ID], struct err *err)
{
	const struct history_entry *e = history_find(d->history, id);
	char text[2 * CTL_ID + 1];

	for (int i = 0; i < CTL_ID; i++)
		snprintf(text + 2 * i, 3, "%02x", id[i]);
	if (e)
		return err_set(err, ERR_NOJOB, -ENOENT, "job %s has ended: %s", text, e->reason);
	return err_set(err, ERR_NOJOB, -ENOENT, "this daemon has no job %s", text);
}

int job_lookup(struct session *s, const uint8_t id[CTL_ID], const uint8_t secret[CTL_ID],
	       struct job **out, struct err *err)
{
	struct job *job = job_find(s->daemon, id);

	if (!job)
		return no_job(s->daemon, id, err);
	if (!job_secret_fits(job, secret))
		return err_set(err, ERR_RIGHTS, -EPERM, "wrong secret for this job");
	if (strcmp(job->role, s->role))
		return err_set(err, ERR_RIGHTS, -EPERM, "this job belongs to role \"%s\"",
			       job->role);
	if (job->ended)
		return err_set(err, ERR_NOJOB, -ENOENT, "this job has ended: %s", job->end.message);
	*out = job;
	return 0;
}

uint32_t job_count(const struct daemon *d, enum admit_slot slot, bool torn_down_too)
{
	const struct job *job;
	uint32_t n = 0;

	LIST_FOREACH (job, &d->jobs, link)
		if (job->slot == slot && (torn_down_too || !job->ended))
			n++;
	return n;
}

uint32_t job_count_role(const struct daemon *d, enum admit_slot slot, const char *role)
{
	const struct job *job;
	uint32_t n = 0;

	LIST_FOREACH (job, &d->jobs, link)
		if (!job->ended && job->slot == slot && !strcmp(job->role, role))
			n++;
	return n;
}

uint32_t job_count_client(const struct daemon *d, enum admit_slot slot, pid_t pid)
{
	const struct job *job;
	uint32_t n = 0;

	LIST_FOREACH (job, &d->jobs, link)
		if (!job->ended && job->slot == slot && job->client == pid)
			n++;
	return n;
}

struct job *job_new(struct daemon *d, const struct session *s, const struct ctl_msg *begin)
{
	struct job *job = calloc(1, sizeof(*job));
	pthread_condattr_t a;

	if (!job)
		return NULL;
	job->daemon = d;
	memcpy(job->id, begin->job, CTL_ID);
	memcpy(job->secret, begin->u.begin.secret, CTL_ID);
	job->kind = (enum ctl_job_kind)begin->u.begin.kind;
	job->slot = job->kind == CTL_TRAIN ? ADMIT_TRAINING : ADMIT_PREDICTION;
	job->start_us = begin->u.begin.start_us;
	job->created_ms = job->idle_ms = now_ms();
	job->segments = begin->u.begin.segments;
	job->client = s->pid;
	memcpy(job->role, s->role, sizeof(job->role));
	memcpy(job->database, s->database_name, sizeof(job->database));
	TAILQ_INIT(&job->calls);
	TAILQ_INIT(&job->queue);
	LIST_INIT(&job->watchers);
	LIST_INIT(&job->feeds);
	atomic_init(&job->canceled, false);
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&job->wake, &a);
	pthread_condattr_destroy(&a);
	return job;
}

/* Everything that takes memory, in the order that lets nothing point at what is gone. */
static void free_parts(struct job *job)
{
	struct train *train;
	struct data_set *data;

	pthread_mutex_lock(&job->daemon->lock);
	train = job->train;
	data = job->data;
	job->train = NULL; /* from here on nobody asks it for its progress */
	job->data = NULL;
	pthread_mutex_unlock(&job->daemon->lock);
	train_free(train);
	pin_release(job);
	hosts_close(job);
	if (data)
		data_free(data);
	if (job->has_agreed)
		agree_free(&job->agreed);
	if (job->model)
		model_free(job->model);
	devices_unuse(&job->device);
	train_config_free(&job->config);
	history_sum_free(job->sum);
	free(job->json);
}

void job_discard(struct job *job)
{
	struct daemon *d = job->daemon;

	free_parts(job);
	pthread_mutex_lock(&d->lock);
	memory_account_close(job->memory);
	pthread_mutex_unlock(&d->lock);
	pthread_cond_destroy(&job->wake);
	free(job);
}

static void answer_rest(struct job *job)
{
	struct ctl_msg good = {.type = CTL_OK};
	struct call *c;

	memcpy(good.job, job->id, CTL_ID);
	while ((c = TAILQ_FIRST(&job->calls))) {
		call_answer_locked(c, &good);
		call_finish_locked(c);
	}
}

static void remember(const struct job *job, const char *device)
{
	struct history_entry e = {.kind = job->end.kind,
				  .job_kind = job->kind,
				  .merges = job->merges,
				  .merge_checksum = job->merge_checksum,
				  .has_checksum = job->has_checksum,
				  .checksum = job->checksum,
				  .seconds = (double)(now_ms() - job->created_ms) / 1000};

	memcpy(e.id, job->id, CTL_ID);
	snprintf(e.role, sizeof(e.role), "%s", job->role);
	snprintf(e.database, sizeof(e.database), "%s", job->database);
	snprintf(e.model, sizeof(e.model), "%s", job->model_name);
	snprintf(e.device, sizeof(e.device), "%s", device);
	snprintf(e.reason, sizeof(e.reason), "%.255s", job->end.message);
	history_add(job->daemon->history, &e);
}

static void log_end(const struct job *job, uint64_t rows)
{
	struct log_tag tag;
	char sum[32] = "none";

	job_log_tag(job, &tag, "end");
	if (job->has_checksum)
		snprintf(sum, sizeof(sum), "%016llx", (unsigned long long)job->checksum);
	log_info(&tag, "%s ended after %.1f s: %s; rows %llu, weights %s, merges %llu (%016llx)",
		 job_kind_name[job->kind], (double)(now_ms() - job->created_ms) / 1000,
		 job->end.message, (unsigned long long)rows, sum, (unsigned long long)job->merges,
		 (unsigned long long)job->merge_checksum);
}

void job_teardown(struct job *job)
{
	struct daemon *d = job->daemon;
	struct session *s;
	char device[sizeof(job->device.name)];
	uint64_t rows = 0;

	pthread_mutex_lock(&d->lock);
	while (job->n_feeds)
		pthread_cond_wait(&job->wake, &d->lock); /* bounded: job_end has told them */
	pthread_mutex_unlock(&d->lock);

	if (job->data)
		for (int set = 0; set < ROW_SETS; set++)
			rows += data_rows(job->data, (enum row_set)set);
	memcpy(device, job->device.name, sizeof(device));
	free_parts(job);
	/* what free() keeps for itself goes back to the system, too */
	malloc_trim(0);
	log_end(job, rows);

	pthread_mutex_lock(&d->lock);
	memory_account_close(job->memory);
	remember(job, device);
	LIST_REMOVE(job, link);
	while ((s = LIST_FIRST(&job->watchers))) {
		LIST_REMOVE(s, in_watch);
		s->watch = NULL;
	}
	answer_rest(job);
	pthread_mutex_unlock(&d->lock);
	explicit_bzero(job->secret, sizeof(job->secret));
	pthread_cond_destroy(&job->wake);
	free(job);

	/* the last thing this thread does with the daemon, which may now end */
	pthread_mutex_lock(&d->lock);
	d->n_jobs--;
	daemon_wake(d);
	pthread_mutex_unlock(&d->lock);
}

/* Calls that wait for the thread are over; those that a thread works on get their answer now and
 * are finished by that thread. An END waits for the teardown. */
static void answer_calls(struct job *job)
{
	struct call *c, *next;

	for (c = TAILQ_FIRST(&job->calls); c; c = next) {
		next = TAILQ_NEXT(c, in_job);
		if (c->msg.type == CTL_END)
			continue;
		call_error_locked(c, &job->end);
		if (!c->queued)
			continue;
		TAILQ_REMOVE(&job->queue, c, in_queue);
		c->queued = false;
		call_finish_locked(c);
	}
}

void job_end(struct job *job, enum err_kind kind, const char *fmt, ...)
{
	struct feed *f;
	va_list ap;

	if (job->ended)
		return;
	job->ended = true;
	job->end.kind = kind;
	va_start(ap, fmt);
	vsnprintf(job->end.message, sizeof(job->end.message), fmt, ap);
	va_end(ap);
	atomic_store(&job->canceled, true);
	if (job->train)
		train_cancel(job->train);
	if (job->data)
		data_cancel(job->data);
	if (job->net)
		merge_net_abort(job->net);
	link_close(job);
	LIST_FOREACH (f, &job->feeds, in_job)
		feed_cancel(f);
	answer_calls(job);
	pthread_cond_broadcast(&job->wake);
}

void job_session_closed(struct session *s, const char *why)
{
	struct job *job;

	if (s->call.active && !s->call.answered && s->call.job)
		job_end(s->call.job, ERR_CANCELED, "%s connection of a call ended: %s",
			job_kind_name[s->call.job->kind], why);
	if (s->feed)
		feed_session_closed(s, why);
	lead_session_closed(s, why);
	job = s->watch;
	if (job) {
		LIST_REMOVE(s, in_watch);
		s->watch = NULL;
		job_end(job, ERR_CANCELED, "the coordinator's connection ended: %s", why);
	}
}

void job_watch(struct job *job, struct session *s)
{
	if (s->watch)
		LIST_REMOVE(s, in_watch);
	s->watch = job;
	job->watched = true;
	LIST_INSERT_HEAD(&job->watchers, s, in_watch);
}

void job_submit(struct job *job, struct call *c)
{
	c->queued = true;
	TAILQ_INSERT_TAIL(&job->queue, c, in_queue);
	pthread_cond_broadcast(&job->wake);
}

void job_check_idle(struct job *job, uint64_t now)
{
	if (!LIST_EMPTY(&job->watchers) || !TAILQ_EMPTY(&job->calls) || job->n_feeds || job->uplink)
		job->idle_ms = 0;
	else if (!job->idle_ms)
		job->idle_ms = now;
}
