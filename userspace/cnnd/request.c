// SPDX-License-Identifier: MIT
/* request.c: a request to its handler. What is quick is answered here, on the main thread; the rest
 * becomes a call of the desk, of a job's thread or of a feed. */
#include "request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "desk.h"
#include "feed.h"
#include "job.h"
#include "lead.h"
#include "log.h"
#include "status.h"
#include "work.h"

#define BUILD "cnnd " CNN_VERSION

static void send_ok(struct session *s, const struct ctl_msg *request)
{
	struct ctl_msg m = {.type = CTL_OK};

	memcpy(m.job, request->job, CTL_ID);
	session_send(s, &m, NULL, 0);
}

/* ---- HELLO ---- */

/*
 * Who it is: the role that a database server states is believed, others are their user id. Who acts
 * for a role of a database has that role's rights alone, though the server's user may be an
 * administrator here.
 */
static int identify(struct session *s, const struct ctl_hello *h, struct err *err)
{
	char role[CNND_NAME], database[CNND_NAME];

	if (!session_text(h->role, role, sizeof(role)) ||
	    !session_text(h->database, database, sizeof(database)))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "HELLO with a malformed name");
	if (!s->database) {
		snprintf(role, sizeof(role), "uid:%u", (unsigned int)s->uid);
		database[0] = '\0';
	}
	pthread_mutex_lock(&s->daemon->lock);
	memcpy(s->role, role, sizeof(s->role));
	memcpy(s->database_name, database, sizeof(s->database_name));
	if (database[0])
		s->admin = false;
	s->features = h->features;
	s->greeted = true;
	pthread_mutex_unlock(&s->daemon->lock);
	return 0;
}

static int hello(struct session *s, const struct ctl_msg *msg, struct err *err)
{
	char ring[FEED_RING_TEXT];
	const struct ctl_hello *h = &msg->u.hello;
	struct ctl_msg m = {.type = CTL_HELLO_OK};
	struct ctl_hello_ok *r = &m.u.hello_ok;

	if (h->version_min > CTL_VERSION || h->version_max < CTL_VERSION_MIN ||
	    h->version_min > h->version_max)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "the client speaks versions %u to %u of the control protocol, " BUILD
			       " speaks %u to %u",
			       h->version_min, h->version_max, CTL_VERSION_MIN, CTL_VERSION);
	if (identify(s, h, err))
		return -EPROTO;
	r->version = h->version_max < CTL_VERSION ? h->version_max : CTL_VERSION;
	memcpy(r->uuid, s->daemon->uuid, CTL_ID);
	r->pid = (uint32_t)getpid();
	r->host = ctl_str(s->daemon->host, strlen(s->daemon->host));
	r->build = ctl_str(BUILD, sizeof(BUILD) - 1);
	feed_ring_text(s->daemon->conf.ring, ring);
	r->ring = ctl_str(ring, strlen(ring));
	session_send(s, &m, NULL, 0);
	return 0;
}

/* ---- requests on a job ---- */

static void on_begin(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;

	pthread_mutex_lock(&d->lock);
	desk_submit(d->desk, call_start(s, msg, NULL, "admission"));
	pthread_mutex_unlock(&d->lock);
}

static void on_describe(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;

	pthread_mutex_lock(&d->lock);
	desk_submit(d->desk, call_start(s, msg, NULL, "architecture"));
	pthread_mutex_unlock(&d->lock);
}

static void on_work(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	const uint8_t *secret;
	struct job *job;
	struct err err = {0};
	int rc;

	if (!work_takes(msg, &secret))
		return;
	pthread_mutex_lock(&d->lock);
	rc = job_lookup(s, msg->job, secret, &job, &err);
	if (!rc)
		job_submit(job, call_start(s, msg, job, "another call of this job"));
	pthread_mutex_unlock(&d->lock);
	if (rc)
		session_error(s, &err);
}

static void on_watch(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct job *job;
	struct err err = {0};
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = job_lookup(s, msg->job, msg->u.secret.secret, &job, &err);
	if (!rc)
		job_watch(job, s);
	pthread_mutex_unlock(&d->lock);
	if (rc)
		session_error(s, &err);
	else
		send_ok(s, msg);
}

/* A job that has asked on several hosts and got a place here only keeps its turn. */
static void keep_turn(struct daemon *d, const struct job *job)
{
	struct admit_ask ask = {.start_us = job->start_us, .slot = job->slot};

	if (job->state != JOB_BEGUN || job->begun >= job->segments)
		return;
	memcpy(ask.job, job->id, CTL_ID);
	admit_remember(d->admit, &ask, now_ms());
}

