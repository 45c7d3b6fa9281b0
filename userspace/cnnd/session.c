// SPDX-License-Identifier: MIT
/* session.c: a connection's reading, sending and end. See session.h. */
#include "session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "crash.h"
#include "job.h"
#include "log.h"
#include "request.h"

#define PACED (4u << 20)
#define FAULTS 10u
#define UNREAD (64u << 10) /* no further request is read from a client that reads so little */

bool session_text(struct ctl_str text, char *out, size_t capacity)
{
	if (text.n >= capacity || (text.n && memchr(text.p, '\0', text.n)))
		return false;
	if (text.n)
		memcpy(out, text.p, text.n);
	out[text.n] = '\0';
	return true;
}

/* ---- references, the resume list ---- */

void session_get(struct session *s)
{
	atomic_fetch_add(&s->refs, 1);
}

void session_put(struct session *s)
{
	if (atomic_fetch_sub(&s->refs, 1) != 1)
		return;
	ctl_conn_free(s->conn);
	pthread_cond_destroy(&s->sent);
	pthread_mutex_destroy(&s->send);
	free(s);
}

void session_resume(struct session *s)
{
	struct daemon *d = s->daemon;
	bool wake = false;

	pthread_mutex_lock(&d->resume_lock);
	if (!s->resumed) {
		s->resumed = true;
		session_get(s);
		TAILQ_INSERT_TAIL(&d->resume, s, in_resume);
		wake = true;
	}
	pthread_mutex_unlock(&d->resume_lock);
	if (wake)
		daemon_wake(d);
}

/* ---- sending ---- */

int session_send(struct session *s, const struct ctl_msg *msg, const int *fds, int n_fds)
{
	bool resume;
	size_t before;
	int rc = -EPIPE;

	pthread_mutex_lock(&s->send);
	if (!s->broken) {
		before = ctl_pending(s->conn);
		rc = ctl_send(s->conn, msg, fds, n_fds);
		if (rc)
			s->broken = true;
		if (!before)
			s->progress_ms = now_ms();
	}
	/* this may be the answer of a call whose stream waits for room */
	pthread_cond_broadcast(&s->sent);
	resume = s->broken || ctl_pending(s->conn);
	pthread_mutex_unlock(&s->send);
	if (resume)
		session_resume(s);
	return rc;
}

int session_stream(struct call *c, const struct ctl_msg *msg)
{
	struct session *s = c->session;
	struct daemon *d = s->daemon;
	int rc = -EPIPE;

	pthread_mutex_lock(&s->send);
	while (!s->broken && !c->answered && ctl_pending(s->conn) > PACED) {
		struct timespec t;

		/* the deadline of this wait is the control thread's: SESSION_STALL_MS */
		clock_gettime(CLOCK_REALTIME, &t);
		t.tv_sec++;
		pthread_cond_timedwait(&s->sent, &s->send, &t);
	}
	pthread_mutex_unlock(&s->send);
	/* under the lock, so that no frame of the stream comes after the job's end has been told */
	pthread_mutex_lock(&d->lock);
	if (!c->answered)
		rc = session_send(s, msg, NULL, 0);
	pthread_mutex_unlock(&d->lock);
	return rc;
}

void session_error(struct session *s, const struct err *err)
{
	struct ctl_msg m = {.type = CTL_ERROR};

	m.u.error.kind = (uint32_t)(err->kind ? err->kind : ERR_INTERNAL);
	m.u.error.message = ctl_str(err->message, strlen(err->message));
	m.u.error.hint = ctl_str(err->hint, strlen(err->hint));
	session_send(s, &m, NULL, 0);
}

size_t session_pending(struct session *s)
{
	size_t n;

	pthread_mutex_lock(&s->send);
	n = ctl_pending(s->conn);
	pthread_mutex_unlock(&s->send);
	return n;
}

bool session_stalled(struct session *s, uint64_t now)
{
	bool stalled;

	pthread_mutex_lock(&s->send);
	stalled = ctl_pending(s->conn) && now > s->progress_ms + SESSION_STALL_MS;
	pthread_mutex_unlock(&s->send);
	return stalled;
}

void session_kick(struct session *s)
{
	shutdown(ctl_conn_fd(s->conn), SHUT_RDWR);
}

/* Sends what the socket takes. 0, or -errno. */
static int flush(struct session *s)
{
	size_t before, after;
	int rc;

	pthread_mutex_lock(&s->send);
	before = ctl_pending(s->conn);
	rc = before ? ctl_flush(s->conn) : 0;
	after = ctl_pending(s->conn);
	if (rc)
		s->broken = true;
	if (after < before) {
		s->progress_ms = now_ms();
		pthread_cond_broadcast(&s->sent);
	}
	rc = s->broken ? -EPIPE : 0;
	pthread_mutex_unlock(&s->send);
	return rc;
}

