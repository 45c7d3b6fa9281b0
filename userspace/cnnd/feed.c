// SPDX-License-Identifier: MIT
/* feed.c: FEED, FEED_END and the drain threads. See feed.h. */
#include "feed.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "drain.h"
#include "job.h"
#include "log.h"
#include "session.h"

#define BATCH 256     /* records between two looks at the flags */
#define POLL_MS 10000 /* a look at the flags even when nothing wakes the thread */

static void poke(const struct feed *f)
{
	uint64_t one = 1;

	(void)!write(f->event, &one, sizeof(one));
}

void feed_cancel(struct feed *f)
{
	f->canceled = true;
	poke(f);
}

void feed_session_closed(struct session *s, const char *why)
{
	struct job *job = s->feed->job;

	job_end(job, ERR_CANCELED, "the connection of feeder %u ended in the middle of a feed: %s",
		s->feed->types.feeder, why);
}

/* ---- the thread ---- */

static int take_value(void *context, uint64_t bytes, struct err *err)
{
	struct feed *f = context;
	struct daemon *d = f->job->daemon;
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = memory_take(f->job->memory, MEMORY_VALUES, bytes, err);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

static void give_value(void *context, uint64_t bytes)
{
	struct feed *f = context;
	struct daemon *d = f->job->daemon;

	pthread_mutex_lock(&d->lock);
	memory_give(f->job->memory, MEMORY_VALUES, bytes);
	pthread_mutex_unlock(&d->lock);
}

/*
 * The feed is over: takes it out of the job and the session and answers the call that waits, all at
 * once, since the client may go on and the job may be taken apart the moment the lock is free. c:
 * the FEED that could not be done, else NULL.
 */
static void leave(struct feed *f, struct call *c, const struct ctl_msg *answer,
		  const struct err *err, uint64_t rows)
{
	struct job *job = f->job;
	struct daemon *d = job->daemon;

	pthread_mutex_lock(&d->lock);
	LIST_REMOVE(f, in_job);
	f->session->feed = NULL;
	memory_give(job->memory, MEMORY_RINGS, f->ring_bytes);
	job->fed_rows += rows;
	if (err && !job->feed_error.kind)
		job->feed_error = *err;
	if (!c)
		c = f->end_call;
	if (c && f->told) {
		c->answered = true;
	} else if (c && err) {
		call_error_locked(c, err);
	} else if (c && answer) {
		call_answer_locked(c, answer);
	} else if (!c && !f->told && job->ended) {
		session_error(f->session, &job->end);
		f->session->feed_told = true;
	}
	if (c)
		call_finish_locked(c);
	job->n_feeds--;
	d->n_feed_threads--;
	pthread_cond_broadcast(&job->wake);
	session_put(f->session);
	close(f->event);
	free(f);
	pthread_mutex_unlock(&d->lock);
}

/* ---- the ring ---- */

/* What the host's configuration and the session's demand leave. -EINVAL: they exclude each other.
 */
static int choose(uint32_t conf, uint32_t demand, enum ring_backend *out)
{
	static const enum ring_backend backends[] = {
		[CONF_RING_AUTO] = RING_BACKEND_AUTO,
		[CONF_RING_MEMFD] = RING_BACKEND_MEMFD,
		[CONF_RING_DEVICE] = RING_BACKEND_DEVICE,
	};

	if (demand > CONF_RING_DEVICE || (conf && demand && conf != demand))
		return -EINVAL;
	*out = backends[conf ? conf : demand];
	return 0;
}

void feed_ring_text(uint32_t conf_ring, char text[FEED_RING_TEXT])
{
	char why[RING_WHY];

	if (conf_ring == CONF_RING_MEMFD)
		snprintf(text, FEED_RING_TEXT, "memfd: ring = memfd");
	else if (!ring_device_check(why))
		snprintf(text, FEED_RING_TEXT, "device: /dev/cnnring");
	else if (conf_ring == CONF_RING_DEVICE)
		snprintf(text, FEED_RING_TEXT, "device, but unusable: %s", why);
	else
		snprintf(text, FEED_RING_TEXT, "memfd: %s", why);
}

/* why: the reason if the device was wanted and did not serve, else empty */
static int open_ring(struct feed *f, struct drain *dr, char why[RING_WHY], struct err *err)
{
	int rc = data_feeder_open(f->job->data, &f->types, &dr->feeder, err);

	if (rc)
		return rc;
	rc = ring_create_on(f->backend, f->ring_bytes, &dr->ring, why);
	if (rc) {
		err_set(err, ERR_LIMIT, rc, "cannot make a ring of %" PRIu64 " bytes: %s",
			f->ring_bytes, why[0] ? why : strerror(-rc));
		drain_abort(dr);
	}
	return rc;
}

/*
 * Answers FEED with the ring's descriptors. A device that is there and refuses is told to the
 * session, once a job; that there is none is the usual case, and gpu_cnn_version() says so.
 */
static void announce(struct feed *f, struct call *c, struct ring *ring, const char *why)
{
	struct ctl_msg m = {.type = CTL_FEED_OK};
	const char *name = ring_backend_name(ring);
	char unused[RING_WHY], notice[RING_WHY + 64];
	int fds[RING_FDS];

	if (why[0] && !f->types.feeder && ring_device_check(unused) != -ENOENT) {
		snprintf(notice, sizeof(notice), "rows travel through a memfd ring: %s", why);
		log_warn(NULL, "%s", notice);
		m.u.feed_ok.notice = ctl_str(notice, strlen(notice));
	}
	memcpy(m.job, f->job->id, CTL_ID);
	m.u.feed_ok.feeder = f->types.feeder;
	m.u.feed_ok.ring_bytes = f->ring_bytes;
	m.u.feed_ok.max_value = f->max_value;
	m.u.feed_ok.ring = ctl_str(name, strlen(name));
	ring_export(ring, fds);
	call_answer(c, &m, fds, RING_FDS);
	ring_exported(ring); /* the frame has copies of its own */
	call_finish(c);
}

/* What FEED_END or the job's end have said; tells the client of an error, once. True: go on. */
static bool look(struct feed *f, const struct drain *dr, bool *end)
{
	struct daemon *d = f->job->daemon;
	bool canceled;

	pthread_mutex_lock(&d->lock);
	canceled = f->canceled;
	*end = f->end_call;
	if (dr->err.kind && !f->told && !*end && !canceled) {
		f->told = true;
		if (!f->job->feed_error.kind)
			f->job->feed_error = dr->err;
		session_error(f->session, &dr->err);
	}
	pthread_mutex_unlock(&d->lock);
	return !canceled;
}

static void wait_ring(struct feed *f, struct drain *dr)
{
	struct pollfd p[2] = {{f->event, POLLIN, 0}, {-1, POLLIN, 0}};
	uint64_t count;
	bool prepared = false;

	if (!dr->dead) {
		int rc = ring_wait_prepare(dr->ring, 0);

		/* work, or an error that the next look at the ring reports */
		if (rc)
			return;
		prepared = true;
		p[1].fd = ring_wait_fd(dr->ring);
	}
	if (poll(p, 2, POLL_MS) > 0 && (p[0].revents & POLLIN))
		(void)!read(f->event, &count, sizeof(count));
	if (prepared)
		ring_wait_finish(dr->ring, p[1].revents & POLLIN);
}

/* Until FEED_END with an empty ring (true), or the job's end. */
static bool drain_loop(struct feed *f, struct drain *dr)
{
	bool end;
	int rc;

	/* the flags first: what was written before FEED_END is seen by the drain after it */
	while (look(f, dr, &end)) {
		rc = drain_some(dr, BATCH);
		atomic_store_explicit(&f->rows, dr->rows, memory_order_relaxed);
		if (rc <= 0 && end)
			return true;
		if (rc <= 0 && !(dr->err.kind && !f->told))
			wait_ring(f, dr);
	}
	return false;
}

static int finish(struct feed *f, struct drain *dr, struct ctl_msg *done, struct err *err)
{
	struct data_counts counts = {0};
	int rc = drain_finish(dr, &counts, err);

	if (rc)
		return rc;
	if (dr->rows != f->end_rows)
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "the feeder says it has sent %" PRIu64 " rows, %" PRIu64 " came",
			       f->end_rows, dr->rows);
	memcpy(done->job, f->job->id, CTL_ID);
	done->type = CTL_FEED_DONE;
	done->u.feed_done.rows = counts.rows;
	done->u.feed_done.held = counts.held;
	done->u.feed_done.bad = counts.bad;
	done->u.feed_done.bytes = counts.bytes;
	return 0;
}

