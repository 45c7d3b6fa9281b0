// SPDX-License-Identifier: MIT
/* members.c: see members.h: the thread, its connections and their greetings. */
#include "members.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lead.h"
#include "link.h"
#include "log.h"
#include "member_net.h"

#define EVENTS 64
#define ACCEPTS 64 /* of one turn: a flood does not keep heartbeats waiting */
#define TICK_MS 100
#define STOPPED_MS 2000u /* this process itself was stopped */

/* ---- connections ---- */

void members_wake(struct members *m)
{
	uint64_t one = 1;

	(void)!write(m->wake_fd, &one, sizeof(one));
}

static bool pending(const struct member_conn *c)
{
	return !c->mine && !c->lead && c->wire.leads;
}

static struct member_conn *conn_new(struct members *m, int fd, uint32_t events)
{
	struct member_conn *c = calloc(1, sizeof(*c));
	struct epoll_event e = {.events = events, .data.ptr = c};

	if (!c || epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
		free(c);
		close(fd);
		return NULL;
	}
	c->fd = fd;
	c->born_ms = now_ms();
	LIST_INSERT_HEAD(&m->conns, c, link);
	return c;
}

void members_drop(struct members *m, struct member_conn *c)
{
	if (c->dead)
		return;
	if (pending(c))
		m->n_pending--;
	c->dead = true;
	c->mine = NULL;
	c->lead = NULL;
	c->member = NULL;
	/* what is sent arrives; nothing is taken any more */
	shutdown(c->fd, SHUT_WR);
	members_wake(m);
}

static bool send_all(const struct member_conn *c, const void *data, size_t bytes)
{
	return send(c->fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes;
}

void members_send(struct members *m, struct member_conn *c, const struct wire_frame *frame)
{
	uint8_t out[WIRE_FRAME];

	if (c->dead || c->wire.state != WIRE_OPEN)
		return;
	c->beat_ms = now_ms();
	/* a frame a second that does not fit: the peer has not read for a long time, or the path
	 * is gone; the end of the connection comes as an event */
	if (!wire_put(&c->wire, frame, out) || !send_all(c, out, sizeof(out)))
		shutdown(c->fd, SHUT_RDWR);
}

/* What its owner has to do comes first. code: 0 closed, else an errno. */
static void conn_ended(struct members *m, struct member_conn *c, int code)
{
	struct link *link = c->mine;

	if (link)
		link_conn_ended(link, code);
	else if (c->member)
		lead_conn_ended(c->lead, c->member, code);
	else
		m->refused++;
	members_drop(m, c);
}

struct member_conn *members_dial(struct members *m, struct link *link, const char *address,
				 uint16_t port, struct err *err)
{
	struct member_conn *c;
	int fd = member_net_dial(address, port);

	if (fd < 0) {
		err_set(err, ERR_LOST, fd, "%s", strerror(-fd));
		return NULL;
	}
	c = conn_new(m, fd, EPOLLOUT);
	if (!c) {
		err_set(err, ERR_LIMIT, -ENOMEM, "out of memory for a connection");
		return NULL;
	}
	c->dialing = true;
	c->mine = link;
	members_wake(m);
	return c;
}

/* ---- accepting ---- */

/* The oldest that has said nothing gives way, then the oldest of all. */
static void evict(struct members *m)
{
	struct member_conn *c, *oldest = NULL;

	LIST_FOREACH (c, &m->conns, link) {
		bool silent = c->wire.state == WIRE_WAIT_HELLO;

		if (c->dead || !pending(c))
			continue;
		if (!oldest || (silent && oldest->wire.state != WIRE_WAIT_HELLO) ||
		    (silent == (oldest->wire.state == WIRE_WAIT_HELLO) &&
		     c->born_ms < oldest->born_ms))
			oldest = c;
	}
	if (!oldest)
		return;
	conn_ended(m, oldest, ECONNABORTED);
	/* not at the turn's end with the others: a flood would hold a turn's worth of descriptors */
	close(oldest->fd);
	oldest->fd = -1;
}

static void accept_all(struct members *m)
{
	for (int i = 0; i < ACCEPTS && m->listen_fd >= 0; i++) {
		int fd = accept4(m->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct member_conn *c;

		if (fd < 0)
			return;
		if (m->n_pending >= MEMBERS_PENDING)
			evict(m);
		member_net_options(fd);
		c = conn_new(m, fd, EPOLLIN);
		if (!c)
			return;
		wire_accept(&c->wire);
		m->n_pending++;
	}
}

int members_listen(struct members *m, struct err *err)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = &m->listen_fd};
	const struct conf *conf = &m->daemon->conf;
	int fd;

	if (m->listen_fd >= 0)
		return 0;
	fd = member_net_listen(conf->merge_listen, &conf->merge_ports, m->address,
			       sizeof(m->address), err);
	if (fd < 0)
		return fd;
	if (epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, fd, &e)) {
		err_set(err, ERR_LIMIT, -errno, "epoll: %s", strerror(errno));
		close(fd);
		return -errno;
	}
	m->listen_fd = fd;
	return 0;
}

