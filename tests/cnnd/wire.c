// SPDX-License-Identifier: MIT
/*
 * wire.c: the greeting and the frames of a link between a leader and a member: both prove the
 * secret, recordings, reflections and damaged bytes are refused.
 */
#include <errno.h>

#include "../../userspace/cnnd/wire.h"
#include "../tap.h"

static const uint8_t secret[CTL_ID] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
static const uint8_t job[CTL_ID] = "the job's id...", uuid[CTL_ID] = "a daemon's uuid";
static uint8_t key[WIRE_KEY], other[WIRE_KEY];

static void hex(const uint8_t *p, char *out)
{
	for (int i = 0; i < WIRE_KEY; i++)
		snprintf(out + 2 * i, 3, "%02x", p[i]);
}

/* Values of Python's hmac module. */
static void test_derive(void)
{
	char text[2 * WIRE_KEY + 1];

	ok(wire_derive(secret, WIRE_MERGE, key), "a secret for the mesh");
	hex(key, text);
	is_str(text, "53dd0bd8ba72786556086883ba6089df5ef7e9128c93a5b74619aa87253184d1",
	       "  HMAC-SHA256 of its label");
	ok(wire_derive(secret, WIRE_MEMBER, key), "a secret for the links");
	hex(key, text);
	is_str(text, "0df28c4e895b9ce4d3585f9f87636d79bb7e10383319c049d2856a63adada5e8",
	       "  another one");
	memset(other, 7, sizeof(other));
}

static void feed(struct wire *w, const uint8_t *p, size_t n)
{
	if (n != wire_wanted(w))
		BAIL("%zu bytes for a step that wants %zu", n, wire_wanted(w));
	memcpy(w->in, p, n);
	w->have = n;
}

struct pair {
	struct wire member, leader;
	uint8_t hello[WIRE_HELLO], answer[WIRE_ANSWER], proof[WIRE_ANSWER];
	int at_member, at_leader; /* of the step that decided */
};

/* The whole greeting; NULL: the leader does not lead this job. */
static void greet(struct pair *p, const uint8_t *member_key, const uint8_t *leader_key)
{
	uint8_t out[WIRE_ANSWER], named[CTL_ID], who[CTL_ID];
	struct err err;
	size_t n;

	p->at_member = p->at_leader = 1;
	wire_dial(&p->member, member_key, job, uuid, p->hello);
	wire_accept(&p->leader);
	feed(&p->leader, p->hello, WIRE_HELLO);
	p->at_leader = wire_step(&p->leader, out, &n, &err);
	wire_named(&p->leader, named, who);
	if (p->at_leader || memcmp(named, job, CTL_ID) || memcmp(who, uuid, CTL_ID))
		return;
	wire_answer(&p->leader, leader_key, p->answer);
	feed(&p->member, p->answer, WIRE_ANSWER);
	p->at_member = wire_step(&p->member, p->proof, &n, &err);
	if (p->at_member)
		return;
	feed(&p->leader, p->proof, n);
	p->at_leader = wire_step(&p->leader, out, &n, &err);
}

static void test_greeting(void)
{
	struct pair p, q;
	uint8_t out[WIRE_ANSWER];
	struct err err;
	size_t n;

	greet(&p, key, key);
	ok(!p.at_member && !p.at_leader && p.member.state == WIRE_OPEN &&
		   p.leader.state == WIRE_OPEN,
	   "a greeting of two that know the secret");
	greet(&q, key, key);
	ok(memcmp(p.hello, q.hello, WIRE_HELLO) && memcmp(p.answer, q.answer, WIRE_ANSWER),
	   "every greeting has its own nonces");
	ok(memcmp(p.member.key_out, p.member.key_in, WIRE_KEY) &&
		   !memcmp(p.member.key_out, p.leader.key_in, WIRE_KEY) &&
		   !memcmp(p.member.key_in, p.leader.key_out, WIRE_KEY) &&
		   memcmp(p.member.key_out, q.member.key_out, WIRE_KEY),
	   "a key for each direction and link");
	greet(&q, other, key);
	is(q.at_member, -EACCES, "the member notices a leader with another secret first");
	greet(&q, key, NULL);
	is(q.at_member, -ENOENT, "a leader that does not lead this job says so");

	/* a member with another secret that believes anything */
	greet(&q, key, key);
	wire_accept(&q.leader);
	feed(&q.leader, q.hello, WIRE_HELLO);
	wire_step(&q.leader, out, &n, &err);
	wire_answer(&q.leader, key, q.answer);
	memset(q.proof, 0x11, WIRE_KEY);
	feed(&q.leader, q.proof, WIRE_KEY);
	is(wire_step(&q.leader, out, &n, &err), -EACCES, "a wrong proof is refused");

	/* all that a member has sent, again */
	wire_accept(&q.leader);
	feed(&q.leader, p.hello, WIRE_HELLO);
	wire_step(&q.leader, out, &n, &err);
	wire_answer(&q.leader, key, q.answer);
	feed(&q.leader, p.proof, WIRE_KEY);
	is(wire_step(&q.leader, out, &n, &err), -EACCES, "a recorded greeting is refused");

	/* the leader's own answer as the proof */
	wire_accept(&q.leader);
	feed(&q.leader, p.hello, WIRE_HELLO);
	wire_step(&q.leader, out, &n, &err);
	wire_answer(&q.leader, key, q.answer);
	feed(&q.leader, q.answer + WIRE_HELLO, WIRE_KEY);
	is(wire_step(&q.leader, out, &n, &err), -EACCES, "so is its own HMAC sent back");

	/* a proof of the secret for a job that is not there */
	wire_accept(&q.leader);
	feed(&q.leader, p.hello, WIRE_HELLO);
	wire_step(&q.leader, out, &n, &err);
	wire_answer(&q.leader, NULL, q.answer);
	memset(q.proof, 0, WIRE_KEY);
	feed(&q.leader, q.proof, WIRE_KEY);
	ok(wire_step(&q.leader, out, &n, &err) < 0, "nothing proves an unknown job");
}

