/* SPDX-License-Identifier: MIT */
/*
 * hello.c: the handshake. The dialer sends its hello; the acceptor answers with its own and an
 * HMAC-SHA256 over both; the dialer proves the same; the acceptor confirms. The secret never
 * travels, both nonces are fresh, and the roles are in the labels, so neither a recording nor a
 * reflection passes. Keys of the frames come from the same two hellos, one per direction.
 */
#include <openssl/crypto.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "tcp.h"

bool tcp_hmac(const uint8_t key[32], const char *label, const void *a, const void *b,
	      uint8_t out[32])
{
	uint8_t text[16 + 2 * sizeof(struct tcp_hello)] = {0};
	unsigned int length = 32;

	snprintf((char *)text, 16, "%s", label);
	memcpy(text + 16, a, sizeof(struct tcp_hello));
	memcpy(text + 16 + sizeof(struct tcp_hello), b, sizeof(struct tcp_hello));
	return HMAC(EVP_sha256(), key, 32, text, sizeof(text), out, &length) && length == 32;
}

/* label says whose frames these are; the order of the hellos is always dialer, acceptor */
static bool conn_hmac(const uint8_t secret[32], const char *label, const struct tcp_conn *c,
		      uint8_t out[32])
{
	return tcp_hmac(secret, label, c->dialer ? &c->mine : &c->theirs,
			c->dialer ? &c->theirs : &c->mine, out);
}

bool tcp_mac_open(struct tcp_mac *mac, const uint8_t secret[32], const char *label,
		  const struct tcp_conn *c)
{
	uint8_t key[32];
	bool good = conn_hmac(secret, label, c, key);

	mac->seq = 0;
	mac->ctx = EVP_CIPHER_CTX_new();
	good = good && mac->ctx && EVP_EncryptInit_ex(mac->ctx, EVP_aes_256_gcm(), NULL, key, NULL);
	OPENSSL_cleanse(key, sizeof(key));
	return good;
}

void tcp_mac_close(struct tcp_mac *mac)
{
	EVP_CIPHER_CTX_free(mac->ctx);
	mac->ctx = NULL;
}

bool tcp_mac_make(struct tcp_mac *mac, const void *a, size_t a_len, const void *b, size_t b_len,
		  uint8_t tag[TCP_TAG])
{
	uint8_t nonce[12] = {0}, none[16];
	int length;

	memcpy(nonce + 4, &mac->seq, sizeof(mac->seq));
	mac->seq++;
	return EVP_EncryptInit_ex(mac->ctx, NULL, NULL, NULL, nonce) &&
	       EVP_EncryptUpdate(mac->ctx, NULL, &length, a, (int)a_len) &&
	       (!b_len || EVP_EncryptUpdate(mac->ctx, NULL, &length, b, (int)b_len)) &&
	       EVP_EncryptFinal_ex(mac->ctx, none, &length) &&
	       EVP_CIPHER_CTX_ctrl(mac->ctx, EVP_CTRL_GCM_GET_TAG, TCP_TAG, tag);
}

bool tcp_mac_good(struct tcp_mac *mac, const void *a, size_t a_len, const void *b, size_t b_len,
		  const uint8_t tag[TCP_TAG])
{
	uint8_t mine[TCP_TAG];

	return tcp_mac_make(mac, a, a_len, b, b_len, mine) && !CRYPTO_memcmp(mine, tag, TCP_TAG);
}

/* A handshake fits into any socket buffer; one that does not take it is broken. */
int tcp_send_all(int fd, const void *data, size_t bytes)
{
	return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)bytes ? 0 : -EPIPE;
}

void tcp_hello_fill(const struct tcp_net *t, struct tcp_hello *h, uint32_t to, uint32_t kind)
{
	memset(h, 0, sizeof(*h));
	h->magic = TCP_MAGIC;
	h->version_first = h->version_last = TCP_VERSION;
	memcpy(h->job, t->config.job, sizeof(h->job));
	h->from = t->config.self;
	h->to = to;
	h->epoch = t->epoch;
	h->kind = kind;
	h->no_mac = t->config.no_mac;
	h->members = t->member_hash;
	h->table = t->config.table_hash;
	h->algorithm = merge_algorithm_hash(t->config.ring_from);
	h->transport = t->config.transport;
}

static const char *status_text(uint32_t status)
{
	static const char *text[] = {"fine",
				     "not yet there",
				     "at a later membership epoch",
				     "of another protocol version",
				     "training a network with another tensor table",
				     "set to another choice of direct and ring",
				     "set to another merge_mac",
				     "told of other members",
				     "set to another merge_transport"};

	return status < sizeof(text) / sizeof(text[0]) ? text[status] : "of an unknown opinion";
}

static int refuse(struct tcp_net *t, const char *why)
{
	t->stats.refused++;
	snprintf(t->refused_text, sizeof(t->refused_text), "%s", why);
	return -EACCES;
}

static enum tcp_status judge(const struct tcp_net *t, const struct tcp_hello *h)
{
	struct tcp_hello own;

