// SPDX-License-Identifier: MIT
/* wire.c: see wire.h. */
#include "wire.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#define MAGIC 0x4d4e4e43u /* 'CNNM' */
#define VERSION 1
#define VERSION_MIN 1
#define LABEL 16
#define NONCE 32

/* Places in a hello: magic, versions, status, zero, job, uuid, nonce. */
enum {
	AT_MIN = 4,
	AT_MAX = 6,
	AT_STATUS = 8,
	AT_ZERO = 12,
	AT_JOB = 16,
	AT_UUID = 32,
	AT_NONCE = 48
};
_Static_assert(AT_NONCE + NONCE == WIRE_HELLO, "wire format");

enum { STATUS_FINE = 0, STATUS_NO_JOB, STATUS_VERSION };

/* Places in a frame. */
enum {
	F_TYPE = 4,
	F_READY = 5,
	F_KIND = 6,
	F_SILENT = 7,
	F_SEQ = 8,
	F_EPOCH = 16,
	F_HOST = 20,
	F_SET = 24,
	F_TEXT = F_SET + WIRE_SET,
	F_PAD = F_TEXT + WIRE_TEXT,
	F_MAC = WIRE_FRAME - WIRE_KEY
};
_Static_assert(F_PAD <= F_MAC, "wire format");

static void put(uint8_t *p, uint64_t v, int n)
{
	for (int i = 0; i < n; i++)
		p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get(const uint8_t *p, int n)
{
	uint64_t v = 0;

	for (int i = 0; i < n; i++)
		v |= (uint64_t)p[i] << (8 * i);
	return v;
}

static bool hmac(const uint8_t *key, int key_bytes, const void *data, size_t bytes,
		 uint8_t out[WIRE_KEY])
{
	unsigned int n = WIRE_KEY;

	return HMAC(EVP_sha256(), key, key_bytes, data, bytes, out, &n) && n == WIRE_KEY;
}

bool wire_derive(const uint8_t secret[CTL_ID], const char *label, uint8_t out[WIRE_KEY])
{
	return hmac(secret, CTL_ID, label, strlen(label), out);
}

/* Over both hellos, the member's first; the label says what for. */
static bool both(const struct wire *w, const char *label, uint8_t out[WIRE_KEY])
{
	uint8_t text[LABEL + 2 * WIRE_HELLO] = {0};

	snprintf((char *)text, LABEL, "%s", label);
	memcpy(text + LABEL, w->leads ? w->theirs : w->mine, WIRE_HELLO);
	memcpy(text + LABEL + WIRE_HELLO, w->leads ? w->mine : w->theirs, WIRE_HELLO);
	return hmac(w->secret, WIRE_KEY, text, sizeof(text), out);
}

static bool open_keys(struct wire *w)
{
	const char *leader = "from leader", *member = "from member";

	w->state = WIRE_OPEN;
	return both(w, w->leads ? member : leader, w->key_in) &&
	       both(w, w->leads ? leader : member, w->key_out);
}

static bool fill_hello(uint8_t h[WIRE_HELLO], const uint8_t job[CTL_ID], const uint8_t uuid[CTL_ID],
		       uint32_t status)
{
	memset(h, 0, WIRE_HELLO);
	put(h, MAGIC, 4);
	put(h + AT_MIN, VERSION_MIN, 2);
	put(h + AT_MAX, VERSION, 2);
	put(h + AT_STATUS, status, 4);
	memcpy(h + AT_JOB, job, CTL_ID);
	memcpy(h + AT_UUID, uuid, CTL_ID);
	return RAND_bytes(h + AT_NONCE, NONCE) == 1;
}

void wire_accept(struct wire *w)
{
	memset(w, 0, sizeof(*w));
	w->leads = true;
}

bool wire_dial(struct wire *w, const uint8_t secret[WIRE_KEY], const uint8_t job[CTL_ID],
	       const uint8_t uuid[CTL_ID], uint8_t out[WIRE_HELLO])
{
	memset(w, 0, sizeof(*w));
	memcpy(w->secret, secret, WIRE_KEY);
	if (!fill_hello(w->mine, job, uuid, STATUS_FINE))
		return false;
	memcpy(out, w->mine, WIRE_HELLO);
	w->state = WIRE_WAIT_ANSWER;
	return true;
}

size_t wire_wanted(const struct wire *w)
{
	switch (w->state) {
	case WIRE_WAIT_HELLO:
		return WIRE_HELLO;
	case WIRE_WAIT_PROOF:
		return WIRE_KEY;
	case WIRE_WAIT_ANSWER:
		return WIRE_ANSWER;
	default:
		return WIRE_FRAME;
	}
}

void wire_named(const struct wire *w, uint8_t job[CTL_ID], uint8_t uuid[CTL_ID])
{
	memcpy(job, w->theirs + AT_JOB, CTL_ID);
	memcpy(uuid, w->theirs + AT_UUID, CTL_ID);
}

static bool same_version(const uint8_t h[WIRE_HELLO])
{
	return get(h + AT_MIN, 2) <= VERSION && get(h + AT_MAX, 2) >= VERSION_MIN;
}

bool wire_answer(struct wire *w, const uint8_t secret[WIRE_KEY], uint8_t out[WIRE_ANSWER])
{
	uint32_t status = !secret		    ? STATUS_NO_JOB
			  : same_version(w->theirs) ? STATUS_FINE
						    : STATUS_VERSION;

	if (!fill_hello(w->mine, w->theirs + AT_JOB, w->theirs + AT_UUID, status))
		return false;
	memcpy(out, w->mine, WIRE_HELLO);
	memset(out + WIRE_HELLO, 0, WIRE_KEY);
	w->state = WIRE_WAIT_PROOF;
	if (!secret)
		return true;
	memcpy(w->secret, secret, WIRE_KEY);
	return both(w, "leader", out + WIRE_HELLO);
}

static int took_hello(struct wire *w, struct err *err)
{
	memcpy(w->theirs, w->in, WIRE_HELLO);
	if (get(w->theirs, 4) != MAGIC || get(w->theirs + AT_STATUS, 4) ||
	    get(w->theirs + AT_ZERO, 4))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "no greeting of a member");
	w->state = WIRE_HAVE_HELLO;
	return 0;
}