static void *feed_thread(void *arg)
{
	struct feed *f = arg;
	struct call *c = &f->session->call;
	struct drain dr = {
		.max_value = f->max_value, .take = take_value, .give = give_value, .context = f};
	struct ctl_msg done = {0};
	struct err err = {0};
	char why[RING_WHY] = "";
	uint64_t rows;
	bool good;

	if (open_ring(f, &dr, why, &err)) {
		leave(f, c, NULL, &err, 0);
		return NULL;
	}
	announce(f, c, dr.ring, why);
	good = drain_loop(f, &dr) && !finish(f, &dr, &done, &err);
	rows = dr.rows;
	drain_abort(&dr);
	ring_close(dr.ring);
	leave(f, NULL, good ? &done : NULL, err.kind ? &err : NULL, rows);
	return NULL;
}

/* ---- handlers ---- */

/* Is this feed one that the job can take now? */
static int check(struct session *s, const struct job *job, const struct ctl_feed *feed,
		 struct err *err)
{
	static const char *const ring_names[] = {"auto", "memfd", "device"};
	const struct conf *conf = &s->daemon->conf;
	enum ring_backend backend;

	if (s->daemon->stopping)
		return err_set(err, ERR_DRAINING, -ESHUTDOWN, "the daemon is shutting down");
	if (s->feed)
		return err_set(err, ERR_PARAM, -EBUSY, "this connection has a feed open");
	if (job->state > JOB_FEEDING)
		return err_set(err, ERR_PARAM, -EINVAL,
			       "rows can be fed only before the agreement; the job is %s",
			       job_state_name(job));
	if ((feed->set == ROW_PREDICT) != (job->kind == CTL_PREDICTION))
		return err_set(err, ERR_PARAM, -EINVAL, "a %s takes no rows of set %u",
			       job_kind_name[job->kind], feed->set);
	if (feed->x_type == ROW_NONE || feed->x_type >= ROW_TYPE_COUNT ||
	    feed->y_type >= ROW_TYPE_COUNT || (feed->has_y && feed->y_type == ROW_NONE))
		return err_set(err, ERR_PARAM, -EINVAL, "element types %u and %u are not known",
			       feed->x_type, feed->y_type);
	if (choose(conf->ring, feed->ring, &backend))
		return err_set(err, ERR_PARAM, -EINVAL,
			       "gpu_cnn.ring = %s, but this daemon has ring = %s",
			       ring_names[feed->ring <= CONF_RING_DEVICE ? feed->ring : 0],
			       ring_names[conf->ring]);
	if (memory_total_for(s->daemon->memory, MEMORY_RINGS) + conf->ring_bytes > conf->ring_total)
		return err_set(
			err, ERR_LIMIT, -ENOMEM,
			"rings of all jobs would take %" PRIu64 " MB, and ring_total = "
			"%" PRIu64 " MB",
			(memory_total_for(s->daemon->memory, MEMORY_RINGS) + conf->ring_bytes) >>
				20,
			conf->ring_total >> 20);
	return memory_take(job->memory, MEMORY_RINGS, conf->ring_bytes, err);
}