/* Every single byte of the three messages matters. */
static void test_damage(void)
{
	unsigned int taken = 0;
	uint8_t out[WIRE_ANSWER];
	struct err err;
	size_t n;

	for (size_t at = 0; at < WIRE_HELLO + WIRE_ANSWER + WIRE_KEY; at++) {
		struct pair p;
		uint8_t hello[WIRE_HELLO];

		wire_dial(&p.member, key, job, uuid, hello);
		if (at < WIRE_HELLO)
			hello[at] ^= 1;
		wire_accept(&p.leader);
		feed(&p.leader, hello, WIRE_HELLO);
		if (wire_step(&p.leader, out, &n, &err))
			continue;
		wire_answer(&p.leader, key, p.answer);
		if (at >= WIRE_HELLO && at < WIRE_HELLO + WIRE_ANSWER)
			p.answer[at - WIRE_HELLO] ^= 1;
		feed(&p.member, p.answer, WIRE_ANSWER);
		if (wire_step(&p.member, p.proof, &n, &err))
			continue;
		if (at >= WIRE_HELLO + WIRE_ANSWER)
			p.proof[at - WIRE_HELLO - WIRE_ANSWER] ^= 1;
		feed(&p.leader, p.proof, WIRE_KEY);
		taken += !wire_step(&p.leader, out, &n, &err);
	}
	is(taken, 0, "a flipped bit anywhere in a greeting is refused");
}

static void test_frames(void)
{
	struct wire_frame f = {.type = WIRE_ASK,
			       .ready = 1,
			       .silent = 1,
			       .kind = ERR_LOST,
			       .epoch = 70000,
			       .host = 255,
			       .text = "lost \n host"},
			  back;
	uint8_t first[WIRE_FRAME], out[WIRE_FRAME];
	unsigned int taken = 0;
	struct pair p;
	struct err err;

	greet(&p, key, key);
	wire_add(f.set, 0);
	wire_add(f.set, 255);
	wire_add(f.set, 256);
	ok(wire_put(&p.member, &f, first), "a frame is made");
	feed(&p.leader, first, WIRE_FRAME);
	is(wire_get(&p.leader, &back, &err), 0, "  and taken");
	ok(back.type == WIRE_ASK && back.ready == 1 && back.silent == 1 && back.kind == ERR_LOST &&
		   back.epoch == 70000 && back.host == 255,
	   "  with its fields");
	ok(wire_in(back.set, 0) && wire_in(back.set, 255) && !wire_in(back.set, 1) &&
		   !wire_in(back.set, 256),
	   "  and its set of hosts");
	is_str(back.text, "lost ? host", "  text is made printable");
	feed(&p.leader, first, WIRE_FRAME);
	is(wire_get(&p.leader, &back, &err), -EBADMSG, "the same frame again is refused");
	for (size_t at = 0; at < WIRE_FRAME; at++) {
		greet(&p, key, key);
		wire_put(&p.leader, &f, out);
		out[at] ^= 0x80;
		feed(&p.member, out, WIRE_FRAME);
		taken += !wire_get(&p.member, &back, &err);
	}
	is(taken, 0, "a flipped bit anywhere in a frame is refused");
	greet(&p, key, key);
	wire_put(&p.leader, &f, first);
	wire_put(&p.leader, &f, out);
	feed(&p.member, out, WIRE_FRAME);
	is(wire_get(&p.member, &back, &err), -EBADMSG, "a frame that was left out is noticed");
	greet(&p, key, key);
	wire_put(&p.member, &f, out);
	feed(&p.member, out, WIRE_FRAME);
	is(wire_get(&p.member, &back, &err), -EBADMSG, "a frame sent back is refused");
	memset(f.text, 'x', sizeof(f.text));
	greet(&p, key, key);
	wire_put(&p.leader, &f, out);
	feed(&p.member, out, WIRE_FRAME);
	ok(!wire_get(&p.member, &back, &err) && strlen(back.text) == WIRE_TEXT - 1,
	   "a long text is cut");
}

int main(void)
{
	test_derive();
	test_greeting();
	test_damage();
	test_frames();
	return done();
}
