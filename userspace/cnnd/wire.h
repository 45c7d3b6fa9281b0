/* SPDX-License-Identifier: MIT */
/*
 * wire.h: what goes over the link between a job's leader and a member: an authenticated greeting,
 * then frames of one size. Pure: bytes in, bytes out; sockets and time are members.c's.
 *
 * The member dials and sends its hello; the leader answers with its own and an HMAC-SHA256 over
 * both; the member proves the same and the first frame of each side follows. The secret never
 * travels, both nonces are fresh and the roles are in the labels, so neither a recording nor a
 * reflection passes. Each direction has a key of its own; a frame carries its sequence number and a
 * MAC. Everything is little-endian.
 */
#ifndef CNND_WIRE_H
#define CNND_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../base/err.h"
#include "../ctl/ctl.h"

#define WIRE_KEY 32
#define WIRE_HELLO 80
#define WIRE_ANSWER (WIRE_HELLO + WIRE_KEY)
#define WIRE_FRAME 384
#define WIRE_SET (CTL_HOSTS_MAX / 8) /* bytes of a set of ranks */
#define WIRE_TEXT 288
#define WIRE_NO_HOST UINT32_MAX

/* The two secrets of a job: of its mesh ("cnn merge") and of its links ("cnn member"). */
#define WIRE_MERGE "cnn merge"
#define WIRE_MEMBER "cnn member"
/* HMAC-SHA256(secret, label). False: libcrypto failed. */
bool wire_derive(const uint8_t secret[CTL_ID], const char *label, uint8_t out[WIRE_KEY]);

enum wire_type {
	WIRE_BEAT = 1, /* each second, and whenever something in it has changed */
	WIRE_ASK,      /* member: a merge has failed, who is a member now? */
	WIRE_BYE,      /* member: its job has ended, text and kind say why */
	WIRE_END       /* leader: the job ends, text and kind say why */
};

struct wire_frame {
	uint8_t type;	       /* enum wire_type */
	uint8_t ready;	       /* member: it has come through APPLY; leader: a vote is on */
	uint8_t silent;	       /* ASK: those believed lost were silent for too long */
	uint8_t kind;	       /* enum err_kind */
	uint32_t epoch;	       /* of the membership; ASK: of the mesh that failed */
	uint32_t host;	       /* member's BEAT: its rank; ASK: who is to blame; WIRE_NO_HOST */
	uint8_t set[WIRE_SET]; /* leader: the members; ASK: those believed lost */
	char text[WIRE_TEXT];  /* printable, with its NUL */
};

enum wire_state {
	WIRE_WAIT_HELLO = 0, /* leader */
	WIRE_HAVE_HELLO,     /* leader: wire_answer comes next */
	WIRE_WAIT_PROOF,     /* leader */
	WIRE_WAIT_ANSWER,    /* member */
	WIRE_OPEN
};

struct wire {
	enum wire_state state;
	bool leads;
	uint8_t mine[WIRE_HELLO], theirs[WIRE_HELLO];
	uint8_t secret[WIRE_KEY], key_in[WIRE_KEY], key_out[WIRE_KEY];
	uint64_t seq_in, seq_out;
	uint8_t in[WIRE_FRAME];
	size_t have; /* bytes in `in` */
};

void wire_accept(struct wire *w);
/* out: WIRE_HELLO bytes to send. secret: of the links. False: no random numbers. */
bool wire_dial(struct wire *w, const uint8_t secret[WIRE_KEY], const uint8_t job[CTL_ID],
	       const uint8_t uuid[CTL_ID], uint8_t out[WIRE_HELLO]);
/* Bytes that `in` shall have before wire_step. */
size_t wire_wanted(const struct wire *w);
/*
 * `in` is full: a step of the greeting. out, *n: to be sent (at most WIRE_ANSWER bytes). After
 * WIRE_HAVE_HELLO the caller finds the job and calls wire_answer. -EPROTO not of this protocol or
 * version, -EACCES wrong secret, -ENOENT the leader does not lead this job, -EIO libcrypto.
 */
int wire_step(struct wire *w, uint8_t out[WIRE_ANSWER], size_t *n, struct err *err);
/* Leader: the job and the daemon that the hello named. */
void wire_named(const struct wire *w, uint8_t job[CTL_ID], uint8_t uuid[CTL_ID]);
/* secret NULL: no such job; the answer says so and proves nothing. False: no random numbers. */
bool wire_answer(struct wire *w, const uint8_t secret[WIRE_KEY], uint8_t out[WIRE_ANSWER]);

bool wire_put(struct wire *w, const struct wire_frame *frame, uint8_t out[WIRE_FRAME]);
/* `in` is full: 0, or -EBADMSG. */
int wire_get(struct wire *w, struct wire_frame *frame, struct err *err);

static inline bool wire_in(const uint8_t set[WIRE_SET], uint32_t host)
{
	return host < CTL_HOSTS_MAX && set[host / 8] >> host % 8 & 1;
}

static inline void wire_add(uint8_t set[WIRE_SET], uint32_t host)
{
	if (host < CTL_HOSTS_MAX)
		set[host / 8] = (uint8_t)(set[host / 8] | 1u << host % 8);
}

#endif