	tcp_hello_fill(t, &own, h->from, h->kind);
	if (h->version_last < own.version_first || h->version_first > own.version_last)
		return TCP_BAD_VERSION;
	if (h->epoch < t->epoch)
		return TCP_STALE;
	if (h->epoch > t->epoch || t->state != NET_MESHING)
		return TCP_NOT_YET;
	if (h->table != own.table)
		return TCP_BAD_TABLE;
	if (h->algorithm != own.algorithm)
		return TCP_BAD_ALGORITHM;
	if (h->no_mac != own.no_mac)
		return TCP_BAD_MAC_SETTING;
	if (h->transport != own.transport)
		return TCP_BAD_TRANSPORT;
	return h->members == own.members ? TCP_OK : TCP_BAD_MEMBERS;
}

/* Both hosts know the names of the other by now, and that it is no stranger. */
static int mismatch(struct tcp_net *t, const struct tcp_conn *c, uint32_t status)
{
	int code = status == TCP_STALE ? -ESTALE : -EPROTO;

	tcp_fault_locked(t, code, c->peer, "host %s is %s, seen from host %s", tcp_name(t, c->peer),
			 status_text(status), tcp_name(t, t->config.self));
	return -EPROTO;
}

static int got_hello_as_acceptor(struct tcp_net *t, struct tcp_conn *c)
{
	struct {
		struct tcp_hello hello;
		uint8_t mac[32];
	} answer;
	const struct tcp_hello *h = &c->theirs;

	if (h->magic != TCP_MAGIC || memcmp(h->job, t->config.job, sizeof(h->job)) ||
	    h->to != t->config.self || h->from >= t->n_hosts || h->from <= t->config.self ||
	    h->kind > TCP_CONTROL)
		return refuse(t, "no greeting of this job");
	c->peer = h->from;
	c->kind = (enum tcp_kind)h->kind;
	tcp_hello_fill(t, &c->mine, h->from, h->kind);
	c->mine.status = judge(t, h);
	if (RAND_bytes(c->mine.nonce, sizeof(c->mine.nonce)) != 1)
		return refuse(t, "no random numbers");
	answer.hello = c->mine;
	if (!conn_hmac(t->config.secret, "acceptor", c, answer.mac))
		return refuse(t, "no HMAC");
	c->state = CONN_WAIT_PROOF;
	return tcp_send_all(c->fd, &answer, sizeof(answer));
}

static int got_hello_as_dialer(struct tcp_net *t, struct tcp_conn *c)
{
	uint8_t mac[32];
	const struct tcp_hello *h = &c->theirs;

	memcpy(&c->theirs, c->buffer, sizeof(c->theirs));
	if (!conn_hmac(t->config.secret, "acceptor", c, mac) || h->magic != TCP_MAGIC ||
	    CRYPTO_memcmp(mac, c->buffer + sizeof(c->theirs), sizeof(mac)) || h->from != c->peer ||
	    h->to != t->config.self || h->kind != (uint32_t)c->kind) {
		tcp_fault_locked(t, -EACCES, c->peer, "host %s does not know the job's secret",
				 tcp_name(t, c->peer));
		return -EACCES;
	}
	if (h->status == TCP_NOT_YET)
		return -EAGAIN;
	if (!conn_hmac(t->config.secret, "dialer", c, mac) || tcp_send_all(c->fd, mac, sizeof(mac)))
		return -EPIPE;
	if (h->status != TCP_OK)
		return mismatch(t, c, h->status);
	c->state = CONN_WAIT_ACK;
	return 0;
}

static int got_proof(struct tcp_net *t, struct tcp_conn *c)
{
	uint8_t mac[32];

	if (!conn_hmac(t->config.secret, "dialer", c, mac) ||
	    CRYPTO_memcmp(mac, c->buffer, sizeof(mac)))
		return refuse(t, "wrong secret");
	if (c->mine.status == TCP_STALE || c->mine.status == TCP_NOT_YET)
		return refuse(t, "another membership epoch");
	if (c->mine.status != TCP_OK)
		return mismatch(t, c, c->mine.status);
	/* judged again: the mesh may have moved on since the hello */
	if (judge(t, &c->theirs) != TCP_OK)
		return refuse(t, "another membership epoch");
	if (!conn_hmac(t->config.secret, "ack", c, mac) || tcp_send_all(c->fd, mac, sizeof(mac)))
		return -EPIPE;
	return 1;
}

size_t tcp_hello_wanted(const struct tcp_conn *c)
{
	if (c->state == CONN_NEW)
		return sizeof(struct tcp_hello);
	if (c->state == CONN_WAIT_HELLO)
		return sizeof(struct tcp_hello) + 32;
	return c->state == CONN_READY ? sizeof(struct tcp_control_frame) : 32;
}

int tcp_hello_step(struct tcp_net *t, struct tcp_conn *c)
{
	uint8_t mac[32];
	int rc;

	switch (c->state) {
	case CONN_NEW:
		memcpy(&c->theirs, c->buffer, sizeof(c->theirs));
		rc = got_hello_as_acceptor(t, c);
		break;
	case CONN_WAIT_HELLO:
		rc = got_hello_as_dialer(t, c);
		break;
	case CONN_WAIT_PROOF:
		rc = got_proof(t, c);
		break;
	case CONN_WAIT_ACK:
		rc = conn_hmac(t->config.secret, "ack", c, mac) &&
				     !CRYPTO_memcmp(mac, c->buffer, sizeof(mac))
			     ? 1
			     : -EACCES;
		break;
	default:
		rc = -EINVAL;
	}
	c->have = 0;
	return rc;
}
