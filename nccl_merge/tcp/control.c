/* SPDX-License-Identifier: MIT */
/*
 * control.c: the control thread. It meshes, sends a heartbeat each second, listens to those of the
 * others, and turns the first fault into the state FAILED, for this host by shutting the data
 * sockets, for the others by a frame that names who is to blame.
 */
#include <netinet/in.h>
#include <openssl/rand.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../ucx/ucx.h"

const char *tcp_name(const struct tcp_net *t, uint32_t host)
{
	return host < t->n_hosts ? t->host[host].name : "(unknown)";
}

bool tcp_is_member(const struct tcp_net *t, uint32_t host)
{
	for (uint32_t i = 0; i < t->n_members; i++)
		if (t->member[i] == host)
			return true;
	return false;
}

static void send_frame(struct tcp_net *t, struct tcp_conn *c, uint32_t type, uint32_t host,
		       const char *text)
{
	struct tcp_control_frame f = {.magic = TCP_MAGIC,
				      .type = type,
				      .epoch = t->epoch,
				      .host = host,
				      .seq = c->out.seq};

	snprintf(f.text, sizeof(f.text), "%s", text);
	if (!tcp_mac_make(&c->out, &f, offsetof(struct tcp_control_frame, tag), NULL, 0, f.tag))
		return;
	/* one that does not fit is a stream out of step: the peer has been silent long enough */
	if (tcp_send_all(c->fd, &f, sizeof(f)))
		shutdown(c->fd, SHUT_WR);
}

void tcp_fault_locked(struct tcp_net *t, int code, uint32_t host, const char *fmt, ...)
{
	va_list ap;

	if (t->state != NET_READY && t->state != NET_MESHING)
		return;
	t->state = NET_FAILED;
	t->why.code = code;
	t->why.host = host;
	va_start(ap, fmt);
	vsnprintf(t->why.message, sizeof(t->why.message), fmt, ap);
	va_end(ap);
	for (uint32_t i = 0; i < t->n_members; i++) {
		struct tcp_peer *p = &t->peer[t->member[i]];

		if (p->control)
			send_frame(t, p->control, TCP_FAULT, host, t->why.message);
		if (p->data.fd >= 0)
			shutdown(p->data.fd, SHUT_RDWR);
	}
	pthread_cond_broadcast(&t->change);
}

void tcp_abort(struct merge_net *net)
{
	struct tcp_net *t = (struct tcp_net *)net;

	pthread_mutex_lock(&t->lock);
	t->aborted = true;
	tcp_fault_locked(t, -ECANCELED, t->config.self, "the job was ended on host %s",
			 tcp_name(t, t->config.self));
	pthread_cond_broadcast(&t->change);
	pthread_mutex_unlock(&t->lock);
}

/* ---- mesh ------------------------------------------------------------------------------------ */

static void finish_mesh(struct tcp_net *t)
{
	struct epoll_event ev = {.events = EPOLLIN | EPOLLOUT | EPOLLET};

	for (uint32_t i = 0; i < t->n_members; i++) {
		uint32_t p = t->member[i];

		if (p != t->config.self && (t->peer[p].data.fd < 0 || !t->peer[p].control))
			return;
	}
	for (uint32_t i = 0; i < t->n_members; i++) {
		int fd = t->peer[t->member[i]].data.fd;

		ev.data.u32 = t->member[i];
		if (fd >= 0 && epoll_ctl(t->data_poll, EPOLL_CTL_ADD, fd, &ev) && errno != EEXIST)
			tcp_fault_locked(t, -errno, MERGE_NO_HOST, "epoll: %s", strerror(errno));
	}
	if (t->state == NET_MESHING)
		t->state = NET_READY;
	pthread_cond_broadcast(&t->change);
}

static void missed_deadline(struct tcp_net *t)
{
	for (uint32_t i = 0; i < t->n_members; i++) {
		uint32_t p = t->member[i];

		if (p == t->config.self || (t->peer[p].data.fd >= 0 && t->peer[p].control))
			continue;
		t->peer[p].lost = true;
		tcp_fault_locked(
			t, -ETIMEDOUT, p, "host %s (%s port %u) did not connect within %.0f s%s%s",
			tcp_name(t, p), t->host[p].address, t->host[p].port, t->mesh_seconds,
			t->refused_text[0] ? "; last refused: " : "", t->refused_text);
	}
}

