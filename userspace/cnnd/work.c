// SPDX-License-Identifier: MIT
/* work.c: the thread of a job. See work.h. */
#include "work.h"

#include <errno.h>
#include <string.h>

#include "job.h"
#include "link.h"
#include "log.h"

static const struct {
	enum ctl_type type;
	const char *wait;
	int (*serve)(struct job *job, struct call *c, struct err *err);
} handlers[] = {
	{CTL_BEGIN, "the job's leader", work_begin},
	{CTL_AGREE, "rows", work_agree},
	{CTL_APPLY, "compile", work_apply},
	{CTL_RUN, "training", work_run},
	{CTL_GET, "weights", work_get},
	{CTL_PUT, "weights", work_put},
	{CTL_COLLECT, "prediction", work_collect},
	{CTL_PREDICT, "prediction", work_predict},
	{CTL_BAD_ROWS, "bad rows", work_bad_rows},
};
#define HANDLERS (sizeof(handlers) / sizeof(handlers[0]))

bool work_takes(const struct ctl_msg *msg, const uint8_t **secret)
{
	for (size_t i = 0; i < HANDLERS; i++)
		if (handlers[i].type == msg->type) {
			/* every one of these structs begins with the secret */
			*secret = msg->u.secret.secret;
			return true;
		}
	return false;
}

void work_message(const struct job *job, struct ctl_msg *msg, enum ctl_type type)
{
	memset(msg, 0, sizeof(*msg));
	msg->type = type;
	memcpy(msg->job, job->id, CTL_ID);
}

void work_wait(struct job *job, const char *wait)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	job->wait = wait;
	if (job->running)
		job->running->wait = wait;
	pthread_mutex_unlock(&d->lock);
}

void work_state(struct job *job, enum job_state state)
{
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	job->state = state;
	pthread_mutex_unlock(&d->lock);
}

int work_need_ready(const struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	const char *name;
	bool ready;

	pthread_mutex_lock(&d->lock);
	ready = job->state >= JOB_READY;
	name = job_state_name(job);
	pthread_mutex_unlock(&d->lock);
	if (ready)
		return 0;
	return err_set(err, ERR_PARAM, -EINVAL, "the job is %s: APPLY comes first", name);
}

/* The job cannot go on, and as long as it is there nobody can use the device. Answers the call. */
static void device_lost(struct job *job, struct err *err)
{
	struct daemon *d = job->daemon;
	struct log_tag tag;

	job->device.lost = true;
	if (!strstr(err->message, job->device.name))
		err_prefix(err, "%s", job->device.name);
	job_log_tag(job, &tag, "device");
	log_error(&tag, "%s; it is opened anew for the next job", err->message);
	pthread_mutex_lock(&d->lock);
	job_end(job, err->kind, "%s", err->message);
	pthread_mutex_unlock(&d->lock);
}

static void serve(struct job *job, struct call *c)
{
	struct err err = {0};
	int rc;

	for (size_t i = 0; i < HANDLERS; i++) {
		if (handlers[i].type != c->msg.type)
			continue;
		work_wait(job, handlers[i].wait);
		rc = handlers[i].serve(job, c, &err);
		if (rc == -ENOTRECOVERABLE && job->device.gpus)
			device_lost(job, &err);
		else if (rc)
			call_error(c, &err);
		return;
	}
}

/*
 * A fault in the last merge of a run: one host has made it and is idle, another has not and needs
 * the first one to learn that it has been made.
 */
static bool must_settle(const struct job *job)
{
	return job->uplink && job->train && job->kind == CTL_TRAIN && link_vote(job->uplink);
}

static void settle(struct job *job)
{
	struct err err = {0};

	if (!train_settle(job->train, &err))
		return;
	pthread_mutex_lock(&job->daemon->lock);
	job_end(job, err.kind, "%s", err.message);
	pthread_mutex_unlock(&job->daemon->lock);
}

void *work_thread(void *arg)
{
	struct job *job = arg;
	struct daemon *d = job->daemon;
	struct call *c;

	pthread_mutex_lock(&d->lock);
	while (!job->ended) {
		if (must_settle(job)) {
			job->wait = "the hosts that are left";
			pthread_mutex_unlock(&d->lock);
			settle(job);
			pthread_mutex_lock(&d->lock);
			job->wait = NULL;
			continue;
		}
		c = TAILQ_FIRST(&job->queue);
		if (!c) {
			pthread_cond_wait(&job->wake, &d->lock);
			continue;
		}
		TAILQ_REMOVE(&job->queue, c, in_queue);
		c->queued = false;
		job->running = c;
		pthread_mutex_unlock(&d->lock);
		serve(job, c);
		pthread_mutex_lock(&d->lock);
		job->running = NULL;
		job->wait = NULL;
		call_finish_locked(c);
	}
	pthread_mutex_unlock(&d->lock);
	job_teardown(job);
	return NULL;
}