static int took_answer(struct wire *w, uint8_t *out, size_t *n, struct err *err)
{
	uint8_t mac[WIRE_KEY];

	memcpy(w->theirs, w->in, WIRE_HELLO);
	if (get(w->theirs, 4) != MAGIC || get(w->theirs + AT_ZERO, 4))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "no answer of a leader");
	if (get(w->theirs + AT_STATUS, 4) == STATUS_NO_JOB)
		return err_set(err, ERR_LOST, -ENOENT, "it does not lead this job");
	if (!both(w, "leader", mac))
		return err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
	if (CRYPTO_memcmp(mac, w->in + WIRE_HELLO, WIRE_KEY))
		return err_set(err, ERR_RIGHTS, -EACCES, "it does not know the job's secret");
	if (get(w->theirs + AT_STATUS, 4) || !same_version(w->theirs))
		return err_set(err, ERR_PROTOCOL, -EPROTO,
			       "it speaks versions %u to %u of the membership protocol, this "
			       "daemon %u to %u",
			       (unsigned int)get(w->theirs + AT_MIN, 2),
			       (unsigned int)get(w->theirs + AT_MAX, 2), VERSION_MIN, VERSION);
	if (!both(w, "member", out) || !open_keys(w))
		return err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
	*n = WIRE_KEY;
	return 0;
}

static int took_proof(struct wire *w, struct err *err)
{
	uint8_t mac[WIRE_KEY];

	/* there was no secret to prove, or nothing to talk about */
	if (get(w->mine + AT_STATUS, 4))
		return err_set(err, ERR_PROTOCOL, -EPROTO, "refused in its greeting");
	if (!both(w, "member", mac))
		return err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
	if (CRYPTO_memcmp(mac, w->in, WIRE_KEY))
		return err_set(err, ERR_RIGHTS, -EACCES, "wrong secret");
	return open_keys(w) ? 0 : err_set(err, ERR_INTERNAL, -EIO, "no HMAC from libcrypto");
}

int wire_step(struct wire *w, uint8_t out[WIRE_ANSWER], size_t *n, struct err *err)
{
	*n = 0;
	w->have = 0;
	switch (w->state) {
	case WIRE_WAIT_HELLO:
		return took_hello(w, err);
	case WIRE_WAIT_ANSWER:
		return took_answer(w, out, n, err);
	case WIRE_WAIT_PROOF:
		return took_proof(w, err);
	default:
		return err_set(err, ERR_INTERNAL, -EINVAL, "no step of a greeting");
	}
}

bool wire_put(struct wire *w, const struct wire_frame *f, uint8_t out[WIRE_FRAME])
{
	memset(out, 0, WIRE_FRAME);
	put(out, MAGIC, 4);
	out[F_TYPE] = f->type;
	out[F_READY] = f->ready;
	out[F_KIND] = f->kind;
	out[F_SILENT] = f->silent;
	put(out + F_SEQ, w->seq_out++, 8);
	put(out + F_EPOCH, f->epoch, 4);
	put(out + F_HOST, f->host, 4);
	memcpy(out + F_SET, f->set, WIRE_SET);
	snprintf((char *)out + F_TEXT, WIRE_TEXT, "%.*s", WIRE_TEXT - 1, f->text);
	return hmac(w->key_out, WIRE_KEY, out, F_MAC, out + F_MAC);
}

int wire_get(struct wire *w, struct wire_frame *f, struct err *err)
{
	uint8_t mac[WIRE_KEY];

	w->have = 0;
	if (!hmac(w->key_in, WIRE_KEY, w->in, F_MAC, mac) ||
	    CRYPTO_memcmp(mac, w->in + F_MAC, WIRE_KEY) || get(w->in, 4) != MAGIC ||
	    get(w->in + F_SEQ, 8) != w->seq_in || w->in[F_KIND] >= ERR_KIND_COUNT)
		return err_set(err, ERR_PROTOCOL, -EBADMSG, "a forged or damaged frame");
	w->seq_in++;
	memset(f, 0, sizeof(*f));
	f->type = w->in[F_TYPE];
	f->ready = w->in[F_READY];
	f->kind = w->in[F_KIND];
	f->silent = w->in[F_SILENT];
	f->epoch = (uint32_t)get(w->in + F_EPOCH, 4);
	f->host = (uint32_t)get(w->in + F_HOST, 4);
	memcpy(f->set, w->in + F_SET, WIRE_SET);
	memcpy(f->text, w->in + F_TEXT, WIRE_TEXT - 1);
	/* it goes into logs and messages */
	for (char *p = f->text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 127)
			*p = '?';
	return 0;
}
