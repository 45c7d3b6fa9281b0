/* SPDX-License-Identifier: MIT */
/*
 * round.c: rounds over UCX. Frames as on TCP, each as two tagged messages; the tag carries sender
 * and number, so what is received is what was planned. The thread sleeps on the descriptor of the
 * worker and on the TCP data connections, whose end means a fault; it never spins.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include "peers.h"

#define PROGRESS_MOST 256 /* calls before the lanes are looked at again */
#define FLUSH_SECONDS .1  /* within a round */

static ucp_tag_t tag_of(uint32_t from, uint64_t seq, bool body)
{
	return (uint64_t)from << 48 | ((seq << 1 | body) & 0xffffffffffffu);
}

static bool wrong(void *request)
{
	return request && UCS_PTR_IS_ERR(request);
}

/* 1: complete, 0: not yet, < 0: failed. length: what a receive got. */
static int test(struct ucx *u, void **request, size_t *length)
{
	ucp_tag_recv_info_t info = {.length = 0};
	ucs_status_t status;

	if (!*request)
		return 1;
	status = length ? u->lib.ucp_tag_recv_request_test(*request, &info)
			: u->lib.ucp_request_check_status(*request);
	if (status == UCS_INPROGRESS)
		return 0;
	u->lib.ucp_request_free(*request);
	*request = NULL;
	if (length)
		*length = info.length;
	return status == UCS_OK ? 1 : -ECONNRESET;
}

static int make_head(struct tcp_course *c, struct tcp_stream *s, struct ucx_slot *slot)
{
	slot->head.header = (struct tcp_header){.magic = TCP_MAGIC,
						.epoch = c->t->net.epoch,
						.seq = s->out.seq,
						.merge = c->round->merge,
						.what = c->what,
						.length = (uint32_t)slot->length};
	memset(slot->head.tag, 0, TCP_TAG);
	if (c->t->config.no_mac) {
		s->out.seq++;
		return 0;
	}
	return tcp_mac_make(&s->out, &slot->head.header, sizeof(slot->head.header), slot->payload,
			    slot->length, slot->head.tag)
		       ? 0
		       : -EIO;
}

static int post_out(struct tcp_course *c, struct merge_xfer *x, struct ucx_peer *p,
		    const char **what)
{
	static const ucp_request_param_t plain;
	struct tcp_stream *s = &c->t->peer[c->t->member[x->peer]].data;
	struct ucx *u = p->ucx;
	uint32_t self = c->t->config.self;

	while (p->out.n < UCX_WINDOW && p->out.posted < x->send_len + x->send2_len) {
		struct tcp_piece piece = tcp_piece_at(x->send, x->send_len, x->send2, x->send2_len,
						      p->out.posted, UCX_FRAME);
		struct ucx_slot *slot = &p->out.slot[(p->out.first + p->out.n) % UCX_WINDOW];

		if (piece.end && *x->ready < piece.end)
			return 0;
		slot->payload = piece.payload;
		slot->length = piece.length;
		if (make_head(c, s, slot)) {
			*what = "no MAC could be made";
			return -EIO;
		}
		slot->head_request =
			u->lib.ucp_tag_send_nbx(p->ep, &slot->head, sizeof(slot->head),
						tag_of(self, p->out.seq, false), &plain);
		slot->body_request = u->lib.ucp_tag_send_nbx(
			p->ep, slot->payload, slot->length, tag_of(self, p->out.seq, true), &plain);
		p->out.seq++;
		p->out.n++;
		p->out.posted += piece.length;
		if (wrong(slot->head_request) || wrong(slot->body_request)) {
			if (wrong(slot->head_request))
				slot->head_request = NULL;
			if (wrong(slot->body_request))
				slot->body_request = NULL;
			*what = "the connection broke";
			return -ECONNRESET;
		}
	}
	return 0;
}