static struct feed *feed_new(struct session *s, struct job *job, const struct ctl_feed *m)
{
	struct feed *f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (f->event < 0) {
		free(f);
		return NULL;
	}
	f->job = job;
	f->session = s;
	f->ring_bytes = s->daemon->conf.ring_bytes;
	f->max_value = s->daemon->conf.max_value;
	choose(s->daemon->conf.ring, m->ring, &f->backend); /* check() has */
	f->types = (struct data_feed){.set = (enum row_set)m->set,
				      .x_type = (enum row_type)m->x_type,
				      .y_type = (enum row_type)m->y_type,
				      .x_array = m->x_array,
				      .y_array = m->y_array,
				      .has_y = m->has_y,
				      .has_weight = m->has_weight,
				      .has_id = m->has_id,
				      .segindex = m->segindex,
				      .feeder = job->next_feeder};
	return f;
}

/* Starts the thread; everything it will look at is set. Lock held. */
static int start(struct session *s, struct job *job, const struct ctl_msg *msg, struct err *err)
{
	struct daemon *d = s->daemon;
	struct feed *f = feed_new(s, job, &msg->u.feed);
	int rc;

	if (!f)
		return err_set(err, ERR_LIMIT, -ENOMEM, "out of memory or descriptors for a feed");
	call_start(s, msg, job, "ring");
	session_get(s);
	s->feed = f;
	LIST_INSERT_HEAD(&job->feeds, f, in_job);
	job->n_feeds++;
	d->n_feed_threads++;
	rc = daemon_thread(feed_thread, f);
	if (!rc) {
		job->next_feeder++;
		job->state = JOB_FEEDING;
		job->feed_types = f->types;
		job->has_feed_types = true;
		return 0;
	}
	d->n_feed_threads--;
	job->n_feeds--;
	LIST_REMOVE(f, in_job);
	s->feed = NULL;
	call_finish_locked(&s->call);
	session_put(s);
	close(f->event);
	free(f);
	return err_set(err, ERR_LIMIT, rc, "cannot start a thread for a feed: %s", strerror(-rc));
}

void feed_begin(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct job *job;
	struct err err = {0};
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = job_lookup(s, msg->job, msg->u.feed.secret, &job, &err);
	if (!rc)
		rc = check(s, job, &msg->u.feed, &err);
	if (!rc) {
		rc = start(s, job, msg, &err);
		if (rc)
			memory_give(job->memory, MEMORY_RINGS, d->conf.ring_bytes);
	}
	pthread_mutex_unlock(&d->lock);
	if (rc)
		session_error(s, &err);
}

void feed_finish(struct session *s, const struct ctl_msg *msg)
{
	struct daemon *d = s->daemon;
	struct feed *f;
	struct err err = {0};

	pthread_mutex_lock(&d->lock);
	f = s->feed;
	/* the job's end has been told, or will be when the thread leaves: that is the answer */
	if (f && f->job->ended) {
		pthread_mutex_unlock(&d->lock);
		return;
	}
	if (f) {
		f->end_rows = msg->u.feed_end.rows;
		f->end_call = call_start(s, msg, f->job, "rows of the ring");
		poke(f);
	} else if (!s->feed_told) {
		err_set(&err, ERR_PARAM, -EINVAL, "this connection has no feed open");
	}
	s->feed_told = false;
	pthread_mutex_unlock(&d->lock);
	if (err.kind)
		session_error(s, &err);
}