void members_unlisten(struct members *m)
{
	if (m->listen_fd < 0)
		return;
	close(m->listen_fd);
	m->listen_fd = -1;
}

/* ---- greetings ---- */

/* The hello is here: who is meant. */
static bool answer(struct members *m, struct member_conn *c)
{
	uint8_t job[CTL_ID], uuid[CTL_ID], out[WIRE_ANSWER];
	const struct lead *lead;

	wire_named(&c->wire, job, uuid);
	lead = lead_find(m, job);
	return wire_answer(&c->wire, lead ? lead_secret(lead) : NULL, out) &&
	       send_all(c, out, sizeof(out));
}

/* The greeting is done on the leader's side. */
static bool join(struct members *m, struct member_conn *c, struct err *err)
{
	uint8_t job[CTL_ID], uuid[CTL_ID];
	struct lead *lead;

	wire_named(&c->wire, job, uuid);
	lead = lead_find(m, job); /* it may have ended since the hello */
	if (!lead || lead_join(lead, c, uuid, err))
		return false;
	m->n_pending--;
	return true;
}

/* False: the connection is over. */
static bool greet(struct members *m, struct member_conn *c)
{
	uint8_t out[WIRE_ANSWER];
	struct err err = {0};
	size_t n;
	int rc = wire_step(&c->wire, out, &n, &err);

	if (rc) {
		log_debug(LOG_CODE("member"), "greeting refused: %s", err.message);
		if (c->mine)
			link_refused(c->mine, rc, &err);
		return false;
	}
	if (n && !send_all(c, out, n))
		return false;
	if (c->wire.state == WIRE_HAVE_HELLO)
		return answer(m, c);
	if (c->wire.state != WIRE_OPEN)
		return true;
	if (c->mine)
		link_greeted(c->mine);
	else if (!join(m, c, &err))
		return false;
	return true;
}

/* ---- events ---- */

static bool take(struct members *m, struct member_conn *c)
{
	struct wire_frame f;
	struct err err = {0};

	if (c->wire.state != WIRE_OPEN)
		return greet(m, c);
	if (wire_get(&c->wire, &f, &err)) {
		log_warn(LOG_CODE("member"), "a link is cut: %s", err.message);
		return false;
	}
	if (c->mine)
		link_frame(c->mine, &f);
	else
		lead_frame(c->lead, c->member, &f);
	return true;
}

static void readable(struct members *m, struct member_conn *c)
{
	while (!c->dead) {
		struct wire *w = &c->wire;
		size_t wanted = wire_wanted(w);
		ssize_t n = recv(c->fd, w->in + w->have, wanted - w->have, MSG_DONTWAIT);

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			conn_ended(m, c, n ? errno : 0);
			return;
		}
		w->have += (size_t)n;
		if (w->have < wanted)
			return;
		if (!take(m, c) && !c->dead)
			conn_ended(m, c, EBADMSG);
	}
}

/* connect() is over. */
static void connected(struct members *m, struct member_conn *c)
{
	struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
	uint8_t hello[WIRE_HELLO];
	socklen_t n = sizeof(int);
	int failed = 0;

	c->dialing = false;
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failed, &n) || failed) {
		conn_ended(m, c, failed ? failed : EIO);
		return;
	}
	member_net_options(c->fd);
	if (!link_hello(c->mine, &c->wire, hello) ||
	    epoll_ctl(m->epoll_fd, EPOLL_CTL_MOD, c->fd, &e) || !send_all(c, hello, sizeof(hello)))
		conn_ended(m, c, EIO);
}