static int post_in(struct tcp_course *c, struct merge_xfer *x, struct ucx_peer *p,
		   const char **what)
{
	/* always a request: it tells how much came */
	static const ucp_request_param_t later = {.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL};
	struct ucx *u = p->ucx;
	uint32_t from = c->t->member[x->peer];

	while (p->in.n < UCX_WINDOW && p->in.posted < x->recv_len + x->recv2_len) {
		struct tcp_piece piece = tcp_piece_at(x->recv, x->recv_len, x->recv2, x->recv2_len,
						      p->in.posted, UCX_FRAME);
		struct ucx_slot *slot = &p->in.slot[(p->in.first + p->in.n) % UCX_WINDOW];

		slot->payload = piece.payload;
		slot->length = piece.length;
		slot->head_request =
			u->lib.ucp_tag_recv_nbx(u->worker, &slot->head, sizeof(slot->head),
						tag_of(from, p->in.seq, false), UINT64_MAX, &later);
		slot->body_request =
			u->lib.ucp_tag_recv_nbx(u->worker, slot->payload, slot->length,
						tag_of(from, p->in.seq, true), UINT64_MAX, &later);
		p->in.seq++;
		p->in.n++;
		p->in.posted += piece.length;
		if (wrong(slot->head_request) || wrong(slot->body_request)) {
			if (wrong(slot->head_request))
				slot->head_request = NULL;
			if (wrong(slot->body_request))
				slot->body_request = NULL;
			*what = "a receive was refused";
			return -EIO;
		}
	}
	return 0;
}

static int reap_out(struct tcp_course *c, struct merge_xfer *x, struct ucx_peer *p,
		    const char **what)
{
	while (p->out.n) {
		struct ucx_slot *slot = &p->out.slot[p->out.first];
		int head = test(p->ucx, &slot->head_request, NULL);
		int body = test(p->ucx, &slot->body_request, NULL);

		if (head < 0 || body < 0) {
			*what = "the connection broke";
			return -ECONNRESET;
		}
		if (!head || !body)
			return 0;
		x->sent += slot->length;
		c->moved[x->peer] = merge_now();
		p->out.first = (p->out.first + 1) % UCX_WINDOW;
		p->out.n--;
	}
	return 0;
}

static int reap_in(struct tcp_course *c, struct merge_xfer *x, struct ucx_peer *p,
		   const char **what)
{
	struct tcp_stream *s = &c->t->peer[c->t->member[x->peer]].data;

	while (p->in.n) {
		struct ucx_slot *slot = &p->in.slot[p->in.first];
		/* a request that was tested before is gone; its length was right then */
		size_t head_length = sizeof(slot->head), body_length = slot->length;
		int head = test(p->ucx, &slot->head_request, &head_length);
		int body = test(p->ucx, &slot->body_request, &body_length);

		if (head < 0 || body < 0) {
			*what = "the connection broke";
			return -ECONNRESET;
		}
		if ((head && head_length != sizeof(slot->head)) ||
		    (body && body_length != slot->length)) {
			*what = "a message of another length than planned";
			return -EBADMSG;
		}
		if (!head || !body)
			return 0;
		s->in_header = slot->head.header;
		memcpy(s->in_tag, slot->head.tag, TCP_TAG);
		*what = tcp_bad_frame(c, s, slot->payload, slot->length);
		if (*what)
			return -EBADMSG;
		x->received += slot->length;
		c->moved[x->peer] = merge_now();
		p->in.first = (p->in.first + 1) % UCX_WINDOW;
		p->in.n--;
	}
	return 0;
}

/* *moved: something came that may let more be sent */
static int pump_all(struct tcp_course *c, bool *finished, bool *moved, struct merge_error *error)
{
	*finished = true;
	*moved = false;
	for (uint32_t i = 0; i < c->round->n; i++) {
		struct merge_xfer *x = &c->round->x[i];
		uint32_t id = c->t->member[x->peer];
		struct ucx_peer *p = &c->t->ucx->peer[id];
		size_t sent = x->sent, received = x->received;
		/* a host that left in order: what it sent before is still there to be had */
		bool gone = p->status != UCS_OK;
		const char *what = "";
		int rc;

		rc = post_in(c, x, p, &what);
		if (!rc)
			rc = post_out(c, x, p, &what);
		if (!rc)
			rc = reap_in(c, x, p, &what);
		if (!rc)
			rc = reap_out(c, x, p, &what);
		if (!rc && gone && !tcp_complete(x)) {
			what = p->ucx->lib.ucs_status_string(p->status);
			rc = -ECONNRESET;
		}
		if (rc)
			return tcp_blame(c, id, rc, what, error);
		if (x->received != received && c->round->progress)
			c->round->progress(c->round->context);
		*moved |= x->received != received || x->sent != sent;
		if (!tcp_complete(x))
			*finished = false;
	}
	return 0;
}

