/* SPDX-License-Identifier: MIT */
/*
 * round.c: the data connections. Frames of at most 256 KB whose lengths follow from the plan on
 * both sides: what a peer says is only compared. A frame counts when its MAC is good; until then
 * its bytes lie in a staging buffer that nobody reads.
 */
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#include "tcp.h"

#define BLAME_MS 300 /* how long the control thread has to say who really failed */
#define SLOWEST 1e6  /* bytes a second; below that a merge is given up although it moves */

static size_t frame_length(size_t total, size_t at, size_t most)
{
	return total - at < most ? total - at : most;
}

struct tcp_piece tcp_piece_at(const void *one, size_t one_len, const void *two, size_t two_len,
			      size_t at, size_t most)
{
	bool second = at >= one_len;
	size_t in = second ? at - one_len : at;
	size_t length = frame_length(second ? two_len : one_len, in, most);

	return (struct tcp_piece){(char *)(second ? two : one) + in, length,
				  second ? in + length : 0};
}

/* Names the fault: the control thread's word if it comes soon, else what this thread saw. */
int tcp_blame(struct tcp_course *c, uint32_t host, int code, const char *what,
	      struct merge_error *error)
{
	struct tcp_net *t = c->t;
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += BLAME_MS * 1000000L;
	until.tv_sec += until.tv_nsec / 1000000000L;
	until.tv_nsec %= 1000000000L;
	pthread_mutex_lock(&t->lock);
	while (!rc && code == -ECONNRESET && t->state == NET_READY)
		rc = pthread_cond_timedwait(&t->change, &t->lock, &until);
	tcp_fault_locked(t, code, host, "host %s: %s in the %s of merge %llu", tcp_name(t, host),
			 what, c->round->what, (unsigned long long)c->round->merge);
	code = t->why.code;
	if (error)
		*error = t->why;
	pthread_mutex_unlock(&t->lock);
	return code;
}

/* header + payload + tag, from where the frame stands */
static int slices(struct iovec *v, void *header, void *payload, size_t length, void *tag, size_t at)
{
	void *part[3] = {header, payload, tag};
	size_t size[3] = {sizeof(struct tcp_header), length, TCP_TAG};
	int n = 0;

	for (int i = 0; i < 3; i++) {
		if (at >= size[i]) {
			at -= size[i];
			continue;
		}
		v[n].iov_base = (char *)part[i] + at;
		v[n++].iov_len = size[i] - at;
		at = 0;
	}
	return n;
}

static int pump_out(struct tcp_course *c, struct merge_xfer *x, struct tcp_stream *s,
		    const char **what)
{
	while (x->sent < x->send_len + x->send2_len) {
		struct tcp_piece p = tcp_piece_at(x->send, x->send_len, x->send2, x->send2_len,
						  x->sent, TCP_FRAME);
		size_t length = p.length;
		void *payload = p.payload;
		struct iovec v[3];
		struct msghdr m = {.msg_iov = v};
		ssize_t n;

		if (p.end && *x->ready < p.end)
			return 0;
		/* once per frame, also if none of it could be sent at first */
		if (!s->framed) {
			s->framed = true;
			s->out_header = (struct tcp_header){.magic = TCP_MAGIC,
							    .epoch = c->t->net.epoch,
							    .seq = s->out.seq,
							    .merge = c->round->merge,
							    .what = c->what,
							    .length = (uint32_t)length};
			memset(s->out_tag, 0, TCP_TAG);
			if (c->t->config.no_mac) {
				s->out.seq++;
			} else if (!tcp_mac_make(&s->out, &s->out_header, sizeof(s->out_header),
						 payload, length, s->out_tag)) {
				*what = "no MAC could be made";
				return -EIO;
			}
		}
		m.msg_iovlen =
			(size_t)slices(v, &s->out_header, payload, length, s->out_tag, s->out_at);
		n = sendmsg(s->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n < 0) {
			*what = "the connection broke";
			return -ECONNRESET;
		}
		c->moved[x->peer] = merge_now();
		s->out_at += (size_t)n;
		if (s->out_at < sizeof(struct tcp_header) + length + TCP_TAG)
			continue;
		s->out_at = 0;
		s->framed = false;
		x->sent += length;
	}
	return 0;
}

const char *tcp_bad_frame(struct tcp_course *c, struct tcp_stream *s, const void *payload,
			  size_t length)
{
	const struct tcp_header *h = &s->in_header;

	if (h->magic != TCP_MAGIC || h->length != length || h->seq != s->in.seq)
		return "a frame out of order";
	if (h->epoch != c->t->net.epoch)
		return "a frame of another membership epoch";
	/* authentic first: a peer at another merge is a fault of another kind than a flipped byte
	 */
	if (c->t->config.no_mac)
		s->in.seq++;
	else if (!tcp_mac_good(&s->in, h, sizeof(*h), payload, length, s->in_tag))
		return "a forged or damaged frame";
	if (h->merge != c->round->merge || h->what != c->what)
		return "it is at another merge";
	return NULL;
}