static void one_event(struct members *m, const struct epoll_event *e)
{
	struct member_conn *c = e->data.ptr;
	uint64_t word;

	if (e->data.ptr == &m->wake_fd)
		(void)!read(m->wake_fd, &word, sizeof(word));
	else if (e->data.ptr == &m->listen_fd)
		accept_all(m);
	else if (c->dead)
		return;
	else if (c->dialing)
		connected(m, c);
	else
		readable(m, c);
}

static void reap(struct members *m)
{
	struct member_conn *c, *next;

	for (c = LIST_FIRST(&m->conns); c; c = next) {
		next = LIST_NEXT(c, link);
		if (!c->dead)
			continue;
		LIST_REMOVE(c, link);
		if (c->fd >= 0)
			close(c->fd);
		explicit_bzero(&c->wire, sizeof(c->wire));
		free(c);
	}
}

/* ---- time ---- */

static void tick(struct members *m)
{
	uint64_t now = now_ms();
	/* who was stopped cannot tell who was silent meanwhile */
	bool stopped = now > m->ticked_ms + STOPPED_MS;
	struct member_conn *c;
	struct lead *lead, *next_lead;
	struct link *link, *next_link;

	LIST_FOREACH (c, &m->conns, link)
		if (!c->dead && c->wire.state != WIRE_OPEN && now > c->born_ms + MEMBERS_GREET_MS)
			conn_ended(m, c, ETIMEDOUT);
	for (lead = LIST_FIRST(&m->leads); lead; lead = next_lead) {
		next_lead = lead_next(lead);
		lead_tick(lead, now, stopped);
	}
	for (link = LIST_FIRST(&m->links); link; link = next_link) {
		next_link = link_next(link);
		link_tick(link, now, stopped);
	}
	m->ticked_ms = now;
}

static void *members_thread(void *arg)
{
	struct members *m = arg;
	struct daemon *d = m->daemon;
	struct epoll_event events[EVENTS];

	pthread_mutex_lock(&d->lock);
	while (!m->quit) {
		bool idle = LIST_EMPTY(&m->conns) && !m->n_leads && !m->n_links;
		int n;

		if (idle)
			m->ticked_ms = UINT64_MAX - STOPPED_MS; /* it does not tick */
		pthread_mutex_unlock(&d->lock);
		n = epoll_wait(m->epoll_fd, events, EVENTS, idle ? -1 : TICK_MS);
		pthread_mutex_lock(&d->lock);
		for (int i = 0; i < n; i++)
			one_event(m, &events[i]);
		tick(m);
		reap(m);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

int members_create(struct daemon *d, struct members **out)
{
	struct epoll_event wake = {.events = EPOLLIN};
	struct members *m = calloc(1, sizeof(*m));
	int rc = 0;

	if (!m)
		return -ENOMEM;
	m->daemon = d;
	m->listen_fd = -1;
	LIST_INIT(&m->conns);
	LIST_INIT(&m->leads);
	LIST_INIT(&m->links);
	m->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	wake.data.ptr = &m->wake_fd;
	if (m->epoll_fd < 0 || m->wake_fd < 0 ||
	    epoll_ctl(m->epoll_fd, EPOLL_CTL_ADD, m->wake_fd, &wake))
		rc = -errno;
	if (!rc)
		rc = -pthread_create(&m->thread, NULL, members_thread, m);
	if (rc) {
		if (m->epoll_fd >= 0)
			close(m->epoll_fd);
		if (m->wake_fd >= 0)
			close(m->wake_fd);
		free(m);
		return rc;
	}
	*out = m;
	return 0;
}

void members_free(struct members *m)
{
	struct member_conn *c;

	if (!m)
		return;
	pthread_mutex_lock(&m->daemon->lock);
	m->quit = true;
	pthread_mutex_unlock(&m->daemon->lock);
	members_wake(m);
	pthread_join(m->thread, NULL);
	LIST_FOREACH (c, &m->conns, link)
		c->dead = true;
	reap(m);
	members_unlisten(m);
	close(m->epoll_fd);
	close(m->wake_fd);
	free(m);
}
