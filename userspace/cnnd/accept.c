// SPDX-License-Identifier: MIT
/* accept.c: a new connection: who is it (SO_PEERCRED), what may it do, is there room for it. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "crash.h"
#include "log.h"
#include "session.h"

/* Best effort: the client reads the reason as the answer to its HELLO. */
static void refuse(int fd, const struct err *err)
{
	struct ctl_msg m = {.type = CTL_ERROR};
	uint8_t frame[4096];
	long n;

	m.u.error.kind = (uint32_t)err->kind;
	m.u.error.message = ctl_str(err->message, strlen(err->message));
	m.u.error.hint = ctl_str(err->hint, strlen(err->hint));
	n = ctl_encode(&m, frame, sizeof(frame));
	if (n > 0)
		(void)!send(fd, frame, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static int check_room(struct daemon *d, uid_t uid, struct err *err)
{
	const struct session *s;
	unsigned int own = 0;

	if (d->n_sessions >= d->conf.max_connections)
		return err_set(err, ERR_LIMIT, -EMFILE,
			       "%u connections are open, and max_connections = %u", d->n_sessions,
			       d->conf.max_connections);
	LIST_FOREACH (s, &d->sessions, link)
		own += s->uid == uid;
	if (own >= d->conf.max_connections_per_uid)
		return err_set(err, ERR_LIMIT, -EMFILE,
			       "%u connections of user id %u are open, and "
			       "max_connections_per_uid = %u",
			       own, (unsigned int)uid, d->conf.max_connections_per_uid);
	return 0;
}

static struct session *session_new(struct daemon *d, int fd, const struct ucred *peer)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	if (ctl_conn_new(fd, &s->conn)) {
		free(s);
		return NULL;
	}
	s->daemon = d;
	atomic_init(&s->refs, 1);
	s->uid = peer->uid;
	s->pid = peer->pid;
	s->created_ms = now_ms();
	pthread_mutex_init(&s->send, NULL);
	pthread_cond_init(&s->sent, NULL);
	return s;
}

/* Into the epoll set and the list. */
static int enter(struct daemon *d, struct session *s, int fd, struct err *err)
{
	struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = s};
	int rc;

	pthread_mutex_lock(&d->lock);
	rc = check_room(d, s->uid, err);
	if (!rc) {
		s->database = conf_has_uid(&d->conf.database_uids, s->uid);
		s->admin = s->uid == geteuid() || conf_has_uid(&d->conf.admin_uids, s->uid);
		if (epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &e))
			rc = err_set(err, ERR_LIMIT, -errno, "epoll: %s", strerror(errno));
	}
	if (!rc) {
		s->epoll_events = e.events;
		LIST_INSERT_HEAD(&d->sessions, s, link);
		d->n_sessions++;
	}
	pthread_mutex_unlock(&d->lock);
	return rc;
}

void session_accept(struct daemon *d, int fd)
{
	struct ucred peer;
	socklen_t n = sizeof(peer);
	struct session *s;
	struct err err = {0};

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n)) {
		close(fd);
		return;
	}
	s = session_new(d, fd, &peer);
	if (!s) {
		close(fd);
		return;
	}
	if (enter(d, s, fd, &err)) {
		log_debug(LOG_CODE("limit"), "connection of uid %u pid %d refused: %s",
			  (unsigned int)peer.uid, (int)peer.pid, err.message);
		refuse(fd, &err);
		session_put(s);
		return;
	}
	crash_watch(fd);
}