/* Answered when the job's memory is free. A job that is not there is as good as ended. */
static void on_end(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct job *job;
	struct err err = {0};

	pthread_mutex_lock(&d->lock);
	admit_forget(d->admit, msg->job);
	job = job_find(d, msg->job);
	if (!job) {
		pthread_mutex_unlock(&d->lock);
		send_ok(s, msg);
		return;
	}
	if (!job_secret_fits(job, msg->u.secret.secret))
		err_set(&err, ERR_RIGHTS, -EPERM, "wrong secret for this job");
	else if (strcmp(job->role, s->role))
		err_set(&err, ERR_RIGHTS, -EPERM, "this job belongs to role \"%s\"", job->role);
	if (!err.kind) {
		keep_turn(d, job);
		call_start(s, msg, job, "the job's end");
		job_end(job, ERR_CANCELED, "ended by its owner");
	}
	pthread_mutex_unlock(&d->lock);
	if (err.kind)
		session_error(s, &err);
}

/* Finish early and keep the result: by its owner, an administrator, or who knows the secret. */
static void on_stop(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct job *job;
	struct err err = {0};

	pthread_mutex_lock(&d->lock);
	job = job_find(d, msg->job);
	if (!job || job->ended)
		err_set(&err, ERR_NOJOB, -ENOENT, "this daemon has no such job");
	else if (!s->admin && !(s->role[0] && !strcmp(job->role, s->role)) &&
		 !job_secret_fits(job, msg->u.secret.secret))
		err_set(&err, ERR_RIGHTS, -EPERM, "this job belongs to another role");
	else if (job->kind != CTL_TRAIN)
		err_set(&err, ERR_PARAM, -EINVAL, "only a training can be stopped early");
	if (!err.kind) {
		job->stop = true;
		if (job->train)
			train_stop(job->train);
	}
	pthread_mutex_unlock(&d->lock);
	if (err.kind)
		session_error(s, &err);
	else
		send_ok(s, msg);
}

static void on_drain(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct err err = {0};

	if (!s->admin) {
		err_set(&err, ERR_RIGHTS, -EPERM, "user id %u is not among admin_uids",
			(unsigned int)s->uid);
		session_error(s, &err);
		return;
	}
	pthread_mutex_lock(&d->lock);
	d->draining = msg->u.drain.on;
	pthread_mutex_unlock(&d->lock);
	log_info(LOG_CODE("drain"), "%s by user id %u",
		 msg->u.drain.on ? "takes no new jobs" : "takes jobs again", (unsigned int)s->uid);
	send_ok(s, msg);
}

/* ---- dispatch ---- */

static const struct {
	void (*handle)(struct session *s, const struct ctl_msg *msg);
	bool database; /* only from database_uids */
} requests[CTL_TYPE_COUNT] = {
	[CTL_BEGIN] = {on_begin, true},	     [CTL_WATCH] = {on_watch, true},
	[CTL_FEED] = {feed_begin, true},     [CTL_FEED_END] = {feed_finish, true},
	[CTL_AGREE] = {on_work, true},	     [CTL_APPLY] = {on_work, true},
	[CTL_RUN] = {on_work, true},	     [CTL_GET] = {on_work, true},
	[CTL_PUT] = {on_work, true},	     [CTL_COLLECT] = {on_work, true},
	[CTL_BAD_ROWS] = {on_work, true},    [CTL_PREDICT] = {on_work, true},
	[CTL_END] = {on_end, true},	     [CTL_DESCRIBE] = {on_describe, false},
	[CTL_STATUS] = {status_jobs, false}, [CTL_DEVICES] = {status_devices, false},
	[CTL_LEAD] = {lead_request, true},   [CTL_MEMBERS] = {lead_members, true},
	[CTL_STOP] = {on_stop, false},	     [CTL_DRAIN] = {on_drain, false},
};

int request_dispatch(struct session *s, const struct ctl_msg *msg, struct err *err)
{
	struct err refused = {0};
	unsigned int type = (unsigned int)msg->type;

	if (!s->greeted) {
		if (type == CTL_HELLO)
			return hello(s, msg, err);
		return err_set(err, ERR_PROTOCOL, -EPROTO, "%s before HELLO", ctl_type_name(type));
	}
	if (type >= CTL_TYPE_COUNT || !requests[type].handle)
		return err_set(err, ERR_PROTOCOL, -EPROTO, "%s is no request", ctl_type_name(type));
	if (requests[type].database && !s->database) {
		err_set(&refused, ERR_RIGHTS, -EPERM,
			"user id %u may not run jobs: it is not among database_uids",
			(unsigned int)s->uid);
		err_hint(&refused, "Add the operating system user of the database server to "
				   "database_uids in cnnd.conf.");
		session_error(s, &refused);
		return 0;
	}
	if (type != CTL_FEED_END) {
		pthread_mutex_lock(&s->daemon->lock);
		s->feed_told = false;
		pthread_mutex_unlock(&s->daemon->lock);
	}
	requests[type].handle(s, msg);
	return 0;
}