/* A finished handshake becomes the peer's data stream or control connection. */
static void adopt(struct tcp_net *t, struct tcp_conn *c)
{
	struct tcp_peer *p = &t->peer[c->peer];
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};

	if (!tcp_is_member(t, c->peer) ||
	    !tcp_mac_open(&c->in, t->config.secret, c->dialer ? "from acceptor" : "from dialer",
			  c) ||
	    !tcp_mac_open(&c->out, t->config.secret, c->dialer ? "from dialer" : "from acceptor",
			  c)) {
		tcp_conn_close(t, c);
		return;
	}
	if (t->state != NET_MESHING) {
		/* the mesh failed meanwhile: the peer shall hear why, not see a closed connection
		 */
		if (c->kind == TCP_CONTROL && t->state == NET_FAILED)
			send_frame(t, c, TCP_FAULT, t->why.host, t->why.message);
		tcp_conn_close(t, c);
		return;
	}
	tcp_options(t, c->fd, c->kind);
	if (!c->dialer)
		t->n_pending--;
	c->state = CONN_READY;
	if (c->kind == TCP_CONTROL) {
		if (p->control)
			tcp_conn_close(t, p->control);
		p->control = c;
		p->heard = merge_now();
		epoll_ctl(t->poll_fd, EPOLL_CTL_MOD, c->fd, &ev);
	} else {
		epoll_ctl(t->poll_fd, EPOLL_CTL_DEL, c->fd, NULL);
		if (p->data.fd >= 0)
			close(p->data.fd);
		tcp_mac_close(&p->data.in);
		tcp_mac_close(&p->data.out);
		p->data = (struct tcp_stream){.fd = c->fd, .in = c->in, .out = c->out};
		c->fd = -1;
		c->in.ctx = c->out.ctx = NULL;
		tcp_conn_close(t, c);
	}
	finish_mesh(t);
}

/* ---- events ---------------------------------------------------------------------------------- */

static void got_frame(struct tcp_net *t, struct tcp_conn *c)
{
	struct tcp_control_frame f;

	memcpy(&f, c->buffer, sizeof(f));
	c->have = 0;
	f.text[sizeof(f.text) - 1] = 0;
	if (f.magic != TCP_MAGIC || f.seq != c->in.seq || f.epoch != t->epoch ||
	    !tcp_mac_good(&c->in, c->buffer, offsetof(struct tcp_control_frame, tag), NULL, 0,
			  f.tag)) {
		tcp_fault_locked(t, -EBADMSG, c->peer,
				 "host %s sent a forged or damaged control frame",
				 tcp_name(t, c->peer));
		return;
	}
	t->peer[c->peer].heard = merge_now();
	if (f.type == TCP_LEAVE)
		t->peer[c->peer].left = true;
	if (f.type != TCP_FAULT)
		return;
	if (f.host < t->n_hosts && f.host != t->config.self)
		t->peer[f.host].lost = true;
	for (char *p = f.text; *p; p++)
		if (*p < ' ' || *p > '~')
			*p = '?';
	tcp_fault_locked(t, -ECONNABORTED, f.host, "host %s: %s", tcp_name(t, c->peer), f.text);
}

static bool path_cut(int rc)
{
	return rc == -ETIMEDOUT || rc == -EHOSTUNREACH || rc == -ENETUNREACH;
}

static void conn_ended(struct tcp_net *t, struct tcp_conn *c, int rc)
{
	uint32_t peer = c->peer;
	bool control = c->state == CONN_READY;

	if (c->state == CONN_WAIT_PROOF) {
		t->stats.refused++;
		snprintf(t->refused_text, sizeof(t->refused_text),
			 "a caller that said it was %s hung up before it had proved the secret",
			 tcp_name(t, peer));
	}
	tcp_conn_close(t, c);
	if (!control)
		return;
	t->peer[peer].lost = true;
	if (t->peer[peer].left)
		return;
	if (rc)
		/* an answer that did not come for too long is silence, for who has to judge */
		tcp_fault_locked(t, path_cut(rc) ? -ETIMEDOUT : -ECONNRESET, peer,
				 "lost host %s: %s", tcp_name(t, peer), strerror(-rc));
	else
		tcp_fault_locked(t, -ECONNRESET, peer, "lost host %s: its connection was closed",
				 tcp_name(t, peer));
}

static void conn_readable(struct tcp_net *t, struct tcp_conn *c)
{
	for (;;) {
		size_t wanted = tcp_hello_wanted(c);
		ssize_t n = recv(c->fd, c->buffer + c->have, wanted - c->have, MSG_DONTWAIT);
		int rc;

		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (n <= 0) {
			conn_ended(t, c, n ? -errno : 0);
			return;
		}
		c->have += (size_t)n;
		if (c->have < wanted)
			return;
		if (c->state == CONN_READY) {
			got_frame(t, c);
			continue;
		}
		rc = tcp_hello_step(t, c);
		if (rc < 0)
			tcp_conn_close(t, c);
		if (rc > 0)
			adopt(t, c);
		if (rc)
			return;
	}
}

