// SPDX-License-Identifier: MIT
/* control.c: see control.h. */
#include "control.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "feed.h"
#include "job.h"
#include "lead.h"
#include "log.h"
#include "members.h"
#include "sdnotify.h"
#include "session.h"
#include "status.h"

#define TICK_MS 100u
#define LOOP_ALIVE_MS 10000u /* the loop turns at least once a second */

struct control {
	struct daemon *daemon;
	pthread_t thread;
	pthread_cond_t wake; /* with daemon.lock */
	bool quit;
	uint64_t watchdog_ms, last_ping;
};

/* ---- heartbeats ---- */

static void beat(struct session *s, const struct job *job, const struct call *c)
{
	struct ctl_msg m = {.type = CTL_HEARTBEAT};

	/* what is queued tells the client as much, once it reads */
	if (session_pending(s))
		return;
	if (job)
		memcpy(m.job, job->id, CTL_ID);
	status_heartbeat(job, c, &m.u.heartbeat);
	session_send(s, &m, NULL, 0);
}

static void heartbeat(struct session *s, uint64_t now)
{
	struct call *c = &s->call;

	if (c->active) {
		if (!c->answered && now >= c->since_ms + CTL_HEARTBEAT_MS &&
		    now >= c->beat_ms + CTL_HEARTBEAT_MS) {
			c->beat_ms = now;
			beat(s, c->job, c);
		}
	} else if (s->feed && now >= s->feed->beat_ms + CTL_HEARTBEAT_MS) {
		/* the producer may wait for room in its ring: the daemon is alive */
		s->feed->beat_ms = now;
		beat(s, s->feed->job, NULL);
	}
}

/* ---- deadlines ---- */

static void check_session(struct session *s, uint64_t now)
{
	const char *why = NULL;

	if (!s->greeted && now > s->created_ms + SESSION_HELLO_MS)
		why = "no HELLO in time";
	else if (s->partial_ms && now > s->partial_ms + SESSION_HELLO_MS)
		why = "a frame was begun and not completed in time";
	else if (!(s->feed && !s->call.active) && session_stalled(s, now))
		why = "it does not read what it has asked for";
	if (!why)
		return;
	log_warn(LOG_CODE("timeout"), "client uid %u pid %d closed: %s", (unsigned int)s->uid,
		 (int)s->pid, why);
	session_kick(s);
	s->partial_ms = 0;
}

static void check_job(struct daemon *d, struct job *job, uint64_t now)
{
	uint64_t orphan = (uint64_t)d->conf.orphan_timeout * 1000,
		 most = (uint64_t)d->conf.job_time_max * 1000;

	job_check_idle(job, now);
	if (job->idle_ms && now > job->idle_ms + orphan)
		job_end(job, ERR_LOST,
			"no connection watched it or called for orphan_timeout = %u s",
			d->conf.orphan_timeout);
	else if (job->idle_ms && !job->watched && job->state == JOB_BEGUN &&
		 now > job->idle_ms + orphan / 6) /* WATCH waits for other hosts' BEGIN alone */
		job_end(job, ERR_LOST, "its client went away after begin");
	else if (most && now > job->created_ms + most)
		job_end(job, ERR_LIMIT, "it ran for job_time_max = %u s", d->conf.job_time_max);
}

/* ---- shutdown ---- */

static void end_all(struct daemon *d)
{
	struct job *job;

	LIST_FOREACH (job, &d->jobs, link)
		job_end(job, ERR_DRAINING, "the daemon is shutting down");
	while (!LIST_EMPTY(&d->members->leads))
		lead_end(LIST_FIRST(&d->members->leads), ERR_DRAINING,
			 "the daemon that leads the job is shutting down");
}

void control_stop(struct daemon *d)
{
	struct job *job;

	pthread_mutex_lock(&d->lock);
	if (d->stopping) {
		d->stop_ms = now_ms();
		pthread_mutex_unlock(&d->lock);
		return;
	}
	d->stopping = true;
	d->stop_ms = now_ms() + (uint64_t)d->conf.stop_timeout * 1000;
	LIST_FOREACH (job, &d->jobs, link)
		if (job->train && job->state == JOB_RUNNING && job->kind == CTL_TRAIN)
			train_stop(job->train);
	log_info(LOG_CODE("stop"), "shutting down: %u jobs get %u s", d->n_jobs,
		 d->conf.stop_timeout);
	pthread_mutex_unlock(&d->lock);
	sdnotify_send("STOPPING=1");
}

static void check_stop(struct daemon *d, uint64_t now)
{
	if (!d->stopping)
		return;
	if (now >= d->stop_ms)
		end_all(d);
	/* a job that does not come apart is left to the kernel: the loop's end is the process's */
	if ((!d->n_jobs && !d->members->n_leads) || now > d->stop_ms + 10000) {
		atomic_store(&d->quit, true);
		daemon_wake(d);
	}
}

/* ---- thread ---- */

static void ping(struct control *c, uint64_t now)
{
	if (!c->watchdog_ms || now < c->last_ping + c->watchdog_ms)
		return;
	/* the loop stands still: the service manager shall know */
	if (now > atomic_load(&c->daemon->tick) + LOOP_ALIVE_MS)
		return;
	c->last_ping = now;
	sdnotify_send("WATCHDOG=1");
}

static void tick(struct control *c)
{
	struct daemon *d = c->daemon;
	struct session *s;
	struct job *job;
	uint64_t now = now_ms();

	LIST_FOREACH (s, &d->sessions, link) {
		heartbeat(s, now);
		check_session(s, now);
	}
	LIST_FOREACH (job, &d->jobs, link)
		if (!job->ended)
			check_job(d, job, now);
	check_stop(d, now);
	ping(c, now);
}

static void *control_thread(void *arg)
{
	struct control *c = arg;
	struct daemon *d = c->daemon;
	struct timespec t;

	pthread_mutex_lock(&d->lock);
	while (!c->quit) {
		tick(c);
		clock_gettime(CLOCK_MONOTONIC, &t);
		t.tv_nsec += TICK_MS * 1000000;
		if (t.tv_nsec >= 1000000000) {
			t.tv_nsec -= 1000000000;
			t.tv_sec++;
		}
		pthread_cond_timedwait(&c->wake, &d->lock, &t);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

int control_create(struct daemon *d, struct control **out)
{
	struct control *c = calloc(1, sizeof(*c));
	pthread_condattr_t a;
	int rc;

	if (!c)
		return -ENOMEM;
	c->daemon = d;
	c->watchdog_ms = sdnotify_watchdog_ms();
	c->last_ping = now_ms(); /* the first one after READY */
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(&c->wake, &a);
	pthread_condattr_destroy(&a);
	rc = -pthread_create(&c->thread, NULL, control_thread, c);
	if (rc) {
		pthread_cond_destroy(&c->wake);
		free(c);
		return rc;
	}
	*out = c;
	return 0;
}

void control_free(struct control *c)
{
	struct daemon *d;

	if (!c)
		return;
	d = c->daemon;
	pthread_mutex_lock(&d->lock);
	c->quit = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&d->lock);
	pthread_join(c->thread, NULL);
	pthread_cond_destroy(&c->wake);
	free(c);
}
