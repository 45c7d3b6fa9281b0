/* SPDX-License-Identifier: MIT */
/*
 * dial.c: sockets of the control thread: dialing hosts of lower identity, accepting the others,
 * closing. Called with the lock held.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "tcp.h"

static void option(int fd, int level, int name, int value)
{
	/* a kernel without one of them still works */
	(void)!setsockopt(fd, level, name, &value, sizeof(value));
}

/*
 * TCP_USER_TIMEOUT also counts a closed window, and a host that comes late to a merge has closed
 * windows on its data connections: so only the control connection has it, which is read at all
 * times. It sees a cut link, and its fault shuts the data sockets.
 */
void tcp_options(const struct tcp_net *t, int fd, enum tcp_kind kind)
{
	option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
	option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
	if (kind == TCP_CONTROL)
		option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)t->config.user_timeout_ms);
	if (t->congestion[0])
		(void)!setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, t->congestion,
				  (socklen_t)strlen(t->congestion));
}

void tcp_conn_close(struct tcp_net *t, struct tcp_conn *c)
{
	struct tcp_conn **at = &t->conn;

	while (*at && *at != c)
		at = &(*at)->next;
	if (*at)
		*at = c->next;
	if (!c->dialer && c->state != CONN_READY)
		t->n_pending--;
	if (c->peer != MERGE_NO_HOST && t->peer[c->peer].control == c)
		t->peer[c->peer].control = NULL;
	if (c->fd >= 0)
		close(c->fd);
	tcp_mac_close(&c->in);
	tcp_mac_close(&c->out);
	free(c);
}

void tcp_drop_all(struct tcp_net *t)
{
	while (t->conn)
		tcp_conn_close(t, t->conn);
	for (uint32_t i = 0; i < MERGE_HOSTS_MAX; i++) {
		struct tcp_peer *p = &t->peer[i];

		if (p->data.fd >= 0)
			close(p->data.fd);
		tcp_mac_close(&p->data.in);
		tcp_mac_close(&p->data.out);
		memset(p, 0, sizeof(*p));
		p->data.fd = -1;
	}
}

static struct tcp_conn *conn_new(struct tcp_net *t, int fd, uint32_t events)
{
	struct tcp_conn *c = calloc(1, sizeof(*c));
	struct epoll_event ev = {.events = events, .data.ptr = c};

	if (!c || epoll_ctl(t->poll_fd, EPOLL_CTL_ADD, fd, &ev)) {
		free(c);
		close(fd);
		return NULL;
	}
	c->fd = fd;
	c->peer = MERGE_NO_HOST;
	c->born = merge_now();
	c->next = t->conn;
	t->conn = c;
	return c;
}

static socklen_t address_of(const struct merge_host *h, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;

	memset(out, 0, sizeof(*out));
	if (inet_pton(AF_INET, h->address, &v4->sin_addr) == 1) {
		v4->sin_family = AF_INET;
		v4->sin_port = htons(h->port);
		return sizeof(*v4);
	}
	if (inet_pton(AF_INET6, h->address, &v6->sin6_addr) != 1)
		return 0;
	v6->sin6_family = AF_INET6;
	v6->sin6_port = htons(h->port);
	return sizeof(*v6);
}

static void dial(struct tcp_net *t, uint32_t peer, enum tcp_kind kind)
{
	struct sockaddr_storage to;
	socklen_t length = address_of(&t->host[peer], &to);
	struct tcp_conn *c;
	int fd = socket(to.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

	t->peer[peer].dialed[kind] = merge_now();
	if (fd < 0)
		return;
	tcp_options(t, fd, kind);
	if (connect(fd, (struct sockaddr *)&to, length) && errno != EINPROGRESS) {
		close(fd);
		return;
	}
	c = conn_new(t, fd, EPOLLOUT);
	if (!c)
		return;
	c->dialer = true;
	c->state = CONN_DIALING;
	c->kind = kind;
	c->peer = peer;
}

static bool underway(const struct tcp_net *t, uint32_t peer, enum tcp_kind kind)
{
	for (const struct tcp_conn *c = t->conn; c; c = c->next)
		if (c->dialer && c->peer == peer && c->kind == kind && c->state != CONN_READY)
			return true;
	return kind == TCP_DATA ? t->peer[peer].data.fd >= 0 : t->peer[peer].control != NULL;
}

void tcp_dial_all(struct tcp_net *t)
{
	double now = merge_now();

	for (uint32_t i = 0; i < t->n_members; i++) {
		uint32_t p = t->member[i];

		if (p >= t->config.self)
			continue;
		for (int kind = 0; kind < 2; kind++)
			if (!underway(t, p, kind) &&
			    now - t->peer[p].dialed[kind] > TCP_REDIAL_MS * 1e-3)
				dial(t, p, kind);
	}
}

/* The oldest that has not said anything sensible gives way, then the oldest of all. */
static void evict(struct tcp_net *t)
{
	struct tcp_conn *oldest = NULL;

	for (struct tcp_conn *c = t->conn; c; c = c->next) {
		if (c->dialer || c->state == CONN_READY)
			continue;
		if (!oldest || (c->state == CONN_NEW && oldest->state != CONN_NEW) ||
		    (c->state == oldest->state && c->born < oldest->born))
			oldest = c;
	}
	if (oldest) {
		t->stats.refused++;
		tcp_conn_close(t, oldest);
	}
}

void tcp_accept_all(struct tcp_net *t)
{
	/* bounded, so that a flood does not keep heartbeats waiting */
	for (int i = 0; i < 64; i++) {
		int fd = accept4(t->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
		struct tcp_conn *c;

		if (fd < 0)
			return;
		if (t->n_pending >= TCP_PENDING_MAX)
			evict(t);
		c = conn_new(t, fd, EPOLLIN);
		if (!c)
			return;
		c->state = CONN_NEW;
		t->n_pending++;
	}
}