static int pump_in(struct tcp_course *c, struct merge_xfer *x, struct tcp_stream *s,
		   const char **what)
{
	while (x->received < x->recv_len + x->recv2_len) {
		struct tcp_piece p = tcp_piece_at(x->recv, x->recv_len, x->recv2, x->recv2_len,
						  x->received, TCP_FRAME);
		size_t length = p.length;
		void *payload = p.payload;
		struct iovec v[3];
		struct msghdr m = {.msg_iov = v};
		ssize_t n;

		m.msg_iovlen =
			(size_t)slices(v, &s->in_header, payload, length, s->in_tag, s->in_at);
		n = recvmsg(s->fd, &m, MSG_DONTWAIT);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			return 0;
		if (n <= 0) {
			*what = "the connection was closed";
			return -ECONNRESET;
		}
		c->moved[x->peer] = merge_now();
		s->in_at += (size_t)n;
		/* a wrong length would leave both waiting: the header is looked at as soon as it is
		 * here */
		if (s->in_at >= sizeof(struct tcp_header) &&
		    (s->in_header.magic != TCP_MAGIC || s->in_header.length != length)) {
			*what = "a frame out of order";
			return -EBADMSG;
		}
		if (s->in_at < sizeof(struct tcp_header) + length + TCP_TAG)
			continue;
		*what = tcp_bad_frame(c, s, payload, length);
		if (*what)
			return -EBADMSG;
		s->in_at = 0;
		x->received += length;
	}
	return 0;
}

bool tcp_complete(const struct merge_xfer *x)
{
	return x->sent == x->send_len + x->send2_len && x->received == x->recv_len + x->recv2_len;
}

/* *again: something came that may let more be sent, to hosts that were passed already */
static int pump_all(struct tcp_course *c, bool *finished, bool *again, struct merge_error *error)
{
	*finished = true;
	*again = false;
	for (uint32_t i = 0; i < c->round->n; i++) {
		struct merge_xfer *x = &c->round->x[i];
		uint32_t id = c->t->member[x->peer];
		struct tcp_stream *s = &c->t->peer[id].data;
		size_t before = x->received;
		const char *what = "";
		int rc = pump_out(c, x, s, &what);

		if (!rc)
			rc = pump_in(c, x, s, &what);
		if (rc)
			return tcp_blame(c, id, rc, what, error);
		if (x->received != before && c->round->progress) {
			c->round->progress(c->round->context);
			*again = true;
		}
		if (!tcp_complete(x))
			*finished = false;
	}
	return 0;
}

int tcp_check_time(struct tcp_course *c, struct merge_error *error)
{
	double now = merge_now(), quiet = c->quiet;
	char text[128];

	for (uint32_t i = 0; i < c->round->n; i++) {
		struct merge_xfer *x = &c->round->x[i];

		if (tcp_complete(x))
			continue;
		if (now - c->moved[x->peer] <= quiet && now - c->begin <= c->limit)
			continue;
		snprintf(text, sizeof(text),
			 "%s after %.1f s (sent %zu of %zu bytes, received %zu of %zu)",
			 now - c->begin > c->limit ? "too slow" : "no progress", now - c->begin,
			 x->sent, x->send_len + x->send2_len, x->received,
			 x->recv_len + x->recv2_len);
		return tcp_blame(c, c->t->member[x->peer], -ETIMEDOUT, text, error);
	}
	return 0;
}

int tcp_failed_already(struct tcp_net *t, struct merge_error *error)
{
	int rc = 0;

	pthread_mutex_lock(&t->lock);
	if (t->state == NET_FAILED) {
		if (error)
			*error = t->why;
		rc = t->why.code;
	} else if (t->state != NET_READY) {
		rc = merge_fail(error, -ENOTCONN, MERGE_NO_HOST, "the mesh has not been built");
	}
	pthread_mutex_unlock(&t->lock);
	return rc;
}

void tcp_course_begin(struct tcp_course *c, struct tcp_net *t, struct merge_round *round,
		      double quiet)
{
	*c = (struct tcp_course){.t = t, .round = round, .begin = merge_now(), .quiet = quiet};
	c->what = (uint32_t)merge_hash(0, round->what, strlen(round->what));
	for (uint32_t i = 0; i < round->n; i++) {
		c->sent += round->x[i].send_len + round->x[i].send2_len;
		c->received += round->x[i].recv_len + round->x[i].recv2_len;
		c->moved[round->x[i].peer] = c->begin;
	}
	c->limit = quiet + (double)(c->sent + c->received) / SLOWEST;
}

void tcp_course_end(struct tcp_course *c)
{
	struct tcp_net *t = c->t;

	t->net.sent += c->sent;
	pthread_mutex_lock(&t->lock);
	t->stats.sent += c->sent;
	t->stats.received += c->received;
	pthread_mutex_unlock(&t->lock);
}

int tcp_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	struct tcp_net *t = (struct tcp_net *)net;
	struct epoll_event ev[16];
	struct tcp_course c;
	bool finished = false, again = false;
	int rc;

	tcp_course_begin(&c, t, round, t->config.merge_timeout_ms * 1e-3);
	rc = tcp_failed_already(t, error);
	while (!rc) {
		rc = pump_all(&c, &finished, &again, error);
		if (rc || finished)
			break;
		if (again)
			continue;
		/* edges: everything was tried above, so what happens since then wakes this up */
		(void)!epoll_wait(t->data_poll, ev, 16, 200);
		rc = tcp_failed_already(t, error);
		if (!rc)
			rc = tcp_check_time(&c, error);
	}
	if (!rc)
		tcp_course_end(&c);
	return rc;
}