static void conn_event(struct tcp_net *t, struct tcp_conn *c, uint32_t events)
{
	struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
	int failed = 0;
	socklen_t length = sizeof(failed);

	if (c->state != CONN_DIALING) {
		conn_readable(t, c);
		return;
	}
	if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &failed, &length) || failed ||
	    (events & (EPOLLERR | EPOLLHUP))) {
		tcp_conn_close(t, c);
		return;
	}
	tcp_hello_fill(t, &c->mine, c->peer, c->kind);
	if (RAND_bytes(c->mine.nonce, sizeof(c->mine.nonce)) != 1 ||
	    epoll_ctl(t->poll_fd, EPOLL_CTL_MOD, c->fd, &ev) ||
	    tcp_send_all(c->fd, &c->mine, sizeof(c->mine))) {
		tcp_conn_close(t, c);
		return;
	}
	c->state = CONN_WAIT_HELLO;
}

/* A connection may be closed by the event of another one in the same batch. */
static bool still_there(const struct tcp_net *t, const struct tcp_conn *c)
{
	for (const struct tcp_conn *i = t->conn; i; i = i->next)
		if (i == c)
			return true;
	return false;
}

/* ---- time -------------------------------------------------------------------------------------
 */

static void check_silence(struct tcp_net *t, double now)
{
	double silence = t->config.silence_ms * 1e-3;
	bool stopped = now - t->ticked > silence / 2;

	for (uint32_t i = 0; i < t->n_members; i++) {
		uint32_t p = t->member[i];

		if (!t->peer[p].control)
			continue;
		/* who was stopped itself cannot tell who was silent */
		if (stopped)
			t->peer[p].heard = now;
		if (now - t->peer[p].heard <= silence || t->peer[p].lost)
			continue;
		t->peer[p].lost = true;
		tcp_fault_locked(t, -ETIMEDOUT, p, "lost host %s: no heartbeat for %.1f s",
				 tcp_name(t, p), now - t->peer[p].heard);
	}
}

static void heartbeat(struct tcp_net *t)
{
	for (uint32_t i = 0; i < t->n_members; i++) {
		struct tcp_conn *c = t->peer[t->member[i]].control;

		if (c)
			send_frame(t, c, TCP_HEARTBEAT, t->config.self, "");
	}
}

static void tick(struct tcp_net *t)
{
	double now = merge_now();
	struct tcp_conn *next;

	for (struct tcp_conn *c = t->conn; c; c = next) {
		next = c->next;
		if (c->state == CONN_READY || now - c->born < TCP_PENDING_MS * 1e-3)
			continue;
		if (!c->dialer) {
			t->stats.refused++;
			snprintf(t->refused_text, sizeof(t->refused_text),
				 "a greeting took too long");
		}
		tcp_conn_close(t, c);
	}
	if (now - t->beat >= TCP_HEARTBEAT_MS * 1e-3) {
		heartbeat(t);
		t->beat = now;
	}
	check_silence(t, now);
	t->ticked = now;
	if (t->state != NET_MESHING)
		return;
	if (now > t->mesh_deadline)
		missed_deadline(t);
	else
		tcp_dial_all(t);
}

static void begin_mesh(struct tcp_net *t)
{
	t->remesh = false;
	if (t->aborted)
		return;
	tcp_drop_all(t);
	t->refused_text[0] = 0;
	t->mesh_deadline = merge_now() + t->mesh_seconds;
	t->state = NET_MESHING;
	finish_mesh(t);
}

void *tcp_control_main(void *context)
{
	struct tcp_net *t = context;
	struct epoll_event ev[32];
	uint64_t word;

	pthread_mutex_lock(&t->lock);
	while (t->state != NET_CLOSING) {
		int wait = t->state == NET_MESHING ? 20 : 100, tend = ucx_tend(t->ucx), n;

		if (tend && tend < wait)
			wait = tend;
		pthread_mutex_unlock(&t->lock);
		n = epoll_wait(t->poll_fd, ev, 32, wait);
		pthread_mutex_lock(&t->lock);
		/* first, so that frames of the old epoch are not taken for forged ones */
		if (t->remesh && t->state != NET_CLOSING)
			begin_mesh(t);
		for (int i = 0; i < n; i++) {
			if (ev[i].data.ptr == &t->wake_fd)
				(void)!read(t->wake_fd, &word, sizeof(word));
			else if (ev[i].data.ptr == &t->listen_fd)
				tcp_accept_all(t);
			else if (still_there(t, ev[i].data.ptr))
				conn_event(t, ev[i].data.ptr, ev[i].events);
		}
		if (t->state != NET_CLOSING)
			tick(t);
	}
	for (uint32_t i = 0; i < t->n_members; i++)
		if (t->peer[t->member[i]].control)
			send_frame(t, t->peer[t->member[i]].control, TCP_LEAVE, t->config.self, "");
	tcp_drop_all(t);
	pthread_mutex_unlock(&t->lock);
	return NULL;
}