/* Until the worker has something to do, or a data connection ends. */
static void rest(struct tcp_net *t)
{
	struct pollfd p[2] = {{.fd = t->ucx->efd, .events = POLLIN},
			      {.fd = t->data_poll, .events = POLLIN}};
	struct epoll_event ev[16];
	ucs_status_t status = t->ucx->lib.ucp_worker_arm(t->ucx->worker);

	if (status == UCS_ERR_BUSY)
		return;
	/* an unarmed worker is asked again soon */
	poll(p, 2, status == UCS_OK ? 200 : 1);
	if (p[1].revents)
		(void)!epoll_wait(t->data_poll, ev, 16, 0);
}

static void progress(struct ucx *u)
{
	for (int i = 0; i < PROGRESS_MOST; i++)
		if (!u->lib.ucp_worker_progress(u->worker))
			break;
}

static void begin_flush(struct ucx *u)
{
	static const ucp_request_param_t plain;

	u->flush = u->lib.ucp_worker_flush_nbx(u->worker, &plain);
	if (wrong(u->flush))
		u->flush = NULL;
	u->more = false;
}

bool ucx_flushed(struct ucx *u)
{
	if (!atomic_load(&u->owed))
		return true;
	progress(u);
	if (test(u, &u->flush, NULL) && u->more)
		begin_flush(u);
	if (!test(u, &u->flush, NULL))
		return false;
	atomic_store(&u->owed, false);
	return true;
}

/*
 * A small message counts as sent when the library has a copy of it, and nobody drives the library
 * between rounds: what it still holds would wait for the next one. But a flush may also need an
 * answer of a peer, and one that had all it wanted has left the library alone until its next round:
 * so this waits for a moment only, and the control thread for the rest (ucx_tend). That an endpoint
 * ended meanwhile is no fault of this round: nothing is wanted of it any more.
 */
static void flush_all(struct tcp_course *c)
{
	struct ucx *u = c->t->ucx;
	double now = merge_now();

	/* a flush holds only what came before it: behind one of an earlier round another is due */
	if (ucx_flushed(u))
		begin_flush(u);
	else
		u->more = true;
	u->owed_since = now;
	atomic_store(&u->owed, true);
	while (!ucx_flushed(u) && merge_now() < now + FLUSH_SECONDS)
		rest(c->t);
}

static int run_round(struct tcp_course *c, struct merge_error *error)
{
	bool finished = false, moved = false;
	struct merge_round *round = c->round;
	struct tcp_net *t = c->t;
	struct ucx *u = t->ucx;
	int rc = tcp_failed_already(t, error);

	if (!rc && !u->has_worker)
		rc = merge_fail(error, -ENOTCONN, MERGE_NO_HOST, "UCX has not been connected");
	for (uint32_t i = 0; i < round->n && !rc; i++) {
		struct ucx_peer *p = &u->peer[t->member[round->x[i].peer]];

		p->in.posted = p->out.posted = 0;
	}
	while (!rc) {
		progress(u);
		rc = pump_all(c, &finished, &moved, error);
		if (rc || finished)
			break;
		if (moved)
			continue;
		rest(t);
		rc = tcp_failed_already(t, error);
		if (!rc)
			rc = tcp_check_time(c, error);
	}
	if (!rc && round->n)
		flush_all(c);
	if (rc)
		ucx_break(u);
	return rc;
}

int ucx_round_within(struct tcp_net *t, struct merge_round *round, double quiet,
		     struct merge_error *error)
{
	struct tcp_course c;
	int rc;

	tcp_course_begin(&c, t, round, quiet);
	pthread_mutex_lock(&t->ucx->use);
	rc = run_round(&c, error);
	pthread_mutex_unlock(&t->ucx->use);
	if (!rc)
		tcp_course_end(&c);
	return rc;
}

int ucx_round(struct merge_net *net, struct merge_round *round, struct merge_error *error)
{
	struct tcp_net *t = (struct tcp_net *)net;

	return ucx_round_within(t, round, t->config.merge_timeout_ms * 1e-3, error);
}