/* ---- main thread ---- */

/* The descriptor is readable to the loop only between requests. */
static void watch_events(struct session *s, bool busy)
{
	struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = s};
	size_t pending = session_pending(s);

	if (!busy && !s->closing && pending < UNREAD)
		e.events |= EPOLLIN;
	if (pending)
		e.events |= EPOLLOUT;
	if (e.events == s->epoll_events)
		return;
	s->epoll_events = e.events;
	epoll_ctl(s->daemon->epoll_fd, EPOLL_CTL_MOD, ctl_conn_fd(s->conn), &e);
}

static bool is_busy(struct session *s)
{
	bool busy;

	pthread_mutex_lock(&s->daemon->lock);
	busy = s->call.active;
	pthread_mutex_unlock(&s->daemon->lock);
	return busy;
}

/* A client that does it again and again must not fill the log: ten lines a second. */
static void log_fault(struct session *s, const struct err *err)
{
	struct daemon *d = s->daemon;
	uint64_t now = now_ms();

	if (now > d->faults_ms + 1000) {
		if (d->faults > FAULTS)
			log_warn(LOG_CODE("protocol"), "%u more malformed frames are not logged",
				 d->faults - FAULTS);
		d->faults_ms = now;
		d->faults = 0;
	}
	if (d->faults++ < FAULTS)
		log_warn(LOG_CODE("protocol"), "client uid %u pid %d: %s", (unsigned int)s->uid,
			 (int)s->pid, err->message);
}

static void fail(struct session *s, const struct err *err)
{
	log_fault(s, err);
	session_error(s, err);
	s->closing = true;
}

/* Reads requests until one is in work or nothing whole is there. False: closed. got: a frame came.
 */
static bool read_requests(struct session *s, bool *got)
{
	struct ctl_msg msg;
	struct err err;
	int rc;

	while (!s->closing && !is_busy(s) && session_pending(s) < UNREAD) {
		memset(&err, 0, sizeof(err));
		rc = ctl_recv(s->conn, &msg, NULL, NULL, &err);
		if (!rc)
			break;
		if (rc == -EPROTO) {
			fail(s, &err);
			break;
		}
		if (rc < 0) {
			session_close(s, "its client has closed the connection");
			return false;
		}
		*got = true;
		if (request_dispatch(s, &msg, &err))
			fail(s, &err);
	}
	return true;
}

/* Everything that may have become possible: send, read, close. */
static void turn(struct session *s, bool hangup)
{
	bool busy, partial, got = false;

	if (flush(s)) {
		session_close(s, "its client does not read any more");
		return;
	}
	if (!read_requests(s, &got))
		return;
	busy = is_busy(s);
	if (hangup && (busy || session_pending(s) >= UNREAD)) {
		session_close(s, "its client went away in the middle of a call");
		return;
	}
	if (s->closing && (hangup || !session_pending(s))) {
		session_close(s, "closed after an error");
		return;
	}
	partial = !busy && ctl_partial(s->conn);
	pthread_mutex_lock(&s->daemon->lock);
	if (!partial)
		s->partial_ms = 0;
	else if (!s->partial_ms || got)
		s->partial_ms = now_ms();
	pthread_mutex_unlock(&s->daemon->lock);
	watch_events(s, busy);
}

void session_event(struct session *s, uint32_t events)
{
	turn(s, events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR));
}

void session_resume_all(struct daemon *d)
{
	struct session *s;

	for (;;) {
		pthread_mutex_lock(&d->resume_lock);
		s = TAILQ_FIRST(&d->resume);
		if (s) {
			TAILQ_REMOVE(&d->resume, s, in_resume);
			s->resumed = false;
		}
		pthread_mutex_unlock(&d->resume_lock);
		if (!s)
			return;
		if (!s->closed)
			turn(s, false);
		session_put(s);
	}
}

void session_close(struct session *s, const char *why)
{
	struct daemon *d = s->daemon;
	int fd = ctl_conn_fd(s->conn);

	epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
	crash_forget(fd);
	shutdown(fd, SHUT_RDWR);
	pthread_mutex_lock(&s->send);
	s->broken = true;
	pthread_cond_broadcast(&s->sent);
	pthread_mutex_unlock(&s->send);

	pthread_mutex_lock(&d->lock);
	s->closed = true;
	LIST_REMOVE(s, link);
	d->n_sessions--;
	job_session_closed(s, why);
	/* nobody reads the answer of a call that is still in work */
	s->call.answered = true;
	pthread_mutex_unlock(&d->lock);
	session_put(s);
}
